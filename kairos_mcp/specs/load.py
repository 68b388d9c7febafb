"""What a loaded spec is, and how the parts are loaded that the specs of several flows have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Generic, TypeVar

from kairos_mcp.core.forked_flow import ForkPoint, fork_flow
from kairos_mcp.core.messages import ToolSet, ToolSpec
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import FrozenFork, Spec
from kairos_mcp.core.steps import Flow
from kairos_mcp.flows import plan, team
from kairos_mcp.flows.planner_input import PlannerInput, Prompts
from kairos_mcp.flows.team import TeamState
from kairos_mcp.flows.team_input import TeamInput
from kairos_mcp.models.answers import Script
from kairos_mcp.models.dialects import TextPrompts
from kairos_mcp.store.rows import decode, decode_answer

NO_TEXT_PROMPTS = TextPrompts("", "", "")  # a single call asks no model
NO_TOOLS = ToolSet()
S = TypeVar("S", bound=Spec)


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A loaded spec: the tools offered, those that its search may find, a script if there is one, and how to build the
    flow anew."""

    spec: Spec
    offered_tools: ToolSet
    script: Script | None
    flow: Callable[[], Flow[Outcome]]
    planner_input: PlannerInput | None
    text_prompts: TextPrompts = NO_TEXT_PROMPTS
    searchable_tools: ToolSet = NO_TOOLS
    team: LoadedTeam | None = None
    forks: tuple[FrozenFork, ...] = ()

    @property
    def searches(self) -> bool:
        """Whether its model is offered a search for tools."""
        return bool(self.searchable_tools) or self.spec.search_scope is not None


@lru_cache(maxsize=16)
def _load_tools(text: str) -> ToolSet:
    """Decode the tools; cached, since most runs have the same ones."""
    return ToolSet(decode(tuple[ToolSpec, ...], text))


decode_once = lru_cache(maxsize=48)(decode)
"""Decode prompts; cached, since most runs have the same ones."""


@dataclass(frozen=True, slots=True)
class LoadedTeam:
    """A team that was loaded: what it starts from, and the models of agents that have one of their own."""

    team_input: TeamInput
    models: Mapping[str, str]
    plans_only: bool
    forks: tuple[FrozenFork, ...] = ()

    def make_flow(self, state: TeamState | None = None) -> Flow[Outcome]:
        """Make the flow anew. `state`: a new one, in which it shows what it has come to."""
        given = self.team_input
        return begin_at_forks(
            plan.plan_alone(given) if self.plans_only else team.team(given, state or TeamState()), self.forks
        )


def begin_at_forks(flow: Flow[Outcome], forks: tuple[FrozenFork, ...]) -> Flow[Outcome]:
    """Return the flow with the answers before each fork. `forks`: of a run that begins at a step, else nothing."""
    for each in forks:
        answers = {path: decode_answer(body) for path, body in each.answers}
        flow = fork_flow(flow, ForkPoint(each.path, answers, each.words))
    return flow


@dataclass(frozen=True, slots=True)
class SpecTexts(Generic[S]):
    """A spec with its texts, decoded. `read` returns a text by its hash; what it raises, each of these raises."""

    spec: S
    read: Callable[[str], str]

    def text(self, content_hash: str | None) -> str:
        return self.read(content_hash) if content_hash is not None else ""

    @property
    def offered_tools(self) -> ToolSet:
        return _load_tools(self.read(self.spec.tools_text))

    @property
    def searchable_tools(self) -> ToolSet:
        return _load_tools(self.read(self.spec.hidden_tools_text)) if self.spec.hidden_tools_text else NO_TOOLS

    @property
    def prompts(self) -> Prompts:
        prompts: Prompts = decode_once(Prompts, self.text(self.spec.prompts_text))
        return prompts

    @property
    def forks(self) -> tuple[FrozenFork, ...]:
        """Where a run begins that is a fork, the earliest first; nothing for every other run."""
        if self.spec.fork_text is None:
            return ()
        forks: tuple[FrozenFork, ...] = decode(tuple[FrozenFork, ...], self.read(self.spec.fork_text))
        return forks

    def load(
        self,
        flow: Callable[[], Flow[Outcome]],
        *,
        planner_input: PlannerInput | None = None,
        team: LoadedTeam | None = None,
    ) -> LoadedSpec:
        """Load what the specs of all flows have in common. `flow`: makes the flow anew, from its beginning."""
        spec = self.spec
        return LoadedSpec(
            spec,
            self.offered_tools,
            Script.parse(self.read(spec.script_text)) if spec.script_text else None,
            flow,
            planner_input,
            decode_once(TextPrompts, self.read(spec.dialect_text)) if spec.dialect_text else NO_TEXT_PROMPTS,
            self.searchable_tools,
            team,
            self.forks,
        )
