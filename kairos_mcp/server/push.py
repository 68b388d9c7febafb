"""Push requests to clients up to 2025-11-25, side by side, each in a task of its own.

If the session keeps the tasks (call.py), they go on when the call that asked has ended: a slow model's
answer and a late decision count, and the next call finds the open request. A push ends without an answer if the client
refuses, fails or goes away, if the run's own time is over, or if the answer is no longer needed. A client that stays
silent is not asked again for a run that can take another route; a dialog may stay open, since its user may be thinking.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

import anyio
import mcp_types as wire
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel, ValidationError

from kairos_mcp.app.client_requests import ClientReply, OpenRequest
from kairos_mcp.app.dialogs import Question, UserDecision
from kairos_mcp.core.errors import KairosError, UnknownRun
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.models import sampling
from kairos_mcp.models.sampling import BadSamplingReply
from kairos_mcp.server import elicitation
from kairos_mcp.server.call import ServerCall
from kairos_mcp.server.client_sessions import PushedRequest
from kairos_mcp.server.dialog_layout import find_screen
from kairos_mcp.store.approvals import DialogView
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.settlements import SettlementRequest

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT", bound=BaseModel)

WATCH_AFTER_S = 0.05  # a client that answers at once is not watched: what ends its request meanwhile is seen then


@dataclass(frozen=True, slots=True)
class PushableRequests:
    """What a client may be asked now about a run: completions of its model, decisions of its user."""

    run: RunRow
    completions: Sequence[OpenRequest]
    approvals: Sequence[Question]


LookAgain = Callable[[], Awaitable[PushableRequests]]
"""Returns what the client may be asked by now."""


async def push_all(call: ServerCall, found: PushableRequests, look_again: LookAgain, until_s: float) -> bool:
    """Push what was found, and what opens meanwhile, side by side, until one has an effect: an answer, another route,
    or a change from elsewhere. True then; False if time is over or the client is gone."""
    asks, caller, watched, failed = call.app.client_requests, call.caller, dict[str, PushedRequest](), dict[str, str]()
    run_id = found.run.id
    await _start_pushes(call, found, watched, failed)
    while True:
        ended = [push for push in watched.values() if push.has_ended]
        for push in ended:
            del watched[push.key]
            await _record_end(call, push, look_again, failed)
        pending = [push for push in watched.values() if not push.is_dialog]
        if failed and not pending:
            return await asks.fall_back(run_id, next(iter(failed.values())), caller)
        if ended and not failed:
            return not any(push.client_gone for push in ended)
        if time.monotonic() >= until_s:
            return False
        if silent := _find_silent(call, pending):
            asks.mark_silent(caller)
            why = f"the client did not answer within {silent.max_silence_s:g} s"
            return await asks.fall_back(run_id, why, caller)
        await asks.wait_for_change(run_id, until_s - time.monotonic())
        if not watched:  # another session is asking: look again
            return True
        if not any(push.has_ended for push in watched.values()):  # else this round is over, and the next one looks
            await _start_pushes(call, await look_again(), watched, failed)


async def _record_end(call: ServerCall, push: PushedRequest, look_again: LookAgain, failed: dict[str, str]) -> None:
    """Take note of how a push ended. A dialog left undecided is not shown again in this call; if nobody saw it, nobody
    sees the others either."""
    if push.error is not None:
        raise push.error
    if push.undecided:
        call.skipped.add(push.key)
    if push.unseen:
        call.skipped.update(question.key for question in (await look_again()).approvals)
    if push.failure is not None and push.is_current:
        failed[push.key] = push.failure


def _find_silent(call: ServerCall, pending: Sequence[PushedRequest]) -> PushedRequest | None:
    """A push whose client has been silent for too long, to be reported once. Beside an open dialog no client is silent,
    and a push that another session took over does not count."""
    if any(push.is_dialog for push in call.session.pushes.values()):
        return None
    for push in pending:
        if push.is_current and not push.is_noted and push.silent_s >= push.max_silence_s:
            push.is_noted = True
            return push
    return None


async def _start_pushes(
    call: ServerCall, found: PushableRequests, watched: dict[str, PushedRequest], failed: dict[str, str]
) -> None:
    """Push what is open and was not pushed in this session yet, and watch what was; then report progress.

    Completions go first, since some clients take one request after the other.
    """
    session, tasks, asks, run_id = call.session, call.tasks, call.app.client_requests, found.run.id
    assert tasks is not None  # of a client that requests are pushed to
    watched |= {push.key: push for (run, _), push in session.pushes.items() if run == run_id}
    if asks.is_newest_asker(run_id, call.caller) and session.may_push(run_id, call):
        new = [waiting for waiting in found.completions if waiting.path not in watched and waiting.path not in failed]
        number = len(new) + sum(not push.is_dialog for push in watched.values())
        patience_s = call.policy.later_s if asks.has_answered(call.caller) else call.policy.first_s
        for waiting in new:
            # Some answer one push after the other, so the time grows with their number.
            push = PushedRequest(run_id, waiting.path, max_silence_s=patience_s * number)
            session.pushes[run_id, waiting.path] = push  # before anything is awaited, so that other calls find it
            watched[waiting.path] = push
            try:
                with anyio.CancelScope(shield=True):  # a stored request has to be sent
                    if await _claim(call, found.run, push):
                        push.row_number = await asks.begin_request(found.run, waiting, call.caller)
            finally:
                if push.row_number is None:
                    push.has_ended = True
                    del session.pushes[run_id, waiting.path]
                    await _release(call, found.run, push)
            if push.row_number is None:
                await asks.wait_for_change(run_id)
            else:
                tasks.start_soon(_push_one, call, found.run, push, partial(_ask_model, call, push, waiting))
    for row in found.approvals:
        if row.key not in watched and session.may_push(run_id, call):
            push = watched[row.key] = session.pushes[run_id, row.key] = PushedRequest(run_id, row.key, True)
            tasks.start_soon(_push_one, call, found.run, push, partial(_ask_user, call, found.run, push, row))
    if call.on_heartbeat is not None:
        await call.on_heartbeat(await call.app.runs.heartbeat(found.run))


async def _claim(call: ServerCall, run: RunRow, push: PushedRequest) -> bool:
    """Whether this server is the one to ask the client, which may be connected to others."""
    if call.client.ctx.request is None:  # not over HTTP: it is connected to this server alone
        return True
    push.is_claimed = await call.app.client_requests.claim_push(run, push.key, call.caller)
    return push.is_claimed


async def _release(call: ServerCall, run: RunRow, push: PushedRequest) -> None:
    """Let others ask the client. A claim that can't be given up now ends by its age."""
    if push.is_claimed:
        with anyio.CancelScope(shield=True), suppress(KairosError):
            await call.app.client_requests.release_push(run, push.key)
        push.is_claimed = False


