"""Ask a planner for a plan: one call and one repair; what is no plan even then becomes a single task, and says so.

Steps: `plan` and `plan/repair-1`; for tasks in place of failed ones `replan-1` and `replan-1/repair-1`.
Recorded runs are replayed through this file and the ones it calls: raise VERSION with any change in what they ask.
"""

from __future__ import annotations

from functools import partial

from kairos_mcp.core.input_checks import Undecodable
from kairos_mcp.core.messages import Conversation, JsonObject
from kairos_mcp.core.outcomes import Outcome, make_outcome
from kairos_mcp.core.plan import (
    NO_TASKS,
    AgentTools,
    EarlierTasks,
    Plan,
    PlanInvalid,
    PlannedTask,
    parse_plan,
    plan_schema,
)
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import Flow
from kairos_mcp.core.text import count_of
from kairos_mcp.flows.structured_answer import AnswerForm, PhaseFailure, request_answer
from kairos_mcp.flows.team_input import TeamInput

VERSION = 1
MAX_TOKENS = 4_096
MAX_REPAIRS = 1
GENERAL = "general"  # the agent that a goal is given to which was not split; else the first one


@dataclass(frozen=True, slots=True)
class MadePlan:
    """A plan, with a note where it is not the planner's own."""

    plan: Plan
    notes: tuple[str, ...] = ()


def plan_alone(team: TeamInput) -> Flow[Outcome]:
    """Make a plan and carry out none of it: the run's output is the plan."""
    made = yield from make_plan(team)
    if isinstance(made, PhaseFailure):
        return make_outcome(made.stop_reason, record=f"There is no plan. {made.reason}")
    count = count_of(len(made.plan.tasks), "task")
    return make_outcome("assistant_stop", made.plan.analysis or count, made.plan.as_json(), made.notes)


def make_plan(team: TeamInput) -> Flow[MadePlan | PhaseFailure]:
    """Return the plan that was given, else the planner's; a failure where no planner could be asked."""
    if team.plan is not None:
        return MadePlan(team.plan)
    answer = yield from ask_planner("plan", team, team.plan_conversation())
    if isinstance(answer, Plan):
        return MadePlan(answer)
    if answer.status != "parse_error":
        return answer
    note = f"plan: the planner gave no valid one ({answer.reason}); the goal was taken as a single task."
    return MadePlan(single_task(team), (note,))


def single_task(team: TeamInput) -> Plan:
    """Return the plan that does not split the goal: one task, of the agent for everything else."""
    agent = GENERAL if GENERAL in team.agents else next(iter(team.agents))
    return Plan("", "single_task", (PlannedTask("task-1", agent, team.goal),))


def ask_planner(
    name: str, team: TeamInput, conversation: Conversation, earlier: EarlierTasks = NO_TASKS
) -> Flow[Plan | PhaseFailure]:
    """Ask the planner for a plan; with `earlier` tasks, for tasks in place of those that failed, and of those that were
    held back because of them."""
    parse = partial(_parse, agents=team.agent_tools, earlier=earlier, max_tasks=team.max_tasks)
    schema = plan_schema(0 if earlier else 1, team.agent_tools if team.lists_names else None, team.max_tasks)
    form = AnswerForm(schema, MAX_TOKENS, parse, max_repairs=MAX_REPAIRS)
    answer = yield from request_answer(name, conversation, form, team.prompts, team.loop.prompts)
    return answer if isinstance(answer, PhaseFailure) else answer.value


def _parse(given: JsonObject, agents: AgentTools, earlier: EarlierTasks, max_tasks: int) -> Plan:
    try:
        return parse_plan(given, agents, earlier, max_tasks)
    except PlanInvalid as invalid:
        raise Undecodable("; ".join(invalid.faults)) from invalid
