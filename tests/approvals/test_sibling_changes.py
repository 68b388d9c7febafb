"""Two tasks of a run that change the same file: the second is told once what the first changed, and never overwrites it
unseen. In whole runs, by hand-made flows of planner loops, whose rounds the test answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import ME, PERSON, Place, law, open_checked_app, rests, says, start_run
from support.branches import Team, open_team_app

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import ToolCall, ToolResult
from kairos_mcp.core.run_spec import TeamRequest
from kairos_mcp.core.steps import CallTool
from kairos_mcp.execution.sibling_changes import SHOWN_CHARS, SiblingChanges
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.store.queries import StepRow
from kairos_mcp.store.rows import encode_answer

pytestmark = pytest.mark.unreplayed  # a flow of its own

ALLOWED = (GateRule("*", "allow", effect="checked"),)
TOOLS = ("read_file", "edit_file", "write_file", "plan_edits", "apply_edit_plan")
TWO, RETRIED = Team(tasks=2, synthesis=False), Team(tasks=1, tries=2, tried=Limits(rounds=9), synthesis=False)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def turn(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"content": "", "tool_calls": list(calls)}


READ = call("read_file", path="a.txt")


def edit(old: str, new: str, path: str = "a.txt") -> dict[str, Any]:
    return call("edit_file", path=path, old_string=old, new_string=new)


class Tasks(NamedTuple):
    """A run of tasks that waits for the caller's answers."""

    app: App
    place: Place
    run_id: str

    async def answer(self, **turns: dict[str, Any]) -> None:
        """Bring turns together; `task_1__round_2` stands for the second of task 1."""
        keys = {key.replace("__", "/").replace("_", "-"): value for key, value in turns.items()}
        await self.app.answers.submit(self.run_id, keys, ME)
        await rests(self.app, self.run_id)

    async def decide(self, path: str) -> None:
        """Approve the call at this path."""
        waiting = {item["key"]: item for item in (await self.app.runs.report(self.run_id, ME)).waiting}
        decision = {"decision": "approve", "digest": waiting[f"{path}/approval"]["digest"]}
        await self.app.answers.submit(self.run_id, {f"{path}/approval": decision}, PERSON)
        await rests(self.app, self.run_id)

    def code_of(self, path: str) -> Any:
        ((code,),) = self.place.rows(
            "select json_extract(body, '$.code') from step join answer on step = step.id where path = ?", path
        )
        return code

    def content_of(self, path: str) -> str:
        ((content,),) = self.place.rows(
            "select json_extract(body, '$.content') from step join answer on step = step.id where path = ?", path
        )
        return str(content)


@asynccontextmanager
async def open_tasks(place: Place, team: Team = TWO, gate: tuple[GateRule, ...] = ALLOWED) -> AsyncIterator[Tasks]:
    (place.workspace / "a.txt").write_text("one\ntwo\nthree\n")
    async with open_team_app(place.settings(gate=gate, default_rounds=40), team) as app:
        yield Tasks(app, place, await start_run(app, route="caller", tools=TOOLS))


def text_of(place: Place, name: str = "a.txt") -> str:
    return (place.workspace / name).read_text()


async def both_read_and_the_first_edits(tasks: Tasks) -> None:
    await tasks.answer(task_1__round_1=turn(READ), task_2__round_1=turn(READ))
    await tasks.answer(task_1__round_2=turn(edit("one", "first")))


async def test_the_second_is_told_once_what_the_first_changed_and_then_goes_on(place: Place) -> None:
    async with open_tasks(place) as tasks:
        await both_read_and_the_first_edits(tasks)
        await tasks.answer(task_2__round_2=turn(edit("three", "third")))
        assert tasks.code_of("task-2/round-2/call-1") == "stale_file"
        told = tasks.content_of("task-2/round-2/call-1")
        assert "a.txt was changed by task-1 since you last read it; nothing was written." in told
        assert "What programs change is not known" in told
        assert "task-1/round-2/call-1:\n--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n-one\n+first\n two\n three" in told
        assert text_of(place) == "first\ntwo\nthree\n"
        await tasks.answer(task_2__round_3=turn(edit("three", "third")))
        assert tasks.code_of("task-2/round-3/call-1") is None
        assert text_of(place) == "first\ntwo\nthird\n"


async def test_a_text_that_the_other_replaced_is_stale_too_and_not_only_not_found(place: Place) -> None:
    async with open_tasks(place) as tasks:
        await both_read_and_the_first_edits(tasks)
        await tasks.answer(task_2__round_2=turn(edit("one", "mine")))
        assert tasks.code_of("task-2/round-2/call-1") == "stale_file"
        await tasks.answer(task_2__round_3=turn(edit("one", "mine")))
        assert tasks.code_of("task-2/round-3/call-1") == "match_none"


