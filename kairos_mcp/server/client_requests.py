"""Put a run's open completions to the client's own model, and its approvals to the client's user, as its era knows.

Up to 2025-11-25 they are pushed within the call (pushing.py). On 2026-07-28 they travel in an InputRequiredResult,
which the client answers by calling again, perhaps another process, perhaps tomorrow.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import mcp_types as wire

from kairos_mcp.app.client_requests import ClientReply, UserDecision, UserSettlement
from kairos_mcp.models import sampling
from kairos_mcp.models.sampling import BadSamplingReply
from kairos_mcp.server import elicitation, push
from kairos_mcp.server.call import ResumedRequest, ToolRequest
from kairos_mcp.server.push import PushableRequests
from kairos_mcp.store import settlements
from kairos_mcp.store.approvals import is_approval_key
from kairos_mcp.store.client_requests import RequestOutcome


async def ask(call: ToolRequest, run_id: str, until_s: float) -> wire.InputRequiredResult | bool:
    """Ask for what is open. The result to return to the client; or whether the run has moved by it.

    `until_s`: when this call ends, by `time.monotonic`. What is not answered then waits for the next call.
    """
    if time.monotonic() >= until_s:
        return False
    found = _pushable_requests(call, run_id)
    if not (found.completions or found.approvals):
        return False
    if found.completions and call.host.asks.is_silent(run_id, call.caller):
        why = "this client has left such a request without an answer before"
        return await call.host.asks.fall_back(run_id, why, call.caller)
    if not call.client.modern:
        return await push.push_all(call, run_id, lambda: _pushable_requests(call, run_id), until_s)
    rounds = call.resumed.rounds if call.resumed is not None else 0
    return False if rounds >= call.patience.rounds else await _input_required(call, run_id, found, rounds + 1)


def _pushable_requests(call: ToolRequest, run_id: str) -> PushableRequests:
    """Nothing is asked of a client that did not declare it."""
    asks, client = call.host.asks, call.client
    return PushableRequests(
        asks.open(run_id, call.caller) if client.samples and not client.refused else (),
        asks.undecided_questions(run_id, call.caller, call.passed) if client.elicits else (),
    )


async def take(call: ToolRequest, resumed: ResumedRequest, responses: Mapping[str, object] | None) -> bool:
    """Take what a client brings for its asks. False where its model refused, and the run's route was given.

    Keys that were not asked are ignored; those that are missing, or answered with another kind, are asked again.
    """
    refused = None
    for nonce in resumed.nonces if responses else ():
        row = call.host.asks.find_ask(resumed.run_id, nonce, call.caller)
        if row is None or row.consumed is not None:
            continue
        brought = {path: (responses or {}).get(key) for key, path in row.keys.items()}
        if any(is_approval_key(path) or settlements.is_settlement_key(path) for path in brought):
            await _take_decisions(call, resumed, nonce, brought)
        else:
            refused = await _take_completions(call, resumed, nonce, brought)
    return refused is None or await call.host.asks.fall_back(resumed.run_id, refused, call.caller)


async def _take_completions(
    call: ToolRequest, resumed: ResumedRequest, nonce: str, brought: Mapping[str, object]
) -> str | None:
    """Why the client's model refused, if it did."""
    waiting = {each.path: each for each in call.host.asks.open(resumed.run_id, call.caller)}
    replies: dict[str, ClientReply] = {}
    refused = None
    for path, reply in brought.items():
        match reply:
            case wire.CreateMessageResult() | wire.CreateMessageResultWithTools() if path in waiting:
                try:
                    said = sampling.parse_sampling_reply(reply, waiting[path].step, path, resumed.dialect)
                    replies[path] = ClientReply(said, dialect=resumed.dialect)
                except BadSamplingReply as bad:
                    refused = bad.reason
            case _:
                pass
    await call.host.asks.take(resumed.run_id, nonce, replies, call.caller)
    return refused


async def _take_decisions(
    call: ToolRequest, resumed: ResumedRequest, nonce: str, brought: Mapping[str, object]
) -> None:
    took_s = (call.host.asks.now() - resumed.at) / 1000
    said: dict[str, UserDecision | UserSettlement] = {}
    digests = dict(resumed.digests)
    for key, reply in brought.items():
        match reply:
            case wire.ElicitResult():
                word = elicitation.word(key, digests.get(key, ""), reply, took_s, call.patience.instant_s)
                if isinstance(word, UserDecision | UserSettlement):
                    said[key] = word
                    continue
                call.passed.update(brought if word == "nobody" else (key,))
                if word != "unclear":
                    call.host.asks.mark_ignored(resumed.run_id, key, digests.get(key, ""), call.caller)
            case _:
                pass
    await call.host.asks.decide(resumed.run_id, said, call.caller, nonce=nonce)


async def _input_required(
    call: ToolRequest, run_id: str, found: PushableRequests, rounds: int
) -> wire.InputRequiredResult | bool:
    """A client that calls again without a state, some time after it was asked, has refused: nothing else says so."""
    asks, again_s = call.host.asks, call.patience.again_s if call.resumed is None else None
    requests: wire.InputRequests = {}
    nonces = []
    digests: tuple[tuple[str, str], ...] = ()
    if found.completions:
        row = await asks.create_ask(run_id, found.completions, call.caller, again_s=again_s)
        if row is None:
            asks.was_silent(call.caller)
            return await asks.fall_back(run_id, "the client called again without an answer", call.caller)
        if isinstance(row, RequestOutcome):
            await asks.news()
            return True  # what another session was asked has to be charged first
        dialect, by_path = call.client.dialect, {each.path: each for each in found.completions}
        for key, path in row.keys.items():
            asked = by_path[path]
            requests[key] = sampling.make_sampling_request(asked.step, asked.sent, dialect, asked.prompts)
        nonces.append(row.nonce)
    if found.approvals:
        row = await asks.create_approval_ask(run_id, found.approvals, call.caller, again_s=again_s)
        by_key = {each.key: each for each in found.approvals}
        if row is None:
            call.passed.update(by_key)
        else:
            purpose = call.host.purpose(run_id, call.caller)
            requests |= {wired: elicitation.request(purpose, by_key[key]) for wired, key in row.keys.items()}
            digests = tuple((key, each.digest) for key, each in by_key.items())
            nonces.append(row.nonce)
    if not requests:
        return False
    passed = tuple(sorted(call.passed))
    state = ResumedRequest(run_id, tuple(nonces), rounds, call.client.dialect, asks.now(), passed, digests).as_sealed()
    return wire.InputRequiredResult(input_requests=requests, request_state=state)
