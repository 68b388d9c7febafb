"""An app on a folder of its own, and the laws that its record keeps at any moment; shared by the rings."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apsw
from hypothesis import HealthCheck
from hypothesis import settings as examples

from kairos_mcp.app.app import App, make_store
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.limits import NOTHING, Units, counts_of
from kairos_mcp.core.messages import ToolSpec
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags, Settings
from kairos_mcp.settings.table_values import FlowSetting
from kairos_mcp.store.connection import SqliteSession
from kairos_mcp.store.database import Store
from kairos_mcp.store.rows import Session
from kairos_mcp.store.schema import migrate
from kairos_mcp.views.run_report import RunReport
from support import postgres
from support.copied_stores import copy_new_stores

copy_new_stores()
ME = Caller()
PERSON = Caller(via="command")  # may decide, under every setting
WITHIN_S = 20.0  # no wait of a test is longer; none is meant to come near it

law = examples(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
few = examples(law, max_examples=8, suppress_health_check=list(HealthCheck))  # each opens an app of its own

UNWATCHED = FlowSetting("off")  # for tests about other matters whose calls take along what nobody said
ASK = ToolSpec("ask_person", "Asks a person.", {"type": "object"}, effect="irreversible", source="caller")


@dataclass(frozen=True)
class Place:
    """A state folder, a workspace with two files, and a script."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def script(self) -> Path:
        return self.root / "script.jsonl"

    @property
    def db(self) -> Path:
        return self.home / "kairos.db"

    def settings(self, *lines: Mapping[str, Any], **changes: Any) -> Settings:
        """Settings for this place, with a script of these lines if there are any; `process` durability is quick."""
        environ = {}
        if lines:
            self.script.write_text("".join(json.dumps(line) + "\n" for line in lines))
            environ["KAIROS_SCRIPT"] = str(self.script)
        flags = Flags(home=str(self.home), workspaces=(str(self.workspace),))
        of_stage = postgres.named_place() if changes.get("stage") else {}
        ways = {"durability": "process", "store": postgres.database_of(self.root), **of_stage, **changes}
        return replace(load_settings(flags, environ), **ways)

    def rows(self, statement: str, *bindings: Any) -> list[tuple[Any, ...]]:
        """What another process sees in the store, or writes there."""
        with self.session() as session:
            return session.rows(statement, bindings)

    def columns(self, table: str) -> list[str]:
        """The columns of a table, which every store has alike."""
        fresh = SqliteSession(":memory:")
        try:
            migrate(fresh)
            return [name for (name,) in fresh.rows("select name from pragma_table_info(?)", (table,))]
        finally:
            fresh.close()

    def add_trigger(self, statement: str) -> None:
        """Add a trigger, which is written as SQLite has it."""
        statements = [statement] if postgres.database_of(self.root) is None else postgres.translate_trigger(statement)
        for each in statements:
            self.rows(each)

    def store(self, **changes: Any) -> Store:
        """The store as another process has it, which nothing keeps open."""
        return make_store(self.settings(**changes), "test", None, salvage=False)

    def has_tables(self) -> bool:
        """Whether a server has opened the store."""
        if (database := postgres.database_of(self.root)) is None:
            return self.db.exists() and bool(self.rows("select 1 from sqlite_master where name = 'answer'"))
        with postgres.open_session(database) as session:
            return session.row("select to_regclass('answer')") != (None,)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session as another process has it."""
        if (database := postgres.database_of(self.root)) is not None:
            with postgres.open_session(database) as session:
                yield session
            return
        connection = SqliteSession(str(self.db), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(2_000)
            yield connection
        finally:
            connection.close()


def place_in(root: Path) -> Place:
    place = empty_place_in(root)
    (place.workspace / "a.txt").write_text("alpha\n")
    (place.workspace / "b.txt").write_text("beta\nbeta\n")
    return place


def empty_place_in(root: Path) -> Place:
    """A place with nothing in its workspace."""
    place = Place(root)
    place.workspace.mkdir(parents=True)
    # For servers and commands in processes of their own, until the test has ended.
    os.environ.update(postgres.environ_of(root))
    return place


def reads(*paths: str, **more: Any) -> dict[str, Any]:
    """A line of a script: a turn that reads these files."""
    calls = [{"name": "read_file", "arguments": {"path": path}} for path in paths]
    return {"content": "look", "tool_calls": calls, **more}


def asks(question: str, **more: Any) -> dict[str, Any]:
    """A turn that calls the caller's own tool."""
    return {"tool_calls": [{"name": "ask_person", "arguments": {"question": question}}], **more}


def says(text: str, **more: Any) -> dict[str, Any]:
    """A turn that ends the run."""
    return {"content": text, "finish": "stop", **more}


async def meet_servers(app: App) -> App:
    """Return the app once its servers have been started and asked, however long that takes here: a run waits but
    shortly for one that its globs name."""
    await app.tools.list_all()
    return app


async def start_run(app: App, goal: str = "look around", **more: Any) -> str:
    """Start a run and wait until it has gone as far as it can by itself; returns its id."""
    run_id = (await app.runs.start(PlannerRequest(goal, **more), ME)).run_id
    await rests(app, run_id)
    return run_id


async def rests(app: App, *run_ids: str) -> RunReport:
    """The report of the first run, once nothing of them moves."""
    await app.runs.wait(run_ids, until="rest", wait_s=WITHIN_S, caller=ME)
    report = await app.runs.report(run_ids[0], ME)
    assert report.status != "working"
    return report