async def test_who_has_read_the_change_is_told_nothing(place: Place) -> None:
    async with open_tasks(place) as tasks:
        await both_read_and_the_first_edits(tasks)
        await tasks.answer(task_2__round_2=turn(READ))
        await tasks.answer(task_2__round_3=turn(edit("three", "third")))
        assert text_of(place) == "first\ntwo\nthird\n"
        await tasks.answer(task_1__round_3=turn(edit("two", "second")))
        assert tasks.code_of("task-1/round-3/call-1") == "stale_file"  # the other way round


async def test_what_is_read_or_told_in_a_turn_counts_from_the_next_one(place: Place) -> None:
    async with open_tasks(place) as tasks:
        await both_read_and_the_first_edits(tasks)
        both = turn(READ, edit("three", "third"), edit("two", "second"))
        await tasks.answer(task_2__round_2=both)
        assert [tasks.code_of(f"task-2/round-2/call-{n}") for n in (1, 2, 3)] == [None, "stale_file", "stale_file"]
        await tasks.answer(task_2__round_3=both)
        assert text_of(place) == "first\nsecond\nthird\n"


async def test_other_files_and_its_own_tries_are_nothing_to_tell(place: Place) -> None:
    async with open_tasks(place, RETRIED) as tasks:
        await tasks.answer(task_1__try_1__round_1=turn(READ, edit("one", "first")))
        await tasks.answer(task_1__try_1__round_2=says("failed"))
        await tasks.answer(
            task_1__try_2__round_1=turn(edit("three", "third"), call("write_file", path="b.txt", content=""))
        )
        assert text_of(place) == "first\ntwo\nthird\n"
        assert text_of(place, "b.txt") == ""


async def test_a_file_that_the_other_created_and_a_plan_that_it_overtook_are_told(place: Place) -> None:
    async with open_tasks(place) as tasks:
        await tasks.answer(task_2__round_1=turn(call("plan_edits", edits=[edit("two", "second")["arguments"]])))
        created = call("write_file", path="new.txt", content="mine\n")
        await tasks.answer(task_1__round_1=turn(created, edit("one", "first")))
        content = tasks.content_of("task-2/round-1/call-1")
        plan = content.removeprefix("Plan ").partition(":")[0]
        await tasks.answer(task_2__round_2=turn(created, call("apply_edit_plan", plan_id=plan)))
        assert [tasks.code_of(f"task-2/round-2/call-{n}") for n in (1, 2)] == ["stale_file"] * 2
        assert "new.txt was created." in tasks.content_of("task-2/round-2/call-1")
        assert "+first" in tasks.content_of("task-2/round-2/call-2")
        mine = call("write_file", path="new.txt", content="of both\n")
        await tasks.answer(task_2__round_3=turn(mine, call("apply_edit_plan", plan_id=plan)))
        assert text_of(place, "new.txt") == "of both\n"
        assert tasks.code_of("task-2/round-3/call-2") == "stale_file"  # the plan's own check: the file is another
        assert "task-1" not in tasks.content_of("task-2/round-3/call-2")


async def test_it_is_told_before_a_person_is_asked_and_where_the_change_came_meanwhile(place: Place) -> None:
    async with open_tasks(place, gate=()) as tasks:
        await tasks.answer(task_1__round_1=turn(READ), task_2__round_1=turn(READ))
        await tasks.answer(task_1__round_2=turn(edit("one", "first")), task_2__round_2=turn(edit("three", "third")))
        await tasks.decide("task-1/round-2/call-1")
        await tasks.decide("task-2/round-2/call-1")
        assert tasks.code_of("task-2/round-2/call-1") == "stale_file"
        assert "+first" in tasks.content_of("task-2/round-2/call-1")
        await tasks.answer(task_1__round_3=turn(edit("first", "1st")))
        await tasks.decide("task-1/round-3/call-1")
        asked = place.rows("select count(*) from approval")
        await tasks.answer(task_2__round_3=turn(edit("three", "third")))
        assert tasks.code_of("task-2/round-3/call-1") == "stale_file"
        assert place.rows("select count(*) from approval") == asked
        await tasks.answer(task_2__round_4=turn(edit("three", "third")))
        await tasks.decide("task-2/round-4/call-1")
        assert text_of(place) == "1st\ntwo\nthird\n"


async def test_of_two_that_change_a_file_at_once_one_is_told(place: Place) -> None:
    async with open_tasks(place) as tasks:
        await tasks.answer(task_1__round_1=turn(READ), task_2__round_1=turn(READ))
        whole = [call("write_file", path="a.txt", content=f"{n}\n") for n in (1, 2)]
        await tasks.answer(task_1__round_2=turn(whole[0]), task_2__round_2=turn(whole[1]))
        codes = [tasks.code_of(f"task-{n}/round-2/call-1") for n in (1, 2)]
        assert sorted(codes, key=str) == [None, "stale_file"]
        assert text_of(place) == f"{1 + codes.index(None)}\n"
        told = tasks.content_of(f"task-{1 + codes.index('stale_file')}/round-2/call-1")
        assert f"was changed by task-{1 + codes.index(None)}" in told


