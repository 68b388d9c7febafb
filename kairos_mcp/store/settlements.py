"""Settle calls of unknown outcome, where a server crashed before it could record the result: a person decides.

In the rows such a call has a further attempt that waits outside, and the attempt before it ended as `unknown`. A
settlement is a control request of kind `settle`. The run's owner handles it in the commit that acts on it. A digest
binds it to that one attempt: if the same call is lost again, a person is asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from kairos_mcp.core.decision_rights import Settlement
from kairos_mcp.core.errors import AlreadyAnswered, ApprovalMismatch, NotWaiting
from kairos_mcp.core.messages import canonical_json
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store.queries import RunRow, WaitingRow, open_steps, run_by_number
from kairos_mcp.store.rows import Session, decode

KEY_SUFFIX = "/settle"  # a waiting key is the step's path with it
KIND = "settle"


@dataclass(frozen=True, slots=True)
class SettlementRequest:
    """What somebody decided about the call at `path`: make it again, or go on as if it had been made.

    `digest`: of what they were shown (settlement_digest).
    """

    path: str
    settlement: Settlement
    note: str | None = None
    digest: str = ""


def is_settlement_key(key: str) -> bool:
    """Whether a waiting key is that of a call of unknown outcome."""
    return key.endswith(KEY_SUFFIX)


def settlement_digest(run: RunRow, path: str, step: WaitingRow) -> str:
    """Return the SHA-256 in hex of what is settled: run and workspace, the call, and which attempt at it was lost."""
    about = [run.id, run.workspace, path, step.digest.hex(), step.attempt]
    return sha256(canonical_json(about).encode()).hexdigest()


def current_digest(session: Session, run: RunRow, path: str) -> str | None:
    """Return the digest of the call of unknown outcome that waits at this path now; None if absent."""
    step = open_steps(session, run.n).get(path)
    return settlement_digest(run, path, step) if step is not None and step.needs_settlement else None


def pending_paths(session: Session, n: int) -> set[str]:
    """Return the paths of calls whose settlement the run's owner has not handled yet."""
    found = session.rows("select body from inbox where run = ? and kind = ? and taken is null", (n, KIND))
    return {decode(SettlementRequest, body).path for (body,) in found}


def must_record(session: Session, run: RunRow, request: SettlementRequest, principal: str) -> bool:
    """Whether a settlement is still to be recorded; False where the same one was before.

    Raises NotWaiting, ApprovalMismatch, AlreadyAnswered.
    """
    key = f"{request.path}{KEY_SUFFIX}"[:120]
    now = run_by_number(session, run.n)
    step = open_steps(session, run.n).get(request.path) if now.outcome is None else None
    before, taken = _newest_settlement(session, run.n, request.path)
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


def only_open_settlements(
    session: Session, run: RunRow, requests: Sequence[SettlementRequest], principal: str
) -> list[SettlementRequest]:
    """Return the settlements that still count; those too late or about something else are left out. Writes nothing."""

    def counts(request: SettlementRequest) -> bool:
        try:
            return must_record(session, run, request, principal)
        except (NotWaiting, ApprovalMismatch, AlreadyAnswered):
            return False

    return [request for request in requests if counts(request)]


def _newest_settlement(session: Session, run: int, path: str) -> tuple[SettlementRequest | None, bool]:
    """Return the newest settlement of this call, and whether the owner has handled it."""
    statement = "select body, taken from inbox where run = ? and kind = ? order by id desc"
    for body, taken in session.rows(statement, (run, KIND)):
        request: SettlementRequest = decode(SettlementRequest, body)
        if request.path == path:
            return request, taken is not None
    return None, False
