"""The parts of an opened application, and what every operation on a run needs of them.

Also what a server remembers of its clients' sessions: who did not answer, and about what. A session is one connection
on stdio and SSE, one `mcp-session-id` on Streamable HTTP, and from protocol 2026-07-28 on, where there is no session,
a principal with the name of its client.
"""

from __future__ import annotations

import asyncio
import shlex
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from kairos_mcp.app.drive_mode import NOT_HERE, DriveMode, RunHere
from kairos_mcp.app.served_runs import missing_elsewhere
from kairos_mcp.core.decision_rights import (
    Caller,
    DecisionKind,
    DecisionWay,
    check_decision_right,
    decision_way,
    may_decide,
)
from kairos_mcp.core.errors import (
    ApprovalRequired,
    Busy,
    KairosError,
    PathDenied,
    ReplayDiffers,
    ToolNotOffered,
    Unreadable,
    replay_mismatch,
)
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.steps import RecordedStep, Step
from kairos_mcp.settings.names import variable_name
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store import approvals, ownership, page_files, queries, serving
from kairos_mcp.store.approvals import WaitingItems
from kairos_mcp.store.database import Store
from kairos_mcp.store.ownership import NO_OWNER, OwnerState
from kairos_mcp.store.queries import RunRow, with_run_id
from kairos_mcp.store.rows import Session, decode, read_together
from kairos_mcp.views.command_text import CommandLine, program_words, terminal_command_line
from kairos_mcp.views.run_facts import NOTHING_WAITS, Standing
from kairos_mcp.views.waiting import OpenStep

if TYPE_CHECKING:
    from kairos_mcp.app.retention import Retention
    from kairos_mcp.app.run_factory import RunFactory
    from kairos_mcp.app.run_pool import RunPool
    from kairos_mcp.app.store_watcher import StoreWatcher
    from kairos_mcp.app.teams import TeamViews

RELEASE_S = 1.0  # to give runs back at the end, where the store can be reached
MAX_SESSIONS = 1_024  # remembered; the one that was used longest ago is dropped first
MAX_DIALOGS = 256  # remembered of one session

WITHOUT_READ_ONLY = "A server without --read-only, and without read_only in its settings, has it."


@dataclass(slots=True)
class ClientState:
    """What is remembered of one session.

    `is_silent`: its model did not answer a request in time, and has not answered since. `ignored_dialogs`: the dialogs
    that nobody answered, as (number of the run, key of the approval, its digest).
    """

    is_silent: bool = False
    ignored_dialogs: OrderedDict[tuple[int, str, str], None] = field(default_factory=OrderedDict)

    def ignore(self, run: int, key: str, digest: str) -> None:
        """Remember that nobody answered this dialog, so that this session is not asked again."""
        self.ignored_dialogs[run, key, digest] = None
        while len(self.ignored_dialogs) > MAX_DIALOGS:
            self.ignored_dialogs.popitem(last=False)

    def forget_ignored(self, run: int) -> None:
        """Forget the ignored dialogs of a run: somebody wants to be asked again."""
        for dialog in [dialog for dialog in self.ignored_dialogs if dialog[0] == run]:
            del self.ignored_dialogs[dialog]


class ClientStates:
    """The sessions of this server's clients, by their ids."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, ClientState] = OrderedDict()

    def state_of(self, session: str) -> ClientState:
        """Return the state of a session, a new one where nothing is remembered of it."""
        known = self._known.setdefault(session, ClientState())
        self._known.move_to_end(session)
        while len(self._known) > MAX_SESSIONS:
            self._known.popitem(last=False)
        return known


def read_run(session: Session, run_id: str, caller: Caller) -> RunRow:
    """Return a run to be read by this caller. Raises UnknownRun, also for a run of another principal, unless the caller
    looks at those of all."""
    return queries.run_by_id(session, run_id, None if caller.sees_all else caller.principal)


def stopped_server_error(run: RunRow, owner: OwnerState) -> Busy | None:
    """Return the error that the run's server process is stopped, with what a person can do; else None."""
    if owner.stopped is None:
        return None
    return Busy(
        f"The run belongs to a server that was stopped (process {owner.stopped.pid}).",
        f"Let it go on (kill -CONT {owner.stopped.pid}), or take its runs from it: "
        f"`kairos-mcp status --release {owner.stopped.number}`.",
        run_id=run.id,
    )


