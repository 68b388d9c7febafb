"""What a team has come to is seen in its results, in the trace and in signs of life, each from its rows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from support.app import ME, PERSON, Place, rests
from support.sampling_clients import MODERN, ConnectedClient, connect_client

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import TeamRequest
from kairos_mcp.server.progress import progress_message
from kairos_mcp.server.truncation import RESULT_CHARS
from kairos_mcp.views.cuts import size

Task = dict[str, Any]
FIELDS = ("id", "path", "agent", "status", "depends_on", "rounds")


def task(name: str, agent: str = "general", *before: str, **more: Any) -> Task:
    return {"id": name, "agent": agent, "description": f"Do {name}.", "depends_on": list(before), **more}


def plan_of(*tasks: Task) -> dict[str, Any]:
    strategy = "single_task" if len(tasks) == 1 else "decomposed"
    return {"analysis": "Both.", "strategy": strategy, "tasks": list(tasks)}


PLAN = plan_of(task("one", "code_analyzer"), task("two", "file_manager"), task("both", "general", "one", "two"))


def line(path: str, said: str = "", *calls: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A line of a script for the step at this path; without calls it ends its loop."""
    if "error" in more:
        return {"for": path, **more}
    asked = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return {"for": path, "content": said, "tool_calls": asked, "finish": "tool_calls" if calls else "stop", **more}


READ = ("read_file", {"path": "a.txt"})
EDIT = ("edit_file", {"path": "a.txt", "old_string": "alpha", "new_string": "omega"})
DOWN = {"error": {"code": "provider_error", "message": "down"}}
SCRIPT = (
    line("plan", json.dumps(PLAN)),
    line("task-1/try-1/round-1", "look", READ),
    line("task-1/try-1/round-2", "One is fine."),
    line("task-2/try-1/round-1", "Two is fine."),
    line("task-3/try-1/round-1", "Both are."),
    line("synthesis", "All is fine."),
)


@asynccontextmanager
async def open_modern_client(place: Place, *lines: Mapping[str, Any], **changes: Any) -> AsyncIterator[ConnectedClient]:
    async with (
        App.open(place.settings(*lines, **changes), via="mcp") as app,
        connect_client(app, MODERN) as client,
    ):
        yield client


