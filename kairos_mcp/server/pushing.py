"""Sampling up to 2025-11-25: requests pushed to the client while its own call is open, side by side.

What ends a push without an answer: the client says no, errs or stays silent; the run's own time is over; the call
is; or the answer is no longer wanted, since the run was cancelled or has gone another way.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

import anyio
import mcp_types as wire
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import ValidationError

from kairos_mcp.asks import Ask, Reply
from kairos_mcp.messages import Completion
from kairos_mcp.models import sampling
from kairos_mcp.models.sampling import BadReply
from kairos_mcp.server.call import Call

Bound = Literal["silence", "time", "call"]


async def push_all(call: Call, run_id: str, found: list[Ask], until_s: float) -> bool:
    """Push side by side. True when something came of it: an answer, another route, or news from elsewhere."""
    with call.host.asks.pushing(run_id, found, call.caller) as mine:
        if not mine:  # another call of this client is asking already
            await call.on_beat(call.host.beat(run_id, call.caller))
            await call.host.asks.news()
            return True
        pushes = Pushes(call, run_id, until_s, len(mine))
        try:
            await pushes.carry_out(mine)
        except ExceptionGroup as several:
            raise _first(several) from None
    if pushes.failures:
        return await call.host.asks.fall_back(run_id, pushes.failures[0], call.caller)
    return pushes.moved


@dataclass(slots=True)
class Pushes:
    """Some pushes in the air. `scopes` is what each can be called off by, `called_off` those that were."""

    call: Call
    run_id: str
    until_s: float
    number: int
    failures: list[str] = field(default_factory=list)
    moved: bool = False
    scopes: dict[str, anyio.CancelScope] = field(default_factory=dict)
    called_off: set[str] = field(default_factory=set)

    async def carry_out(self, mine: list[Ask]) -> None:
        async with anyio.create_task_group() as beside:
            beside.start_soon(self._watch)
            async with anyio.create_task_group() as pushes:
                for each in mine:
                    pushes.start_soon(self._push, each)
            beside.cancel_scope.cancel()

    async def _push(self, each: Ask) -> None:
        within_s, bound = self._patience(each)
        began = time.monotonic()
        try:
            with anyio.move_on_after(within_s) as scope:
                self.scopes[each.path] = scope
                said = await self._pushed(each)
                await self._answered(each, Reply(said, _since(began)))
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

    def _patience(self, each: Ask) -> tuple[float, Bound]:
        """How long this push may take, and what bounds it. Some clients answer one push after the other, while the
        clocks of all run: the time for an answer grows with their number."""
        patience, answers = self.call.patience, self.call.host.asks.has_answered(self.call.caller)
        bounds: list[tuple[float, Bound]] = [
            (max(0.0, self.until_s - time.monotonic()), "call"),
            ((patience.later_s if answers else patience.first_s) * self.number, "silence"),
        ]
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

    async def _watch(self) -> None:
        """Signs of life for the client; and the end of a push whose answer nobody wants any more."""
        call = self.call
        while True:
            await call.on_beat(call.host.beat(self.run_id, call.caller))
            await call.host.asks.news()
            wanted = call.host.asks.wanted(self.run_id, call.caller)
            for path, scope in self.scopes.items():
                if path not in wanted:
                    self.called_off.add(path)
                    scope.cancel()


def _first(several: ExceptionGroup) -> Exception:
    """What is to be told where several things went wrong at once."""
    error = several.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


def _since(began: float) -> int:
    return int((time.monotonic() - began) * 1000)
