"""Put a run's open completions to the client's own model, in the way that its protocol era knows.

Up to 2025-11-25 they are pushed within the call (pushing.py). On 2026-07-28 they travel in an InputRequiredResult,
which the client answers by calling again, perhaps another process, perhaps tomorrow.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import mcp_types as wire

from kairos_mcp.asks import Ask
from kairos_mcp.messages import Completion
from kairos_mcp.models import sampling
from kairos_mcp.models.sampling import BadReply
from kairos_mcp.server import pushing
from kairos_mcp.server.call import Call, Resumed


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
    dialect, by_path = call.client.dialect, {each.path: each for each in found}
    requests: wire.InputRequests = {}
    for key, path in row.keys.items():
        asked = by_path[path]
        requests[key] = sampling.request(asked.step, asked.sent, dialect, asked.prompts)
    state = Resumed(run_id, row.nonce, rounds, dialect).sealed()
    return wire.InputRequiredResult(input_requests=requests, request_state=state)
