"""Load the spec of a team and make its flow. Everything is in the spec: no file is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kairos_mcp.core.messages import ToolSet
from kairos_mcp.core.plan import parse_plan
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import FrozenTeam, Spec
from kairos_mcp.core.steps import Flow, Outcome
from kairos_mcp.flows import plan, team
from kairos_mcp.flows.planner_input import PlannerInput
from kairos_mcp.flows.team import PLAN_PROBLEM, TeamState
from kairos_mcp.flows.team_input import TeamAgent, TeamInput, TeamPrompts
from kairos_mcp.store.codec import decode


@dataclass(frozen=True, slots=True)
class LoadedTeam:
    """A team that was loaded: what it starts from, and the models of agents that have one of their own."""

    team_input: TeamInput
    models: Mapping[str, str]
    plans_only: bool

    @property
    def tools_by_agent(self) -> Mapping[str, ToolSet]:
        return {agent.name: agent.tools for agent in self.team_input.agents.values()}

    def make_flow(self, state: TeamState | None = None) -> Flow[Outcome]:
        """Make the flow anew. `state`: a new one, in which it shows what it has come to."""
        if self.plans_only:
            return plan.plan_alone(self.team_input)
        return team.team(self.team_input, state or TeamState())


def load_team(spec: Spec, text: Callable[[str | None], str], tools: ToolSet, loop: PlannerInput) -> LoadedTeam:
    """Load a team. `loop`: what the loops of its agents have in common. Raises StoreCorrupt."""
    frozen: FrozenTeam = decode(FrozenTeam, text(spec.team_text))
    reports = () if spec.flow == "plan" else (PLAN_PROBLEM,)
    agents = {
        each.name: TeamAgent(
            each.name,
            each.description,
            each.system,
            ToolSet([found for name in (*each.tools, *reports) if (found := tools.find(name)) is not None]),
            each.max_rounds,
        )
        for each in frozen.agents
    }
    own_tools = {each.name: each.tools for each in frozen.agents}
    team_input = TeamInput(
        spec.goal,
        frozen.context,
        agents,
        frozen.planner,
        decode(TeamPrompts, text(spec.team_prompts_text)),
        loop,
        frozen.max_parallel,
        frozen.records,
        frozen.files,
        None if frozen.plan is None else parse_plan(frozen.plan, own_tools),
        bool(frozen.lists_names),
    )
    models = {each.name: each.model for each in frozen.agents if each.model is not None}
    return LoadedTeam(team_input, models, spec.flow == "plan")
