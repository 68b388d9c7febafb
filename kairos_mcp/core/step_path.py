"""Paths of steps: the key of a step in its run, and the only place that knows their grammar.

A path is a list of parts between slashes, from the outermost: a name, and for most an ordinal from 1.

    round-3             the third turn of a planner
    round-3/call-2      its second call
    cycle-1/act/call-1  the call of an act, in a run of cycles; in a run of one phase it is act/call-1
    closing             the last call of the model, after a limit
    task-2/try-1/round-3  a round of a loop in a branch
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

MAX_DIGITS = 9  # of an ordinal; in a path from outside more are no ordinal
_ORDER = {"round": 1, "output": 2, "closing": 3}  # of a planner's parts; all others stand beside rounds


class PathPart(NamedTuple):
    """`round-3`: name and ordinal; 0 for a part that has none, whose name is all of it."""

    name: str
    ordinal: int


def split_path(path: str) -> tuple[PathPart, ...]:
    """Split a path into its parts, the outermost first. Any text can be split."""
    return tuple(_split_part(part) for part in path.split("/"))


def last_part(path: str) -> PathPart:
    """Return the innermost part of a path."""
    return _split_part(path.rpartition("/")[2])


def call_path(turn: str, number: int) -> str:
    """Return the path of a turn's call, numbered from 1. It is the call's id as well."""
    return f"{turn}/call-{number}"


def turn_of(path: str) -> tuple[str, int]:
    """Return the path of the turn that a step belongs to, and the number of its call there; 0: it is no call."""
    turn, _, part = path.rpartition("/")
    name, number = _split_part(part)
    return (turn, number) if name == "call" and number else (path, 0)


def enclosing_paths(path: str) -> Iterator[str]:
    """Yield the paths that a step stands in, the nearest first: `a/b` and `a` for `a/b/c`."""
    while path := path.rpartition("/")[0]:
        yield path


def task_of(path: str) -> str:
    """Return the path of the task that a step belongs to: `task-2` of `task-2/try-1/round-3`; empty for none.

    Tasks may run beside each other; the tries of one come one after the other.
    """
    if "task-" not in path:
        return ""  # as in nearly all runs
    names = path.split("/")
    count = next((n for n, name in enumerate(names, 1) if _split_part(name)[0] == "task" and n < len(names)), 0)
    return "/".join(names[:count])


def round_of(path: str) -> int:
    """Return the number of the round that a step belongs to, 0 for none."""
    return next((part.ordinal for part in split_path(path) if part.name == "round"), 0)


def loop_of(path: str) -> str:
    """Return the path of the branch whose planner loop a step belongs to, as `task-2/try-1` of
    `task-2/try-1/round-3/call-1`; empty for a run's own loop, and for a step of none."""
    parts = path.split("/")
    return next(("/".join(parts[:at]) for at, part in enumerate(parts) if _split_part(part).name in _ORDER), "")


def sort_key(path: str) -> tuple[tuple[int, str, int], ...]:
    """Order paths as their steps come: round-2 before round-10, a turn before its calls, the closing last."""
    return tuple((_ORDER.get(name, 1), name, ordinal) for name, ordinal in split_path(path))


def _split_part(part: str) -> PathPart:
    name, _, number = part.rpartition("-")
    if name and number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS:
        return PathPart(name, int(number))
    return PathPart(part, 0)
