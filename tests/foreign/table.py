"""The table of a session's results: `python -m tests.foreign.table [RESULTS]` writes MATRIX.md from results.json."""

from __future__ import annotations

import json
import sys
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


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results.json"
    (HERE / "MATRIX.md").write_text(table(json.loads(source.read_text())))
