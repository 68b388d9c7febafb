"""What is left, as a client is told in either era, and as the command `budget` says it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import mcp_types as wire
import pytest
from mcp.client.client import Client
from support.app import Place, reads, says, start_run
from support.daily_accounts import MIDNIGHT, ZONE, Clock, app_at, usage_of
from support.environment import plain_environ

from kairos_mcp.app.app import App
from kairos_mcp.cli.budget import budget
from kairos_mcp.core.errors import UnknownRun
from kairos_mcp.core.limits import Limits
from kairos_mcp.server.mcp_server import build_server
from kairos_mcp.settings.settings import Flags

ERAS = {"2025-11-25": "legacy", "2026-07-28": "auto"}
LINES = (reads("a.txt", **usage_of(2_000)), says("done", **usage_of(3_000)))


async def call_budget_status(app: App, mode: str, **arguments: Any) -> wire.CallToolResult:
    """What `budget_status` tells a client of this era."""

    async def reach() -> App:
        return app

    async with Client(build_server(reach, app.settings), mode=mode) as client:
        return await client.call_tool("budget_status", arguments)


@pytest.mark.parametrize("mode", ERAS.values(), ids=ERAS.keys())
async def test_a_client_is_told_what_the_day_has_left_and_who_used_it(place: Place, mode: str) -> None:
    clock = Clock()
    day = Limits(model_calls=10, total_tokens=50_000)
    async with app_at(place.settings(*LINES, day=day, time_zone=ZONE), clock) as app:
        await start_run(app)
        await start_run(app, "waits", route="caller")
        for arguments in ({}, {"scope": "day"}):
            spending = (await call_budget_status(app, mode, **arguments)).structured_content
            assert spending is not None
            assert (spending["day"], spending["time_zone"]) == ("2026-11-20", ZONE)
            assert spending["resets_at"] == "2026-11-21T05:00:00Z"
            assert (spending["spent"]["model_calls"], spending["held"]["model_calls"]) == (2, 1)
            assert (spending["limits"]["model_calls"], spending["remaining"]["model_calls"]) == (10, 7)
            assert spending["remaining"]["total_tokens"] == 50_000 - 5_200
            assert (spending["limits"]["usd"], spending["remaining"]["usd"]) == (None, None)
            assert [(each["route"], each["attempts"], each["total_tokens"]) for each in spending["by"]] == [
                ("scripted", 2, 5_200)
            ]


@pytest.mark.parametrize("mode", ERAS.values(), ids=ERAS.keys())
async def test_a_client_is_told_of_the_days_and_of_a_run(place: Place, mode: str) -> None:
    clock = Clock()
    async with app_at(place.settings(*LINES, time_zone=ZONE), clock) as app:
        empty = (await call_budget_status(app, mode)).structured_content
        assert empty is not None
        assert (empty["spent"]["model_calls"], empty["by"]) == (0, [])
        await start_run(app)
        clock.now = MIDNIGHT
        run_id = await start_run(app, "again", limits=Limits(rounds=4, total_tokens=40_000))
        days = (await call_budget_status(app, mode, scope="days")).structured_content
        assert days is not None
        assert [(each["day"], each["spent"]["model_calls"]) for each in days["days"]] == [
            ("2026-11-21", 2),
            ("2026-11-20", 2),
        ]
        run = (await call_budget_status(app, mode, scope=run_id)).structured_content
        assert run is not None
        assert (run["scope"], run["spent"]["rounds"], run["remaining"]["rounds"]) == (run_id, 2, 2)
        assert run["remaining"]["total_tokens"] == 40_000 - 5_200


@pytest.mark.parametrize("mode", ERAS.values(), ids=ERAS.keys())
async def test_an_unknown_run_has_no_budget(place: Place, mode: str) -> None:
    async with app_at(place.settings(*LINES), Clock()) as app:
        for scope in ("run-none", "week", "run-" + "0" * 90):
            result = await call_budget_status(app, mode, scope=scope)
            assert result.is_error
            assert (result.structured_content or {})["code"] == "unknown_run"


def test_the_command_says_the_same(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    run_id, flags = asyncio.run(one_run(place)), Flags(home=str(place.home))
    today = datetime.now(UTC).date().isoformat()

    def spending(run: str | None = None, *, days: bool = False) -> Any:
        assert budget(run, days=days, as_json=True, flags=flags) == 0
        return json.loads(capsys.readouterr().out)

    assert (spending()["day"], spending()["spent"]["model_calls"]) == (today, 2)
    assert [each["spent"]["total_tokens"] for each in spending(days=True)["days"]] == [5_200]
    assert spending(run_id)["spent"]["total_tokens"] == 5_200
    for scope, days in ((None, False), (None, True), (run_id, False)):
        budget(scope, days=days, flags=flags)
        assert "5,200" in capsys.readouterr().out
    with pytest.raises(UnknownRun):
        budget("run-none", flags=flags)


async def one_run(place: Place) -> str:
    async with App.open(place.settings(*LINES), via="mcp") as app:
        return await start_run(app)


def test_the_command_knows_the_limits_of_the_day_before_anything_was_used(place: Place) -> None:
    environ = plain_environ()
    said = subprocess.run(
        [sys.executable, "-m", "kairos_mcp", "budget", "--json", "--home", str(place.home)],
        cwd=place.workspace,
        env={**environ, "KAIROS_DAY_MODEL_CALLS": "9"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(said.stdout)["remaining"]["model_calls"] == 9
    assert not place.db.exists()
