"""Leave things for a run that another server may own: answers of its open steps, and control requests.

Answers count at once. Control requests wait in the table `inbox` until the owner of the run drains its inbox.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from kairos_mcp.core.decision_rights import Actor
from kairos_mcp.core.errors import AlreadyAnswered, FenceLost, NotWaiting, Stale
from kairos_mcp.core.limits import NOTHING, Limits, Units, counts_of
from kairos_mcp.core.messages import Exactness
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.core.steps import Answer, DialectName, Refused
from kairos_mcp.store import client_completions, rows
from kairos_mcp.store.accounts import read_account, read_branch_accounts
from kairos_mcp.store.commit import StepResult
from kairos_mcp.store.ownership import ANY_SERVER
from kairos_mcp.store.queries import ControlRequest, RunRow, StepRow, pending_requests, run_by_number, step_at
from kairos_mcp.store.report_queries import exceeded_cap_notes
from kairos_mcp.store.reservations import ReservationBatch
from kairos_mcp.store.rows import Session, decode, encode, encode_answer, encode_units, placeholders
from kairos_mcp.store.runs import RESUME_SQL, add_note, take_run

ALLOWANCE_UNITS = ("model_calls", "milliseconds")  # what an unattended allowance limits

Action = Literal["pause", "resume", "extend", "reroute", "cancel"]
_INSERT_ANSWER = "insert into answer(step, at, body, spent, cached, exactness, by_route) values (?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class SubmittedAnswer:
    """An answer that somebody brings for the open step at `path`, and what it costs.

    `dialect`: in which the step was asked. `request`: the client request that it answers, if any.
    """

    path: str
    answer: Answer
    tokens: Units = NOTHING
    cached: int = 0
    exactness: Exactness | None = None
    text: tuple[str, str] | None = None
    dialect: DialectName | None = None
    request: int | None = None
    notes: Sequence[str] = ()

    def as_result(self, kind: str) -> StepResult:
        """Return the result of a step of this kind, which counts as a round or a call itself."""
        spent = self.tokens.plus(counts_of(kind))
        if isinstance(self.answer, Refused):  # no model answered: its requests are charged as attempts of their own
            spent = spent._replace(model_calls=0)
        return StepResult(self.answer, spent, self.cached, self.exactness, self.text, tuple(self.notes))


class RecordedAnswers(NamedTuple):
    """The steps whose answers were recorded, by path. `fence`: set if the run was taken over."""

    paths: Collection[str] = ()
    fence: int | None = None


def insert_submitted_answers(
    session: Session,
    run: RunRow,
    answers: Sequence[SubmittedAnswer],
    by_route: str,
    owner: int,
    at: int,
    *,
    dead: Sequence[int] = (),
) -> int | None:
    """Record answers of open steps with their charges, all or none; take the run over if no living server owns it.

    `by_route`: the route that the answers came by. The same answer again is no error. Returns the fence if the run was
    taken over. Raises NotWaiting, AlreadyAnswered.
    """
    if not answers:
        return None
    now = run_by_number(session, run.n)
    found = [(_find_open_step(session, now, submitted), submitted) for submitted in answers]
    new = [(step, submitted) for step, submitted in found if step is not None]
    return record_answers(session, now, new, by_route, owner, at, dead=dead).fence


def record_answers(
    session: Session,
    run: RunRow,
    new: Sequence[tuple[StepRow, SubmittedAnswer]],
    by_route: str,
    owner: int,
    at: int,
    *,
    dead: Sequence[int] = (),
) -> RecordedAnswers:
    """Record answers of these steps, which were found waiting in this transaction; `run` was read in it too."""
    if not new:
        return RecordedAnswers()
    batch = ReservationBatch(session, read_account(session, run.account), read_branch_accounts(session, run.account))
    for step, submitted in new:
        result = submitted.as_result(step.kind)
        insert_answer(session, step.id, result, by_route, at)
        batch.settle(step.path, step.held, result.spent, step.shared)
        client_completions.settle_answered(session, batch, step, submitted.request, run.fence, at)
        record_dialect(session, step, submitted.dialect)
        if submitted.text is not None:
            rows.keep_texts(session, (submitted.text,))
    batch.write()
    _resume_if_by_itself(session, run)
    notes = [text for _, submitted in new for text in submitted.notes]
    for text in (*exceeded_cap_notes(batch.exceeded_caps()), *notes):
        add_note(session, run, text)
    return RecordedAnswers([step.path for step, _ in new], take_run(session, run.n, owner, dead))


def record_dialect(session: Session, step: StepRow, dialect: DialectName | None) -> None:
    """Write the dialect in which a client was asked: it is known only with the answer, since clients differ."""
    if dialect is None or step.sent.dialect == dialect:
        return
    table = "step" if step.newest is None else "attempt"
    newest = "id = ?" if step.newest is None else "id = (select max(id) from attempt where step = ?)"
    session.rows(f"update {table} set sent = ? where {newest}", (encode(replace(step.sent, dialect=dialect)), step.id))


def _find_open_step(session: Session, run: RunRow, submitted: SubmittedAnswer) -> StepRow | None:
    """Return the step that this answers; None where the same answer is recorded already."""
    found = step_at(session, run.n, submitted.path)
    if found is None or (found.body is None and (not found.is_open or run.outcome is not None)):
        raise NotWaiting(f"Nothing waits under {submitted.path!r}.", "run_status shows what waits now.", run_id=run.id)
    if found.body is None:
        return found
    if found.body == encode_answer(submitted.answer):
        return None
    raise AlreadyAnswered(
        f"{submitted.path!r} was answered before, otherwise.",
        "Call run_status to see where the run stands.",
        run_id=run.id,
    )


def submit_request(
    session: Session,
    run: RunRow,
    action: Action,
    body: str,
    actor: Actor,
    owner: int,
    at: int,
    *,
    reason: str | None = None,
    dead: Sequence[int] = (),
) -> int | None:
    """Leave a control request for the owner; take the run over if no living server owns it, and return the fence then.

    `actor`: the columns principal, via and client. `reason` is noted with it. Raises Stale.
    """
    go_on = f'Go on from it with planner_run continues="{run.id}".'
    if run_by_number(session, run.n).outcome is not None:
        raise Stale("The run has ended.", go_on, run_id=run.id)
    if action == "extend" and _was_limit_reached(session, run.n):
        closing = f"Let its closing end: answer what waits, or wait for it. {go_on}"
        raise Stale("A limit has ended the run already; it is closing.", closing, run_id=run.id)
    session.rows(
        "insert into inbox(run, kind, body, principal, via, client, at) values (?, ?, ?, ?, ?, ?, ?)",
        (run.n, action, body, *actor, at),
    )
    if reason is not None:
        add_note(session, run, reason)
    if action == "pause" and owner == ANY_SERVER and _pause_at_once(session, run, body, dead, at):
        return None
    return take_run(session, run.n, owner, dead)


def _pause_at_once(session: Session, run: RunRow, why: str, dead: Sequence[int], at: int) -> bool:
    """Pause a run that no living server owns, in this transaction; False where one owns it and handles the request.

    For a caller that may not take runs over itself. Nothing of such a run is under way that would have to end first.
    """
    nobodys = f"(owner is null or owner in ({placeholders(dead)}))"
    statement = f"update run set paused = ?, resume_at = null where n = ? and {nobodys} returning n"
    if session.row(statement, (why, run.n, *dead)) is None:
        return False
    session.rows("update inbox set taken = ? where run = ? and kind = 'pause' and taken is null", (at, run.n))
    return True


_WAITS_AT_PAUSE = (
    "select 1 from waiting join step on step.id = waiting.step where waiting.run = ? and kind = 'pause' limit 1"
)


@dataclass(frozen=True, slots=True)
class DrainedInbox:
    """The run after its owner drained the inbox, and which requests ask for more than a changed row.

    `resumes`: those for a flow that waits until somebody lets it go on. These and `settlements` are marked by the
    commit that acts on them, so that none is lost before.
    """

    run: RunRow
    is_cancelled: bool
    resumes: Sequence[int] = ()
    settlements: Sequence[ControlRequest] = ()


def drain_inbox(session: Session, run: RunRow, owner: int, fence: int, at: int) -> DrainedInbox:
    """Carry out the control requests that came: pause, route, limits. Raises FenceLost."""
    now = run_by_number(session, run.n)
    if (now.owner, now.fence) != (owner, fence) or now.outcome is not None:
        raise FenceLost(run.id)
    requests, waits_at_pause = pending_requests(session, run.n), session.row(_WAITS_AT_PAUSE, (run.n,)) is not None
    for request in requests:
        match request.kind:
            case "pause":
                session.rows("update run set paused = ?, resume_at = null where n = ?", (request.body, run.n))
            case "resume":
                session.rows(RESUME_SQL, (run.n,))
                if waits_at_pause:
                    continue  # the commit that lets the flow go on marks it
            case "reroute":
                session.rows("update run set route = ? where n = ?", (request.body, run.n))
                client_completions.withdraw_all(session, run.n, at)
            case "extend":
                _extend(session, run, request.body)
            case "verdict":
                _resume_if_by_itself(session, now)  # the verdict is in its approval's row, which the owner reads next
            case "settle":
                _resume_if_by_itself(session, now)
                continue  # the commit that acts on a settlement marks it
            case _:
                continue  # a cancelled run ends
        session.rows("update inbox set taken = ? where id = ?", (at, request.id))
    _renew_allowance(session, run, requests)
    is_cancelled = any(request.kind == "cancel" for request in requests)
    resumes = [request.id for request in requests if request.kind == "resume" and waits_at_pause]
    settlements = [request for request in requests if request.kind == "settle"]
    return DrainedInbox(run_by_number(session, run.n), is_cancelled, resumes, settlements)


def _resume_if_by_itself(session: Session, run: RunRow) -> None:
    """Resume a run that would go on by itself later, since somebody answered for one of its branches: what it was
    paused for is tried now, and pauses it again if need be."""
    if run.resume_at is not None:
        session.rows(RESUME_SQL, (run.n,))


def _was_limit_reached(session: Session, n: int) -> bool:
    """Whether a limit of the run has refused a step; one of a branch ends that branch alone."""
    found = "select 1 from step join answer on answer.step = step.id where run = ? and body like ? and body not like ?"
    return session.row(f"{found} limit 1", (n, '%"kind":"refused"}', '%"scope":"branch %')) is not None


def _extend(session: Session, run: RunRow, body: str) -> None:
    """Raise the caps to those of the request; a limit that is not set stays unset."""
    caps: Limits = decode(Limits, body)
    now = read_account(session, run.account).caps
    for unit in Units._fields:
        new, old = getattr(caps, unit), getattr(now, unit)
        if new is not None and old is not None and new > old:
            session.rows(f"update account set cap_{unit} = ? where id = ?", (new, run.account))


def _renew_allowance(session: Session, run: RunRow, requests: Iterable[ControlRequest]) -> None:
    """Renew the unattended allowance of a mandate's run where a person resumed it or approved a call of it.

    The allowance is what such a run may use until a person looks at it again; it stays within the most that the run may
    have in all.
    """
    spec: Spec = decode(Spec, run.spec)
    if spec.unattended_allowance is None or not any(_is_from_person(session, run, request) for request in requests):
        return
    account = read_account(session, run.account)
    for unit in ALLOWANCE_UNITS:
        more, most = getattr(spec.unattended_allowance, unit), getattr(spec.unattended_allowance.most, unit)
        if more is not None:
            cap = getattr(account.spent, unit) + getattr(account.held, unit) + more
            cap = max(cap if most is None else min(cap, most), getattr(account.caps, unit))
            session.rows(f"update account set cap_{unit} = ? where id = ?", (cap, run.account))


def _is_from_person(session: Session, run: RunRow, request: ControlRequest) -> bool:
    """Whether a person asked for it: what comes through MCP may be a model's own word."""
    match request:
        case ControlRequest(kind="resume", via=via):
            return via != "mcp"
        case ControlRequest(kind="verdict", body=key, via=via) if via != "mcp":
            approved = "select 1 from approval where run = ? and key = ? and verdict = 'approve'"
            return session.row(approved, (run.n, key)) is not None
        case _:
            return False


def insert_answer(session: Session, step_id: int, result: StepResult, by_route: str, at: int) -> None:
    """Insert the answer of a step. A second one fails on the primary key."""
    figures = encode_units(result.spent), result.cached, result.exactness
    session.rows(_INSERT_ANSWER, (step_id, at, encode_answer(result.answer), *figures, by_route))
