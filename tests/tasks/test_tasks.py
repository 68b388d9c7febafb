"""MCP tasks: which calls become one, where it stands, what it asks of its client, and how it ends."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from support.app import ME, PERSON, Place, assert_all_lawful, reads, says
from support.sampling_clients import LEGACY, MODERN, ClientModel, connect_client, encode_reply
from support.task_client import AT_ONCE, TaskClient, task_client_of

from kairos_mcp.app.app import App
from kairos_mcp.app.runs import Runs
from kairos_mcp.core.calendar import DAY_MS
from kairos_mcp.server.call import DEFAULT_WAIT_POLICY
from kairos_mcp.server.sender import set_principal
from kairos_mcp.store.page_files import published_page

GO = {"goal": "go"}
WRITES = {"tool_calls": [{"name": "write_file", "arguments": {"path": "new.txt", "content": "new\n"}}]}
APPROVE = {"action": "accept", "content": {"decision": "approve"}}
PATIENT = replace(DEFAULT_WAIT_POLICY, settle_s=0.05, instant_s=0.0)


@asynccontextmanager
async def open_task_client(
    place: Place, *lines: Any, policy: Any = AT_ONCE, keep_days: int | None = None, **ways: Any
) -> AsyncIterator[tuple[App, TaskClient]]:
    """An app on this place with a script of these lines, and a client of it that takes tasks."""
    settings = place.settings(*lines, keep_days=keep_days)
    async with App.open(settings, via="mcp") as app:
        async with task_client_of(app, policy, **ways) as client:
            yield app, client
        await assert_all_lawful(app)


def reply(turn: Any) -> dict[str, Any]:
    """A client's model that says this turn."""
    return encode_reply(turn, native=False).model_dump(by_alias=True, mode="json", exclude_none=True)


def tasks_in(place: Place) -> list[tuple[Any, ...]]:
    return place.rows(
        "select run.id || '/task-' || task.n, ending from task join run on run.n = task.run order by task.id"
    )


# -- which calls become one ------------------------------------------------------------------------------------------


async def test_a_call_that_is_soon_over_is_no_task(place):
    async with open_task_client(place, says("hello"), policy=PATIENT) as (_, client):
        result = await client.call("planner_run", **GO)
        assert (result["resultType"], result["structuredContent"]["summary"]) == ("complete", "hello")
    assert tasks_in(place) == []


async def test_a_call_that_takes_longer_is_a_task_whose_row_is_there_before_the_answer(place):
    async with open_task_client(place, says("hello", delay_s=0.3)) as (_, client):
        created = await client.call("planner_run", **GO)
        assert tasks_in(place) == [(created["taskId"], None)]
        assert (created["resultType"], created["status"], created["ttlMs"]) == ("task", "working", None)
        report = await client.wait_for_result(created["taskId"])
        assert (report["status"], report["summary"]) == ("completed", "hello")
        status = await client.call("run_status", run_ids=[report["run_id"]])
        assert status["structuredContent"]["runs"] == [report]
    assert tasks_in(place) == [(created["taskId"], "completed")]


async def test_the_task_of_a_stopped_run_is_completed_with_that_result(place):
    """The protocol has no such status: a task says that its call was answered, its result how the run ended."""
    lines = (reads("a.txt") | {"delay_s": 0.2}, says("One so far."))
    async with open_task_client(place, *lines) as (_, client):
        task = await client.begin_task("planner_run", **GO, limits={"rounds": 1})
        report = await client.wait_for_result(task)
        assert (report["status"], report["stop_reason"]) == ("stopped", "max_rounds")
        assert (report["summary"], report["record"]) == ("One so far.", None)
    assert [ending for _, ending in tasks_in(place)] == ["completed"]


