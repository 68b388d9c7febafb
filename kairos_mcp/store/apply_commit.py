"""A turn written: answers in, amounts settled, the next marks granted or refused, the outcome.

Everything here runs inside one transaction, in the order of ENGINE's figures: the fence first, refusals before writes,
so that turns of many runs can share a commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import apsw

from kairos_mcp.budget.reservation import NO_DAY, SHARED_SCOPES, Reservation, ReservationRequest
from kairos_mcp.budget.status_line import format_status_line
from kairos_mcp.budget.units import NOTHING, Account, Units
from kairos_mcp.core.errors import FenceLost
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.steps import Answer, Refused, Sent
from kairos_mcp.store import approvals, client_requests, queries, texts, tool_memory, unpriced
from kairos_mcp.store.accounts import NOT_SHARED, READ, Shared, account_of, encode_shared
from kairos_mcp.store.codec import decode_answer, encode, encode_answer, encode_units
from kairos_mcp.store.commit import AnsweredStep, CommitResult, NewAttempt, NewStep, Paused, RunCommit, StepStarted
from kairos_mcp.store.connection import row, rows
from kairos_mcp.store.notes import USED_UP, AskedCompletion, flagged, too_small
from kairos_mcp.store.reservations import ReservationBatch

_OWNED_RUN = "(select account from run where n = ? and owner = ? and fence = ? and outcome is null)"
_READ_OWNED = READ + _OWNED_RUN  # one statement; as a join it takes eight times as long
_INSERT_MARK = (
    "insert into mark(run, path, kind, digest, fence, at, held, sent, shared) values (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_ANSWER = "insert into answer(mark, at, body, spent, cached, exactness, by_route) values (?, ?, ?, ?, ?, ?, ?)"
_INSERT_ATTEMPT = (
    "insert into attempt(mark, fence, at, held, sent, lost, ended, handed_out, shared)"
    " values (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def owned_account(connection: apsw.Connection, turn: RunCommit) -> Account:
    """The account of a run that is still ours. Raises FenceLost where another server has taken it, or it has ended."""
    found = row(connection, _READ_OWNED, (turn.run, turn.owner, turn.fence))
    if found is None:
        raise FenceLost(turn.run_id)
    return account_of(turn.account, found)


def apply(connection: apsw.Connection, turn: RunCommit) -> CommitResult:
    """Write the turn. Raises FenceLost before anything is written."""
    purse = ReservationBatch(connection, owned_account(connection, turn), turn.branches)
    for settled in turn.answers:
        insert_answer(connection, settled, turn.at)
        purse.settle(settled.path, settled.held, settled.spent, settled.shared)
        if isinstance(settled.answer, ToolResult):
            tool_memory.forget(connection, turn.run, settled.path)
    for mark, path, held, shared in turn.released:
        if not _is_answered(connection, mark):
            purse.settle(path, held, NOTHING, shared)
            step = queries.step_at(connection, turn.run, path)
            if step is not None:
                client_requests.give_up(connection, purse, step, turn.fence, turn.at)
    if turn.opens:
        purse.open(turn.opens)
    marked = [_retry(connection, turn, retry, purse) for retry in turn.retries]
    asked = [
        AskedCompletion(retry.path, retry.claim, each.answer, first=False)
        for retry, each in zip(turn.retries, marked, strict=True)
    ]
    for new in turn.marks:
        first = not purse.nearest(new.path).spent.model_calls
        marked.append(_mark(connection, turn, new, purse))
        asked.append(AskedCompletion(new.path, new.claim, marked[-1].answer, first))
    texts.keep(connection, turn.texts)
    purse.write()
    uncounted = unpriced.noted(each.sent for each in marked if each.grant is not None)
    for note in (*turn.notes, *flagged(purse.passed()), *too_small(asked), *uncounted):
        rows(connection, "insert or ignore into note(run, text) values (?, ?)", (turn.run, note))
    _say_handed_out(connection, turn.run, marked)
    paused = turn.pause or _used_up(turn.otherwise, marked)
    if paused is not None:
        rows(connection, "update run set paused = ?, resume_at = ? where n = ?", (*paused, turn.run))
    approvals.ask_again(connection, turn.run, turn.asks, turn.at)
    for deposit in turn.taken:
        rows(connection, "update deposit set taken = ? where id = ?", (turn.at, deposit))
    quiet = turn.park and all(each.waits for each in marked)
    came = quiet and somebody_came(connection, turn.run, turn.waiting)
    parked = quiet and not came
    if turn.outcome is not None:
        end = "update run set outcome = ?, ended_at = ?, owner = null where n = ?"
        rows(connection, end, (turn.outcome, turn.at, turn.run))
        tool_memory.forget_calls(connection, turn.run)
        approvals.give_places(connection, turn.run, turn.at)
    elif parked:
        rows(connection, "update run set owner = null where n = ?", (turn.run,))
    return CommitResult(marked, parked or turn.outcome is not None, came, paused, purse.branches)


def _say_handed_out(connection: apsw.Connection, run: int, marked: Sequence[StepStarted]) -> None:
    """A step that somebody may answer is news; the other kinds of it are counted by triggers (schema.py)."""
    if any(each.waits and each.refused is None for each in marked):
        rows(connection, "update run set news_seq = seq where n = ?", (run,))


def _used_up(otherwise: Paused | None, marked: Sequence[StepStarted]) -> Paused | None:
    """How the run is paused where an account that it shares has nothing left, and which that is."""
    refused = next((each.refused for each in marked if each.refused is not None), None)
    if refused is None or otherwise is None:
        return None
    return otherwise if refused.scope == NO_DAY else Paused(USED_UP[refused.scope], otherwise.resume_at)


def somebody_came(connection: apsw.Connection, run: int, waiting: Sequence[int]) -> bool:
    """Whether a wish, or an answer for one of these open marks, was left that the owner has not seen, or something that
    was asked about one was withdrawn and is to be charged."""
    if row(connection, "select 1 from deposit where run = ? and taken is null limit 1", (run,)):
        return True
    return bool(client_requests.uncharged(connection, run)) or any(_is_answered(connection, mark) for mark in waiting)


def _is_answered(connection: apsw.Connection, mark: int) -> bool:
    return row(connection, "select 1 from answer where mark = ?", (mark,)) is not None


def let_go(connection: apsw.Connection, turn: RunCommit) -> bool:
    """Own the run no longer, unless somebody came; what it waits for is in its rows. Raises FenceLost."""
    owned_account(connection, turn)
    if somebody_came(connection, turn.run, turn.waiting):
        return False
    rows(connection, "update run set owner = null where n = ?", (turn.run,))
    return True


def insert_answer(connection: apsw.Connection, settled: AnsweredStep, at: int) -> None:
    mark, _path, answer, _held, spent, by, cached, exactness, _shared = settled
    bindings = (mark, at, encode_answer(answer), encode_units(spent), cached, exactness, by)
    connection.execute(_INSERT_ANSWER, bindings)


def _mark(connection: apsw.Connection, turn: RunCommit, new: NewStep, purse: ReservationBatch) -> StepStarted:
    told = _where_it_stands(new, purse)
    shared, leave = _leave(turn, purse, new.path, new.claim)
    if isinstance(leave, Refused):
        if leave.scope in SHARED_SCOPES:
            return StepStarted(0, None, None, new.sent, waits=True, refused=leave)
        sent = replace(new.sent, tail=told, line=None)
        return _answered_at_once(connection, _insert_mark(connection, turn, new, None, sent), turn, leave, sent)
    sent = _with_grant(new.sent, leave, told)
    if new.asking is not None:
        mark = _insert_mark(connection, turn, new, None, new.sent)
        approvals.add(connection, turn.run, mark, new.asking, turn.at)
        return StepStarted(mark, leave, None, new.sent, waits=True)
    if new.answer is None:
        held = None if new.claim.external else leave.held
        mark = _insert_mark(connection, turn, new, held, sent, shared)
        if new.again is not None:
            approvals.let_through(connection, turn.run, mark, new.again, turn.at)
        return StepStarted(mark, leave, None, sent, held is None, shared)
    spent = leave.held._replace(milliseconds=0)
    purse.settle(new.path, leave.held, spent, shared)
    mark = _insert_mark(connection, turn, new, None, sent, shared)
    return _answered_at_once(connection, mark, turn, new.answer, sent, leave, spent)


def _leave(
    turn: RunCommit, purse: ReservationBatch, path: str, claim: ReservationRequest
) -> tuple[Shared, Reservation | Refused]:
    """The leave to begin a step, and the shared accounts that it is charged to: a model call's alone."""
    if not claim.counts.model_calls:
        return NOT_SHARED, purse.hold(path, claim, NOT_SHARED)
    if turn.barred:
        return NOT_SHARED, _NO_DAY
    return turn.shared, purse.hold(path, claim, turn.shared)


