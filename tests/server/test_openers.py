"""The first result of a start: what a calling model has to read before it can answer."""

from __future__ import annotations

import json

from support.app import ME, Place, rests, says
from support.reviewers import connect_person

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.table_values import ServerSetting

MOST_CHARS = 5_000
MOST_TOKENS = 5_000
GOAL = "Find out why the test of the parser fails, and say it."


async def test_a_start_by_the_caller_is_short_without_servers(place: Place, era: str) -> None:
    async with App.open(place.settings(), via="mcp") as app, connect_person(app, era, None) as client:
        result = await client.sdk_client.call_tool("planner_run", {"goal": GOAL, "route": "caller"})
    (block,) = result.content
    assert len(block.text) <= MOST_CHARS
    assert len(json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":"))) <= MOST_CHARS
    (item,) = result.structured_content["waiting"]
    assert [tool["name"] for tool in item["tools"]] == [
        *("list_files", "file_tree", "read_file", "search_files", "read_result")
    ]
    assert "\nusage:" not in block.text


async def test_what_is_to_say_about_servers_is_said_where_they_are_asked_for(place: Place, era: str) -> None:
    names = [f"server-{n}" for n in range(6)]
    gone = [ServerSetting(name, "/nowhere/program", effects=(("*", "read"),), sandbox=False) for name in names]
    settings = place.settings(servers=tuple(gone))
    async with App.open(settings, via="mcp") as app, connect_person(app, era, None) as client:
        opened = await client.sdk_client.call_tool("planner_run", {"goal": GOAL, "route": "caller"})
        asked = {"goal": GOAL, "route": "caller", "tools": ["read_file", "server-3__*"], "key": "servers"}
        named = await client.sdk_client.call_tool("planner_run", asked)
        found = await client.sdk_client.call_tool("registry_search", {"query": "server"})
    assert len(opened.content[0].text) <= MOST_CHARS
    assert not any(name in opened.content[0].text for name in names)
    assert "registry_search" in opened.structured_content["degraded"][-1]
    assert [name for name in names if name in json.dumps(named.structured_content)] == ["server-3"]
    assert "server-0" in found.content[0].text


async def test_so_many_tokens_buy_a_first_round_of_a_model_that_never_reported_any(place: Place) -> None:
    async with App.open(place.settings(says("done")), via="mcp") as app:
        request = PlannerRequest(GOAL, limits=Limits(total_tokens=MOST_TOKENS))
        run = await rests(app, (await app.runs.start(request, ME)).run_id)
        assert (run.status, run.stop_reason) == ("completed", "assistant_stop")
