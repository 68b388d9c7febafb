"""Write one commit of a run: answers, their charges, the next steps with their reservations or refusals, the outcome.

All of it runs inside one transaction. The fence is checked first, and nothing raises after a write, so that the
commits of many runs can share one transaction.

The usual commit is written in the fewest statements. It was decided before its transaction, on the run's accounts as
this process last wrote them. So the first statements say what that relied on: each account's row has still those
amounts, and the run still this owner and fence (or is parked still, where it is taken with the commit); for a run that
is let go of, also that nothing has come for it. Where that, or the room in a shared account, does not hold, nothing is
written, and `apply_run_commit` decides on what it reads. Both leave the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache

from kairos_mcp.budget.reservation import (
    NO_DAY,
    SHARED_SCOPES,
    Account,
    Reservation,
    ReservationRequest,
    format_status_line,
)
from kairos_mcp.core.errors import FenceLost
from kairos_mcp.core.limits import NOTHING, Units, counts_of
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.routes import SERVER_ROUTE
from kairos_mcp.core.steps import Answer, Refused, Sent, sort_key
from kairos_mcp.store import approvals, client_completions, more_rounds, queries, rows, tool_intents
from kairos_mcp.store.accounts import (
    NO_SHARED_ACCOUNTS,
    SELECT_ACCOUNT,
    AccountChange,
    BegunBranch,
    SharedAccountIds,
    account_from_row,
    encode_shared,
    read_branches_above,
    unit_columns,
)
from kairos_mcp.store.commit import (
    CommitResult,
    NewAttempt,
    NewStep,
    Paused,
    RunCommit,
    StartedStep,
    StepResult,
    UsualCommit,
)
from kairos_mcp.store.inbox import insert_answer
from kairos_mcp.store.joined_commit import ParkedRun
from kairos_mcp.store.more_rounds import RoundsRequest
from kairos_mcp.store.prefixes import insert_cost
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.report_queries import (
    USED_UP_REASONS,
    AskedCompletion,
    exceeded_cap_notes,
    insert_note,
    too_small_notes,
    unpriced_notes,
)
from kairos_mcp.store.reservations import UPDATE_AMOUNTS, ReservationBatch, SharedChange, exceeds_held
from kairos_mcp.store.rows import Session, decode_answer, encode, encode_units, read_together

_OWNED_RUN = "(select account from run where n = ? and owner = ? and fence = ? and outcome is null)"
_READ_OWNED = SELECT_ACCOUNT + _OWNED_RUN  # a join would take eight times as long
_INSERT_MARK = (
    "insert into step(run, path, kind, digest, fence, at, asked, held, sent, shared)"
    " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_ATTEMPT = (
    "insert into attempt(step, fence, at, held, sent, lost, ended, waits_outside, shared)"
    " values (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def read_owned_account(session: Session, commit: RunCommit) -> Account:
    """Read the account of a run that this server owns. Raises FenceLost if another server took it, or it has ended."""
    found = session.row(_READ_OWNED, (commit.run, commit.owner, commit.fence))
    if found is None:
        raise FenceLost(commit.run_id)
    return account_from_row(commit.account, found)


def apply_run_commit(session: Session, commit: RunCommit) -> CommitResult:
    """Write the commit of a run. Raises FenceLost, before anything is written."""
    again = [attempt.path for attempt in commit.attempts]
    charged = [*again, *(answered.path for answered in commit.answers), *(new.path for new in commit.new_steps)]
    account, read, arrived = read_together(
        session,
        lambda session: read_owned_account(session, commit),
        lambda session: read_branches_above(session, commit.branches, charged),
        lambda session: queries.answer_bodies_at(session, commit.run, again),
    )
    batch = ReservationBatch(session, account, commit.branches, read)
    # What is answered or given up is settled first: the reservations below may use what it releases.
    for answered in commit.answers:
        result = answered.result
        insert_answer(session, answered.step_id, result, answered.by_route, commit.at)
        if answered.cost is not None:
            insert_cost(session, commit.run, answered.step_id, answered.cost)
        batch.settle(answered.path, answered.held, result.spent, answered.shared)
        if isinstance(result.answer, ToolResult):
            tool_intents.forget_call(session, commit.run, answered.path)
    for dropped in commit.dropped_steps:
        if not _is_answered(session, dropped.step_id):
            batch.settle(dropped.path, dropped.held, NOTHING, dropped.shared)
            step = queries.step_at(session, commit.run, dropped.path)
            if step is not None:
                client_completions.charge_abandoned(session, batch, step, commit.fence, commit.at)
    started = [_start_attempt(session, commit, attempt, batch, arrived) for attempt in commit.attempts]
    completions = [
        AskedCompletion(attempt.path, attempt.request, step.answer, is_first=False)
        for attempt, step in zip(commit.attempts, started, strict=True)
    ]
    for new, started_step, first in _start_steps(session, commit, batch):
        started.append(started_step)
        completions.append(AskedCompletion(new.path, new.request, started_step.answer, first))
    rows.keep_texts(session, [text for answered in commit.answers if (text := answered.result.text) is not None])
    batch.write()
    notes = [*(note for answered in commit.answers for note in answered.result.notes), *commit.notes]
    unpriced = unpriced_notes(step.sent for step in started if step.reservation is not None)
    for note in (*notes, *exceeded_cap_notes(batch.exceeded_caps()), *too_small_notes(completions), *unpriced):
        insert_note(session, commit.run, note)
    _record_news(session, commit.run, started)
    paused = commit.pause or _pause_of_refusal(commit.charged.pause_when_used_up, started)
    if paused is not None:
        session.rows("update run set paused = ?, resume_at = ? where n = ?", (*paused, commit.run))
    approvals.renew_approvals(session, commit.run, commit.renewed_approvals, commit.at)
    for request_id in commit.handled_requests:
        session.rows("update inbox set taken = ? where id = ?", (commit.at, request_id))
    # A run is released in the same transaction that finds nothing new for it: whoever leaves something afterwards
    # sees that no server owns the run, and takes it over.
    is_idle = commit.outcome is None and commit.may_release and all(step.is_open for step in started)
    inbox_changed = is_idle and has_news(session, commit.run, commit.open_step_ids)
    released = is_idle and not inbox_changed
    if commit.outcome is not None:
        end_run(session, commit.run, commit.outcome, commit.at)
        tool_intents.forget_calls(session, commit.run)
        approvals.ask_queued(session, commit.run, commit.at)
    elif released:
        session.rows("update run set owner = null where n = ?", (commit.run,))
    ended = released or commit.outcome is not None
    return CommitResult(started, ended, inbox_changed, paused, batch.branches, batch.known_accounts)


def _start_steps(
    session: Session, commit: RunCommit, batch: ReservationBatch
) -> list[tuple[NewStep, StartedStep, bool]]:
    """Start the new steps: of each, what became of it, and whether it is the first that its account pays for.

    A completion that its branch can't buy while a sibling runs is kept waiting, as long as anything else of the run
    moves. Where nothing does, the first by its path is refused: not by arrival, so every server refuses the same one.
    """
    started: list[tuple[NewStep, StartedStep, bool]] = []
    for new in commit.new_steps:
        around = _branches_around(commit, new.path)
        if around and not _open_branches(batch, around, new):
            started.append((new, _kept_waiting(new), False))
            continue
        first = not batch.nearest_account(new.path).spent.model_calls
        started.append((new, _start_step(session, commit, new, batch, may_wait=True), first))
    if not commit.others_move and all(step.is_kept_waiting for _, step, _ in started):
        for nth, (new, _, first) in sorted(enumerate(started), key=lambda each: sort_key(each[1][0].path)):
            if batch.branches.keys() >= {branch.path for branch in _branches_around(commit, new.path)}:
                started[nth] = new, _start_step(session, commit, new, batch, may_wait=False), first
                break
    return started


def _branches_around(commit: RunCommit, path: str) -> list[BegunBranch]:
    return [branch for branch in commit.begun_branches if path.startswith(f"{branch.path}/")]


def _kept_waiting(new: NewStep) -> StartedStep:
    return StartedStep(0, None, None, new.sent, is_open=True)


def _open_branches(batch: ReservationBatch, around: Sequence[BegunBranch], new: NewStep) -> bool:
    """Open the branches that begin with this step; False where it is to wait for what a sibling leaves."""
    unopened = [branch for branch in around if branch.path not in batch.branches]
    return batch.open_branches(unopened, new.request if new.request.wanted_tokens else None)


def commit_with_answers(session: Session, commit: RunCommit, parked: ParkedRun) -> CommitResult:
    """Take a parked run, and write the commit that begins with the answers brought for it. Raises FenceLost, having
    written nothing, if the run has changed."""
    if session.row(*parked.condition) is None:
        raise FenceLost(commit.run_id)
    parked.take(session, commit.owner, commit.at)
    return apply_run_commit(session, commit)


def _record_news(session: Session, run: int, started: Sequence[StartedStep]) -> None:
    """Record that a step was handed out: news for whoever waits. Triggers record all other news (schema.py)."""
    if any(step.is_open and step.step_id for step in started):
        session.rows("update run set news_seq = seq where n = ?", (run,))


def _pause_of_refusal(pause: Paused | None, started: Sequence[StartedStep]) -> Paused | None:
    """Return how the run is paused where a shared account has nothing left; None where none refused."""
    refusal = next((step.refusal for step in started if step.refusal is not None), None)
    if refusal is None or pause is None:
        return None
    return pause if refusal.scope == NO_DAY else Paused(USED_UP_REASONS[refusal.scope], pause.resume_at)


def has_news(session: Session, run: int, waiting: Sequence[int]) -> bool:
    """Whether something came that the owner has not seen.

    That is a control request, an answer for one of these open steps, or a withdrawn request that is to be charged.
    """
    if session.row("select 1 from inbox where run = ? and taken is null limit 1", (run,)):
        return True
    return bool(client_completions.list_uncharged(session, run)) or any(
        _is_answered(session, step_id) for step_id in waiting
    )


def _is_answered(session: Session, step_id: int) -> bool:
    return session.row("select 1 from answer where step = ?", (step_id,)) is not None


def release_run(session: Session, commit: RunCommit) -> bool:
    """Release the run, unless something came for it; return whether it was released. Raises FenceLost."""
    read_owned_account(session, commit)
    if has_news(session, commit.run, commit.open_step_ids):
        return False
    session.rows("update run set owner = null where n = ?", (commit.run,))
    return True


def end_run(session: Session, run: int, outcome: str | None, at: int) -> None:
    """Write the outcome of a run, which nobody owns from then on."""
    session.rows("update run set outcome = ?, ended_at = ?, owner = null where n = ?", (outcome, at, run))


def _start_step(
    session: Session, commit: RunCommit, new: NewStep, batch: ReservationBatch, *, may_wait: bool
) -> StartedStep:
    """Insert the row of a step that is begun, open, or answered at once; none where it waits for a sibling's end."""
    around = _branches_around(commit, new.path)
    if around:
        batch.raise_branches(new.path, around, new.request)
    status = _format_status(new, batch)
    shared, reserved = _reserve(commit, batch, new.path, new.request)
    if isinstance(reserved, Refused):
        if reserved.scope in SHARED_SCOPES:
            return StartedStep(0, None, None, new.sent, is_open=True, refusal=reserved)
        if may_wait and new.request.wanted_tokens and batch.may_get_more(around, reserved):
            return _kept_waiting(new)
        sent = replace(new.sent, tail=status, line=None)
        step_id = _insert_step(session, commit, new, None, sent)
        return _answer_at_once(session, step_id, commit, reserved, sent)
    sent = _with_reservation(new.sent, reserved, status)
    answer, by_route = new.answer, SERVER_ROUTE
    if new.rounds_request is not None and answer is None and new.approval_request is None:
        answer, by_route = _answer_rounds_request(session, commit, new.path, new.rounds_request, batch)
    spent = reserved.held._replace(milliseconds=0)
    if answer is not None:
        batch.settle(new.path, reserved.held, spent, shared)
    step_id = _insert_step(session, commit, new, None if answer is not None else reserved.held, sent, shared)
    if new.approval_request is not None:
        approvals.add_approval(session, commit.run, step_id, new.approval_request, commit.at)
    elif new.reused_approval is not None:
        approvals.record_reused(session, commit.run, step_id, new.reused_approval, commit.at)
    if answer is not None:
        return _answer_at_once(session, step_id, commit, answer, sent, reserved, spent, by_route)
    return StartedStep(step_id, reserved, None, sent, new.request.counts_only, shared)


