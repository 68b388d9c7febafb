"""The application: builds and closes its parts, and offers every operation that the server and the commands need.

The operations stand in groups, one for each attribute of `App` and module of its name. A request never performs a run's
steps itself. It writes rows, makes sure that a worker drives the run, and waits for changes; so cancelling a request
cancels the waiting alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar

from kairos_mcp.app.context import AppContext
from kairos_mcp.app.drive_mode import DRIVES_ALL, DriveMode
from kairos_mcp.app.served_runs import describe_served_runs
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.steps import Failure
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store import runs
from kairos_mcp.store.database import Store
from kairos_mcp.store.file_store import FileStore
from kairos_mcp.store.ownership import ServedRuns
from kairos_mcp.telemetry.tally import PROCESS_TALLY
from kairos_mcp.views import health

if TYPE_CHECKING:
    from kairos_mcp.app.agents import Agents
    from kairos_mcp.app.answers import Answers
    from kairos_mcp.app.auditing import Auditing
    from kairos_mcp.app.client_requests import ClientRequests
    from kairos_mcp.app.control import Control
    from kairos_mcp.app.events import Events
    from kairos_mcp.app.finder import Finder
    from kairos_mcp.app.mandates import Mandates
    from kairos_mcp.app.notifier import Notifier
    from kairos_mcp.app.overview import Overview
    from kairos_mcp.app.records import Records
    from kairos_mcp.app.run_factory import RunFactory
    from kairos_mcp.app.runs import Runs
    from kairos_mcp.app.schedules import Schedules
    from kairos_mcp.app.store_watcher import StoreWatcher
    from kairos_mcp.app.subscriptions import Subscriptions
    from kairos_mcp.app.tasks import Tasks
    from kairos_mcp.app.tools import Tools
    from kairos_mcp.app.watch import Watch
    from kairos_mcp.core.redaction import Redactor
    from kairos_mcp.models.model import SpokenText
    from kairos_mcp.store.postgres.database import PostgresStore


G = TypeVar("G")


class Group(Generic[G]):
    """A group of operations: imported, and made, when it is first used, since a command needs few of them.

    `where`: its module in this package, and its class there. `uses`: the groups that it uses.
    """

    def __init__(self, where: str, *uses: str) -> None:
        self._where, self._uses = where, uses

    def __set_name__(self, owner: type[App], name: str) -> None:
        self._name = name

    def __get__(self, app: App, owner: type[App]) -> G:
        module, name = self._where.split(".")
        make = getattr(import_module(f"kairos_mcp.app.{module}"), name)
        group: G = make(app._context, *(getattr(app, each) for each in self._uses))
        vars(app)[self._name] = group  # where it is found from now on
        return group


class App:
    """One opened application. Opening it reads and writes nothing; the state folder is made at the first use.

    `clock`: milliseconds since 1970; None: the store's. `salvage`: open a damaged state file too, for what can still
    be read of it. `make_factory`: makes what runs are performed with; a test may let every run be of a flow of its own.
    """

    runs: Group[Runs] = Group("runs.Runs")
    answers: Group[Answers] = Group("answers.Answers")
    agents: Group[Agents] = Group("agents.Agents")
    control: Group[Control] = Group("control.Control")
    mandates: Group[Mandates] = Group("mandates.Mandates", "runs")
    schedules: Group[Schedules] = Group("schedules.Schedules", "mandates", "runs")
    tools: Group[Tools] = Group("tools.Tools")
    client_requests: Group[ClientRequests] = Group("client_requests.ClientRequests")
    records: Group[Records] = Group("records.Records", "runs")
    overview: Group[Overview] = Group("overview.Overview", "runs")
    observed: Group[Overview] = Group("overview.ObservedRuns", "runs")
    finder: Group[Finder] = Group("finder.Finder", "runs", "overview")
    auditing: Group[Auditing] = Group("auditing.Auditing")
    tasks: Group[Tasks] = Group("tasks.Tasks")
    watch: Group[Watch] = Group("watch.Watch")
    events: Group[Events] = Group("events.Events")
    notifier: Group[Notifier] = Group("notifier.Notifier")
    subscriptions: Group[Subscriptions] = Group("subscriptions.Subscriptions")

    def __init__(
        self,
        settings: Settings,
        via: str,
        clock: Callable[[], int] | None,
        new_id: Callable[[], str],
        *,
        salvage: bool = False,
        make_factory: Callable[[Settings, Store], RunFactory] | None = None,
        mode: DriveMode = DRIVES_ALL,
    ) -> None:
        self.settings = settings
        is_server = via in ("mcp", "work")
        serves = describe_served_runs(settings, mode.slots, drives=mode.drives) if is_server else None
        self._store = make_store(settings, via, serves, salvage=salvage)
        self._store.outages.on_change = PROCESS_TALLY.note_outage
        is_command = via == "command"
        self._context = AppContext(
            settings, self._store, clock or self._store.now, new_id, mode, make_factory, is_command=is_command
        )
        if settings.notify or not is_command:
            self._context.on_use.append(self._begin_to_notify)
        if settings.telemetry:
            assert self._context.factory.tracing is not None  # raises ConfigError where it can't be had

    @staticmethod
    @asynccontextmanager
    async def open(
        settings: Settings, *, via: str, salvage: bool = False, mode: DriveMode = DRIVES_ALL
    ) -> AsyncIterator[App]:
        """Open the application until the block ends. Runs that still move then are left to the next server."""
        app = App(settings, via, None, runs.make_run_id, salvage=salvage, mode=mode)
        try:
            yield app
        finally:
            await app._close()

    def _begin_to_notify(self) -> None:
        self.notifier.begin()

    async def _close(self) -> None:
        made = vars(self)
        if "watch" in made:
            self.watch.close()
        if "schedules" in made:
            await self.schedules.close()
        if "notifier" in made:
            await self.notifier.close()
        await self._context.close()
        await self._store.close()

    @property
    def watcher(self) -> StoreWatcher:
        return self._context.watcher

    @property
    def redactor(self) -> Redactor:
        return self._context.factory.redactor

    def listen(self, on_spoken: Callable[[SpokenText], None]) -> None:
        """From now on have this called with what a provider's model says, piece by piece, while it says it."""
        self._context.factory.models.on_spoken = on_spoken

    def hear_failures(self, on_failure: Callable[[str, Failure], None]) -> None:
        """From now on have this called with each failure of a provider and the path of its step, at once."""
        self._context.factory.models.on_failure = on_failure

    def wait_for_slow_starts(self, on_slow_start: Callable[[tuple[str, ...]], None]) -> None:
        """From now on wait for servers that start slowly, as a person does, and have this called with their names."""
        self._context.on_slow_start = on_slow_start

    def now(self) -> int:
        """Return the time, in milliseconds since 1970."""
        return self._context.clock()

    async def begin_work(self) -> None:
        """Take the runs that others left and start mandates that are due, from now on. Makes the store's file where
        there is none. Raises the store's errors."""
        await self._store.register_owner(self.now())
        await self._context.register_use()
        self.schedules.begin()

    async def begin_sending(self) -> None:
        """Send events from now on, without a request that says so. A server that drives no runs is listed from now on,
        one that does once it takes some. Raises the store's errors."""
        if self._context.drives:
            await self._store.read(lambda session: session.row("select 1"))  # opens it
        else:
            await self._store.register_owner(self.now())
        self.notifier.begin()

    def complete_commands(self, text: str, caller: Caller) -> str:
        """Make the commands in a text ready to paste, if the caller is the person who owns the state folder."""
        return self._context.complete_commands(text, caller)

    def check_writable(self) -> None:
        """Raise the error that a write to the state file would meet now, if any."""
        self._store.check_writable()

    async def sealing_key(self) -> bytes:
        """Return the key that seals `requestState`. Raises what `Store.sealing_key` raises."""
        return await self._store.sealing_key()

    async def check_ready(self) -> None:
        """Raise the error that a call would meet now: the state file can't be opened, read or written. Makes it where
        there is none."""
        await self._store.read(lambda session: session.row("select 1"))
        await asyncio.to_thread(self._store.check_writable)  # it may wait for a lock

    @property
    def may_act(self) -> bool:
        """Whether no other server can have taken this one for dead."""
        return self._store.may_act

    def count_moving(self) -> int:
        """Return how many runs move here."""
        return len(self._context.pool.moving)

    async def metrics_page(self) -> bytes | None:
        """Return the metrics in the text format of Prometheus; None where telemetry is off."""
        tracing = self._context.factory.tracing if self.settings.telemetry else None
        return None if tracing is None else await asyncio.to_thread(tracing.providers.prometheus_page)

    async def health(self, *, thorough: bool = False) -> JsonObject:
        """Return where the store is, how it is, its living servers, and its runs by status; `thorough` reads it all."""
        return await health.read_health(self._store, self._context.clock(), thorough=thorough)


def make_store(settings: Settings, via: str, serves: ServedRuns | None, *, salvage: bool) -> Store:
    """Make the store that the settings name; nothing is opened before it is needed. Raises ConfigError."""
    if settings.store is None:
        return FileStore(settings.home, settings.durability, via, salvage=salvage, served_runs=serves)
    return make_database(settings, via, serves)


def make_database(settings: Settings, via: str, serves: ServedRuns | None = None) -> PostgresStore:
    """Make the store in a database that the settings name. Raises ConfigError."""
    if settings.store is None:
        raise ConfigError(
            "The store is a file of the state folder.",
            'Name a database: store = "postgresql://kairos@db.example.com/kairos" in the settings, or KAIROS_STORE.',
        )
    try:
        from kairos_mcp.store.postgres.database import PostgresStore  # at first use: its driver is an extra
    except ImportError as error:
        raise ConfigError("The driver for PostgreSQL is missing.", "pip install 'kairos-loop[postgres]'") from error
    return PostgresStore(settings.home, settings.store, via, password=settings.store_password, served_runs=serves)