_NO_DAY = Refused("model_calls", 0, 0, NO_DAY)


def _where_it_stands(new: NewStep, purse: ReservationBatch) -> str | None:
    """The line for whoever is to go on, or to close: they alone can make something of it."""
    if new.kind not in ("round", "closing"):
        return None
    return format_status_line(purse.nearest(new.path), closing=new.kind == "closing")


def _insert_mark(
    connection: apsw.Connection,
    turn: RunCommit,
    new: NewStep,
    held: Units | None,
    sent: Sent,
    shared: Shared = NOT_SHARED,
) -> int:
    """The number of the new row; `held` None: it is not begun here."""
    begun = encode_units(held) if held is not None else None
    step = (turn.run, new.path, new.kind, new.digest, turn.fence, turn.at)
    connection.execute(_INSERT_MARK, (*step, begun, encode(sent), encode_shared(shared)))
    return connection.last_insert_rowid()


def _answered_at_once(
    connection: apsw.Connection,
    mark: int,
    turn: RunCommit,
    answer: Answer,
    sent: Sent,
    granted: Reservation | None = None,
    spent: Units = NOTHING,
) -> StepStarted:
    insert_answer(connection, AnsweredStep(mark, "", answer, NOTHING, spent, "house"), turn.at)
    return StepStarted(mark, granted, answer, sent)


