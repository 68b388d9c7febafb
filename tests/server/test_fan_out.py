"""Several branches wait for the caller at once: each request is told apart, shown whole once, and answered alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from support.app import PERSON, WITHIN_S, Place, reads, rests, says
from support.branches import Team, open_team_app
from support.daily_accounts import NOON
from support.reviewers import Absent, Person, Thinking, accepts, connect_person
from support.sampling_clients import LEGACY, MODERN, ClientModel, ConnectedClient, connect_client, encode_reply

from kairos_mcp.server.truncation import ITEMS_CHARS
from kairos_mcp.views.cuts import size

pytestmark = pytest.mark.unreplayed  # a flow of its own

LABELS = {"key", "kind", "agent", "about"}
TEAM = Team(tasks=3, agent="file_manager", about="Read the part of the code with the number", synthesis=False)


def ticking() -> Callable[[], int]:
    """A clock that is later whenever it is read."""
    return count(NOON).__next__


@asynccontextmanager
async def open_team_client(
    place: Place, era: str, team: Team = TEAM, person: Person | None = None, **changes: Any
) -> AsyncIterator[ConnectedClient]:
    async with open_team_app(place.settings(**changes), team, ticking()) as app:
        connected = connect_client(app, era) if person is None else connect_person(app, era, person)
        async with connected as client:
            yield client


async def starts(client: ConnectedClient, **more: Any) -> dict[str, Any]:
    return await client.ask("planner_run", {"goal": "Do it.", "route": "caller", "limits": {"rounds": 40}, **more})


async def answers(client: ConnectedClient, run: dict[str, Any], **by_task: Any) -> dict[str, Any]:
    """The result of a call that answers the newest request of these tasks."""
    keys = {key.partition("/")[0].replace("-", "_"): key for key in (item["key"] for item in run["waiting"])}
    return await client.ask(
        "run_continue",
        {"run_id": run["run_id"], "answers": {keys[task]: turn for task, turn in by_task.items()}},
    )


def item_forms(run: dict[str, Any]) -> dict[str, str]:
    """How much each waiting item holds: by key, `whole`, `new` or `named`."""
    found = {}
    for item in run["waiting"]:
        whole = "new" if "after" in item else "whole"
        found[item["key"]] = "named" if item.keys() <= LABELS else whole
    return found


async def test_each_of_several_requests_says_whose_it_is_and_what_it_is_about(place: Place, era: str) -> None:
    async with open_team_client(place, era) as client:
        run = await starts(client)
        assert item_forms(run) == {f"task-{n}/round-1": "whole" for n in (1, 2, 3)}
        for number, item in enumerate(run["waiting"], 1):
            assert list(item)[:4] == ["key", "kind", "agent", "about"]
            assert item["agent"] == "file_manager"
            assert item["about"] == f"Read the part of the code with the number {number}"
        assert run["next"]["arguments"]["answers"].keys() == item_forms(run).keys()
        assert "One of several answers is enough" in run["next"]["why"]


async def test_one_answer_is_enough_and_what_was_shown_is_only_named(place: Place, era: str) -> None:
    async with open_team_client(place, era) as client:
        run = await answers(client, await starts(client), task_2=reads("a.txt"))
        assert item_forms(run) == {"task-1/round-1": "named", "task-3/round-1": "named", "task-2/round-2": "new"}
        assert run["next"]["arguments"]["answers"].keys() == {"task-2/round-2"}
        assert "2 more wait" in run["next"]["why"]
        named = run["waiting"][0]
        assert named == {
            "key": "task-1/round-1",
            "kind": "completion",
            "agent": "file_manager",
            "about": "Read the part of the code with the number 1",
        }
        run = await answers(client, run, task_2=says("The second is done."))
        assert item_forms(run) == {"task-1/round-1": "named", "task-3/round-1": "named"}
        assert run["next"]["arguments"]["answers"].keys() == {"task-1/round-1", "task-3/round-1"}
        assert "run_status" in run["next"]["why"]


async def test_a_result_has_each_system_text_and_list_of_tools_once(place: Place, era: str) -> None:
    """Of all branches, and of all runs in it; the others name them."""
    async with open_team_client(place, era) as client:
        ids = [(await starts(client, key=key))["run_id"] for key in ("one", "other")]
        result = await client.sdk_client.call_tool("run_status", {"run_ids": ids, "view": "full"})
    items = [item for run in result.structured_content["runs"] for item in run["waiting"]]
    assert len(items) == 6
    for name in ("system", "tools"):
        shown = [item[f"{name}_id"] for item in items if name in item]
        assert sorted(shown) == sorted({item[f"{name}_id"] for item in items})
    (system,) = (item["system"] for item in items if "system" in item)
    assert result.content[0].text.count(system.split("\n")[0]) == 1


async def test_every_other_look_gives_them_whole(place: Place, era: str) -> None:
    async with open_team_client(place, era) as client:
        first = await starts(client)
        run = await answers(client, first, task_1=reads("a.txt"))
        whole = {"task-2/round-1": "whole", "task-3/round-1": "whole", "task-1/round-2": "whole"}
        (status,) = (await client.ask("run_status", {"run_ids": [run["run_id"]], "view": "full"}))["runs"]
        assert item_forms(status) == whole
        assert item_forms(await starts(client)) == whole
        assert item_forms(await client.ask("run_continue", {"run_id": run["run_id"]})) == whole
        (brief,) = (await client.ask("run_status", {"view": "brief"}))["runs"]
        assert all(item.keys() == {"key", "kind"} for item in brief["waiting"])


async def test_a_repeated_answer_gives_the_same_result(place: Place, era: str) -> None:
    async with open_team_client(place, era) as client:
        first = await starts(client)
        once = await answers(client, first, task_1=reads("a.txt"))
        assert await answers(client, first, task_1=reads("a.txt")) == once


async def test_a_branch_that_begins_now_is_shown_whole(place: Place, era: str) -> None:
    team = Team(tasks=3, side_by_side=2, synthesis=True)
    async with open_team_client(place, era, team) as client:
        run = await starts(client)
        assert item_forms(run) == {"task-1/round-1": "whole", "task-2/round-1": "whole"}
        run = await answers(client, run, task_1=says("The first is done."))
        assert item_forms(run) == {"task-2/round-1": "named", "task-3/round-1": "whole"}
        run = await answers(client, run, task_2=says("So is this."), task_3=says("And this."))
        assert item_forms(run) == {"synthesis": "whole"}
        assert (await answers(client, run, synthesis=says("All."))).get("status") == "completed"


async def test_what_follows_the_answers_of_others_is_named(place: Place, era: str) -> None:
    """Whoever answered them is shown it; whoever answers one branch alone need not read the others."""
    async with open_team_client(place, era) as client:
        first = await starts(client)
        await answers(client, first, task_1=reads("a.txt"))
        await answers(client, first, task_2=reads("b.txt"))
        again = await answers(client, first, task_1=reads("a.txt"))
        assert item_forms(again) == {"task-3/round-1": "named", "task-1/round-2": "new", "task-2/round-2": "named"}


async def test_a_branch_that_went_on_since_is_shown_from_where_whoever_repeats_an_answer_was(
    place: Place, era: str
) -> None:
    async with open_team_client(place, era) as client:
        first = await starts(client)
        run = await answers(client, first, task_1=reads("a.txt"))
        await answers(client, run, task_1=reads("b.txt"))
        again = await answers(client, first, task_1=reads("a.txt"))
        (item,) = [item for item in again["waiting"] if item["key"] == "task-1/round-3"]
        assert (item["after"], len(item["messages"])) == ("task-1/round-1", 4)


async def test_answers_that_come_side_by_side_are_each_followed_by_what_is_new_of_their_own(
    place: Place, era: str
) -> None:
    team = Team(tasks=8, about="Task", synthesis=False)
    async with open_team_client(place, era, team) as client:
        run = await starts(client)
        for number in range(1, 4):
            turns = {f"task_{task}": reads("a.txt" if number % 2 else "b.txt") for task in range(1, 9)}
            results = await asyncio.gather(*(answers(client, run, **{task: turn}) for task, turn in turns.items()))
            for task, result in enumerate(results, 1):
                told = item_forms(result)
                assert [key for key, how in told.items() if how != "named"] == [f"task-{task}/round-{number + 1}"]
                assert told[f"task-{task}/round-{number + 1}"] == "new"
            (run,) = (await client.ask("run_status", {"run_ids": [run["run_id"]], "view": "full"}))["runs"]


async def test_two_answers_of_one_call_are_followed_by_what_is_new_of_both(place: Place, era: str) -> None:
    async with open_team_client(place, era) as client:
        run = await answers(client, await starts(client), task_1=reads("a.txt"), task_3=reads("b.txt"))
        assert item_forms(run) == {"task-2/round-1": "named", "task-1/round-2": "new", "task-3/round-2": "new"}
        assert [call["ref"] for call in run["calls"]] == ["task-1/round-1/call-1", "task-3/round-1/call-1"]


async def test_a_result_holds_so_many_characters_of_items_and_names_the_rest(place: Place, era: str) -> None:
    """What follows this call's answer comes first; whoever looks for the rest sees what waits longest."""
    for name in ("a.txt", "b.txt"):
        (place.workspace / name).write_text("".join(f"line {n}, {'word ' * 20}\n" for n in range(190)))
    team = Team(tasks=5, about="Task", synthesis=False)
    async with open_team_client(place, era, team, context_tokens=1_000_000) as client:
        run = await starts(client, tools=["read_file"])
        run = await answers(client, run, **{f"task_{n}": reads("a.txt") for n in range(1, 6)})
        result = await client.sdk_client.call_tool("run_status", {"run_ids": [run["run_id"]], "view": "full"})
        (status,) = result.structured_content["runs"]
        in_full = [key for key, how in item_forms(status).items() if how == "whole"]
        assert in_full == list(item_forms(status))[: len(in_full)]
        assert 1 < len(in_full) < 5
        assert sum(map(size, status["waiting"])) <= ITEMS_CHARS
        (note,) = [note for note in status["degraded"] if "named only" in note]
        assert "run_status view=full" in note
        assert all(item["about"].startswith("Task ") for item in status["waiting"])

        tasks = [key.partition("/")[0] for key in in_full]
        run = await answers(client, status, **{task.replace("-", "_"): reads("b.txt") for task in tasks})
        assert {item_forms(run)[f"{task}/round-3"] for task in tasks} == {"new"}
        (status,) = (await client.ask("run_status", {"run_ids": [run["run_id"]], "view": "full"}))["runs"]
        assert {how for key, how in item_forms(status).items() if key.endswith("round-2")} == {"whole"}


