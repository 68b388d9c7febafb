"""The state file itself: the size of its pages, and of the log beside it in a long run."""

from __future__ import annotations

import asyncio

import apsw
import pytest
from support.app import ME, Place, reads, rests, says

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.store import connection

pytestmark = pytest.mark.state_file("its pages and its log")

ROUNDS = 600


async def test_pages_of_a_new_file_are_small(place: Place) -> None:
    async with App.open(place.settings(says("done")), via="mcp") as app:
        await rests(app, (await app.runs.start(PlannerRequest("look"), ME)).run_id)
    assert place.rows("pragma page_size") == [(connection.PAGE_BYTES,)]


async def test_a_file_with_pages_of_another_size_is_written_on_as_it_is(place: Place) -> None:
    place.home.mkdir(parents=True, exist_ok=True)
    made = apsw.Connection(str(place.db))
    made.execute("pragma page_size = 4096")
    made.execute("pragma journal_mode = wal")
    made.close()
    async with App.open(place.settings(reads("a.txt"), says("done")), via="mcp") as app:
        report = await rests(app, (await app.runs.start(PlannerRequest("look"), ME)).run_id)
        assert report.stop_reason == "assistant_stop"
    assert place.rows("pragma page_size") == [(4096,)]


async def test_the_log_of_a_long_run_is_written_over_again_and_again(place: Place) -> None:
    script = [reads(f"{number}.txt") for number in range(ROUNDS)]
    settings = place.settings(*script, says("done"), durability="process", limits=Limits())
    async with App.open(settings, via="mcp") as app:
        async with asyncio.timeout(60):
            asked = PlannerRequest("look", limits=Limits(rounds=ROUNDS + 1))
            report = await rests(app, (await app.runs.start(asked, ME)).run_id)
        assert report.stop_reason == "assistant_stop", report
        size = (place.home / "kairos.db-wal").stat().st_size
    assert place.rows("select count(*) from answer") == [(2 * ROUNDS + 1,)]
    assert size < 2 * connection.CHECKPOINT_BYTES  # of some 18 MB that the commits wrote


async def test_a_reader_who_takes_his_time_keeps_nobody_from_writing(place: Place) -> None:
    """He reads on in the state of before; the log is then made longer, and not waited for."""
    script = [reads(f"{number}.txt") for number in range(ROUNDS)]
    settings = place.settings(*script, says("done"), durability="process", limits=Limits())
    async with App.open(settings, via="mcp") as app:
        app._store.open()
        reader = apsw.Connection(str(place.db))
        reader.execute("begin")
        assert reader.execute("select count(*) from run").fetchall() == [(0,)]
        asked = PlannerRequest("look", limits=Limits(rounds=ROUNDS + 1))
        async with asyncio.timeout(connection.BUSY_LIMIT_S):  # each of the four checkpoints could wait that long
            report = await rests(app, (await app.runs.start(asked, ME)).run_id)
        assert report.stop_reason == "assistant_stop"
        assert reader.execute("select count(*) from run").fetchall() == [(0,)]
        reader.close()
    assert place.rows("select count(*) from answer") == [(2 * ROUNDS + 1,)]
