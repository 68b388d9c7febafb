"""What a client's log is told of a provider that fails, and of its outage."""

from __future__ import annotations

import pytest
from support.app import Place
from support.logged import open_logged_client
from support.provider_server import Standin, refuses
from support.sampling_clients import ERAS

from kairos_mcp.app.app import App


@pytest.mark.parametrize("era", ERAS)
async def test_retries_and_an_outage_are_told(
    place: Place, server: Standin, monkeypatch: pytest.MonkeyPatch, era: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-1234567890abcdef")
    server.will(*[refuses(529, Retry_After="0")] * 4)
    settings = place.settings(model="openai:small", base_url=server.openai)
    async with App.open(settings, via="mcp") as app, open_logged_client(app, era, "debug") as (client, logged):
        await client.call_tool("planner_run", {"goal": "look"})
        await logged.until(lambda: logged.of("run_paused"))
        ((level, logger, data),) = logged.of("run_paused")
        assert (level, logger) == ("warning", "kairos.run")
        assert data["resume_at"]
        assert data["reason"] == place.rows("select paused from run")[0][0]
        repeated = logged.of("step_repeated")
        ended = [row for (row,) in place.rows("select ended from attempt where waits_outside = 0 order by id")]
        assert [data["reason"] for _, _, data in repeated] == ended
        assert len(ended) == 3
        assert {level for level, _, _ in repeated} == {"info"}
