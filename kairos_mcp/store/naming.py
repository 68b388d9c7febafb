"""Says whose row it is that can't be read, and the way on: a damaged row stops its own run, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kairos_mcp.core.errors import Unreadable
from kairos_mcp.store.queries import RunRow


@contextmanager
def rows_of(run: RunRow) -> Iterator[None]:
    """Within, rows of this run are taken apart: Unreadable then names it. Others may be awaited meanwhile."""
    try:
        yield
    except Unreadable as found:
        raise with_run_id(run, found) from found


def with_run_id(run: RunRow, found: Unreadable) -> Unreadable:
    """The same of this run, with what can be done about it."""
    if found.run_id is not None:
        return found
    what = f"{found.message[:1].lower()}{found.message[1:]}"
    return Unreadable(f"Run {run.id} can't be read: {what}", _way_on(run), run_id=run.id)


def _way_on(run: RunRow) -> str:
    if run.outcome is None:
        return f"It spends nothing more: cancel it (`kairos-mcp cancel {run.id}`). `kairos-mcp doctor` names the row."
    return "It has ended, and others are not touched. `kairos-mcp doctor` names the row."
