"""Pruning: what has ended long ago goes with all that was its own; what waits or is needed stays."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import postgres
from support.app import ASK, ME, Place, answer_run, asks, assert_all_lawful, few, place_in, reads, says, start_run
from support.terminal import Terminal

from kairos_mcp.app.app import App
from kairos_mcp.app.retention import _text_removal_job
from kairos_mcp.core.calendar import DAY_MS
from kairos_mcp.core.errors import UnknownRun
from kairos_mcp.store.retention import find_unreferenced_texts

LONG = "line\n" * 6_000


def age_runs(place: Place, days: int, *run_ids: str) -> None:
    """Make these runs as old as if they had ended so many days ago."""
    for run_id in run_ids:
        place.rows("update run set ended_at = ended_at - ? where id = ?", days * DAY_MS, run_id)


def remaining_runs(place: Place) -> set[str]:
    return {run_id for (run_id,) in place.rows("select id from run")}


def texts(place: Place) -> set[str]:
    return {content_hash for (content_hash,) in place.rows("select hash from text")}


async def test_an_old_run_goes_with_its_rows_its_account_and_the_texts_of_its_own(place: Place) -> None:
    (place.workspace / "long.txt").write_text(LONG)
    async with App.open(place.settings(reads("long.txt"), says("done")), via="mcp") as app:
        kept = await start_run(app, "stay")
        before, accounts = texts(place), place.rows("select count(*) from account")
        gone = await start_run(app, "go away", key="gone", messages=())
        assert len(texts(place)) > len(before)
        (place.workspace / "long.txt").write_text(LONG * 2)
        other = await start_run(app, "go too", key="other")
        age_runs(place, 31, gone, other)
        done = await app.runs.prune(30, shrink=False)
        assert (done.runs, remaining_runs(place)) == (2, {kept})
        assert texts(place) == before
        assert done.texts is not None
        assert done.texts >= 2
        assert place.rows("select count(*) from account where scope = 'run'") == [(1,)]
        for table in ("step", "note", "inbox", "tool_intent"):
            assert place.rows(f"select count(*) from {table} where run not in (select n from run)") == [(0,)]
        assert place.rows("select count(*) from answer where step not in (select id from step)") == [(0,)]
        with pytest.raises(UnknownRun):
            await app.runs.report(gone, ME)
        assert (await app.runs.report(kept, ME)).summary == "done"
        await assert_all_lawful(app)
    assert accounts


async def test_a_key_is_free_again_when_its_run_has_gone(place: Place) -> None:
    async with App.open(place.settings(says("done")), via="mcp") as app:
        first = await start_run(app, "one", key="mine")
        age_runs(place, 31, first)
        await app.runs.prune(30, shrink=False)
        second = await start_run(app, "another", key="mine")
        assert remaining_runs(place) == {second}


async def test_what_waits_or_is_paused_stays_however_old_it_is(place: Place) -> None:
    async with App.open(place.settings(asks("why"), says("done")), via="mcp") as app:
        waiting = await start_run(app, "wait", caller_tools=(ASK,))
        paused = await start_run(app, "pause", caller_tools=(ASK,), key="other")
        await app.control.pause(paused, ME)
        place.rows("update run set created_at = 0")
        assert (await app.runs.prune(0, shrink=False)).runs == 0
        report = await answer_run(app, waiting, round_1__call_1={"content": "because"})
        assert report.status == "completed"
        assert remaining_runs(place) == {waiting, paused}


async def test_a_run_that_a_kept_one_goes_on_from_stays_and_so_on(place: Place) -> None:
    async with App.open(place.settings(says("done")), via="mcp") as app:
        first = await start_run(app, "first")
        second = await start_run(app, "second", continues=first)
        third = await start_run(app, "third", continues=second)
        loose = await start_run(app, "loose", key="loose")
        age_runs(place, 99, first, second, loose)
        assert (await app.runs.prune(30, shrink=False)).runs == 1
        assert remaining_runs(place) == {first, second, third}
        age_runs(place, 99, third)
        assert (await app.runs.prune(30, shrink=False)).runs == 3
        assert remaining_runs(place) == set()


@few
@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.one_of(st.none(), st.integers(0, 8)), st.booleans()), min_size=1, max_size=9
    )
)
async def test_no_run_that_is_needed_ever_goes(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, int | None, bool]]
) -> None:
    """Any tree of runs of any age, some of them waiting: only what nobody needs goes, and all of that."""
    place = place_in(tmp_path_factory.mktemp("pruned") / "place")
    async with App.open(place.settings(asks("why"), says("done")), via="mcp") as app:
        runs: list[tuple[str, int, str | None, bool]] = []
        for number, (age, earlier, waits) in enumerate(shapes):
            ended = [run_id for run_id, *_, waiting in runs if not waiting]
            continues = ended[earlier % len(ended)] if earlier is not None and ended else None
            run_id = await start_run(app, f"{number}", caller_tools=(ASK,), continues=continues, key=f"{number}")
            if not waits:
                await answer_run(app, run_id, round_1__call_1={"content": "because"})
                age_runs(place, age, run_id)
            runs.append((run_id, age, continues, waits))
        needed = {run_id for run_id, age, _, waits in runs if waits or age < 30}
        for run_id, _, continues, _ in reversed(runs):
            if run_id in needed and continues is not None:
                needed.add(continues)
        before = len(runs)
        done = await app.runs.prune(30, shrink=False)
        assert remaining_runs(place) == needed
        assert done.runs == before - len(needed)
        await assert_all_lawful(app)
        with app._store.read_session() as connection:
            assert find_unreferenced_texts(connection) == []


async def test_a_text_that_anything_else_speaks_of_stays(place: Place) -> None:
    """As the original of an edit, which a tool's memory names by its hash."""
    async with App.open(place.settings(says("done")), via="mcp") as app:
        gone, kept = await start_run(app, "go"), await start_run(app, "stay", key="stay")
        for content_hash in ("a" * 64, "b" * 64):
            place.rows("insert into text(hash, body) values (?, 'kept')", content_hash)
        ((n,),) = place.rows("select n from run where id = ?", kept)
        place.rows("insert into tool_intent(run, name, body) values (?, 'edit', ?)", n, f'{{"before": "{"a" * 64}"}}')
        age_runs(place, 31, gone)
        await app.runs.prune(30, shrink=False)
        assert "a" * 64 in texts(place)
        assert "b" * 64 not in texts(place)