async def wait_for_step(app: App, path: str) -> None:
    """Return once the step at `path` has been begun."""
    place = Place(app.settings.home.parent)
    async with asyncio.timeout(WITHIN_S):
        while not place.rows("select 1 from step where path = ?", path):  # noqa: ASYNC110 - another's file or count has no event
            await asyncio.sleep(0.005)


async def answer_run(app: App, run_id: str, **answers: Any) -> RunReport:
    """Answer by key and return the report then; `round_1` stands for `round-1`."""
    by_path = {path.replace("__", "/").replace("_", "-"): value for path, value in answers.items()}
    await app.answers.submit(run_id, by_path, ME)
    return await rests(app, run_id)


async def finish_run(app: App, run_id: str, tool_answer: str = "yes") -> RunReport:
    """Answer every call of the caller's tools until the run has ended."""
    report = await rests(app, run_id)
    while report.status == "input_required":
        await app.answers.submit(run_id, {item["key"]: {"content": tool_answer} for item in report.waiting}, ME)
        report = await rests(app, run_id)
    return report


@asynccontextmanager
async def open_checked_app(settings: Settings, **ways: Any) -> AsyncIterator[App]:
    """Open an app whose every run is held against the laws when the block ends, and replayed."""
    async with App.open(settings, via=ways.pop("via", "mcp")) as app:
        yield app
        await assert_all_lawful(app)


def use_key_of_tests(app: App) -> None:
    """Hash contents of files with a key that all stores of tests share, so that rows of two stores can be compared."""
    app._context.factory._content_key = b"key of tests"


async def assert_all_lawful(app: App) -> None:
    """Every run of the store replays, and its books are in order."""
    with Place(app.settings.home.parent).session() as session:
        for run_id, principal in session.rows("select id, principal from run"):
            await assert_replays(app, run_id, Caller(principal))
            _assert_in_order(Books.read(session, run_id))


async def assert_replays(app: App, run_id: str, caller: Caller = ME) -> None:
    """The run built again from its rows asks what was asked then."""
    replayed = await app.records.replay(run_id, caller)
    assert replayed.identical, replayed.first_difference


def assert_lawful(place: Place, run_id: str) -> None:
    """The account is the sum of its rows, in one snapshot; one answer a mark; rounds within their cap."""
    with place.session() as session:
        _assert_in_order(Books.read(session, run_id))


def _assert_in_order(books: Books) -> None:
    assert books.spent == books.spent_by_rows
    assert books.held == (NOTHING if books.ended else books.held_by_rows)
    assert books.cap_rounds is None or books.spent.rounds + books.held.rounds <= books.cap_rounds


@dataclass(frozen=True)
class Books:
    """An account, and the same amounts added up from the rows."""

    held: Units
    spent: Units
    held_by_rows: Units
    spent_by_rows: Units
    ended: bool
    cap_rounds: int | None

    @classmethod
    def of(cls, place: Place, run_id: str) -> Books:
        with place.session() as session:
            return cls.read(session, run_id)

    @classmethod
    def read(cls, session: Session, run_id: str) -> Books:
        """The books in one state of the store."""
        with session.one_state():
            return cls._read(session, run_id)

    @classmethod
    def _read(cls, session: Session, run_id: str) -> Books:
        def all_of(statement: str, *bindings: Any) -> list[tuple[Any, ...]]:
            return session.rows(statement, bindings)

        ((n, account, ended),) = all_of("select n, account, outcome is not null from run where id = ?", run_id)
        columns = [f"{kind}_{unit}" for kind in ("held", "spent") for unit in Units._fields]
        (amounts,) = all_of(f"select cap_rounds, {', '.join(columns)} from account where id = ?", account)
        spent = [
            _units(text)
            for (text,) in all_of("select spent from answer join step on step.id = answer.step where run = ?", n)
        ]
        lost = [
            _units(text)
            for (text,) in all_of("select lost from attempt join step on step.id = attempt.step where step.run = ?", n)
        ]
        held = []
        for mark, kind, text in all_of(
            "select step.id, kind, held from step left join answer on answer.step = step.id"
            " where run = ? and body is null",
            n,
        ):
            itself = _units(text) if text is not None else counts_of(kind)
            again = all_of("select held from attempt where step = ? order by id desc limit 1", mark)
            if again:  # the round or call goes on; all else is held by the newest attempt
                itself = NOTHING._replace(rounds=itself.rounds, tool_calls=itself.tool_calls)
            held += [itself, *(_units(newest) for (newest,) in again)]
        middle = 1 + len(Units._fields)
        return cls(
            Units(*amounts[1:middle]),
            Units(*amounts[middle:]),
            total(held),
            total(spent + lost),
            bool(ended),
            amounts[0],
        )


def _units(text: str) -> Units:
    return Units(*json.loads(text))


def total(amounts: Sequence[Units]) -> Units:
    return Units(*(sum(each) for each in zip(*amounts, strict=True))) if amounts else NOTHING


def asked_digests(place: Place, run_id: str) -> dict[str, bytes]:
    """What was asked at each path."""
    found = place.rows("select path, digest from step join run on run.n = step.run where run.id = ?", run_id)
    return dict(found)


def outcome_of(place: Place, run_id: str) -> Any:
    ((text,),) = place.rows("select outcome from run where id = ?", run_id)
    return None if text is None else json.loads(text)
