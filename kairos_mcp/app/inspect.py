"""Looks at runs: what they have come to, what their record says, and the wait until there is news of them."""

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
from kairos_mcp.views.mandate_view import tool_at
from kairos_mcp.views.next_action import Decides
from kairos_mcp.views.run_report import (
    NOTHING_WAITS,
    Heartbeat,
    RunReport,
    ServerView,
    Steps,
    newest_calls,
    report,
    status_of,
    unreadable,
)
from kairos_mcp.views.talks import Transcript, talks
from kairos_mcp.views.trace import TraceInput, TraceQuery, trace

Until = Literal["rest", "attention", "news", "done"]
OnBeat = Callable[[Heartbeat], Awaitable[None]]

BEAT_S = 1.0  # signs of life for a waiting call, at most one a second


@dataclass(frozen=True, slots=True)
class RunPurpose:
    """A run by its id, with the goal that it was given (none for a single call), its mandate's id, the folder it works
    in, as its caller may see it, and for how many seconds it has been there."""

    run_id: str
    goal: str | None = None
    mandate: str | None = None
    workspace: str | None = None
    age_s: float = 0.0


def report_run(
    context: AppContext, run_id: str, caller: Caller, *, full: bool = True, attached: bool = False
) -> RunReport:
    """What the run looks like now; without `full` waiting items are keys and kinds. Raises UnknownRun."""
    return _word_commands(context, _read_report(context, run_id, caller, full=full, attached=attached), caller)


def _word_commands(context: AppContext, found: RunReport, caller: Caller) -> RunReport:
    """The report with its commands as this caller is shown them."""
    if not caller.is_local:
        return found
    commands = context.commands
    items = [
        {**item, "command": commands.complete(item["command"])} if "command" in item else item for item in found.waiting
    ]
    following = None if found.next is None else {**found.next, "why": commands.complete_all(found.next["why"])}
    return replace(
        found,
        summary=commands.complete_all(found.summary) if found.status == "paused" and found.summary else found.summary,
        waiting=tuple(items),
        degraded=tuple(map(commands.complete_all, found.degraded)),
        next=following,
    )


def _read_report(context: AppContext, run_id: str, caller: Caller, *, full: bool, attached: bool) -> RunReport:
    run = context.find_run(run_id, caller)
    steps = (lambda: context.steps(run)) if full else None
    around = replace(_circumstances(context, run, attached), decides=_decides(context, run, caller), caller=caller)
    try:
        return _report(context, run, around, steps)
    except (Stale, StoreCorrupt) as trouble:  # it can't go on; what its rows say is shown all the same
        around = replace(around, trouble=trouble)
    try:
        return _report(context, run, around, None)
    except Unreadable:
        return unreadable(context.store.reader, run, around)


def _report(context: AppContext, run: RunRow, around: ServerView, steps: Steps | None) -> RunReport:
    with queries.name_run_in_errors(run):
        return report(context.store.reader, run, around, steps)


def _circumstances(context: AppContext, run: RunRow, attached: bool = False) -> ServerView:
    moves = context.pool.moves(run.n)
    lives = moves or (
        run.owner is not None and ownership.is_owner_alive(context.store.reader, context.store.home, run.owner)
    )
    overdue = run.resume_at is not None and queries.is_due(run.resume_at, context.clock())
    left = run.outcome is None and (run.owner is not None or overdue)
    lacks = tuple(context.factory.lacks(run, by_hand=context.by_hand)) if left and not lives else ()
    asleep = context.asleep(run) if lives and not moves and run.outcome is None else None
    trouble, backing_off = context.pool.trouble(run.n) or asleep, tuple(context.pool.failed_attempts(run.n))
    return ServerView(lives, trouble, lacks, attached, at=context.clock(), backing_off=backing_off)


async def wait(
    context: AppContext,
    run_ids: Sequence[str],
    *,
    until: Until,
    wait_s: float,
    caller: Caller,
    on_beat: OnBeat | None = None,
    since: Mapping[str, int] | None = None,
) -> None:
    """Block until the runs are as wanted, at most `wait_s` seconds. `attention`: one waits, is paused or has
    ended; `news`: one has news since the `seq` that `since` says of it, or without one waits, is paused or has ended;
    `done`: all have ended; `rest`: nothing of them moves. Raises UnknownRun."""
    await context.register_use()
    await asyncio.sleep(0)  # whoever asks in a loop lets others run
    runs_now = [context.find_run(run_id, caller) for run_id in run_ids]
    for run in runs_now:
        context.pool.retry_run(run.n)
    until_s = time.monotonic() + wait_s
    beat_s = 0.0
    while not _is(context, until, runs_now, since or {}):
        now = time.monotonic()
        if now >= until_s:
            return
        if on_beat is not None and now - beat_s >= BEAT_S:
            beat_s = now
            await on_beat(_beat(context, runs_now[0]))
        within_s = min(until_s - now, BEAT_S)
        if until in ("attention", "news") or not await context.pool.wait_until_stopped(
            [run.n for run in runs_now], within_s
        ):
            await context.pool.bell.wait(within_s)
        runs_now = [context.find_run(run_id, caller) for run_id in run_ids]


def _is(context: AppContext, until: Until, runs_now: Sequence[RunRow], since: Mapping[str, int]) -> bool:
    match until:
        case "news":
            return any(_has_news(context, run, since.get(run.id)) for run in runs_now)
        case "done":
            return all(run.outcome is not None for run in runs_now)
        case "rest":
            return not any(context.pool.moves(run.n) or _status(context, run) == "working" for run in runs_now)
        case "attention":
            return any(_status(context, run) != "working" for run in runs_now)