def _answer_rounds_request(
    session: Session, commit: RunCommit, path: str, request: RoundsRequest, batch: ReservationBatch
) -> tuple[ToolResult, str]:
    """Answer a loop that asks for more rounds, and say who answers; what it is granted is written with the answer."""
    return more_rounds.answer_request(session, commit.run, path, request, batch, commit.at), more_rounds.BY_BUDGET


def _reserve(
    commit: RunCommit, batch: ReservationBatch, path: str, request: ReservationRequest
) -> tuple[SharedAccountIds, Reservation | Refused]:
    """Reserve for a step; also return the shared accounts that it is charged to, which only model calls are."""
    if not request.counts.model_calls:
        return NO_SHARED_ACCOUNTS, batch.reserve(path, request, NO_SHARED_ACCOUNTS)
    if commit.charged.is_barred:
        return NO_SHARED_ACCOUNTS, _NO_DAY
    shared = commit.charged.shared
    return shared, batch.reserve(path, request, shared)


_NO_DAY = Refused("model_calls", 0, 0, NO_DAY)


def _format_status(new: NewStep, batch: ReservationBatch) -> str | None:
    """Return the status line of a round or a closing; None for other steps, which have no use for it."""
    if new.kind not in ("round", "closing"):
        return None
    return format_status_line(batch.nearest_account(new.path), closing=new.kind == "closing")


