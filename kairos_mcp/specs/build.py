"""Build the spec of a run from a request."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import sha256
from sys import intern
from typing import TYPE_CHECKING

from kairos_mcp.core.agent import Agent
from kairos_mcp.core.builtin_tools import SEARCH_FILES
from kairos_mcp.core.errors import BadArguments, SchemaRejected
from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.limits import UNITS, Limits
from kairos_mcp.core.messages import JsonObject, Message, ToolSet
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import (
    AUTO,
    PAID_ROUTES,
    ROUTES,
    SERVER_ROUTE,
    Route,
    RouteName,
    choose_paid_route,
    choose_route,
    is_answered_by,
    order_routes,
)
from kairos_mcp.core.run_spec import PlannerRequest, Spec
from kairos_mcp.core.steps import DialectName
from kairos_mcp.flows.planner_input import Prompts, normalize_history, render_user_prompt
from kairos_mcp.models.answers import Script
from kairos_mcp.models.dialects import TextPrompts
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.models.provider_network import network_notes
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.kinds import CALL, PLANNER
from kairos_mcp.specs.short_prompts import (
    FileNames,
    GoalLines,
    add_file_names,
    add_goal_lines,
    offers_files,
    select_few_tools,
)
from kairos_mcp.store.rows import encode
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.selection import MORE_ROUNDS_SPEC, offer_more_rounds, offer_tools, withhold_more_rounds

if TYPE_CHECKING:
    from kairos_mcp.specs.load import LoadedSpec

_ROUNDS_ARE_LIMITED = f"tools: {MORE_ROUNDS_SPEC.name} is left out, since limits.rounds is given."
SHORT_MAX_TOKENS = 2048  # a small model that goes on for longer has lost its way, and takes minutes for it
MAX_TOKENS = 4096  # wanted for one completion; what it gets depends on what is left

Texts = dict[str, str]
SMALL_CONTEXT_TOKENS = 16_000
SMALL_BILLIONS = 4.0  # of parameters
_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)(b|m)(?![a-z0-9])")


@dataclass(frozen=True, slots=True)
class ContinuedRun:
    """The run that a new one continues: its conversation without the system prompt, the newest summaries, and notes on
    what changed since. `goal` is its own, and `user` the user prompt in the conversation that was made of it."""

    run_id: str
    conversation: tuple[Message, ...]
    summaries: tuple[str, ...]
    goal: str
    user: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BuiltSpec:
    """A spec with the texts it refers to, the limits that hold, and notes on what differs from the request."""

    spec: Spec
    texts: tuple[tuple[str, str], ...]
    limits: Limits
    notes: tuple[str, ...]
    version: int


NO_FILE_NAMES = FileNames()
NO_GOAL_LINES = GoalLines()


@dataclass(slots=True)
class SpecBuilder:
    """Keeps texts by their content hash while a spec is made."""

    texts: Texts = field(default_factory=dict)

    def keep(self, text: str) -> str:
        content_hash = intern(sha256(text.encode()).hexdigest())  # most texts are of many runs, whose specs keep it
        self.texts[content_hash] = text
        return content_hash


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
) -> BuiltSpec:
    """Build the spec of a planner run. `samples`: the caller's client offers its own model. `files`: those of the
    workspace, and `goal_lines`: its lines that hold words of the goal, for the short prompts. `agent`: the one that the
    request names.

    Raises BadArguments, SchemaRejected, UnknownTool, ConfigError.
    """
    builder = SpecBuilder()
    choice = choose_request_model(request, agent, settings, samples=samples)
    is_short = takes_short_prompts(settings, choice.route, choice.model)
    globs = request.tools if agent is None else agent.tools
    is_narrowed = agent is not None and request.tools is not None
    # Before the tools are selected, so that one added in between is not lost.
    coming = () if is_narrowed else registry.starting_sources(globs)
    selected = _select_tools(request, registry, agent)
    if is_short and globs is None:
        selected = select_few_tools(selected, files)
    working = withhold_more_rounds(selected)
    offer, asks_rounds = offer_tools(working, coming), len(working) < len(selected)
    grants_rounds = request.limits.rounds is None and (asks_rounds or (agent is not None and bool(working)))
    shown = offer_more_rounds(offer.shown) if grants_rounds else offer.shown
    if request.output_schema is not None:
        compile_schema(request.output_schema)
        if request.output_schema.get("type", "object") != "object":
            raise SchemaRejected(
                "output_schema: its root is no object.", 'Wrap it: {"type": "object", "properties": …}.'
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
    else:
        user = render_user_prompt(settings.read_prompt("planner-user"), request.goal, request.context, earlier)
        if is_short and files.text:
            user = add_file_names(user, settings.read_prompt("planner-tree"), files)
        # Lines of files are what it may find by itself, no more.
        if is_short and goal_lines.text and offer.shown.find(SEARCH_FILES.name) is not None:
            user = add_goal_lines(user, settings.read_prompt("planner-lines"), goal_lines)
    dialect, short_notes = dialect_for(settings, choice.route, is_short=is_short)
    spec = Spec(
        PLANNER.name,
        request.goal if kept is None else kept.goal,
        choice.route,
        builder.keep(encode(tuple(shown))),
        behind_text=builder.keep(encode(tuple(offer.searchable))) if offer.searchable else None,
        system_text=builder.keep(system),
        history_text=builder.keep(encode(history)) if history else None,
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
        joining=(globs or ()) if offer.finds_late_tools else None,
        looks_first=(is_short and kept is None and offers_files(offer.shown)) or None,
        has_goal=(kept is not None) or None,
        from_round=request.from_round,
        agent=None if agent is None else agent.name,
        grants_rounds=grants_rounds or None,
    )
    notes = (
        *(past.notes if past is not None else ()),
        *choice.notes,
        *left_out_note(agent),
        *short_notes,
        *cut,
        *_ignored_options_note(request, choice.route),
        *offer.notes,
        *((_ROUNDS_ARE_LIMITED,) if asks_rounds and not grants_rounds else ()),
        *registry.notes(globs),
    )
    return BuiltSpec(spec, tuple(builder.texts.items()), limits, notes, PLANNER.version)


def takes_short_prompts(settings: Settings, route: str, model: str | None) -> bool:
    """Whether a run with this model gets the short prompts: as the settings say, or by itself with a provider's model
    that is known as small or whose context is."""
    if settings.prompts != "auto":
        return settings.prompts == "short"
    return route in PAID_ROUTES and (settings.context_tokens <= SMALL_CONTEXT_TOKENS or is_small_model(model or ""))


def is_small_model(name: str) -> bool:
    """Whether a model's name tells a size of at most 4 billion parameters, as `qwen2.5-coder:1.5b` does. Of several
    sizes in a name, as of a mixture of experts, the largest counts."""
    sizes = [float(number) / (1 if unit == "b" else 1_000) for number, unit in _SIZE.findall(name.lower())]
    return bool(sizes) and max(sizes) <= SMALL_BILLIONS


def looks_at_files(request: PlannerRequest, agent: Agent | None, settings: Settings, *, samples: bool) -> bool:
    """Whether what is found in the workspace at the start belongs into the first message of this run."""
    if settings.prompts == "full" or (settings.prompts == "auto" and settings.model is None):
        return False  # as nearly always
    choice = choose_request_model(request, agent, settings, samples=samples)
    return takes_short_prompts(settings, choice.route, choice.model)


def dialect_for(settings: Settings, route: str, *, is_short: bool) -> tuple[DialectName, tuple[str, ...]]:
    """Return the dialect of a run, and a note where it was chosen here: `text`, unless the settings set one, where a
    provider's model was found to be small and gets the short prompts."""
    if not is_short or settings.prompts != "auto" or route not in PAID_ROUTES:
        return settings.dialect, ()
    dialect = "text" if settings.origins.get("dialect") == "default" else settings.dialect
    return dialect, (f"prompts: short, in the dialect {dialect}, since the model is small; `prompts` sets it.",)


