"""Give an approval its one verdict: a person's, or `expired` once its time is over.

The verdict is set by a conditional update, so that the first of several decisions counts. A control request of kind
`verdict` is inserted with it: from that the run's owner, or the server that takes the run over, learns of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kairos_mcp.core.decision_rights import Actor, Verdict
from kairos_mcp.core.errors import AlreadyAnswered, ApprovalExpired, ApprovalMismatch, BadArguments, NotWaiting
from kairos_mcp.core.paths import shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store import approvals, rules, settlements
from kairos_mcp.store.approvals import LAPSED, ApprovalRow, DialogView, find_by_key
from kairos_mcp.store.inbox import SubmittedAnswer, insert_request, insert_submitted_answers
from kairos_mcp.store.ownership import ANY_SERVER
from kairos_mcp.store.queries import RunRow, run_by_number
from kairos_mcp.store.rows import Session, encode
from kairos_mcp.store.rules import RuleRequest
from kairos_mcp.store.runs import take_run
from kairos_mcp.store.settlements import SettlementRequest

NO_ACTOR = Actor("", "", "")


@dataclass(frozen=True, slots=True)
class Decision:
    """What somebody decided about the approval with this key. `digest`: of what they were shown. `rule`: what they want
    to be remembered of an approval. `shown`: how much of it a dialog showed; None where all of it can be seen. `files`:
    those that alone are approved, of a question that can be divided; None: all."""

    key: str
    verdict: Verdict
    digest: str
    actor: Actor
    feedback: str | None = None
    rule: RuleRequest | None = None
    shown: DialogView | None = None
    files: tuple[str, ...] | None = None


def record_responses(
    session: Session,
    run: RunRow,
    new_answers: Sequence[SubmittedAnswer],
    decisions: Sequence[Decision],
    by_route: str,
    owner: int,
    at: int,
    *,
    dead: Sequence[int] = (),
    settlement_requests: Sequence[SettlementRequest] = (),
    actor: Actor = NO_ACTOR,
) -> int | None:
    """Record answers of steps, decisions, and settlements by `actor` of calls of unknown outcome, all or none.

    Takes the run over if no living server owns it, and returns the fence then. The same decision
    again is no error. Raises NotWaiting, ApprovalMismatch, ApprovalExpired, AlreadyAnswered, and what
    `insert_submitted_answers` and `settlements.must_record` raise.
    """
    new = [decision for decision in decisions if _must_record(session, run, decision, at)]
    unsettled = [
        settlement
        for settlement in settlement_requests
        if settlements.must_record(session, run, settlement, actor.principal)
    ]
    fence = insert_submitted_answers(session, run, new_answers, by_route, owner, at, dead=dead)
    write_decisions(session, run, new, at)
    for settlement in unsettled:
        insert_request(session, run.n, "settle", encode(settlement), actor, at)
    return take_run(session, run.n, owner, dead) if (new or unsettled) and fence is None else fence


def write_decisions(session: Session, run: RunRow, decisions: Sequence[Decision], at: int) -> None:
    """Write decisions that were checked in this transaction."""
    for decision in decisions:
        _set_verdict(
            *(session, run.n, decision.key, decision.verdict, decision.actor, at),
            *(decision.feedback, decision.shown, decision.files),
        )
        found = find_by_key(session, run.n, decision.key) if decision.rule is not None else None
        if decision.rule is not None and found is not None and found.shape is not None:
            rules.add_rule(session, run, decision.key, found.shape, decision.rule, decision.actor, at)


def only_open_decisions(session: Session, run: RunRow, decisions: Sequence[Decision], at: int) -> list[Decision]:
    """Return the decisions that still count; those that came too late or twice are left out. Writes nothing."""

    def counts(decision: Decision) -> bool:
        try:
            return _must_record(session, run, decision, at)
        except (NotWaiting, ApprovalMismatch, ApprovalExpired, AlreadyAnswered):
            return False

    return [decision for decision in decisions if counts(decision)]


def _must_record(session: Session, run: RunRow, decision: Decision, at: int) -> bool:
    """Whether the decision is still to be recorded; False where the same one was before."""
    now, found = run_by_number(session, run.n), find_by_key(session, run.n, decision.key)
    if found is None or now.principal != decision.actor.principal:
        raise _not_waiting_error(run, decision.key)
    if found.digest != decision.digest:
        raise ApprovalMismatch(
            "The decision is about something else than what waits under this key.",
            "Look at its preview again, and send the digest that stands beside it.",
            run_id=run.id,
        )
    if found.verdict == "withdrawn" or (found.unasked and found.verdict is None):  # nobody was shown the latter
        raise _not_waiting_error(run, decision.key)
    if found.verdict == decision.verdict and found.files == decision.files:
        if decision.rule is not None and rules.find_made_with(session, run, decision.key) is None:
            late = f"{decision.key!r} was approved before; a rule is made with the approval itself."
            raise AlreadyAnswered(late, "Make it with the next approval of such a call.", run_id=run.id)
        return False
    if found.verdict == "expired" or (found.verdict is None and found.expires_at <= at):
        late = "The approval has expired; the call was not made."
        raise ApprovalExpired(late, "run_status shows where the run stands.", run_id=run.id)
    if found.verdict is not None:
        other = f"{decision.key!r} was decided before, otherwise."
        raise AlreadyAnswered(other, "run_status shows where the run stands.", run_id=run.id)
    answered = session.row("select 1 from answer where step = ?", (found.step_id,))
    if now.outcome is not None or answered is not None:
        raise _not_waiting_error(run, decision.key)
    if decision.rule is not None:
        _check_rule(run, found, decision.rule)
    if decision.files is not None:
        _check_files(run, found, decision)
    return True


def _check_files(run: RunRow, approval: ApprovalRow, decision: Decision) -> None:
    """Raise BadArguments if these files can't be approved alone."""
    if decision.verdict != "approve" or not approval.divisible_files:
        raise BadArguments("This is approved as a whole.", "Leave the files out, or deny it.", run_id=run.id)
    unknown = [path for path in decision.files or () if path not in approval.base_hashes]
    if unknown or not decision.files:
        what = f"{shorten_path(unknown[0])} is not" if unknown else "No file is named"
        raise BadArguments(f"{what} among the files of this question.", "Name some of those it shows.", run_id=run.id)