def _insert_step(
    session: Session,
    commit: RunCommit,
    new: NewStep,
    held: Units | None,
    sent: Sent,
    shared: SharedAccountIds = NO_SHARED_ACCOUNTS,
) -> int:
    """Insert the row of a step and return its id. `held` None: it is answered at once."""
    begun = None if held is None or new.request.counts_only else encode_units(held)
    step = commit.run, new.path, new.kind, new.digest, commit.fence, commit.at, _encode_asked(new)
    return session.insert(_INSERT_MARK, (*step, begun, _encode_sent(sent), encode_shared(shared)))


def _insert_begun(session: Session, commit: UsualCommit, new: NewStep) -> int:
    """Insert the row of a step that a usual commit begins or hands out, and return its id."""
    begun = None if commit.waits_outside else encode_units(new.held)
    sent = _encode_sent(new.sent) if new.kind == "call" else encode(new.sent)
    step = commit.run, new.path, new.kind, new.digest, commit.fence, commit.at, _encode_asked(new)
    return session.insert(_INSERT_MARK, (*step, begun, sent, encode_shared(new.shared)))


def _encode_asked(new: NewStep) -> str | None:
    return None if new.asked is None else encode(new.asked)


@lru_cache(maxsize=16)  # those of calls are all alike
def _encode_sent(sent: Sent) -> str:
    return encode(sent)