def _ignored_options_note(request: PlannerRequest, route: str) -> tuple[str, ...]:
    """Note the options for a model that have no effect on this route."""
    asked = [name for name in ("model", "temperature") if getattr(request, name) is not None]
    if not asked or ROUTES[route].takes_options:
        return ()
    return (f"{' and '.join(asked)}: of no use on the route {route}; a provider or the host's model takes it.",)


def build_call_spec(name: str, arguments: JsonObject, settings: Settings, registry: ToolRegistry) -> BuiltSpec:
    """Build the spec of a single call. Raises UnknownTool; BadArguments where the arguments don't fit."""
    offered = registry.select((name,))
    tool = registry.find(name)
    if tool is None:  # a glob, where one name is meant
        raise BadArguments(f"{name[:80]!r} is no name of a tool.", "registry_search lists the names.")
    given = {key: value for key, value in arguments.items() if value is not None}
    problems = tool.schema.problems(given)
    if problems:
        raise BadArguments(f"{name}: {'; '.join(problems)}.", f'registry_search names=["{name}"] shows the schema.')
    builder = SpecBuilder()
    spec = Spec(CALL.name, name, SERVER_ROUTE, builder.keep(encode(tuple(offered))), arguments=given)
    limits, cut = narrow_limits(Limits(), settings)
    notes = (*cut, *registry.notes((name,)))
    return BuiltSpec(spec, tuple(builder.texts.items()), limits._replace(rounds=None), notes, CALL.version)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model source of a run: the route as asked and as chosen, with its script and model."""

    asked: str
    route: RouteName
    script: str | None
    model: str | None
    notes: Sequence[str]


def left_out_note(agent: Agent | None) -> tuple[str, ...]:
    """Note what of an agent's file has no counterpart here."""
    if agent is None or not agent.left_out:
        return ()
    return (f"agent {agent.name}: of {agent.origin} is left out: {', '.join(agent.left_out)}.",)


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


