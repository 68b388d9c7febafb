"""A team, and its plan alone: how their specs are built and loaded.

A spec holds the agents with their tools, the prompts, what the agents did before, and the names of the files. All of it
is frozen: a file of an agent that changes later changes no run that has begun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kairos_mcp.core.agent import PLANNER, Agent, AgentRecord
from kairos_mcp.core.builtin_tools import REPORT_PLAN_PROBLEM
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import ToolSet
from kairos_mcp.core.plan import EARLIER_MAX_TASKS, MAX_TASKS, Plan, PlanInvalid, parse_plan
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import PAID_ROUTES
from kairos_mcp.core.run_spec import FrozenAgent, FrozenTeam, Spec, TeamRequest, as_written
from kairos_mcp.flows import plan, team
from kairos_mcp.flows.planner_input import MAX_CONTEXT_CHARS, PlannerInput, Prompts, render_prompt
from kairos_mcp.flows.prompt_texts import check_template
from kairos_mcp.flows.team_input import TeamAgent, TeamInput, TeamPrompts
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.build import (
    MAX_TOKENS,
    BuiltSpec,
    ModelChoice,
    SpecBuilder,
    choose_model,
    dialect_for,
    left_out_note,
    load_text_prompts,
    narrow_limits,
    refuse_unpriced,
    takes_short_prompts,
)
from kairos_mcp.specs.flow_specs import FlowSpecs
from kairos_mcp.specs.kinds import PLAN, TEAM
from kairos_mcp.specs.load import NO_TOOLS, LoadedSpec, LoadedTeam, SpecTexts
from kairos_mcp.specs.stage import NO_STAGE, StageChoice
from kairos_mcp.store.rows import decode, encode
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.selection import offer_more_rounds
from kairos_mcp.tools.team_tools import PLAN_PROBLEM_SPEC

if TYPE_CHECKING:
    from kairos_mcp.settings.agents import AgentFiles


@dataclass(frozen=True, slots=True)
class TeamSpec(Spec):
    """What the specs of a team and of a plan alone have."""

    team_prompts_text: str | None = as_written()


MAX_PARALLEL = 4  # tasks at once, where the request says nothing


@dataclass(frozen=True, slots=True)
class TeamSources:
    """What the spec of a team is built from beside the request.

    `files`: the agents that can be used here, and those that can't. `records`: what they did before. `tree`: the
    names of the workspace's files. `stage`: whether its tasks are to work in one.
    """

    settings: Settings
    registry: ToolRegistry
    files: AgentFiles
    samples: bool = False
    records: Sequence[AgentRecord] = ()
    tree: str = ""
    stage: StageChoice = NO_STAGE


def build_team_spec(request: TeamRequest, sources: TeamSources) -> BuiltSpec:
    """Build the spec of a team. Raises BadArguments, also for a given plan with all its faults; UnknownAgent,
    UnknownTool, ConfigError."""
    settings = sources.settings
    if len(request.context or "") > MAX_CONTEXT_CHARS:
        raise BadArguments(
            f"context has more than {MAX_CONTEXT_CHARS} characters.",
            "Put it into files of the workspace and let the agents read what they need.",
        )
    builder = SpecBuilder()
    planner, members, notes = _choose_agents(request, sources)
    grants_rounds = request.limits.rounds is None
    tools = {agent.name: _agent_tools(agent, request, sources.registry) for agent in members}
    members = [agent for agent in members if tools[agent.name]]
    is_staged = sources.stage.is_taken(spec for own in tools.values() for spec in own)
    if is_staged:
        tools = {name: sources.stage.add_for_task(own) for name, own in tools.items()}
    if grants_rounds:
        tools = {name: offer_more_rounds(own) for name, own in tools.items()}
    if not members:
        raise BadArguments("tools: no agent of the team has a tool that they match.", "Leave `tools` out.")
    choice = choose_model(request.route, request.limits, request.model, settings, samples=sources.samples)
    is_small = takes_short_prompts(settings, choice.route, choice.model)
    models, model_notes = _agent_models(members, choice, request.limits, settings)
    given = None if request.plan is None else _check_plan(request, {each.name: tools[each.name] for each in members})
    asked, cut = narrow_limits(request.limits, settings)
    limits = asked._replace(rounds=smaller_rounds(request.limits, settings.limits))
    agents = tuple(_freeze_agent(agent, tools[agent.name], models.get(agent.name), settings) for agent in members)
    offered = {spec.name: spec for agent in members for spec in (*tools[agent.name], PLAN_PROBLEM_SPEC)}
    offered |= {spec.name: spec for spec in sources.stage.tools if is_staged}
    frozen = FrozenTeam(
        agents,
        planner.prompt,
        request.max_parallel or MAX_PARALLEL,
        request.context or "",
        "\n".join(f"- {each.agent}: {each.line}" for each in sources.records if each.agent in tools),
        sources.tree,
        None if given is None else given.as_json(),
        is_small or None,
        MAX_TASKS,
    )
    dialect, _ = dialect_for(settings, choice.route, is_short=is_small)
    small_notes = (f"dialect: {dialect}, since the model is small; `dialect` sets it.",) if is_small else ()
    kind = PLAN if request.plans_only else TEAM
    spec = TeamSpec(
        kind.name,
        request.goal,
        choice.route,
        builder.keep(encode(tuple(offered.values()))),
        prompts_text=builder.keep(encode(Prompts.load(settings.read_prompt))),
        script_text=builder.keep(choice.script) if choice.script is not None else None,
        context_tokens=settings.context_tokens,
        max_tokens=MAX_TOKENS,
        model=choice.model,
        temperature=request.temperature,
        dialect_text=builder.keep(encode(load_text_prompts(settings, is_brief=is_small))),
        asked_route=choice.asked,
        dialect=dialect,
        grants_rounds=grants_rounds or None,
        team_text=builder.keep(encode(frozen)),
        team_prompts_text=builder.keep(encode(TeamPrompts.load(settings.read_prompt))),
        staged=is_staged or None,
    )
    all_notes = (
        *(*choice.notes, *small_notes, *cut, *notes, *model_notes, *sources.stage.notes(is_staged=is_staged)),
        *sources.registry.opening_notes(request.tools),
    )
    return BuiltSpec(spec, tuple(builder.texts.items()), limits, all_notes)


def _choose_agents(request: TeamRequest, sources: TeamSources) -> tuple[Agent, list[Agent], list[str]]:
    """Return the planner and the agents that tasks may be given to, with notes on those that can't be used.

    Raises UnknownAgent, ConfigError.
    """
    files = sources.files
    planner = files.require(PLANNER)
    names = request.agents if request.agents is not None else tuple(files.agents)
    members = [files.require(name) for name in dict.fromkeys(names) if name != PLANNER]
    if not members:
        raise BadArguments("agents: the planner does no task.", "Name at least one other agent, or leave it out.")
    if request.agents is None:
        return planner, members, [each.sentence for each in files.disabled]
    return planner, members, [note for agent in members for note in left_out_note(agent)]


def _agent_tools(agent: Agent, request: TeamRequest, registry: ToolRegistry) -> ToolSet:
    """Return the tools of an agent, narrowed to those that the request names."""
    from kairos_mcp.tools.agent_files import select_agent_tools  # at first use: most runs are of no team

    own = select_agent_tools(agent, registry)
    if request.tools is None:
        return own
    kept = {spec.name for spec in registry.select(request.tools)}
    return ToolSet([spec for spec in own if spec.name in kept])


def _agent_models(
    agents: Sequence[Agent], choice: ModelChoice, limits: Limits, settings: Settings
) -> tuple[Mapping[str, str], list[str]]:
    """Return the models of those agents that have one of their own, and notes on those that can't be had.

    Raises BadArguments where dollars are limited and a model has no price.
    """
    models: dict[str, str] = {}
    notes = []
    for agent in agents:
        if agent.model is None:
            continue
        if choice.route in PAID_ROUTES and ":" not in agent.model:
            notes.append(f"agent {agent.name}: its model {agent.model!r} names no provider; {choice.model} is asked.")
        else:
            if limits.nano_usd is not None and choice.route in PAID_ROUTES:
                refuse_unpriced(choice.route, agent.model, settings)
            models[agent.name] = agent.model
    return models, notes


def _check_plan(request: TeamRequest, tools: Mapping[str, ToolSet]) -> Plan:
    """Return the plan that was given. Raises BadArguments with every fault."""
    assert request.plan is not None
    try:
        return parse_plan(request.plan, {name: [spec.name for spec in specs] for name, specs in tools.items()})
    except PlanInvalid as invalid:
        raise BadArguments(
            f"plan: {'; '.join(invalid.faults)}.", f"Agents of this team: {', '.join(tools)}. planner_plan makes one."
        ) from invalid


def _freeze_agent(agent: Agent, tools: ToolSet, model: str | None, settings: Settings) -> FrozenAgent:
    """Return the agent as the run has it: its prompt names the tools that it really has."""
    names = tuple(spec.name for spec in tools)
    template = settings.read_prompt("agent-tools").strip()
    check_template("agent-tools", template, ("tools",))
    listed = render_prompt(template, tools=", ".join((*names, PLAN_PROBLEM_SPEC.name)))
    return FrozenAgent(agent.name, agent.description, f"{agent.prompt}\n\n{listed}", names, agent.max_rounds, model)


def smaller_rounds(asked: Limits, allowed: Limits) -> int | None:
    """Return the limit on the rounds of all tasks together: none by default, since each agent has one of its own."""
    caps = [cap for cap in (asked.rounds, allowed.rounds) if cap is not None]
    return min(caps, default=None)


def _load(texts: SpecTexts[TeamSpec]) -> LoadedSpec:
    spec, text, tools = texts.spec, texts.text, texts.offered_tools
    loop = PlannerInput("", (), "", NO_TOOLS, None, spec.context_tokens, spec.max_tokens, texts.prompts)
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
        submits=bool(spec.staged),
    )
    models = {each.name: each.model for each in frozen.agents if each.model is not None}
    loaded = LoadedTeam(team_input, models, spec.flow == PLAN.name, texts.forks)
    return texts.load(loaded.make_flow, team=loaded)


PLAN_SPECS = FlowSpecs(plan.VERSION, _load, TeamRequest, spec=TeamSpec, prompts=(Prompts, TeamPrompts))
TEAM_SPECS = PLAN_SPECS._replace(version=team.VERSION)
