"""Start runs, report how they stand, and wait until one of them has changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import anyio

from kairos_mcp.app.context import AppContext, read_run
from kairos_mcp.app.run_reports import RunReports
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import PAID_ROUTES
from kairos_mcp.core.run_spec import PlannerRequest, RunRequest, TeamRequest
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.store import approvals, queries, run_changes
from kairos_mcp.store.approvals import WaitingItems
from kairos_mcp.store.ownership import ANY_SERVER
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session
from kairos_mcp.views.progress import Heartbeat, ProgressItem, read_heartbeat, read_progress
from kairos_mcp.views.run_report import RunReport
from kairos_mcp.views.waiting import run_command

if TYPE_CHECKING:
    from kairos_mcp.app.retention import PruneResult
    from kairos_mcp.app.start import StartResult
    from kairos_mcp.specs.build import ModelChoice
    from kairos_mcp.store.retention import PrunableRun
    from kairos_mcp.views.team_view import TeamView

WaitUntil = Literal["rest", "attention", "news", "change", "done"]
OnHeartbeat = Callable[[Heartbeat], Awaitable[None]]

HEARTBEAT_S = 1.0  # between two signs of life for a call that waits
LISTED_RUNS = 50  # the newest, where a client lists them
PAGE_RUNS = 25


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in a list of resources: its report in brief, and when it changed last (milliseconds since 1970)."""

    report: RunReport
    changed_at: int


@dataclass(frozen=True, slots=True)
class RunPurpose:
    """What a run is for: its goal (none for a single call), its mandate's id, its folder as the caller may see it, its
    age in seconds; the commands that show what waits there, the shortest last; and where the page does, if one is
    served."""

    run_id: str
    goal: str | None = None
    mandate: str | None = None
    workspace: str | None = None
    age_s: float = 0.0
    commands: tuple[str, ...] = ()
    page_link: str | None = None