async def test_ten_answers_cost_a_host_what_is_new_and_no_more(place: Place, era: str) -> None:
    """One dispatcher that answers eight branches in turn is shown each request whole once."""
    team = Team(tasks=8, about="Task", synthesis=False)
    async with open_team_client(place, era, team) as client:
        run = await starts(client)
        whole = min(size(item) for item in run["waiting"])
        for number in range(1, 9):
            run = await answers(client, run, **{f"task_{number}": reads("a.txt")})
            assert size(run) < whole + 8 * 200
            (new,) = [key for key, how in item_forms(run).items() if how != "named"]
            assert new == f"task-{number}/round-2"


EDIT = {"path": "a.txt", "old_string": "alpha\n", "new_string": "omega\n"}
EDITS = {"tool_calls": [{"name": "edit_file", "arguments": EDIT}]}
TOOLS = ["read_file", "edit_file"]


async def test_an_approval_is_told_once_and_then_named(place: Place, era: str) -> None:
    async with open_team_client(place, era) as client:
        run = await answers(client, await starts(client, tools=TOOLS), task_1=EDITS)
        key = "task-1/round-1/call-1/approval"
        assert item_forms(run)[key] == "whole"
        item = next(item for item in run["waiting"] if item["key"] == key)
        assert (item["agent"], item["about"]) == ("file_manager", "Read the part of the code with the number 1")
        run = await answers(client, run, task_2=reads("b.txt"))
        assert item_forms(run) == {"task-3/round-1": "named", "task-2/round-2": "new", key: "named"}
        await client.app.answers.decide(run["run_id"], key, "approve", None, PERSON)
        await rests(client.app, run["run_id"])
        assert (place.workspace / "a.txt").read_text() == "omega\n"


