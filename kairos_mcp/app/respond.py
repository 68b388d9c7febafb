"""Changes runs: answers for what waits, and wishes for whoever owns them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import apsw

from kairos_mcp.app import answers as answering
from kairos_mcp.app.context import AppContext
from kairos_mcp.app.run_pool import IDLE_LOOK_S, LOOK_S
from kairos_mcp.core import placeholders, redact_values
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
from kairos_mcp.store.decisions import Decision, Verdict
from kairos_mcp.store.inbox import Action, AnswerDeposit, submit_request
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.settlements import KEY_SUFFIX, Settlement, SettlementRequest
from kairos_mcp.views.shell_commands import command_of

BEAT_S = 1.0
NAMED = 8  # waiting keys in one refusal
TAKEN_UP_S = 5.0  # how long a control call waits until its wish shows
FROM_ANYWHERE = ("pause", "cancel")  # what stops a run is in order wherever its folder is
PICKED_UP_S = 3 * IDLE_LOOK_S  # how long a command waits for a server that goes on with what it has left


async def answer(
    context: AppContext, run_id: str, answers: Mapping[str, object], caller: Caller, *, drive: bool = True
) -> None:
    """Deposit answers and decisions for what waits; all are checked before any is stored.

    `drive=False` leaves the run to whoever finds it. Raises UnknownRun, NotWaiting, AlreadyAnswered, BadArguments, and
    for decisions ApprovalRequired, ApprovalMismatch, ApprovalExpired.
    """
    await context.register_use()
    placeholders.refuse_placeholders(dict(answers))
    answers = {key: redact_values.redact_answer(value, context.factory.mask) for key, value in answers.items()}
    run = context.find_run_to_move(run_id, caller)
    with queries.name_run_in_errors(run):
        steps, said, settled = answering.split(answers, lambda key: _is_approval(context, run, key), caller.actor)
        _check_may_decide(context, run, said, settled, caller)
        approved = approvals.newest_approvals(context.store.reader, run.n) if steps else {}
        try:
            deposits = answering.deposits(
                _unanswered_steps(context, run, steps),
                context.open_steps(run),
                approved,
                run_id,
                context.settings.shown_chars,
            )
        except (NotWaiting, AlreadyAnswered) as stale:
            raise type(stale)(stale.message, _waits_now(context, run), run_id=run.id) from stale
    if deposits or said or settled:
        await _leave(context, run, deposits, said, caller, drive=drive, settled=settled)


async def decide(
    context: AppContext,
    run_id: str,
    key: str,
    said: Verdict,
    feedback: str | None,
    caller: Caller,
    *,
    digest: str | None = None,
    drive: bool = True,
) -> ApprovalRow:
    """A person's decision about what waits under this key, as it was shown to them; gives the approval. `digest`: of
    what they were shown; None: they name it by its whole key, under which nothing else can wait.

    Raises UnknownRun, NotWaiting, ApprovalRequired, ApprovalMismatch, ApprovalExpired, AlreadyAnswered.
    """
    await context.register_use()
    run = context.find_run_to_move(run_id, caller)
    with queries.name_run_in_errors(run):
        found = approvals.find_by_key(context.store.reader, run.n, key)
    if found is None:
        waiting = ", ".join(approvals.read_waiting_items(context.store.reader, run.n).approvals) or "none"
        raise NotWaiting(f"No approval waits under {key[:120]!r}.", f"Waiting: {waiting}.", run_id=run.id)
    told = context.factory.mask.redact_text(feedback).text if feedback else None
    decided = Decision(key, said, digest or found.digest, caller.actor, told)
    await _leave(context, run, [], [decided], caller, drive=drive)
    return found


async def _leave(
    context: AppContext,
    run: RunRow,
    deposits: Sequence[AnswerDeposit],
    said: Sequence[Decision],
    caller: Caller,
    *,
    drive: bool,
    settled: Sequence[SettlementRequest] = (),
) -> None:
    """Leave answers and decisions, all or none, and see to it that somebody goes on with the run. Whatever door a
    decision comes through, it passes here; those of dialogs come through `Asks`."""
    _check_may_decide(context, run, said, settled, caller)
    context.check_awake(run)
    at, dead = context.clock(), context.dead_owner(run)
    drives = drive and not context.is_served(run) and context.may_drive(run)
    mine = await context.store.register_owner(at) if drives else ownership.NOBODY
    by = "caller" if caller.via == "mcp" else caller.via

    try:
        with queries.name_run_in_errors(run):
            fence = await context.store.submit(
                lambda connection: decisions.record_responses(
                    connection,
                    run,
                    deposits,
                    said,
                    by,
                    mine,
                    at,
                    dead=dead,
                    settlement_requests=settled,
                    actor=caller.actor,
                )
            )
    except ApprovalExpired:
        await expire(context)
        raise
    context.pool.continue_run(run, mine, fence)


def _check_may_decide(
    context: AppContext, run: RunRow, said: Sequence[Decision], settled: Sequence[SettlementRequest], caller: Caller
) -> None:
    """Whoever calls a tool may be the model that wants the call. Raises ApprovalRequired."""
    for decision in said:
        context.check_may_decide("approval", caller, command_of(run, decision.key), run_id=run.id)
    for each in settled:
        context.check_may_decide("settlement", caller, command_of(run, each.path + KEY_SUFFIX), run_id=run.id)


async def expire(context: AppContext) -> None:
    """Give the approvals that nobody decided about in time their verdict; their runs go on by it."""
    at = context.clock()
    if await context.store.submit(lambda connection: decisions.expire_overdue(connection, at)):
        await context.register_use()


def _waits_now(context: AppContext, run: RunRow) -> str:
    """The note for whoever answers too late, in place of what they answered."""
    if run.outcome is not None:
        return "The run has ended; run_status shows what it came to."
    waits = approvals.read_waiting_items(context.store.reader, run.n)
    open_steps = [path for path, row in waits.steps.items() if row.kind != "pause"]
    keys = [*open_steps, *waits.approvals, *(path + KEY_SUFFIX for path in waits.lost_calls)]
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    named = f"Waiting now: {', '.join(keys[:NAMED])}{more}." if keys else "Nothing waits for an answer now."
    return f"{named} run_status shows where the run stands."


def _is_approval(context: AppContext, run: RunRow, key: str) -> bool:
    return approvals.find_by_key(context.store.reader, run.n, key) is not None


def _unanswered_steps(context: AppContext, run: RunRow, answers: Mapping[str, object]) -> dict[str, object]:
    """The answers for steps that have none yet; the same one again is passed over."""
    fresh = {}
    for path, value in answers.items():
        body = queries.answer_body_at(context.store.reader, run.n, path)
        if body is None:
            fresh[path] = value
        else:
            answering.check_repeated_answer(path, value, decode_answer(body), run.id, context.settings.shown_chars)
    return fresh


async def control(
    context: AppContext,
    run_id: str,
    action: Action,
    caller: Caller,
    *,
    limits: Limits | None = None,
    route: str | None = None,
) -> None:
    """Leave a wish for the run's owner, or carry it out where nobody owns it. Raises Stale, BadArguments."""
    await context.register_use()
    run = context.find_run(run_id, caller) if action in FROM_ANYWHERE else context.find_run_to_move(run_id, caller)
    with queries.name_run_in_errors(run):
        if run.outcome is not None and action == "cancel" and decode(Outcome, run.outcome).status == "cancelled":
            return
        body, because = _wish_body(context, run, action, limits, route, caller)
    if action == "reroute":
        context.sessions.state_of(caller.session).silent = False  # whoever sends a run there wants it to be tried
    context.check_awake(run)
    at, dead = context.clock(), context.dead_owner(run)
    then = replace(run, route=body) if action == "reroute" else run  # who has the new route may go that way
    drives = action == "cancel" or (not context.is_served(run) and context.may_drive(then))
    mine = await context.store.register_owner(at) if drives else ownership.NOBODY

    def left(connection: apsw.Connection) -> int | None:
        say, why = _extend_caps(context, run, limits, connection) if action == "extend" and limits else (body, because)
        return submit_request(connection, run, action, say, caller.actor, mine, at, reason=why, dead=dead)

    with queries.name_run_in_errors(run):
        fence = await context.store.submit(left)
    try:
        context.pool.continue_run(run, mine, fence, interrupt=action == "cancel")
    except KairosError:  # nothing can be built from its rows: they alone end it
        if action != "cancel" or fence is None:
            raise
        await context.pool.break_off(run, fence)
    until_s = time.monotonic() + TAKEN_UP_S
    while context.pool.moves(run.n) and queries.pending_requests(context.store.reader, run.n):
        if time.monotonic() >= until_s:
            return  # the wish is in the rows; its driver is busy and takes it up next
        await context.pool.bell.wait(BEAT_S)