def _check_rule(run: RunRow, approval: ApprovalRow, request: RuleRequest) -> None:
    """Raise BadArguments if this approval can't be remembered so."""
    if approval.shape is None:
        raise BadArguments(
            "A person is asked about each call like this one: it can be approved, but not for further calls.",
            "So it is for instructions to agents, paths outside the workspace, edits of several files, invisible "
            "characters, and programs without a sandbox.",
            run_id=run.id,
        )
    if request.scope == "project" and not run.workspace:
        raise BadArguments("The run has no workspace, so there is no project.", "Remember it for the run.")
    request.cover(approval.shape)


def _not_waiting_error(run: RunRow, key: str) -> NotWaiting:
    return NotWaiting(f"No approval waits under {key[:120]!r}.", "run_status shows what waits now.", run_id=run.id)


def has_overdue(session: Session, at: int) -> bool:
    """Whether there is an undecided approval whose time is over."""
    return next(_list_overdue(session, at), None) is not None


def expire_overdue(session: Session, at: int) -> int:
    """Set the verdict `expired` where the time is over; pause each run that waits for nothing else, and return how
    many expired.

    The step stays open, and a person is asked about it again when the run is resumed. Other branches of the run go on
    meanwhile; whoever owns it pauses it once none of them moves or waits. Where a call was approved that is open still,
    a server has to see whether it stands behind one that expired.
    """
    overdue = list(_list_overdue(session, at))
    for n, key in overdue:
        _set_verdict(session, n, key, "expired", Actor("", "clock", ""), at)
        session.rows(_PAUSE_IF_ALL_LAPSED, (LAPSED, n))
        session.rows(_LOOK_AT_APPROVED, (ANY_SERVER, n))
    return len(overdue)


_PAUSE_IF_ALL_LAPSED = """
    update run set paused = ?, resume_at = null where n = ? and owner is null and not exists (
        select 1 from waiting where waiting.run = run.n and coalesce((select verdict from approval
            where approval.step = waiting.step order by approval.n desc limit 1), '') <> 'expired')
"""
_LOOK_AT_APPROVED = """
    update run set owner = ? where n = ? and owner is null and paused is null and exists (
        select 1 from waiting join approval on approval.step = waiting.step
        where waiting.run = run.n and verdict = 'approve')
"""


def _list_overdue(session: Session, at: int) -> Iterator[tuple[int, str]]:
    found = session.rows(
        "select approval.run, approval.key from approval join run on run.n = approval.run"
        " where verdict is null and not unasked and expires_at <= ? and outcome is null order by expires_at",
        (at,),
    )
    return ((n, key) for n, key in found)


def _set_verdict(
    session: Session,
    n: int,
    key: str,
    verdict: str,
    actor: Actor,
    at: int,
    feedback: str | None = None,
    shown: DialogView | None = None,
    files: Sequence[str] | None = None,
) -> None:
    chosen = None if files is None else encode(tuple(files))
    dialog = None if shown is None else encode(shown._asdict())
    first = session.rows(
        "update approval set verdict = ?, by = ?, through = ?, client = ?, feedback = ?, shown = ?, files = ?,"
        " decided_at = ? where run = ? and key = ? and verdict is null returning step",
        (verdict, *actor, feedback, dialog, chosen, at, n, key),
    )
    if first:
        insert_request(session, n, "verdict", key, actor, at)
        approvals.ask_queued(session, n, at)
