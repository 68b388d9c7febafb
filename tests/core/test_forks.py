"""A fork: a new run goes on from any round of an earlier one, with what that round's model was asked, and no more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.app import ASK, ME, PERSON, Place, answer_run, open_checked_app, outcome_of, reads, rests, says, start_run
from support.branches import Team, open_team_app
from support.sampling_clients import open_client

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import BadArguments, PathDenied, Stale
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import Message
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.store.rules import RuleRequest
from kairos_mcp.views.run_report import RunReport


def edits(path: str, old: str, new: str) -> dict[str, Any]:
    arguments = {"path": path, "old_string": old, "new_string": new}
    return {"tool_calls": [{"name": "edit_file", "arguments": arguments}]}


async def asked_in(app: App, run_id: str) -> list[dict[str, Any]]:
    """The conversation of the one request that waits, without its system prompt, and with the ids of its calls as a new
    run numbers them."""
    (item,) = (await app.runs.report(run_id, ME)).waiting
    return renumber_calls(item["messages"])


def renumber_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ids: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls", ()):
            ids[call["id"]] = f"earlier/call-{len(ids) + 1}"
    renamed = []
    for message in messages:
        calls = [call | {"id": ids[call["id"]]} for call in message.get("tool_calls", ())]
        result = message.get("tool_call_id")
        renamed.append(
            message
            | ({"tool_calls": calls} if calls else {})
            | ({} if result is None else {"tool_call_id": ids[result]})
        )
    return renamed


async def fork(app: App, run_id: str, path: str, goal: str = "Now the other way.", **more: Any) -> str:
    return await start_run(app, goal, route="caller", continues=run_id, from_round=path, **more)


def without_status(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without the status line at the end of the newest, which tells what is left."""
    return [*messages[:-1], {**messages[-1], "content": messages[-1]["content"].rpartition("\n\n[")[0]}]


async def three_rounds(app: App, **more: Any) -> tuple[str, list[list[dict[str, Any]]]]:
    """A run on the caller route that waits in its third round; and what was asked in each."""
    run_id = await start_run(app, route="caller", **more)
    seen = [await asked_in(app, run_id)]
    for number, name in enumerate(("a.txt", "b.txt"), 1):
        await answer_run(app, run_id, **{f"round_{number}": reads(name)})
        seen.append(await asked_in(app, run_id))
    return run_id, [without_status(each) for each in seen]


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_fork_is_asked_what_that_round_was_asked_and_then_its_goal(
    place: Place, ended: bool, number: int
) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, seen = await three_rounds(app)
        if ended:
            await answer_run(app, run_id, round_3=says("All is told."))
        forked = await asked_in(app, await fork(app, run_id, f"round-{number}"))
        assert forked[:-1] == seen[number - 1]
        assert (forked[-1]["role"], "Now the other way." in forked[-1]["content"]) == ("user", True)
        assert "All is told." not in json.dumps(forked)


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_fork_without_a_goal_is_asked_what_that_round_was_asked_and_nothing_else(
    place: Place, number: int
) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, seen = await three_rounds(app)
        forked = await fork(app, run_id, f"round-{number}", goal="")
        assert without_status(await asked_in(app, forked)) == seen[number - 1]
        report = await app.runs.report(forked, ME)
        assert (report.goal, report.rounds) == ("look around", 1)
        # What goes on with it, forked or after its end, tells its goal once.
        again = await fork(app, forked, "round-1", goal="")
        assert without_status(await asked_in(app, again)) == seen[number - 1]
        await answer_run(app, forked, round_1=says("done"))
        after = await asked_in(app, await start_run(app, "And now?", route="caller", continues=forked))
        assert json.dumps(after).count("look around") == 1
        assert [message["content"] for message in after[len(seen[number - 1]) :]][:1] == ["done"]


