"""Asking up to 2025-11-25: requests pushed to the client while its own call is open, side by side.

What ends a push to its model without an answer: the client says no, errs or stays silent; the run's own time is
over; the call is; or the answer is no longer wanted, since the run was cancelled or has gone another way. A dialog
has as long as the call: its user may be thinking. What opens meanwhile in other branches is pushed beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import anyio
import mcp_types as wire
from anyio.abc import TaskGroup
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import ValidationError

from kairos_mcp.hall.asks import Ask, Question, Reply, UsersSettlement, UsersWord
from kairos_mcp.messages import Completion
from kairos_mcp.models import sampling
from kairos_mcp.models.sampling import BadReply
from kairos_mcp.server import eliciting
from kairos_mcp.server.call import Call

Bound = Literal["silence", "time", "call"]


@dataclass(frozen=True, slots=True)
class Open:
    """What a client may be asked now: its model's completions, its user's approvals."""

    completions: Sequence[Ask]
    approvals: Sequence[Question]


async def push_all(call: Call, run_id: str, find: Callable[[], Open], until_s: float) -> bool:
    """Push side by side what `find` finds. True when something came of it: an answer, another route, or news from
    elsewhere."""
    pushes = Pushes(call, run_id, find, until_s)
    try:
        await pushes.carry_out()
    except ExceptionGroup as several:
        raise _first(several) from None
    if not pushes.begun:  # another call of this client is asking already
        await call.on_beat(call.host.beat(run_id, call.caller))
        await call.host.asks.news()
        return True
    if pushes.failures:
        return await call.host.asks.fall_back(run_id, pushes.failures[0], call.caller)
    return pushes.moved


@dataclass(slots=True)
class Pushes:
    """Some pushes in the air. `scopes` is what each can be called off by, `called_off` those that were; `begun` all
    that were ever made here, `dialogs` how many of those in the air are shown to a person."""

    call: Call
    run_id: str
    find: Callable[[], Open]
    until_s: float
    failures: list[str] = field(default_factory=list)
    moved: bool = False
    dialogs: int = 0
    begun: set[str] = field(default_factory=set)
    scopes: dict[str, anyio.CancelScope] = field(default_factory=dict)
    called_off: set[str] = field(default_factory=set)

    async def carry_out(self) -> None:
        async with anyio.create_task_group() as beside:
            async with anyio.create_task_group() as pushes:
                self._begin(pushes)
                beside.start_soon(self._watch, pushes)
            beside.cancel_scope.cancel()

    def _begin(self, pushes: TaskGroup) -> None:
        """Push what is open and not in the air: the model's first, since some clients take one after the other."""
        found, asks, caller = self.find(), self.call.host.asks, self.call.caller
        completions = [each for each in found.completions if not asks.in_the_air(self.run_id, each.path, caller)]
        approvals = [each for each in found.approvals if not asks.in_the_air(self.run_id, each.key, caller)]
        number = len(completions) + len(self.scopes)
        for ask in completions:
            if ask.path not in self.begun:
                self.begun.add(ask.path)
                pushes.start_soon(self._push, ask, number)
        for row in approvals:
            if row.key not in self.begun:
                self.begun.add(row.key)
                pushes.start_soon(self._show, row)

    # -- to its model ------------------------------------------------------------------------------------------

    async def _push(self, each: Ask, number: int) -> None:
        within_s, bound = self._patience(each, number)
        began = time.monotonic()
        with self.call.host.asks.pushing(self.run_id, each.path, self.call.caller) as mine:
            if not mine:
                self.moved = True  # another call was quicker: look again
                return
            try:
                with anyio.move_on_after(within_s) as scope:
                    self.scopes[each.path] = scope
                    said = await self._pushed(each)
                    await self._answered(each, Reply(said, _since(began), self.call.client.dialect))
                    return
            except (MCPError, ValidationError, BadReply) as error:
                self._failed(error)
                return
            finally:
                del self.scopes[each.path]
            if each.path in self.called_off:
                self.moved = True
            elif bound == "time":
                await self._answered(each, Reply(None, _since(began)))
            elif bound == "silence":
                self.failures.append(f"the client did not answer within {within_s:g} s")

    def _patience(self, each: Ask, number: int) -> tuple[float, Bound]:
        """How long this push may take, and what bounds it. Some clients answer one push after the other, while the
        clocks of all run: the time for an answer grows with their number, and beside a dialog nobody is silent."""
        patience, answers = self.call.patience, self.call.host.asks.has_answered(self.call.caller)
        bounds: list[tuple[float, Bound]] = [(max(0.0, self.until_s - time.monotonic()), "call")]
        if not self.dialogs:
            bounds.append(((patience.later_s if answers else patience.first_s) * number, "silence"))
        if each.left_s is not None:
            bounds.append((each.left_s, "time"))
        return min(bounds)

    async def _pushed(self, each: Ask) -> Completion:
        call, ctx = self.call, self.call.client.ctx
        reply = await ctx.session.send_request(
            sampling.request(each.step, each.sent, call.client.dialect, each.prompts),
            wire.CreateMessageResultWithTools,
            metadata=ServerMessageMetadata(related_request_id=ctx.request_id),
        )
        return sampling.completion(reply, each.step, each.path, call.client.dialect)

    async def _answered(self, each: Ask, reply: Reply) -> None:
        """Deposit it. Shielded: an answer that was given is not thrown away because the time was over meanwhile."""
        self.moved = True
        with anyio.CancelScope(shield=True):
            await self.call.host.asks.deposit(self.run_id, each.path, reply, self.call.caller)

    def _failed(self, error: MCPError | ValidationError | BadReply) -> None:
        match error:
            case MCPError() if error.error.code == wire.CONNECTION_CLOSED:
                pass  # nobody refused: the client is gone, and the run waits for another call
            case MCPError():
                self.failures.append(f"the client refused ({error.error.code}: {error.error.message[:200]})")
            case BadReply():
                self.failures.append(error.reason)
            case _:
                self.failures.append("the client's answer is no completion")

    # -- to its user -------------------------------------------------------------------------------------------

    async def _show(self, row: Question) -> None:
        """Put a question to the client's user. One that is not decided is not asked again in this call."""
        call, began = self.call, time.monotonic()
        self.dialogs += 1
        with call.host.asks.pushing(self.run_id, row.key, call.caller) as mine:
            try:
                if not mine:
                    self.moved = True
                    return
                with anyio.move_on_after(max(0.0, self.until_s - began)) as scope:
                    self.scopes[row.key] = scope
                    reply = await call.client.ctx.session.send_request(
                        eliciting.request(call.host.purpose(self.run_id, call.caller), row),
                        wire.ElicitResult,
                        metadata=ServerMessageMetadata(related_request_id=call.client.ctx.request_id),
                    )
                    took_s, instant_s = time.monotonic() - began, call.patience.instant_s
                    await self._decided(row, eliciting.word(row.key, row.digest, reply, took_s, instant_s))
                    return
            except (MCPError, ValidationError):
                call.passed.update(each.key for each in self.find().approvals)  # this client can't show one after all
            finally:
                self.scopes.pop(row.key, None)
                self.dialogs -= 1
            self.moved = self.moved or row.key in self.called_off

    async def _decided(self, row: Question, word: UsersWord | UsersSettlement | eliciting.Left) -> None:
        match word:
            case UsersWord() | UsersSettlement():
                self.moved = True
                with anyio.CancelScope(shield=True):
                    await self.call.host.asks.decide(self.run_id, {row.key: word}, self.call.caller)
            case "nobody":
                self.call.passed.update(each.key for each in self.find().approvals)
            case "passed":
                self.call.passed.add(row.key)

    # -- meanwhile ---------------------------------------------------------------------------------------------

    async def _watch(self, pushes: TaskGroup) -> None:
        """Signs of life for the client; the end of a push whose answer nobody wants any more; what opens beside."""
        call = self.call
        while True:
            await call.on_beat(call.host.beat(self.run_id, call.caller))
            await call.host.asks.news()
            wanted = call.host.asks.wanted(self.run_id, call.caller)
            for key, scope in self.scopes.items():
                if key not in wanted:
                    self.called_off.add(key)
                    scope.cancel()
            if self.dialogs:  # else the call goes round by itself as soon as these pushes have ended
                self._begin(pushes)


def _first(several: ExceptionGroup) -> Exception:
    """What is to be told where several things went wrong at once."""
    error = several.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


def _since(began: float) -> int:
    return int((time.monotonic() - began) * 1000)
