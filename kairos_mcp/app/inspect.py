"""Read runs: their reports, traces and exports, and the wait until one of them has changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kairos_mcp.app.context import AppContext
from kairos_mcp.core.decision_rights import may_decide
from kairos_mcp.core.errors import ReplayDiffers, Stale, StoreCorrupt, Unreadable
from kairos_mcp.core.identity import Caller
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.steps import RecordedStep
from kairos_mcp.execution.worker import replay_mismatch
from kairos_mcp.history import replay_check
from kairos_mcp.history.replay_check import RecordedEntry, Recording, ReplayReport
from kairos_mcp.specs import load_ooda
from kairos_mcp.store import approvals, ownership, queries, report_queries, settlements
from kairos_mcp.store.accounts import read_account
from kairos_mcp.store.codec import decode_answer
from kairos_mcp.store.connection import fetch_all
from kairos_mcp.store.queries import RunRow, StepRow
from kairos_mcp.views.mandate_view import find_tool_name
from kairos_mcp.views.next_action import Decides
from kairos_mcp.views.run_report import (
    NOTHING_WAITS,
    Heartbeat,
    RunReport,
    ServerView,
    Steps,
    make_report,
    make_unreadable_report,
    newest_calls,
    run_status,
)
from kairos_mcp.views.trace import TraceInput, TraceQuery, trace
from kairos_mcp.views.transcript import Transcript, phase_transcripts

WaitUntil = Literal["rest", "attention", "news", "done"]
OnHeartbeat = Callable[[Heartbeat], Awaitable[None]]

HEARTBEAT_S = 1.0  # between two signs of life for a call that waits


@dataclass(frozen=True, slots=True)
class RunPurpose:
    """What a run is for: its goal (none for a single call), its mandate's id, its folder as the caller may see it, and
    its age in seconds."""

    run_id: str
    goal: str | None = None
    mandate: str | None = None
    workspace: str | None = None
    age_s: float = 0.0


def report_run(
    context: AppContext, run_id: str, caller: Caller, *, full: bool = True, attached: bool = False
) -> RunReport:
    """Return the report of a run, as `App.report` does."""
    return _complete_commands(context, _read_report(context, run_id, caller, full=full, attached=attached), caller)


def _complete_commands(context: AppContext, found: RunReport, caller: Caller) -> RunReport:
    """Make the commands in a report ready to paste, if the caller is the person who owns the state folder."""
    if not caller.is_local:
        return found
    commands = context.command_line
    items = [
        {**item, "command": commands.complete(item["command"])} if "command" in item else item for item in found.waiting
    ]
    next_call = None if found.next is None else {**found.next, "why": commands.complete_all(found.next["why"])}
    return replace(
        found,
        summary=commands.complete_all(found.summary) if found.status == "paused" and found.summary else found.summary,
        waiting=tuple(items),
        degraded=tuple(map(commands.complete_all, found.degraded)),
        next=next_call,
    )


def _read_report(context: AppContext, run_id: str, caller: Caller, *, full: bool, attached: bool) -> RunReport:
    run = context.find_run(run_id, caller)
    steps = (lambda: context.waiting_steps(run)) if full else None
    view = replace(_server_view(context, run, attached), decides=_who_decides(context, run, caller), caller=caller)
    try:
        return _report(context, run, view, steps)
    except (Stale, StoreCorrupt) as error:  # it can't go on; what its rows say is shown all the same
        view = replace(view, trouble=error)
    try:
        return _report(context, run, view, None)
    except Unreadable:
        return make_unreadable_report(context.store.reader, run, view)


def _report(context: AppContext, run: RunRow, view: ServerView, steps: Steps | None) -> RunReport:
    with queries.name_run_in_errors(run):
        return make_report(context.store.reader, run, view, steps)


def _server_view(context: AppContext, run: RunRow, attached: bool = False) -> ServerView:
    is_moving = context.pool.is_moving(run.n)
    owner_lives = is_moving or (
        run.owner is not None and ownership.is_owner_alive(context.store.reader, context.store.home, run.owner)
    )
    is_overdue = run.resume_at is not None and queries.is_due(run.resume_at, context.clock())
    needs_server = run.outcome is None and (run.owner is not None or is_overdue) and not owner_lives
    missing = tuple(context.factory.missing_requirements(run, by_hand=context.is_command)) if needs_server else ()
    is_elsewhere = owner_lives and not is_moving and run.outcome is None
    stopped = context.stopped_server_error(run) if is_elsewhere else None
    trouble, backing_off = context.pool.stall_error(run.n) or stopped, tuple(context.pool.failed_attempts(run.n))
    return ServerView(owner_lives, trouble, missing, attached, at=context.clock(), backing_off=backing_off)


async def wait(
    context: AppContext,
    run_ids: Sequence[str],
    *,
    until: WaitUntil,
    wait_s: float,
    caller: Caller,
    on_heartbeat: OnHeartbeat | None = None,
    since: Mapping[str, int] | None = None,
) -> None:
    """Block until the runs are in the state `until`, as `App.wait` does.

    For `news`, a run without a number in `since` counts as changed once it waits, is paused or has ended.
    """
    await context.register_use()
    await asyncio.sleep(0)  # a caller that asks in a loop must let others run
    runs_now = [context.find_run(run_id, caller) for run_id in run_ids]
    for run in runs_now:
        context.pool.retry_run(run.n)
    until_s = time.monotonic() + wait_s
    last_heartbeat_s = 0.0
    while not _is_reached(context, until, runs_now, since or {}):
        now = time.monotonic()
        if now >= until_s:
            return
        if on_heartbeat is not None and now - last_heartbeat_s >= HEARTBEAT_S:
            last_heartbeat_s = now
            await on_heartbeat(_heartbeat(context, runs_now[0]))
        within_s = min(until_s - now, HEARTBEAT_S)
        if until in ("attention", "news") or not await context.pool.wait_until_stopped(
            [run.n for run in runs_now], within_s
        ):
            await context.pool.change_signal.wait(within_s)
        runs_now = [context.find_run(run_id, caller) for run_id in run_ids]


def _is_reached(context: AppContext, until: WaitUntil, runs_now: Sequence[RunRow], since: Mapping[str, int]) -> bool:
    match until:
        case "news":
            return any(_has_news(context, run, since.get(run.id)) for run in runs_now)
        case "done":
            return all(run.outcome is not None for run in runs_now)
        case "rest":
            return not any(context.pool.is_moving(run.n) or _read_status(context, run) == "working" for run in runs_now)
        case "attention":
            return any(_read_status(context, run) != "working" for run in runs_now)


def _has_news(context: AppContext, run: RunRow, since: int | None) -> bool:
    """Whether the run changed, in a way that its callers can use, after its `seq` was `since`.

    A number that is ahead of the run's own is none of this run, and counts as changed.
    """
    if since is None:
        return _read_status(context, run) != "working"
    return not run.news_seq <= since <= run.seq


def _read_status(context: AppContext, run: RunRow) -> str:
    try:
        waiting = approvals.read_waiting_items(context.store.reader, run.n) if run.outcome is None else NOTHING_WAITS
        return run_status(run, waiting, _server_view(context, run))
    except Unreadable:
        return report_run(context, run.id, Caller(run.principal), full=False).status


def _who_decides(context: AppContext, run: RunRow, caller: Caller) -> Decides:
    """Return who decides about approvals.

    Calls of unknown outcome go by the same rights; a test holds the two equal. Where nobody answered a dialog in this
    session, a person decides elsewhere.
    """
    if may_decide("approval", "argument", context.settings.approvals):
        return "caller"
    shows_dialogs = caller.elicits and may_decide("approval", "dialog", context.settings.approvals)
    return "client" if shows_dialogs and not _ignores_all_dialogs(context, run, caller) else "person"


def _ignores_all_dialogs(context: AppContext, run: RunRow, caller: Caller) -> bool:
    """Whether every dialog that could be shown to this session was shown there, and nobody answered."""
    ignored = context.client_states.state_of(caller.session).ignored_dialogs
    if not ignored or run.outcome is not None:
        return False
    waiting = approvals.read_waiting_items(context.store.reader, run.n)
    dialogs = [(run.n, key, row.digest) for key, row in waiting.approvals.items()]
    dialogs += [
        (run.n, path + settlements.KEY_SUFFIX, settlements.settlement_digest(run, path, row))
        for path, row in waiting.lost_calls.items()
    ]
    return bool(dialogs) and all(dialog in ignored for dialog in dialogs)


def run_purpose(context: AppContext, run_id: str, caller: Caller) -> RunPurpose:
    """Return what the run is for. Raises UnknownRun."""
    run = context.find_run(run_id, caller)
    with queries.name_run_in_errors(run):
        spec = context.factory.load_spec(run).spec
    goal = None if run.flow == "call" else spec.goal
    folder = None if run.workspace is None else caller.visible_path(run.workspace)
    return RunPurpose(run.id, goal, spec.mandate, folder, (context.clock() - run.created_at) / 1000)


def heartbeat(context: AppContext, run_id: str, caller: Caller) -> Heartbeat:
    """Return a sign of life of the run."""
    return _heartbeat(context, context.find_run(run_id, caller))


def _heartbeat(context: AppContext, run: RunRow) -> Heartbeat:
    with queries.name_run_in_errors(run):
        account = read_account(context.store.reader, run.account)
        last = newest_calls(context.store.reader, run, 1)
    number = account.spent.rounds + account.held.rounds
    return Heartbeat(run.id, number, account.caps.rounds, last[0]["name"] if last else "", account.spent.nano_usd)


def trace_run(context: AppContext, run_id: str, query: TraceQuery, caller: Caller) -> JsonObject:
    """Return a page of the run's record. Raises UnknownRun, BadArguments, NotFound; Stale where its conversations are
    requested and its flow has changed since."""
    run, reader = context.find_run(run_id, caller), context.store.reader
    record = queries.read_record(reader, run.n)
    with queries.name_run_in_errors(run):
        trace_input = TraceInput(
            run,
            record,
            context.factory.load_spec(run).planner_input,
            lambda ref: context.store.read_full_text(reader, run.n, ref),
            lambda path: find_tool_name(reader, run, path) if run.flow in load_ooda.VERSIONS else None,
            lambda: _transcripts(context, run, record),
            lambda: report_run(context, run_id, caller).output,
            report_queries.list_decisions(reader, run.n),
        )
        return trace(trace_input, query)


def _transcripts(context: AppContext, run: RunRow, record: Sequence[StepRow]) -> Iterable[Transcript]:
    context.factory.check_version(run)
    try:
        return phase_transcripts(
            context.factory.load_spec(run), (RecordedStep(row.path, row.digest, row.answer) for row in record)
        )
    except ReplayDiffers as mismatch:
        raise replay_mismatch(run.id, mismatch) from mismatch


def replay_run(context: AppContext, run_id: str, caller: Caller) -> ReplayReport:
    """Rebuild the run from its rows, and compare every step with the record. Raises Stale for another version."""
    run = context.find_run(run_id, caller)
    context.factory.check_version(run)
    context.factory.forget_specs()
    with queries.name_run_in_errors(run), context.store.read_connection() as connection:
        fetch_all(connection, "begin")  # so that one state of the file is read, however much others write meanwhile
        run = queries.run_by_number(connection, run.n)
        entries = [
            RecordedEntry(row.path, row.kind, row.digest, decode_answer(row.body) if row.body is not None else None)
            for row in queries.read_record(connection, run.n)
        ]
        loaded = context.factory.load_spec(run)
    return replay_check.replay(Recording(run.id, loaded, entries, run.outcome))


def export_run(context: AppContext, run_id: str, caller: Caller) -> Iterator[bytes]:
    """Yield the run as the lines of a file, read from one state of the store. Raises UnknownRun."""
    from kairos_mcp.history.export import export_lines
    from kairos_mcp.history.format import write_lines  # at first use: a server never exports

    run = context.find_run(run_id, caller)
    with queries.name_run_in_errors(run), context.store.read_connection() as connection:
        planner_input = context.factory.load_spec(run).planner_input
        fetch_all(connection, "begin")
        current = queries.run_by_number(connection, run.n)
        yield from write_lines(export_lines(connection, current, planner_input, context.factory.redactor))
