"""Load a spec into its flow: of a planner, a team, a phase or cycles. All is in the spec: no file is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from kairos_mcp.core.builtin_tools import REPORT_PLAN_PROBLEM
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.forked_flow import ForkPoint, fork_flow
from kairos_mcp.core.mandate import Mandate, parse_mandate
from kairos_mcp.core.messages import SEARCH, JsonObject, Message, ToolSet, ToolSpec
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.paths import Scopes
from kairos_mcp.core.plan import EARLIER_MAX_TASKS, parse_plan
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import (
    FrozenFork,
    FrozenTeam,
    Phase,
    Spec,
)
from kairos_mcp.core.steps import Flow
from kairos_mcp.flows import plan, planner, team, tool_calls
from kairos_mcp.flows.ooda import cycles, phases
from kairos_mcp.flows.ooda.context import CarryOver, CycleContext
from kairos_mcp.flows.ooda.prompts import PhasePrompts
from kairos_mcp.flows.planner_input import PlannerInput, Prompts
from kairos_mcp.flows.team import TeamState
from kairos_mcp.flows.team_input import TeamAgent, TeamInput, TeamPrompts
from kairos_mcp.models.answers import Script
from kairos_mcp.models.dialects import TextPrompts
from kairos_mcp.specs.kinds import PLAN, kind_of
from kairos_mcp.store.rows import decode, decode_answer, unreadable

NO_TEXT_PROMPTS = TextPrompts("", "", "")  # a single call asks no model
NO_TOOLS = ToolSet()


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A loaded spec: the tools offered, those its search may find (`searchable`), a script if there is one, and how
    to build the flow anew."""

    spec: Spec
    offered: ToolSet
    script: Script | None
    flow: Callable[[], Flow[Outcome]]
    planner_input: PlannerInput | None
    text_prompts: TextPrompts = NO_TEXT_PROMPTS
    searchable: ToolSet = NO_TOOLS
    team: LoadedTeam | None = None
    forks: tuple[FrozenFork, ...] = ()

    @property
    def searches(self) -> bool:
        """Whether its model is offered a search for tools."""
        return bool(self.searchable) or self.spec.joining is not None


def load_spec(spec_text: str, text_of: Callable[[str], str]) -> LoadedSpec:
    """Load a spec. Raises StoreCorrupt where a text is missing or damaged."""
    return load_built_spec(decode(Spec, spec_text), text_of)


def load_built_spec(spec: Spec, text_of: Callable[[str], str]) -> LoadedSpec:
    """Load a spec that is not encoded. Raises what `text_of` raises."""
    offered = _load_tools(text_of(spec.tools_text))
    kind = kind_of(spec.flow)
    if kind.is_call:
        return LoadedSpec(spec, offered, None, lambda: tool_calls.single_call(spec.goal, spec.arguments or {}), None)

    def text(content_hash: str | None) -> str:
        return text_of(content_hash) if content_hash is not None else ""

    script = Script.parse(text(spec.script_text)) if spec.script_text else None
    behind = _load_tools(text(spec.behind_text)) if spec.behind_text else NO_TOOLS
    if kind.has_plan:
        return _load_team_spec(spec, text, offered, script)
    if kind.has_mandate:
        order = load_cycle(spec, text, offered, behind, _load_prompts(text(spec.prompts_text)))
        spoken = _load_text_prompts(text(spec.dialect_text))
        forks = _load_forks(spec, text)
        return LoadedSpec(
            *(spec, offered, script, lambda: _fork_flow(make_ooda_flow(order), forks), None, spoken, behind),
            forks=forks,
        )
    planner_input = PlannerInput(
        system=_shared_text(text(spec.system_text)),
        history=decode(tuple[Message, ...], text(spec.history_text)) if spec.history_text else (),
        user=text(spec.user_text),
        tools=offered,
        output_schema=decode(dict[str, Any], text(spec.schema_text)) if spec.schema_text else None,
        context_tokens=spec.context_tokens,
        max_tokens=spec.max_tokens,
        prompts=_load_prompts(text(spec.prompts_text)),
        looks_first=bool(spec.looks_first),
        repeated_goal=spec.goal.strip() if spec.looks_first else "",
        has_goal=bool(spec.has_goal),
    )
    spoken = _load_text_prompts(text(spec.dialect_text))
    return LoadedSpec(spec, offered, script, lambda: planner.planner(planner_input), planner_input, spoken, behind)


def _load_team_spec(
    spec: Spec, text: Callable[[str | None], str], offered: ToolSet, script: Script | None
) -> LoadedSpec:
    prompts = _load_prompts(text(spec.prompts_text))
    loop = PlannerInput("", (), "", NO_TOOLS, None, spec.context_tokens, spec.max_tokens, prompts)
    loaded = load_team(spec, text, offered, loop)
    spoken = _load_text_prompts(text(spec.dialect_text))
    return LoadedSpec(spec, offered, script, loaded.make_flow, None, spoken, team=loaded, forks=loaded.forks)


@lru_cache(maxsize=16)
def _load_tools(text: str) -> ToolSet:
    """Decode the tools; cached, since most runs have the same ones."""
    return ToolSet(decode(tuple[ToolSpec, ...], text))


