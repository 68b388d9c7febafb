"""Workers share what waits by their free slots, show that they live, and say what is left when they end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from support.app import Place
from support.operators import Command

from kairos_mcp.app.app import App
from kairos_mcp.app.run_pool import DriveMode
from kairos_mcp.cli import work as work_command
from kairos_mcp.core.errors import ConfigError


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
