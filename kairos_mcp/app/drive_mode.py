"""How a process drives runs, and what it has of one: what others know of its pool."""

from __future__ import annotations

from typing import NamedTuple

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.views.run_facts import BackOff

FINISH_S = 0.7  # how long running steps may take to end when the server stops
SERVER_SLOTS = 64  # of a server that shares a database with others: what one leaves is shared among those that live


@dataclass(frozen=True, slots=True)
class DriveMode:
    """How a process drives runs. `drives`: whether it does at all; else it writes rows and leaves the runs to others.
    `slots`: how many runs it drives at most of those that others left; None: all that there are. `finish_s`: how long
    running steps may take to end when it stops."""

    drives: bool = True
    slots: int | None = None
    finish_s: float = FINISH_S


DRIVES_ALL = DriveMode()


def server_mode(*, drives: bool, is_shared: bool) -> DriveMode:
    """Return how a server for clients drives runs; `is_shared`: others on other machines have the same store."""
    return DriveMode(drives, SERVER_SLOTS if is_shared else None)


class RunHere(NamedTuple):
    """What this process has of a run: whether it moves, the error that stopped it, the attempts that are repeated."""

    is_moving: bool = False
    error: KairosError | None = None
    backing_off: tuple[BackOff, ...] = ()


NOT_HERE = RunHere()
