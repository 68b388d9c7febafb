"""Ask the client: its model for a run's completions, its user for approvals, in the way of its protocol era.

Up to 2025-11-25 requests are pushed within the call (push.py). On 2026-07-28 they are part of an InputRequiredResult,
which the client answers by calling again, perhaps in another process, perhaps tomorrow; or, of a client that takes
tasks, part of the task's status, each with an ask of its own, so that one can be answered before the others.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

import mcp_types as wire

from kairos_mcp.app.client_requests import ClientReply
from kairos_mcp.app.dialogs import UserDecision
from kairos_mcp.core.routes import CALLER
from kairos_mcp.core.steps import loop_of
from kairos_mcp.models import sampling
from kairos_mcp.models.sampling import BadSamplingReply
from kairos_mcp.server import elicitation, push
from kairos_mcp.server.call import POLL_MS, ServerCall
from kairos_mcp.server.push import PushableRequests
from kairos_mcp.server.request_state import ResumedRequest
from kairos_mcp.store import settlements
from kairos_mcp.store.approvals import DialogView, WaitingItems, is_approval_key
from kairos_mcp.store.client_completions import RequestOutcome
from kairos_mcp.store.client_questions import AskRow
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.settlements import SettlementRequest

MISSED_LOOKS = 3  # intervals without a look at its task, after which a client is gone


async def ask_client(
    call: ServerCall, run: RunRow, until_s: float, answered: Collection[str] = ()
) -> wire.InputRequiredResult | bool | None:
    """Ask the client what its run, as it is now, waits for. Returns the result for the client, or whether the run has
    moved; None where there is nothing to ask.

    `until_s`: when this call ends, by `time.monotonic`. What is unanswered then waits for the next call. `answered`:
    the keys that it answered.
    """
    if time.monotonic() >= until_s:
        return False
    found = await _find_requests(call, run, answered)
    if not (found.completions or found.approvals):
        return None
    if found.completions and await call.app.client_requests.is_silent(run, call.caller):
        reason = "this client has left such a request without an answer before"
        return await call.app.client_requests.fall_back(run.id, reason, call.caller)
    if not call.client.modern:

        async def look_again() -> PushableRequests:
            return await _find_requests(call, await call.app.runs.find(run.id, call.caller), answered)

        return await push.push_all(call, found, look_again, until_s)
    rounds = call.resumed.rounds if call.resumed is not None else 0
    looks = call.app.tasks.is_looked_at(run, call.caller, MISSED_LOOKS * POLL_MS / 1000)
    stale_after_s = call.policy.stale_after_s if call.resumed is None and not looks else None
    return False if rounds >= call.policy.rounds else await _input_required(call, found, rounds + 1, stale_after_s)


async def has_requests(call: ServerCall, run: RunRow, answered: Collection[str]) -> bool:
    """Whether the client can be asked for something that its run, as it is now, waits for."""
    found = await _find_requests(call, run, answered)
    return bool(found.completions or found.approvals)


async def ask_through_task(
    call: ServerCall, run: RunRow, answered: Collection[str], *, takes_over: bool
) -> wire.InputRequests | bool:
    """Ask the client of a task what its run, as it is now, waits for. Returns the requests by their keys; without any,
    whether the run moves, or waits for another client that is being asked.

    `takes_over`: other clients are no longer asked. What this client has left without an answer for too long is added
    to `call.skipped`. A dialog stays as long as its approval: a user may take their time.
    """
    asks, requests, moves = call.app.client_requests, dict[str, wire.InputRequest](), False
    found = await _find_requests(call, run, answered)
    if found.completions and await asks.is_silent(run, call.caller):
        return await asks.fall_back(run.id, "this client has left such a request without an answer before", call.caller)
    outstanding = await asks.outstanding_requests(run, [waiting.path for waiting in found.completions])
    for waiting in found.completions:
        before = outstanding.get(waiting.path)
        if before is not None:
            is_mine = before.session == call.caller.session
            is_old = asks.now() - before.at >= call.policy.later_s * 1000
            if is_mine and is_old:
                if await _give_up(call, run, waiting.path, before.id):
                    return True
                continue
            if not (is_mine or is_old or takes_over):
                moves = True  # two clients that take turns at asking would charge the run for each turn
                continue
        asked = await _ask_once(call, PushableRequests(run, (waiting,), ()))
        moves = moves or asked is None
        requests |= asked or {}
    for question in found.approvals:
        requests |= await _ask_once(call, PushableRequests(run, (), (question,))) or {}
    return requests or moves


async def _ask_once(call: ServerCall, found: PushableRequests) -> wire.InputRequests | None:
    """Ask for one thing, and keep the request's state in its row; None where the run moves first."""
    match await _input_required(call, found, rounds=0, stale_after_s=None):
        case wire.InputRequiredResult(input_requests=requests, request_state=str() as state):
            (nonce,) = _state_of(state).nonces
            await call.app.tasks.keep_state(found.run, nonce, state)
            return requests
        case True:
            return None
        case _:
            return {}


