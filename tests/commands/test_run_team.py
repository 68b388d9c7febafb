"""A team in the terminal: its plan and tasks as they go, what it asks for in place, and a plan that a person edits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from commands.conftest import Shell
from commands.test_asked_in_place import QUESTION, script_environ, terminal, verdicts
from commands.test_narrow_terminals import too_long
from commands.test_short_names import slow
from support.script_lines import looks, says

TASKS = [
    {"id": "readme", "agent": "code_analyzer", "description": "Say what the README promises, and what is missing."},
    {"id": "write", "agent": "file_manager", "description": "Write what there is to do into notes.txt."},
    {"id": "sum", "agent": "general", "description": "Put both together.", "depends_on": ["readme", "write"]},
]
PLAN = {"analysis": "Two parts.", "strategy": "decomposed", "tasks": TASKS}
WRITE = {"id": "1", "name": "write_file", "arguments": {"path": "notes.txt", "content": "hello\n"}}
LINES: list[dict[str, Any]] = [
    {"for": "plan", **says(json.dumps(PLAN))},
    {"for": "task-1/try-1/round-1", **looks()},
    {"for": "task-1/try-1/round-2", **says("It promises everything.")},
    {"for": "task-2/try-1/round-1", "content": "", "tool_calls": [WRITE]},
    {"for": "task-2/try-1/round-2", **says("It is written.")},
    {"for": "task-3/try-1/round-1", **says("Both are done.")},
    {"for": "synthesis", **says("All of it is done.")},
]


@pytest.mark.parametrize("columns", [60, slow(100)])
def test_the_tasks_are_drawn_and_what_they_ask_for_is_asked_in_place(kairos: Shell, columns: int) -> None:
    with terminal(kairos, "run", "--team", "Do both.", lines=LINES, columns=columns) as person:
        person.shows(QUESTION)
        assert not (kairos.folder / "notes.txt").exists()
        with terminal(kairos, "show", "last", columns=columns) as other:
            assert other.ends() == 0
            drawn = other.text.splitlines()
            assert "plan: 1/3 tasks · tasks" in drawn
            signs = {line.split()[1]: line.split()[0] for line in drawn if line[:4] in ("  + ", "  > ", "  . ")}
            assert (signs["readme"], signs["write"], signs["sum"]) == ("+", ">", ".")
            assert any("waits: task-2/try-1/round-1/call-1/" in line for line in drawn)
            assert [line for line in too_long(other.text, columns) if "waits:" not in line] == []
        person.types("y")
        person.shows("All of it is done.")
        person.shows("plan: 3/3 tasks")
        assert person.ends() == 0
    assert (kairos.folder / "notes.txt").read_text() == "hello\n"
    assert verdicts(kairos) == [("approve", "local", "command", None)]
    assert kairos.rows("select flow, json_extract(outcome, '$.stop_reason') from run") == [("team", "team_done")]


@pytest.mark.slow
def test_the_line_that_moves_has_the_tasks_under_it_and_one_that_ends_stays_on_the_screen(kairos: Shell) -> None:
    lines = [*LINES[:3], {**LINES[3], "tool_calls": None, "content": "Slow.", "delay_s": 2.5}, *LINES[5:]]
    with terminal(kairos, "run", "--team", "Do both.", lines=lines) as person:
        person.shows("1/3 tasks · ")
        person.shows("> write ")
        person.shows("All of it is done.")
        assert person.ends() == 0


def test_a_team_without_a_terminal_waits_with_exit_code_3_and_goes_on_by_an_approval(kairos: Shell) -> None:
    environ = {"KAIROS_SCRIPT": script_environ(kairos, *LINES)["KAIROS_SCRIPT"]}
    said = kairos("run", "--team", "Do both.", "--json", **environ)
    assert said.code == 3
    report = json.loads(said.out)
    assert [(task["id"], task["status"]) for task in report["plan"]] == [
        ("readme", "done"), ("write", "working"), ("sum", "waiting"),
    ]  # fmt: skip
    (item,) = report["waiting"]
    assert kairos("approve", report["run_id"], item["key"], **environ).code == 0
    assert kairos.rows("select json_extract(outcome, '$.stop_reason') from run") == [("team_done",)]


def test_a_plan_is_printed_edited_and_carried_out(kairos: Shell) -> None:
    environ = {"KAIROS_SCRIPT": script_environ(kairos, *LINES)["KAIROS_SCRIPT"]}
    said = kairos("run", "--plan-only", "Do both.", **environ)
    assert said.code == 0
    plan = json.loads(said.out)
    assert [task["id"] for task in plan["tasks"]] == ["readme", "write", "sum"]
    plan["tasks"] = [plan["tasks"][0] | {"agent": "general"}]
    plan["strategy"] = "single_task"
    file = kairos.folder / "plan.json"
    file.write_text(json.dumps(plan))
    said = kairos("run", "--team", "--plan", str(file), "--json", **environ)
    assert said.code == 0
    report = json.loads(said.out)
    assert [(task["id"], task["agent"], task["status"]) for task in report["plan"]] == [("readme", "general", "done")]
    assert report["goal"] == "Two parts."
    assert kairos.rows("select count(*) from step where path = 'plan'") == [(1,)]


GOALS = {  # what is asked for: the tasks that the planner makes of it
    "What is in this file?": TASKS[:1],
    "Analyse the code base and write a training plan.": [TASKS[0], TASKS[1] | {"depends_on": ["readme"]}],
}


@pytest.mark.parametrize("goal", [slow("What is in this file?"), "Analyse the code base and write a training plan."])
def test_a_plan_has_a_task_for_each_part_of_a_goal_and_is_no_run_of_a_team(kairos: Shell, goal: str) -> None:
    plan = PLAN | {"tasks": GOALS[goal], "strategy": "single_task" if len(GOALS[goal]) == 1 else "decomposed"}
    said = kairos("run", "--plan-only", goal, **scripted_only(kairos, {"for": "plan", **says(json.dumps(plan))}))
    assert (said.code, [task["id"] for task in said.json["tasks"]]) == (0, [task["id"] for task in GOALS[goal]])
    assert kairos.rows("select flow, count(*) from run join step on run = n group by flow") == [("plan", 1)]


WRONG = {
    "a circle": [TASKS[0] | {"depends_on": ["write"]}, TASKS[1] | {"depends_on": ["readme"]}],
    "an unknown agent": [TASKS[0] | {"agent": "nobody"}],
    "a tool that it lacks": [TASKS[0] | {"needs": ["write_file"]}],
    "200 tasks": [TASKS[0] | {"id": f"t{n}"} for n in range(200)],
    "no JSON": None,
}


@pytest.mark.parametrize("title", ["a circle", *(slow(title) for title in WRONG if title != "a circle")])
def test_what_is_no_plan_is_repaired_once_and_else_printed_as_one_task_with_a_note(kairos: Shell, title: str) -> None:
    wrong = says("No JSON." if WRONG[title] is None else json.dumps(PLAN | {"tasks": WRONG[title]}))
    lines = ({"for": "plan", **wrong}, {"for": "plan/repair-1", **wrong})
    said = kairos("run", "--plan-only", "Do both.", **scripted_only(kairos, *lines))
    assert (said.code, [task["agent"] for task in said.json["tasks"]]) == (0, ["general"])
    assert "no valid one" in " ".join(said.err.split())
    lines = ({"for": "plan", **wrong}, {"for": "plan/repair-1", **says(json.dumps(PLAN))})
    said = kairos("run", "--plan-only", "Do both, again.", **scripted_only(kairos, *lines))
    assert (said.code, [task["id"] for task in said.json["tasks"]]) == (0, ["readme", "write", "sum"])
    assert "no valid one" not in " ".join(said.err.split())


def scripted_only(kairos: Shell, *lines: dict[str, Any]) -> dict[str, str]:
    return {"KAIROS_SCRIPT": script_environ(kairos, *lines)["KAIROS_SCRIPT"]}


@pytest.mark.parametrize(
    "words",
    [
        ("--team", "-i"),
        ("--team", "goal", "--agent", "general"),
        ("goal", "--agents", "general"),
        ("goal", "--team", "--at-limit", "ask"),
        slow(("goal", "--max-parallel", "2")),
        slow(("--team", "goal", "--continue", "last")),
        slow(("--plan", "missing.json")),
        slow(("--team",)),
        ("--plan", "README.md"),
        slow(("--team", "goal", "--agents", "nobody")),
    ],
    ids=str,
)
def test_words_that_do_not_go_together_are_wrong_use_and_begin_nothing(kairos: Shell, words: tuple[str, ...]) -> None:
    environ = {"KAIROS_SCRIPT": script_environ(kairos, *LINES)["KAIROS_SCRIPT"]}
    assert kairos("run", *words, **environ).code == 2
    assert not (kairos.state / "kairos.db").exists() or kairos.rows("select 1 from run") == []
