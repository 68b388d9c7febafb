"""Bad arguments, case by case: each is refused with its place named, nothing echoed, and the server goes on.

The ids are those of the fault cases. Where a case and the interface differ, the interface holds: the test
says so.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from support.sampling_clients import connect_client

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import Message
from kairos_mcp.server.arguments.base import Arguments
from kairos_mcp.server.arguments.planner import PlannerRun
from kairos_mcp.server.arguments.runs import RegistryCall, RunStatus
from kairos_mcp.server.validation import validate_arguments

DEEP: dict[str, Any] = {}
for _ in range(100):
    DEEP = {"a": DEEP}

BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "ARGS-001 missing": ("planner_run", {}, "goal"),
    "ARGS-001 mistyped": ("planner_run", {"goal": ["s3cret-value"]}, "goal"),
    "ARGS-002 unknown": ("planner_run", {"goal": "x", "zzz": 5}, "zzz"),
    "ARGS-002 unknown, nested": ("planner_run", {"goal": "x", "limits": {"round": 5}}, "limits.round"),
    "ARGS-003 text for a number": ("planner_run", {"goal": "x", "wait_s": "1"}, "wait_s"),
    "ARGS-003 truth for a number": ("planner_run", {"goal": "x", "wait_s": True}, "wait_s"),
    "ARGS-005 3.0 for an integer": ("planner_run", {"goal": "x", "limits": {"rounds": 3.0}}, "limits.rounds"),
    "ARGS-007 null in limits": ("planner_run", {"goal": "x", "limits": {"usd": None}}, "usd"),
    "ARGS-011 half an object as text": ("run_continue", {"run_id": "r", "answers": '{"a": '}, "answers"),
    "ARGS-011 no object as text": ("planner_run", {"goal": "x", "limits": "few"}, "limits"),
    "ARGS-011 a mandate as text": ("ooda_run", {"mandate": '{"goal": "x"}'}, "mandate"),
    "ARGS-007 NaN in a text": ("registry_call", {"name": "read_file", "arguments": '{"a": NaN}'}, "arguments"),
    "a placeholder in a text": ("run_continue", {"run_id": "r", "answers": '{"k": "<your answer>"}'}, "answers"),
    "ARGS-012 ten megabytes": ("planner_run", {"goal": "z" * 10_000_000}, "goal"),
    "bottomless": ("registry_call", {"name": "a", "arguments": DEEP}, "arguments"),
    "empty goal": ("planner_run", {"goal": ""}, "goal"),
    "blank goal": ("planner_run", {"goal": " \n"}, "goal"),
    "a context too long": ("planner_run", {"goal": "x", "context": "z" * 100_001}, "context"),
    "negative limit": ("planner_run", {"goal": "x", "limits": {"rounds": -1}}, "limits.rounds"),
    "too long a wait": ("run_status", {"wait_s": 601}, "wait_s"),
    "a route that is none": ("planner_run", {"goal": "x", "route": "telepathy"}, "route"),
    "settle what": ("run_control", {"run_id": "r", "action": "settle", "settlement": "reattempt"}, "key"),
    "settle how": ("run_control", {"run_id": "r", "action": "settle", "key": "k"}, "settlement"),
    "unknown view": ("run_trace", {"run_id": "r", "view": "tree"}, "view"),
    "since of another view": ("run_trace", {"run_id": "r", "since": 3}, "since"),
    "extend what": ("run_control", {"run_id": "r", "action": "extend"}, "limits"),
    "extend by nothing": ("run_control", {"run_id": "r", "action": "extend", "limits": {}}, "limits"),
    "reroute where": ("run_control", {"run_id": "r", "action": "reroute"}, "route"),
    "limits for pause": (
        "run_control",
        {"run_id": "r", "action": "pause", "limits": {"rounds": 1}},
        "limits",
    ),
    "answers in a list": ("run_continue", {"run_id": "r", "answers": []}, "answers"),
    "a message without role": (
        "planner_run",
        {"goal": "x", "messages": [{"content": "y"}]},
        "messages.0.role",
    ),
    "a result that no call asked for": (
        "planner_run",
        {"goal": "x", "messages": [{"role": "tool", "content": "y", "tool_call_id": "c1"}]},
        "messages",
    ),
    "a caller's tool with a bad name": (
        "planner_run",
        {"goal": "x", "caller_tools": [{"name": "a b", "description": "", "input_schema": {}}]},
        "caller_tools.0.name",
    ),
}


@pytest.mark.parametrize(("tool", "given", "place"), BAD.values(), ids=BAD)
async def test_bad_arguments_are_refused_by_name(settings, connect, tool, given, place):
    async with connect(settings) as client:
        error = await client.expect_error(tool, given)
        assert error["code"] == "bad_arguments"
        assert place in error["message"]
        assert "Required: " in error["hint"] or error["hint"]
        assert "s3cret" not in str(error)
        assert len(str(error)) < 2_000


async def test_objects_are_taken_as_json_texts_too(settings, connect):
    """As some models write them: the run, its answer and its limits are those that the objects give."""
    async with connect(settings) as client:
        plain = {"goal": "say hello", "route": "caller"}
        given = await client.ask("planner_run", plain | {"limits": {"rounds": 2}})
        same = await client.ask("planner_run", plain | {"limits": '{"rounds": 2}'})
        assert same["run_id"] == given["run_id"]
        assert same["remaining"]["rounds"] == 1
        answers = {given["waiting"][0]["key"]: {"content": "hello"}}
        ended = await client.ask("run_continue", {"run_id": given["run_id"], "answers": json.dumps(answers)})
        assert (ended["status"], ended["summary"]) == ("completed", "hello")
        called = await client.ask("registry_call", {"name": "read_file", "arguments": '{"path": "hello.txt"}'})
        assert called["output"]["content"].startswith("hello, world")
        plan = {
            "analysis": "One.",
            "strategy": "single_task",
            "tasks": [{"id": "one", "agent": "general", "description": "Look."}],
        }
        team = await client.ask("team_run", {"goal": "g", "plan": json.dumps(plan), "route": "caller", "wait_s": 0})
        assert [each["id"] for each in team["plan"]] == ["one"]


async def test_a_text_in_a_decision_stays_a_text(place):
    """What decides about an approval is an object, and nothing else."""
    settings = place.settings(approvals="host")
    async with App.open(settings, via="mcp") as app, connect_client(app) as client:
        write = {"name": "write_file", "arguments": {"path": "new.txt", "content": "x\n"}}
        waits = await client.ask("registry_call", write)
        (item,) = waits["waiting"]
        said = json.dumps({"decision": "approve", "digest": item["digest"]})
        result = await client.sdk_client.call_tool(
            "run_continue", {"run_id": waits["run_id"], "answers": {item["key"]: said}}
        )
        assert result.structured_content["code"] == "bad_arguments"
    assert not (place.workspace / "new.txt").exists()
    assert place.rows("select verdict from approval") == [(None,)]


async def test_one_run_is_named_by_run_id_as_by_run_ids(settings, connect):
    async with connect(settings) as client:
        first = await client.ask("planner_run", {"goal": "one", "route": "caller"})
        await client.ask("planner_run", {"goal": "two", "route": "caller"})
        by_id = await client.ask("run_status", {"run_id": first["run_id"]})
        assert by_id == await client.ask("run_status", {"run_ids": [first["run_id"]]})
        news = {"run_id": first["run_id"], "until": "news", "since": first["seq"], "wait_s": 0}
        assert [run["run_id"] for run in (await client.ask("run_status", news))["runs"]] == [first["run_id"]]
        error = await client.expect_error("run_status", {"run_id": first["run_id"], "all": True})
        assert error["code"] == "bad_arguments"


@pytest.mark.parametrize(
    ("tool", "given", "near"),
    [
        ("planner_run", {"gaol": "x"}, "goal"),
        ("planner_run", {"goal": "x", "limits": {"round": 2}}, "rounds"),
        ("run_status", {"runs": ["r"]}, "run_id"),
        ("mandate_save", {"mandate": {"goal": "x", "max_cycle": 3}}, "max_cycles"),
        ("ooda_run", {"mandate": {"gaol": "x"}}, "goal"),
    ],
)
async def test_a_mistyped_key_brings_the_nearest_and_no_schema(settings, connect, tool, given, near):
    async with connect(settings) as client:
        error = await client.expect_error(tool, given)
    text = f"{error['message']} {error['hint']}"
    assert error["code"] == "bad_arguments"
    assert near in text[text.lower().index("nearest") :]
    assert len(text) < 800


HOST_NAMES = {
    "Grep": "search_files",
    "Glob": "list_files",
    "Read": "read_file",
    "Edit": "edit_file",
    "Write": "write_file",
    "LS": "list_files",
    "bash": "run_command",
}


async def test_names_of_hosts_tools_lead_to_ours(place):
    async with App.open(place.settings(commands="bare"), via="mcp") as app, connect_client(app) as client:
        for name, ours in HOST_NAMES.items():
            result = await client.sdk_client.call_tool("planner_run", {"goal": "x", "tools": [name]})
            error = result.structured_content
            assert error["code"] == "unknown_tool"
            assert error["hint"].startswith(f"Here it is {ours}")
        missing = await client.sdk_client.call_tool("planner_run", {"goal": "x", "tools": ["WebFetch"]})
        assert "http_fetch" not in missing.structured_content["hint"], "it is switched off"


NO_JSON: dict[str, tuple[type[Arguments], dict[str, Any], str]] = {
    "ARGS-007 NaN": (PlannerRun, {"goal": "x", "wait_s": math.nan}, "wait_s"),
    "ARGS-007 1e999": (PlannerRun, {"goal": "x", "limits": {"usd": math.inf}}, "limits.usd"),
    "ARGS-007 NaN in a free object": (
        RegistryCall,
        {"name": "list_files", "arguments": {"a": [{"b": math.nan}]}},
        "arguments.a.0.b",
    ),
    "half a surrogate pair": (PlannerRun, {"goal": "x", "context": "\ud800"}, "context"),
    "half a surrogate pair in a key": (
        RegistryCall,
        {"name": "a", "arguments": {"\ud800": 1}},
        "arguments",
    ),
}


@pytest.mark.parametrize(("model", "given", "place"), NO_JSON.values(), ids=NO_JSON)
def test_what_a_client_of_ours_can_not_even_send_is_refused_by_name(model, given, place):
    with pytest.raises(BadArguments) as refused:
        validate_arguments(model, given)
    assert place in refused.value.message


SCHEMAS: dict[str, dict[str, Any]] = {
    "ARGS-013": {"$ref": "http://127.0.0.1:9/x"},
    "ARGS-014": {"$ref": "#"},
    "ARGS-018": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20_000)}},
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
async def test_a_schema_that_is_a_trap_is_refused_before_anything_starts(settings, connect, schema):
    async with connect(settings) as client:
        error = await client.expect_error("planner_run", {"goal": "x", "output_schema": schema})
        assert error["code"] in {"schema_rejected", "bad_arguments"}
        assert (await client.ask("run_status"))["runs"] == []


async def test_a_list_instead_of_arguments_is_a_protocol_error(settings, connect):  # ARGS-009
    async with connect(settings) as client:
        with pytest.raises((MCPError, ValueError)):
            await client.raw.call_tool("run_status", [1])  # type: ignore[arg-type]  # that is the case
        assert "runs" in await client.ask("run_status")


async def test_an_unknown_tool_is_a_protocol_error_that_names_the_known_ones(settings, connect):
    async with connect(settings) as client:
        with pytest.raises(MCPError) as refused:
            await client.raw.call_tool("planner", {})
        assert refused.value.code == -32602
        assert "planner_run" in refused.value.message
        assert "runs" in await client.ask("run_status")


@pytest.mark.parametrize("tool", ["run_continue", "run_control", "run_trace"])
async def test_an_unknown_run_is_told_as_such(settings, connect, tool):  # ARGS-023: as another principal's is
    more = {"run_continue": {"answers": {"round-1": {"content": "x"}}}, "run_control": {"action": "cancel"}}
    async with connect(settings) as client:
        error = await client.expect_error(tool, {"run_id": "nobody", **more.get(tool, {})})
        assert error["code"] == "unknown_run"


@pytest.mark.parametrize("query", ['"unclosed AND (NEAR', "*", "%", "'", "\0"], ids=["ARGS-027", *"*%'0"])
async def test_a_query_is_words_and_never_a_language(settings, connect, query):
    async with connect(settings) as client:
        found = await client.ask("registry_search", {"query": query})
        assert isinstance(found["tools"], list)


def test_absent_and_null_are_the_same():
    bare = validate_arguments(PlannerRun, {"goal": "x"})
    nulls = validate_arguments(
        PlannerRun,
        dict.fromkeys(field.alias or name for name, field in PlannerRun.model_fields.items()) | {"goal": "x"},
    )
    assert bare.request() == nulls.request()
    assert bare.wait == nulls.wait == 45
    assert validate_arguments(RunStatus, None).wait == 0
    assert validate_arguments(RunStatus, {"until": "done"}).wait == 45


def test_an_integer_is_fine_for_a_number():
    asked = validate_arguments(PlannerRun, {"goal": "x", "wait_s": 3, "limits": {"usd": 1, "seconds": 2.5}})
    assert asked.wait == 3
    assert asked.request().limits == Limits(nano_usd=10**9, milliseconds=2_500)


def test_a_prior_conversation_becomes_messages():
    call = {"id": "c1", "name": "look", "arguments": {"at": 1}}
    given = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "seen", "tool_call_id": "c1"},
        {"role": "assistant", "content": "a"},
    ]
    question, calling, result, answer = (
        validate_arguments(PlannerRun, {"goal": "x", "messages": given}).request().messages
    )
    assert question == Message("user", "q")
    assert calling.tool_calls[0].arguments == {"at": 1}
    assert result == Message("tool", "seen", tool_call_id="c1")
    assert answer.content == "a"


@pytest.mark.parametrize("missing", [1, 2])
def test_a_call_and_its_result_stand_side_by_side(missing):
    given = [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "look", "arguments": {}}]},
        {"role": "tool", "content": "seen", "tool_call_id": "c1"},
        {"role": "user", "content": "go on"},
    ]
    del given[missing - 1]
    with pytest.raises(BadArguments):
        validate_arguments(PlannerRun, {"goal": "x", "messages": given})


def test_a_refusal_never_repeats_a_long_key():
    with pytest.raises(BadArguments) as refused:
        validate_arguments(RunStatus, {"k" * 10_000: 1, **{f"u{i}": 1 for i in range(50)}})
    assert len(str(refused.value)) < 1_000
