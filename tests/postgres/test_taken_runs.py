"""What a dead server left is taken by a server with slots: many in one commit, and no more than it has room for."""

from __future__ import annotations

import pytest
from support import postgres
from support.app import ME, Place, says

from kairos_mcp.app.app import App
from kairos_mcp.app.drive_mode import DriveMode, server_mode
from kairos_mcp.core.run_spec import PlannerRequest

pytestmark = [pytest.mark.postgres, pytest.mark.unreplayed]
RUNS = 12
SLOTS = 8


@pytest.fixture
def place(tmp_path, server: str, monkeypatch: pytest.MonkeyPatch) -> Place:
    from support.app import place_in

    monkeypatch.setenv(postgres.CHOICE, server)
    return place_in(tmp_path / "place")


async def test_as_many_as_there_are_slots_are_taken_in_one_commit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = place.settings(says("done", delay_s=5.0))
    async with App.open(settings, via="mcp", mode=DriveMode(drives=False)) as front:
        for number in range(RUNS):
            await front.runs.start(PlannerRequest(f"look {number}"), ME)
    async with App.open(settings, via="work", mode=DriveMode(slots=SLOTS)) as worker:
        await worker.begin_work()
        taken = "select count(*), count(distinct owner) from run where owner <> 0"
        assert place.rows(taken) == [(SLOTS, 1)]
    place.rows("update run set owner = 0, fence = fence + 1 where outcome is null")
    async with App.open(settings, via="work", mode=DriveMode(slots=RUNS)) as worker:
        pool = worker._context.pool

        async def start_nothing(_n: int, _fence: int) -> None:
            pass

        monkeypatch.setattr(pool, "start_taken", start_nothing)
        await worker.begin_work()
        assert place.rows("select count(*), count(distinct xmin::text) <= 2 from run where owner <> 0") == [(RUNS, 1)]


def test_servers_that_share_a_database_have_slots() -> None:
    assert server_mode(drives=True, is_shared=True).slots == 64
    assert server_mode(drives=True, is_shared=False) == DriveMode()