def plan_rows(run: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [tuple(entry[name] for name in FIELDS) for entry in run["plan"]]


async def test_the_plan_of_an_ended_team_is_in_its_result_and_in_full_looks_alone(place: Place) -> None:
    async with open_modern_client(place, *SCRIPT) as client:
        run = await client.ask("team_run", {"goal": "Look at both."})
        assert plan_rows(run) == [
            ("one", "task-1", "code_analyzer", "done", [], 2),
            ("two", "task-2", "file_manager", "done", [], 1),
            ("both", "task-3", "general", "done", ["one", "two"], 1),
        ]
        assert "phase" not in run
        used = place.rows("select name, spent_rounds from account where scope = 'branch' and name like '%try%'")
        assert {f"{path}/try-1": rounds for _, path, _, _, _, rounds in plan_rows(run)} == dict(used)
        full = (await client.ask("run_status", {"run_ids": [run["run_id"]]}))["runs"][0]
        assert full["plan"] == run["plan"]
        assert "plan" not in (await client.ask("run_status"))["runs"][0]


async def test_a_plan_alone_shows_its_tasks_as_waiting_and_its_output_is_whole(place: Place) -> None:
    long = plan_of(*(task(f"t{n}", reasoning="why " * 200) for n in range(6)))
    async with open_modern_client(place, line("plan", json.dumps(long))) as client:
        run = await client.ask("planner_plan", {"goal": "Look at both."})
        assert [(entry["id"], entry["status"]) for entry in run["plan"]] == [(f"t{n}", "waiting") for n in range(6)]
        assert [each["reasoning"] for each in run["output"]["tasks"]] == ["why " * 200] * 6
        again = await client.ask("team_run", {"plan": run["output"], "route": "caller"})
        assert [entry["id"] for entry in again["plan"]] == [f"t{n}" for n in range(6)]


async def test_before_there_is_a_plan_it_is_empty_and_then_tasks_without_room_wait(place: Place) -> None:
    async with open_modern_client(place) as client:
        run = await client.ask("team_run", {"goal": "Look.", "route": "caller", "max_parallel": 1})
        assert (run["plan"], run["phase"]) == ([], "planning")
        wide = plan_of(task("one"), task("two"), task("both", "general", "one", "two"))
        answer = {"plan": {"content": json.dumps(wide)}}
        await client.ask("run_continue", {"run_id": run["run_id"], "answers": answer})
        run = (await client.ask("run_status", {"run_ids": [run["run_id"]]}))["runs"][0]
        assert [(entry["status"], entry["rounds"]) for entry in run["plan"]] == [
            ("working", 1), ("waiting", 0), ("waiting", 0),
        ]  # fmt: skip
        assert run["phase"] == "tasks"
        assert [item["key"] for item in run["waiting"]] == ["task-1/try-1/round-1"]


async def test_the_text_draws_a_line_for_each_task_with_its_tries_and_what_waits_in_it(place: Place) -> None:
    lines = (
        line("task-1/try-1/round-1", "first"),
        line("task-2/try-1/round-1", "", EDIT),
        line("task-1/try-1/round-2", "never"),
    )
    async with open_modern_client(place, *lines) as client:
        two = plan_of(task("one", "code_analyzer"), task("two", "file_manager"), task("both", "general", "one", "two"))
        result = await client.sdk_client.call_tool("team_run", {"plan": two})
        run = result.structured_content
        assert run["status"] == "input_required"
        drawn = result.content[0].text.splitlines()
        at = drawn.index("plan: 1/3 tasks · tasks")
        assert drawn[at + 1 : at + 5] == [
            "  + one   code_analyzer  done     1 round  Do one.",
            "  > two   file_manager   working  1 round  Do two.",
            "      waits: task-2/try-1/round-1/call-1/approval (approval)",
            "  . both  general        waiting           after one, two: Do both.",
        ]
        assert at <= 12


async def test_the_trace_has_the_tries_with_their_figures_and_refs(place: Place) -> None:
    lines = (
        line("task-1/try-1/round-1", "", ("report_plan_problem", {"problem": "There is no such folder."})),
        line("replan-1", json.dumps({"analysis": "", "strategy": "decomposed", "tasks": []})),
        line("task-2/try-1/round-1", **DOWN),
        line("task-2/try-2/round-1", "Found by another."),
        line("synthesis", "Half of it."),
    )
    async with open_modern_client(place, *lines) as client:
        two = plan_of(task("one"), task("two", "search_specialist"))
        run = await client.ask("team_run", {"plan": two})
        trace = await client.ask("run_trace", {"run_id": run["run_id"], "view": "plan"})
        first, second = trace["items"]
        assert (trace["phase"], first["status"], second["status"]) == (None, "failed", "done")
        assert "no such folder" in first["open"]
        assert [(each["status"], each["path"]) for each in second["tries"]] == [
            ("failed", "task-2/try-1"), ("done", "task-2/try-2"),
        ]  # fmt: skip
        for each in (*first["tries"], *second["tries"]):
            sums = place.rows(
                "select spent_rounds, spent_total_tokens, spent_nano_usd from account where name = ?", each["path"]
            )
            assert sums == [(each["rounds"], each["tokens"], round(each["usd"] * 1e9))]
        text = await client.ask("run_trace", {"run_id": run["run_id"], "ref": second["ref"]})
        assert text["text"] == "Found by another." == second["found"]
        assert run["plan"][1]["tries"] == [
            {"agent": each["agent"], "status": each["status"], "rounds": each["rounds"]} for each in second["tries"]
        ]


async def test_a_cancelled_team_says_what_its_tasks_found_and_which_were_not_done(place: Place) -> None:
    lines = (line("task-1/try-1/round-1", "One is fine."), line("task-2/try-1/round-1", "", EDIT))
    async with open_modern_client(place, *lines) as client:
        run = await client.ask("team_run", {"plan": PLAN})
        run = await client.ask("run_control", {"run_id": run["run_id"], "action": "cancel"})
        assert run["status"] == "cancelled"
        assert [entry["status"] for entry in run["plan"]] == ["done", "cancelled", "cancelled"]
        assert run["summary"] is None
        told = run["record"].splitlines()
        assert told[1:] == [
            "- one (code_analyzer: done, 1 round): One is fine.",
            "- two (file_manager: working, 1 round)",
            "- both (general: waiting)",
        ]
        assert run["next"] is None


async def test_what_comes_next_of_a_team_that_did_not_end_well_is_a_call_that_works(place: Place) -> None:
    lines = (line("task-1/try-1/round-1", "look", READ), line("task-1/try-1/closing", "So far so good."))
    async with open_modern_client(place, *lines) as client:
        one = plan_of(task("one", "code_analyzer"))
        run = await client.ask("team_run", {"plan": one, "limits": {"rounds": 1}})
        assert (run["status"], run["plan"][0]["status"]) == ("stopped", "stopped")
        following = run["next"]
        assert following["tool"] == "planner_run"
        again = await client.ask("planner_run", {**following["arguments"], "route": "caller"})
        assert again["status"] == "input_required"
        refused = await client.sdk_client.call_tool("planner_run", {"goal": "Go on.", "continues": run["run_id"]})
        assert refused.is_error


async def test_a_team_whose_tasks_all_failed_goes_on_from_the_newest_round_of_one(place: Place) -> None:
    lines = (
        line("task-1/try-1/round-1", "look", READ),
        line("task-1/try-1/round-2", **DOWN),
        line("task-1/try-2/round-1", **DOWN),
        line("replan-1", json.dumps({"analysis": "", "strategy": "single_task", "tasks": []})),
    )
    async with open_modern_client(place, *lines) as client:
        run = await client.ask("team_run", {"plan": plan_of(task("one", "code_analyzer"))})
        assert (run["status"], run["stop_reason"]) == ("failed", "tasks_failed")
        path = run["next"]["arguments"]["from"]
        assert place.rows("select kind from step where path = ?", path) == [("round",)]
        again = await client.ask("planner_run", {**run["next"]["arguments"], "route": "caller"})
        assert again["status"] == "input_required"


async def test_signs_of_life_tell_tasks_and_whose_round_it_is(place: Place) -> None:
    lines = (
        line("task-1/try-1/round-1", "", READ),
        line("task-1/try-1/round-2", "", EDIT),
        line("task-2/try-1/round-1", "Two."),
    )
    tasks = plan_of(task("one", "file_manager"), task("two"), task("three", "general", "two", "one"))
    async with App.open(place.settings(*lines), via="mcp") as app:
        run_id = (await app.runs.start(TeamRequest("Look.", tasks), ME)).run_id
        await rests(app, run_id)
        beat = await app.runs.heartbeat(await app.runs.find(run_id, ME))
        assert progress_message(beat) == "1/3 tasks · file_manager round 2 · read_file"
        await app.control.cancel(run_id, PERSON)


async def test_results_of_large_teams_stay_within_their_bound(place: Place) -> None:
    names = [f"{n:02}-{'x' * 60}" for n in range(20)]
    tasks = [task(name, "general", description="d" * 4_000) for name in names]
    lines = [line(f"task-{n}/try-1/round-1", "found " * 2_000) for n in range(1, 21)]
    async with open_modern_client(place, *lines, line("synthesis", "word " * 1_500)) as client:
        result = await client.sdk_client.call_tool("team_run", {"plan": plan_of(*tasks), "wait_s": 20})
        assert result.structured_content["status"] == "completed"
        assert size(result.structured_content) <= RESULT_CHARS
        assert len(result.content[0].text) <= RESULT_CHARS


async def test_a_look_at_an_unchanged_team_replays_nothing(place: Place) -> None:
    lines = (line("task-1/try-1/round-1", "", EDIT),)
    async with App.open(place.settings(*lines), via="mcp") as app:
        run_id = (await app.runs.start(TeamRequest("Look.", plan_of(task("one", "file_manager"))), ME)).run_id
        await rests(app, run_id)
        first = await app.runs.team(run_id, ME)
        assert await app.runs.team(run_id, ME) is first
        await app.control.cancel(run_id, PERSON)
        assert await app.runs.team(run_id, ME) is not first