class AppContext:
    """The parts of an App, which opens and closes them. Those that only moving runs need are imported and made at their
    first use: most commands read.

    `clock`: milliseconds since 1970. `is_command`: this process is a person's command, no server.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        clock: Callable[[], int],
        new_id: Callable[[], str],
        mode: DriveMode,
        make_factory: Callable[[Settings, Store], RunFactory] | None,
        *,
        is_command: bool,
    ) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock
        self.new_id = new_id
        self.is_command = is_command
        self.client_states = ClientStates()
        self.on_use: list[Callable[[], None]] = []  # what begins with the first request
        self.on_slow_start: Callable[[tuple[str, ...]], None] | None = None
        self._mode = mode
        self._make_factory = make_factory

    @property
    def drives(self) -> bool:
        """Whether this process drives runs; else it leaves them to servers that do."""
        return self._mode.drives

    @cached_property
    def factory(self) -> RunFactory:
        from kairos_mcp.app.run_factory import RunFactory

        factory = (self._make_factory or RunFactory)(self.settings, self.store)
        factory.on_slow_start = self.on_slow_start
        return factory

    @cached_property
    def teams(self) -> TeamViews:
        from kairos_mcp.app.teams import TeamViews

        return TeamViews(self.store, self.factory)

    @cached_property
    def retention(self) -> Retention:
        from kairos_mcp.app.retention import Retention

        return Retention(self.settings, self.store, self.clock)

    @cached_property
    def watcher(self) -> StoreWatcher:
        from kairos_mcp.app.run_pool import RunPool
        from kairos_mcp.app.store_watcher import StoreWatcher

        pool = RunPool(self.store, self.factory, self.clock, self.teams, self._mode.finish_s)
        return StoreWatcher(self.store, self.factory, self.clock, pool, self._mode)

    @property
    def pool(self) -> RunPool:
        return self.watcher.pool

    def look_here(self, run: RunRow) -> RunHere:
        """Return what this process has of a run: nothing, as long as it has moved none."""
        return self.pool.look(run.n) if "watcher" in vars(self) else NOT_HERE

    async def close(self) -> None:
        """Close the parts that were made."""
        made = vars(self)
        if "retention" in made:
            await self.retention.close()
        if "watcher" in made:
            self.watcher.close()
            await self.pool.close()
            await self._release_runs()
        if "factory" in made:
            if self.factory.tracing is not None:
                await self.factory.tracing.close()
            await self.factory.close()

    async def _release_runs(self) -> None:
        """Leave the runs that this server still has to any other, which then takes none over from the dead."""
        number = self.store.owner_number
        if self.is_command or number < 0:
            return
        with suppress(KairosError, OSError, TimeoutError):  # else they are taken over once this process has ended
            async with asyncio.timeout(RELEASE_S):
                if await self.store.read(lambda session: queries.fences_of_owner(session, number)):
                    await self.store.submit(lambda session: ownership.release_runs(session, number))

    async def register_use(self) -> None:
        """Prepare for a request: from now on this server may own runs, and picks up those without an owner."""
        await self.factory.specs.repair_texts()
        while self.on_use:
            self.on_use.pop()()
        if not self.is_command:
            self.watcher.wake()
            if self.store.exists and self.store.owner_number < 0:
                # A command has to know who goes on with the rows that it writes.
                await self.store.register_owner(self.clock())
            if self.drives:
                await self.watcher.pick_up_runs()

    async def find_run(self, run_id: str, caller: Caller) -> RunRow:
        """Return a run to be read, which is allowed from anywhere. Raises UnknownRun."""
        return await self.store.read(lambda session: read_run(session, run_id, caller))

    async def find_own_run(self, run_id: str, caller: Caller) -> RunRow:
        """Return a run of the caller's own, to be changed, whatever else they may look at. Raises UnknownRun."""
        return await self.find_run(run_id, replace(caller, sees_all=False))

    async def find_run_to_move(self, run_id: str, caller: Caller) -> RunRow:
        """Return a run to be answered or driven. Raises UnknownRun, PathDenied."""
        run = await self.find_own_run(run_id, caller)
        self.check_served(run, caller)
        return run

    def check_served(self, run: RunRow, caller: Caller) -> None:
        """Raise PathDenied if this caller may not answer or drive the run here.

        A person may do that anywhere; a caller of the protocol only where this server serves the run's
        folder, since nobody there sees another folder.
        """
        if not caller.is_person and not self.factory.has_folder(run):
            folder = caller.visible_path(run.workspace or "")
            own_server = f"start one with --workspace {shlex.quote(folder)}"
            cure = own_server if caller.is_local else "ask whoever runs this one"
            raise PathDenied(
                f"The run works in {folder}, which this server does not serve.",
                f"You can read, pause and cancel it here; for all else use a server of that folder, or {cure}.",
                run_id=run.id,
            )

    @property
    def listed_workspaces(self) -> tuple[str, ...]:
        """The workspaces whose runs and mandates are listed here: this server's folders, and '' for no workspace."""
        return ("", *map(str, self.settings.workspaces))

    def require_writing(self, tool: str) -> None:
        """Raise ToolNotOffered where this server only reads: it does not have this tool."""
        if self.settings.read_only:
            raise ToolNotOffered(f"{tool} is not there: this server is read-only.", WITHOUT_READ_ONLY)

    def may_decide(self, kind: DecisionKind, way: DecisionWay) -> bool:
        """Whether a decision of this kind may be made here in this way, whoever makes it."""
        return not self._is_read_only(kind) and may_decide(kind, way, self.settings.approvals)

    def _is_read_only(self, kind: DecisionKind) -> bool:
        return self.settings.read_only and kind != "release"

    def check_may_decide(
        self, kind: DecisionKind, caller: Caller, command: str = "", *, run_id: str | None = None
    ) -> None:
        """Raise ApprovalRequired if this caller may not decide; `command` is the command by which a person does."""
        if not caller.decides:
            raise ApprovalRequired(
                "This client may not decide that: it has no token, or its token lacks the scope approve.",
                "Ask whoever runs this server, or use a token with that scope.",
                run_id=run_id,
            )
        if self._is_read_only(kind):
            raise ApprovalRequired("Nothing is decided here: it is read-only.", WITHOUT_READ_ONLY, run_id=run_id)
        check_decision_right(kind, decision_way(caller.via), self.settings.approvals, command, run_id=run_id)

    async def open_steps(self, run: RunRow, waits: WaitingItems) -> dict[str, Step]:
        """Return the open steps of a run, by path, without the calls that wait for an approval first."""
        steps = (await self.pool.state_of(run)).runner.waiting if waits.steps else {}
        return {path: steps[path] for path in waits.steps if path in steps}

    async def waiting_steps(self, run: RunRow) -> dict[str, OpenStep]:
        """Return the steps that the run's flow waits for, by path. Raises Stale, StoreCorrupt.

        A run may be read from anywhere. If its folder is not one of this server's, its flow is replayed from its rows
        alone, and the folder is not opened.
        """
        runner = (await self.pool.state_of(run)).runner if self.factory.has_folder(run) else await self._replay(run)
        return {
            path: OpenStep(step, runner.agent_of(path), runner.about_of(path)) for path, step in runner.waiting.items()
        }

    async def _replay(self, run: RunRow) -> Runner:
        self.factory.check_version(run)
        loaded = await self.factory.specs.load(run)
        runner = Runner(loaded.flow(), loaded.spec.agent)
        record = await self.store.read(lambda session: queries.read_record(session, run.n))
        try:
            runner.replay_all(RecordedStep(row.path, row.digest, row.answer) for row in record)
        except ReplayDiffers as mismatch:
            raise replay_mismatch(run.id, mismatch) from mismatch
        except Unreadable as error:
            raise with_run_id(run, error) from error
        return runner

    async def can_drive(self, run: RunRow) -> bool:
        """Whether this process can drive the run: it has its workspace, its tools and its route.

        A person's command may use the run's own workspace, a server only those that it was given.
        """
        return self.drives and await self.factory.can_perform(run, by_hand=self.is_command)

    async def owner_for(self, run: RunRow) -> int:
        """Return this server's owner number if it can go on with the run, else ANY_SERVER."""
        return await self.store.register_owner(self.clock()) if await self.can_drive(run) else ownership.ANY_SERVER

    @property
    def command_line(self) -> CommandLine:
        """How the owner of the state folder calls this program: a command repeats how it was called itself, a server
        gives words that work in any shell, also where its own environment alone names the database."""
        settings, default_file = self.settings, self.settings.home / "kairos.toml"
        origins = ("flag",) if self.is_command else ("flag", "environment")
        options = ["--home", str(settings.home)] if settings.origins.get("home") in origins else []
        if settings.config_file is not None and settings.config_file != default_file:
            options += ["--config", str(settings.config_file)]
        if self.is_command:
            return terminal_command_line(options)
        of_environment = [name for name in ("store", "store_password") if settings.origins.get(name) == "environment"]
        variables = [f"{variable_name(name)}={getattr(settings, name)}" for name in of_environment]
        program = ("env", *variables, *program_words()) if variables else program_words()
        return CommandLine(program, tuple(options))

    def complete_commands(self, text: str, caller: Caller) -> str:
        """Make the commands in a text ready to paste, if the caller is the person who owns the state folder."""
        return self.command_line.complete_all(text) if caller.is_local else text

    async def is_served_elsewhere(self, run: RunRow) -> bool:
        """Whether this is a command, and a living server serves the run's folder: then the server goes on with it."""
        if not self.is_command:
            return False
        owners, folder = self.store.owners, (run.workspace, run.place)
        return (await self.store.read(lambda session: serving.find_serving(session, owners, *folder)))[1]

    async def leaves_start(self, workspace: str | None, route: str, caller: Caller) -> bool:
        """Whether a run that this caller starts is left to a living server that has the folder and the route.

        So it is where a person starts it on the page, and the page's process is no server; and where the clock starts
        it: any worker with a free slot takes it.
        """
        if not self.drives or caller.via == "clock":
            return True
        if caller.via != "page" or not self.is_command:
            return False
        served, is_alive = await self.store.read(
            lambda session: serving.find_serving(session, self.store.owners, workspace, self.settings.place)
        )
        return is_alive and served is not None and route in served.routes

    def page_link(self, run_id: str, caller: Caller) -> str | None:
        """Return where the page shows a run; None where no page is served, or the caller does not own the folder."""
        page = self.find_page(caller)
        return None if page is None else f"{page}#/runs/{run_id}"

    def find_page(self, caller: Caller) -> str | None:
        """Return where the page is served; None where it is not, or the caller does not own the folder."""
        pages = page_files.find_pages(self.settings.home) if caller.is_local else []
        return pages[-1] if pages else None

    def read_owner(self, session: Session, run: RunRow) -> OwnerState:
        """Read whether the server that owns an unfinished run is alive. In a process that drives no runs, an unowned
        run counts as owned while a living server lacks nothing to drive it."""
        owners = self.store.owners
        owner = ownership.read_owner_state(session, owners, run.owner, self.store.owner_number)
        if self.drives or owner.lives or run.owner is None:
            return owner
        return replace(owner, lives=not all(missing_elsewhere(session, owners, run, self.store.owner_number)))

    @staticmethod
    def read_waits(session: Session, run: RunRow) -> WaitingItems:
        """Read what the run waits for; nothing, if it has ended."""
        return NOTHING_WAITS if run.outcome is not None else approvals.read_waiting_items(session, run.n)

    def read_standing(self, session: Session, run: RunRow) -> Standing:
        """Read where a run stands."""
        if run.outcome is not None:
            try:
                return Standing(run, decode(Outcome, run.outcome), NOTHING_WAITS, NO_OWNER, None)
            except Unreadable as error:
                return Standing(run, None, NOTHING_WAITS, NO_OWNER, with_run_id(run, error))
        owner, waits = read_together(
            session,
            lambda session: self.read_owner(session, run),
            lambda session: _try_to_read_waits(session, run),
        )
        if isinstance(waits, Unreadable):
            return Standing(run, None, NOTHING_WAITS, owner, waits)
        return Standing(run, None, waits, owner, None)

    async def check_server_runs(self, run: RunRow) -> OwnerState:
        """Return the state of the run's owner. Raises Busy if that server process is stopped (SIGSTOP): it keeps its
        runs, and would notice nothing."""
        owner = await self.store.read(lambda session: self.read_owner(session, run))
        if (error := stopped_server_error(run, owner)) is not None:
            raise error
        return owner


def _try_to_read_waits(session: Session, run: RunRow) -> WaitingItems | Unreadable:
    try:
        return approvals.read_waiting_items(session, run.n)
    except Unreadable as error:
        return with_run_id(run, error)


class Operations:
    """Base of a group of operations: the parts of the App that they use."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._settings, self._store, self._clock = context.settings, context.store, context.clock

    @property
    def _factory(self) -> RunFactory:
        return self._context.factory

    @property
    def _pool(self) -> RunPool:
        return self._context.pool
