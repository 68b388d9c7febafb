"""What a client's log is told: from the level that it names, of its own runs, and nothing where it named none."""

from __future__ import annotations

import asyncio
import time

import mcp_types as wire
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from support.app import ME, WITHIN_S, Place, reads, says, start_run
from support.logged import Logged, open_logged_client, set_level
from support.postgres import both_stores
from support.sampling_clients import ERAS, LEGACY, MODERN

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.server.mcp_server import build_server

EDIT = {
    "tool_calls": [
        {"name": "edit_file", "arguments": {"path": "a.txt", "old_string": "alpha\n", "new_string": "omega\n"}}
    ]
}
EDITS = {"goal": "edit it", "tools": ["edit_file"]}
KEY = "round-1/call-1/approval"


async def test_the_capability_is_declared(place: Place, era: str) -> None:
    async with App.open(place.settings(), via="mcp") as app, open_logged_client(app, era, None) as (client, _):
        assert client.server_capabilities.logging is not None


async def test_an_approval_and_the_end_are_told_with_what_to_do(place: Place, era: str) -> None:
    settings = place.settings(EDIT, says("Done."), approvals="host")
    async with App.open(settings, via="mcp") as app, open_logged_client(app, era, "info") as (client, logged):
        run = (await client.call_tool("planner_run", EDITS)).structured_content
        await logged.until(lambda: logged.of("approval_waits"))
        ((level, logger, data),) = logged.of("approval_waits")
        assert (level, logger) == ("notice", "kairos.approval")
        told = {name: data[name] for name in ("run_id", "goal", "workspace", "key", "tool")}
        workspace = str(place.workspace)
        assert told == {
            "run_id": run["run_id"],
            "goal": "edit it",
            "workspace": workspace,
            "key": KEY,
            "tool": "edit_file",
        }
        assert data["command"].endswith(f"{run['run_id']} {KEY}")
        assert f"approve --home {place.home}" in data["command"]
        (digest,) = (item["digest"] for item in run["waiting"])
        answers = {KEY: {"decision": "approve", "digest": digest}}
        await client.call_tool("run_continue", {"run_id": run["run_id"], "answers": answers})
        await logged.until(lambda: logged.of("run_ended"))
        ((level, logger, data),) = logged.of("run_ended")
        assert (level, logger) == ("info", "kairos.run")
        assert (data["status"], data["stop_reason"]) == ("completed", "assistant_stop")
        assert logged.events == ["approval_waits", "run_ended"]


async def test_nothing_is_sent_that_nobody_asked_for(place: Place, era: str) -> None:
    settings = place.settings(says("Done."))
    async with App.open(settings, via="mcp") as app, open_logged_client(app, era, None) as (client, logged):
        named_in_a_call = {wire.LOG_LEVEL_META_KEY: "debug"} if era == LEGACY else {}  # which counts in the modern era
        await client.call_tool("planner_run", {"goal": "look"}, meta=named_in_a_call)
        assert not app.watch.is_looking
        await client.list_tools()
        assert logged.entries == []


async def test_nothing_below_the_level_is_sent(place: Place, era: str) -> None:
    settings = place.settings(reads("a.txt"), says("Done."))
    async with App.open(settings, via="mcp") as app, open_logged_client(app, era, "notice") as (client, logged):
        await client.call_tool("planner_run", {"goal": "goes well"})  # it ends at the level info
        await client.call_tool("planner_run", {"goal": "is cut short", "limits": {"rounds": 1}})
        await logged.until(lambda: logged.entries)
        assert [(level, data["stop_reason"]) for level, _, data in logged.entries] == [("notice", "max_rounds")]


async def test_a_session_may_name_another_level(place: Place) -> None:
    settings = place.settings(says("Done."))
    async with App.open(settings, via="mcp") as app, open_logged_client(app, LEGACY, "error") as (client, logged):
        await client.call_tool("planner_run", {"goal": "one"})
        with pytest.raises(MCPError) as refusal:
            await set_level(client, "loud")
        assert refusal.value.code == wire.INVALID_PARAMS
        await asyncio.sleep(0)
        await client.call_tool("planner_run", {"goal": "two"})
        await set_level(client, "info")
        await client.call_tool("planner_run", {"goal": "three"})
        await logged.until(lambda: "three" in [data["goal"] for _, _, data in logged.entries])
        assert app.watch.is_looking
    assert not app.watch.is_looking


