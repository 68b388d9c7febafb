"""Workers share what waits by their free slots, show that they live, and say what is left when they end."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import cast

import pytest
from support.app import ME, UNWATCHED, WITHIN_S, Place, reads, says
from support.operators import Command
from support.postgres import on_database

from kairos_mcp.app.app import App
from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.cli import work as work_command
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.run_spec import PlannerRequest


@pytest.mark.parametrize(
    ("own", "other", "waiting", "taken"), [(10, 30, 8, 2), (30, 10, 8, 6), (10, 0, 8, 8), (4, 60, 1, 4), (2, 200, 8, 1)]
)
async def test_a_worker_takes_its_part_of_what_waits(
    place: Place, own: int, other: int, waiting: int, taken: int
) -> None:
    async with App.open(place.settings(), via="work", mode=DriveMode(slots=own)) as app:
        await app.begin_work()
        if not other:
            assert await app.watcher._share(waiting) == taken
            return
        async with App.open(place.settings(), via="work", mode=DriveMode(slots=other)) as beside:
            await beside.begin_work()
            assert await app.watcher._share(waiting) == taken


@on_database
async def test_two_workers_share_forty_runs_and_are_called_workers(place: Place, command: Command) -> None:
    place.rows("create table taken(run bigint, owner bigint)")
    place.add_trigger(
        "create trigger is_taken after update on run when new.owner > 0 and new.owner <> coalesce(old.owner, 0)"
        " begin insert into taken values (new.n, new.owner); end"
    )
    settings = place.settings(reads("a.txt", delay_s=0.3), says("done"), flow=UNWATCHED)
    async with App.open(settings, via="mcp", mode=DriveMode(drives=False)) as server:
        ids = [(await server.runs.start(PlannerRequest(f"look {n}"), ME)).run_id for n in range(40)]
        async with (
            App.open(settings, via="work", mode=DriveMode(slots=64)) as one,
            App.open(settings, via="work", mode=DriveMode(slots=64)) as other,
        ):
            await asyncio.gather(one.begin_work(), other.begin_work())
            numbers = [app._context.store.owner_number for app in (one, other)]
            told = await asyncio.to_thread(command, "status")
            await server.runs.wait(ids, until="done", wait_s=WITHIN_S, caller=ME)
    assert all(f"{number}: worker, process" in told for number in numbers)
    shares = Counter(number for (number,) in place.rows("select owner from taken"))
    assert sorted(shares) == sorted(numbers)
    assert sum(shares.values()) == 40
    assert min(shares.values()) >= 13, shares  # equal slots are no promise of halves


async def test_a_worker_touches_its_file_while_it_can_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_command, "HEARTBEAT_S", 0)
    file, seen = tmp_path / "alive", list[bool]()

    class Worker:
        @property
        def may_act(self) -> bool:
            seen.append(file.exists())
            if len(seen) == 3:
                raise asyncio.CancelledError
            return len(seen) == 2

    with pytest.raises(asyncio.CancelledError):
        await work_command._beat(cast("App", Worker()), file)
    assert seen == [False, False, True]


def test_settings_are_checked_before_a_start(place: Place, command: Command) -> None:
    for name in ("work", "serve"):
        command(name, "--check")
        assert command.code == 0
    assert not place.db.exists()
    place.home.mkdir(parents=True, exist_ok=True)
    (place.home / "kairos.toml").write_text("keep_days = -1\n")
    for name in ("work", "serve"):
        with pytest.raises(ConfigError):
            command(name, "--check")