class Runs(RunReports):
    """Start runs, read them, wait for them, and remove old ones."""

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._waits: set[anyio.CancelScope] = set()
        self._waits_end = False

    async def start(self, request: RunRequest, caller: Caller, *, is_another: bool = False) -> StartResult:
        """Start a run, or find the open one of an identical start, unless it is to be another one. The type of the
        request says which flow it starts.

        Raises BadArguments and its leaves, UnknownRun, UnknownTool, UnknownAgent, UnknownMandate, Stale, ConfigError.
        """
        # Here, and not above: most commands start no run, and this takes as long to import as all that they need.
        from kairos_mcp.app.plan_starts import plan_start
        from kairos_mcp.app.start import start_run

        await self._context.register_use()
        plan = await plan_start(self._context, request, caller)
        return await start_run(self._context, replace(plan, is_another=is_another or plan.is_another), caller)

    async def start_call(self, name: str, arguments: JsonObject, caller: Caller) -> str:
        """Start a run of one tool call, and return its id. Raises UnknownTool, BadArguments."""
        from kairos_mcp.specs.call import CallRequest

        return (await self.start(CallRequest(name, arguments), caller)).run_id

    async def choose_model(self, request: PlannerRequest | TeamRequest) -> ModelChoice:
        """Return who a run of this request would ask, where no client offers its own model. Raises BadArguments,
        UnknownAgent, ConfigError."""
        from kairos_mcp.app.agents import choose_request_model

        return await choose_request_model(self._factory, self._factory.find_workspace(request.workspace), request)

    async def check_model(self, request: PlannerRequest | TeamRequest) -> None:
        """Make the client of the provider that a run of this request would ask, so that a missing key is known before
        there is a run. Sends nothing. Raises ConfigError, BadArguments, UnknownAgent."""
        choice = await self.choose_model(request)
        if choice.route in PAID_ROUTES and choice.model is not None:
            await self._factory.models.check_provider(choice.model)

    async def newest_ids(self, caller: Caller, limit: int = 10, *, everywhere: bool = False) -> list[str]:
        """Return the ids of the newest runs of this server's workspaces, or `everywhere`, newest first."""
        if not self._store.exists:
            return []
        workspaces = None if everywhere or caller.sees_all else self._context.listed_workspaces
        whose = None if caller.sees_all else caller.principal
        return await self._store.read(lambda session: queries.newest_run_ids(session, whose, workspaces, limit))

    async def list_page(
        self, cursor: str | None, caller: Caller, size: int = PAGE_RUNS
    ) -> tuple[list[ListedRun], str | None]:
        """Return a page of the caller's newest LISTED_RUNS runs in the workspaces at hand, and the cursor of the next
        one: the id of its last run, None after the last page. Raises BadArguments for an invalid cursor."""
        workspaces = self._context.listed_workspaces
        newest = (
            await self._store.read(
                lambda session: run_changes.newest_runs(session, caller.principal, workspaces, LISTED_RUNS)
            )
            if self._store.exists
            else []
        )
        start = 0
        if cursor is not None:
            ids = [run.run_id for run in newest]
            if cursor not in ids:
                raise BadArguments("This cursor was not given for this list.", "List again without a cursor.")
            start = ids.index(cursor) + 1
        shown = newest[start : start + size]
        reports = await self.list_reports([run.run_id for run in shown], caller)
        runs = [ListedRun(report, run.at) for report, run in zip(reports, shown, strict=True)]
        is_last = start + size >= len(newest)
        return runs, None if is_last else shown[-1].run_id

    async def count_elsewhere(self, caller: Caller) -> int:
        """Count the caller's runs in workspaces that are not this server's."""
        workspaces = self._context.listed_workspaces
        return await self._store.read(lambda session: queries.count_elsewhere(session, caller.principal, workspaces))

    async def list_prunable(self, days: float, *, everywhere: bool) -> list[PrunableRun]:
        """Return the runs that `prune` would remove: of this server's folders, or `everywhere`."""
        workspaces = None if everywhere else [str(folder) for folder in self._settings.workspaces]
        return await self._context.retention.list_prunable(days, workspaces)

    async def prune(self, days: float, *, shrink: bool, among: Sequence[int] | None = None) -> PruneResult:
        """Remove the runs that ended at least `days` days ago, unless a kept run continues one of them. `among`: the
        numbers of those that are meant; None: of every folder."""
        return await self._context.retention.prune(days, shrink=shrink, among=among)

    async def wait(
        self,
        run_ids: Sequence[str],
        *,
        until: WaitUntil,
        wait_s: float,
        caller: Caller,
        on_heartbeat: OnHeartbeat | None = None,
        since: Mapping[str, int] | None = None,
        again: bool = False,
    ) -> list[RunRow]:
        """Block until the runs are in the state `until`, at most `wait_s` seconds; return them as they are then.

        `attention`: one of them waits, is paused or has ended. `news`: one has changed since its `seq` in `since`; one
        without a number there counts as changed once it waits, is paused or has ended. `change`: one has another `seq`
        than in `since`, or has ended. `done`: all have ended. `rest`:
        none of them moves. `again`: the caller's call has waited before. Raises UnknownRun.
        """
        here = ((n, worker.state.run) for n, (worker, _) in self._pool.moving.items())
        moving = [n for n, run in here if run.id in run_ids and run.principal == caller.principal]
        if not again and len(moving) < len(run_ids):
            await self._context.register_use()
        await asyncio.sleep(0)  # a caller that asks in a loop must let others run
        until_s = time.monotonic() + wait_s
        moving = [n for n in moving if self._pool.is_moving(n)]
        if moving and until in ("rest", "done") and on_heartbeat is None and not self._waits_end:
            with self._interruptible():  # their rows are of use once they have stopped
                await self._pool.wait_until_stopped(moving, min(wait_s, HEARTBEAT_S))
        runs_now = await self._find_runs(run_ids, caller)
        for run in runs_now:
            self._pool.retry_run(run.n)
        last_heartbeat_s = time.monotonic() if again else 0.0
        while not await self._is_reached(until, runs_now, since or {}) or await self._adopt_orphans(runs_now):
            now = time.monotonic()
            if now >= until_s or self._waits_end:
                break
            if on_heartbeat is not None and now - last_heartbeat_s >= HEARTBEAT_S:
                last_heartbeat_s = now
                await on_heartbeat(await self.heartbeat(runs_now[0]))
            within_s = min(until_s - now, HEARTBEAT_S)
            with self._interruptible():
                if until in ("attention", "news", "change") or not await self._pool.wait_until_stopped(
                    [run.n for run in runs_now], within_s
                ):
                    await self._pool.change_signal.wait(run_ids, within_s)
            runs_now = await self._find_runs(run_ids, caller)
        return runs_now

    async def _adopt_orphans(self, runs_now: Sequence[RunRow]) -> bool:
        """Take over those of these runs whose server has died. Return whether any was taken, so that a waiting client
        isn't told that they stand still just before they continue."""
        ours = (None, ANY_SERVER, self._store.owner_number)
        elsewhere = [run.n for run in runs_now if run.outcome is None and run.paused is None and run.owner not in ours]
        if not self._context.drives or not elsewhere:
            return False
        await self._context.watcher.pick_up_runs()
        return any(map(self._pool.is_moving, elsewhere))

    async def is_at_rest(self, run: RunRow) -> bool:
        """Whether nothing of the run moves, as far as it was read."""
        return await self._is_reached("rest", [run], {})

    def waits_for_worker(self, run: RunRow) -> bool:
        """Whether an unfinished run has something to do, which this process leaves to others: it may be that none of
        them lives just now."""
        return run.owner is not None and run.paused is None and not self._context.drives

    def end_waits(self) -> None:
        """Let all calls that wait return what there is, from now on: the server is about to end, the runs are not."""
        self._waits_end = True
        for scope in self._waits:
            scope.cancel()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Run the block until it ends or `end_waits` is called."""
        with anyio.CancelScope() as scope:
            self._waits.add(scope)
            try:
                yield
            finally:
                self._waits.discard(scope)

    async def _find_runs(self, run_ids: Sequence[str], caller: Caller) -> list[RunRow]:
        return await self._read_each(partial(read_run, caller=caller), run_ids)

    async def find(self, run_id: str, caller: Caller) -> RunRow:
        """Return a run as it is now. Raises UnknownRun."""
        return await self._context.find_run(run_id, caller)

    async def what_waits(self, run: RunRow) -> WaitingItems:
        """Return what an unfinished run waits for. Raises Unreadable."""
        return await self._store.read(lambda session: approvals.read_waiting_items(session, run.n))

    async def _is_reached(self, until: WaitUntil, runs_now: Sequence[RunRow], since: Mapping[str, int]) -> bool:
        match until:
            case "news":
                if any(run.id in since and not run.news_seq <= since[run.id] <= run.seq for run in runs_now):
                    return True  # also where the number is ahead of the run's own: it belongs to another run
                unseen = [run for run in runs_now if run.id not in since]
                return any(status != "working" for status in await self._read_statuses(unseen))
            case "change":
                return any(run.outcome is not None or run.seq != since.get(run.id) for run in runs_now)
            case "done":
                return all(run.outcome is not None for run in runs_now)
            case "rest":
                if any(self._pool.is_moving(run.n) for run in runs_now):
                    return False
                # One that nobody owns moves nowhere.
                return "working" not in await self._read_statuses([run for run in runs_now if run.owner is not None])
            case "attention":
                return any(status != "working" for status in await self._read_statuses(runs_now))

    async def _read_statuses(self, runs_now: Sequence[RunRow]) -> list[str]:
        if not runs_now:
            return []
        stand = await self._read_each(self._context.read_standing, runs_now)
        return [each.status(await self._as_server(each)) for each in stand]

    async def purpose(self, run_id: str, caller: Caller) -> RunPurpose:
        """Return what the run is for. Raises UnknownRun."""
        run = await self._context.find_run(run_id, caller)
        with queries.name_run_in_errors(run):
            spec = (await self._factory.specs.load(run)).spec
        goal = None if kind_of(run.flow).is_call else spec.goal
        folder = None if run.workspace is None else caller.visible_path(run.workspace)
        age_s, link = (self._clock() - run.created_at) / 1000, self._context.page_link(run.id, caller)
        command = run_command(run, "approve")
        commands = self._context.complete_commands(f"`{command}`", caller).strip("`"), command
        return RunPurpose(run.id, goal, spec.mandate, folder, age_s, commands, link)

    async def heartbeat(self, run: RunRow) -> Heartbeat:
        """Return a sign of life of the run, for somebody who waits for it."""
        team = await self._context.teams.find(run)

        def read(session: Session) -> Heartbeat:
            with queries.name_run_in_errors(run):
                return read_heartbeat(session, run, team)

        return await self._store.read(read)

    async def team(self, run_id: str, caller: Caller) -> TeamView | None:
        """Return what a team has come to; None for a run of another flow. Raises UnknownRun."""
        return await self._context.teams.find(await self._context.find_run(run_id, caller))

    async def progress(self, run_id: str, caller: Caller, known: Collection[str], limit: int) -> list[ProgressItem]:
        """Return what was done in the run and is not among the `known` refs, of the newest `limit` steps."""
        run = await self._context.find_run(run_id, caller)
        with queries.name_run_in_errors(run):
            return await self._store.read(lambda session: read_progress(session, run, known, limit))