def _state_of(sealed: str) -> ResumedRequest:
    state = ResumedRequest.from_sealed(sealed)
    assert state is not None
    return state


async def _give_up(call: ServerCall, run: RunRow, path: str, request: int) -> bool:
    """Withdraw a request that the client of a task has left without an answer. True if the run goes on without it."""
    asks, why = call.app.client_requests, f"the client did not answer within {call.policy.later_s:g} s"
    asks.mark_silent(call.caller)
    if await asks.fall_back(run.id, why, call.caller):
        return True
    await asks.withdraw_request(run.id, request, call.caller)
    call.skipped.add(path)
    return False


async def take_task_responses(call: ServerCall, states: Iterable[str], responses: Mapping[str, object]) -> None:
    """Store a client's responses to requests of its task, which have these states. What its model could not answer is
    added to `call.skipped`."""
    for sealed in states:
        state = _state_of(sealed)
        if not await take_responses(call, state, responses):
            _, asks = await call.app.client_requests.find_asks(state.run_id, state.nonces, call.caller, used=True)
            call.skipped.update(path for ask in asks for path in ask.keys.values())


async def _find_requests(call: ServerCall, run: RunRow, answered: Collection[str]) -> PushableRequests:
    """What the client can be asked now, by the capabilities that it declared.

    While the caller itself has something to answer, its user is asked only about the loops whose requests this call
    answered: a call about another branch would wait for the user's word in vain.
    """
    app, samples, elicits = call.app, call.client.samples and not call.client.refused, call.client.elicits
    if run.outcome is not None or not (samples or elicits):
        return PushableRequests(run, (), ())
    waiting = await app.runs.what_waits(run)
    completions = await app.client_requests.open_requests(run, waiting) if samples else []
    completions = [each for each in completions if each.path not in call.skipped]
    questions = await app.answers.open_questions(run, waiting, call.caller, call.skipped) if elicits else ()
    if answered and _waits_for_caller(run, waiting):
        loops = {loop_of(key) for key in answered}
        questions = [question for question in questions if loop_of(question.path) in loops]
    return PushableRequests(run, completions, questions)


async def waits_on_page(call: ServerCall, run: RunRow, keys: Collection[str]) -> bool:
    """Whether one of the approvals under these keys, which the user went to decide on the page, still waits there."""
    return any(approval.key in keys for approval in (await call.app.runs.what_waits(run)).approvals.values())


def _waits_for_caller(run: RunRow, waiting: WaitingItems) -> bool:
    """Whether there is a completion or a call that the caller itself answers."""
    return any(row.kind != "pause" and CALLER.name in (run.route, row.sent.route) for row in waiting.steps.values())


async def take_responses(call: ServerCall, resumed: ResumedRequest, responses: Mapping[str, object] | None) -> bool:
    """Store a client's responses to what it was asked. False if its model refused and the run's route was fixed.

    Unknown keys are ignored; keys that are missing, or answered with another kind, are asked again.
    """
    if not responses:
        return True
    refusal = None
    run, asks = await call.app.client_requests.find_asks(resumed.run_id, resumed.nonces, call.caller)
    for ask in asks:
        answers = {path: responses.get(key) for key, path in ask.keys.items()}
        if any(is_approval_key(path) or settlements.is_settlement_key(path) for path in answers):
            await _take_decisions(call, resumed, ask.nonce, answers)
        else:
            refusal = await _take_completions(call, resumed, run, ask, answers)
    return refusal is None or await call.app.client_requests.fall_back(resumed.run_id, refusal, call.caller)