async def _push_one(call: ServerCall, run: RunRow, push: PushedRequest, ask: Callable[[], Awaitable[None]]) -> None:
    """Run one push until it is answered or the answer is no longer needed. Raises nothing but cancellation."""
    try:
        with anyio.CancelScope() as scope, _cancel_once_unneeded(call, push, scope):
            await ask()
    except Exception as error:
        push.error = error
        log.exception("a push failed", exc_info=error)
    finally:
        push.has_ended = True
        call.session.pushes.pop((push.run_id, push.key), None)
        await _release(call, run, push)
        call.app.client_requests.signal_change(push.run_id)


@contextmanager
def _cancel_once_unneeded(call: ServerCall, push: PushedRequest, scope: anyio.CancelScope) -> Iterator[None]:
    """Cancel what is done within once the push's answer is no longer needed, from WATCH_AFTER_S on."""
    watches: list[asyncio.Task[None]] = []

    def begin_watch() -> None:
        watches.append(asyncio.create_task(_cancel_when_unneeded(call, push, scope)))

    begins = asyncio.get_running_loop().call_later(WATCH_AFTER_S, begin_watch)
    try:
        yield
    finally:
        begins.cancel()
        for watch in watches:
            watch.cancel()


async def _cancel_when_unneeded(call: ServerCall, push: PushedRequest, scope: anyio.CancelScope) -> None:
    asks, caller = call.app.client_requests, call.caller
    while True:
        try:
            is_needed = push.key in await asks.wanted_keys(push.run_id, caller)
            if push.row_number is not None and not push.is_closing:
                push.is_current = await asks.is_current_request(push.run_id, push.row_number, caller)
        except UnknownRun:
            is_needed = False
        except KairosError:
            is_needed = True  # the store is busy, or gone for a while
        if not is_needed:
            scope.cancel()
            return
        await asks.wait_for_change(push.run_id, urgent=False)


async def _ask_model(call: ServerCall, push: PushedRequest, waiting: OpenRequest) -> None:
    """Ask the client's model, and store its answer. A request that is given up is charged, whatever ended it."""
    asks, caller, number = call.app.client_requests, call.caller, push.row_number
    assert number is not None
    try:
        if waiting.left_s is None:
            await _store_reply_of_model(call, push, waiting, number)
            return
        with anyio.move_on_after(waiting.left_s) as scope:
            await _store_reply_of_model(call, push, waiting, number)
        if scope.cancelled_caught:
            late = ClientReply(None, int(push.silent_s * 1000), is_timed=True)
            await asks.store_reply(push.run_id, waiting.path, late, caller)
    except (MCPError, BadSamplingReply, ValidationError) as error:
        push.is_closing = True
        with anyio.CancelScope(shield=True):  # what ended the connection ends this task too
            await _end_request(call, push, number, error)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            await asks.withdraw_request(push.run_id, number, caller)
        raise