def _wish_body(
    context: AppContext, run: RunRow, action: Action, limits: Limits | None, route: str | None, caller: Caller
) -> tuple[str, str | None]:
    """What the wish says, and what is noted with it: where it is carried out otherwise than asked."""
    match action:
        case "extend":
            return _extend_caps(context, run, limits or Limits(), context.store.reader)
        case "reroute":
            capped = read_account(context.store.reader, run.account).caps.nano_usd
            own = capped is not None and capped != context.settings.limits.nano_usd
            there = context.factory.minds(run, samples=caller.samples)
            taken, said = build.choose_priced_route(route or "auto", there, priced=own)
            if own or (capped is not None and taken == "provider"):
                _refuse_unpriced(context, run, taken)
            if taken == "provider" and context.settings.day.nano_usd is not None:
                _refuse_unpriced(context, run, taken, "day.usd")
            return taken, said[0] if said else None
        case "pause":
            return "asked", None
        case _:
            return "", None


def _extend_caps(context: AppContext, run: RunRow, more: Limits, connection: apsw.Connection) -> tuple[str, str | None]:
    """The caps after adding `more`, within what the configuration allows, and what was cut; on top of extensions that
    the run's owner has not taken up yet, so that of two that come at once none is lost. Raises BadArguments."""
    if more.nano_usd is not None:
        _refuse_unpriced(context, run, run.route)
    now = asdict(read_account(connection, run.account).caps)
    for earlier in queries.pending_requests(connection, run.n):
        if earlier.kind == "extend":
            now |= {unit: max(cap, now[unit]) for unit, cap in asdict(decode(Limits, earlier.body)).items() if cap}
    caps = {unit: now[unit] + added for unit, added in asdict(more).items() if added and now[unit] is not None}
    if not caps:
        raise BadArguments("None of these limits is set on this run.", "run_status shows them under `remaining`.")
    allowed = asdict(context.settings.limits)
    within = {unit: cap if allowed[unit] is None else min(cap, allowed[unit]) for unit, cap in caps.items()}
    cut = [f"limits.{unit} is {within[unit]}, not {cap}" for unit, cap in caps.items() if within[unit] < cap]
    because = f"Extended to what the configuration allows: {', '.join(cut)}." if cut else None
    return encode(Limits(**within)), because