async def test_texts_stay_where_anything_was_written_since_they_were_looked_for(place: Place) -> None:
    """A run that starts meanwhile may share a text that nobody needed a moment ago."""
    async with App.open(place.settings(says("done")), via="mcp") as app:
        await start_run(app, "one")
        place.rows("insert into text(hash, body) values (?, 'loose')", "c" * 64)
        with app._store.read_session() as watch:
            seen = watch.read_version()
            assert await app._store.submit(_text_removal_job(["c" * 64], watch, seen - 1)) is False
            await start_run(app, "two", key="two")
            assert await app._store.submit(_text_removal_job(["c" * 64], watch, seen)) is False
            assert "c" * 64 in texts(place)
            assert await app._store.submit(_text_removal_job(["c" * 64], watch, watch.read_version())) is True
        assert "c" * 64 not in texts(place)


async def test_with_keep_days_a_server_prunes_beside_its_work(place: Place) -> None:
    async with App.open(place.settings(says("done")), via="mcp") as app:
        old = await start_run(app, "old")
        age_runs(place, 8, old)
    async with App.open(place.settings(says("done"), keep_days=7), via="mcp") as app:
        new = await start_run(app, "new", key="new")
        async with asyncio.timeout(10):
            while old in remaining_runs(place):  # noqa: ASYNC110 - another's rows have no event
                await asyncio.sleep(0.01)
        assert remaining_runs(place) == {new}
    async with App.open(place.settings(says("done")), via="mcp") as app:  # without it: kept for ever
        age_runs(place, 10_000, new)
        await start_run(app, "newer", key="newer")
        assert new in remaining_runs(place)


