"""How often ordinary work waits for the database: a network lies between, so each time counts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from support import forked_program, postgres
from support.app import ME, Place, place_in, reads, says, start_run
from support.database_trips import Group, Read, count_reads, count_trips
from support.stdio_server import PLAN
from support.waiting import wait_until

from kairos_mcp.app.app import App
from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.core.run_spec import PlannerRequest, TeamRequest
from kairos_mcp.store import accounts

SCRIPT = (reads("a.txt"), reads("b.txt"), says("done"))
LEASE_S = 10.0

pytestmark = pytest.mark.postgres


@pytest.fixture
def place(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv(postgres.CHOICE, server)
    return place_in(tmp_path)


class Taken(NamedTuple):
    """What an act took: its reads, and its transactions."""

    reads: list[Read]
    groups: list[Group]


@contextmanager
def counted(app: App) -> Iterator[Taken]:
    """Count what is done within."""
    with count_reads(app._store) as found, count_trips(app._store.writer) as groups:
        yield Taken(found, groups)


async def count(app: App, act: Callable[[App], Awaitable[object]]) -> list[int]:
    """The trips of each read of an act, which is done three times: the driver prepares what it has sent before."""
    for _ in range(3):
        with counted(app) as taken:
            await act(app)
    assert taken.groups == []
    return [each.trips for each in taken.reads if each.statements]


async def test_a_start_is_committed_in_five_trips_and_reads_twice(place: Place) -> None:
    async with App.open(place.settings(*SCRIPT, keep_days=None), via="mcp") as app:
        for number in range(3):
            await start_run(app, f"warm {number}", route="caller")
        with counted(app) as taken:
            run_id = (await app.runs.start(PlannerRequest("counted", route="caller"), ME)).run_id
        assert [(group.is_alone, group.trips) for group in taken.groups] == [(True, 5)]
        assert [read.trips for read in taken.reads if read.statements] == [1, 1]
        assert (await app.runs.report(run_id, ME)).waiting[0]["key"] == "round-1"


async def list_runs(app: App) -> None:
    found = await app.runs.newest_ids(ME)
    assert len(found) == 8
    assert {report.status for report in await app.runs.list_reports(found, ME)} == {"completed", "input_required"}
    await app.runs.count_elsewhere(ME)


async def look_at_store(app: App) -> None:
    app.watcher.takes_runs = True
    await app.watcher._check_store()


async def check_accounts(app: App) -> None:
    """As a server does at its first call of a day, after it has found the accounts."""
    (day,) = await app._store.read(lambda session: session.rows("select id from account where scope = 'day'"))
    await app._store.read(lambda session: accounts.check_shared_account(session, day[0]), one_state=True)


ACTS: dict[str, tuple[Callable[[App], Awaitable[object]], list[int]]] = {
    "runs": (list_runs, [1, 2, 2, 1]),  # ids; rows, then what each waits for; reports, then names of calls; elsewhere
    "a look at what others did": (look_at_store, [1]),
    "the runs that wait for a person": (lambda app: app.overview.list_waiting_ids(ME), [1]),
    "what a day has used": (lambda app: app.records.read_spending(None, ME), [3]),  # the day, its account, who used it
    "what days have used": (lambda app: app.records.read_days(ME), [2]),
    "the books of a day": (check_accounts, [1, 1]),
}


async def test_what_is_read_together_takes_one_trip(place: Place) -> None:
    async with App.open(place.settings(*SCRIPT, keep_days=None), via="mcp") as app:
        ended = [await start_run(app, f"end {number}") for number in range(4)]
        waiting = [await start_run(app, f"wait {number}", route="caller") for number in range(4)]
        app.watcher.close()  # it looks at the store meanwhile
        trips = {name: await count(app, act) for name, (act, _) in ACTS.items()}
        assert trips == {name: expected for name, (_, expected) in ACTS.items()}

        async def report(_app: App) -> None:
            await app.runs.report(ended[0], ME)

        async def report_waiting(_app: App) -> None:
            await app.runs.report(waiting[0], ME)

        async def read_run_spending(_app: App) -> None:
            await app.records.read_spending(ended[0], ME)

        assert await count(app, report) == [1, 2]  # its row; the rest, then the names of its calls
        assert await count(app, report_waiting) == [1, 1, 1]  # its row; what it waits for; the rest
        assert await count(app, read_run_spending) == [2]


async def test_a_run_is_loaded_in_few_trips(place: Place) -> None:
    """By another server than the one that began it: its spec, its rows, its books."""
    async with App.open(place.settings(*SCRIPT, keep_days=None), via="mcp") as app:
        run_ids = [await start_run(app, f"wait {number}", route="caller") for number in range(3)]
    async with App.open(place.settings(*SCRIPT, keep_days=None), via="mcp") as app:
        for run_id in run_ids:
            run = await app.runs.find(run_id, ME)
            app._context.factory.specs.forget()
            with counted(app) as taken:
                await app._context.pool.state_of(run)
        trips = {each.caller: each.trips for each in taken.reads if each.statements}
        assert (trips["StoredSpecs._read"], trips["RunPool.state_of"]) == (1, 1)


async def start_planner(app: App) -> str:
    return (await app.runs.start(PlannerRequest("look"), ME)).run_id


async def start_team(app: App) -> str:
    return (await app.runs.start(TeamRequest("look", PLAN), ME)).run_id


def commits_beside(taken: Taken) -> list[Group]:
    """The transactions of single runs, beside those of other servers."""
    return [group for group in taken.groups if not group.is_alone]


def kill_worker_at(place: Place, path: str, steps: int) -> None:
    """Have a worker go on with the run of this place until so many steps at paths like this are begun, and kill it."""
    words = ("work", "--home", str(place.home), "--workspace", str(place.workspace))
    environ = os.environ | {"KAIROS_STORE": str(postgres.database_of(place.root)), "KAIROS_SCRIPT": str(place.script)}
    worker = forked_program.start(words, env=environ)
    begun = "select count(*) from step left join answer on answer.step = step.id where body is null and path like ?"
    try:
        wait_until(lambda: place.rows(begun, path) == [(steps,)])
    finally:
        worker.kill()
        worker.wait()


TRIES = [f"task-{n}/try-1" for n in (1, 2)]
LOST = [
    reads("a.txt"),
    says("done", delay_s=60.0),
    *({"for": f"{each}/round-1", **reads("a.txt")} for each in TRIES),
    *({"for": f"{each}/round-2", **says("found", delay_s=60.0)} for each in TRIES),
]


@pytest.mark.parametrize(
    ("start", "path", "lost"),
    [(start_planner, "round-2", 1), (start_team, "task-%/round-2", 2)],
    ids=["a run", "a team"],
)
async def test_the_first_commit_of_a_run_of_a_killed_server_takes_four_trips_however_many_steps_were_lost(
    place: Place, start: Callable[[App], Awaitable[str]], path: str, lost: int
) -> None:
    settings = place.settings(*LOST, keep_days=None)
    await asyncio.to_thread(postgres.wait_until_locks_count, str(settings.store), LEASE_S)
    async with App.open(settings, via="mcp", mode=DriveMode(drives=False)) as front:
        await start(front)
    await asyncio.to_thread(kill_worker_at, place, path, lost)
    async with App.open(settings, via="work") as app:
        with counted(app) as taken:
            await app.begin_work()
            await asyncio.to_thread(wait_until, lambda: len(commits_beside(taken)) > 1)
    take, first = commits_beside(taken)
    assert place.rows("select ended from attempt") == [("unknown",)] * lost
    assert (take.trips, first.trips) == (4, 4)