async def test_a_call_that_waits_for_nothing_itself_is_a_task_at_once(place):
    async with open_task_client(place, says("hello", delay_s=0.3), policy=PATIENT) as (_, client):
        assert await client.wait_for_result(await client.begin_task("planner_run", **GO, wait_s=0))


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_a_client_that_declares_no_tasks_gets_the_ordinary_result(place, era):
    settings = place.settings(says("hello", delay_s=0.2))
    async with App.open(settings, via="mcp") as app, connect_client(app, era, patience=AT_ONCE) as client:
        assert (await client.ask("planner_run", GO))["summary"] == "hello"
    assert tasks_in(place) == []


async def test_a_run_of_the_caller_is_handed_out_without_a_task(place):
    """Its client answers by run_continue, not through a task."""
    async with open_task_client(place, policy=PATIENT) as (_, client):
        waiting = (await client.call("planner_run", **GO))["structuredContent"]
        assert (waiting["status"], waiting["waiting"][0]["key"]) == ("input_required", "round-1")
        answers = {"round-1": {"content": "done"}}
        ended = await client.call("run_continue", run_id=waiting["run_id"], answers=answers)
        assert ended["structuredContent"]["status"] == "completed"
    assert tasks_in(place) == []


async def test_what_this_client_can_not_show_ends_the_task_and_not_the_run(place):
    """It declares no dialogs, so that a person decides elsewhere."""
    async with open_task_client(place, {**WRITES, "delay_s": 0.2}, says("written")) as (_, client):
        task = await client.begin_task("planner_run", **GO, tools=["write_file"])
        report = await client.wait_for_result(task)
        assert (report["status"], report["waiting"][0]["kind"]) == ("input_required", "approval")
        assert place.rows("select outcome from run") == [(None,)]
        await client.call("run_control", run_id=report["run_id"], action="cancel")
        assert await client.wait_for_result(task) == report, "the first result stays"


async def test_each_call_about_a_run_is_a_task_of_its_own(place):
    async with open_task_client(place, says("hello", delay_s=0.4)) as (_, client):
        first = await client.begin_task("planner_run", **GO)
        again = await client.begin_task("planner_run", **GO)
        run_id = first.partition("/")[0]
        assert (first, again) == (f"{run_id}/task-1", f"{run_id}/task-2")
        reports = [await client.wait_for_result(first), await client.wait_for_result(again)]
        assert [any("identical start" in note for note in report["degraded"]) for report in reports] == [False, True]


# -- who may ask about it --------------------------------------------------------------------------------------------


async def error_code(client: TaskClient, method: str, **params: Any) -> int:
    with pytest.raises(MCPError) as caught:
        await client.send(method, **params)
    return int(caught.value.error.code)


async def test_the_methods_need_the_capability_in_the_same_request(place):
    async with App.open(place.settings(says("hello")), via="mcp") as app, task_client_of(app, tasks=False) as client:
        asked = {"taskId": "run-000000000000/task-1"}
        for method, more in (("tasks/get", {}), ("tasks/update", {"inputResponses": {}}), ("tasks/cancel", {})):
            assert await error_code(client, method, **asked, **more) == -32021
        listened = {"notifications": {"taskIds": ["run-000000000000/task-1"]}}
        assert await error_code(client, "subscriptions/listen", **listened) == -32021


async def test_older_clients_are_told_of_no_extension_and_have_no_such_method(place):
    async with App.open(place.settings(says("hello")), via="mcp") as app, connect_client(app, LEGACY) as old:
        assert getattr(old.sdk_client.server_capabilities, "extensions", None) is None
        client = TaskClient(old.sdk_client)
        assert await error_code(client, "tasks/get", taskId="run-000000000000/task-1") == -32601


@pytest.mark.parametrize("task_id", ["", "run-000000000000/task-1", "{run}", "{run}/task-2", "{run}/task-x", "nothing"])
async def test_an_unknown_task_is_an_error_of_the_parameters(place, task_id):
    async with open_task_client(place, says("hello", delay_s=0.2)) as (_, client):
        run_id = (await client.begin_task("planner_run", **GO)).partition("/")[0]
        named = task_id.format(run=run_id)
        for method, more in (("tasks/get", {}), ("tasks/update", {"inputResponses": {}}), ("tasks/cancel", {})):
            assert await error_code(client, method, taskId=named, **more) == -32602
        assert place.rows("select cancelled_at, fetched_at from task") == [(None, None)]