async def test_the_command_says_what_went_and_gives_the_space_back(
    place: Place, kairos: Callable[..., object], tmp_path: Path
) -> None:
    (place.workspace / "long.txt").write_text(LONG)
    async with App.open(place.settings(reads("long.txt"), says("done")), via="mcp") as app:
        runs = []
        for number in range(6):
            (place.workspace / "long.txt").write_text(f"{number}" + LONG)
            runs.append(await start_run(app, f"{number}", key=f"{number}"))
    age_runs(place, 40, *runs[:5])
    refused = kairos("runs", "--prune")
    assert (refused.code, "kept forever" in refused.err) == (2, True)
    assert kairos("runs", "--older-than", "3d").code == 2
    assert kairos("runs", "--prune", "--older-than", "soon").code == 2
    said = kairos("runs", "--prune", "--older-than", "30d", "--yes", "--json").json
    assert said["runs"] == 5
    if not postgres.is_chosen():  # a database uses free space again by itself
        assert said["bytes_after"] < said["bytes_before"]
    assert remaining_runs(place) == {runs[5]}
    assert kairos("runs", "--prune", KAIROS_KEEP_DAYS="30").out.startswith("0 runs removed")
    assert kairos("replay", runs[5]).code == 0


async def test_that_space_waits_for_servers_to_go_is_said_only_where_one_lives(
    place: Place, kairos: Callable[..., object]
) -> None:
    async with App.open(place.settings(*[says("done")] * 2), via="mcp") as app:
        first, second = [await start_run(app, name, key=name) for name in ("first", "second")]
        age_runs(place, 40, first)
        said = await asyncio.to_thread(kairos, "runs", "--prune", "--older-than", "30d", "--yes")
        assert said.out.startswith("1 run removed, ")
        assert ("when no server has" in said.out) is not postgres.is_chosen()  # a database uses it again by itself
        if not postgres.is_chosen():
            size = sum(place.home.joinpath(name).stat().st_size for name in ("kairos.db", "kairos.db-wal"))
            assert f"{size >> 10} KB now" in said.out  # the newest rows lie in the log
    age_runs(place, 40, second)
    said = kairos("runs", "--prune", "--older-than", "30d", "--yes")
    assert said.out.startswith("1 run removed, ")
    assert "when no server has" not in said.out


@pytest.fixture
async def aged_runs(place: Place) -> dict[str, str]:
    """Runs that ended long ago, by where they worked: in this folder, in another one, in none; and a new one."""
    async with App.open(place.settings(*[says("done")] * 4), via="mcp") as app:
        runs = {name: await start_run(app, name, key=name) for name in ("here", "elsewhere", "nowhere", "new")}
    place.rows("update run set workspace = '/elsewhere' where id = ?", runs["elsewhere"])
    place.rows("update run set workspace = '' where id = ?", runs["nowhere"])
    age_runs(place, 40, runs["here"], runs["elsewhere"], runs["nowhere"])
    return runs


PRUNE = ("runs", "--prune", "--older-than", "30d")


def test_only_runs_of_this_folder_go_unless_all_are_meant(
    place: Place, kairos: Callable[..., object], aged_runs: dict[str, str]
) -> None:
    shown = kairos(*PRUNE, "--dry-run", "--json").json
    assert [item["run_id"] for item in shown["items"]] == [aged_runs["here"]]
    assert len(kairos(*PRUNE, "--dry-run", "--all", "--json").json["items"]) == 3
    assert remaining_runs(place) == set(aged_runs.values())
    assert kairos(*PRUNE, "--yes", "--json").json["runs"] == 1
    assert remaining_runs(place) == set(aged_runs.values()) - {aged_runs["here"]}
    assert kairos(*PRUNE, "--yes", "--all", "--json").json["runs"] == 2
    assert remaining_runs(place) == {aged_runs["new"]}


def test_where_nobody_can_be_asked_nothing_goes(
    place: Place, kairos: Callable[..., object], aged_runs: dict[str, str]
) -> None:
    for words in (PRUNE, (*PRUNE, "--json"), (*PRUNE, "--all")):
        refused = kairos(*words, typed=b"y\n")
        assert refused.code == 2
        assert aged_runs["here"] in refused.err
        assert remaining_runs(place) == set(aged_runs.values())


@pytest.mark.parametrize(("typed", "code", "left"), [("y", 0, 3), ("n", 130, 4), ("", 130, 4)])
def test_a_person_is_shown_what_goes_and_asked(
    place: Place, aged_runs: dict[str, str], typed: str, code: int, left: int
) -> None:
    environ = {**os.environ, "KAIROS_HOME": str(place.home)}
    with Terminal(*PRUNE, folder=place.workspace, environ=environ) as terminal:
        assert aged_runs["here"] in terminal.shows("[y/N] ")
        terminal.types(typed)
        assert terminal.ends() == code
    assert len(remaining_runs(place)) == left
