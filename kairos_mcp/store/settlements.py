"""A call whose end nobody knows: what a person says of it, and the jobs that record that.

It stands in the rows as a further attempt that was handed out, with the one before ended `unknown`. What a person
says is a deposit of kind `settle`, which the run's owner takes up in the turn that acts on it. It is bound by a digest
to that one attempt: the same call, lost once more, is another question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import apsw

from kairos_mcp.core.errors import AlreadyAnswered, ApprovalMismatch, NotWaiting
from kairos_mcp.core.messages import canonical_json
from kairos_mcp.store.codec import decode, encode
from kairos_mcp.store.connection import fetch_all
from kairos_mcp.store.queries import ControlRequest, RunRow, WaitingRow, open_steps, run_by_number

KEY_SUFFIX = "/settle"  # a waiting key is the step's path with it
DEPOSIT_KIND = "settle"

Settlement = Literal["reattempt", "already_done"]


@dataclass(frozen=True, slots=True)
class SettlementRequest:
    """What somebody said of the call at `path`: make it again, or go on as if it had been made. `digest`: of what they
    were shown (digest_of)."""

    path: str
    settlement: Settlement
    note: str | None = None
    digest: str = ""


def is_settlement_key(key: str) -> bool:
    """Whether a waiting key is that of a call whose end nobody knows."""
    return key.endswith(KEY_SUFFIX)


def settlement_digest(run: RunRow, path: str, step: WaitingRow) -> str:
    """SHA-256 in hex over what is settled: the run and its workspace, the call, and which attempt at it was lost."""
    about = [run.id, run.workspace, path, step.digest.hex(), step.attempt]
    return sha256(canonical_json(about).encode()).hexdigest()


def current_digest(connection: apsw.Connection, run: RunRow, path: str) -> str | None:
    """The digest of the lost call that waits at this path now; None where none does."""
    step = open_steps(connection, run.n).get(path)
    return settlement_digest(run, path, step) if step is not None and step.needs_settlement else None


def pending_paths(connection: apsw.Connection, n: int) -> set[str]:
    """The paths of lost calls that somebody has settled, where nobody has gone on with the run since."""
    said = fetch_all(
        connection, "select body from deposit where run = ? and kind = ? and taken is null", (n, DEPOSIT_KIND)
    )
    return {decode(SettlementRequest, body).path for (body,) in said}


def must_record(connection: apsw.Connection, run: RunRow, request: SettlementRequest, principal: str) -> bool:
    """Whether it is still to be recorded; False where the same was said before. Raises NotWaiting, ApprovalMismatch,
    AlreadyAnswered."""
    key = f"{request.path}{KEY_SUFFIX}"[:120]
    now = run_by_number(connection, run.n)
    step = open_steps(connection, run.n).get(request.path) if now.outcome is None else None
    before, taken = _newest_settlement(connection, run.n, request.path)
    if now.principal != principal:
        raise NotWaiting(f"Nothing waits under {key!r}.", "run_status shows what waits now.", run_id=run.id)
    if step is not None and step.needs_settlement and (before is None or taken):
        if request.digest == settlement_digest(now, request.path, step):
            return True
        raise ApprovalMismatch(
            "The settlement is about something else than what waits under this key.",
            "Look at it again, and send the digest that stands beside it.",
            run_id=run.id,
        )
    if before is None:
        raise NotWaiting(f"Nothing waits under {key!r}.", "run_status shows what waits now.", run_id=run.id)
    if before.settlement != request.settlement:
        other = f"{key!r} was settled before, otherwise."
        raise AlreadyAnswered(other, "run_status shows where the run stands.", run_id=run.id)
    return False


def record_settlement(
    connection: apsw.Connection, run: RunRow, request: SettlementRequest, actor: tuple[str, str, str], at: int
) -> None:
    """Leave for the owner what was checked in this transaction."""
    fetch_all(
        connection,
        "insert into deposit(run, kind, body, principal, via, client, at) values (?, ?, ?, ?, ?, ?, ?)",
        (run.n, DEPOSIT_KIND, encode(request), *actor, at),
    )


def only_open_settlements(
    connection: apsw.Connection, run: RunRow, requests: Sequence[SettlementRequest], principal: str
) -> list[SettlementRequest]:
    """Those that still count; what came too late, or is about something else, is passed over. Writes nothing."""

    def counts(each: SettlementRequest) -> bool:
        try:
            return must_record(connection, run, each, principal)
        except (NotWaiting, ApprovalMismatch, AlreadyAnswered):
            return False

    return [each for each in requests if counts(each)]


def _newest_settlement(connection: apsw.Connection, run: int, path: str) -> tuple[SettlementRequest | None, bool]:
    """What was said last of this call, and whether the owner has taken it up."""
    of_run = "select body, taken from deposit where run = ? and kind = ? order by id desc"
    for body, taken in fetch_all(connection, of_run, (run, DEPOSIT_KIND)):
        said: SettlementRequest = decode(SettlementRequest, body)
        if said.path == path:
            return said, taken is not None
    return None, False


def decode_settlement(deposit: ControlRequest) -> SettlementRequest:
    """What a deposit of this kind says."""
    said: SettlementRequest = decode(SettlementRequest, deposit.body)
    return said