def _has_news(context: AppContext, run: RunRow, since: int | None) -> bool:
    """Whether something changed that whoever has seen the run at `since` can use. A number that is ahead of the run was
    not given by it."""
    if since is None:
        return _status(context, run) != "working"
    return not run.news_seq <= since <= run.seq


def _status(context: AppContext, run: RunRow) -> str:
    try:
        waits = approvals.read_waiting_items(context.store.reader, run.n) if run.outcome is None else NOTHING_WAITS
        return status_of(run, waits, _circumstances(context, run))
    except Unreadable:
        return report_run(context, run.id, Caller(run.principal), full=False).status


def _decides(context: AppContext, run: RunRow, caller: Caller) -> Decides:
    """Who decides about approvals; about lost calls by the same rights (a test of the table holds the two equal). Where
    nobody answered a dialog in this session, a person does, elsewhere."""
    if may_decide("approval", "argument", context.settings.approvals):
        return "caller"
    shows = caller.elicits and may_decide("approval", "dialog", context.settings.approvals)
    return "client" if shows and not _nobody_answers(context, run, caller) else "person"


def _nobody_answers(context: AppContext, run: RunRow, caller: Caller) -> bool:
    """Whether each dialog that could be shown to this session was, and nobody answered."""
    ignored = context.sessions.state_of(caller.session).ignored
    if not ignored or run.outcome is not None:
        return False
    waits = approvals.read_waiting_items(context.store.reader, run.n)
    asked = [(run.n, key, row.digest) for key, row in waits.approvals.items()]
    asked += [
        (run.n, path + settlements.KEY_SUFFIX, settlements.settlement_digest(run, path, row))
        for path, row in waits.lost_calls.items()
    ]
    return bool(asked) and all(each in ignored for each in asked)


def purpose(context: AppContext, run_id: str, caller: Caller) -> RunPurpose:
    """What the run is for. Raises UnknownRun."""
    run = context.find_run(run_id, caller)
    with queries.name_run_in_errors(run):
        spec = context.factory.load_spec(run).spec
    goal = None if run.flow == "call" else spec.goal
    folder = None if run.workspace is None else caller.visible_path(run.workspace)
    return RunPurpose(run.id, goal, spec.mandate, folder, (context.clock() - run.created_at) / 1000)


def beat(context: AppContext, run_id: str, caller: Caller) -> Heartbeat:
    """A sign of life of the run."""
    return _beat(context, context.find_run(run_id, caller))


def _beat(context: AppContext, run: RunRow) -> Heartbeat:
    with queries.name_run_in_errors(run):
        account = read_account(context.store.reader, run.account)
        last = newest_calls(context.store.reader, run, 1)
    number = account.spent.rounds + account.held.rounds
    return Heartbeat(run.id, number, account.caps.rounds, last[0]["name"] if last else "", account.spent.nano_usd)


def trace_run(context: AppContext, run_id: str, query: TraceQuery, caller: Caller) -> JsonObject:
    """A page of the run's record. Raises UnknownRun, BadArguments, NotFound; Stale where its conversations are asked
    for and its flow has changed since."""
    run, reader = context.find_run(run_id, caller), context.store.reader
    record = queries.read_record(reader, run.n)
    with queries.name_run_in_errors(run):
        whole = TraceInput(
            run,
            record,
            context.factory.load_spec(run).planner_input,
            lambda ref: context.store.read_full_text(reader, run.n, ref),
            lambda path: tool_at(reader, run, path) if run.flow in load_ooda.VERSIONS else None,
            lambda: _talks(context, run, record),
            lambda: report_run(context, run_id, caller).output,
            report_queries.list_decisions(reader, run.n),
        )
        return trace(whole, query)


def _talks(context: AppContext, run: RunRow, record: Sequence[StepRow]) -> Iterable[Transcript]:
    context.factory.check_version(run)
    try:
        return talks(context.factory.load_spec(run), (RecordedStep(row.path, row.digest, row.answer) for row in record))
    except ReplayDiffers as differs:
        raise replay_mismatch(run.id, differs) from differs


def replay(context: AppContext, run_id: str, caller: Caller) -> ReplayReport:
    """Build the run again from its rows and compare every step that was asked. Raises Stale for another version."""
    run = context.find_run(run_id, caller)
    context.factory.check_version(run)
    context.factory.forget_specs()
    with queries.name_run_in_errors(run), context.store.read_connection() as connection:
        fetch_all(connection, "begin")  # one state of the file, however much others write meanwhile
        run = queries.run_by_number(connection, run.n)
        entries = [
            RecordedEntry(row.path, row.kind, row.digest, decode_answer(row.body) if row.body is not None else None)
            for row in queries.read_record(connection, run.n)
        ]
        thawed = context.factory.load_spec(run)
    return replay_check.replay(Recording(run.id, thawed, entries, run.outcome))


def export(context: AppContext, run_id: str, caller: Caller) -> Iterator[bytes]:
    """The run as the lines of a file, read from one state of the store. Raises UnknownRun."""
    from kairos_mcp.history.export import export_lines
    from kairos_mcp.history.format import write_lines  # at first use: a server never exports

    run = context.find_run(run_id, caller)
    with queries.name_run_in_errors(run), context.store.read_connection() as connection:
        brief = context.factory.load_spec(run).planner_input
        fetch_all(connection, "begin")
        now = queries.run_by_number(connection, run.n)
        yield from write_lines(export_lines(connection, now, brief, context.factory.mask))
