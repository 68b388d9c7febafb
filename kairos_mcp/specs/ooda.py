"""Phases of OODA and cycles of a mandate: how their specs are built and loaded.

A spec freezes the mandate, its tools and files, the prompts, the lessons.

A mandate only narrows: of limits the least counts, of tools those that its globs name, never one that changes files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from kairos_mcp.core.builtin_tools import EDIT_TOOLS, SUBMIT_CHANGES, names_where
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.mandate import Mandate
from kairos_mcp.core.messages import SEARCH, JsonObject, ToolSet, ToolSpec
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.paths import Scopes
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import PAID_ROUTES
from kairos_mcp.core.run_spec import (
    CyclesRequest,
    PhaseRequest,
    Spec,
    UnattendedAllowance,
    as_written,
)
from kairos_mcp.core.steps import Flow
from kairos_mcp.flows.ooda import cycles, phases
from kairos_mcp.flows.ooda.context import ActEffect, CarryOver, CycleContext
from kairos_mcp.flows.ooda.phase_kinds import PHASES
from kairos_mcp.flows.ooda.prompts import PhasePrompts
from kairos_mcp.flows.planner_input import Prompts
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.build import (
    MAX_TOKENS,
    BuiltSpec,
    ModelChoice,
    SpecBuilder,
    choose_model,
    load_text_prompts,
    narrow_limits,
    refuse_unpriced,
)
from kairos_mcp.specs.flow_specs import FlowSpecs
from kairos_mcp.specs.kinds import CYCLES, PHASE_KINDS
from kairos_mcp.specs.load import LoadedSpec, SpecTexts, begin_at_forks, decode_once
from kairos_mcp.specs.stage import NO_STAGE, StageChoice
from kairos_mcp.store.mandates import read_mandate
from kairos_mcp.store.rows import decode, encode
from kairos_mcp.tools.files.workspace_scopes import build_scopes
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.selection import offer_tools

_EDIT_ACTIONS = frozenset(("code_edit", "edit_plan", "create_file"))
UNATTENDED_ALLOWANCE = UnattendedAllowance(model_calls=60, milliseconds=300_000)


@dataclass(frozen=True, slots=True)
class OodaSpec(Spec):
    """What the specs of cycles and of a phase alone have. `reads`: the tools that observe and decide may call; `may`:
    those that act may run; both within `tools_text`."""

    phase_prompts_text: str | None = as_written()
    cycles: int | None = None
    reads: tuple[str, ...] | None = None
    may: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class CycleSources:
    """What a spec is built from beside the request.

    `mandate`: the one that the request names. `registry`: the tools of the workspace. `samples`: whether the caller's
    client offers its model. `output`: that of the mandate's newest run. `stage`: whether cycles are to work in one.
    """

    mandate: Mandate
    settings: Settings
    registry: ToolRegistry
    workspace: str | None
    samples: bool = False
    output: JsonObject | None = None
    stage: StageChoice = NO_STAGE


class PhaseInput(NamedTuple):
    """The output of the phase before, and the run that made it, if that is known; of the first phase neither."""

    value: JsonObject | None = None
    run: str | None = None


def build_phase_spec(request: PhaseRequest, given: PhaseInput, sources: CycleSources) -> BuiltSpec:
    """Build the spec of a phase. Raises BadArguments, also for what the phase before did not give; UnknownTool,
    ConfigError."""
    phases.check_phase_input(request.phase, given.value)
    mandate, shown = sources.mandate, given.value
    limits, cut = narrow_mandate_limits(request.limits, mandate, sources.settings)
    if shown is not None and given.run is None:
        shown = PHASES[request.phase].flow().without_refs(shown)
    builder = SpecBuilder()
    choice, spec, notes = _build_ooda_spec(builder, request, sources)
    spec = replace(
        spec,
        flow=PHASE_KINDS[request.phase].name,
        given_text=builder.keep(encode(shown)) if shown is not None else None,
        given_by=given.run,
    )
    if shown is not given.value:
        name = PHASES[request.phase].input_name
        notes = [f"{name}: its refs are left out, since it is not the output of a run that is known here.", *notes]
    return BuiltSpec(spec, tuple(builder.texts.items()), limits, (*choice.notes, *cut, *notes))


def build_cycles_spec(request: CyclesRequest, sources: CycleSources) -> BuiltSpec:
    """Build the spec of a run of cycles. Raises BadArguments, UnknownTool, ConfigError."""
    mandate = sources.mandate
    if request.cycles is not None and not 1 <= request.cycles <= mandate.max_cycles:
        raise BadArguments(
            f"cycles: {request.cycles} asked, but the mandate's max_cycles is {mandate.max_cycles}.",
            f"Ask for 1 to {mandate.max_cycles}, or save the mandate with another max_cycles.",
        )
    limits, cut = narrow_mandate_limits(request.limits, mandate, sources.settings)
    limits, unattended_allowance = add_allowance(limits, requested_limits(request.limits, mandate))
    builder = SpecBuilder()
    choice, spec, notes = _build_ooda_spec(builder, request, sources)
    asks = request.at_limit == "ask" or None
    spec = replace(spec, cycles=request.cycles, unattended_allowance=unattended_allowance, asks_at_limit=asks)
    return BuiltSpec(spec, tuple(builder.texts.items()), limits, (*choice.notes, *cut, *notes))


def carry_over_from(output: JsonObject | None) -> CarryOver:
    """Read what a run hands on to the next run of its mandate from its output."""
    match output:
        case {"lessons": list(lessons), "effects": list(effects)}:
            newest_effects = tuple(ActEffect(each["digest"], each["said"]) for each in effects)
            return CarryOver(tuple(lessons), newest_effects)
        case _:
            return CarryOver()


def _build_ooda_spec(
    builder: SpecBuilder, request: PhaseRequest | CyclesRequest, sources: CycleSources
) -> tuple[ModelChoice, OodaSpec, list[str]]:
    """Build what the specs of all OODA flows have in common; also return who completes, and notes about tools that were
    left out."""
    settings, registry, mandate = sources.settings, sources.registry, sources.mandate
    wanted_limits = requested_limits(request.limits, mandate)
    choice = choose_model(request.route, wanted_limits, None, settings, samples=sources.samples)
    refuse_unpriced_day(mandate, choice, settings)
    coming = dict.fromkeys((*registry.starting_sources(None), *registry.starting_sources(mandate.tools)))
    reads = [spec for spec in registry.select(None) if spec.name not in EDIT_TOOLS]
    wanted = registry.select(mandate.tools)
    may = [spec for spec in wanted if spec.name not in EDIT_TOOLS]
    left_out = [spec.name for spec in wanted if spec.name in EDIT_TOOLS] if mandate.tools is not None else []
    notes = [f"tools: {', '.join(left_out)} left out; files are changed by the edit actions alone."] if left_out else []
    may_run_tools = "run_tool" in mandate.allowed_actions
    offer = offer_tools(_each_once(reads, may if may_run_tools else ()), tuple(coming))
    search = [offer.search] if offer.search is not None else []
    called = [tool.spec for name in _OODA_STEPS if (tool := registry.find(name)) is not None]
    acts = [spec for spec in called if spec.name in EDIT_TOOLS and _EDIT_ACTIONS & {*mandate.allowed_actions}]
    is_staged = sources.stage.is_taken((*acts, *(may if may_run_tools else ())))
    if is_staged:
        called += [spec for spec in sources.stage.tools if spec.name == SUBMIT_CHANGES.name]
    notes += sources.stage.notes(is_staged=is_staged)
    if coming and may_run_tools:
        notes.append("tools: what comes later and does more than read joins the next run of the mandate.")
    scopes = build_scopes(Path(sources.workspace), settings) if sources.workspace is not None else Scopes()
    spec = OodaSpec(
        CYCLES.name,
        mandate.goal,
        choice.route,
        builder.keep(encode(tuple(_each_once(reads, may, called, search)))),
        hidden_tools_text=builder.keep(encode(tuple(offer.searchable))) if offer.searchable else None,
        prompts_text=builder.keep(encode(Prompts.load(settings.read_prompt))),
        script_text=builder.keep(choice.script) if choice.script is not None else None,
        context_tokens=settings.context_tokens,
        max_tokens=MAX_TOKENS,
        model=choice.model,
        dialect_text=builder.keep(encode(load_text_prompts(settings))),
        asked_route=choice.asked,
        mandate=mandate.id,
        mandate_text=builder.keep(encode(mandate.as_json())),
        phase_prompts_text=builder.keep(encode(PhasePrompts.load(settings.read_prompt))),
        carried_over_text=builder.keep(encode(carry_over_from(sources.output))),
        scopes_text=builder.keep(encode(scopes)),
        reads=tuple(spec.name for spec in reads),
        may=tuple(spec.name for spec in may),
        dialect=settings.dialect,
        search_scope=() if offer.finds_late_tools else None,
        staged=is_staged or None,
    )
    return choice, spec, [*notes, *offer.notes]


def _each_once(*groups: Sequence[ToolSpec]) -> ToolSet:
    return ToolSet(list({spec.name: spec for group in groups for spec in group}.values()))


def refuse_unpriced_day(mandate: Mandate, choice: ModelChoice, settings: Settings) -> None:
    """Raise BadArguments if the mandate limits dollars per day and this server does not know the model's price."""
    if mandate.day.nano_usd is not None and choice.route in PAID_ROUTES:
        refuse_unpriced(choice.route, choice.model, settings, "day.usd")


