"""Draw the tasks of a team as lines of plain text, from a report's `plan`: one shape for results and for terminals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import count_of, truncate

SIGNS: Mapping[str, str] = {
    "done": "+",
    "stopped": "~",
    "failed": "!",
    "skipped": "-",
    "cancelled": "x",
    "working": ">",
    "waiting": ".",
}
OPEN = ("waiting", "working")
_ID_CHARS = 24
_NARROW_ID_CHARS = 10
_NARROW = 80  # columns; with fewer there is no room for a description beside the figures
_LEAST_DESCRIPTION = 16
_DESCRIPTION_CHARS = 60  # where the lines have no bound


def tree_lines(
    plan: Sequence[JsonObject],
    phase: str | None,
    waiting: Sequence[Mapping[str, Any]] = (),
    columns: int | None = None,
) -> Iterator[str]:
    """Yield a heading and for each task its sign, id, agent, status, rounds and cost; under it its tries, where there
    are several, and what waits in it (`waiting`: items with `key` and `kind`). Nothing without a plan but its phase.

    `columns`: as many fit on a line.
    """
    if not plan:
        if phase is not None:
            yield f"plan: {phase}"
        return
    for line in _lines(plan, phase, waiting, columns):
        yield line.rstrip() if columns is None else truncate(line.rstrip(), columns - 1)


def _lines(
    plan: Sequence[JsonObject], phase: str | None, waiting: Sequence[Mapping[str, Any]], columns: int | None
) -> Iterator[str]:
    ended = sum(task["status"] not in OPEN for task in plan)
    yield f"plan: {ended}/{count_of(len(plan), 'task')}" + (f" · {phase}" if phase is not None else "")
    is_narrow = columns is not None and columns < _NARROW
    gap = " " if is_narrow else "  "
    rows = [_cells(task, _NARROW_ID_CHARS if is_narrow else _ID_CHARS) for task in plan]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for task, row in zip(plan, rows, strict=True):
        figures = gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width)
        line = f"  {SIGNS[task['status']]} {figures}{gap}"
        room = _DESCRIPTION_CHARS if columns is None else columns - len(line) - 2
        yield line + (truncate(_describe(task), room) if room >= _LEAST_DESCRIPTION else "")
        for number, each in enumerate(task.get("tries", ()), 1):
            yield f"      try {number}: {each['agent']} {each['status']}, {count_of(each['rounds'], 'round')}"
        for item in waiting:
            if item["key"].startswith(f"{task['path']}/"):
                yield f"      waits: {item['key']} ({item['kind']})"


def _cells(task: JsonObject, id_chars: int) -> tuple[str, ...]:
    """Return what stands in columns; nothing in place of rounds and dollars that were not used."""
    rounds = count_of(task["rounds"], "round") if task.get("rounds") else ""
    price = f"${task['usd']:.4f}" if task.get("usd") else ""
    return (truncate(task["id"], id_chars - 1), task["agent"], task["status"], rounds, price)


def _describe(task: JsonObject) -> str:
    """Return what a task is for; of one that waits for others, which."""
    description = " ".join(task["description"].split())
    before = f"after {', '.join(task['depends_on'])}: " if task["status"] == "waiting" and task["depends_on"] else ""
    return before + description
