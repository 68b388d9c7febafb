"""Leave things for a run that another server may own: answers of its open steps, and control requests.

Answers count at once. Control requests wait in the table `inbox` until the owner of the run drains its inbox. `CONTROL`
has a record for each kind of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from kairos_mcp.budget.ledger import RUN, Ledger
from kairos_mcp.budget.notes import exceeded_cap_notes
from kairos_mcp.core.decision_rights import Actor
from kairos_mcp.core.errors import AlreadyAnswered, FenceLost, NotWaiting, Stale
from kairos_mcp.core.limit_question import BUDGET, LIMIT_PAUSE
from kairos_mcp.core.limits import NOTHING, Limits, Units, counts_of
from kairos_mcp.core.messages import Exactness
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import SERVER_ROUTE
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.core.steps import Answer, DialectName, Extended, Refused, Resumed, last_part
from kairos_mcp.store import client_completions, rows
from kairos_mcp.store.account_changes import SharedAccounts, write_accounts
from kairos_mcp.store.accounts import read_account, read_branch_accounts, read_branches_above
from kairos_mcp.store.commit import StepResult
from kairos_mcp.store.foreign_files import label_files
from kairos_mcp.store.ownership import ANY_SERVER
from kairos_mcp.store.queries import (
    ControlRequest,
    RunRow,
    StepRow,
    pending_requests,
    run_by_number,
    step_at,
    unanswered_steps,
)
from kairos_mcp.store.rows import Session, decode, decode_texts, encode, encode_answer, encode_units, placeholders
from kairos_mcp.store.runs import RESUME_SQL, add_note, take_run

ALLOWANCE_UNITS = ("model_calls", "milliseconds")  # what an unattended allowance limits

ControlName = Literal["pause", "resume", "cancel", "extend", "reroute", "verdict", "settle"]
_INSERT_ANSWER = (
    "insert into answer(step, at, body, spent, cached, exactness, by_route, seq)"
    " values (?, ?, ?, ?, ?, ?, ?, (select seq + 1 from run where n = (select run from step where id = ?)))"
)


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
        if isinstance(self.answer, Refused | Extended):  # no model answered: its requests are charged as attempts
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
    _write_answers(session, run, new, by_route, at)
    return RecordedAnswers([step.path for step, _ in new], take_run(session, run.n, owner, dead))


def _write_answers(
    session: Session, run: RunRow, new: Sequence[tuple[StepRow, SubmittedAnswer]], by_route: str, at: int
) -> None:
    branches = read_branch_accounts(session, run.account)
    above = read_branches_above(session, branches, [step.path for step, _ in new])
    ledger = Ledger({RUN: read_account(session, run.account), **above}, branches, SharedAccounts(session))
    for step, submitted in new:
        result = submitted.as_result(step.kind)
        insert_answer(session, step.id, result, by_route, at)
        ledger.settle(step.path, step.held, result.spent, step.shared_accounts)
        client_completions.settle_answered(session, ledger, step, submitted.request, run.fence, at)
        record_dialect(session, step, submitted.dialect)
        if submitted.text is not None:
            rows.keep_texts(session, (submitted.text,))
    notes = [*exceeded_cap_notes(ledger.exceeded_caps()), *(text for _, submitted in new for text in submitted.notes)]
    write_accounts(session, ledger)
    _resume_if_by_itself(session, run, "", at)
    for text in notes:
        add_note(session, run, text)


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
    kind: ControlName,
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
    control = CONTROL[kind]
    if run_by_number(session, run.n).outcome is not None:
        raise Stale("The run has ended.", _continue_hint(run), run_id=run.id)
    if control.check is not None:
        control.check(session, run, at)
    insert_request(session, run.n, kind, body, actor, at)
    if reason is not None:
        add_note(session, run, reason)
    apply_unowned = control.apply_unowned if owner == ANY_SERVER else None
    if apply_unowned is not None and apply_unowned(session, run, body, dead, at):
        return None
    return take_run(session, run.n, owner, dead)


def insert_request(session: Session, n: int, kind: ControlName, body: str, actor: Actor, at: int) -> None:
    """Insert a control request; nobody is woken, and no run is taken over."""
    session.rows(
        "insert into inbox(run, kind, body, principal, via, client, at) values (?, ?, ?, ?, ?, ?, ?)",
        (n, kind, body, *actor, at),
    )


_WAITS_AT_PAUSE = (
    "select 1 from waiting join step on step.id = waiting.step where waiting.run = ? and kind = 'pause' limit 1"
)


@dataclass(frozen=True, slots=True)
class DrainedInbox:
    """The run after its owner drained the inbox, and the requests that are left to the commits that act on them."""

    run: RunRow
    left: Sequence[ControlRequest]

    @property
    def is_cancelled(self) -> bool:
        return any(request.kind == "cancel" for request in self.left)

    @property
    def resumes(self) -> list[int]:
        """Requests for a flow that waits until somebody lets it go on."""
        return [request.id for request in self.left if request.kind == "resume"]

    @property
    def settlements(self) -> list[ControlRequest]:
        return [request for request in self.left if request.kind == "settle"]


def drain_inbox(session: Session, run: RunRow, owner: int, fence: int, at: int) -> DrainedInbox:
    """Carry out the control requests that came, as their records say. Raises FenceLost."""
    now = run_by_number(session, run.n)
    if (now.owner, now.fence) != (owner, fence) or now.outcome is not None:
        raise FenceLost(run.id)
    requests, left = pending_requests(session, run.n), []
    by_commit = {"commit"} if session.row(_WAITS_AT_PAUSE, (run.n,)) is None else {"commit", "pause"}
    for request in requests:
        control = CONTROL[request.kind]
        if control.apply is not None:
            control.apply(session, now, request.body, at)
        if control.taken_by in by_commit:
            left.append(request)
        else:
            mark_handled(session, (request.id,), at)
    _renew_allowance(session, run, requests)
    return DrainedInbox(run_by_number(session, run.n), left)


def mark_handled(session: Session, requests: Iterable[int], at: int) -> None:
    """Mark control requests as handled."""
    for request_id in requests:
        session.rows("update inbox set taken = ? where id = ?", (at, request_id))


# -- the kinds of control requests ----------------------------------------------------------------------------------


class ControlKind(NamedTuple):
    """A kind of control request. Each function takes a session, the run, and what its line names."""

    name: ControlName
    apply: Callable[[Session, RunRow, str, int], None] | None = None
    """Change the run's rows: the request's body, and the time."""
    taken_by: Literal["inbox", "commit", "pause"] = "inbox"
    """What marks it as taken: the drained inbox, the commit that acts on it, or the commit that ends a pause of the
    flow; without such a pause, the drained inbox. So none is lost before it has its effect."""
    check: Callable[[Session, RunRow, int], None] | None = None
    """Raise Stale where it can't be carried out any more; do what has to be done first. Also given the time."""
    apply_unowned: Callable[[Session, RunRow, str, Sequence[int], int], bool] | None = None
    """Carry it out at once if no living server owns the run, for a caller that may not take runs over. Returns whether
    it was: the request's body, the numbers of dead servers, and the time."""
    renews: Callable[[Session, RunRow, str], bool] | None = None
    """Whether a person who sent it has looked at the run, which renews its unattended allowance: the request's body."""


