"""Opens the house, wires its parts and closes it; what the doors may ask of it, and the only place that knows everyone.

A request never drives a run. It leaves rows, sees to it that somebody drives, and waits for news; so cancelling a
request cancels the waiting alone.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

from kairos_mcp.app import inspect, registering, respond, retention, spending, start, tool_admin
from kairos_mcp.app import mandates as mandating
from kairos_mcp.app.client_requests import ClientRequests
from kairos_mcp.app.context import AppContext
from kairos_mcp.app.inspect import OnBeat, RunPurpose, Until
from kairos_mcp.app.mandates import MandateRef, RunOptions, ScheduledTime
from kairos_mcp.app.retention import PruneResult, RetentionSweep
from kairos_mcp.app.run_factory import RunFactory
from kairos_mcp.app.run_pool import RunPool
from kairos_mcp.app.server_facts import served_by
from kairos_mcp.app.start import StartResult
from kairos_mcp.app.tool_admin import Decided, Decision, ToolDetails, ToolSummary
from kairos_mcp.core.calendar import DAY_MS
from kairos_mcp.core.identity import Caller
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.run_spec import Phase, PlannerRequest
from kairos_mcp.history.replay_check import ReplayReport
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store import ownership, queries
from kairos_mcp.store.approvals import ApprovalRow
from kairos_mcp.store.database import Store
from kairos_mcp.store.decisions import Verdict
from kairos_mcp.store.inbox import Action
from kairos_mcp.store.ownership import ServedRuns
from kairos_mcp.store.settlements import Settlement
from kairos_mcp.views import health
from kairos_mcp.views.run_report import Heartbeat, RunReport
from kairos_mcp.views.trace import TraceQuery


class App:
    """One opened house. Opening it reads and writes nothing; the state folder is made at the first use.

    `salvage`: also over a damaged state file, for what can still be read of it.
    """

    def __init__(
        self,
        settings: Settings,
        via: str,
        clock: Callable[[], int],
        new_id: Callable[[], str],
        *,
        salvage: bool = False,
    ) -> None:
        self.settings = settings
        serves = served_by(settings) if via == "mcp" else None
        self._store = Store(settings.home, settings.durability, via, salvage=salvage, served_runs=serves)
        self._factory = RunFactory(settings, self._store)
        self._pool = RunPool(self._store, self._factory, clock)
        by_hand = via == "command"
        self._context = AppContext(settings, self._store, self._factory, self._pool, clock, new_id, by_hand)
        self._keeping = RetentionSweep(self._context)
        self.asks = ClientRequests(self._context)
        self.mask = self._factory.mask

    @staticmethod
    @asynccontextmanager
    async def open(settings: Settings, *, via: str, salvage: bool = False) -> AsyncIterator[App]:
        """The house, open until the block ends; runs that still move are then left to whoever comes next."""
        host = App(settings, via, _now, lambda: f"run-{secrets.token_hex(6)}", salvage=salvage)
        try:
            yield host
        finally:
            await host._close()

    async def _close(self) -> None:
        await self._keeping.close()
        await self._pool.close()
        await self._factory.close()
        await self._store.close()

    def wake(self) -> None:
        """A tool was called: from now on this server looks after runs that nobody owns. Not before: some hosts start
        servers only to probe them."""
        self._pool.wake()

    def retry_stalled(self, run_ids: Sequence[str], caller: Caller) -> None:
        """Go on with those of these runs that stand still here; the next look shows what came of it."""
        for run_id in run_ids:
            self._pool.retry_run(self._context.find_run(run_id, caller).n)

    # -- starting ----------------------------------------------------------------------------------------------------

    async def start_planner(self, request: PlannerRequest, caller: Caller) -> StartResult:
        """Start a planner run. Raises BadArguments and its leaves, UnknownRun, UnknownTool, Stale, ConfigError."""
        self._keeping.nudge()
        return await start.planner(self._context, request, caller)

    async def start_call(self, name: str, arguments: JsonObject, caller: Caller) -> str:
        """Start a run of one tool call; gives its id. Raises UnknownTool, BadArguments."""
        return await start.call(self._context, name, arguments, caller)

    async def start_cycles(self, meant: MandateRef, asked: RunOptions, caller: Caller) -> StartResult:
        """Start cycles of a mandate, or find its open run. Raises BadArguments, UnknownMandate, Stale, ConfigError."""
        self._keeping.nudge()
        return await mandating.run_mandate(self._context, meant, asked, caller)

    async def start_phase(
        self, phase: Phase, meant: MandateRef, given: JsonObject | None, asked: RunOptions, caller: Caller
    ) -> StartResult:
        """Start one phase alone. Raises BadArguments, also for what is not the whole output of the phase before;
        UnknownMandate, ConfigError."""
        self._keeping.nudge()
        return await mandating.phase(self._context, phase, meant, given, asked, caller)

    # -- mandates ----------------------------------------------------------------------------------------------------

    async def save_mandate(self, given: JsonObject, caller: Caller) -> JsonObject:
        """Save a mandate under its id, or under one made of its digest. Raises BadArguments."""
        return await mandating.save(self._context, given, caller)

    async def move_mandate(self, mandate_id: str, workspace: str, caller: Caller) -> JsonObject:
        """Put a mandate into another workspace. Raises UnknownMandate, BadArguments."""
        return await mandating.move(self._context, mandate_id, workspace, caller)

    def mandates(
        self, status: str | None, cursor: str | None, caller: Caller, *, everywhere: bool = False
    ) -> JsonObject:
        """A page of the caller's mandates in the workspaces at hand, or `everywhere`, each with its status, which is
        that of its newest run. Raises BadArguments."""
        return mandating.list_mandates(self._context, status, cursor, caller, everywhere=everywhere)

    def due_mandates(self, only: str | None, caller: Caller) -> list[ScheduledTime]:
        """The times for which mandates of the workspaces at hand are to be run now. Raises UnknownMandate,
        BadArguments."""
        return mandating.due_mandates(self._context, only, caller)

    def mandates_without_workspace(self, caller: Caller) -> list[str]:
        """What is to be said of the mandates that belong to no folder yet: no one of them is run."""
        return mandating.notes_of_unplaced(self._context, caller)

    # -- looking -----------------------------------------------------------------------------------------------------

    def newest(self, caller: Caller, limit: int = 10, *, everywhere: bool = False) -> list[str]:
        """The ids of the newest runs of the workspaces at hand, or `everywhere`, newest first."""
        return queries.newest_run_ids(
            self._store.reader, caller.principal, None if everywhere else self._context.listed_workspaces, limit
        )

    def report(self, run_id: str, caller: Caller, *, full: bool = True, attached: bool = False) -> RunReport:
        """What the run looks like now; without `full` waiting items are keys and kinds. Raises UnknownRun."""
        return inspect.report_run(self._context, run_id, caller, full=full, attached=attached)

    def word_for(self, text: str, caller: Caller) -> str:
        """A text as it is shown to this caller: its commands ready to paste for the person whose state folder it is."""
        return self._context.word_for(text, caller)

    def runs_elsewhere(self, caller: Caller) -> int:
        """How many runs there are of workspaces that are not at hand."""
        return queries.count_elsewhere(self._store.reader, caller.principal, self._context.listed_workspaces)

    async def wait(
        self,
        run_ids: Sequence[str],
        *,
        until: Until,
        wait_s: float,
        caller: Caller,
        on_beat: OnBeat | None = None,
        since: Mapping[str, int] | None = None,
    ) -> None:
        """Block until the runs are as wanted, at most `wait_s` seconds. `attention`: one waits, is paused or has
        ended; `news`: one has news since the `seq` that `since` says of it; `done`: all have ended; `rest`: nothing of
        them moves. Raises UnknownRun."""
        await inspect.wait(
            self._context, run_ids, until=until, wait_s=wait_s, caller=caller, on_beat=on_beat, since=since
        )

    def purpose(self, run_id: str, caller: Caller) -> RunPurpose:
        """What the run is for. Raises UnknownRun."""
        return inspect.purpose(self._context, run_id, caller)

    def beat(self, run_id: str, caller: Caller) -> Heartbeat:
        """A sign of life of the run."""
        return inspect.beat(self._context, run_id, caller)

    def trace(self, run_id: str, query: TraceQuery, caller: Caller) -> JsonObject:
        """A page of the run's record. Raises UnknownRun, BadArguments, NotFound."""
        return inspect.trace_run(self._context, run_id, query, caller)

    def replay(self, run_id: str, caller: Caller) -> ReplayReport:
        """Build the run again from its rows and compare every step that was asked. Raises UnknownRun."""
        return inspect.replay(self._context, run_id, caller)

    def export(self, run_id: str, caller: Caller) -> Iterator[bytes]:
        """The run as the lines of a file, which `verifying.verified` reads anywhere. Raises UnknownRun."""
        return inspect.export(self._context, run_id, caller)

    async def registry_search(
        self, query: str | None, names: tuple[str, ...] | None, category: str | None, cursor: str | None
    ) -> JsonObject:
        """A page of the tools there are. Raises UnknownTool, BadArguments."""
        registry = await self._factory.ready_registry(self._factory.workspace(None), names or ("*",))
        coming = registry.starting_sources(names or ("*",))
        told = [f"{', '.join(coming)}: not there yet; its tools are found once it is."] if coming else []
        return registry.search(query, names, category, cursor).as_json() | ({"degraded": told} if told else {})

    async def propose_tool(self, spec: JsonObject, caller: Caller) -> JsonObject:
        """Let an HTTP tool or a server wait for a person's approval. Raises BadArguments, TooLarge, EgressDenied,
        ApprovalsFull, Denied."""
        return await registering.propose(self._context, spec, caller)

    async def tools(self) -> tuple[tuple[ToolSummary, ...], tuple[str, ...]]:
        """Every tool there is, and what waits for a person; and what the sources have to say."""
        return await tool_admin.list_tools(self._context)

    async def tool(self, name: str) -> ToolDetails:
        """All there is to say of a tool, or of a definition SOURCE/NAME. Raises UnknownTool."""
        return await tool_admin.sheet(self._context, name)

    def tool_notes(self) -> tuple[str, ...]:
        """What the sources of tools have to say; starts none."""
        return tool_admin.source_notes(self._context)

    def idle_rules(self) -> tuple[str, ...]:
        """The rules of the gate that fit no tool known so far, in sentences; starts no server."""
        return tool_admin.idle(self._context)

    def spending(self, scope: str | None, caller: Caller) -> JsonObject:
        """What is spent and left: of the caller's `day` (the default), their newest `days`, or a run. Raises
        UnknownRun."""
        return spending.read_spending(self._context, scope, caller)

    def server_of(self, run_id: str) -> tuple[ServedRuns | None, bool]:
        """What the server goes by that goes on with this run, and whether it lives. Raises UnknownRun."""
        run = queries.run_by_id(self._store.reader, run_id)
        return ownership.find_serving(self._store.reader, self._store.home, run.workspace)

    def check_writable(self) -> None:
        """Raises what a write to the state file would meet now."""
        self._store.check_writable()

    def health(self, *, thorough: bool = False) -> JsonObject:
        """Where the store is and how it is, who lives on it, and its runs by status; `thorough` reads all of it."""
        return health.health(self._store, self._context.clock(), thorough=thorough)

    # -- keeping house -----------------------------------------------------------------------------------------------

    async def prune(self, days: float, *, shrink: bool) -> PruneResult:
        """Remove the runs that ended so many days ago or earlier, unless a kept one goes on from them."""
        return await retention.prune_runs(self._context, self._context.clock() - int(days * DAY_MS), shrink=shrink)

    # -- changing ----------------------------------------------------------------------------------------------------

    async def answer(self, run_id: str, answers: Mapping[str, object], caller: Caller, *, drive: bool = True) -> None:
        """Deposit answers for what waits; all are checked before any is stored. `drive=False` leaves the run to
        whoever finds it. Raises UnknownRun, NotWaiting, AlreadyAnswered, BadArguments, and for decisions
        ApprovalRequired, ApprovalMismatch, ApprovalExpired."""
        await respond.answer(self._context, run_id, answers, caller, drive=drive)

    async def decide(
        self,
        run_id: str,
        key: str,
        said: Verdict,
        feedback: str | None,
        caller: Caller,
        *,
        digest: str | None = None,
        drive: bool = True,
    ) -> ApprovalRow:
        """A person's decision about the approval under this key; gives what was decided about. Raises UnknownRun,
        NotWaiting, ApprovalRequired, ApprovalMismatch, ApprovalExpired, AlreadyAnswered."""
        return await respond.decide(self._context, run_id, key, said, feedback, caller, digest=digest, drive=drive)

    async def control(
        self, run_id: str, action: Action, caller: Caller, *, limits: Limits | None = None, route: str | None = None
    ) -> None:
        """Leave a wish for the run's owner, or carry it out where nobody owns it. Raises Stale, BadArguments."""
        await respond.control(self._context, run_id, action, caller, limits=limits, route=route)

    async def decide_tool(self, address: str, decision: Decision, pin: str | None, caller: Caller) -> Decided:
        """A person's word on a definition SOURCE/NAME. Raises BadArguments, NotFound."""
        return await tool_admin.decide_definition(self._context, address, decision, pin, caller)

    async def settle(
        self,
        run_id: str,
        key: str,
        settlement: Settlement,
        caller: Caller,
        *,
        note: str | None = None,
        digest: str | None = None,
        drive: bool = True,
    ) -> None:
        """Say of a call whose end nobody knows whether it is to be made again, or was done already. Raises
        NotWaiting, ApprovalRequired, ApprovalMismatch, AlreadyAnswered."""
        await respond.settle(self._context, run_id, key, settlement, note, caller, digest=digest, drive=drive)

    async def trust_clock(self, caller: Caller) -> list[str]:
        """Let days after today, begun while the clock was ahead, not count as begun; gives their names."""
        return await retention.trust_clock(self._context, caller.principal)

    async def release(self, owner: int, caller: Caller) -> int:
        """Take all unfinished runs from an owner; gives how many. Raises NotFound where there is no such server."""
        return await respond.release(self._context, owner, caller)

    async def resume(self, run_id: str, caller: Caller) -> None:
        """Go on with a run that was paused, or whose server has ended. Raises UnknownRun, Busy."""
        await respond.resume(self._context, run_id, caller)

    async def drive_here(self, run_id: str) -> None:
        """Own a run that nobody living owns and drive it: a person's command may. Raises UnknownRun."""
        await respond.drive_here(self._context, run_id)


def _now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