def requested_limits(asked: Limits, mandate: Mandate) -> Limits:
    """Return the limits of the caller and the mandate, without those of the configuration."""
    return asked.within(mandate.limits)


def narrow_mandate_limits(asked: Limits, mandate: Mandate, settings: Settings) -> tuple[Limits, tuple[str, ...]]:
    if asked.rounds is not None:
        raise BadArguments("limits.rounds: phases have no rounds.", "Use limits.model_calls, or cycles of ooda_run.")
    limits, cut = narrow_limits(requested_limits(asked, mandate), settings)
    return limits._replace(rounds=None), cut


def add_allowance(limits: Limits, own: Limits) -> tuple[Limits, UnattendedAllowance | None]:
    """Add the unattended allowance where neither caller nor mandate set a limit, within the configuration's limits."""
    calls = UNATTENDED_ALLOWANCE.model_calls if own.model_calls is None else None
    time_ms = UNATTENDED_ALLOWANCE.milliseconds if own.milliseconds is None else None
    if calls is None and time_ms is None:
        return limits, None
    begin = limits._replace(
        model_calls=min(filter(None, (limits.model_calls, calls)), default=None),
        milliseconds=min(filter(None, (limits.milliseconds, time_ms)), default=None),
    )
    return begin, UnattendedAllowance(calls, time_ms, limits)