async def test_an_open_dialog_of_one_branch_keeps_no_other_waiting(place: Place, era: str) -> None:
    """Whoever answered the branch has its user asked; a call about another branch returns at once."""
    person = Thinking([accepts(decision="approve")])
    async with open_team_client(place, era, person=person) as client:
        run = await starts(client, tools=TOOLS)
        asking = asyncio.create_task(answers(client, run, task_1=EDITS))
        await asyncio.wait_for(person.shown.wait(), 5)
        async with asyncio.timeout(5):
            run_2 = await answers(client, run, task_2=reads("b.txt"))
            run_3 = await answers(client, run, task_3=says("The third is done."))
        assert item_forms(run_2)["task-2/round-2"] == "new"
        assert "task-3/round-1" not in item_forms(run_3)
        assert len(person.seen) == 1
        person.decided.set()
        assert item_forms(await asking)["task-1/round-2"] == "new"
        assert (place.workspace / "a.txt").read_text() == "omega\n"


async def test_a_user_who_is_away_is_asked_once_all_else_is_done(place: Place) -> None:
    person = Absent()
    async with open_team_client(place, LEGACY, person=person) as client:
        run = await starts(client, tools=TOOLS)
        brought = {"run_id": run["run_id"], "answers": {"task-1/round-1": EDITS}, "wait_s": 0}
        run = await client.ask("run_continue", brought)
        run = await answers(client, run, task_2=says("done"))
        assert person.seen == []
        asking = asyncio.create_task(answers(client, run, task_3=says("done")))
        await asyncio.wait_for(person.shown.wait(), WITHIN_S)
        (run,) = (await client.ask("run_status", {"run_ids": [run["run_id"]]}))["runs"]
        assert (len(person.seen), list(item_forms(run))) == (1, ["task-1/round-1/call-1/approval"])
        asking.cancel()