def _refuse_unpriced(context: AppContext, run: RunRow, route: str, limit: str = "limits.usd") -> None:
    model = decode(Spec, run.spec).model or context.settings.model
    build.refuse_unpriced(route, model, context.settings, limit)


async def resume(context: AppContext, run_id: str, caller: Caller) -> None:
    """Go on with a run as a person's command may: with one that was paused, and with one whose server has ended. One
    that waits for an answer, moves or has ended stays as it is. Raises UnknownRun, Busy."""
    run = context.find_run(run_id, caller)
    context.check_awake(run)
    if run.outcome is None and _is_paused(context, run):
        await control(context, run_id, "resume", caller)
    await drive_here(context, run_id)


def _is_paused(context: AppContext, run: RunRow) -> bool:
    """By a person, by an empty account, or by its flow, which waits for leave to go on."""
    if run.paused is not None or run.resume_at is not None:
        return True
    with queries.name_run_in_errors(run):
        return any(
            row.kind == "pause" for row in approvals.read_waiting_items(context.store.reader, run.n).steps.values()
        )


async def drive_here(context: AppContext, run_id: str) -> None:
    """See to it that somebody drives a run: a server that lives and has its folder, which acts by its own settings and
    is given a moment to take it; else this command, where it has what that takes. Raises UnknownRun."""
    run = queries.run_by_id(context.store.reader, run_id)
    if run.outcome is not None or context.pool.moves(run.n):
        return
    if context.is_served(run) or not context.may_drive(run):
        await _wait_until_picked_up(context, run)
        run = queries.run_by_number(context.store.reader, run.n)
        if run.outcome is not None or not context.dead_owner(run):
            return
    if context.may_drive(run):
        dead = ownership.dead_owners(context.store.reader, context.store.home, context.store.owner_number)
        await context.pool.take(run, dead)


async def _wait_until_picked_up(context: AppContext, run: RunRow) -> None:
    """Return once a server has taken the run, be it that it is done with it; at the latest after PICKED_UP_S."""
    until_s = time.monotonic() + PICKED_UP_S
    while run.outcome is None and context.dead_owner(run) and time.monotonic() < until_s:
        await context.pool.bell.wait(LOOK_S)
        run = queries.run_by_number(context.store.reader, run.n)


async def release(context: AppContext, owner: int, caller: Caller) -> int:
    """Take all unfinished runs from an owner, for whoever comes next; gives how many. Raises NotFound,
    ApprovalRequired."""
    context.check_may_decide("release", caller, f"kairos-mcp status --release {owner}")
    if all(each.number != owner for each in ownership.list_living(context.store.reader, context.store.home)):
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
    """Say of a call whose end nobody knows whether it is to be made again, or was done already. `digest`: of what was
    shown; None: what waits under the key now is meant. Raises NotWaiting, ApprovalRequired, ApprovalMismatch,
    AlreadyAnswered."""
    await context.register_use()
    run, path = context.find_run_to_move(run_id, caller), key.removesuffix(KEY_SUFFIX)
    with queries.name_run_in_errors(run):
        meant = digest or settlements.current_digest(context.store.reader, run, path) or ""
    said = SettlementRequest(path, settlement, note and context.factory.mask.redact_text(note).text, meant)
    await _leave(context, run, [], [], caller, drive=drive, settled=[said])
