"""Change runs: answers and decisions for what waits, and control requests for whoever owns the run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import apsw

from kairos_mcp.app import answers as answering
from kairos_mcp.app.context import AppContext
from kairos_mcp.app.run_pool import IDLE_POLL_S, POLL_S
from kairos_mcp.core import placeholders, redact_values
from kairos_mcp.core.decision_rights import Settlement, Verdict
from kairos_mcp.core.errors import AlreadyAnswered, ApprovalExpired, BadArguments, KairosError, NotFound, NotWaiting
from kairos_mcp.core.identity import Caller
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.outcome import Outcome
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.specs import build
from kairos_mcp.store import approvals, decisions, ownership, queries, settlements
from kairos_mcp.store.accounts import read_account
from kairos_mcp.store.approvals import ApprovalRow
from kairos_mcp.store.codec import decode, decode_answer, encode
from kairos_mcp.store.decisions import Decision
from kairos_mcp.store.inbox import Action, SubmittedAnswer, submit_request
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.settlements import KEY_SUFFIX, SettlementRequest
from kairos_mcp.views.waiting import decision_command

CONTROL_POLL_S = 1.0
MAX_NAMED_KEYS = 8  # waiting keys in one refusal
CONTROL_TIMEOUT_S = 5.0  # how long a control request waits until it is carried out
ALLOWED_ANYWHERE = ("pause", "cancel")  # stopping a run is allowed wherever its folder is
PICK_UP_TIMEOUT_S = 3 * IDLE_POLL_S  # how long a command waits for a server to go on with what it wrote


async def answer(
    context: AppContext, run_id: str, answers: Mapping[str, object], caller: Caller, *, drive: bool = True
) -> None:
    """Submit answers and decisions for what waits, as `App.answer` does."""
    await context.register_use()
    placeholders.refuse_placeholders(dict(answers))
    answers = {key: redact_values.redact_answer(value, context.factory.redactor) for key, value in answers.items()}
    run = context.find_run_to_move(run_id, caller)
    with queries.name_run_in_errors(run):
        steps, decided, settled = answering.split_answers(
            answers, lambda key: _is_approval(context, run, key), caller.actor
        )
        _check_may_decide(context, run, decided, settled, caller)
        approved = approvals.newest_approvals(context.store.reader, run.n) if steps else {}
        try:
            deposits = answering.make_deposits(
                _unanswered_steps(context, run, steps),
                context.open_steps(run),
                approved,
                run_id,
                context.settings.shown_chars,
            )
        except (NotWaiting, AlreadyAnswered) as stale:
            raise type(stale)(stale.message, _describe_waiting(context, run), run_id=run.id) from stale
    if deposits or decided or settled:
        await _submit_responses(context, run, deposits, decided, caller, drive=drive, settled=settled)


async def decide(
    context: AppContext,
    run_id: str,
    key: str,
    verdict: Verdict,
    feedback: str | None,
    caller: Caller,
    *,
    digest: str | None = None,
    drive: bool = True,
) -> ApprovalRow:
    """Record a person's decision about an approval, as `App.decide` does."""
    await context.register_use()
    run = context.find_run_to_move(run_id, caller)
    with queries.name_run_in_errors(run):
        found = approvals.find_by_key(context.store.reader, run.n, key)
    if found is None:
        waiting = ", ".join(approvals.read_waiting_items(context.store.reader, run.n).approvals) or "none"
        raise NotWaiting(f"No approval waits under {key[:120]!r}.", f"Waiting: {waiting}.", run_id=run.id)
    redacted = context.factory.redactor.redact_text(feedback).text if feedback else None
    decision = Decision(key, verdict, digest or found.digest, caller.actor, redacted)
    await _submit_responses(context, run, [], [decision], caller, drive=drive)
    return found


