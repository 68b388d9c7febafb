"""A run is gone on with only where there is what it thinks with: else it waits for a server that has it."""

from __future__ import annotations

import asyncio

import pytest
from support.app import ME, PERSON, Place, assert_all_lawful, open_checked_app, rests, start_run, wait_for_step
from support.provider_server import WITHIN_S, Standin, calls, silent, talks

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.settings import Settings
from kairos_mcp.views.run_report import RunReport

KEY = "round-1/call-1/approval"
WRITES = calls(("write_file", {"path": "new.txt", "content": "new\n"}))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-1234567890abcdef")


def provider_settings(place: Place, server: Standin, **more: object) -> Settings:
    return place.settings(model="openai:small", base_url=server.openai, **more)


async def left_in_the_middle(place: Place, server: Standin) -> str:
    """A run whose server has gone while its provider was thinking."""
    server.will(silent)
    async with App.open(provider_settings(place, server), via="mcp") as first:
        run_id = (await first.runs.start(PlannerRequest("look"), ME)).run_id
        async with asyncio.timeout(WITHIN_S):
            await server.came.wait()
    return run_id


async def looked_at(settings: Settings, run_id: str) -> RunReport:
    """What a server of these settings says of the run, once it has been called."""
    async with App.open(settings, via="mcp") as other:
        await other.runs.wait([run_id], until="rest", wait_s=1, caller=ME)
        return await other.runs.report(run_id, ME)


async def test_a_server_without_a_provider_leaves_the_run_to_one_that_has_it(place: Place, server: Standin) -> None:
    run_id = await left_in_the_middle(place, server)
    before = place.rows("select owner, fence from run")
    report = await looked_at(place.settings(), run_id)
    assert (report.status, report.waiting) == ("paused", ())
    assert any("a provider (KAIROS_MODEL)" in text for text in report.degraded)
    assert place.rows("select owner, fence from run") == before
    assert place.rows("select count(*) from attempt") == [(0,)]
    server.will(talks("done"))
    async with open_checked_app(provider_settings(place, server)) as able:
        assert (await rests(able, run_id)).summary == "done"


async def test_it_can_be_rerouted_where_its_provider_is_not(place: Place, server: Standin) -> None:
    run_id = await left_in_the_middle(place, server)
    async with open_checked_app(place.settings()) as other:
        await other.control.reroute(run_id, "caller", ME)
        report = await rests(other, run_id)
        assert (report.route, [item["key"] for item in report.waiting]) == ("caller", ["round-1"])


async def test_approval_given_where_the_provider_is_not_is_carried_out_where_it_is(
    place: Place, server: Standin
) -> None:
    server.will(talks(None, WRITES, finish="tool_calls"), talks("written"))
    async with App.open(provider_settings(place, server), via="mcp") as first:
        run_id = await start_run(first, tools=("write_file",))
    async with App.open(place.settings(), via="command") as command:
        await command.answers.decide(run_id, KEY, "approve", None, PERSON)
        await command.control.drive(run_id)
        await command.runs.wait([run_id], until="rest", wait_s=1, caller=ME)
        assert (await command.runs.report(run_id, ME)).status == "paused"
    assert place.rows("select verdict from approval") == [("approve",)]
    assert place.rows("select path from step where path = 'round-2'") == []
    assert not (place.workspace / "new.txt").exists()
    async with open_checked_app(provider_settings(place, server)) as able:
        assert (await rests(able, run_id)).summary == "written"
    assert (place.workspace / "new.txt").read_text() == "new\n"


@pytest.mark.unreplayed
async def test_a_command_goes_on_with_no_run_of_another_version(place: Place) -> None:
    lines = ({"tool_calls": [{"name": "write_file", "arguments": {"path": "new.txt", "content": "new\n"}}]},)
    async with App.open(place.settings(*lines), via="mcp") as first:
        run_id = await start_run(first, tools=("write_file",))
    place.rows("update run set version = version + 1")
    async with App.open(place.settings(*lines), via="command") as command:
        await command.answers.decide(run_id, KEY, "approve", None, PERSON)
        await command.control.drive(run_id)
        await command.runs.wait([run_id], until="rest", wait_s=1, caller=ME)
        assert any("of the flow planner" in text for text in (await command.runs.report(run_id, ME)).degraded)
    assert not (place.workspace / "new.txt").exists()


async def test_a_run_with_tools_that_are_not_here_says_so_and_is_left(place: Place) -> None:
    lines = ({"content": "done", "finish": "stop", "delay_s": 1.5},)
    async with App.open(place.settings(*lines, http_fetch=True), via="mcp") as first:
        run_id = (await first.runs.start(PlannerRequest("look", tools=("http_fetch",)), ME)).run_id
        await wait_for_step(first, "round-1")
    report = await looked_at(place.settings(*lines), run_id)
    assert report.status == "paused"
    assert any("the tools that it was given" in text for text in report.degraded)
    assert place.rows("select count(*) from answer") == [(0,)]
    async with App.open(place.settings(*lines, http_fetch=True), via="mcp") as able:
        assert (await rests(able, run_id)).summary == "done"
        await assert_all_lawful(able)
