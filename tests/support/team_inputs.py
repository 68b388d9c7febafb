"""Teams, plans and answers for the tests of the flows of a team."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kairos_mcp.core.messages import Completion, JsonObject, ToolSet
from kairos_mcp.core.replay import RecordedStep, Runner
from kairos_mcp.core.steps import Answer, CallTool, Flow, Step
from kairos_mcp.flows.team import TeamState, team
from kairos_mcp.flows.team_input import TeamAgent, TeamInput, TeamPrompts
from kairos_mcp.tools.team_tools import PLAN_PROBLEM_SPEC
from support.planner_inputs import PROMPTS, TOOLS, brief, says


def agent(name: str, *tools: str, rounds: int = 10) -> TeamAgent:
    return TeamAgent(
        name,
        f"Does {name} work.",
        f"You are {name}.",
        ToolSet([*(spec for spec in TOOLS if spec.name in tools), PLAN_PROBLEM_SPEC]),
        rounds,
    )


AGENTS = (agent("analyst", "look", "find"), agent("editor", "look", "write"), agent("general", "look", "find", "write"))


def team_input(**changes: Any) -> TeamInput:
    start = TeamInput(
        "Reach the goal.",
        "",
        {each.name: each for each in AGENTS},
        "You plan.",
        TeamPrompts.load(lambda name: (PROMPTS / f"{name}.md").read_text()),
        brief(),
        4,
    )
    return replace(start, **changes)


def task(name: str, agent: str | None = "analyst", after: tuple[str, ...] = (), **more: Any) -> JsonObject:
    named = {} if agent is None else {"agent": agent}
    return {"id": name, "description": f"Do {name}.", "depends_on": list(after), **named, **more}


def plan_of(*tasks: JsonObject, strategy: str | None = None) -> JsonObject:
    return {
        "analysis": "What it takes.",
        "strategy": strategy or ("single_task" if len(tasks) == 1 else "decomposed"),
        "tasks": list(tasks),
    }


def plan_completion(*tasks: JsonObject, strategy: str | None = None) -> Completion:
    return says(json.dumps(plan_of(*tasks, strategy=strategy)))


def answer_of(path: str) -> Completion:
    return says(f"answer of {path}")


def run_team(
    given: TeamInput,
    answers: Mapping[str, Answer],
    choose: Callable[[int], int] = lambda _: 0,
    default: Callable[[str, Step], Answer] | None = None,
) -> tuple[TeamState, Runner, dict[str, RecordedStep]]:
    """Drive a team, answering what has begun in the order that is chosen; what is not in `answers` says its path."""
    state = TeamState()
    runner, record = Runner(team(given, state)), dict[str, RecordedStep]()
    while not runner.finished:
        begun = {path: step for path, step in runner.waiting.items() if runner.try_begin(path)}
        for path, step in begun.items():
            record.setdefault(path, RecordedStep(path, step.digest, None))
        path = list(begun)[choose(len(begun))]
        answer = answers.get(path) or (default or _says_its_path)(path, begun[path])
        record[path] = RecordedStep(path, begun[path].digest, answer)
        runner.answer(path, answer)
    return state, runner, record


def _says_its_path(path: str, step: Step) -> Answer:
    assert not isinstance(step, CallTool), f"no answer for the call {path}"
    return answer_of(path)


def flow_of(given: TeamInput) -> Flow[Any]:
    return team(given, TeamState())
