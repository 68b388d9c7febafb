"""The sums of each system, and whether the report may be believed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .cases import APART
from .controls import CONTROLS

Row = Mapping[str, Any]
COLUMNS = {
    "runs": "runs",
    "jobs": "jobs",
    "deaths": "kills and other faults",
    "by_itself": "went on by itself",
    "by_a_look": "by a look",
    "by_a_call": "by a call",
    "never": "never ended",
    "calls_in_flight": "effects in flight when killed",
    "effects_twice": "effects twice",
    "effects_lost": "effects lost",
    "unapproved": "effects unapproved",
    "paid_again": "completions paid again",
    "paid_in_flight": "completions in flight when killed",
    "settled": "a person said what happened",
    "settled_unsent": "of these never sent",
    "approved_again": "approved again",
}


def sum_up(rows: Iterable[Row]) -> dict[str, int]:
    """Return the sums over jobs. Completions of jobs that did not end are `paid_for_nothing`, none of them again."""
    rows = list(rows)
    ended = [row for row in rows if row["ended"]]
    by = Counter(verb for row in rows for verb in row.get("went_on_by", ()))

    def total(key: str, chosen: list[Row] = rows) -> int:
        return sum(row.get(key, 0) for row in chosen)

    again = sum(max(0, row["completions"] - row["needed"]) for row in ended)
    return {
        "runs": len({row["seed"] for row in rows}),
        "jobs": len(rows),
        "deaths": total("deaths"),
        "never": len(rows) - len(ended),
        "by_itself": by["open"],
        "by_a_look": by["look"],
        "by_a_call": by["resume"],
        "effects_twice": total("twice"),
        "effects_lost": total("lost"),
        "reads_again": total("read_again"),
        "unapproved": total("unapproved"),
        "paid_again": again,
        "paid_in_flight": total("in_flight", ended),
        "paid_beyond_flight": max(0, again - total("in_flight", ended)),
        "paid_for_nothing": sum(row.get("completions", 0) for row in rows if not row["ended"]),
        "calls_in_flight": total("calls_in_flight"),
        "settled": total("settled"),
        "settled_unsent": total("settled_unsent"),
        "approved_again": sum(max(0, row.get("approvals", 0) - 1) for row in rows),
    }


def make_report(rows: Iterable[Row]) -> dict[str, Any]:
    """Make the report of a file's rows: sums of each system, whole and by group, and the controls that escaped.

    `tokens`: what the undisturbed job was charged. `is_valid` only where all four controls were run with each seed, and
    each was caught each time by what is wrong with it.
    """
    systems: dict[str, list[Row]] = {}
    for row in rows:
        systems.setdefault(row["system"], []).append(row)
    sums = {}
    for name, own in systems.items():
        disturbed = [row for row in own if row["group"] != "none"]
        groups = dict.fromkeys(row["group"] for row in disturbed)
        by_group = {group: sum_up(row for row in disturbed if row["group"] == group) for group in groups}
        told: Any = next((row["about"] for row in own if row.get("about")), {})
        tokens = next((row["tokens"] for row in own if row["group"] == "none"), 0)
        whole = sum_up(row for row in disturbed if row["group"] not in APART)
        sums[name] = {"about": told, "tokens": tokens, "whole": whole, "groups": by_group}
    seeds = {row["seed"] for own in systems.values() for row in own}
    escaped = [name for name in CONTROLS if any(not _is_caught(name, systems.get(name, []), seed) for seed in seeds)]
    return {"systems": sums, "escaped": escaped, "is_valid": not escaped}


def _is_caught(control: str, rows: list[Row], seed: int) -> bool:
    return sum_up(row for row in rows if row["seed"] == seed)[CONTROLS[control].caught_by] > 0


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a file of outcomes. A last line that was cut off by a kill is left out: its case is played again."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def make_table(report: Mapping[str, Any], part: str = "whole") -> str:
    """Return a Markdown table: one line a system, without the controls."""
    lines = [["system", *COLUMNS.values()], ["---", *("--:" for _ in COLUMNS)]]
    for name, each in report["systems"].items():
        sums = each["whole"] if part == "whole" else each["groups"].get(part)
        if name not in CONTROLS and sums:
            lines.append([each["about"].get("title", name), *(str(sums.get(key, "-")) for key in COLUMNS)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