def choose_model(wanted: str, limits: Limits, model: str | None, settings: Settings, *, samples: bool) -> ModelChoice:
    """Choose the model source of a run with these limits of its own. Raises BadArguments."""
    script = _script_text(settings)
    asked = wanted if wanted != AUTO else settings.route
    choose = choose_route if limits.nano_usd is None else choose_paid_route
    route, notes = choose(asked, available_routes(settings, samples=samples))
    is_paid = ROUTES[route].is_paid
    taken = model or (settings.model if is_paid else None)
    if is_paid and taken is not None and ":" not in taken:
        raise BadArguments(f"model: {taken[:80]!r} names no provider.", f"As {settings.model}, or leave it out.")
    if limits.nano_usd is not None or (settings.limits.nano_usd is not None and is_paid):
        refuse_unpriced(route, taken, settings)
    if is_paid and settings.day.nano_usd is not None:
        refuse_unpriced(route, taken, settings, "day.usd")
    if is_paid:
        notes = (*notes, *network_notes(settings.base_url, os.environ))
    return ModelChoice(asked, route, script, taken, notes)


def refuse_unpriced(route: str, model: str | None, settings: Settings, limit: str = "limits.usd") -> None:
    """Dollars can be kept within a limit only where each token has a price. Raises BadArguments."""
    bounds = f"{limit.partition('.')[0]}.total_tokens bounds what is used"
    if route in PAID_ROUTES and model is not None:
        if Tariff.from_settings(settings, model).highest_price() is not None:
            return
        raise BadArguments(
            f"{limit} can't be kept: the price of {model} is not known.",
            f"Set price_input and price_output, or leave usd out; {bounds}.",
        )
    raise BadArguments(f"{limit} can't be kept on the route {route}, which has no price.", f"Leave usd out; {bounds}.")


def available_routes(settings: Settings, *, samples: bool, of_run: LoadedSpec | None = None) -> tuple[RouteName, ...]:
    """Return the routes that a run could take here, best first; the caller's is always among them.

    `samples`: the client offers its model. `of_run`: a run that has begun, which keeps what its spec holds.
    """
    available = {name for name, route in ROUTES.items() if _is_available(route, settings, samples, of_run)}
    return order_routes(available, clients_first=settings.sampling == "prefer")


def _is_available(route: Route, settings: Settings, samples: bool, of_run: LoadedSpec | None) -> bool:
    match route:
        case Route(answered_by="client"):
            return samples
        case Route(kept=str(kept)) if of_run is not None:
            return getattr(of_run, kept) is not None
        case Route(setting=str(setting)):
            return getattr(settings, setting) is not None
        case _:
            return True


def may_use_sampling(settings: Settings, client: str, route: str) -> bool:
    """Whether a run may be sampled by a client that declares it: `auto` leaves out one that may never answer.

    `client`: its name and version. A request for which no answer comes can't be told from one that takes long.
    """
    asked = settings.route if route == AUTO else route
    return is_answered_by("client", asked) or not any(fnmatchcase(client, glob) for glob in settings.silent_clients)


def find_own_route(settings: Settings) -> RouteName | None:
    """Return the route on which this server completes by itself, without a client or a caller; None where none can."""
    available = available_routes(settings, samples=False)
    return next((name for name in available if is_answered_by("server", name)), None)


def narrow_limits(asked: Limits, settings: Settings, rounds: int | None = None) -> tuple[Limits, tuple[str, ...]]:
    """Return the requested limits within those of the configuration, and a note for each that was lowered. `rounds`:
    the limit on rounds where the request sets none, in place of the setting."""
    return _narrow(asked, settings.limits, settings.default_rounds if rounds is None else rounds)


@lru_cache(maxsize=64)  # most runs are started with the same
def _narrow(asked: Limits, most: Limits, rounds: int | None) -> tuple[Limits, tuple[str, ...]]:
    if asked.rounds is None:
        asked = asked._replace(rounds=rounds)
    cut = tuple(
        f"limits.{unit}: {wanted} asked, {allowed} allowed by the configuration."
        for unit, wanted, allowed in zip(UNITS, asked, most, strict=True)
        if wanted is not None and allowed is not None and wanted > allowed
    )
    return asked.within(most), cut


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


def load_text_prompts(settings: Settings, *, is_brief: bool = False) -> TextPrompts:
    """Read the prompts of the text dialect; those of a small model (`is_brief`) tell of the tools in fewer words."""
    tools = settings.read_prompt("text_tools-short" if is_brief else "text_tools").strip()
    final, schema, answer = (settings.read_prompt(f"text_{name}").strip() for name in ("final", "schema", "answer"))
    return TextPrompts(tools, final, schema, answer, is_brief)


def _script_text(settings: Settings) -> str | None:
    if settings.script is None:
        return None
    try:
        text = settings.script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadArguments("The script can't be read.", f"Check KAIROS_SCRIPT: {error}.") from error
    Script.parse(text)
    return text