def _answer_at_once(
    session: Session,
    step_id: int,
    commit: RunCommit,
    answer: Answer,
    sent: Sent,
    reservation: Reservation | None = None,
    spent: Units = NOTHING,
    by_route: str = SERVER_ROUTE,
) -> StartedStep:
    insert_answer(session, step_id, StepResult(answer, spent), by_route, commit.at)
    return StartedStep(step_id, reservation, answer, sent)


def _start_attempt(
    session: Session, commit: RunCommit, attempt: NewAttempt, batch: ReservationBatch, arrived: Mapping[str, str]
) -> StartedStep:
    """Charge the attempt that ended, then reserve anew; if refused, the step is answered with the refusal.

    Where a shared account refuses, the ended attempt is charged all the same, and the step waits to be begun again.
    `arrived`: the encoded answers of steps that were answered while the commit was being prepared, by path.
    """
    if (found := arrived.get(attempt.path)) is not None:
        return StartedStep(attempt.step_id, None, decode_answer(found), attempt.sent)
    lost = attempt.previous.charge
    if attempt.withdrawn_requests:
        lost = batch.cap_to_remaining(attempt.path, attempt.freed, attempt.previous.charge, attempt.shared)
    batch.settle(attempt.path, attempt.freed, lost, attempt.shared)
    if not attempt.request.counts_only:
        tool_intents.forget_call(session, commit.run, attempt.path)
    if around := _branches_around(commit, attempt.path):
        batch.raise_branches(attempt.path, around, attempt.request)
    shared, reserved = _reserve(commit, batch, attempt.path, attempt.request)
    refusal = reserved if isinstance(reserved, Refused) and reserved.scope in SHARED_SCOPES else None
    if refusal is not None:
        shared, reserved = NO_SHARED_ACCOUNTS, Reservation(NOTHING, 0, 0)
    if isinstance(reserved, Refused):
        insert_answer(
            session, attempt.step_id, StepResult(reserved, lost, exactness="bounded"), SERVER_ROUTE, commit.at
        )
        client_completions.record_charge(session, attempt.withdrawn_requests, client_completions.CHARGED_TO_ANSWER)
        batch.settle(attempt.path, attempt.held.minus(attempt.freed), NOTHING, NO_SHARED_ACCOUNTS)
        return StartedStep(attempt.step_id, None, reserved, attempt.sent)
    sent = _with_reservation(attempt.sent, reserved, attempt.sent.tail)
    is_open = attempt.request.counts_only or refusal is not None
    figures = encode_units(reserved.held), encode(sent), encode_units(lost)
    bindings = (
        attempt.step_id,
        commit.fence,
        commit.at,
        *figures,
        attempt.previous.reason,
        is_open,
        encode_shared(shared),
    )
    if not attempt.withdrawn_requests:
        session.rows(_INSERT_ATTEMPT, bindings)  # nobody waits for its number
    else:
        number = session.insert(_INSERT_ATTEMPT, bindings)
        client_completions.record_charge(session, attempt.withdrawn_requests, number)
    if attempt.rounds_request is not None and not is_open:
        answer, by_route = _answer_rounds_request(session, commit, attempt.path, attempt.rounds_request, batch)
        held, spent = attempt.held.minus(attempt.freed).plus(reserved.held), counts_of("call")
        batch.settle(attempt.path, held, spent, shared)
        return _answer_at_once(session, attempt.step_id, commit, answer, sent, reserved, spent, by_route)
    return StartedStep(attempt.step_id, reserved, None, sent, is_open, shared, refusal)