async def test_another_principal_has_no_such_task(place):
    async with open_task_client(place, says("hello", delay_s=0.2)) as (_, client):
        task = await client.begin_task("planner_run", **GO)
        await client.wait_for_result(task)
        set_principal("bob")
        try:
            assert await error_code(client, "tasks/get", taskId=task) == -32602
            assert await error_code(client, "tasks/cancel", taskId=task) == -32602
        finally:
            set_principal("local")


async def test_a_server_of_another_folder_shows_a_task_that_ended_and_ends_none(place, tmp_path):
    other = replace(place.settings(), workspaces=())
    async with open_task_client(place, WRITES, says("written"), elicits=True) as (_, client):
        task = await client.begin_task("planner_run", **GO, tools=["write_file"])
        await client.until(task, "input_required")
        async with App.open(other, via="mcp") as elsewhere, task_client_of(elsewhere, elicits=True) as stranger:
            assert await error_code(stranger, "tasks/get", taskId=task) == -32603
            assert tasks_in(place) == [(task, None)]
            (key,) = (await client.get(task))["inputRequests"]
            await client.update(task, {key: APPROVE})
            report = await client.wait_for_result(task)
            assert await stranger.wait_for_result(task) == report


# -- what it asks of its client --------------------------------------------------------------------------------------


async def test_a_task_asks_for_completions_under_keys_that_never_come_back(place):
    turns = [reads("a.txt"), reads("b.txt"), says("done")]
    async with open_task_client(place, samples=True) as (_, client):
        task, seen = await client.begin_task("planner_run", **GO), list[str]()
        for turn in turns:
            asked = (await client.until(task, "input_required"))["inputRequests"]
            assert asked == (await client.get(task))["inputRequests"], "the same until it is answered"
            ((key, request),) = asked.items()
            assert (request["method"], key in seen) == ("sampling/createMessage", False)
            seen.append(key)
            await client.update(task, {key: reply(turn)})
        report = await client.wait_for_result(task)
        assert (report["summary"], report["rounds"], report["route"]) == ("done", 3, "sampling")
    assert place.rows("select ended, charged from client_completion") == [("answered", None)] * 3
    assert [json.loads(keys) for (keys,) in place.rows("select keys from client_question")] == [
        {key: key} for key in seen
    ]
    assert place.rows("select spent_model_calls from account where scope = 'run'") == [(3,)]


async def test_answers_that_nobody_asked_for_and_second_ones_store_nothing(place):
    async with open_task_client(place, samples=True) as (_, client):
        task = await client.begin_task("planner_run", **GO)
        (key,) = (await client.until(task, "input_required"))["inputRequests"]
        await client.update(task, {"round-9": reply(says("early")), "junk": {"ignored": True}, "n": 3})
        assert list((await client.get(task))["inputRequests"]) == [key]
        await client.update(task, {key: reply(reads("a.txt"))})
        await client.until(task, "input_required")
        await client.update(task, {key: reply(says("late"))})
        assert list((await client.get(task))["inputRequests"]) == ["round-2"]
        await client.update(task, {"round-2": reply(says("done"))})
        assert (await client.wait_for_result(task))["summary"] == "done"
        await client.update(task, {"round-2": reply(says("too late"))})
    (body,) = place.rows("select body from answer join step on id = step where path = 'round-1'")[0]
    assert "a.txt" in body


async def test_an_answer_that_is_none_is_refused_and_the_question_stays(place):
    async with open_task_client(place, samples=True) as (_, client):
        task = await client.begin_task("planner_run", **GO)
        (key,) = (await client.until(task, "input_required"))["inputRequests"]
        assert await error_code(client, "tasks/update", taskId=task, inputResponses={key: {"nothing": 1}}) == -32602
        assert list((await client.get(task))["inputRequests"]) == [key]
        await client.update(task, {key: reply(says("done"))})
        assert (await client.wait_for_result(task))["summary"] == "done"


