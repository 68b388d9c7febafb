"""A call whose end nobody knows: what a person says of it, and the jobs that record that.

It stands in the rows as a further attempt that was handed out, with the one before ended `unknown`. What a person
says is a deposit of kind `settle`, which the run's owner takes up in the turn that acts on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import apsw

from kairos_mcp.errors import NotWaiting
from kairos_mcp.store.codec import decode, encode
from kairos_mcp.store.connection import rows
from kairos_mcp.store.reading import RunRow, Wish, run_by_number, waiting
from kairos_mcp.store.runs import take

SUFFIX = "/settle"  # a waiting key is the step's path with it
KIND = "settle"

Settlement = Literal["reattempt", "already_done"]


@dataclass(frozen=True, slots=True)
class Settling:
    """What a person said of the call at `path`: make it again, or go on as if it had been made."""

    path: str
    settlement: Settlement
    note: str | None = None


def settle(
    connection: apsw.Connection,
    run: RunRow,
    said: Settling,
    who: tuple[str, str, str],
    owner: int,
    at: int,
    *,
    dead: Sequence[int] = (),
) -> int | None:
    """Leave it for the owner; own the run if nobody living does, and give the fence then. Raises NotWaiting."""
    now = run_by_number(connection, run.n)
    step = waiting(connection, run.n).get(said.path) if now.outcome is None else None
    if step is None or not step.is_lost:
        key = f"{said.path}{SUFFIX}"
        raise NotWaiting(f"Nothing waits under {key[:120]!r}.", "run_status shows what waits now.", run_id=run.id)
    rows(
        connection,
        "insert into deposit(run, kind, body, principal, via, client, at) values (?, ?, ?, ?, ?, ?, ?)",
        (run.n, KIND, encode(said), *who, at),
    )
    return take(connection, run.n, owner, dead)


def said_in(wish: Wish) -> Settling:
    """What a deposit of this kind says."""
    said: Settling = decode(Settling, wish.body)
    return said