async def test_a_fork_without_a_goal_is_compacted_around_the_goal_that_it_has(place: Place) -> None:
    for name in ("c.txt", "d.txt"):
        (place.workspace / name).write_text("".join(f"line {n} of {name}, {'word ' * 20}\n" for n in range(50)))
    async with open_checked_app(place.settings(context_tokens=3_600)) as app:
        first = await start_run(app, "An older goal.", route="caller", tools=("read_file",))
        await answer_run(app, first, round_1=says("Reached."))
        run_id = await start_run(app, "The newer goal.", route="caller", tools=("read_file",), continues=first)
        await answer_run(app, run_id, round_1=reads("c.txt"))
        forked = await fork(app, run_id, "round-2", goal="", tools=("read_file",))
        await answer_run(app, forked, round_1=reads("d.txt"))
        assert place.rows("select path from step where kind = 'compact'") == [("round-2/compact",)]
        told = json.dumps(await asked_in(app, forked))
        assert [told.count("The newer goal."), told.count("line 1 of c.txt")] == [1, 0]


@pytest.mark.parametrize(
    "changes",
    [{"from_round": None}, {"context": "More."}, {"messages": (Message("user", "More."),)}, {"continues": None}],
)
async def test_without_a_goal_nothing_else_is_begun(place: Place, changes: dict[str, Any]) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, _ = await three_rounds(app)
        given = {"continues": run_id, "from_round": "round-2", "route": "caller"} | changes
        with pytest.raises(BadArguments):
            await app.runs.start(PlannerRequest("", **given), ME)
        assert place.rows("select count(*) from run") == [(1,)]