async def _take_completions(
    call: ServerCall, resumed: ResumedRequest, run: RunRow, ask: AskRow, answers: Mapping[str, object]
) -> str | None:
    """Store completions; return why the client's model refused, if it did."""
    asks = call.app.client_requests
    replies: dict[str, ClientReply] = {}
    refusal = None
    for path, reply in answers.items():
        step = await asks.asked_step(run, path)
        match reply:
            case wire.CreateMessageResult() | wire.CreateMessageResultWithTools() if step is not None:
                try:
                    completion = sampling.parse_sampling_reply(reply, step, path, resumed.dialect)
                    replies[path] = ClientReply(completion, dialect=resumed.dialect)
                except BadSamplingReply as error:
                    refusal = error.reason
            case _:
                pass
    await asks.take(run, ask, replies, call.caller)
    return refusal


async def _take_decisions(call: ServerCall, resumed: ResumedRequest, nonce: str, answers: Mapping[str, object]) -> None:
    took_s = (call.app.client_requests.now() - resumed.at) / 1000
    decisions: dict[str, UserDecision | SettlementRequest] = {}
    dialogs = {key: (digest, shown) for key, digest, shown in resumed.dialogs}
    for key, reply in answers.items():
        if not isinstance(reply, wire.ElicitResult) or key not in dialogs:
            continue
        digest, shown = dialogs[key]
        decision = elicitation.read_decision(key, digest, shown, reply, took_s, call.policy.instant_s)
        if isinstance(decision, UserDecision | SettlementRequest):
            decisions[key] = decision
            continue
        call.skipped.update(answers if decision == "too_soon" else (key,))
        if decision == "on_page":
            call.on_page.add(key)
        elif decision != "unclear":
            too_soon = decision == "too_soon"
            await call.app.answers.mark_ignored(resumed.run_id, key, digest, call.caller, too_soon=too_soon)
    await call.app.answers.take_decisions(resumed.run_id, decisions, call.caller, nonce=nonce)


async def _input_required(
    call: ServerCall, found: PushableRequests, rounds: int, stale_after_s: float | None
) -> wire.InputRequiredResult | bool:
    """Make the result that asks the client, or fall back.

    A client that calls again without a requestState, `stale_after_s` after it was asked, has refused."""
    asks, run = call.app.client_requests, found.run
    requests: wire.InputRequests = {}
    nonces = []
    dialogs = list[tuple[str, str, DialogView]]()
    if found.completions:
        row = await asks.create_ask(run, found.completions, call.caller, stale_after_s=stale_after_s)
        if row is None:
            asks.mark_silent(call.caller)
            return await asks.fall_back(run.id, "the client called again without an answer", call.caller)
        if isinstance(row, RequestOutcome):
            await asks.wait_for_change(run.id)
            return True  # the request to another session has to be charged first
        dialect, by_path = call.client.dialect, {request.path: request for request in found.completions}
        for key, path in row.keys.items():
            request = by_path[path]
            requests[key] = sampling.make_sampling_request(request.step, request.sent, dialect, request.prompts)
        nonces.append(row.nonce)
    if found.approvals:
        row = await call.app.answers.create_ask(run, found.approvals, call.caller, stale_after_s=stale_after_s)
        by_key = {question.key: question for question in found.approvals}
        if row is None:
            call.skipped.update(by_key)
        else:
            for request_key, key in row.keys.items():
                requests[request_key], shown = await push.lay_out_dialog(call, run.id, by_key[key])
                dialogs.append((key, by_key[key].digest, shown))
            nonces.append(row.nonce)
    if not requests:
        return False
    skipped = tuple(sorted(call.skipped))
    state = ResumedRequest(
        run.id, tuple(nonces), rounds, call.client.dialect, asks.now(), skipped, tuple(dialogs)
    ).as_sealed()
    return wire.InputRequiredResult(input_requests=requests, request_state=state)