async def _submit_responses(
    context: AppContext,
    run: RunRow,
    deposits: Sequence[SubmittedAnswer],
    decided: Sequence[Decision],
    caller: Caller,
    *,
    drive: bool,
    settled: Sequence[SettlementRequest] = (),
) -> None:
    """Store answers and decisions, all or none, and make sure that somebody goes on with the run.

    Every decision passes here, whether a command or a tool brings it; those of dialogs pass `ClientRequests.decide`.
    """
    _check_may_decide(context, run, decided, settled, caller)
    context.check_server_runs(run)
    at, dead = context.clock(), context.dead_owners(run)
    drives_here = drive and not context.is_served_elsewhere(run) and context.can_drive(run)
    owner = await context.store.register_owner(at) if drives_here else ownership.ANY_SERVER
    route = "caller" if caller.via == "mcp" else caller.via

    try:
        with queries.name_run_in_errors(run):
            fence = await context.store.submit(
                lambda connection: decisions.record_responses(
                    connection,
                    run,
                    deposits,
                    decided,
                    route,
                    owner,
                    at,
                    dead=dead,
                    settlement_requests=settled,
                    actor=caller.actor,
                )
            )
    except ApprovalExpired:
        await expire_approvals(context)
        raise
    context.pool.continue_run(run, owner, fence)


def _check_may_decide(
    context: AppContext, run: RunRow, decided: Sequence[Decision], settled: Sequence[SettlementRequest], caller: Caller
) -> None:
    """Raise ApprovalRequired if this caller may not decide: it may be the very model that wants the call."""
    for decision in decided:
        context.check_may_decide("approval", caller, decision_command(run, decision.key), run_id=run.id)
    for settlement in settled:
        command = decision_command(run, settlement.path + KEY_SUFFIX)
        context.check_may_decide("settlement", caller, command, run_id=run.id)


async def expire_approvals(context: AppContext) -> None:
    """Mark the approvals that nobody decided in time as expired; their runs then go on."""
    at = context.clock()
    if await context.store.submit(lambda connection: decisions.expire_overdue(connection, at)):
        await context.register_use()


def _describe_waiting(context: AppContext, run: RunRow) -> str:
    """Say what waits now, for a caller whose answer came too late."""
    if run.outcome is not None:
        return "The run has ended; run_status shows what it came to."
    waiting = approvals.read_waiting_items(context.store.reader, run.n)
    open_steps = [path for path, row in waiting.steps.items() if row.kind != "pause"]
    keys = [*open_steps, *waiting.approvals, *(path + KEY_SUFFIX for path in waiting.lost_calls)]
    more = f" and {len(keys) - MAX_NAMED_KEYS} more" if len(keys) > MAX_NAMED_KEYS else ""
    text = f"Waiting now: {', '.join(keys[:MAX_NAMED_KEYS])}{more}." if keys else "Nothing waits for an answer now."
    return f"{text} run_status shows where the run stands."


def _is_approval(context: AppContext, run: RunRow, key: str) -> bool:
    return approvals.find_by_key(context.store.reader, run.n, key) is not None


def _unanswered_steps(context: AppContext, run: RunRow, answers: Mapping[str, object]) -> dict[str, object]:
    """Return the answers for steps that have none yet; an answer that repeats the recorded one is dropped."""
    unanswered = {}
    for path, value in answers.items():
        body = queries.answer_body_at(context.store.reader, run.n, path)
        if body is None:
            unanswered[path] = value
        else:
            answering.check_repeated_answer(path, value, decode_answer(body), run.id, context.settings.shown_chars)
    return unanswered


