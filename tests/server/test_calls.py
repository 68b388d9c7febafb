"""What each tool does, through a client of each era: a run started, watched, answered, steered, traced."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from mcp.client.client import Client
from support.script_lines import looks, says

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.server.mcp_server import build_server
from kairos_mcp.server.progress import progress_at
from kairos_mcp.server.truncation import CONVERSATION_CHARS, RESULT_CHARS
from kairos_mcp.views.cuts import size
from tests.server.conftest import ERAS

FOREIGN_CLIENTS = Path(__file__).parents[1] / "foreign" / "clients"
SECONDS = 20  # no test waits longer for what should come at once


async def test_a_run_waits_for_the_caller_and_goes_on_with_the_answer(settings, connect):
    async with connect(settings) as client:
        waiting = await client.ask("planner_run", {"goal": "say hello", "route": "caller"})
        assert waiting["status"] == "input_required"
        (item,) = waiting["waiting"]
        assert item["kind"] == "completion"
        assert item["messages"][-1]["role"] == "user"
        assert "say hello" in item["messages"][-1]["content"]
        assert waiting["next"]["tool"] == "run_continue"

        answer = {"run_id": waiting["run_id"], "answers": {item["key"]: {"content": "hello"}}}
        ended = await client.ask("run_continue", answer)
        assert (ended["status"], ended["summary"], ended["waiting"]) == ("completed", "hello", [])


async def test_a_round_with_tools_runs_them_and_comes_back(settings, connect):
    async with connect(settings) as client:
        waiting = await client.ask("planner_run", {"goal": "look around", "route": "caller"})
        key = waiting["waiting"][0]["key"]
        again = await client.ask("run_continue", {"run_id": waiting["run_id"], "answers": {key: looks()}})
        assert again["status"] == "input_required"
        messages = again["waiting"][0]["messages"]
        assert [message["role"] for message in messages[-2:]] == ["assistant", "tool"]
        assert "hello.txt" in messages[-1]["content"]
        assert again["calls"][0]["name"] == "list_files"


async def test_the_text_alone_is_enough_to_go_on(settings, connect):
    async with connect(settings) as client:
        result = await client.call("planner_run", {"goal": "say hello", "route": "caller"})
        head, items = result.content[0].text.rsplit("waiting items: ", 1)
        assert json.loads(items) == result.structured_content["waiting"]
        assert len(head.splitlines()) <= 12
        following = result.structured_content["next"]
        assert following["tool"] in head
        assert json.dumps(following["arguments"], separators=(",", ":"), ensure_ascii=False) in head


async def test_what_the_foreign_clients_read_in_a_text_is_what_the_result_holds(
    settings, workspace, connect, monkeypatch
):
    """They are started only on request: what they rely on is tested here, through a run that their model answers."""
    monkeypatch.syspath_prepend(FOREIGN_CLIENTS)
    monkeypatch.setattr("sys.argv", ["a client", "{}"])  # what such a client is asked to do: no team
    reader, host = importlib.import_module("result_text"), importlib.import_module("host_model")
    (workspace / "note.txt").write_text("word-0123456789ab\n")
    rounds = []
    async with connect(settings) as client:

        async def call(name, arguments):
            result = await client.call(name, arguments)
            read = reader.parse_text(result.content[0].text)
            shown = {"stop_reason": None, "summary": None, "waiting": [], "next": None} | result.structured_content
            if shown["next"] is not None:
                shown["next"] = {part: shown["next"][part] for part in ("tool", "arguments")}
            assert read == {name: shown[name] for name in read}
            rounds.append(read["rounds"])
            return read

        read = await host.converse(call, "planner_run", {"goal": host.GOAL})
    assert rounds == [1, 2, 3, 3]
    assert (read["status"], read["summary"]) == ("completed", "word-0123456789ab")


async def test_an_identical_start_attaches(settings, connect):
    async with connect(settings) as client:
        first = await client.ask("planner_run", {"goal": "say hello", "wait_s": 1})
        second = await client.ask("planner_run", {"goal": "say hello", "wait_s": 2})
        other = await client.ask("planner_run", {"goal": "say hello", "key": "another"})
        assert second["run_id"] == first["run_id"] != other["run_id"]
        assert any("attached" in note for note in second["degraded"])


async def test_an_answer_counts_only_for_what_waits(settings, connect):
    async with connect(settings) as client:
        waiting = await client.ask("planner_run", {"goal": "say hello"})
        run_id, key = waiting["run_id"], waiting["waiting"][0]["key"]
        error = await client.expect_error("run_continue", {"run_id": run_id, "answers": {"round-9": {"content": "x"}}})
        assert error["code"] == "not_waiting"
        error = await client.expect_error("run_continue", {"run_id": run_id, "answers": {key: {"contents": "x"}}})
        assert error["code"] == "bad_arguments"
        ended = await client.ask("run_continue", {"run_id": run_id, "answers": {key: {"content": "x"}}})
        again = await client.ask("run_continue", {"run_id": run_id, "answers": {key: {"content": "x"}}})
        assert again["summary"] == ended["summary"] == "x"
        error = await client.expect_error("run_continue", {"run_id": run_id, "answers": {key: {"content": "y"}}})
        assert error["code"] == "already_answered"


async def test_status_shows_the_newest_or_the_named_in_brief_or_in_full(settings, connect):
    async with connect(settings) as client:
        assert await client.ask("run_status") == {"runs": [], "next": None}
        first = await client.ask("planner_run", {"goal": "one"})
        second = await client.ask("planner_run", {"goal": "two"})
        newest = await client.ask("run_status")
        assert [run["run_id"] for run in newest["runs"]] == [second["run_id"], first["run_id"]]
        named = await client.ask("run_status", {"run_ids": [first["run_id"]], "view": "brief"})
        (run,) = named["runs"]
        assert [set(item) for item in run["waiting"]] == [{"key", "kind"}]
        assert named["next"]["arguments"]["run_id"] == first["run_id"]
        full = await client.ask("run_status", {"run_ids": [first["run_id"]]})
        assert full["runs"][0]["waiting"] == first["waiting"]


async def test_a_wait_for_attention_ends_when_the_run_does(script_settings, connect):
    async with connect(script_settings(looks(), says("done", delay_s=0.3))) as client:
        started = await client.ask("planner_run", {"goal": "go", "wait_s": 0})
        assert started["status"] == "working"
        with anyio.fail_after(SECONDS):
            ended = await client.ask("run_status", {"run_ids": [started["run_id"]], "until": "attention"})
        assert ended["runs"][0]["status"] == "completed"


async def test_a_cancelled_call_leaves_its_run_alone(script_settings, connect):
    async with connect(script_settings(says("done", delay_s=0.5))) as client:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as calls:
                calls.start_soon(client.ask, "planner_run", {"goal": "go"})
                while not (await client.ask("run_status"))["runs"]:
                    pass
                calls.cancel_scope.cancel()
            (run,) = (await client.ask("run_status", {"until": "done", "view": "full"}))["runs"]
        assert (run["status"], run["summary"]) == ("completed", "done")


async def test_a_run_is_cancelled_when_it_is_asked_for(settings, connect):
    async with connect(settings) as client:
        waiting = await client.ask("planner_run", {"goal": "go"})
        await client.ask("run_control", {"run_id": waiting["run_id"], "action": "cancel"})
        (run,) = (await client.ask("run_status", {"until": "done"}))["runs"]
        assert (run["status"], run["waiting"]) == ("cancelled", [])


def test_progress_begins_at_nothing_rises_with_each_beat_and_stays_below_its_total():
    numbers = [progress_at(round_number, beats) for round_number in range(4) for beats in range(1, 60)]
    assert numbers[0] == 0
    assert all(one < other for one, other in pairwise(numbers))
    assert numbers[-1] < 3


async def test_progress_rises_and_says_the_round(script_settings, connect):
    reported: list[tuple[float, float | None, str | None]] = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        reported.append((progress, total, message))

    async with connect(script_settings(looks(), looks(2), says("done"))) as client:
        in_memory = {"progressToken": "as a client on a wire sends one"}  # where the SDK hands over the callback itself
        await client.ask("planner_run", {"goal": "go"}, progress_callback=tell, meta=in_memory)
    figures = [progress for progress, _, _ in reported]
    assert figures
    assert figures == sorted(set(figures))
    assert figures[0] >= 0
    assert all(total is None or progress < total for progress, total, _ in reported)
    assert all(message and message.startswith("round ") for _, _, message in reported)


async def test_a_trace_and_a_search_say_the_same_in_text(settings, connect):
    async with connect(settings) as client:
        run = await client.ask("planner_run", {"goal": "go"})
        for tool, given in [("run_trace", {"run_id": run["run_id"]}), ("registry_search", {"names": None})]:
            result = await client.call(tool, given)
            assert json.loads(result.content[0].text) == result.structured_content


@pytest.mark.parametrize("view", ["events", "calls", "messages", "usage"])
async def test_every_view_of_a_trace_answers(settings, connect, view):
    async with connect(settings) as client:
        run = await client.ask("planner_run", {"goal": "go"})
        assert await client.ask("run_trace", {"run_id": run["run_id"], "view": view})


async def test_a_tool_is_called_without_a_loop(settings, connect):
    async with connect(settings) as client:
        called = await client.ask("registry_call", {"name": "read_file", "arguments": {"path": "hello.txt"}})
        assert called["status"] == "completed"
        assert "hello, world" in called["output"]["content"]
        assert called["output"]["is_error"] is False


async def test_a_failed_call_of_a_tool_is_a_failed_call_to_the_client(settings, connect):
    async with connect(settings) as client:
        result = await client.call("registry_call", {"name": "read_file", "arguments": {"path": "not.there"}})
        assert result.is_error
        assert result.structured_content["output"]["is_error"] is True
        assert result.structured_content["run_id"]


async def test_a_call_that_a_limit_refuses_is_a_failed_call_to_the_client(settings, connect):
    async with connect(replace(settings, limits=Limits(tool_calls=0))) as client:
        result = await client.call("registry_call", {"name": "read_file", "arguments": {"path": "hello.txt"}})
        assert result.is_error
        output = result.structured_content["output"]
        assert (output["is_error"], output["data"]["code"]) == (True, "budget_exhausted")
        assert output["data"].keys() == {"code", "message", "hint", "retryable"}


async def test_a_call_that_was_cancelled_has_failed_and_its_cancelling_has_not(settings, connect, workspace):
    write = {"name": "write_file", "arguments": {"path": "new.txt", "content": "new"}}
    async with connect(settings) as client:
        waits = await client.ask("registry_call", write)
        cancelled = await client.call("run_control", {"run_id": waits["run_id"], "action": "cancel"})
        assert (cancelled.is_error, cancelled.structured_content["status"]) == (False, "cancelled")
        result = await client.call("run_continue", {"run_id": waits["run_id"]})
        assert result.is_error
        output = result.structured_content["output"]
        assert (output["is_error"], output["data"]["code"]) == (True, "cancelled")
        assert not (workspace / "new.txt").exists()


async def test_an_unknown_tool_of_the_registry_starts_nothing(settings, connect):
    async with connect(settings) as client:
        error = await client.expect_error("registry_call", {"name": "read_fil", "arguments": {}})
        assert error["code"] == "unknown_tool"
        assert (await client.ask("run_status"))["runs"] == []


async def test_a_long_result_of_a_tool_fits_and_is_whole_under_its_ref(settings, connect, workspace):
    (workspace / "long.txt").write_text("".join(f"line {n}\n" for n in range(2_000)))
    async with connect(settings) as client:
        called = await client.ask("registry_call", {"name": "read_file", "arguments": {"path": "long.txt"}})
        assert size(called) <= RESULT_CHARS
        assert any("ref=output" in note for note in called["degraded"])
        whole = await client.ask("run_trace", {"run_id": called["run_id"], "ref": called["calls"][0]["ref"]})
        assert "line 1\n" in whole["text"]


async def test_a_long_conversation_is_handed_out_with_older_results_as_refs(settings, connect, workspace):
    (workspace / "long.txt").write_text("".join(f"line {n}\n" for n in range(2_000)))
    read = {"id": "c", "name": "read_file", "arguments": {"path": "long.txt"}}
    async with connect(settings) as client:
        run = await client.ask("planner_run", {"goal": "read it thrice"})
        for _ in range(3):
            answers = {run["waiting"][0]["key"]: {"tool_calls": [read]}}
            run = await client.ask("run_continue", {"run_id": run["run_id"], "answers": answers})
        (run,) = (await client.ask("run_status", {"run_ids": [run["run_id"]]}))["runs"]
        messages = run["waiting"][0]["messages"]
        assert sum(len(message["content"]) for message in messages) <= CONVERSATION_CHARS
        assert any("shrunk to refs" in note for note in run["degraded"])
        (shrunk, *_) = [message for message in messages if message["role"] == "tool"]
        whole = await client.ask("run_trace", {"run_id": run["run_id"], "ref": shrunk["tool_call_id"]})
        assert "line 1\n" in whole["text"]


async def test_a_bug_is_an_answer_without_a_stack(settings, era):
    async def reach() -> App:
        raise RuntimeError("/secret/path")

    async with Client(build_server(reach, settings), mode=ERAS[era]) as client:
        result = await client.call_tool("run_status", {})
        assert result.is_error
        assert result.structured_content["code"] == "internal_error"
        assert "secret" not in str(result)
        assert (await client.list_tools()).tools


async def test_without_a_workspace_there_are_no_file_tools_and_the_server_says_so(settings, connect):
    async with connect(replace(settings, workspaces=())) as client:
        assert "--workspace" in (client.raw.instructions or "")
        error = await client.expect_error("registry_call", {"name": "read_file", "arguments": {"path": "x"}})
        assert error["code"] == "unknown_tool"


async def test_a_run_that_is_steered_is_told_briefly(settings, connect):
    """Who pauses or extends a run has its requests, and needs none of their text again."""
    async with connect(settings) as client:
        waiting = await client.ask("planner_run", {"goal": "say hello " * 400, "route": "caller"})
        run_id = waiting["run_id"]
        paused = await client.ask("run_control", {"run_id": run_id, "action": "pause"})
        assert paused["status"] == "paused"
        extended = await client.ask("run_control", {"run_id": run_id, "action": "extend", "limits": {"rounds": 2}})
        for result in (paused, extended):
            assert [set(item) for item in result["waiting"]] == [{"key", "kind"}]
        resumed = await client.ask("run_control", {"run_id": run_id, "action": "resume"})
        assert resumed["waiting"][0]["messages"]
