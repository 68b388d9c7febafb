"""Put a run's open completions to the client's own model, in the way that its protocol era knows.

Up to 2025-11-25 they are pushed within the call. On 2026-07-28 they travel in an InputRequiredResult, which the client
answers by calling again, perhaps another process, perhaps tomorrow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types as wire
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from kairos_mcp.asks import Ask, Reply
from kairos_mcp.models import sampling
from kairos_mcp.models.dialects import DialectName

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from kairos_mcp.server.handlers import Call

ROUNDS = 8  # a stock client gives up after 10 rounds of one call
FIRST_ANSWER_S = 30.0  # some clients declare sampling and never answer
LATER_ANSWER_S = 300.0


@dataclass(frozen=True, slots=True)
class Client:
    """What the client of one call declared for it: capabilities may differ from call to call."""

    ctx: ServerRequestContext[Any]
    modern: bool
    samples: bool
    dialect: DialectName

    @staticmethod
    def of(ctx: ServerRequestContext[Any]) -> Client:
        declared = ctx.session.client_capabilities
        samples = declared.sampling if declared is not None else None
        native = samples is not None and samples.tools is not None
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        return Client(ctx, modern, samples is not None, "native" if native else "text")


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a sealed requestState says: the run, the ask that it answers, and how many rounds this call has had."""

    run_id: str
    nonce: str
    rounds: int

    def sealed(self) -> str:
        return json.dumps([self.run_id, self.nonce, self.rounds])

    @staticmethod
    def of(state: str | None) -> Resumed | None:
        return None if state is None else Resumed(*json.loads(state))


async def ask(call: Call, run_id: str, until_s: float) -> wire.InputRequiredResult | bool:
    """Ask for what is open. The result to return to the client; or whether the run has moved by it.

    `until_s`: when this call ends, by `time.monotonic`. What is not answered then waits for the next call.
    """
    found = call.host.asks.open(run_id, call.caller)
    if not found or not call.client.samples or time.monotonic() >= until_s:
        return False
    if not call.client.modern:
        return await _push_all(call, run_id, found, until_s)
    rounds = call.resumed.rounds if call.resumed is not None else 0
    return False if rounds >= ROUNDS else await _input_required(call, run_id, found, rounds + 1)


async def take(call: Call, resumed: Resumed, responses: Mapping[str, object] | None) -> None:
    """Take what a client brings for an ask. Keys that were not asked are ignored, missing ones asked again."""
    row = call.host.asks.asked(resumed.run_id, resumed.nonce, call.caller)
    if row is None or row.consumed is not None or not responses:
        return
    waiting = {each.path: each for each in call.host.asks.open(resumed.run_id, call.caller)}
    replies = {
        path: sampling.completion(responses[key], waiting[path].step, path, call.client.dialect)
        for key, path in row.keys.items()
        if key in responses and path in waiting
    }
    if replies:
        await call.host.asks.take(resumed.run_id, resumed.nonce, replies, call.caller)


async def _input_required(
    call: Call, run_id: str, found: list[Ask], rounds: int
) -> wire.InputRequiredResult | bool:
    row = await call.host.asks.put(run_id, found, call.caller)
    if row is None:
        return await call.host.asks.fall_back(run_id, "the client called again without an answer", call.caller)
    by_path = {each.path: each for each in found}
    requests: wire.InputRequests = {key: _request(call, by_path[path]) for key, path in row.keys.items()}
    state = Resumed(run_id, row.nonce, rounds).sealed()
    return wire.InputRequiredResult(input_requests=requests, request_state=state)


async def _push_all(call: Call, run_id: str, found: list[Ask], until_s: float) -> bool:
    """Push side by side. True when something came of it: an answer, or another route."""
    failures: list[str] = []
    answered: list[str] = []

    async def push(each: Ask) -> None:
        patience = LATER_ANSWER_S if call.host.asks.has_answered(call.caller) else FIRST_ANSWER_S
        silent_s = patience * len(found)  # some clients answer one after the other, while the clocks of all run
        left_s = until_s - time.monotonic()
        try:
            with anyio.fail_after(min(left_s, silent_s)):
                reply = await _pushed(call, each)
        except TimeoutError:
            if silent_s < left_s:
                failures.append(f"the client did not answer within {silent_s:g} s")
        except (MCPError, ValidationError) as error:
            failures.append(_why(error))
        else:
            answered.append(each.path)
            await call.host.asks.deposit(run_id, {each.path: reply}, call.caller)

    async with anyio.create_task_group() as group:
        group.start_soon(_beats, call, run_id)
        async with anyio.create_task_group() as pushes:
            for each in found:
                pushes.start_soon(push, each)
        group.cancel_scope.cancel()
    if failures:
        return await call.host.asks.fall_back(run_id, failures[0], call.caller)
    return bool(answered)


async def _pushed(call: Call, each: Ask) -> Reply:
    ctx, began = call.client.ctx, time.monotonic()
    result = await ctx.session.send_request(
        _request(call, each),
        wire.CreateMessageResultWithTools,
        metadata=ServerMessageMetadata(related_request_id=ctx.request_id),
    )
    took = int((time.monotonic() - began) * 1000)
    return Reply(sampling.completion(result, each.step, each.path, call.client.dialect), took)


async def _beats(call: Call, run_id: str) -> None:
    while True:
        await call.on_beat(call.host.beat(run_id, call.caller))
        await anyio.sleep(1.0)


def _request(call: Call, each: Ask) -> wire.CreateMessageRequest:
    return sampling.request(each.step, each.sent, call.client.dialect, each.prompts)


def _why(error: MCPError | ValidationError) -> str:
    match error:
        case MCPError():
            return f"the client refused ({error.error.code}: {error.error.message[:200]})"
        case _:
            return "the client's answer is no completion"
