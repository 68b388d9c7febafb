"""Put a run's open completions to the client's own model, in the way that its protocol era knows.

Up to 2025-11-25 they are pushed within the call (pushing.py). On 2026-07-28 they travel in an InputRequiredResult,
which the client answers by calling again, perhaps another process, perhaps tomorrow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mcp_types as wire
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from kairos_mcp.messages import Completion
from kairos_mcp.models import sampling
from kairos_mcp.models.dialects import DialectName
from kairos_mcp.models.sampling import BadReply
from kairos_mcp.server import pushing

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from kairos_mcp.asks import Ask
    from kairos_mcp.server.handlers import Call


@dataclass(frozen=True, slots=True)
class Client:
    """What the client of one call declared for it: capabilities may differ from call to call.

    `refused`: within this call it has said that it won't answer, so it is asked no more.
    """

    ctx: ServerRequestContext[Any]
    modern: bool
    samples: bool
    dialect: DialectName
    refused: bool = False

    @staticmethod
    def of(ctx: ServerRequestContext[Any]) -> Client:
        declared = ctx.session.client_capabilities
        samples = declared.sampling if declared is not None else None
        native = samples is not None and samples.tools is not None
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        return Client(ctx, modern, samples is not None, "native" if native else "text")


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a sealed requestState says: the run, the ask that it answers, how many rounds this call has had, and in
    which dialect it was asked."""

    run_id: str
    nonce: str
    rounds: int
    dialect: DialectName

    def sealed(self) -> str:
        return json.dumps([self.run_id, self.nonce, self.rounds, self.dialect])

    @staticmethod
    def of(state: str | None) -> Resumed | None:
        return None if state is None else Resumed(*json.loads(state))


async def ask(call: Call, run_id: str, until_s: float) -> wire.InputRequiredResult | bool:
    """Ask for what is open. The result to return to the client; or whether the run has moved by it.

    `until_s`: when this call ends, by `time.monotonic`. What is not answered then waits for the next call.
    """
    if not call.client.samples or call.client.refused or time.monotonic() >= until_s:
        return False
    found = call.host.asks.open(run_id, call.caller)
    if not found:
        return False
    if not call.client.modern:
        return await pushing.push_all(call, run_id, found, until_s)
    rounds = call.resumed.rounds if call.resumed is not None else 0
    return False if rounds >= call.patience.rounds else await _input_required(call, run_id, found, rounds + 1)


async def take(call: Call, resumed: Resumed, responses: Mapping[str, object] | None) -> bool:
    """Take what a client brings for an ask. False where that was a refusal, and the run's route was given.

    Keys that were not asked are ignored; those that are missing, or answered with another kind, are asked again.
    """
    row = call.host.asks.asked(resumed.run_id, resumed.nonce, call.caller)
    if row is None or row.consumed is not None or not responses:
        return True
    waiting = {each.path: each for each in call.host.asks.open(resumed.run_id, call.caller)}
    replies: dict[str, Completion] = {}
    refused = None
    for key, path in row.keys.items():
        match responses.get(key):
            case (wire.CreateMessageResult() | wire.CreateMessageResultWithTools()) as reply if path in waiting:
                try:
                    replies[path] = sampling.completion(reply, waiting[path].step, path, resumed.dialect)
                except BadReply as bad:
                    refused = bad.reason
            case _:
                pass
    await call.host.asks.take(resumed.run_id, resumed.nonce, replies, call.caller)
    return refused is None or await call.host.asks.fall_back(resumed.run_id, refused, call.caller)


async def _input_required(call: Call, run_id: str, found: list[Ask], rounds: int) -> wire.InputRequiredResult | bool:
    """A client that calls again without a state, some time after it was asked, has refused: nothing else says so."""
    again_s = call.patience.again_s if call.resumed is None else None
    row = await call.host.asks.put(run_id, found, call.caller, again_s=again_s)
    if row is None:
        return await call.host.asks.fall_back(run_id, "the client called again without an answer", call.caller)
    by_path = {each.path: each for each in found}
    requests: wire.InputRequests = {key: request(call, by_path[path]) for key, path in row.keys.items()}
    state = Resumed(run_id, row.nonce, rounds, call.client.dialect).sealed()
    return wire.InputRequiredResult(input_requests=requests, request_state=state)


def request(call: Call, each: Ask) -> wire.CreateMessageRequest:
    return sampling.request(each.step, each.sent, call.client.dialect, each.prompts)