async def test_a_session_is_told_of_runs_that_were_there_and_of_those_of_other_processes(place: Place) -> None:
    settings = place.settings(EDIT, says("Done."))
    async with App.open(settings, via="mcp") as app, App.open(settings, via="mcp") as other:
        waited = await start_run(app, "waits already", tools=("edit_file",))
        async with open_logged_client(app, LEGACY, "info") as (_, logged):
            elsewhere = await start_run(other, "elsewhere", tools=("edit_file",))
            await logged.until(lambda: logged.entries)
            await app.control.cancel(waited, ME)
            await logged.until(lambda: logged.of("run_ended"))
        assert [(event, data["run_id"]) for _, _, data in logged.entries for event in [data["event"]]] == [
            ("approval_waits", elsewhere),
            ("run_ended", waited),
        ]


async def test_a_call_is_told_of_its_own_run_alone(place: Place) -> None:
    settings = place.settings(EDIT, says("Done."))
    async with App.open(settings, via="mcp") as app:
        other = await start_run(app, "another", tools=("edit_file",))
        async with open_logged_client(app, MODERN, "debug") as (client, logged):
            mine = (await client.call_tool("planner_run", EDITS)).structured_content["run_id"]
            assert [(data["event"], data["run_id"]) for _, _, data in logged.entries] == [("approval_waits", mine)]
            await client.call_tool("run_status", {"run_ids": [other, mine]})
            await client.call_tool("run_status", {})
            assert len(logged.entries) == 1  # both have waited for long when they are looked at
            await client.call_tool("run_control", {"run_id": other, "action": "cancel"})
            assert [(data["event"], data["run_id"]) for _, _, data in logged.entries[1:]] == [("run_ended", other)]


@pytest.mark.parametrize("era", ERAS)
async def test_a_principal_s_log_has_nothing_of_another_s_runs(place: Place, era: str) -> None:
    settings = place.settings(EDIT, says("Done."))
    async with App.open(settings, via="mcp") as app, open_logged_client(app, era, "debug", "bob") as (client, logged):
        hers = (await app.runs.start(PlannerRequest("hers", tools=("edit_file",)), Caller("alice"))).run_id
        await app.runs.wait([hers], until="attention", wait_s=WITHIN_S, caller=Caller("alice"))
        assert (await client.call_tool("run_status", {"run_ids": [hers]})).is_error
        his = (await client.call_tool("planner_run", EDITS)).structured_content["run_id"]
        await logged.until(lambda: logged.entries)
        ((_, _, data),) = logged.entries
        assert (data["run_id"], data["workspace"]) == (his, "workspace")
        assert "command" not in data  # which only who owns the state folder could use


async def test_a_budget_near_its_end_is_told_once(place: Place, era: str) -> None:
    turns = [reads("a.txt", usage={"input_tokens": 100, "output_tokens": 10}) for _ in range(3)]
    settings = place.settings(*turns, says("Done."))
    async with App.open(settings, via="mcp") as app, open_logged_client(app, era, "warning") as (client, logged):
        limits = {"tool_calls": 3, "rounds": 4}
        result = await client.call_tool("planner_run", {"goal": "look", "limits": limits})
        await logged.until(lambda: logged.entries)
        ((level, logger, data),) = logged.entries
        assert (level, logger, data["event"]) == ("warning", "kairos.budget", "budget_nearly_used")
        assert (data["unit"], data["used"], data["limit"]) == ("tool_calls", 3, 3)
        assert data["run_id"] == result.structured_content["run_id"]


@both_stores
async def test_a_run_that_begins_while_the_app_opens_is_told_whatever_the_machine_s_clock_shows(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a database its time is by another clock than this machine's, which is some minutes ahead."""
    ahead = time.time_ns() + 300 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: ahead)
    logged, opened = Logged(), asyncio.Event()
    async with App.open(place.settings(says("Done.")), via="mcp") as app:

        async def open_slowly() -> App:
            await opened.wait()
            return app

        async with Client(
            build_server(open_slowly, app.settings), mode=ERAS[LEGACY], logging_callback=logged
        ) as client:
            await set_level(client, "info")
            run_id = await start_run(app)
            opened.set()
            await logged.until(lambda: logged.of("run_ended"))
    assert [data["run_id"] for _, _, data in logged.of("run_ended")] == [run_id]