async def test_another_process_tells_it_too_and_not_twice(place: Place) -> None:
    settings = place.settings(gate=ALLOWED, default_rounds=40)
    async with open_tasks(place) as tasks:
        await both_read_and_the_first_edits(tasks)
    async with open_team_app(settings, TWO) as app:
        later = Tasks(app, place, tasks.run_id)
        await later.answer(task_2__round_2=turn(edit("three", "third")))
        assert later.code_of("task-2/round-2/call-1") == "stale_file"
    async with open_team_app(settings, TWO) as app:
        later = Tasks(app, place, tasks.run_id)
        await later.answer(task_2__round_3=turn(edit("three", "third")))
        assert text_of(place) == "first\ntwo\nthird\n"


async def test_what_is_shown_of_long_changes_is_bounded(place: Place) -> None:
    async with open_tasks(place) as tasks:
        await tasks.answer(task_1__round_1=turn(READ), task_2__round_1=turn(READ))
        long = "".join(f"line {n}\n" for n in range(600))
        await tasks.answer(task_1__round_2=turn(edit("one\n", long)))
        await tasks.answer(task_2__round_2=turn(edit("three", "third")))
        told = tasks.content_of("task-2/round-2/call-1")
        assert SHOWN_CHARS - 200 < len(told) < SHOWN_CHARS + 500


async def test_a_rule_that_denies_comes_first_and_shows_nothing(place: Place) -> None:
    rules = (GateRule("edit_file", "deny", agent="reader"), *ALLOWED)
    async with open_tasks(place, Team(tasks=2, synthesis=False, agent="reader"), rules) as tasks:
        await tasks.answer(task_1__round_1=turn(call("write_file", path="a.txt", content="mine\n")))
        await tasks.answer(task_2__round_1=turn(edit("one", "other")))
        assert tasks.code_of("task-2/round-1/call-1") == "denied"


# -- in a team -----------------------------------------------------------------------------------------------------

EDITING = {
    "analysis": "Two parts of one file.",
    "strategy": "decomposed",
    "tasks": [{"id": part, "agent": "file_manager", "description": f"Mend the {part}."} for part in ("head", "tail")],
}


async def test_the_tasks_of_a_team_are_told_of_each_others_changes(place: Place) -> None:
    (place.workspace / "a.txt").write_text("one\ntwo\nthree\n")
    async with open_checked_app(place.settings(gate=ALLOWED)) as app:
        run_id = (await app.runs.start(TeamRequest("mend it", EDITING, route="caller"), ME)).run_id
        await rests(app, run_id)
        tasks = Tasks(app, place, run_id)
        await tasks.answer(task_1__try_1__round_1=turn(READ), task_2__try_1__round_1=turn(READ))
        await tasks.answer(task_1__try_1__round_2=turn(edit("one", "first")))
        await tasks.answer(task_2__try_1__round_2=turn(edit("three", "third")))
        assert tasks.code_of("task-2/try-1/round-2/call-1") == "stale_file"
        assert "changed by task-1" in tasks.content_of("task-2/try-1/round-2/call-1")
        await tasks.answer(task_2__try_1__round_3=turn(edit("three", "third")))
        assert text_of(place) == "first\ntwo\nthird\n"
        await tasks.answer(task_1__try_1__round_3=says("done"), task_2__try_1__round_4=says("done"))
        await tasks.answer(synthesis=says("mended"))
        assert (await app.runs.report(run_id, ME)).stop_reason == "team_done"


# -- the law: what is known from the rows is at least what was known before ------------------------------------------

FILES = ("a.txt", "b.txt")
events = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from(("read", "edit", "try")), st.sampled_from(FILES)),
    max_size=30,
)


@law
@given(events, st.integers(1, 3))
def test_rebuilt_from_its_rows_it_refuses_what_it_refused(happened: list[Any], speed: int) -> None:
    """A run in which a call follows another, `speed` of them within a millisecond."""
    live, rows, turns = SiblingChanges(), list[tuple[StepRow, CallTool]](), dict[int, int]()
    for number, (task, _, kind, file) in enumerate(happened, 1):
        turns[task] = turns.get(task, 0) + 1
        path = f"task-{task}/round-{turns[task]}/call-1"
        made = ToolCall(path, "read_file" if kind == "read" else "edit_file", {"path": file})
        refused = None if kind == "read" else live.refusal(path, made)
        again = SiblingChanges()
        again.rebuild(rows)
        assert kind == "read" or refused is None or again.refusal(path, made) is not None
        if speed == 1 and kind != "read":
            assert again.refusal(path, made) == refused
        live.begin(path, made)
        edited = {"files": [{"path": file, "before": None, "after": "x", "bytes": 1}]}
        answer = refused or ToolResult("", data={"path": file} if kind == "read" else edited)
        live.end(path, made, answer)
        times = [2 * number // speed, (2 * number + 1) // speed]
        row = StepRow(
            number,
            path,
            "call",
            b"",
            times[0],
            "[]",
            None,
            encode_answer(answer),
            times[1],
            None,
            0,
            None,
            None,
            None,
            None,
            None,
            0,
            0,
        )
        rows.append((row, CallTool(path, made)))