def _load(texts: SpecTexts[OodaSpec]) -> LoadedSpec:
    context, given = _load_context(texts), texts.spec.given_text
    phase = next((phase for phase, kind in PHASE_KINDS.items() if kind.name == texts.spec.flow), None)
    phase_input: JsonObject | None = decode(dict[str, Any], texts.text(given)) if given else None
    asked, forks = texts.spec.cycles, texts.forks

    def make_flow() -> Flow[Outcome]:
        if phase is not None:
            return begin_at_forks(phases.phase_flow(context, phase, phase_input), forks)
        most = asked or context.mandate.max_cycles
        return begin_at_forks(cycles.mandate_flow(context, most, are_asked=asked is not None), forks)

    return texts.load(make_flow)


def _load_context(texts: SpecTexts[OodaSpec]) -> CycleContext:
    spec, text, tools, behind = texts.spec, texts.text, texts.offered_tools, texts.searchable_tools
    return CycleContext(
        read_mandate(text(spec.mandate_text)),
        decode_once(PhasePrompts, text(spec.phase_prompts_text)),
        texts.prompts,
        _select_named(tools, spec.reads),
        _select_named(tools, spec.may),
        decode(Scopes, text(spec.scopes_text)),
        decode(CarryOver, text(spec.carried_over_text)),
        frozenset(each.name for each in behind),
        tools.find(SEARCH) if behind or spec.search_scope is not None else None,
        spec.search_scope is not None,
        bool(spec.staged),
        bool(spec.asks_at_limit),
    )


def _select_named(tools: ToolSet, names: tuple[str, ...] | None) -> ToolSet:
    wanted = set(names or ())
    return ToolSet([spec for spec in tools if spec.name in wanted])


_OODA_STEPS = names_where(lambda tool: tool.is_ooda_step)
CYCLES_SPECS = FlowSpecs(cycles.VERSION, _load, CyclesRequest, spec=OodaSpec, prompts=(Prompts, PhasePrompts))
PHASE_SPECS = CYCLES_SPECS._replace(version=phases.VERSION, request=PhaseRequest)
