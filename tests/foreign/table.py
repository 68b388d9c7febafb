"""The tables of a session's results: `python -m tests.foreign.table` writes MATRIX.md from results.json and
features.json."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HEAD = """| client | version | over | era | way | result |
|---|---|---|---|---|---|"""
TRANSPORTS = {"stdio": "stdio", "http": "Streamable HTTP", "sse": "SSE"}
ABOUT = """Each line is a real client, in an environment of its own, that completed a planner run of three rounds, two
of them with a tool call, against the real server. Its answer is a word out of a file that only the run could read.
*Modern* is protocol 2026-07-28, *legacy* what was before. Sampling is a *push* in the legacy era and travels by
*InputRequired* in the modern one; *native* is with the client's own tool calling, *text* without."""
ABOUT_FEATURES = """## Beside a run
What real clients used beside a run, in one session with the real server each: an approval in a
dialog of theirs, after which the file was written; a cycle of a mandate, whose change was approved alike; a team of two
tasks; the list of runs, read as a resource; a prompt, and the completion of one of its arguments."""


def table(found: list[dict[str, Any]]) -> str:
    """One row for each way that a client went, its transports side by side; then what is odd about each."""
    rows = [_row(list(alike)) for _, alike in groupby(sorted(found, key=_place(found)), key=_kind)]
    odd = {each["client"]: each["oddity"] for each in found if each["oddity"]}
    notes = [f"- **{client}**: {oddity}." for client, oddity in odd.items()]
    return "\n".join([ABOUT, "", HEAD, *rows, "", *notes]) + "\n"


def _kind(each: dict[str, Any]) -> tuple[Any, ...]:
    return (each["client"], each["version"], each["era"], each.get("way", "-"), each["result"])


def _place(found: list[dict[str, Any]]) -> Any:
    """Clients in the order of the matrix, the rows of each by era and way."""
    order = list(dict.fromkeys(each["client"] for each in found))
    return lambda each: (order.index(each["client"]), each["era"] == "legacy", _kind(each)[3:])


def _row(alike: list[dict[str, Any]]) -> str:
    first = alike[0]
    over = ", ".join(dict.fromkeys(TRANSPORTS[each["transport"]] for each in alike))
    cells = (first["client"], first["version"], over, first["era"], first.get("way", "-"), first["result"])
    return f"| {' | '.join(cells)} |"


def features_table(found: list[dict[str, Any]]) -> str:
    """One row for each client, transport and era; a column for each feature that any of them used."""
    names = list(dict.fromkeys(name for each in found for name in each["features"]))
    head = ("client", "version", "over", "era", *names)
    rows = [
        (
            *(each["client"], each["version"], TRANSPORTS[each["transport"]], each["era"]),
            *("yes" if name in each["features"] else "**no**" for name in names),
        )
        for each in found
    ]
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join([ABOUT_FEATURES, "", *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"


if __name__ == "__main__":
    results, features = (json.loads((HERE / name).read_text()) for name in ("results.json", "features.json"))
    (HERE / "MATRIX.md").write_text(f"{table(results)}\n{features_table(features)}")