async def test_the_run_that_is_forked_stays_as_it_is(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, _ = await three_rounds(app)
        before = (await app.runs.report(run_id, ME)).as_json()
        forked = await fork(app, run_id, "round-2", limits=Limits(rounds=7))
        assert (await app.runs.report(run_id, ME)).as_json() == before
        report = await app.runs.report(forked, ME)
        assert (report.rounds, report.remaining["rounds"], report.usage["tool_calls"]) == (1, 6, 0)
        assert (await answer_run(app, run_id, round_3=says("done"))).summary == "done"
        assert (await answer_run(app, forked, round_1=says("otherwise"))).summary == "otherwise"


async def test_a_compacted_conversation_is_what_the_loop_had_by_then(place: Place) -> None:
    for name in ("c.txt", "d.txt"):
        (place.workspace / name).write_text("".join(f"line {n} of {name}, {'word ' * 20}\n" for n in range(50)))
    async with open_checked_app(place.settings(context_tokens=3_600)) as app:
        run_id = await start_run(app, route="caller", tools=("read_file",))
        await answer_run(app, run_id, round_1=reads("c.txt"))
        await answer_run(app, run_id, round_2=reads("d.txt"))
        assert place.rows("select path from step where kind = 'compact'") == [("round-3/compact",)]
        shrunk = without_status(await asked_in(app, run_id))
        whole = await asked_in(app, await fork(app, run_id, "round-2"))
        forked = await asked_in(app, await fork(app, run_id, "round-3"))
        assert "line 1 of c.txt" in json.dumps(whole)
        assert "line 1 of c.txt" not in json.dumps(forked)
        # A ref of the run before would be another result's here, so it is not named.
        assert [message["content"] for message in shrunk if "left out" in message["content"]] != []
        same = [one == other for one, other in zip(shrunk, forked[:-1], strict=True)]
        assert same == [True, True, False, True, True]
        assert "from an earlier run was left out" in forked[2]["content"]
        assert "round-1/call-1" not in forked[2]["content"]


async def test_files_that_were_changed_since_are_named_and_those_before_are_not(place: Place) -> None:
    tools = ("read_file", "edit_file", "write_file", "plan_edits")
    lines = (
        edits("a.txt", "alpha", "first"),
        reads("a.txt"),
        {
            "tool_calls": [
                {"name": "edit_file", "arguments": {"path": "b.txt", "old_string": "beta\nbeta", "new_string": "one"}},
                {"name": "edit_file", "arguments": {"path": "b.txt", "old_string": "not there", "new_string": "x"}},
                {"name": "write_file", "arguments": {"path": "new/c.txt", "content": "new"}},
                {
                    "name": "plan_edits",
                    "arguments": {"edits": [{"path": "a.txt", "old_string": "first", "new_string": "x"}]},
                },
                {"name": "ask_person", "arguments": {"question": "may I?"}},
            ]
        },
        says("done"),
    )
    async with open_checked_app(place.settings(*lines)) as app:
        run_id = await start_run(app, tools=tools, caller_tools=(ASK,), limits=Limits(rounds=9))
        report = await rests(app, run_id)
        while report.status == "input_required":
            for item in report.waiting:
                if item["kind"] == "approval":
                    await app.answers.decide(run_id, item["key"], "approve", None, PERSON)
                else:
                    await app.answers.submit(run_id, {item["key"]: {"content": "yes"}}, ME)
            report = await rests(app, run_id)
        assert (report.status, outcome_of(place, run_id)["stop_reason"]) == ("completed", "assistant_stop")

        async def notes(path: str) -> list[str]:
            report = await app.runs.report(await fork(app, run_id, path), ME)
            return [note for note in report.degraded if "by that run since" in note]

        asked = "Called by that run since round-{}, which may have changed more: ask_person (1 call)."
        assert await notes("round-1") == [
            "Changed by that run since round-1: a.txt, b.txt, new/c.txt.",
            asked.format(1),
        ]
        assert await notes("round-3") == [
            "Changed by that run since round-3: b.txt, new/c.txt.",
            asked.format(3),
        ]
        assert await notes("round-4") == []


@pytest.mark.unreplayed  # a flow of its own
async def test_a_round_of_a_task_s_loop_and_what_other_tasks_changed_since(place: Place) -> None:
    team = Team(tasks=2, tries=1, synthesis=False)
    async with open_team_app(place.settings(), team) as app:
        run_id = await start_run(app, route="caller", tools=("read_file", "edit_file"), limits=Limits(rounds=20))
        first, second = "task-1/try-1/round-1", "task-2/try-1/round-1"
        await app.answers.submit(run_id, {first: reads("a.txt")}, ME)
        await rests(app, run_id)
        await app.answers.submit(run_id, {second: edits("b.txt", "beta\nbeta", "two")}, ME)
        (key,) = [item["key"] for item in (await rests(app, run_id)).waiting if item["kind"] == "approval"]
        await app.answers.decide(run_id, key, "approve", None, PERSON)
        report = await rests(app, run_id)
        items = {item["key"]: item for item in report.waiting}
        asked = without_status(renumber_calls(items["task-1/try-1/round-2"]["messages"]))

        forked = await fork(app, run_id, "task-1/try-1/round-2")
        report = await app.runs.report(forked, ME)
        assert "Changed by that run since task-1/try-1/round-2: b.txt." in report.degraded
        messages = renumber_calls(report.waiting[0]["messages"])
        assert messages[:-1] == asked
        assert "alpha" in json.dumps(messages)

        forked = await fork(app, run_id, "task-1/try-1/round-2", goal="")
        item = (await app.runs.report(forked, ME)).waiting[0]
        assert without_status(renumber_calls(item["messages"])) == asked

        with pytest.raises(BadArguments) as refused:
            await fork(app, run_id, "round-1")
        rounds = "Its rounds: task-1/try-1/round-1 to round-2, task-2/try-1/round-1 to round-2."
        assert refused.value.hint.endswith(rounds)


async def test_an_unknown_round_is_refused_with_those_that_there_are(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, _ = await three_rounds(app)
        for path in ("round-4", "round-2/call-1", "closing", "task-1/round-1", "3"):
            with pytest.raises(BadArguments) as refused:
                await fork(app, run_id, path)
            assert refused.value.hint == "Its rounds: round-1 to round-3."
        assert place.rows("select count(*) from run") == [(1,)]


async def test_what_has_no_planner_loop_is_not_forked(place: Place) -> None:
    async with open_checked_app(place.settings(), via="mcp") as app:
        call = await app.runs.start_call("read_file", {"path": "a.txt"}, ME)
        await rests(app, call)
        with pytest.raises(BadArguments, match="one call of a tool"):
            await fork(app, call, "round-1")
        with pytest.raises(BadArguments, match="from needs continues"):
            await app.runs.start(PlannerRequest("on", from_round="round-1"), ME)


async def test_the_summary_of_a_run_that_was_cut_is_not_told(place: Place) -> None:
    """It tells what came after the round; what the runs before it reported still counts."""
    async with open_checked_app(place.settings()) as app:
        first = await start_run(app, "one", route="caller")
        await answer_run(app, first, round_1=says("The first report."))
        second = await start_run(app, "two", route="caller", continues=first)
        await answer_run(app, second, round_1=reads("a.txt"))
        await answer_run(app, second, round_2=says("The second report."))
        third = await fork(app, second, "round-2")
        newest = (await asked_in(app, third))[-1]["content"]
        assert ("The first report." in newest, "The second report." in newest) == (True, False)
        await answer_run(app, third, round_1=says("The third report."))
        fourth = await start_run(app, "four", route="caller", continues=third)
        newest = (await asked_in(app, fourth))[-1]["content"]
        told = [word for word in ("first", "second", "third") if f"The {word} report." in newest]
        assert told == ["first", "third"]


async def test_a_fork_of_a_fork(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, seen = await three_rounds(app)
        forked = await fork(app, run_id, "round-2")
        await answer_run(app, forked, round_1=reads("b.txt"))
        again = await asked_in(app, await fork(app, forked, "round-2", "And a third way."))
        assert again[: len(seen[1])] == seen[1]
        assert [message["role"] for message in again[len(seen[1]) :]] == ["user", "assistant", "tool", "user"]


async def test_an_identical_fork_is_attached_and_another_round_is_another_run(place: Place) -> None:
    async with open_client(place.settings()) as client:
        run_id, _ = await three_rounds(client.app)
        arguments = {"goal": "on", "route": "caller", "continues": run_id, "from": "round-2"}
        first = await client.ask("planner_run", arguments)
        assert first["waiting"][0]["messages"][-1]["content"].startswith("## Goal\non")
        again = await client.ask("planner_run", arguments)
        assert again["run_id"] == first["run_id"]
        other = await client.ask("planner_run", arguments | {"from": "round-3"})
        assert other["run_id"] != first["run_id"]
        specs = place.rows("select json_extract(spec, '$.from_round') from run order by n")
        assert specs == [(None,), ("round-2",), ("round-3",)]


async def test_approvals_for_a_run_are_not_carried_into_its_forks(place: Place) -> None:
    script = (edits("a.txt", "alpha", "omega"), edits("a.txt", "omega", "alpha"), says("done"))
    async with open_checked_app(place.settings(*script)) as app:
        run_id = await start_run(app, tools=("edit_file",))
        (item,) = (await rests(app, run_id)).waiting
        await app.answers.decide(run_id, item["key"], "approve", None, PERSON, rule=RuleRequest("run"))
        assert (await rests(app, run_id)).status == "completed"
        assert (place.workspace / "a.txt").read_text() == "alpha\n"
        forked = await start_run(app, "again", tools=("edit_file",), continues=run_id, from_round="round-1")
        report: RunReport = await rests(app, forked)
        assert [item["kind"] for item in report.waiting] == ["approval"]


async def test_a_fork_works_in_the_folder_of_the_run_it_is_of(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        run_id, _ = await three_rounds(app)
    other = place.root / "other"
    other.mkdir()
    async with App.open(place.settings(workspaces=(other,)), via="mcp") as app:
        with pytest.raises((BadArguments, PathDenied), match="workspace"):
            await fork(app, run_id, "round-2")


@pytest.mark.unreplayed
async def test_a_run_whose_record_broke_later_can_be_forked_before_that(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id, seen = await three_rounds(app)
    place.rows("update step set digest = (select start_digest from run limit 1) where path = 'round-3'")
    async with App.open(place.settings(), via="mcp") as app:
        assert (await asked_in(app, await fork(app, run_id, "round-2")))[:-1] == seen[1]
        with pytest.raises(Stale):
            await fork(app, run_id, "round-3")
