"""What docs/versions.md says of servers of two versions on one store: one test for each line of its table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from support.app import ASK, ME, UNWATCHED, Place, asks, rests, says, start_run
from support.next_version import ADDED, NEXT
from support.operators import Command
from support.postgres import both_stores, on_database

from kairos_mcp import __version__
from kairos_mcp.app import served_runs
from kairos_mcp.app.app import App
from kairos_mcp.core.errors import StoreTooNew, StoreUnavailable
from kairos_mcp.store import schema


class Versions:
    """Has this process be of the next version, or of its own again. What is open stays as it is."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self._patched, self._own = patched, schema.MIGRATIONS

    def be_next(self) -> None:
        self._be((*self._own, ADDED), "99.0.0")

    def be_own(self) -> None:
        self._be(self._own, served_runs.__version__)

    def _be(self, migrations: tuple[str, ...], version: str) -> None:
        self._patched.setattr(schema, "MIGRATIONS", migrations)
        self._patched.setattr(served_runs, "__version__", version)
        for cache in (schema.list_references, schema.list_text_columns):
            cache.cache_clear()


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Iterator[Versions]:
    made, own = Versions(monkeypatch), served_runs.__version__
    yield made
    monkeypatch.setattr(served_runs, "__version__", own)
    made.be_own()


def waiting_run(place: Place, **changes: Any) -> Any:
    return place.settings(asks("Which?"), says("done"), flow=UNWATCHED, **changes)


@both_stores
@pytest.mark.unreplayed  # the tables are those of a version that there is not
async def test_one_that_began_before_goes_on_and_one_that_begins_refuses(place: Place, versions: Versions) -> None:
    settings = waiting_run(place)
    async with App.open(settings, via="mcp") as old:
        run_id = await start_run(old, caller_tools=(ASK,))
        versions.be_next()
        await migrate_by_next(place, settings)
        versions.be_own()
        report = await old.runs.report(run_id, ME)
        await old.answers.submit(run_id, {report.waiting[0]["key"]: {"content": "a.txt"}}, ME)
        assert (await rests(old, run_id)).status == "completed"
        assert (await old.runs.report(await start_run(old, "another", caller_tools=(ASK,)), ME)).status
        with pytest.raises(StoreTooNew):
            async with App.open(settings, via="mcp") as late:
                await late.runs.newest_ids(ME)


async def migrate_by_next(place: Place, settings: Any) -> None:
    if settings.store is None:
        async with App.open(settings, via="mcp") as newer:
            await newer.runs.newest_ids(ME)
        assert place.rows("pragma user_version") == [(NEXT,)]
        return
    from kairos_mcp.store.postgres.schema import migrate

    with place.session() as session:
        assert migrate(session)[1] == NEXT  # type: ignore[arg-type]


@on_database
async def test_one_of_the_next_version_waits_for_the_migration(place: Place, versions: Versions) -> None:
    settings = waiting_run(place)
    versions.be_next()
    with pytest.raises(StoreUnavailable, match=f"has version {NEXT - 1}"):
        async with App.open(settings, via="mcp") as early:
            await early.runs.newest_ids(ME)


@both_stores
async def test_a_run_moves_where_the_version_of_its_flow_is_known(place: Place) -> None:
    settings = waiting_run(place)
    async with App.open(settings, via="mcp") as app:
        run_id = await start_run(app, caller_tools=(ASK,))
    ((known,),) = place.rows("select version from run")
    place.rows("update run set version = 99")
    async with App.open(settings, via="mcp") as app:
        report = await app.runs.report(run_id, ME)
        assert (report.status, len(report.held_up_by)) == ("paused", 1)
    place.rows("update run set version = ?", known)
    async with App.open(settings, via="mcp") as app:
        assert (await app.runs.report(run_id, ME)).status == "input_required"


@on_database
async def test_who_lives_is_shown_with_its_version(place: Place, versions: Versions, command: Command) -> None:
    settings = waiting_run(place)
    async with App.open(settings, via="mcp") as old:
        await old.begin_work()
        versions._patched.setattr(served_runs, "__version__", "99.0.0")
        async with App.open(settings, via="work") as newer:
            await newer.begin_work()
            shown = await asyncio.to_thread(command.json, "status")
            found = await asyncio.to_thread(command.json, "doctor", "--offline")
    assert sorted(each["version"] for each in shown["servers"]) == sorted(["99.0.0", __version__])
    assert [each["state"] for each in found["findings"] if each["matter"] == "versions"] == ["note"]
