"""Load the spec of a phase, or of a run of cycles, and build its flow. Everything is in the spec: no file is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.mandate import Mandate, parse_mandate
from kairos_mcp.core.messages import SEARCH, JsonObject, ToolSet
from kairos_mcp.core.paths import Scopes
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import Phase, Spec, phase_of
from kairos_mcp.core.steps import Flow, Outcome
from kairos_mcp.flows.ooda import cycles, phases
from kairos_mcp.flows.ooda.context import CarryOver, CycleContext
from kairos_mcp.flows.ooda.prompts import PhasePrompts
from kairos_mcp.flows.planner_input import Prompts
from kairos_mcp.store.codec import decode, unreadable


@dataclass(frozen=True, slots=True)
class LoadedCycle:
    """A cycle context with what to run in it: one phase with its input (`phase`, `given`), or so many cycles."""

    context: CycleContext
    phase: Phase | None
    given: JsonObject | None
    cycles: int


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
        spec.idle_cycles,
        spec.joining is not None,
        bool(spec.checks_first),
    )
    given: JsonObject | None = decode(dict[str, Any], text(spec.given_text)) if spec.given_text else None
    return LoadedCycle(context, phase_of(spec.flow), given, spec.cycles or context.mandate.max_cycles)


def make_ooda_flow(loaded: LoadedCycle) -> Flow[Outcome]:
    """Make the flow of a loaded spec: its phase, or its cycles."""
    if loaded.phase is None:
        return cycles.mandate_flow(loaded.context, loaded.cycles)
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
