"""State files of earlier versions: migrated once, by whoever comes first, read, and gone on with."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from support.app import ME, Place, answer_run, assert_all_lawful, assert_replays, place_in, rests
from support.stdio_server import Gone, StdioClient

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import StoreTooNew
from kairos_mcp.server.results import NEWEST
from kairos_mcp.store import schema
from kairos_mcp.store.connection import SqliteSession
from kairos_mcp.store.file_store import FileStore
from kairos_mcp.store.schema import MIGRATIONS
from kairos_mcp.views.trace import TraceQuery

pytestmark = pytest.mark.state_file("files of earlier versions become ones of this")
FIXTURES = Path(__file__).parent.parent / "fixtures"
STORES = sorted(FIXTURES.glob("store-*.db"), key=lambda file: int(file.stem.partition("-")[2]))
KEYS = {"ended", "waiting", "paused", "killed"}
RENAMED_ROUTE = 5  # the version from which on the route `house` is called `server`
SINCE_3 = {"parked", "unapproved"}


@pytest.fixture(params=STORES, ids=lambda file: file.stem)
def old(request: pytest.FixtureRequest, place: Place) -> Place:
    place.home.mkdir()
    shutil.copy(request.param, place.db)
    return place


def run_of(place: Place, key: str) -> str:
    ((run_id,),) = place.rows("select id from run where key = ?", key)
    return run_id


def test_every_version_before_this_one_has_a_store() -> None:
    assert [file.name for file in STORES] == [f"store-{number}.db" for number in range(1, len(MIGRATIONS))]


def test_the_head_of_the_schema_lists_every_table() -> None:
    connection = SqliteSession(":memory:")
    try:
        schema.migrate(connection)
        tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
    finally:
        connection.close()
    assert schema.__doc__ is not None
    assert set(re.findall(r"^([a-z]+) {2,}\S", schema.__doc__, re.MULTILINE)) == tables


async def test_an_old_store_is_migrated_and_says_what_it_said(old: Place) -> None:
    before = old.rows("select path, digest, body from mark left join answer on answer.mark = mark.id order by mark.id")
    async with App.open(old.settings(), via="mcp") as app:
        report = await app.runs.report(run_of(old, "ended"), ME)
        assert (report.status, report.stop_reason, report.summary) == ("completed", "max_rounds", "Two files.")
        assert [call["name"] for call in report.calls] == ["read_file", "read_file"]
        query = TraceQuery(ref="round-1/call-2", max_chars=100_000)
        whole = (await app.records.trace(report.run_id, query, ME))["text"]
        assert whole.count("line\n") == 4_000
        for (run_id,) in old.rows("select id from run"):
            await assert_replays(app, run_id)
        await assert_all_lawful(app)
        assert (await app.health(thorough=True))["damage"] == []  # its tables are those of a new file
    assert old.rows("pragma user_version") == [(len(MIGRATIONS),)]
    assert old.rows("pragma integrity_check") == [("ok",)]
    paths = "select path, digest, body from mark left join answer on answer.mark = mark.id order by mark.id"
    assert [row[:2] for row in old.rows(paths)][: len(before)] == [row[:2] for row in before]


async def test_what_the_server_does_itself_has_its_name_in_rows_of_before(old: Place) -> None:
    """The route was called `house`: in runs, in requests and in answers. What somebody said stays as it was."""
    if old.rows("pragma user_version") >= [(RENAMED_ROUTE,)]:
        return
    routes = """select 'run', route from run union all select 'spec', spec ->> '$.route' from run
        union all select 'sent', sent ->> '$.route' from mark union all select 'again', sent ->> '$.route' from attempt
        union all select 'answer', by_route from answer"""
    goal = 'Say {"route":"house"}'
    old.rows("update mark set sent = json_set(sent, '$.tail', ?) where sent ->> '$.route' = 'house'", goal)
    before = old.rows(routes)
    assert {("sent", "house"), ("answer", "house")} <= set(before)
    async with App.open(old.settings(), via="mcp") as app:
        await assert_all_lawful(app)
    after = old.rows(routes)[: len(before)]
    assert after == [(what, "server" if route == "house" else route) for what, route in before]
    assert set(old.rows("select sent ->> '$.tail' from mark where sent ->> '$.route' = 'server'")) == {(goal,)}


async def test_the_runs_of_an_old_store_go_on(old: Place) -> None:
    async with App.open(old.settings(), via="mcp") as app:
        report = await answer_run(app, run_of(old, "waiting"), round_1__call_1={"content": "because"})
        assert (report.status, report.summary) == ("completed", "Because.")

        paused = run_of(old, "paused")
        assert (await app.runs.report(paused, ME)).status == "paused"
        await app.control.request(paused, "resume", ME)
        assert (await rests(app, paused)).status == "input_required"
        report = await answer_run(app, paused, round_1__call_1={"content": "because"})
        assert (report.status, report.summary) == ("completed", "Later.")

        report = await rests(app, run_of(old, "killed"))
        assert (report.status, report.summary, report.usage["attempts"]) == ("completed", "At last.", 2)
        await assert_all_lawful(app)


def test_two_servers_that_migrate_at_once_make_one_store(old: Place) -> None:
    with StdioClient.start(old, script=False) as one, StdioClient.start(old, script=False) as other:
        numbers = [
            each.begin("tools/call", {"name": "run_status", "arguments": {"all": True}}) for each in (one, other)
        ]
        for each, number in zip((one, other), numbers, strict=True):
            while (message := each.read()).get("id") != number:
                pass
            assert not message["result"]["isError"], message
            assert len(message["result"]["structuredContent"]["runs"]) == min(
                NEWEST, len(old.rows("select n from run"))
            )
    assert old.rows("pragma user_version") == [(len(MIGRATIONS),)]
    assert old.rows("pragma integrity_check") == [("ok",)]
    assert {key for (key,) in old.rows("select key from run where key is not null")} - SINCE_3 == KEYS


def assert_whole_after_a_kill(place: Place, root: Path, nth: int) -> None:
    """A server is killed at its nth write; the next one has the whole store."""
    under = ["strace", "-f", "-qq", "-o", str(root / "trace"), "-e", "trace=pwrite64"]
    client = StdioClient.start(place, script=False, under=[*under, "-e", f"inject=pwrite64:signal=KILL:when={nth}"])
    try:
        client.call("run_status")
    except Gone:
        pass
    finally:
        client.close()
    assert place.rows("pragma integrity_check") == [("ok",)]
    assert place.rows("pragma user_version")[0][0] in (1, len(MIGRATIONS))
    with StdioClient.start(place, script=False) as second:
        assert len(second.call("run_status", all=True)["runs"]) == len(KEYS)
    assert place.rows("pragma user_version") == [(len(MIGRATIONS),)]
    assert "killed by SIGKILL" in (root / "trace").read_text()


@pytest.mark.slow  # no user has to have strace
@pytest.mark.skipif(shutil.which("strace") is None, reason="the points are found by strace, which is missing here")
@pytest.mark.parametrize("nth", range(1, 40))
def test_017_a_server_killed_while_it_migrates_leaves_the_old_store_or_the_new(tmp_path: Path, nth: int) -> None:
    place = place_in(tmp_path / "place")
    place.home.mkdir()
    shutil.copy(STORES[0], place.db)
    assert_whole_after_a_kill(place, tmp_path, nth)


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(old: Place) -> None:
    old.rows(f"pragma user_version = {len(MIGRATIONS) + 1}")
    before = old.db.read_bytes()
    with pytest.raises(StoreTooNew, match="newer kairos-mcp"):
        _ = FileStore(old.home, "full", "test").reader
    assert old.db.read_bytes()[96:] == before[96:]


def test_whoever_calls_on_a_store_of_a_newer_version_is_not_told_to_try_again(old: Place) -> None:
    old.rows(f"pragma user_version = {len(MIGRATIONS) + 1}")
    with StdioClient.start(old, script=False) as server:
        failed = server.call("run_status")
    assert (failed["code"], failed["retryable"]) == ("store_unavailable", False)


async def test_a_run_whose_folder_is_gone_is_shown_with_what_it_waits_for(old: Place) -> None:
    """From version 3 on the store has runs that wait in a folder that no machine has."""
    if "parked" not in {key for (key,) in old.rows("select key from run")}:
        return
    async with App.open(old.settings(), via="mcp") as app:
        report = await app.runs.report(run_of(old, "parked"), ME)
        (item,) = report.waiting
        assert (report.status, item["kind"]) == ("input_required", "completion")
        assert "Think." in item["messages"][0]["content"]