async def test_of_eight_updates_at_once_one_counts(place):
    async with open_task_client(place, samples=True) as (_, client):
        task = await client.begin_task("planner_run", **GO)
        (key,) = (await client.until(task, "input_required"))["inputRequests"]
        await asyncio.gather(*(client.update(task, {key: reply(reads(f"x{n}"))}) for n in range(8)))
        assert list((await client.until(task, "input_required"))["inputRequests"]) == ["round-2"]
    assert place.rows("select count(*) from answer join step on id = step where path = 'round-1'") == [(1,)]
    assert place.rows("select spent_model_calls from account where scope = 'run'") == [(1,)]


async def test_a_user_approves_through_a_task_and_the_file_is_written(place):
    async with open_task_client(place, WRITES, says("written"), elicits=True) as (_, client):
        task = await client.begin_task("planner_run", **GO, tools=["write_file"])
        ((key, request),) = (await client.until(task, "input_required"))["inputRequests"].items()
        assert (request["method"], request["params"]["mode"]) == ("elicitation/create", "form")
        assert "new.txt" in request["params"]["message"]
        assert not (place.workspace / "new.txt").exists()
        await client.update(task, {key: APPROVE})
        assert (await client.wait_for_result(task))["summary"] == "written"
        assert (place.workspace / "new.txt").read_text() == "new\n"
    assert place.rows("select verdict, through, client from approval") == [("approve", "elicitation", "a client 1")]


def without_age(question: Any) -> str:
    """The question without how old its run was then."""
    text, ages = re.subn(r"\d+ \w+ old", "", json.dumps(question))
    assert ages == 1, text
    return text


async def test_of_two_questions_side_by_side_each_is_answered_when_its_answer_is_there(place):
    """The agents of a team write a file each; the task stays with what is left, under the same key."""
    writes = [
        {**WRITES, "for": f"task-{n}/try-1/round-1"}
        | {"tool_calls": [{"name": "write_file", "arguments": {"path": f"{n}.txt", "content": "new\n"}}]}
        for n in (1, 2)
    ]
    tasks = [{"id": name, "agent": "file_manager", "description": name} for name in ("left", "right")]
    plan = {"analysis": "Two files.", "strategy": "decomposed", "tasks": tasks}
    async with open_task_client(place, *writes, says("a"), says("b"), says("both"), elicits=True) as (_, client):
        task = await client.begin_task("team_run", plan=plan)
        async with client.subscribe(task) as notified:
            while len(asked := (await next_of(notified)).get("inputRequests", ())) < 2:
                pass
        first, second = asked
        await client.update(task, {first: APPROVE})
        left = await client.get(task)
        assert (left["status"], list(left["inputRequests"])) == ("input_required", [second])
        assert without_age(left["inputRequests"][second]) == without_age(asked[second])
        await client.update(task, {second: APPROVE})
        assert (await client.wait_for_result(task))["status"] == "completed"
    assert place.rows("select count(*) from approval where verdict = 'approve'") == [(2,)]
    assert all((place.workspace / f"{n}.txt").exists() for n in (1, 2))


@pytest.mark.parametrize("left", [{"action": "cancel"}, {"action": "accept", "content": {}}])
async def test_a_dialog_that_the_user_leaves_ends_the_task_and_run_continue_asks_again(place, left):
    async with open_task_client(place, WRITES, says("written"), elicits=True) as (_, client):
        task = await client.begin_task("planner_run", **GO, tools=["write_file"])
        (key,) = (await client.until(task, "input_required"))["inputRequests"]
        await client.update(task, {key: left})
        report = await client.wait_for_result(task)
        assert (report["status"], report["waiting"][0]["key"]) == ("input_required", key)
        again = await client.begin_task("run_continue", run_id=report["run_id"], ask=True)
        (new_key,) = (await client.until(again, "input_required"))["inputRequests"]
        assert new_key == f"{key}#2"
        await client.update(again, {new_key: APPROVE})
        assert (await client.wait_for_result(again))["summary"] == "written"
        assert await client.wait_for_result(task) == report