async def test_completions_and_approvals_of_different_branches_travel_in_one_result(place: Place) -> None:
    """On 2026-07-28: what is open is asked for at once, and the client answers side by side."""
    model, person = ClientModel([]), Person([])
    async with (
        open_team_app(place.settings(), TEAM, ticking()) as app,
        connect_person(app, MODERN, person, model=model) as client,
    ):
        start = {"goal": "Do it.", "tools": TOOLS, "limits": {"rounds": 40}}
        asked = await client.step_to_requests("planner_run", start)
        assert list(asked.input_requests) == [f"task-{n}/round-1" for n in (1, 2, 3)]
        turns = {1: EDITS, 2: reads("b.txt"), 3: says("The third is done.")}
        replies = {f"task-{n}/round-1": encode_reply(turn, native=False) for n, turn in turns.items()}
        asked = await client.step_to_requests("planner_run", start, state=asked.request_state, answers=replies)
        kinds = {key: type(request).__name__ for key, request in asked.input_requests.items()}
        assert kinds == {"task-2/round-2": "CreateMessageRequest", "task-1/round-1/call-1/approval": "ElicitRequest"}
        replies = {
            "task-2/round-2": encode_reply(says("The second is done."), native=False),
            "task-1/round-1/call-1/approval": accepts(decision="approve"),
        }
        asked = await client.step_to_requests("planner_run", start, state=asked.request_state, answers=replies)
        assert list(asked.input_requests) == ["task-1/round-2"]
        assert (place.workspace / "a.txt").read_text() == "omega\n"
        replies = {"task-1/round-2": encode_reply(says("The first is done."), native=False)}
        ended = await client.step_to_result("planner_run", start, state=asked.request_state, answers=replies)
        assert ended["status"] == "completed"
        assert json.dumps(ended["summary"]).count("assistant_stop") == 3


async def test_a_branch_that_was_answered_by_another_way_is_not_asked_again(place: Place) -> None:
    """The ask was for both; what is left of it is asked anew."""
    async with (
        open_team_app(place.settings(), Team(tasks=2, synthesis=False), ticking()) as app,
        connect_client(app, MODERN, ClientModel([])) as client,
    ):
        start = {"goal": "Do it.", "limits": {"rounds": 40}}
        await client.step_to_requests("planner_run", start)
        ((run_id,),) = place.rows("select id from run")
        await app.answers.submit(run_id, {"task-1/round-1": reads("a.txt")}, PERSON)
        await rests(app, run_id)
        asked = await client.step_to_requests("planner_run", start)
        assert {key.partition("#")[0] for key in asked.input_requests} == {"task-2/round-1", "task-1/round-2"}