def _pause(session: Session, run: RunRow, why: str, _at: int) -> None:
    session.rows("update run set paused = ?, resume_at = null where n = ?", (why, run.n))


def _pause_unowned(session: Session, run: RunRow, why: str, dead: Sequence[int], at: int) -> bool:
    """Pause a run that no living server owns: nothing of it is under way that would have to end first."""
    nobodys = f"(owner is null or owner in ({placeholders(dead)}))"
    statement = f"update run set paused = ?, resume_at = null where n = ? and {nobodys} returning n"
    if session.row(statement, (why, run.n, *dead)) is None:
        return False
    session.rows("update inbox set taken = ? where run = ? and kind = 'pause' and taken is null", (at, run.n))
    return True


def _resume(session: Session, run: RunRow, _body: str, _at: int) -> None:
    session.rows(RESUME_SQL, (run.n,))


def _extend(session: Session, run: RunRow, body: str, _at: int) -> None:
    """Raise the caps to those of the request; a limit that is not set stays unset."""
    caps: Limits = decode(Limits, body)
    now = read_account(session, run.account).caps
    for unit in Units._fields:
        new, old = getattr(caps, unit), getattr(now, unit)
        if new is not None and old is not None and new > old:
            session.rows(f"update account set cap_{unit} = ? where id = ?", (new, run.account))