async def test_a_task_whose_user_went_to_the_page_waits_for_the_decision_there(place):
    long = {"tool_calls": [{"name": "write_file", "arguments": {"path": "new.txt", "content": "new\n" * 50}}]}
    claude = "claude-code 2.1.332"
    async with open_task_client(place, long, says("written"), elicits=True, client=claude) as (app, client):
        with published_page(app.settings.home, "http://127.0.0.1:1/"):
            task = await client.begin_task("planner_run", **GO, tools=["write_file"])
            ((key, request),) = (await client.until(task, "input_required"))["inputRequests"].items()
            run_id = task.partition("/")[0]
            assert request["params"]["url"] == f"http://127.0.0.1:1/#/runs/{run_id}"
            await client.update(task, {key: {"action": "accept"}})
            assert [(await client.get(task))["status"] for _ in range(3)] == ["working"] * 3
        waiting = (await app.runs.report(run_id, PERSON)).waiting[0]
        await app.answers.submit(run_id, {key: {"decision": "approve", "digest": waiting["digest"]}}, PERSON)
        assert (await client.wait_for_result(task))["summary"] == "written"
    assert place.rows("select verdict, through from approval") == [("approve", "command")]


async def test_what_is_decided_elsewhere_is_asked_no_more(place):
    async with open_task_client(place, WRITES, says("written"), elicits=True) as (app, client):
        task = await client.begin_task("planner_run", **GO, tools=["write_file"])
        (key,) = (await client.until(task, "input_required"))["inputRequests"]
        waiting = (await app.runs.report(task.partition("/")[0], PERSON)).waiting[0]
        decision = {"decision": "deny", "digest": waiting["digest"]}
        await app.answers.submit(task.partition("/")[0], {key: decision}, PERSON)
        assert (await client.wait_for_result(task))["summary"] == "written"
        await client.update(task, {key: APPROVE})
    assert place.rows("select verdict from approval") == [("deny",)]
    assert not (place.workspace / "new.txt").exists()


async def test_a_model_that_stays_silent_is_asked_no_more_and_the_run_takes_the_next_route(place):
    hasty = replace(AT_ONCE, later_s=0.2)
    async with open_task_client(place, samples=True, policy=hasty) as (_, client):
        task = await client.begin_task("planner_run", **GO)
        await client.until(task, "input_required")
        report = await client.wait_for_result(task)
        assert (report["route"], report["status"]) == ("caller", "input_required")
    assert [ended for (ended,) in place.rows("select ended from client_completion")] == ["withdrawn"]


async def test_a_silent_model_that_was_asked_for_by_name_ends_the_task_and_is_charged_once(place):
    hasty = replace(AT_ONCE, later_s=0.2)
    async with open_task_client(place, samples=True, policy=hasty) as (_, client):
        task = await client.begin_task("planner_run", **GO, route="sampling")
        await client.until(task, "input_required")
        report = await client.wait_for_result(task)
        assert (report["route"], report["status"]) == ("sampling", "input_required")
        assert report["next"]["tool"] == "run_continue"
    assert [ended for (ended,) in place.rows("select ended from client_completion")] == ["withdrawn"]
    assert place.rows("select spent_model_calls from account where scope = 'run'") == [(1,)]


