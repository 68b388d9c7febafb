"""The team: tasks side by side, what they hand on, what becomes of a task that fails, and the one answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import law
from support.planner_inputs import call, says, turn
from support.team_inputs import AGENTS, agent, flow_of, plan_completion, plan_of, run_team, task, team_input

from kairos_mcp.core.builtin_tools import REPORT_PLAN_PROBLEM
from kairos_mcp.core.effects import EFFECTS
from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import ToolResult, ToolSet, ToolSpec
from kairos_mcp.core.plan import parse_plan, plan_schema
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.steps import Failure, Refused, RequestCompletion
from kairos_mcp.flows.team_input import TeamAgent, TeamInput

DOWN = Failure("provider_error", "The provider is down.")
PROBLEM = "There is no such folder; the code stands in src."


def request_at(record: Any, given: TeamInput, answers: Any, path: str) -> RequestCompletion:
    """Return what the step at this path asks, seen by folding the record."""
    runner = Runner(flow_of(given))
    for row in record.values():
        if row.path == path:
            break
        runner.replay(row.path, row.digest, row.answer)
    step = runner.waiting[path]
    assert isinstance(step, RequestCompletion)
    return step


def test_a_single_task_is_one_loop_and_its_answer_is_the_teams() -> None:
    state, runner, record = run_team(team_input(), {"plan": plan_completion(task("only"))})
    assert list(record) == ["plan", "task-1/try-1/round-1"]
    assert runner.outcome.stop_reason == "team_done"
    assert runner.outcome.summary == "answer of task-1/try-1/round-1"
    assert [each.status for each in state.tasks] == ["done"]


def test_tasks_that_depend_on_none_begin_at_once_and_others_get_the_results_before_them() -> None:
    given = team_input()
    answers = {"plan": plan_completion(task("one"), task("two", "editor"), task("both", "general", ("one", "two")))}
    _, runner, record = run_team(given, answers)
    assert list(record) == [
        "plan", "task-1/try-1/round-1", "task-2/try-1/round-1", "task-3/try-1/round-1", "synthesis",
    ]  # fmt: skip
    user = request_at(record, given, answers, "task-3/try-1/round-1").conversation[1].content
    assert "answer of task-1/try-1/round-1" in user
    assert "answer of task-2/try-1/round-1" in user
    assert "### one" in user
    first = request_at(record, given, answers, "task-1/try-1/round-1").conversation[1].content
    assert "Results of the tasks before yours" not in first
    assert runner.outcome.output["answer"] == "answer of synthesis"
    assert [(each["id"], each["agent"], each["status"], each["ref"]) for each in runner.outcome.output["tasks"]] == [
        ("one", "analyst", "done", "task-1/try-1/round-1"),
        ("two", "editor", "done", "task-2/try-1/round-1"),
        ("both", "general", "done", "task-3/try-1/round-1"),
    ]


def test_each_agent_has_its_own_prompt_and_tools() -> None:
    given = team_input()
    answers = {"plan": plan_completion(task("one"), task("two", "editor"))}
    _, _, record = run_team(given, answers)
    step = request_at(record, given, answers, "task-2/try-1/round-1")
    assert step.conversation[0].content == "You are editor."
    assert [spec.name for spec in step.tools] == ["look", "write", REPORT_PLAN_PROBLEM.name]


def test_a_long_result_is_handed_on_by_head_and_tail_and_names_the_ref_of_the_whole() -> None:
    given = team_input()
    long = "head " + "x" * 9_000 + " tail"
    answers = {"plan": plan_completion(task("one"), task("two", after=("one",))), "task-1/try-1/round-1": says(long)}
    _, _, record = run_team(given, answers)
    user = request_at(record, given, answers, "task-2/try-1/round-1").conversation[1].content
    assert "head " in user
    assert " tail" in user
    assert "task-1/try-1/round-1" in user
    assert user.count("x" * 100) < 4_100 / 100
    assert len(user) < 6_000


@pytest.mark.parametrize(
    "wrong",
    [
        says("No JSON at all."),
        plan_completion(task("a", after=("b",)), task("b", after=("a",))),
        plan_completion(task("a", "nobody")),
        plan_completion(task("a", needs=["write"])),
        plan_completion(*(task(f"t{n}") for n in range(200))),
    ],
    ids=["no JSON", "circle", "unknown agent", "tool that it lacks", "200 tasks"],
)
def test_a_plan_that_is_none_is_repaired_once_and_else_becomes_a_single_task_that_says_so(wrong: Any) -> None:
    _, runner, record = run_team(team_input(), {"plan": wrong, "plan/repair-1": plan_completion(task("only"))})
    assert list(record) == ["plan", "plan/repair-1", "task-1/try-1/round-1"]
    assert runner.outcome.notes == ()
    _, runner, record = run_team(team_input(), {"plan": wrong, "plan/repair-1": wrong})
    assert list(record) == ["plan", "plan/repair-1", "task-1/try-1/round-1"]
    assert runner.outcome.output["tasks"][0]["agent"] == "general"
    assert runner.outcome.notes[0].startswith("plan: the planner gave no valid one")


def test_a_plan_that_was_given_is_not_asked_for() -> None:
    tools = team_input().agent_tools
    given = team_input(plan=parse_plan(plan_of(task("one"), task("two", None, needs=["write"])), tools))
    _, runner, record = run_team(given, {})
    assert list(record) == ["task-1/try-1/round-1", "task-2/try-1/round-1", "synthesis"]
    assert runner.outcome.output["tasks"][1]["agent"] == "editor"


def test_without_a_planner_nothing_is_begun() -> None:
    _, runner, record = run_team(team_input(), {"plan": DOWN})
    assert list(record) == ["plan"]
    assert (runner.outcome.stop_reason, runner.outcome.status) == ("llm_error", "failed")


def test_a_failed_task_is_tried_by_another_agent_that_fits_which_is_told() -> None:
    given = team_input()
    answers = {"plan": plan_completion(task("one", needs=["find"])), "task-1/try-1/round-1": DOWN}
    state, runner, record = run_team(given, answers)
    assert list(record) == ["plan", "task-1/try-1/round-1", "task-1/try-2/round-1"]
    retried = request_at(record, given, answers, "task-1/try-2/round-1").conversation
    assert retried[0].content == "You are general."
    assert "An earlier try at your task" in retried[1].content
    assert [each.status for each in state.tasks[0].tries] == ["failed", "done"]
    assert runner.outcome.output["tasks"][0]["tries"] == [
        {"agent": "analyst", "status": "failed"},
        {"agent": "general", "status": "done"},
    ]


_POWERS = [
    ToolSpec("look", "Looks.", {"type": "object"}, "read"),
    *(ToolSpec(f"do_{effect}", "Does.", {"type": "object"}, effect) for effect in EFFECTS[1:]),
    ToolSpec("ask", "Asks for rounds.", {"type": "object"}, "idempotent", "agent_control"),
]


def _powered(name: str, *tools: str) -> TeamAgent:
    return replace(agent(name), tools=ToolSet([spec for spec in _POWERS if spec.name in ("look", "ask", *tools)]))


@pytest.mark.parametrize("needs", [[], ["look"]])
@pytest.mark.parametrize("retried_by", [*EFFECTS, None])
def test_a_failed_task_goes_to_the_least_powerful_agent_that_fits(retried_by: str | None, needs: list[str]) -> None:
    able = EFFECTS[EFFECTS.index(retried_by) :] if retried_by in EFFECTS else ()
    # From the most powerful to the least, and a second one of the same power behind it.
    others = [_powered(f"{name} {effect}", f"do_{effect}") for name in ("a", "b") for effect in reversed(able)]
    given = team_input(agents={each.name: each for each in (*others, _powered("own"))})
    own = parse_plan(plan_of(task("one", "own", needs=needs)), given.agent_tools).tasks[0]
    assert given.next_agent(own) == (retried_by and f"a {retried_by}")


def test_a_task_that_failed_twice_holds_back_what_depends_on_it_and_nothing_else() -> None:
    answers = {
        "plan": plan_completion(
            task("bad"), task("held", after=("bad",)), task("held-too", after=("held",)), task("free", "editor")
        ),
        "task-1/try-1/round-1": DOWN,
        "task-1/try-2/round-1": DOWN,
        "replan-1": plan_completion(strategy="decomposed"),
    }
    state, runner, record = run_team(team_input(), answers)
    assert [each.status for each in state.tasks] == ["failed", "skipped", "skipped", "done"]
    assert not any(path.startswith(("task-2/", "task-3/")) for path in record)
    assert runner.outcome.stop_reason == "team_done"


def test_a_task_may_run_without_the_result_of_a_failed_one() -> None:
    given = team_input()
    answers = {
        "plan": plan_completion(task("bad"), task("anyway", after=("bad",), on_failed_dependency="run")),
        "task-1/try-1/round-1": DOWN,
        "task-1/try-2/round-1": DOWN,
        "replan-1": plan_completion(strategy="decomposed"),
    }
    state, _, record = run_team(given, answers)
    assert [each.status for each in state.tasks] == ["failed", "done"]
    assert "Status: failed." in request_at(record, given, answers, "task-2/try-1/round-1").conversation[1].content


def test_the_planner_may_replace_what_failed_once_shown_the_results_so_far() -> None:
    given = team_input()
    answers = {
        "plan": plan_completion(task("good", "editor"), task("bad"), task("held", after=("bad",))),
        "task-2/try-1/round-1": DOWN,
        "task-2/try-2/round-1": DOWN,
        "replan-1": plan_completion(task("instead", "editor", ("good",)), task("then", "editor", ("instead",))),
    }
    state, runner, record = run_team(given, answers)
    assert [each.path for each in state.tasks] == ["task-1", "task-2", "task-3", "task-4", "task-5"]
    assert [each.status for each in state.tasks] == ["done", "failed", "skipped", "done", "done"]
    shown = request_at(record, given, answers, "replan-1").conversation[1].content
    assert "answer of task-1/try-1/round-1" in shown
    assert "- bad: Do bad." in shown
    assert (
        "answer of task-1/try-1/round-1"
        in request_at(record, given, answers, "task-4/try-1/round-1").conversation[1].content
    )
    assert runner.outcome.stop_reason == "team_done"


@pytest.mark.parametrize("replacement", [task("bad", "editor"), task("new", "editor", ("bad",))], ids=["id", "waits"])
def test_a_replacement_takes_no_id_again_and_waits_for_nothing_that_failed(replacement: Any) -> None:
    answers = {
        "plan": plan_completion(task("good", "editor"), task("bad")),
        "task-2/try-1/round-1": DOWN,
        "task-2/try-2/round-1": DOWN,
        "replan-1": plan_completion(replacement, strategy="decomposed"),
        "replan-1/repair-1": plan_completion(strategy="decomposed"),
    }
    state, _, record = run_team(team_input(), answers)
    assert "replan-1/repair-1" in record
    assert len(state.tasks) == 2


def test_an_agent_may_end_its_task_because_the_plan_is_wrong_and_no_other_tries_it() -> None:
    reported = turn(call(REPORT_PLAN_PROBLEM.name, problem=PROBLEM))
    answers = {
        "plan": plan_completion(task("one"), task("two", "editor")),
        "task-1/try-1/round-1": reported,
        "task-1/try-1/round-1/call-1": ToolResult("The planner is told."),
        "replan-1": plan_completion(task("again", "editor")),
    }
    given = team_input()
    state, _, record = run_team(given, answers)
    assert "task-1/try-1/round-2" not in record
    assert "task-1/try-2/round-1" not in record
    assert PROBLEM in request_at(record, given, answers, "replan-1").conversation[1].content
    assert [each.status for each in state.tasks] == ["failed", "done", "done"]


def test_a_task_that_a_limit_ended_counts_with_what_it_found() -> None:
    refused = Refused("rounds", 10, 10, "branch task-1/try-1")
    answers = {
        "plan": plan_completion(task("one"), task("two", "editor", ("one",))),
        "task-1/try-1/round-1": turn(call()),
        "task-1/try-1/round-1/call-1": ToolResult("seen"),
        "task-1/try-1/round-2": refused,
        "task-1/try-1/closing": says("Half of it."),
    }
    state, runner, record = run_team(team_input(), answers)
    assert [each.status for each in state.tasks] == ["stopped", "done"]
    assert state.tasks[0].ref == "task-1/try-1/closing"
    assert runner.outcome.output["tasks"][0]["open"] == "out of rounds"
    assert "task-1/try-2/round-1" not in record


def test_a_team_all_of_whose_tasks_failed_has_failed_whatever_its_answer_says() -> None:
    answers = {
        "plan": plan_completion(task("one"), task("two")),
        **{f"task-{n}/try-{m}/round-1": DOWN for n in (1, 2) for m in (1, 2)},
        "replan-1": DOWN,
    }
    _, runner, _ = run_team(team_input(), answers)
    assert runner.outcome.summary == "answer of synthesis"
    assert (runner.outcome.stop_reason, runner.outcome.status) == ("tasks_failed", "failed")
    assert len(runner.outcome.output["tasks"]) == 2


def test_an_answer_that_no_model_wrote_is_made_from_the_record() -> None:
    refused = Refused("total_tokens", 10, 10, "run")
    _, runner, _ = run_team(team_input(), {"plan": plan_completion(task("one"), task("two")), "synthesis": refused})
    assert runner.outcome.summary is None
    assert "- one (done): answer of task-1/try-1/round-1" in runner.outcome.record
    assert runner.outcome.output["answer"] == runner.outcome.record
    assert len(runner.outcome.notes) == 1
    assert runner.outcome.stop_reason == "team_done"


FAILING = st.sets(st.sampled_from([f"task-{n}/try-{m}/round-1" for n in range(1, 6) for m in (1, 2)]))


@st.composite
def plans(draw: Any) -> Any:
    names = [f"t{n}" for n in range(draw(st.integers(2, 5)))]
    tasks = []
    for number, name in enumerate(names):
        after = draw(st.lists(st.sampled_from(names[:number]), max_size=2, unique=True)) if number else []
        rest = {"on_failed_dependency": draw(st.sampled_from(["skip", "run"]))}
        tasks.append(task(name, draw(st.sampled_from([each.name for each in AGENTS])), tuple(after), **rest))
    return plan_completion(*tasks)


@law
@given(plans(), FAILING, st.sampled_from([1, 2, 8]), st.data())
def test_how_many_run_at_once_and_in_which_order_they_end_changes_no_step_and_no_outcome(
    plan: Any, failing: set[str], at_once: int, data: Any
) -> None:
    answers = {"plan": plan, "replan-1": plan_completion(task("instead", "editor")), **dict.fromkeys(failing, DOWN)}
    one_by_one = run_team(team_input(max_parallel=1), answers)
    other = run_team(team_input(max_parallel=at_once), answers, lambda count: data.draw(st.integers(0, count - 1)))
    assert {path: row.digest for path, row in other[2].items()} == {
        path: row.digest for path, row in one_by_one[2].items()
    }
    assert other[1].outcome == one_by_one[1].outcome

    again = Runner(flow_of(team_input(max_parallel=at_once)))
    again.replay_all(other[2].values())
    assert again.outcome == other[1].outcome


def test_agents_fit_by_their_tools_in_declared_order() -> None:
    given = team_input(agents={each.name: each for each in (agent("finder", "find"), *AGENTS)})
    parsed = parse_plan(plan_of(task("a", None, needs=["find"]), task("b", None, needs=["w*"])), given.agent_tools)
    assert [each.agent for each in parsed.tasks] == ["finder", "editor"]


@pytest.mark.parametrize(("tasks", "fits"), [(25, True), (26, False)])
def test_a_plan_has_up_to_25_tasks(tasks: int, fits: bool) -> None:
    named = [{"id": f"t{n}", "description": "Do it."} for n in range(tasks)]
    whole = {"analysis": "", "strategy": "decomposed", "tasks": named}
    problems = compile_schema(plan_schema()).problems(whole)
    assert (problems == []) is fits


def test_the_schema_of_a_plan_holds_no_empty_list_of_choices() -> None:
    schema = plan_schema(agents={"planner": ()})
    compile_schema(schema)
    assert '"enum": []' not in json.dumps(schema)