async def control(
    context: AppContext,
    run_id: str,
    action: Action,
    caller: Caller,
    *,
    limits: Limits | None = None,
    route: str | None = None,
) -> None:
    """Submit a control request, as `App.control` does."""
    await context.register_use()
    run = context.find_run(run_id, caller) if action in ALLOWED_ANYWHERE else context.find_run_to_move(run_id, caller)
    with queries.name_run_in_errors(run):
        if run.outcome is not None and action == "cancel" and decode(Outcome, run.outcome).status == "cancelled":
            return
        body, reason = _request_body(context, run, action, limits, route, caller)
    if action == "reroute":
        # Somebody who sends a run to this route wants it to be tried, however silent the client was before.
        context.client_states.state_of(caller.session).is_silent = False
    context.check_server_runs(run)
    at, dead = context.clock(), context.dead_owners(run)
    rerouted = replace(run, route=body) if action == "reroute" else run  # a process that has the new route may drive
    drives_here = action == "cancel" or (not context.is_served_elsewhere(run) and context.can_drive(rerouted))
    owner = await context.store.register_owner(at) if drives_here else ownership.ANY_SERVER

    def submit(connection: apsw.Connection) -> int | None:
        what, why = body, reason
        if action == "extend" and limits:  # again, within the transaction: another extension may have come since
            what, why = _extend_caps(context, run, limits, connection)
        return submit_request(connection, run, action, what, caller.actor, owner, at, reason=why, dead=dead)

    with queries.name_run_in_errors(run):
        fence = await context.store.submit(submit)
    try:
        context.pool.continue_run(run, owner, fence, interrupt=action == "cancel")
    except KairosError:  # its state can't be rebuilt from its rows, so it is cancelled by them alone
        if action != "cancel" or fence is None:
            raise
        await context.pool.force_cancel(run, fence)
    until_s = time.monotonic() + CONTROL_TIMEOUT_S
    while context.pool.is_moving(run.n) and queries.pending_requests(context.store.reader, run.n):
        if time.monotonic() >= until_s:
            return  # the request is in the rows; the run's worker is busy and reads it next
        await context.pool.change_signal.wait(CONTROL_POLL_S)


def _request_body(
    context: AppContext, run: RunRow, action: Action, limits: Limits | None, route: str | None, caller: Caller
) -> tuple[str, str | None]:
    """Return the body of a control request, and a note where it is carried out otherwise than requested."""
    match action:
        case "extend":
            return _extend_caps(context, run, limits or Limits(), context.store.reader)
        case "reroute":
            cap = read_account(context.store.reader, run.account).caps.nano_usd
            has_own_cap = cap is not None and cap != context.settings.limits.nano_usd
            available = context.factory.available_routes(run, samples=caller.samples)
            chosen, notes = build.choose_priced_route(route or "auto", available, priced=has_own_cap)
            if has_own_cap or (cap is not None and chosen == "provider"):
                _refuse_unpriced(context, run, chosen)
            if chosen == "provider" and context.settings.day.nano_usd is not None:
                _refuse_unpriced(context, run, chosen, "day.usd")
            return chosen, notes[0] if notes else None
        case "pause":
            return "asked", None
        case _:
            return "", None


def _extend_caps(context: AppContext, run: RunRow, more: Limits, connection: apsw.Connection) -> tuple[str, str | None]:
    """Return the caps after adding `more`, within what the configuration allows, and a note about what was cut.

    Extensions that the run's owner has not read yet count too, so that of two at once none is lost. Raises
    BadArguments.
    """
    if more.nano_usd is not None:
        _refuse_unpriced(context, run, run.route)
    current = asdict(read_account(connection, run.account).caps)
    for earlier in queries.pending_requests(connection, run.n):
        if earlier.kind == "extend":
            requested = asdict(decode(Limits, earlier.body))
            current |= {unit: max(cap, current[unit]) for unit, cap in requested.items() if cap}
    caps = {unit: current[unit] + added for unit, added in asdict(more).items() if added and current[unit] is not None}
    if not caps:
        raise BadArguments("None of these limits is set on this run.", "run_status shows them under `remaining`.")
    allowed = asdict(context.settings.limits)
    within = {unit: cap if allowed[unit] is None else min(cap, allowed[unit]) for unit, cap in caps.items()}
    cut = [f"limits.{unit} is {within[unit]}, not {cap}" for unit, cap in caps.items() if within[unit] < cap]
    note = f"Extended to what the configuration allows: {', '.join(cut)}." if cut else None
    return encode(Limits(**within)), note


