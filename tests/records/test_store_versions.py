"""Versions of the state file: a later one is made of it once, and its runs go on; one of before the first release is
refused. There is one version as yet, so the next one is invented."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.app import ME, Place, answer_run, assert_all_lawful, assert_replays, place_in, rests
from support.next_version import ADDED, NEXT, copy_next_version
from support.stdio_server import Gone, StdioClient

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import StoreTooNew, StoreTooOld
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef, PhaseRequest, PlannerRequest, TeamRequest
from kairos_mcp.store import schema
from kairos_mcp.store.connection import SqliteSession
from kairos_mcp.store.file_store import FileStore

pytestmark = pytest.mark.state_file("it is about versions of the file")
MANDATE = {"id": "tidy", "goal": "Keep a.txt tidy.", "observe": [{"tool": "read_file", "args": {"path": "a.txt"}}]}
OBSERVED = {"observations": []}


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """From here on this process is of the next version."""
    caches = (schema.list_references, schema.list_text_columns)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ADDED))
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


async def leave_open_runs(place: Place) -> dict[str, str]:
    """Leave an open run of each flow, most of which wait for their caller's completion; return their ids by flow."""
    ids = {}
    async with App.open(place.settings(), via="mcp") as app:
        ids["planner"] = (await app.runs.start(PlannerRequest("Think.", key="parked"), ME)).run_id
        ids["team"] = (await app.runs.start(TeamRequest("Share the work."), ME)).run_id
        ids["plan"] = (await app.runs.start(TeamRequest("Plan the work.", plans_only=True), ME)).run_id
        ids["ooda_run"] = (await app.runs.start(CyclesRequest(MandateRef(mandate=MANDATE)), ME)).run_id
        orient = await app.runs.start(PhaseRequest("orient", MandateRef(goal="Look."), OBSERVED), ME)
        ids["ooda_orient"] = orient.run_id
        ids["call"] = await app.runs.start_call("write_file", {"path": "new.txt", "content": "new\n"}, ME)
        for run_id in ids.values():
            assert (await rests(app, run_id)).status == "input_required"
    return ids


async def test_open_runs_of_every_flow_go_on_in_the_next_version(place: Place, request: pytest.FixtureRequest) -> None:
    ids = await leave_open_runs(place)
    before = place.rows("select path, digest, body from step left join answer on step = id order by id")
    request.getfixturevalue("next_version")
    async with App.open(place.settings(), via="mcp") as app:
        for run_id in ids.values():
            assert (await rests(app, run_id)).status == "input_required"
            await assert_replays(app, run_id)
        report = await answer_run(app, ids["planner"], round_1={"content": "Thought.", "finish": "stop"})
        assert (report.status, report.summary) == ("completed", "Thought.")
        await assert_all_lawful(app)
        assert (await app.health(thorough=True))["damage"] == []  # its tables are those of a new file
    after = place.rows("select path, digest, body from step left join answer on step = id order by id")
    assert [row[:2] for row in after][: len(before)] == [row[:2] for row in before]
    assert place.rows("pragma user_version") == [(NEXT,)]
    assert place.rows("select distinct colour from run") == [(None,)]


@pytest.mark.unreplayed  # it has no runs that this version can read
def test_a_development_store_is_refused_and_left_as_it_is(place: Place) -> None:
    place.home.mkdir()
    made = SqliteSession(str(place.db))
    made.execute("create table mark(id integer primary key); pragma user_version = 1")
    made.close()
    with pytest.raises(StoreTooOld, match="before the first release") as refused:
        _ = FileStore(place.home, "full", "test").reader
    assert "export RUN" in refused.value.hint
    assert place.rows("select name from sqlite_master") == [("mark",)]
    assert place.rows("pragma user_version") == [(1,)]
    with StdioClient.start(place, script=False) as server:
        failed = server.call("run_status")
    assert (failed["code"], failed["retryable"]) == ("store_too_old", False)


async def test_whoever_calls_on_a_store_of_a_newer_version_is_not_told_to_try_again(place: Place) -> None:
    await leave_open_runs(place)
    place.rows(f"pragma user_version = {NEXT}")
    before = place.db.read_bytes()
    with pytest.raises(StoreTooNew, match="newer kairos-mcp"):
        _ = FileStore(place.home, "full", "test").reader
    assert place.db.read_bytes()[96:] == before[96:]
    with StdioClient.start(place, script=False) as server:
        failed = server.call("run_status")
    assert (failed["code"], failed["retryable"]) == ("store_unavailable", False)


def kill_while_migrating(place: Place, root: Path, newer: list[str], nth: int) -> bool:
    """Whether a server of the next version was killed at its nth write; another one then has the whole store.

    They start in another folder than that of this version, which `-m` would put first."""
    before = place.rows("select count(*) from run")[0][0]
    under = ["strace", "-f", "-qq", "-o", str(root / "trace"), "-e", "trace=pwrite64"]
    try:
        kill = [*under, "-e", f"inject=pwrite64:signal=KILL:when={nth}", *newer]
        with StdioClient.start(place, script=False, under=kill, cwd=root) as client:
            client.call("run_status")
    except Gone:
        pass
    assert place.rows("pragma integrity_check") == [("ok",)]
    assert place.rows("pragma user_version")[0][0] in (NEXT - 1, NEXT)
    with StdioClient.start(place, script=False, under=newer, cwd=root) as second:
        assert len(second.call("run_status", all=True)["runs"]) == before
    assert place.rows("pragma user_version") == [(NEXT,)]
    return "killed by SIGKILL" in (root / "trace").read_text()


@pytest.mark.slow  # no user has to have strace
@pytest.mark.skipif(shutil.which("strace") is None, reason="the points are found by strace, which is missing here")
async def test_a_server_killed_while_it_migrates_leaves_the_one_version_or_the_other(tmp_path: Path) -> None:
    place, kept = place_in(tmp_path / "place"), tmp_path / "kept"
    await leave_open_runs(place)
    newer = ["env", *(f"{name}={value}" for name, value in copy_next_version(tmp_path / "newer").items())]
    shutil.copytree(place.home, kept)
    killed = 0
    for nth in range(1, 13):
        shutil.rmtree(place.home)
        shutil.copytree(kept, place.home)
        killed += kill_while_migrating(place, tmp_path, newer, nth)
    assert killed >= 3
