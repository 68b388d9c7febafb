"""A plan: tasks for agents, and which of them wait for others. Read strictly: a plan with a fault is no plan.

Every fault is named, so that a model can mend its plan in one try, and a person in one look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, get_args

from kairos_mcp.core.json_schema import compile_schema, object_schema, text_schema
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import nearest_names, truncate

Strategy = Literal["single_task", "decomposed"]
TaskKind = Literal["analyse", "search", "edit", "operate", "write", "other"]
OnFailedDependency = Literal["skip", "run"]
AgentTools = Mapping[str, Collection[str]]
"""The agents that a task may be given to, in the order in which they are chosen, each with the names of its tools."""

EarlierTasks = Mapping[str, bool]
"""The tasks of an earlier plan by id, each with whether it ended so that others may depend on it."""

NO_TASKS: EarlierTasks = {}
MAX_TASKS = 25
EARLIER_MAX_TASKS = 20  # of a team whose spec does not say
MAX_TEXT_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A part of a plan. `agent` does it; in a plan as it was given, None: the first that fits.

    `depends_on`: the ids of the tasks whose results it gets; `on_failed_dependency`: what becomes of it where one of
    them failed. `needs`: globs of the tools that it takes.
    """

    id: str
    agent: str | None
    description: str
    reasoning: str = ""
    depends_on: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    kind: TaskKind = "other"
    on_failed_dependency: OnFailedDependency = "skip"

    def as_json(self) -> JsonObject:
        return {
            "id": self.id,
            "agent": self.agent,
            "description": self.description,
            "reasoning": self.reasoning,
            "depends_on": list(self.depends_on),
            "needs": list(self.needs),
            "kind": self.kind,
            "on_failed_dependency": self.on_failed_dependency,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What a goal is split into. A `single_task` is not split: it has one task."""

    analysis: str
    strategy: Strategy
    tasks: tuple[PlannedTask, ...]

    def as_json(self) -> JsonObject:
        return {
            "analysis": self.analysis,
            "strategy": self.strategy,
            "tasks": [task.as_json() for task in self.tasks],
        }


class PlanInvalid(ValueError):
    """A plan with faults. `faults`: each as a sentence without its full stop, for a model or a person."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


_NAME = text_schema(64)
_TASK_SCHEMA = object_schema(
    ("id", "description"),
    id=_NAME,
    agent=_NAME,
    description=text_schema(MAX_TEXT_CHARS),
    reasoning={"type": "string", "maxLength": MAX_TEXT_CHARS},
    depends_on={"type": "array", "items": _NAME, "maxItems": MAX_TASKS},
    needs={"type": "array", "items": text_schema(256), "maxItems": 16},
    kind={"enum": list(get_args(TaskKind))},
    on_failed_dependency={"enum": list(get_args(OnFailedDependency))},
)


def plan_schema(fewest_tasks: int = 1, agents: AgentTools | None = None, max_tasks: int = MAX_TASKS) -> JsonObject:
    """Return the JSON Schema of a plan. With `agents` it lists their names, and those of their tools."""
    depends_on = _TASK_SCHEMA["properties"]["depends_on"] | {"maxItems": max_tasks}
    task = _TASK_SCHEMA | {"properties": _TASK_SCHEMA["properties"] | {"depends_on": depends_on}}
    if agents is not None:
        tools = sorted({name for tools in agents.values() for name in tools})
        needs = task["properties"]["needs"] | ({"items": {"enum": tools}} if tools else {"maxItems": 0})
        task = task | {"properties": task["properties"] | {"agent": {"enum": list(agents)}, "needs": needs}}
    return object_schema(
        ("analysis", "strategy", "tasks"),
        analysis={"type": "string", "maxLength": MAX_TEXT_CHARS},
        strategy={"enum": list(get_args(Strategy))},
        tasks={"type": "array", "items": task, "minItems": fewest_tasks, "maxItems": max_tasks},
    )


def parse_plan(
    given: JsonObject, agents: AgentTools, earlier: EarlierTasks = NO_TASKS, max_tasks: int = MAX_TASKS
) -> Plan:
    """Return the plan, with an agent for each task. Raises PlanInvalid with all that is wrong.

    With `earlier` tasks it is a plan of what replaces some of them, perhaps by nothing.
    """
    given = _without_nulls(given)
    if faults := compile_schema(plan_schema(0 if earlier else 1, max_tasks=max_tasks)).problems(given):
        raise PlanInvalid(faults)
    plan = Plan(given["analysis"], given["strategy"], tuple(_read_task(task) for task in given["tasks"]))
    if faults := list(_find_faults(plan, agents, earlier)):
        raise PlanInvalid(faults)
    return replace(
        plan, tasks=tuple(replace(task, agent=task.agent or fitting_agents(task, agents)[0]) for task in plan.tasks)
    )


def goal_of(given: JsonObject) -> str:
    """Return what stands for the goal of a team that was given a plan, not checked yet, and no goal: its analysis."""
    analysis = given.get("analysis")
    return (analysis.strip() if isinstance(analysis, str) else "") or "Carry out the plan."


def fitting_agents(task: PlannedTask, agents: AgentTools) -> list[str]:
    """Return the agents whose tools cover what the task needs, in order."""
    return [name for name, tools in agents.items() if not _list_missing_tools(task, tools)]


def _read_task(given: JsonObject) -> PlannedTask:
    return PlannedTask(
        given["id"],
        given.get("agent"),
        given["description"],
        given.get("reasoning", ""),
        tuple(given.get("depends_on", ())),
        tuple(given.get("needs", ())),
        given.get("kind", "other"),
        given.get("on_failed_dependency", "skip"),
    )


def _without_nulls(given: JsonObject) -> JsonObject:
    """Return the plan without the optional keys of its tasks that are null: absent and null are the same."""
    tasks: Any = given.get("tasks")
    if not isinstance(tasks, list):
        return given
    bare = [
        {key: value for key, value in task.items() if value is not None} if isinstance(task, dict) else task
        for task in tasks
    ]
    return given | {"tasks": bare}


def _find_faults(plan: Plan, agents: AgentTools, earlier: EarlierTasks) -> Iterator[str]:
    """Yield what the schema can't see: tasks, agents and tools that don't exist or don't fit, and circles."""
    ids = [task.id for task in plan.tasks]
    if plan.strategy == "single_task" and len(ids) > 1:
        yield f"a single_task has one task, not {len(ids)}: leave the others out, or take the strategy decomposed"
    for name in dict.fromkeys(each for each in ids if ids.count(each) > 1 or each in earlier):
        yield f"the id {name!r} is given twice"
    known = {*ids, *(name for name, is_good in earlier.items() if is_good)}
    for task in plan.tasks:
        yield from _find_task_faults(task, known, agents)
    try:
        TopologicalSorter({task.id: {*task.depends_on} & {*ids} - {task.id} for task in plan.tasks}).prepare()
    except CycleError as error:
        yield f"these tasks wait for each other: {' -> '.join(reversed(error.args[1]))}"


def _find_task_faults(task: PlannedTask, known: Collection[str], agents: AgentTools) -> Iterator[str]:
    at = f"task {truncate(task.id, 40)!r}"
    for other in task.depends_on:
        if other == task.id or other not in known:
            yield f"{at} depends on {'itself' if other == task.id else f'{other!r}, which is no task'}"
    if task.agent is not None and task.agent not in agents:
        near = ", ".join(nearest_names(task.agent, list(agents))) or ", ".join(agents)
        yield f"{at} names the agent {task.agent!r}, which is not in this team; nearest: {near}"
    elif task.agent is not None and (missing := _list_missing_tools(task, agents[task.agent])):
        yield f"{at}: the agent {task.agent} has no tool that fits {', '.join(missing)}"
    elif task.agent is None and not fitting_agents(task, agents):
        yield f"{at}: no agent has the tools that it needs ({', '.join(task.needs)})"


def _list_missing_tools(task: PlannedTask, tools: Collection[str]) -> list[str]:
    """Return the globs of what the task needs that none of these tools fits."""
    return [glob for glob in task.needs if not any(fnmatchcase(name, glob) for name in tools)]
