"""Load a spec into its flow. Loading never reads a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from kairos_mcp.core.messages import Message, ToolSet, ToolSpec
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import CYCLES_FLOW, PHASE_FLOWS, TEAM_FLOWS, Spec
from kairos_mcp.core.steps import Flow, Outcome
from kairos_mcp.flows import plan, planner, team, tool_calls
from kairos_mcp.flows.ooda import cycles, phases
from kairos_mcp.flows.planner_input import PlannerInput, Prompts
from kairos_mcp.models.dialects import TextPrompts
from kairos_mcp.models.scripted import Script
from kairos_mcp.specs import load_ooda, load_team
from kairos_mcp.store.codec import decode

VERSIONS: Mapping[str, int] = {
    "planner": planner.VERSION,
    "call": tool_calls.SINGLE_CALL_VERSION,
    "plan": plan.VERSION,
    "team": team.VERSION,
    CYCLES_FLOW: cycles.VERSION,
    **dict.fromkeys(PHASE_FLOWS.values(), phases.VERSION),
}
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
    team: load_team.LoadedTeam | None = None

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
    if spec.flow == "call":
        return LoadedSpec(spec, offered, None, lambda: tool_calls.single_call(spec.goal, spec.arguments or {}), None)

    def text(content_hash: str | None) -> str:
        return text_of(content_hash) if content_hash is not None else ""

    script = Script.parse(text(spec.script_text)) if spec.script_text else None
    behind = _load_tools(text(spec.behind_text)) if spec.behind_text else NO_TOOLS
    if spec.flow in TEAM_FLOWS:
        return _load_team_spec(spec, text, offered, script)
    if spec.flow != "planner":
        order = load_ooda.load_cycle(spec, text, offered, behind, _load_prompts(text(spec.prompts_text)))
        spoken = _load_text_prompts(text(spec.dialect_text))
        return LoadedSpec(spec, offered, script, lambda: load_ooda.make_ooda_flow(order), None, spoken, behind)
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
        counts_alike=not spec.singular,
    )
    spoken = _load_text_prompts(text(spec.dialect_text))
    return LoadedSpec(spec, offered, script, lambda: planner.planner(planner_input), planner_input, spoken, behind)


def _load_team_spec(
    spec: Spec, text: Callable[[str | None], str], offered: ToolSet, script: Script | None
) -> LoadedSpec:
    prompts = _load_prompts(text(spec.prompts_text))
    loop = PlannerInput("", (), "", NO_TOOLS, None, spec.context_tokens, spec.max_tokens, prompts)
    loaded = load_team.load_team(spec, text, offered, loop)
    spoken = _load_text_prompts(text(spec.dialect_text))
    return LoadedSpec(spec, offered, script, loaded.make_flow, None, spoken, team=loaded)


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
