"""With very many tools decide is shown those that read and a search; what it finds can be called, or be named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.app import UNWATCHED
from support.cycles import EDITS_ALLOWED, MANDATE, gives, judgement_line, noop, open_scripted_client, orientation_line
from support.sampling_clients import MODERN

from kairos_mcp.settings.http_definition import HttpDefinition
from kairos_mcp.settings.table_values import ServerSetting
from kairos_mcp.tools.selection import MAX_SHOWN_TOOLS, MAX_SPEC_CHARS

PEER = Path(__file__).parent.parent / "downstream" / "peer.py"
MANY = {**MANDATE, "max_cycles": 1, "tools": ["*"], "allowed_actions": ["run_tool", "noop"], "risk_budget": "medium"}


def http_tools(count: int, effect: Any, prefix: str = "tool") -> tuple[Any, ...]:
    """Definitions of tools that nobody calls here."""
    method: Any = "GET" if effect == "read" else "PUT"
    about = {7: "whales"}
    return tuple(
        HttpDefinition(
            f"{prefix}_{number:02}",
            f"Number {number} of many, about {about.get(number, 'stones')}.",
            f"https://api.example.com/{number}",
            method,
            effect=effect,
        )
        for number in range(count)
    )


def search(**arguments: Any) -> dict[str, Any]:
    return {"content": "", "tool_calls": [{"id": "1", "name": "registry_search", "arguments": arguments}]}


def names(item: dict[str, Any]) -> list[str]:
    return [tool["name"] for tool in item["tools"]]


async def decides(client: Any, *turns: Any, mandate: dict[str, Any] = MANY) -> tuple[dict[str, Any], list[Any]]:
    """The phase decide of this mandate with the caller as its model: its result, and what it was asked each time."""
    run = await client.ask("ooda_decide", {"mandate": mandate, "orientation": json.loads(orientation_line()["content"]),
                                         "route": "caller"})  # fmt: skip
    asked = []
    for turn in turns:
        (item,) = run["waiting"]
        asked.append(item)
        said = turn() if callable(turn) else turn
        run = await client.ask("run_continue", {"run_id": run["run_id"], "answers": {item["key"]: said}})
    return run, asked


async def test_a_crowd_of_tools_is_found_and_not_shown(place):
    settings = {"http_tools": (*http_tools(45, "read"), *http_tools(45, "idempotent", "put"))}
    named = gives({"action": "run_tool", "tool": "put_07", "arguments": {}, "intent": "try it"})
    async with open_scripted_client(place, MODERN, **settings) as client:
        run, (first, second, third) = await decides(client, search(query="whales"), search(names=["put_03"]), named)
        assert "tool_07" not in names(first)
        assert {"read_file", "registry_search"} <= set(names(first))
        assert "put_07" not in str(first["messages"])
        assert len(first["tools"]) <= MAX_SHOWN_TOOLS
        assert len(json.dumps(first["tools"])) < MAX_SPEC_CHARS
        assert (second["after"], names(second)) == ("decide", ["tool_07"])
        assert "put_07 (idempotent): Number 7" in second["messages"][-1]["content"]
        assert "put_03" in third["messages"][-1]["content"]
        assert (run["status"], run["output"]["tool"]) == ("completed", "put_07")
        (seen,) = (await client.ask("run_status", {"run_ids": [run["run_id"]]}))["runs"]
        assert any("too many to show" in note for note in seen["degraded"])


async def test_what_is_behind_the_search_is_not_called_before_it_was_found(place):
    settings = {"http_tools": http_tools(45, "read")}
    sly = {"content": "", "tool_calls": [{"id": "1", "name": "tool_07", "arguments": {}}]}
    async with open_scripted_client(place, MODERN, **settings) as client:
        run, asked = await decides(client, sly, noop())
        assert "tool_not_offered" in asked[1]["messages"][-1]["content"]
        assert run["output"]["action"] == "noop"
    assert place.rows("select count(*) from step where kind = 'call' and path like 'decide/read-2/%'") == [(0,)]


@pytest.mark.slow
async def test_decide_finds_what_came_after_the_start_and_calls_what_only_reads(place, tmp_path):
    comes = tmp_path / "comes"
    effects = (("echo", "read"), ("write", "idempotent"))
    slow = ServerSetting("x", (sys.executable, str(PEER), f"late={comes}"), effects=effects, sandbox=False)
    calls = [{"id": "1", "name": "x__echo", "arguments": {"text": "heard"}}]
    async with open_scripted_client(place, MODERN, servers=(slow,), flow=UNWATCHED) as client:

        def finds(**asked: Any) -> dict[str, Any]:
            comes.touch()
            return search(**asked)

        turns = (lambda: finds(names=["x__echo", "x__write"]), lambda: {"content": "", "tool_calls": calls}, noop)
        run, asked = await decides(client, *turns)
        assert "x__echo" not in names(asked[0])
        assert "registry_search" in names(asked[0])
        assert names(asked[1]) == ["x__echo"]  # what is new: whoever answers has the others
        assert "heard" in asked[2]["messages"][-1]["content"]
        notes = (await client.ask("run_status", {"run_ids": [run["run_id"]], "view": "full"}))["runs"][0]["degraded"]
        assert any("those of x," in note for note in notes)
        assert any("joins the next run" in note for note in notes)


async def test_few_tools_are_all_shown_without_a_search(place):
    async with open_scripted_client(place, MODERN, http_tools=http_tools(5, "read")) as client:
        run, (first,) = await decides(client, noop())
        assert "tool_03" in names(first)
        assert "registry_search" not in names(first)
        assert not any("too many" in note for note in run["degraded"])


async def test_what_the_mandate_looks_at_is_observed_all_the_same(place):
    mandate = {**MANY, "observe": ["file_tree", "tool_07"]}
    settings = {"http_tools": http_tools(45, "read"), "gate": (*EDITS_ALLOWED,)}
    async with open_scripted_client(place, MODERN, **settings) as client:
        run = await client.ask("ooda_observe", {"mandate": mandate})
        assert [each["status"] for each in run["output"]["observations"]] == ["result", "error"]


async def test_cycles_with_a_search_in_them_replay_and_go_on_in_another_server(place):
    settings = {"http_tools": http_tools(45, "read")}
    lines = (orientation_line(), search(query="whales"), noop(), judgement_line())
    async with open_scripted_client(place, MODERN, *lines, **settings) as client:
        done = await client.ask("ooda_run", {"mandate": {**MANY, "max_cycles": 1}})
        assert done["output"]["cycles"][0]["status"] == "noop"
    ((body,),) = place.rows("select body from answer join step on step.id = step where path like '%/read-2/call-1'")
    assert [spec["name"] for spec in json.loads(body)["data"]["offer"]] == ["tool_07"]


@pytest.mark.parametrize("name", ["tool_99", "edit_file"])
async def test_a_decision_names_only_what_the_mandate_allows(place, name):
    wrong = gives({"action": "run_tool", "tool": name, "arguments": {}, "intent": "slip"})
    async with open_scripted_client(place, MODERN, http_tools=http_tools(45, "read")) as client:
        run, _ = await decides(client, wrong, wrong, wrong)
        assert run["output"]["status"] == "parse_error"
