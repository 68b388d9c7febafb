"""Asking up to 2025-11-25: requests pushed to the client, side by side, each in a task of its own.

Where the session keeps them they go on when the call that asked has ended (client_sessions.py): a slow model's answer
and a late decision count, and the next call finds what is in the air. What ends a push without an answer: the client
says no, errs or goes away; the run's own time is over; the answer is no longer wanted. A client that stays silent is
asked no more on behalf of a run that may go another way; a dialog may stay open, since its user may be thinking.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import anyio
import mcp_types as wire
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel, ValidationError

from kairos_mcp.app.client_requests import ClientReply, OpenRequest, Question, UserDecision, UserSettlement
from kairos_mcp.core.errors import KairosError, UnknownRun
from kairos_mcp.models import sampling
from kairos_mcp.models.sampling import BadSamplingReply
from kairos_mcp.server import elicitation
from kairos_mcp.server.call import ToolRequest
from kairos_mcp.server.client_sessions import PushedRequest

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class PushableRequests:
    """What a client may be asked now: its model's completions, its user's approvals."""

    completions: Sequence[OpenRequest]
    approvals: Sequence[Question]


async def push_all(call: ToolRequest, run_id: str, find: Callable[[], PushableRequests], until_s: float) -> bool:
    """Push side by side what `find` finds. True when something came of it: an answer, another route, or news from
    elsewhere."""
    asks, caller, watched, failed = call.host.asks, call.caller, dict[str, PushedRequest](), dict[str, str]()
    while True:
        await _begin(call, run_id, find(), watched, failed)
        await call.on_beat(call.host.beat(run_id, caller))
        ended = [push for push in watched.values() if push.ended]
        for push in ended:
            del watched[push.key]
            _note(call, push, find, failed)
        pending = [push for push in watched.values() if not push.is_dialog]
        if failed and not pending:
            return await asks.fall_back(run_id, next(iter(failed.values())), caller)
        if ended and not failed:
            return not any(push.gone for push in ended)
        if time.monotonic() >= until_s:
            return False
        if silent := _silent(call, pending):
            asks.was_silent(caller)
            why = f"the client did not answer within {silent.patience_s:g} s"
            return await asks.fall_back(run_id, why, caller)
        await asks.news(until_s - time.monotonic())
        if not watched:  # another session is asking: look again
            return True


def _note(call: ToolRequest, push: PushedRequest, find: Callable[[], PushableRequests], failed: dict[str, str]) -> None:
    """What has become of a push. A dialog that was passed over is not shown again in this call; one that nobody saw
    says that nobody sees the others either."""
    if push.trouble is not None:
        raise push.trouble
    if push.passed:
        call.passed.add(push.key)
    if push.unseen:
        call.passed.update(each.key for each in find().approvals)
    if push.failure is not None and push.stands:
        failed[push.key] = push.failure


def _silent(call: ToolRequest, pending: Sequence[PushedRequest]) -> PushedRequest | None:
    """The push that says that its client is silent, if one does: nobody is silent beside a dialog, where one has taken
    over, or twice."""
    if any(push.is_dialog for push in call.session.pushes.values()):
        return None
    for push in pending:
        if push.stands and not push.told and push.silent_s >= push.patience_s:
            push.told = True
            return push
    return None


async def _begin(
    call: ToolRequest, run_id: str, found: PushableRequests, watched: dict[str, PushedRequest], failed: dict[str, str]
) -> None:
    """Push what is open and not in the air in this session, the model's first, since some clients take one after the
    other; watch what is in the air already."""
    session, asks = call.session, call.host.asks
    watched |= {push.key: push for push in session.pushes_of(run_id)}
    if asks.asks_now(run_id, call.caller) and session.may_push(run_id, call):
        fresh = [each for each in found.completions if each.path not in watched and each.path not in failed]
        number = len(fresh) + sum(not push.is_dialog for push in watched.values())
        for each in fresh:
            push = PushedRequest(run_id, each.path, patience_s=_patience_s(call, number))
            session.pushes[run_id, each.path] = push  # before anything is awaited: another call of it finds it there
            watched[each.path] = push
            try:
                with anyio.CancelScope(shield=True):  # what stands in the rows is sent
                    push.request = await asks.begin(run_id, each, call.caller)
            finally:
                if push.request is None:
                    push.ended = True
                    del session.pushes[run_id, each.path]
            if push.request is None:
                await asks.news()
            else:
                call.tasks.start_soon(_push_one, call, push, partial(_ask_model, call, push, each))
    for row in found.approvals:
        if row.key not in watched and session.may_push(run_id, call):
            push = watched[row.key] = session.pushes[run_id, row.key] = PushedRequest(run_id, row.key, True)
            call.tasks.start_soon(_push_one, call, push, partial(_ask_user, call, push, row))


def _patience_s(call: ToolRequest, number: int) -> float:
    """How long a client may stay silent. Some answer one push after the other, while the clocks of all run: the time
    for an answer grows with their number."""
    patience = call.patience
    return (patience.later_s if call.host.asks.has_answered(call.caller) else patience.first_s) * number


async def _push_one(call: ToolRequest, push: PushedRequest, asking: Callable[[], object]) -> None:
    """One push, until it is answered or nobody wants an answer any more. Raises nothing but cancellation."""
    try:
        async with anyio.create_task_group() as both:
            both.start_soon(_cancel_when_unwanted, call, push, both.cancel_scope)
            await asking()  # type: ignore[misc]  # a coroutine of either kind
            both.cancel_scope.cancel()
    except Exception as error:
        push.trouble = _first(error)
        log.exception("a push failed", exc_info=push.trouble)
    finally:
        push.ended = True
        call.session.pushes.pop((push.run_id, push.key), None)
        call.host.asks.signal_change()


async def _cancel_when_unwanted(call: ToolRequest, push: PushedRequest, scope: anyio.CancelScope) -> None:
    asks, caller = call.host.asks, call.caller
    while True:
        await asks.news(calling=False)
        try:
            wanted = push.key in asks.wanted_keys(push.run_id, caller)
            if push.request is not None and not push.closing:
                push.stands = asks.stands(push.run_id, push.request, caller)
        except UnknownRun:
            wanted = False
        except KairosError:
            continue  # the store is busy, or gone for a while
        if not wanted:
            scope.cancel()
            return


async def _ask_model(call: ToolRequest, push: PushedRequest, each: OpenRequest) -> None:
    """Ask the client's model, and deposit what it says. What is given up is charged, whatever ends it."""
    asks, caller, request = call.host.asks, call.caller, push.request
    assert request is not None
    try:
        with anyio.move_on_after(each.left_s) as scope:
            asked = sampling.make_sampling_request(each.step, each.sent, call.client.dialect, each.prompts)
            reply = await _send_request(call, asked, wire.CreateMessageResultWithTools)
            push.closing = True
            said = sampling.parse_sampling_reply(reply, each.step, each.path, call.client.dialect)
            with anyio.CancelScope(shield=True):  # an answer that was given is not thrown away
                took = int(push.silent_s * 1000)
                await asks.deposit(
                    push.run_id, each.path, ClientReply(said, took, call.client.dialect, request), caller
                )
            return
        if scope.cancelled_caught:
            await asks.deposit(push.run_id, each.path, ClientReply(None, int(push.silent_s * 1000)), caller)
    except MCPError as error:
        push.closing = True
        if error.error.code == wire.CONNECTION_CLOSED:
            push.gone = True  # nobody refused: the client is gone, and the run waits for another call
            await asks.withdraw(push.run_id, request, caller)
        else:
            push.failure = f"the client refused ({error.error.code}: {error.error.message[:200]})"
            await asks.mark_refused(request)
    except (BadSamplingReply, ValidationError) as error:
        push.closing = True
        push.failure = error.reason if isinstance(error, BadSamplingReply) else "the client's answer is no completion"
        await asks.withdraw(push.run_id, request, caller)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            await asks.withdraw(push.run_id, request, caller)
        raise


