"""A call whose end nobody knows: what a person says of it, and the jobs that record that.

It stands in the rows as a further attempt that was handed out, with the one before ended `unknown`. What a person
says is a deposit of kind `settle`, which the run's owner takes up in the turn that acts on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import apsw

from kairos_mcp.errors import AlreadyAnswered, NotWaiting
from kairos_mcp.store.codec import decode, encode
from kairos_mcp.store.connection import rows
from kairos_mcp.store.reading import RunRow, Wish, run_by_number, waiting

SUFFIX = "/settle"  # a waiting key is the step's path with it
KIND = "settle"

Settlement = Literal["reattempt", "already_done"]


@dataclass(frozen=True, slots=True)
class Settling:
    """What a person said of the call at `path`: make it again, or go on as if it had been made."""

    path: str
    settlement: Settlement
    note: str | None = None


def check(connection: apsw.Connection, run: RunRow, said: Settling) -> bool:
    """Whether it is still to be recorded; False where the same was said before. Raises NotWaiting, AlreadyAnswered."""
    now = run_by_number(connection, run.n)
    step = waiting(connection, run.n).get(said.path) if now.outcome is None else None
    before, taken = _newest(connection, run.n, said.path)
    if step is not None and step.is_lost and (before is None or taken):
        return True
    key = f"{said.path}{SUFFIX}"[:120]
    if before is None:
        raise NotWaiting(f"Nothing waits under {key!r}.", "run_status shows what waits now.", run_id=run.id)
    if before.settlement != said.settlement:
        other = f"{key!r} was settled before, otherwise."
        raise AlreadyAnswered(other, "run_status shows where the run stands.", run_id=run.id)
    return False


def record(connection: apsw.Connection, run: RunRow, said: Settling, who: tuple[str, str, str], at: int) -> None:
    """Leave for the owner what was checked in this transaction."""
    rows(
        connection,
        "insert into deposit(run, kind, body, principal, via, client, at) values (?, ?, ?, ?, ?, ?, ?)",
        (run.n, KIND, encode(said), *who, at),
    )


def _newest(connection: apsw.Connection, run: int, path: str) -> tuple[Settling | None, bool]:
    """What was said last of this call, and whether the owner has taken it up."""
    of_run = "select body, taken from deposit where run = ? and kind = ? order by id desc"
    for body, taken in rows(connection, of_run, (run, KIND)):
        said: Settling = decode(Settling, body)
        if said.path == path:
            return said, taken is not None
    return None, False


def said_in(wish: Wish) -> Settling:
    """What a deposit of this kind says."""
    said: Settling = decode(Settling, wish.body)
    return said