def _retry(connection: apsw.Connection, turn: RunCommit, retry: NewAttempt, purse: ReservationBatch) -> StepStarted:
    """Charge the lost attempt, then hold anew; refused, the mark is answered with the refusal.

    Where a shared account refuses, the lost attempt is charged all the same, and the step waits to be begun again.
    """
    if (found := queries.body_at(connection, turn.run, retry.path)) is not None:  # while this turn was made
        return StepStarted(retry.mark, None, decode_answer(found), retry.sent)
    lost = purse.at_most(retry.path, retry.freed, retry.lost, retry.shared) if retry.requests else retry.lost
    purse.settle(retry.path, retry.freed, lost, retry.shared)
    if not retry.claim.external:
        tool_memory.forget(connection, turn.run, retry.path)
    shared, leave = _leave(turn, purse, retry.path, retry.claim)
    refused = leave if isinstance(leave, Refused) and leave.scope in SHARED_SCOPES else None
    if refused is not None:
        shared, leave = NOT_SHARED, Reservation(NOTHING, 0, 0)
    if isinstance(leave, Refused):
        settled = AnsweredStep(retry.mark, retry.path, leave, NOTHING, lost, "house", exactness="bounded")
        insert_answer(connection, settled, turn.at)
        client_requests.charged(connection, retry.requests, client_requests.IN_THE_ANSWER)
        purse.settle(retry.path, retry.held.minus(retry.freed), NOTHING, NOT_SHARED)
        return StepStarted(retry.mark, None, leave, retry.sent)
    sent = _with_grant(retry.sent, leave, retry.sent.tail)
    waits = retry.claim.external or refused is not None
    figures = encode_units(leave.held), encode(sent), encode_units(lost)
    bindings = (retry.mark, turn.fence, turn.at, *figures, retry.ended, waits, encode_shared(shared))
    connection.execute(_INSERT_ATTEMPT, bindings)
    client_requests.charged(connection, retry.requests, connection.last_insert_rowid())
    return StepStarted(retry.mark, leave, None, sent, waits, shared, refused)


def _with_grant(sent: Sent, granted: Reservation, tail: str | None) -> Sent:
    tokens = granted.max_tokens or sent.max_tokens
    if tokens == sent.max_tokens and tail == sent.tail:
        return sent
    wished = sent.line, sent.temperature, sent.dialect, sent.agent, sent.unpriced
    return Sent(sent.route, sent.model, tokens, tail, *wished)
