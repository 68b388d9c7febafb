"""A read-only server: over all tools, nothing that does more than read is offered, made, approved or taken over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.app import ME, PERSON, Place, assert_all_lawful, place_in, reads, rests, says
from support.cycles import MANDATE, gives, noop, orientation_line
from support.reviewers import Person, accepts, connect_person

from kairos_mcp.app.app import App
from kairos_mcp.cli.serve import plain_serve
from kairos_mcp.core.builtin_tools import BUILTIN, REQUEST_MORE_ROUNDS
from kairos_mcp.core.effects import WRITING_TOOLS
from kairos_mcp.core.errors import ApprovalRequired, ToolNotOffered, UnknownTool
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.flows.ooda.phase_kinds import PHASES
from kairos_mcp.server.mcp_server import instructions, list_tools
from kairos_mcp.server.tools import TOOLS
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.specs.call import CallRequest

ALLOWS_ALL = (GateRule("*", "allow", effect="irreversible"), GateRule("*", "allow"))
CHANGING = [tool.name for tool in BUILTIN.values() if tool.effect != "read" and tool != REQUEST_MORE_ROUNDS]
EDIT = {"name": "edit_file", "arguments": {"path": "a.txt", "old_string": "alpha", "new_string": "omega"}}
KEY = "round-1/call-1/approval"
WRONG = {
    "ooda_run": {"mandate": MANDATE},
    "ooda_act": {"mandate": MANDATE, "decision": {"action": "noop", "reason": "so"}},
    "mandate_save": {"mandate": MANDATE},
    "registry_register": {"spec": {"kind": "server", "name": "more", "command": ["true"]}},
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


def looking(place: Place, *lines: Any, **more: Any) -> Any:
    return place.settings(*lines, **{"read_only": True, "gate": ALLOWS_ALL, "approvals": "host", **more})


def test_every_tool_of_ours_is_listed_but_for_those_that_write(place):
    listing = list_tools("all", read_only=True)
    assert [tool.name for tool in listing.tools] == [tool.name for tool in TOOLS if tool.name not in WRITING_TOOLS]
    assert {phase.tool for phase in PHASES.values() if phase.calls is None} <= set(WRITING_TOOLS)
    told = instructions(looking(place), listing)
    assert "read-only" in told
    assert not [name for name in WRITING_TOOLS if name in told]


@pytest.mark.parametrize("name", WRITING_TOOLS)
async def test_one_that_writes_is_refused_where_it_is_called_all_the_same(place, era, name):
    async with App.open(looking(place), via="mcp") as app, connect_person(app, era, None) as client:
        result = await client.sdk_client.call_tool(name, WRONG[name])
        assert (result.is_error, result.structured_content["code"]) == (True, "tool_not_offered")
        assert "read-only" in result.structured_content["message"]
        for table in ("run", "mandate", "definition"):
            assert not place.has_tables() or place.rows(f"select count(*) from {table}") == [(0,)], table


async def test_no_hint_says_that_a_run_may_change_anything(place, era):
    async with App.open(looking(place), via="mcp") as app, connect_person(app, era, None) as client:
        tools = {tool.name: tool.annotations for tool in (await client.sdk_client.list_tools()).tools}
        assert not tools["planner_run"].destructive_hint
    with_edits = replace(looking(place), read_only=False)
    async with App.open(with_edits, via="mcp") as app, connect_person(app, era, None) as client:
        tools = {tool.name: tool.annotations for tool in (await client.sdk_client.list_tools()).tools}
        assert tools["planner_run"].destructive_hint


@pytest.mark.parametrize("name", CHANGING)
async def test_no_tool_that_does_more_than_read_is_offered_to_a_run_or_called(place, name):
    async with App.open(looking(place, says("done"), http_fetch=True), via="mcp") as app:
        with pytest.raises(UnknownTool):
            await app.runs.start(CallRequest(name, {}), ME)
        with pytest.raises(UnknownTool):
            await app.runs.start(PlannerRequest("change it", tools=(name,)), ME)
        assert name not in [summary.name for summary in (await app.tools.list_all())[0]]


async def test_a_glob_gives_what_reads_and_a_call_of_anything_else_is_refused(place):
    turn = {"tool_calls": [EDIT, *reads("a.txt")["tool_calls"]]}
    async with App.open(looking(place, turn, says("done")), via="mcp") as app:
        run_id = (await app.runs.start(PlannerRequest("change it", tools=("*",)), ME)).run_id
        report = await rests(app, run_id)
        assert (report.status, [call["ok"] for call in report.calls]) == ("completed", [False, True])
        assert (place.workspace / "a.txt").read_text() == "alpha\n"
        await assert_all_lawful(app)


async def test_an_agent_that_edits_reads(place):
    async with App.open(looking(place, reads("a.txt"), says("done")), via="mcp") as app:
        run_id = (await app.runs.start(PlannerRequest("look", agent="file_manager"), ME)).run_id
        assert (await rests(app, run_id)).status == "completed"


async def test_what_would_be_asked_about_is_denied(place):
    (place.workspace / ".env").write_text("KEY=sk-proj-abcDEF0123456789abcdef\n")
    lines = reads(".env"), says("done")
    async with App.open(looking(place, *lines, gate=()), via="mcp") as app:
        report = await rests(app, (await app.runs.start(PlannerRequest("look"), ME)).run_id)
        assert (report.status, report.calls[0]["ok"]) == ("completed", False)
        assert place.rows("select count(*) from approval") == [(0,)]


async def test_the_caller_s_own_tools_may_only_read(place, era):
    tool = {"name": "look_up", "description": "Look it up.", "input_schema": {"type": "object"}}
    given = {"goal": "look", "route": "caller"}
    async with App.open(looking(place), via="mcp") as app, connect_person(app, era, None) as client:
        refused = await client.sdk_client.call_tool("planner_run", {**given, "caller_tools": [tool]})
        assert refused.structured_content["code"] == "bad_arguments"
        run = await client.ask("planner_run", {**given, "caller_tools": [{**tool, "effect": "read"}]})
        assert run["status"] == "input_required"


async def test_a_run_of_another_server_is_shown_and_neither_decided_nor_taken_over(place, era):
    """Its approval is decided elsewhere; this server, which is alive, leaves the edit to one that has the tool."""
    turn = {"tool_calls": [EDIT]}
    script = (turn, says("done"))
    async with App.open(place.settings(*script), via="mcp") as app:
        run_id = (await app.runs.start(PlannerRequest("change it", tools=("*",)), ME)).run_id
        await rests(app, run_id)
    person = Person([accepts(decision="approve")])
    only_reads = looking(place, *script)
    async with App.open(only_reads, via="mcp") as app, connect_person(app, era, person) as client:
        body = await client.ask("run_status", {"run_ids": [run_id]})
        (item,) = body["runs"][0]["waiting"]
        assert body["next"]["tool"] == "run_status"
        given = {"run_id": run_id, "answers": {KEY: {"decision": "approve", "digest": item["digest"]}}}
        refused = await client.sdk_client.call_tool("run_continue", given)
        assert refused.structured_content["code"] == "approval_required"
        await client.ask("run_continue", {"run_id": run_id, "wait_s": 0})
        assert person.seen == []
        with pytest.raises(ApprovalRequired):
            await app.answers.decide(run_id, KEY, "approve", None, PERSON)
        assert place.rows("select verdict from approval") == [(None,)]
        async with App.open(place.settings(*script), via="command") as other:
            await other.answers.decide(run_id, KEY, "approve", None, PERSON, drive=False)
        (seen,) = (await client.ask("run_status", {"run_ids": [run_id]}))["runs"]
        assert (seen["status"], (place.workspace / "a.txt").read_text()) == ("paused", "alpha\n")
        assert any("tools" in note for note in seen["degraded"]), seen["degraded"]
    async with App.open(place.settings(*script), via="mcp") as app:
        assert (await rests(app, run_id)).status == "completed"
        assert (place.workspace / "a.txt").read_text() == "omega\n"


async def test_phases_look_and_none_leads_to_one_that_acts(place, era):
    lines = gives({"tool_calls": []}), orientation_line(), noop()
    mandate = {**MANDATE, "observe": ["file_tree"]}
    async with App.open(looking(place, *lines), via="mcp") as app, connect_person(app, era, None) as client:
        observed = await client.ask("ooda_observe", {"mandate": mandate})
        oriented = await client.ask("ooda_orient", {"mandate": mandate, "observation": observed["run_id"]})
        decided = await client.ask("ooda_decide", {"mandate": mandate, "orientation": oriented["run_id"]})
        assert (decided["status"], decided["next"]) == ("completed", None)


def test_the_flag_and_the_variable_say_the_same(tmp_path):
    flags = plain_serve(["serve", "--read-only", "--home", str(tmp_path)])
    assert flags == Flags(home=str(tmp_path), read_only=True)
    assert load_settings(flags, {}).read_only
    assert load_settings(Flags(home=str(tmp_path)), {"KAIROS_READ_ONLY": "true"}).read_only
    assert not load_settings(Flags(home=str(tmp_path)), {}).read_only


async def test_a_tool_that_was_offered_before_is_not_called_by_a_server_that_only_reads_now(place):
    async with App.open(looking(place), via="mcp") as app:
        registry = await app._context.factory.registry(str(place.workspace))
        with pytest.raises(ToolNotOffered, match="read-only"):
            registry.resolve(BUILTIN["edit_file"].spec("", {"type": "object"}, category="file_ops"))
