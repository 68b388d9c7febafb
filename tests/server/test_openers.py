"""The first result of a start: what a calling model has to read before it can answer."""

from __future__ import annotations

import json

from support.app import ME, Place, rests, says
from support.reviewers import connect_person

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest

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


async def test_so_many_tokens_buy_a_first_round_of_a_model_that_never_reported_any(place: Place) -> None:
    async with App.open(place.settings(says("done")), via="mcp") as app:
        request = PlannerRequest(GOAL, limits=Limits(total_tokens=MOST_TOKENS))
        run = await rests(app, (await app.runs.start(request, ME)).run_id)
        assert (run.status, run.stop_reason) == ("completed", "assistant_stop")
