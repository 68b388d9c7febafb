"""What broke in the older planner loop, tried on whole runs: rows, requests and sockets say that it can not here."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support.app import ME, answer_run, open_checked_app, outcome_of, reads, rests, says, start_run
from support.network import Peer, peer, rules, text

from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.http_tool_table import parse_http_tool

WITHIN_S = 10.0


@pytest.fixture
def web() -> Iterator[Peer]:
    with peer() as serving:
        yield serving


async def test_a_model_that_fails_loses_no_round_call_or_usage_and_the_next_run_goes_on_from_them(place):
    failing = {"error": {"code": "provider_error", "message": "gone"}}
    async with open_checked_app(place.settings(reads("a.txt"), reads("b.txt"), failing, says("done"))) as app:
        run_id = await start_run(app)
        report = await rests(app, run_id)
        assert (report.status, report.stop_reason, report.rounds) == ("failed", "llm_error", 3)
        assert (report.usage["model_calls"], report.usage["tool_calls"]) == (3, 2)
        assert [call["ok"] for call in report.calls] == [True, True]
        assert "provider_error: gone" in report.degraded
        assert report.next["arguments"]["continues"] == run_id
        following = await start_run(app, **report.next["arguments"], route="caller")
        (item,) = (await rests(app, following)).waiting
        results = [message["content"] for message in item["messages"] if message["role"] == "tool"]
        assert ["alpha" in results[0], "beta" in results[1]] == [True, True]


async def test_the_results_of_the_last_round_are_shown_to_the_model_before_the_run_ends(place):
    async with open_checked_app(place.settings()) as app:
        run_id = await start_run(app, limits=Limits(rounds=1))
        report = await answer_run(app, run_id, round_1=reads("a.txt"))
        (item,) = report.waiting
        assert (item["key"], item["tools"]) == ("closing", [])
        assert [message["role"] for message in item["messages"]] == ["user", "assistant", "tool", "user"]
        assert item["messages"][2]["content"].endswith("\nalpha\n")
        report = await answer_run(app, run_id, closing=says("It says alpha."))
    assert (report.status, report.stop_reason) == ("stopped", "max_rounds")
    assert outcome_of(place, run_id)["summary"] == "It says alpha."


async def test_reads_of_one_turn_are_under_way_at_the_same_time(place, web):
    """Each is answered only once the others have come: one after the other would wait for ever."""
    together = threading.Barrier(3)

    def reply(peer, line):
        together.wait(WITHIN_S)
        text("here")(peer, line)

    web.will(reply)
    tool = parse_http_tool({"name": "look", "description": "Looks.", "url": web.url("/look"), "effect": "read"})
    lines = ({"tool_calls": [{"name": "look", "arguments": {}}] * 3}, says("done"))
    private = tuple(rules(f"127.0.0.1:{web.port}"))
    async with open_checked_app(place.settings(*lines, http_tools=(tool,), private_hosts=private)) as app:
        report = await rests(app, await start_run(app))
        assert [(call["ok"], call["ref"]) for call in report.calls] == [(True, f"round-1/call-{n}") for n in (1, 2, 3)]
    assert len(web.heard) == 3


@pytest.mark.parametrize(
    ("limits", "turns"),
    [
        (Limits(rounds=10), [False] * 7 + [True] * 3),
        (Limits(rounds=50, model_calls=8), [False] * 6 + [True]),
        (Limits(rounds=50, tool_calls=4), [False] * 3 + [True] * 2),
    ],
    ids=["rounds", "model_calls", "tool_calls"],
)
async def test_a_model_is_told_to_end_while_it_still_can(place, limits, turns):
    """From three quarters on, with the request alone: no message of the conversation has it."""
    calls = [{"name": "read_file", "arguments": {"path": "a.txt", "end_line": n}} for n in range(1, 13)]
    lines = [{"tool_calls": [call]} for call in calls]
    async with open_checked_app(place.settings(*lines)) as app:
        run_id = await start_run(app, limits=limits, tools=("read_file",))
        await rests(app, run_id)
    asked = "kind = 'round' and json_extract(body, '$.kind') = 'completion'"
    tails = place.rows(f"select json_extract(sent, '$.tail') from step join answer on step = id where {asked}")
    assert [tail.endswith("finish]") for (tail,) in tails] == turns
    assert all("finish]" not in body for (body,) in place.rows("select body from answer"))


async def test_a_call_with_broken_arguments_one_not_offered_and_one_of_a_cut_turn_do_nothing(place):
    writes = {"name": "write_file", "arguments": {"path": "new.txt", "content": "x"}}
    lines = (
        {"tool_calls": [{"name": "write_file", "arguments": '{"path": "new.txt", "content":'}]},
        {"tool_calls": [writes]},
        {"content": "cut", "tool_calls": [writes], "finish": "length"},
        says("done"),
    )
    async with open_checked_app(place.settings(*lines)) as app:
        request = PlannerRequest("look around", tools=("read_file",))
        run_id = (await app.runs.start(request, ME)).run_id
        report = await rests(app, run_id)
        assert (report.status, report.stop_reason) == ("completed", "assistant_stop")
    codes = place.rows("select json_extract(body, '$.code') from step join answer on step = id where kind = 'call'")
    assert codes == [("tool_not_offered",), ("tool_not_offered",)]
    assert not (place.workspace / "new.txt").exists()
