"""The application: builds and closes its parts, and offers every operation that the server and the commands need.

A request never performs a run's steps itself. It writes rows, makes sure that a worker drives the run, and waits for
changes; so cancelling a request cancels the waiting alone.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

from kairos_mcp.app import inspect, proposals, respond, retention, spending, start, tool_admin
from kairos_mcp.app import mandates as mandating
from kairos_mcp.app.client_requests import ClientRequests
from kairos_mcp.app.context import AppContext
from kairos_mcp.app.inspect import OnHeartbeat, RunPurpose, WaitUntil
from kairos_mcp.app.mandates import MandateRef, RunOptions, ScheduledTime
from kairos_mcp.app.retention import PruneResult, RetentionSweep
from kairos_mcp.app.run_factory import RunFactory
from kairos_mcp.app.run_pool import RunPool
from kairos_mcp.app.server_facts import describe_served_runs
from kairos_mcp.app.start import StartResult
from kairos_mcp.app.tool_admin import DecidedDefinitions, DefinitionDecision, ToolDetails, ToolSummary
from kairos_mcp.core.calendar import DAY_MS
from kairos_mcp.core.decision_rights import Settlement, Verdict
from kairos_mcp.core.identity import Caller
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.run_spec import Phase, PlannerRequest
from kairos_mcp.history.replay_check import ReplayReport
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store import ownership, queries
from kairos_mcp.store.approvals import ApprovalRow
from kairos_mcp.store.database import Store
from kairos_mcp.store.inbox import Action
from kairos_mcp.store.ownership import ServedRuns
from kairos_mcp.views import health
from kairos_mcp.views.run_report import Heartbeat, RunReport
from kairos_mcp.views.trace import TraceQuery


class App:
    """One opened application. Opening it reads and writes nothing; the state folder is made at the first use.

    `salvage`: open a damaged state file too, for what can still be read of it.
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
        serves = describe_served_runs(settings) if via == "mcp" else None
        self._store = Store(settings.home, settings.durability, via, salvage=salvage, served_runs=serves)
        self._factory = RunFactory(settings, self._store)
        self._pool = RunPool(self._store, self._factory, clock)
        by_hand = via == "command"
        self._context = AppContext(settings, self._store, self._factory, self._pool, clock, new_id, by_hand)
        self._retention = RetentionSweep(self._context)
        self.client_requests = ClientRequests(self._context)
        self.redactor = self._factory.redactor

    @staticmethod
    @asynccontextmanager
    async def open(settings: Settings, *, via: str, salvage: bool = False) -> AsyncIterator[App]:
        """Open the application until the block ends. Runs that still move then are left to the next server."""
        app = App(settings, via, _now, lambda: f"run-{secrets.token_hex(6)}", salvage=salvage)
        try:
            yield app
        finally:
            await app._close()

    async def _close(self) -> None:
        await self._retention.close()
        await self._pool.close()
        await self._factory.close()
        await self._store.close()

    def wake(self) -> None:
        """Pick up runs without an owner from now on: a tool was called. Some hosts start servers only to probe them."""
        self._pool.wake()

    def retry_stalled(self, run_ids: Sequence[str], caller: Caller) -> None:
        """Go on with those of these runs that an error stopped here; the next report shows the result."""
        for run_id in run_ids:
            self._pool.retry_run(self._context.find_run(run_id, caller).n)

    # -- starting ----------------------------------------------------------------------------------------------------

    async def start_planner(self, request: PlannerRequest, caller: Caller) -> StartResult:
        """Start a planner run. Raises BadArguments and its leaves, UnknownRun, UnknownTool, Stale, ConfigError."""
        self._retention.sweep_if_due()
        return await start.start_planner(self._context, request, caller)

    async def start_call(self, name: str, arguments: JsonObject, caller: Caller) -> str:
        """Start a run of one tool call, and return its id. Raises UnknownTool, BadArguments."""
        return await start.start_call(self._context, name, arguments, caller)

    async def start_cycles(self, mandate_ref: MandateRef, options: RunOptions, caller: Caller) -> StartResult:
        """Start cycles of a mandate, or find its open run. Raises BadArguments, UnknownMandate, Stale, ConfigError."""
        self._retention.sweep_if_due()
        return await mandating.run_mandate(self._context, mandate_ref, options, caller)

    async def start_phase(
        self, phase: Phase, mandate_ref: MandateRef, given: JsonObject | None, options: RunOptions, caller: Caller
    ) -> StartResult:
        """Start one phase alone. Raises BadArguments, also where `given` is not the whole output of the phase before;
        UnknownMandate, ConfigError."""
        self._retention.sweep_if_due()
        return await mandating.run_phase(self._context, phase, mandate_ref, given, options, caller)

    # -- mandates ----------------------------------------------------------------------------------------------------

    async def save_mandate(self, given: JsonObject, caller: Caller) -> JsonObject:
        """Save a mandate under its id, or under an id made from its digest. Raises BadArguments."""
        return await mandating.save(self._context, given, caller)

    async def move_mandate(self, mandate_id: str, workspace: str, caller: Caller) -> JsonObject:
        """Move a mandate into another workspace. Raises UnknownMandate, BadArguments."""
        return await mandating.move(self._context, mandate_id, workspace, caller)

    def list_mandates(
        self, status: str | None, cursor: str | None, caller: Caller, *, everywhere: bool = False
    ) -> JsonObject:
        """Return a page of the caller's mandates in this server's workspaces, or `everywhere`, with their status.

        A mandate's status is that of its newest run. Raises BadArguments.
        """
        return mandating.list_mandates(self._context, status, cursor, caller, everywhere=everywhere)

    def due_mandates(self, only: str | None, caller: Caller) -> list[ScheduledTime]:
        """Return the scheduled times for which mandates of this server's workspaces have to be run now.

        Raises UnknownMandate, BadArguments.
        """
        return mandating.due_mandates(self._context, only, caller)

    def mandates_without_workspace(self, caller: Caller) -> list[str]:
        """Return a note for each mandate that belongs to no folder yet, and so is not run."""
        return mandating.unplaced_notes(self._context, caller)

    # -- looking -----------------------------------------------------------------------------------------------------

    def newest_runs(self, caller: Caller, limit: int = 10, *, everywhere: bool = False) -> list[str]:
        """Return the ids of the newest runs of this server's workspaces, or `everywhere`, newest first."""
        return queries.newest_run_ids(
            self._store.reader, caller.principal, None if everywhere else self._context.listed_workspaces, limit
        )

    def report(self, run_id: str, caller: Caller, *, full: bool = True, attached: bool = False) -> RunReport:
        """Return the report of a run as it is now. Without `full`, waiting items are keys and kinds alone.

        Raises UnknownRun.
        """
        return inspect.report_run(self._context, run_id, caller, full=full, attached=attached)

    def complete_commands(self, text: str, caller: Caller) -> str:
        """Make the commands in a text ready to paste, if the caller is the person who owns the state folder."""
        return self._context.complete_commands(text, caller)

    def count_runs_elsewhere(self, caller: Caller) -> int:
        """Count the caller's runs in workspaces that are not this server's."""
        return queries.count_elsewhere(self._store.reader, caller.principal, self._context.listed_workspaces)

    async def wait(
        self,
        run_ids: Sequence[str],
        *,
        until: WaitUntil,
        wait_s: float,
        caller: Caller,
        on_heartbeat: OnHeartbeat | None = None,
        since: Mapping[str, int] | None = None,
    ) -> None:
        """Block until the runs are in the state `until`, at most `wait_s` seconds.

        `attention`: one of them waits, is paused or has ended. `news`: one has changed since its `seq` in `since`.
        `done`: all have ended. `rest`: none of them moves. Raises UnknownRun.
        """
        await inspect.wait(
            self._context, run_ids, until=until, wait_s=wait_s, caller=caller, on_heartbeat=on_heartbeat, since=since
        )

    def run_purpose(self, run_id: str, caller: Caller) -> RunPurpose:
        """Return what the run is for: its goal, mandate and workspace. Raises UnknownRun."""
        return inspect.run_purpose(self._context, run_id, caller)

    def heartbeat(self, run_id: str, caller: Caller) -> Heartbeat:
        """Return a sign of life of the run, for somebody who waits for it."""
        return inspect.heartbeat(self._context, run_id, caller)

    def trace(self, run_id: str, query: TraceQuery, caller: Caller) -> JsonObject:
        """Return a page of the run's record. Raises UnknownRun, BadArguments, NotFound."""
        return inspect.trace_run(self._context, run_id, query, caller)

    def replay(self, run_id: str, caller: Caller) -> ReplayReport:
        """Rebuild the run from its rows, and compare every step with the record. Raises UnknownRun."""
        return inspect.replay_run(self._context, run_id, caller)

    def export(self, run_id: str, caller: Caller) -> Iterator[bytes]:
        """Yield the run as the lines of a file, which `history.verify` checks on any machine. Raises UnknownRun."""
        return inspect.export_run(self._context, run_id, caller)

    async def registry_search(
        self, query: str | None, names: tuple[str, ...] | None, category: str | None, cursor: str | None
    ) -> JsonObject:
        """Return a page of the tools that match. Raises UnknownTool, BadArguments."""
        registry = await self._factory.ready_registry(self._factory.find_workspace(None), names or ("*",))
        starting = registry.starting_sources(names or ("*",))
        notes = [f"{', '.join(starting)}: not there yet; its tools are found once it is."] if starting else []
        return registry.search(query, names, category, cursor).as_json() | ({"degraded": notes} if notes else {})

    async def propose_tool(self, spec: JsonObject, caller: Caller) -> JsonObject:
        """Propose an HTTP tool or an MCP server; it waits for a person's approval.

        Raises BadArguments, TooLarge, EgressDenied, ApprovalsFull, Denied.
        """
        return await proposals.propose(self._context, spec, caller)

    async def list_tools(self) -> tuple[tuple[ToolSummary, ...], tuple[str, ...]]:
        """List every tool, and the definitions that wait for a person; also return the sources' notes."""
        return await tool_admin.list_tools(self._context)

    async def tool_details(self, name: str) -> ToolDetails:
        """Return all that is known of a tool, or of a definition SOURCE/NAME. Raises UnknownTool."""
        return await tool_admin.tool_details(self._context, name)

    def tool_notes(self) -> tuple[str, ...]:
        """Return the notes of the tools' sources, without starting any."""
        return tool_admin.source_notes(self._context)

    def unused_gate_rules(self) -> tuple[str, ...]:
        """Return the gate's rules that match no tool known so far, as sentences; starts no server."""
        return tool_admin.unused_gate_rules(self._context)

    def read_spending(self, scope: str | None, caller: Caller) -> JsonObject:
        """Return what is spent and left.

        `scope`: the caller's `day` (the default), their newest `days`, `mandate:ID`, or a run's id. Raises UnknownRun,
        UnknownMandate.
        """
        return spending.read_spending(self._context, scope, caller)

    def find_server(self, run_id: str) -> tuple[ServedRuns | None, bool]:
        """Return the settings of the server that goes on with this run, and whether it lives. Raises UnknownRun."""
        run = queries.run_by_id(self._store.reader, run_id)
        return ownership.find_serving(self._store.reader, self._store.home, run.workspace)

    def check_writable(self) -> None:
        """Raise the error that a write to the state file would meet now, if any."""
        self._store.check_writable()

    def health(self, *, thorough: bool = False) -> JsonObject:
        """Return where the store is, how it is, its living servers, and its runs by status; `thorough` reads it all."""
        return health.read_health(self._store, self._context.clock(), thorough=thorough)

    # -- removing ----------------------------------------------------------------------------------------------------

    async def prune(self, days: float, *, shrink: bool) -> PruneResult:
        """Remove the runs that ended at least `days` days ago, unless a kept run continues one of them."""
        return await retention.prune_runs(self._context, self._context.clock() - int(days * DAY_MS), shrink=shrink)

    # -- changing ----------------------------------------------------------------------------------------------------

    async def answer(self, run_id: str, answers: Mapping[str, object], caller: Caller, *, drive: bool = True) -> None:
        """Submit answers and decisions for what waits; all are checked before any is stored.

        `drive=False`: don't go on with the run here. Raises UnknownRun, NotWaiting, AlreadyAnswered, BadArguments, and
        for decisions ApprovalRequired, ApprovalMismatch, ApprovalExpired.
        """
        await respond.answer(self._context, run_id, answers, caller, drive=drive)

    async def decide(
        self,
        run_id: str,
        key: str,
        verdict: Verdict,
        feedback: str | None,
        caller: Caller,
        *,
        digest: str | None = None,
        drive: bool = True,
    ) -> ApprovalRow:
        """Record a person's decision about the approval under this key, and return that approval.

        `digest`: of what the person was shown. None: the whole key says what they mean, since nothing else can wait
        under it. Raises UnknownRun, NotWaiting, ApprovalRequired, ApprovalMismatch, ApprovalExpired, AlreadyAnswered.
        """
        return await respond.decide(self._context, run_id, key, verdict, feedback, caller, digest=digest, drive=drive)

    async def control(
        self, run_id: str, action: Action, caller: Caller, *, limits: Limits | None = None, route: str | None = None
    ) -> None:
        """Submit a control request to the run's owner, or carry it out if nobody owns the run.

        Raises Stale, BadArguments.
        """
        await respond.control(self._context, run_id, action, caller, limits=limits, route=route)

    async def decide_tool(
        self, address: str, decision: DefinitionDecision, pin: str | None, caller: Caller
    ) -> DecidedDefinitions:
        """Record a person's decision about a definition SOURCE/NAME. Raises BadArguments, NotFound."""
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
        """Resolve a call whose outcome is unknown after a crash: make it again, or take it as done.

        `digest`: of what was shown. None: whatever waits under the key now is meant. Raises NotWaiting,
        ApprovalRequired, ApprovalMismatch, AlreadyAnswered.
        """
        await respond.settle(self._context, run_id, key, settlement, note, caller, digest=digest, drive=drive)

    async def trust_clock(self, caller: Caller) -> list[str]:
        """Undo days after today that were opened while the clock was ahead, and return their names."""
        return await retention.trust_clock(self._context, caller.principal)

    async def release(self, owner: int, caller: Caller) -> int:
        """Take all unfinished runs from a server, and return how many. Raises NotFound if there is no such server."""
        return await respond.release(self._context, owner, caller)

    async def resume(self, run_id: str, caller: Caller) -> None:
        """Resume a run that was paused, or whose server has ended. Raises UnknownRun, Busy."""
        await respond.resume(self._context, run_id, caller)

    async def drive(self, run_id: str) -> None:
        """Drive a run that no living server owns: a person's command may. Raises UnknownRun."""
        await respond.drive(self._context, run_id)


def _now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