async def _ask_user(call: ToolRequest, push: PushedRequest, row: Question) -> None:
    """Show an approval to the client's user, and take what they decide about exactly that."""
    asks, began = call.host.asks, time.monotonic()
    try:
        dialog = elicitation.request(call.host.purpose(push.run_id, call.caller), row)
        reply = await _send_request(call, dialog, wire.ElicitResult)
    except (MCPError, ValidationError) as error:
        push.gone = isinstance(error, MCPError) and error.error.code == wire.CONNECTION_CLOSED
        word: UserDecision | UserSettlement | elicitation.Left = "nobody"  # this client can't show one after all
    else:
        took_s = time.monotonic() - began
        word = elicitation.word(row.key, row.digest, reply, took_s, call.patience.instant_s)
    match word:
        case UserDecision() | UserSettlement():
            with anyio.CancelScope(shield=True):
                await asks.decide(push.run_id, {row.key: word}, call.caller)
        case "unclear":
            push.passed = True
        case _ if not push.gone:
            push.passed, push.unseen = True, word == "nobody"
            asks.mark_ignored(push.run_id, row.key, row.digest, call.caller)
        case _:
            pass


async def _send_request(call: ToolRequest, request: wire.ServerRequest, kind: type[ResultT]) -> ResultT:
    """The client's answer. Where it may come after the call, the request goes over the connection, not the call."""
    ctx = call.client.ctx
    kept = call.session.tasks is not None
    within = None if kept else ServerMessageMetadata(related_request_id=ctx.request_id)
    return await ctx.session.send_request(request, kind, metadata=within)


def _first(error: Exception) -> Exception:
    """What is to be told where several things went wrong at once."""
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error