async def _store_reply_of_model(call: ServerCall, push: PushedRequest, waiting: OpenRequest, number: int) -> None:
    """Ask the client's model and store what it replies to the request of this number. Raises MCPError,
    BadSamplingReply, ValidationError."""
    dialect, is_timed = call.client.dialect, waiting.left_s is not None
    request = sampling.make_sampling_request(waiting.step, waiting.sent, dialect, waiting.prompts)
    reply = await _send_request(call, request, wire.CreateMessageResultWithTools)
    push.is_closing = True
    completion = sampling.parse_sampling_reply(reply, waiting.step, waiting.path, dialect)
    with anyio.CancelScope(shield=True):  # an answer that was given is not thrown away
        answer = ClientReply(completion, int(push.silent_s * 1000), dialect, number, is_timed)
        await call.app.client_requests.store_reply(push.run_id, waiting.path, answer, call.caller)


async def _end_request(call: ServerCall, push: PushedRequest, number: int, error: Exception) -> None:
    """Record that the request has no answer, and in `push` why: a refusal costs nothing, all else its bound."""
    asks, caller = call.app.client_requests, call.caller
    if isinstance(error, MCPError) and error.error.code != wire.CONNECTION_CLOSED:
        push.failure = f"the client refused ({error.error.code}: {error.error.message[:200]})"
        await asks.mark_refused(number)
        return
    if isinstance(error, MCPError):
        push.client_gone = True  # it did not refuse: the run waits for another call
    else:
        push.failure = (
            error.reason if isinstance(error, BadSamplingReply) else "the client's answer is not a completion"
        )
    await asks.withdraw_request(push.run_id, number, caller)


async def _ask_user(call: ServerCall, run: RunRow, push: PushedRequest, row: Question) -> None:
    """Show a question to the client's user, and store what they decide about exactly that."""
    with anyio.CancelScope(shield=True):
        is_ours = await _claim(call, run, push)
    if not is_ours:
        await call.app.client_requests.wait_for_change(run.id)
        return
    began = time.monotonic()
    try:
        dialog, shown = await lay_out_dialog(call, push.run_id, row)
        reply = await _send_request(call, dialog, wire.ElicitResult)
    except (MCPError, ValidationError) as error:
        push.client_gone = isinstance(error, MCPError) and error.error.code == wire.CONNECTION_CLOSED
        decision: UserDecision | SettlementRequest | elicitation.Undecided = (
            "nobody"  # this client can't show one after all
        )
    else:
        took_s = time.monotonic() - began
        decision = elicitation.read_decision(row.key, row.digest, shown, reply, took_s, call.policy.instant_s)
    match decision:
        case UserDecision() | SettlementRequest():
            with anyio.CancelScope(shield=True):
                await call.app.answers.take_decisions(push.run_id, {row.key: decision}, call.caller)
        case "on_page":
            push.undecided = True
            call.on_page.add(push.key)
        case "unclear":
            push.undecided = True
        case _ if not push.client_gone:
            push.undecided, push.unseen = True, decision in ("nobody", "too_soon")
            too_soon = decision == "too_soon"
            await call.app.answers.mark_ignored(push.run_id, row.key, row.digest, call.caller, too_soon=too_soon)
        case _:
            pass


async def lay_out_dialog(call: ServerCall, run_id: str, question: Question) -> tuple[wire.ElicitRequest, DialogView]:
    """Make the dialog for a question. Where a link to the page would show more of it, and none is served, this process
    serves one from then on, if it may."""
    screen, sessions = find_screen(call.caller.client, call.app.settings.clients), call.client.ctx.lifespan_context
    may_open = screen.opens_links and call.client.opens_links and call.caller.is_local
    screen = screen._replace(opens_links=may_open)
    purpose = await call.app.runs.purpose(run_id, call.caller)
    dialog, shown = elicitation.make_dialog(purpose, question, screen)
    if may_open and shown.way == "look" and sessions.serve_page is not None:
        await sessions.tasks.start(sessions.serve_page, call.app)
        purpose = await call.app.runs.purpose(run_id, call.caller)
        return elicitation.make_dialog(purpose, question, screen)
    return dialog, shown


async def _send_request(call: ServerCall, request: wire.ServerRequest, kind: type[ResultT]) -> ResultT:
    """Send a request and return the client's answer. If that may come after the call, the request goes over the
    connection, not in the call's stream."""
    ctx = call.client.ctx
    outlives_call = call.session.tasks is not None
    metadata = None if outlives_call else ServerMessageMetadata(related_request_id=ctx.request_id)
    return await ctx.session.send_request(request, kind, metadata=metadata)
