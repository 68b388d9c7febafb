"""Ask the client: its model for a run's completions, its user for approvals, in the way of its protocol era.

Up to 2025-11-25 requests are pushed within the call (push.py). On 2026-07-28 they are part of an InputRequiredResult,
which the client answers by calling again, perhaps in another process, perhaps tomorrow.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import mcp_types as wire

from kairos_mcp.app.client_requests import ClientReply
from kairos_mcp.app.dialogs import UserDecision, UserSettlement
from kairos_mcp.models import sampling
from kairos_mcp.models.sampling import BadSamplingReply
from kairos_mcp.server import elicitation, push
from kairos_mcp.server.call import ResumedRequest, ServerCall
from kairos_mcp.server.push import PushableRequests
from kairos_mcp.store import settlements
from kairos_mcp.store.approvals import is_approval_key
from kairos_mcp.store.client_requests import RequestOutcome


async def ask_client(call: ServerCall, run_id: str, until_s: float) -> wire.InputRequiredResult | bool:
    """Ask the client what its run waits for. Returns the result for the client, or whether the run has moved.

    `until_s`: when this call ends, by `time.monotonic`. What is unanswered then waits for the next call.
    """
    if time.monotonic() >= until_s:
        return False
    found = _find_requests(call, run_id)
    if not (found.completions or found.approvals):
        return False
    if found.completions and call.app.client_requests.is_silent(run_id, call.caller):
        reason = "this client has left such a request without an answer before"
        return await call.app.client_requests.fall_back(run_id, reason, call.caller)
    if not call.client.modern:
        return await push.push_all(call, run_id, lambda: _find_requests(call, run_id), until_s)
    rounds = call.resumed.rounds if call.resumed is not None else 0
    return False if rounds >= call.policy.rounds else await _input_required(call, run_id, found, rounds + 1)


def _find_requests(call: ServerCall, run_id: str) -> PushableRequests:
    """What the client can be asked now, by the capabilities that it declared."""
    asks, client = call.app.client_requests, call.client
    return PushableRequests(
        asks.open_requests(run_id, call.caller) if client.samples and not client.refused else (),
        call.app.dialogs.open_questions(run_id, call.caller, call.skipped) if client.elicits else (),
    )


async def take_responses(call: ServerCall, resumed: ResumedRequest, responses: Mapping[str, object] | None) -> bool:
    """Store a client's responses to what it was asked. False if its model refused and the run's route was fixed.

    Unknown keys are ignored; keys that are missing, or answered with another kind, are asked again.
    """
    refusal = None
    for nonce in resumed.nonces if responses else ():
        row = call.app.client_requests.find_ask(resumed.run_id, nonce, call.caller)
        if row is None or row.consumed is not None:
            continue
        answers = {path: (responses or {}).get(key) for key, path in row.keys.items()}
        if any(is_approval_key(path) or settlements.is_settlement_key(path) for path in answers):
            await _take_decisions(call, resumed, nonce, answers)
        else:
            refusal = await _take_completions(call, resumed, nonce, answers)
    return refusal is None or await call.app.client_requests.fall_back(resumed.run_id, refusal, call.caller)


async def _take_completions(
    call: ServerCall, resumed: ResumedRequest, nonce: str, answers: Mapping[str, object]
) -> str | None:
    """Store completions; return why the client's model refused, if it did."""
    waiting = {request.path: request for request in call.app.client_requests.open_requests(resumed.run_id, call.caller)}
    replies: dict[str, ClientReply] = {}
    refusal = None
    for path, reply in answers.items():
        match reply:
            case wire.CreateMessageResult() | wire.CreateMessageResultWithTools() if path in waiting:
                try:
                    completion = sampling.parse_sampling_reply(reply, waiting[path].step, path, resumed.dialect)
                    replies[path] = ClientReply(completion, dialect=resumed.dialect)
                except BadSamplingReply as error:
                    refusal = error.reason
            case _:
                pass
    await call.app.client_requests.take(resumed.run_id, nonce, replies, call.caller)
    return refusal


async def _take_decisions(call: ServerCall, resumed: ResumedRequest, nonce: str, answers: Mapping[str, object]) -> None:
    took_s = (call.app.client_requests.now() - resumed.at) / 1000
    decisions: dict[str, UserDecision | UserSettlement] = {}
    digests = dict(resumed.digests)
    for key, reply in answers.items():
        match reply:
            case wire.ElicitResult():
                decision = elicitation.read_decision(key, digests.get(key, ""), reply, took_s, call.policy.instant_s)
                if isinstance(decision, UserDecision | UserSettlement):
                    decisions[key] = decision
                    continue
                call.skipped.update(answers if decision == "nobody" else (key,))
                if decision != "unclear":
                    call.app.dialogs.mark_ignored(resumed.run_id, key, digests.get(key, ""), call.caller)
            case _:
                pass
    await call.app.dialogs.decide(resumed.run_id, decisions, call.caller, nonce=nonce)


async def _input_required(
    call: ServerCall, run_id: str, found: PushableRequests, rounds: int
) -> wire.InputRequiredResult | bool:
    """Make the result that asks the client, or fall back: a client that calls again without a requestState, some time
    after it was asked, has refused; nothing else tells."""
    asks, again_s = call.app.client_requests, call.policy.again_s if call.resumed is None else None
    requests: wire.InputRequests = {}
    nonces = []
    digests: tuple[tuple[str, str], ...] = ()
    if found.completions:
        row = await asks.create_ask(run_id, found.completions, call.caller, again_s=again_s)
        if row is None:
            asks.mark_silent(call.caller)
            return await asks.fall_back(run_id, "the client called again without an answer", call.caller)
        if isinstance(row, RequestOutcome):
            await asks.wait_for_change()
            return True  # the request to another session has to be charged first
        dialect, by_path = call.client.dialect, {request.path: request for request in found.completions}
        for key, path in row.keys.items():
            request = by_path[path]
            requests[key] = sampling.make_sampling_request(request.step, request.sent, dialect, request.prompts)
        nonces.append(row.nonce)
    if found.approvals:
        row = await call.app.dialogs.create_ask(run_id, found.approvals, call.caller, again_s=again_s)
        by_key = {question.key: question for question in found.approvals}
        if row is None:
            call.skipped.update(by_key)
        else:
            purpose = call.app.runs.purpose(run_id, call.caller)
            requests |= {
                request_key: elicitation.make_dialog(purpose, by_key[key]) for request_key, key in row.keys.items()
            }
            digests = tuple((key, question.digest) for key, question in by_key.items())
            nonces.append(row.nonce)
    if not requests:
        return False
    skipped = tuple(sorted(call.skipped))
    state = ResumedRequest(run_id, tuple(nonces), rounds, call.client.dialect, asks.now(), skipped, digests).as_sealed()
    return wire.InputRequiredResult(input_requests=requests, request_state=state)
