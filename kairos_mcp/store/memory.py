"""The jobs behind a tool's memory: a text is kept once under a name, and only by whoever owns the run.

And the look by which a call finds out, right before it is made, that the run is another's by now."""

from __future__ import annotations

import apsw

from kairos_mcp.errors import FenceLost
from kairos_mcp.store.connection import row, rows


def keep(connection: apsw.Connection, run: int, run_id: str, owner: int, fence: int, name: str, text: str) -> None:
    """Keep the text; the same again is no error. Raises FenceLost, and ValueError for another text."""
    check(connection, run, run_id, owner, fence)
    known = recall(connection, run, name)
    if known is None:
        rows(connection, "insert into memory(run, name, body) values (?, ?, ?)", (run, name, text))
    elif known != text:
        raise ValueError(f"{name} is kept already, otherwise")


def check(connection: apsw.Connection, run: int, run_id: str, owner: int, fence: int) -> None:
    """Raises FenceLost where the run does not belong to this owner with this fencing number."""
    if row(connection, "select 1 from run where n = ? and owner = ? and fence = ?", (run, owner, fence)) is None:
        raise FenceLost(run_id)


def recall(connection: apsw.Connection, run: int, name: str) -> str | None:
    found = row(connection, "select body from memory where run = ? and name = ?", (run, name))
    return found[0] if found else None
