"""A planner run: how its spec is built of a request, and loaded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from kairos_mcp.core.agent import Agent
from kairos_mcp.core.builtin_tools import SEARCH_FILES, withhold_more_rounds
from kairos_mcp.core.errors import BadArguments, SchemaRejected
from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import Message, ToolSet
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import PAID_ROUTES, ROUTES
from kairos_mcp.core.run_spec import PlannerRequest, Spec, TakenOver
from kairos_mcp.flows import planner
from kairos_mcp.flows.planner_input import PlannerInput, Prompts, normalize_history, render_user_prompt
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.build import (
    MAX_TOKENS,
    SHORT_MAX_TOKENS,
    BuiltSpec,
    ModelChoice,
    SpecBuilder,
    choose_model,
    dialect_for,
    left_out_note,
    load_text_prompts,
    narrow_limits,
    takes_short_prompts,
)
from kairos_mcp.specs.flow_specs import FlowSpecs
from kairos_mcp.specs.kinds import PLANNER
from kairos_mcp.specs.load import LoadedSpec, SpecTexts
from kairos_mcp.specs.short_prompts import (
    FILE_TOOLS,
    FileNames,
    GoalLines,
    add_file_names,
    add_goal_lines,
    select_few_tools,
)
from kairos_mcp.specs.stage import NO_STAGE, StageChoice
from kairos_mcp.store.rows import decode, encode
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.selection import MORE_ROUNDS_SPEC, ToolOffer, offer_more_rounds, offer_tools

_ROUNDS_ARE_LIMITED = f"tools: {MORE_ROUNDS_SPEC.name} is left out, since limits.rounds is given."


NO_FILE_NAMES = FileNames()
NO_GOAL_LINES = GoalLines()


@dataclass(frozen=True, slots=True)
class ContinuedRun:
    """The run that a new one continues: its conversation without the system prompt, the newest summaries, and notes on
    what changed since. `goal` is its own, and `user` the user prompt in the conversation that was made of it. `whose`:
    the messages of the conversation."""

    run_id: str
    conversation: tuple[Message, ...]
    summaries: tuple[str, ...]
    goal: str
    user: str
    notes: tuple[str, ...] = ()
    whose: tuple[TakenOver, ...] = ()


def build_planner_spec(
    request: PlannerRequest,
    settings: Settings,
    registry: ToolRegistry,
    past: ContinuedRun | None,
    *,
    samples: bool = False,
    files: FileNames = NO_FILE_NAMES,
    goal_lines: GoalLines = NO_GOAL_LINES,
    agent: Agent | None = None,
    stage: StageChoice = NO_STAGE,
) -> BuiltSpec:
    """Build the spec of a planner run. `samples`: the caller's client offers its own model. `files`: those of the
    workspace, and `goal_lines`: its lines that hold words of the goal, for the short prompts. `agent`: the one that the
    request names. `stage`: whether it is to work in one, and whether there can be one.

    Raises BadArguments, SchemaRejected, UnknownTool, ConfigError.
    """
    builder = SpecBuilder()
    choice = choose_request_model(request, agent, settings, samples=samples)
    is_short = takes_short_prompts(settings, choice.route, choice.model)
    globs = request.tools if agent is None else agent.tools
    offer, grants_rounds = _offer_tools(request, registry, agent, files if is_short and globs is None else None)
    shown, is_staged = offer.shown, stage.is_taken((*offer.shown, *offer.searchable))
    if is_staged:
        _refuse_names_of_stage(request, stage)
        shown = ToolSet((*shown, *stage.tools))
    if request.output_schema is not None:
        compile_schema(request.output_schema)
        if request.output_schema.get("type", "object") != "object":
            raise SchemaRejected(
                "output_schema: its root is not an object.", 'Wrap it: {"type": "object", "properties": …}.'
            )
    limits, cut = narrow_limits(request.limits, settings, None if agent is None else agent.max_rounds)
    prompts = Prompts.load(settings.read_prompt)
    earlier = past.summaries if past is not None else ()
    history = normalize_history((*(past.conversation if past is not None else ()), *request.messages))
    if agent is not None:
        system = agent.prompt
    elif request.system is not None:
        system = request.system
    else:
        system = settings.read_prompt("planner-short" if is_short else "planner").strip()
    kept = past if past is not None and not request.goal else None  # it goes on with the goal of that run
    if kept is not None:
        user = kept.user
    elif is_short:
        # Lines of files are what it may find by itself, no more.
        lines = goal_lines if offer.shown.find(SEARCH_FILES.name) is not None else NO_GOAL_LINES
        user = _write_user_prompt(request, settings, earlier, files, lines)
    else:
        user = _write_user_prompt(request, settings, earlier, NO_FILE_NAMES, NO_GOAL_LINES)
    beside_goal: dict[Literal["context", "earlier", "files"], object] = {
        "context": request.context,
        "earlier": earlier,
        "files": files.text or goal_lines.text,
    }
    dialect, short_notes = dialect_for(settings, choice.route, is_short=is_short)
    spec = Spec(
        PLANNER.name,
        request.goal if kept is None else kept.goal,
        choice.route,
        builder.keep(encode(tuple(shown))),
        hidden_tools_text=builder.keep(encode(tuple(offer.searchable))) if offer.searchable else None,
        system_text=builder.keep(system),
        history_text=builder.keep(encode(history)) if history else None,
        whose_text=builder.keep(encode(past.whose)) if past is not None and past.whose else None,
        user_text=builder.keep(user),
        schema_text=builder.keep(encode(request.output_schema)) if request.output_schema is not None else None,
        prompts_text=builder.keep(encode(prompts)),
        dialect_text=builder.keep(encode(load_text_prompts(settings, is_brief=is_short))),
        asked_route=choice.asked,
        script_text=builder.keep(choice.script) if choice.script is not None else None,
        context_tokens=settings.context_tokens,
        max_tokens=SHORT_MAX_TOKENS if is_short else MAX_TOKENS,
        model=choice.model,
        temperature=request.temperature,
        continues=request.continues,
        dialect=dialect,
        search_scope=(globs or ()) if offer.finds_late_tools else None,
        asks_back=(is_short and kept is None and any(map(offer.shown.find, FILE_TOOLS))) or None,
        has_goal=(kept is not None) or None,
        opens_with=next((name for name, is_there in beside_goal.items() if is_there), None),
        from_round=request.from_round,
        agent=None if agent is None else agent.name,
        grants_rounds=grants_rounds or None,
        asks_at_limit=request.at_limit == "ask" or None,
        staged=is_staged or None,
        stage_of=stage.taken_over if is_staged else None,
    )
    notes = (
        *(past.notes if past is not None else ()),
        *choice.notes,
        *left_out_note(agent),
        *short_notes,
        *cut,
        *_ignored_options_note(request, choice.route),
        *offer.notes,
        *stage.notes(is_staged=is_staged),
        *registry.opening_notes(globs),
    )
    return BuiltSpec(spec, tuple(builder.texts.items()), limits, notes)


def _offer_tools(
    request: PlannerRequest, registry: ToolRegistry, agent: Agent | None, files: FileNames | None
) -> tuple[ToolOffer, bool]:
    """Return the tools of a run, and whether its loop may ask for more rounds. `files`: those of the workspace, where a
    small model gets few tools."""
    globs = request.tools if agent is None else agent.tools
    is_narrowed = agent is not None and request.tools is not None
    # Before the tools are selected, so that one added in between is not lost.
    coming = () if is_narrowed else registry.starting_sources(globs)
    selected = _select_tools(request, registry, agent)
    if files is not None:
        selected = select_few_tools(selected, files)
    working = withhold_more_rounds(selected)
    offer = offer_tools(working, coming, is_default=globs is None)
    asks_rounds = len(working) < len(selected)
    if request.limits.rounds is None and (asks_rounds or (agent is not None and bool(working))):
        return replace(offer, shown=offer_more_rounds(offer.shown)), True
    return replace(offer, notes=(*offer.notes, _ROUNDS_ARE_LIMITED)) if asks_rounds else offer, False


def _write_user_prompt(
    request: PlannerRequest, settings: Settings, earlier: Sequence[str], files: FileNames, lines: GoalLines
) -> str:
    """Return the first message: the goal, and what a small model is shown of the workspace."""
    user = render_user_prompt(settings.read_prompt("planner-user"), request.goal, request.context, earlier)
    if files.text:
        user = add_file_names(user, settings.read_prompt("planner-tree"), files)
    if lines.text:
        user = add_goal_lines(user, settings.read_prompt("planner-lines"), lines)
    return user


def _refuse_names_of_stage(request: PlannerRequest, stage: StageChoice) -> None:
    own = {spec.name for spec in stage.tools}
    if taken := sorted(own & {spec.name for spec in request.caller_tools}):
        raise BadArguments(f"caller_tools: {taken[0]} is a tool of runs in a stage.", "Give yours another name.")


def looks_at_files(request: PlannerRequest, agent: Agent | None, settings: Settings, *, samples: bool) -> bool:
    """Whether what is found in the workspace at the start belongs into the first message of this run."""
    if settings.prompts == "full" or (settings.prompts == "auto" and settings.model is None):
        return False  # as nearly always
    choice = choose_request_model(request, agent, settings, samples=samples)
    return takes_short_prompts(settings, choice.route, choice.model)


def _ignored_options_note(request: PlannerRequest, route: str) -> tuple[str, ...]:
    """Note the options for a model that have no effect on this route."""
    asked = [name for name in ("model", "temperature") if getattr(request, name) is not None]
    if not asked or ROUTES[route].takes_options:
        return ()
    return (f"{' and '.join(asked)}: of no use on the route {route}; a provider or the host's model takes it.",)


def choose_request_model(
    request: PlannerRequest, agent: Agent | None, settings: Settings, *, samples: bool
) -> ModelChoice:
    """Choose the model source of a planner run: with the model of the request, else the agent's. Raises BadArguments.

    An agent's model that names no provider is a hint for a host; the provider is asked for the configured one.
    """
    model = request.model if agent is None or request.model is not None else agent.model
    if agent is None or model is None or model == request.model or ":" in model:
        return choose_model(request.route, request.limits, model, settings, samples=samples)
    choice = choose_model(request.route, request.limits, None, settings, samples=samples)
    if choice.route not in PAID_ROUTES:
        return replace(choice, model=model)
    note = f"agent {agent.name}: its model {model!r} names no provider; {choice.model} is asked."
    return replace(choice, notes=(*choice.notes, note))


def _select_tools(request: PlannerRequest, registry: ToolRegistry, agent: Agent | None) -> ToolSet:
    if agent is None:
        chosen = registry.select(request.tools)
    else:
        from kairos_mcp.tools.agent_files import select_agent_tools  # most runs are of no agent

        chosen = select_agent_tools(agent, registry, request.tools)
    for spec in request.caller_tools:
        compile_schema(spec.input_schema)
        if registry.find(spec.name) is not None:
            raise BadArguments(f"caller_tools: {spec.name} is a tool of the registry.", "Give yours another name.")
    names = [spec.name for spec in request.caller_tools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadArguments(f"caller_tools: {twice[0]} stands there twice.", "Names must differ.")
    return ToolSet((*chosen, *request.caller_tools))


def _load(texts: SpecTexts[Spec]) -> LoadedSpec:
    spec, text = texts.spec, texts.text
    planner_input = PlannerInput(
        system=sys.intern(text(spec.system_text)),  # most runs have the same one, and keep it
        history=decode(tuple[Message, ...], text(spec.history_text)) if spec.history_text else (),
        user=text(spec.user_text),
        tools=texts.offered_tools,
        output_schema=decode(dict[str, Any], text(spec.schema_text)) if spec.schema_text else None,
        context_tokens=spec.context_tokens,
        max_tokens=spec.max_tokens,
        prompts=texts.prompts,
        asks_back=bool(spec.asks_back),
        asks_at_limit=bool(spec.asks_at_limit),
        repeated_goal=spec.goal.strip() if spec.asks_back else "",
        has_goal=bool(spec.has_goal),
        submits=bool(spec.staged),
    )
    return texts.load(lambda: planner.planner(planner_input), planner_input=planner_input)


SPECS = FlowSpecs(planner.VERSION, _load, PlannerRequest, prompts=(Prompts,))