def _with_reservation(sent: Sent, reservation: Reservation, tail: str | None) -> Sent:
    tokens = reservation.max_tokens or sent.max_tokens
    if tokens == sent.max_tokens and tail == sent.tail:
        return sent
    return replace(sent, max_tokens=tokens, tail=tail)


_UPDATE_IF_KNOWN = f"{UPDATE_AMOUNTS} and {' and '.join(f'{name} = ?' for name in unit_columns('held', 'spent'))}"
_OWNED = "select 1 from run where n = ? and owner = ? and fence = ? and outcome is null"
_NOTHING_CAME = "not exists (select 1 from inbox where inbox.run = run.n and taken is null)"
_RELEASE = "update run set owner = null, news_seq = seq where n = ?"  # what is handed out is news
_TOKENS_AND_MONEY = Units(input_tokens=1, output_tokens=1, total_tokens=1, nano_usd=1)
_LIMITS_HANDED_OUT = Units(model_calls=1, input_tokens=1, output_tokens=1, total_tokens=1)


WrittenCommit = tuple[UsualCommit, list[int]]
"""A usual commit that was written, and the ids of the rows of the steps that it begins."""


def apply_usual_commit(session: Session, commit: UsualCommit, parked: ParkedRun | None = None) -> list[int] | None:
    """Write the commit and return the ids of the rows of begun steps. Return None, having written nothing, if a
    compared amount, owner or fence has changed.

    `parked`: the run, which is taken in this transaction.
    """
    run, at, waits_outside = commit.run, commit.at, commit.waits_outside
    condition, bindings = (_OWNED, (run, commit.owner, commit.fence)) if parked is None else parked.condition
    update = _update_while(f"{condition} and {_NOTHING_CAME}" if waits_outside else condition)
    written: list[AccountChange] = []
    for change in commit.accounts.values():
        known, changed = change
        amounts = *changed.held, *changed.spent, changed.id, *known.held, *known.spent
        if not session.change(update, (*amounts, *bindings)):
            _undo_account_writes(session, written)
            return None
        written.append(change)
    if not _charge_shared(session, commit):
        _undo_account_writes(session, written)
        return None
    if parked is not None:
        parked.take(session, commit.owner, at)
    for answered in commit.answered:
        insert_answer(session, answered.step_id, answered.result, answered.by_route, at)
        if answered.cost is not None:
            insert_cost(session, run, answered.step_id, answered.cost)
        if commit.forgets and isinstance(answered.result.answer, ToolResult):
            tool_intents.forget_call(session, run, answered.path)
    if commit.outcome is not None:
        end_run(session, run, commit.outcome, at)  # none of its steps waits, so it has no place among the approvals
        if commit.forgets:
            tool_intents.forget_calls(session, run)
    step_ids = [_insert_begun(session, commit, new) for new in commit.begun]
    if waits_outside:
        session.rows(_RELEASE, (run,))
    return step_ids