@lru_cache(maxsize=16)
def _shared_text(text: str) -> str:
    """Return the copy of this text that was seen first: most runs have the same system prompt, and keep it."""
    return text


@lru_cache(maxsize=16)
def _load_prompts(text: str) -> Prompts:
    prompts: Prompts = decode(Prompts, text)
    return prompts


@lru_cache(maxsize=16)
def _load_text_prompts(text: str) -> TextPrompts:
    prompts: TextPrompts = decode(TextPrompts, text)
    return prompts


@dataclass(frozen=True, slots=True)
class LoadedTeam:
    """A team that was loaded: what it starts from, and the models of agents that have one of their own."""

    team_input: TeamInput
    models: Mapping[str, str]
    plans_only: bool
    forks: tuple[FrozenFork, ...] = ()

    @property
    def tools_by_agent(self) -> Mapping[str, ToolSet]:
        return {agent.name: agent.tools for agent in self.team_input.agents.values()}

    def make_flow(self, state: TeamState | None = None) -> Flow[Outcome]:
        """Make the flow anew. `state`: a new one, in which it shows what it has come to."""
        given = self.team_input
        return _fork_flow(
            plan.plan_alone(given) if self.plans_only else team.team(given, state or TeamState()), self.forks
        )


def load_team(spec: Spec, text: Callable[[str | None], str], tools: ToolSet, loop: PlannerInput) -> LoadedTeam:
    """Load a team. `loop`: what the loops of its agents have in common. Raises StoreCorrupt."""
    frozen: FrozenTeam = decode(FrozenTeam, text(spec.team_text))
    reports = () if spec.flow == PLAN.name else (REPORT_PLAN_PROBLEM.name,)
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
        frozen.max_tasks or EARLIER_MAX_TASKS,
    )
    models = {each.name: each.model for each in frozen.agents if each.model is not None}
    return LoadedTeam(team_input, models, spec.flow == PLAN.name, _load_forks(spec, text))


def _load_forks(spec: Spec, text: Callable[[str | None], str]) -> tuple[FrozenFork, ...]:
    """Return where a run begins that is a fork, the earliest first; nothing for every other run. Raises Unreadable."""
    if spec.fork_text is None:
        return ()
    forks: tuple[FrozenFork, ...] = decode(tuple[FrozenFork, ...], text(spec.fork_text))
    return forks


def _fork_flow(flow: Flow[Outcome], forks: tuple[FrozenFork, ...]) -> Flow[Outcome]:
    for each in forks:
        answers = {path: decode_answer(body) for path, body in each.answers}
        flow = fork_flow(flow, ForkPoint(each.path, answers, each.words))
    return flow


@dataclass(frozen=True, slots=True)
class LoadedCycle:
    """A cycle context and its work: one phase (`phase`, `given`) or at most `cycles` cycles.

    `are_cycles_asked`: the caller asked for so many; else it is the most that the mandate allows.
    """

    context: CycleContext
    phase: Phase | None
    given: JsonObject | None
    cycles: int
    are_cycles_asked: bool


def load_cycle(
    spec: Spec, text: Callable[[str | None], str], tools: ToolSet, behind: ToolSet, prompts: Prompts
) -> LoadedCycle:
    """Load the cycle context of a spec. `text` returns a text by its hash. Raises StoreCorrupt."""
    context = CycleContext(
        read_mandate(text(spec.mandate_text)),
        _load_phase_prompts(text(spec.phase_prompts_text)),
        prompts,
        _select_named(tools, spec.reads),
        _select_named(tools, spec.may),
        decode(Scopes, text(spec.scopes_text)),
        decode(CarryOver, text(spec.carried_text)),
        frozenset(each.name for each in behind),
        tools.find(SEARCH) if behind or spec.joining is not None else None,
        spec.joining is not None,
    )
    given: JsonObject | None = decode(dict[str, Any], text(spec.given_text)) if spec.given_text else None
    most = spec.cycles or context.mandate.max_cycles
    return LoadedCycle(context, kind_of(spec.flow).phase, given, most, are_cycles_asked=spec.cycles is not None)


def make_ooda_flow(loaded: LoadedCycle) -> Flow[Outcome]:
    """Make the flow of a loaded spec: its phase, or its cycles."""
    if loaded.phase is None:
        return cycles.mandate_flow(loaded.context, loaded.cycles, are_asked=loaded.are_cycles_asked)
    return phases.phase_flow(loaded.context, loaded.phase, loaded.given)


def _select_named(tools: ToolSet, names: tuple[str, ...] | None) -> ToolSet:
    wanted = set(names or ())
    return ToolSet([spec for spec in tools if spec.name in wanted])


def read_mandate(text: str) -> Mandate:
    """Read the mandate in a row. Raises Unreadable."""
    try:
        return parse_mandate(json.loads(text))
    except (ValueError, KairosError) as error:
        raise unreadable("mandate") from error


@lru_cache(maxsize=16)
def _load_phase_prompts(text: str) -> PhasePrompts:
    prompts: PhasePrompts = decode(PhasePrompts, text)
    return prompts