def _take_back_closings(session: Session, run: RunRow, at: int) -> None:
    """Answer the closings that only wait, after a limit of the run, and the questions about the limit: the loops go on.
    Raises Stale where a closing is under way, or is about to be."""
    if not _was_limit_reached(session, run.n):
        return
    unanswered = unanswered_steps(session, run.n)
    if questions := [step for step in unanswered if last_part(step.path).name == LIMIT_PAUSE]:
        _write_answers(
            session, run, [(step, SubmittedAnswer(step.path, Resumed())) for step in questions], SERVER_ROUTE, at
        )
        return
    closings = [step for step in unanswered if last_part(step.path).name == "closing"]
    if not closings or not all(
        step.is_open and not client_completions.requests_of_step(session, step.id) for step in closings
    ):
        closing = f"Let its closing end: wait for it. {_continue_hint(run)}"
        raise Stale("A limit has ended the run already; it is closing.", closing, run_id=run.id)
    _write_answers(
        session, run, [(step, SubmittedAnswer(step.path, Extended())) for step in closings], SERVER_ROUTE, at
    )


def _was_limit_reached(session: Session, n: int) -> bool:
    """Whether a limit of the run has refused a step since a closing was taken back or a pause ended; one of a branch
    ends that branch alone."""
    answered = "from step join answer on answer.step = step.id where run = ?"
    taken_back = f"coalesce((select max(step.id) {answered} and (body like ? or body like ?)), 0)"
    found = f"select 1 {answered} and body like ? and body not like ? and step.id > {taken_back} limit 1"
    went_on = ('%"kind":"extended"}', '%"kind":"resumed"}')
    given = (n, '%"kind":"refused"}', '%"scope":"branch %', n, *went_on)
    return session.row(found, given) is not None


def _reroute(session: Session, run: RunRow, route: str, at: int) -> None:
    session.rows("update run set route = ? where n = ?", (route, run.n))
    client_completions.withdraw_all(session, run.n, at)


def _resume_if_by_itself(session: Session, run: RunRow, _body: str, _at: int) -> None:
    """Resume a run that would go on by itself later, since somebody answered for one of its branches: what it was
    paused for is tried now, and pauses it again if need be."""
    if run.resume_at is not None:
        session.rows(RESUME_SQL, (run.n,))


def _take_verdict(session: Session, run: RunRow, key: str, at: int) -> None:
    """Resume as above; where a person approved of more than a limit allows, raise it to what they were shown."""
    _resume_if_by_itself(session, run, key, at)
    approved = "select base from approval where run = ? and key = ? and tool = ? and verdict = 'approve'"
    if (found := session.row(approved, (run.n, key, BUDGET))) is not None:
        _extend(
            session, run, encode(Limits(**{unit: int(cap or 0) for unit, cap in decode_texts(found[0]).items()})), at
        )


def _is_approval(session: Session, run: RunRow, key: str) -> bool:
    approved = "select 1 from approval where run = ? and key = ? and verdict = 'approve'"
    return session.row(approved, (run.n, key)) is not None


CONTROL: Mapping[str, ControlKind] = {
    control.name: control
    for control in (
        ControlKind("pause", _pause, apply_unowned=_pause_unowned),
        ControlKind("resume", _resume, "pause", renews=lambda *_: True),
        ControlKind("cancel", taken_by="commit"),
        ControlKind("extend", _extend, check=_take_back_closings),
        ControlKind("reroute", _reroute),
        ControlKind("verdict", _take_verdict, renews=_is_approval),  # it stands in the approval's row
        ControlKind("settle", _resume_if_by_itself, "commit"),
    )
}


def _continue_hint(run: RunRow) -> str:
    return f'Go on from it with planner_run continues="{run.id}".'


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
    """Whether a person looked at the run and sent this: what comes through MCP may be a model's own word."""
    renews = CONTROL[request.kind].renews
    return request.via != "mcp" and renews is not None and renews(session, run, request.body)


def insert_answer(session: Session, step_id: int, result: StepResult, by_route: str, at: int) -> None:
    """Insert the answer of a step. A second one fails on the primary key."""
    figures = encode_units(result.spent), result.cached, result.exactness
    session.rows(_INSERT_ANSWER, (step_id, at, encode_answer(result.answer), *figures, by_route, step_id))
    if result.foreign_files:
        label_files(session, step_id, result.foreign_files, at)