def _refuse_unpriced(context: AppContext, run: RunRow, route: str, limit: str = "limits.usd") -> None:
    model = decode(Spec, run.spec).model or context.settings.model
    build.refuse_unpriced(route, model, context.settings, limit)


async def resume(context: AppContext, run_id: str, caller: Caller) -> None:
    """Resume a run as a person's command may: one that was paused, or whose server has ended.

    A run that waits for an answer, moves or has ended stays as it is. Raises UnknownRun, Busy.
    """
    run = context.find_run(run_id, caller)
    context.check_server_runs(run)
    if run.outcome is None and _is_paused(context, run):
        await control(context, run_id, "resume", caller)
    await drive(context, run_id)


def _is_paused(context: AppContext, run: RunRow) -> bool:
    """Whether the run was paused, by a person, by an exhausted account, or by its flow."""
    if run.paused is not None or run.resume_at is not None:
        return True
    with queries.name_run_in_errors(run):
        return any(
            row.kind == "pause" for row in approvals.read_waiting_items(context.store.reader, run.n).steps.values()
        )


async def drive(context: AppContext, run_id: str) -> None:
    """Make sure that somebody drives a run. Raises UnknownRun.

    A living server that has its folder goes first: it has a moment to take the run, and acts by its own settings. Else
    this command does, if it has what the run needs.
    """
    run = queries.run_by_id(context.store.reader, run_id)
    if run.outcome is not None or context.pool.is_moving(run.n):
        return
    if context.is_served_elsewhere(run) or not context.can_drive(run):
        await _wait_until_picked_up(context, run)
        run = queries.run_by_number(context.store.reader, run.n)
        if run.outcome is not None or not context.dead_owners(run):
            return
    if context.can_drive(run):
        dead = ownership.dead_owners(context.store.reader, context.store.home, context.store.owner_number)
        await context.pool.take_over(run, dead)


async def _wait_until_picked_up(context: AppContext, run: RunRow) -> None:
    """Return once a server has taken the run over, or has ended it; after PICK_UP_TIMEOUT_S at the latest."""
    until_s = time.monotonic() + PICK_UP_TIMEOUT_S
    while run.outcome is None and context.dead_owners(run) and time.monotonic() < until_s:
        await context.pool.change_signal.wait(POLL_S)
        run = queries.run_by_number(context.store.reader, run.n)


async def release(context: AppContext, owner: int, caller: Caller) -> int:
    """Take all unfinished runs from a server, for the next one, and return how many.

    Raises NotFound, ApprovalRequired.
    """
    context.check_may_decide("release", caller, f"kairos-mcp status --release {owner}")
    if all(server.number != owner for server in ownership.list_living(context.store.reader, context.store.home)):
        raise NotFound(f"No server that lives has the number {owner}.", "`kairos-mcp status` lists those that do.")
    return await context.store.submit(lambda connection: ownership.release_runs(connection, owner))


async def settle(
    context: AppContext,
    run_id: str,
    key: str,
    settlement: Settlement,
    note: str | None,
    caller: Caller,
    *,
    digest: str | None = None,
    drive: bool = True,
) -> None:
    """Resolve a call of unknown outcome, as `App.settle` does."""
    await context.register_use()
    run, path = context.find_run_to_move(run_id, caller), key.removesuffix(KEY_SUFFIX)
    with queries.name_run_in_errors(run):
        shown_digest = digest or settlements.current_digest(context.store.reader, run, path) or ""
    redacted = note and context.factory.redactor.redact_text(note).text
    request = SettlementRequest(path, settlement, redacted, shown_digest)
    await _submit_responses(context, run, [], [], caller, drive=drive, settled=[request])