async def test_a_client_that_looks_after_its_task_has_not_refused_what_that_asks(place):
    """Another call of it, without tasks, is asked the same; where nobody looks any more, it has refused."""
    hasty = replace(DEFAULT_WAIT_POLICY, stale_after_s=-1.0)
    async with open_task_client(place, samples=True) as (app, client):
        task = await client.begin_task("planner_run", **GO)
        await client.until(task, "input_required")
        async with connect_client(app, MODERN, ClientModel([]), patience=hasty) as same:
            assert list((await same.step_to_requests("planner_run", GO)).input_requests) == ["round-1"]
    async with (
        App.open(place.settings(), via="mcp") as app,
        connect_client(app, MODERN, ClientModel([]), patience=hasty) as same,
    ):
        assert (await same.step_to_result("planner_run", GO))["route"] == "caller"


async def test_two_clients_of_one_run_do_not_take_turns_at_asking(place):
    """The one that came last is asked; the other's polls ask for nothing, since each turn would be charged."""
    async with (
        App.open(place.settings(), via="mcp") as app,
        task_client_of(app, AT_ONCE, samples=True, client="one 1") as one,
        task_client_of(app, AT_ONCE, samples=True, client="two 1") as two,
    ):
        first, second = await one.begin_task("planner_run", **GO), await two.begin_task("planner_run", **GO)
        await one.until(first, "input_required")
        (key,) = (await two.until(second, "input_required"))["inputRequests"]
        for _ in range(3):
            assert (await one.get(first))["status"] == "working"
            assert list((await two.get(second))["inputRequests"]) == [key]
        assert place.rows("select ended from client_completion order by id") == [("withdrawn",), (None,)]
        await two.update(second, {key: reply(says("done"))})
        assert [(await one.wait_for_result(first))["summary"], (await two.wait_for_result(second))["summary"]] == [
            "done",
            "done",
        ]


# -- its end ---------------------------------------------------------------------------------------------------------


async def test_a_task_goes_on_in_the_next_server(place):
    async with open_task_client(place, samples=True) as (_, client):
        task = await client.begin_task("planner_run", **GO)
        asked = (await client.until(task, "input_required"))["inputRequests"]
    async with open_task_client(place, samples=True) as (_, client):
        assert (await client.until(task, "input_required"))["inputRequests"] == asked
        (key,) = asked
        await client.update(task, {key: reply(says("done"))})
        assert (await client.wait_for_result(task))["summary"] == "done"
    assert place.rows("select ended from client_completion") == [("answered",)]


async def test_of_two_servers_that_end_a_task_the_first_result_stays(place):
    async with open_task_client(place, says("hello", delay_s=0.3)) as (app, client):
        task_id = await client.begin_task("planner_run", **GO)
        task = await app.tasks.find(task_id, ME)
        ends = [await app.tasks.end(task, "completed", f'{{"n": {n}}}') for n in (1, 2)]
        assert [each.row.result for each in ends] == ['{"n": 1}', '{"n": 1}']
        assert (await client.get(task_id))["result"] == {"n": 1}


async def test_cancelling_a_task_cancels_its_run(place):
    async with open_task_client(place, says("never", delay_s=30)) as (_, client):
        task = await client.begin_task("planner_run", **GO)
        await client.cancel(task)
        ended = await client.until(task, "cancelled")
        assert "result" not in ended
        await client.cancel(task)
        status = await client.call("run_status", run_ids=[task.partition("/")[0]])
        assert status["structuredContent"]["runs"][0]["status"] == "cancelled"
    assert tasks_in(place) == [(task, "cancelled")]


async def test_cancelling_a_task_whose_run_has_ended_meanwhile_is_no_error(place):
    async with open_task_client(place, says("hello", delay_s=0.1)) as (app, client):
        task = await client.begin_task("planner_run", **GO)
        await app.runs.wait([task.partition("/")[0]], until="done", wait_s=10, caller=ME)
        await client.cancel(task)
        assert (await client.wait_for_result(task))["summary"] == "hello"


async def test_a_run_that_is_cancelled_otherwise_is_the_result_of_its_task(place):
    async with open_task_client(place, says("never", delay_s=30)) as (_, client):
        task = await client.begin_task("planner_run", **GO)
        await client.call("run_control", run_id=task.partition("/")[0], action="cancel")
        assert (await client.wait_for_result(task))["status"] == "cancelled"