def apply_first_commit(session: Session, run: RunRow, first: UsualCommit) -> WrittenCommit | None:
    """Write the first commit of a run that was inserted in this transaction: it was planned before the run and its
    account had their numbers. None: nothing was written, since a shared account has no room."""
    known, changed = first.accounts[""]
    own = AccountChange(known._replace(id=run.account), changed._replace(id=run.account))
    commit = first._replace(run=run.n, accounts={"": own})
    step_ids = apply_usual_commit(session, commit)
    return None if step_ids is None else (commit, step_ids)


@cache
def _update_while(condition: str) -> str:
    """Return SQL for a conditional account update: the account must be unchanged and `condition` must hold."""
    return f"{_UPDATE_IF_KNOWN} and exists ({condition})"


def _undo_account_writes(session: Session, written: Iterable[AccountChange]) -> None:
    """Write the amounts of these accounts back, within the transaction that changed them."""
    for known, _ in written:
        session.rows(UPDATE_AMOUNTS, (*known.held, *known.spent, known.id))


def _charge_shared(session: Session, commit: UsualCommit) -> bool:
    """Settle and reserve in the accounts that runs share. False: one of them has no room, and all are as they were."""
    due: dict[int, tuple[SharedChange, Units]] = {}  # by account, with the amounts that its caps limit
    for answered in commit.answered:
        if answered.shared:
            held, spent = answered.held, answered.result.spent
            limited = _TOKENS_AND_MONEY if exceeds_held(held, spent) else NOTHING
            _add_due(due, answered.shared, SharedChange(NOTHING.minus(held), spent), limited)
    for new in commit.begun:
        if new.shared:
            held = new.held
            _add_due(due, new.shared, SharedChange(held), _LIMITS_HANDED_OUT if commit.waits_outside else held)
    spare = 1 if commit.waits_outside else 0  # what is handed out holds no tokens, but needs that some are left
    written: list[tuple[int, SharedChange]] = []
    for number, (change, limited) in sorted(due.items()):
        if limited is NOTHING:
            change.write(session, number)
        elif not change.write_if_room(session, number, limited, spare=spare):
            for earlier, done in written:
                done.undone().write(session, earlier)
            return False
        written.append((number, change))
    return True


def _add_due(
    due: dict[int, tuple[SharedChange, Units]], shared: SharedAccountIds, change: SharedChange, limited: Units
) -> None:
    """Add a change to what is due in each of these accounts."""
    for number in shared:
        if (before := due.get(number)) is None:
            due[number] = change, limited
        else:
            due[number] = before[0].plus(change), limited if before[1] is NOTHING else before[1].plus(limited)