async def test_cancelling_a_task_that_has_ended_leaves_its_run_alone(place):
    async with open_task_client(place, WRITES, says("written")) as (_, client):
        task = await client.begin_task("planner_run", **GO, tools=["write_file"])
        await client.wait_for_result(task)
        await client.cancel(task)
        assert place.rows("select outcome from run") == [(None,)]
        assert (await client.get(task))["status"] == "completed"


async def test_a_task_lives_as_long_as_its_run_is_kept(place):
    async with open_task_client(place, says("hello", delay_s=0.2), keep_days=7) as (app, client):
        task = await client.begin_task("planner_run", **GO)
        assert (await client.get(task))["ttlMs"] is None
        await client.wait_for_result(task)
        ((created_at, ended_at),) = place.rows(
            "select task.created_at, run.ended_at from task join run on task.run = run.n"
        )
        assert (await client.get(task))["ttlMs"] == ended_at + 7 * DAY_MS - created_at
        await app.runs.prune(0, shrink=False)
        assert await error_code(client, "tasks/get", taskId=task) == -32602
    assert tasks_in(place) == []


class Broken(Runs):
    """Has a bug."""

    async def report(self, *_: object, **__: object) -> Any:
        raise RuntimeError("a bug")


async def test_a_failure_inside_is_the_error_that_a_request_would_have_met(place):
    """The status `failed` is for that alone; what a tool or a run failed with is a result."""
    async with open_task_client(place, {"error": {"code": "provider_error", "message": "no"}, "delay_s": 0.1}) as (
        app,
        client,
    ):
        task = await client.begin_task("planner_run", **GO)
        assert (await client.wait_for_result(task))["status"] == "failed"
        other = await client.begin_task("planner_run", goal="another")

        app.runs = Broken(app._context)
        failed = await client.until(other, "failed")
        assert (failed["error"]["code"], "result" in failed) == (-32603, False)


# -- notifications ---------------------------------------------------------------------------------------------------


async def next_of(notified: asyncio.Queue[Any]) -> Any:
    async with asyncio.timeout(10):
        return await notified.get()


async def test_a_subscription_tells_of_each_status_as_tasks_get_would(place):
    async with open_task_client(place, samples=True) as (_, client):
        task = await client.begin_task("planner_run", **GO)
        async with client.subscribe(task) as notified:
            first = await next_of(notified)
            assert (first["status"], first["taskId"]) == ("input_required", task)
            (key,) = first["inputRequests"]
            await client.update(task, {key: reply(says("done"))})
            while (last := await next_of(notified))["status"] != "completed":
                assert last["status"] == "working"
            del last["_meta"]
            current = await client.get(task)
            assert last == {name: current[name] for name in last}


async def test_a_subscription_is_to_tasks_of_ones_own(place):
    async with open_task_client(place, says("hello", delay_s=0.3)) as (_, client):
        task = await client.begin_task("planner_run", **GO)
        async with client.subscribe("run-000000000000/task-1", task) as notified:
            assert (await next_of(notified))["taskId"] == task
            while (await next_of(notified))["status"] != "completed":
                pass
            assert notified.empty()


async def test_a_subscription_to_tasks_and_to_more_is_one_stream(place):
    async with open_task_client(place, says("hello", delay_s=0.3)) as (_, client):
        task = await client.begin_task("planner_run", **GO)
        run = f"kairos://runs/{task.partition('/')[0]}"
        async with client.subscribe(task, resourceSubscriptions=[run]) as notified:
            while (await next_of(notified))["status"] != "completed":
                pass
            acknowledged, updated = await next_of(client.others), await next_of(client.others)
        honored = acknowledged.params.notifications
        assert (honored.resource_subscriptions, honored.model_extra) == ([run], {"taskIds": [task]})
        assert (updated.method, str(updated.params.uri)) == ("notifications/resources/updated", run)
