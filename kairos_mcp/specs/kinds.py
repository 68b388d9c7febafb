"""The register of flows: the record of each, by its name.

Elsewhere code asks the record of a run's flow (`kind_of`). It knows one flow by its constant only where this flow is
meant and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kairos_mcp.core.run_spec import RunRequest, Spec
from kairos_mcp.specs.call import CALL
from kairos_mcp.specs.kind import FlowKind
from kairos_mcp.specs.load import LoadedSpec, SpecTexts
from kairos_mcp.specs.ooda import CYCLES, PHASE_KINDS
from kairos_mcp.specs.planner import PLANNER
from kairos_mcp.specs.team import PLAN, TEAM
from kairos_mcp.store.rows import decode, unreadable

KINDS: Mapping[str, FlowKind] = {kind.name: kind for kind in (PLANNER, CALL, PLAN, TEAM, CYCLES, *PHASE_KINDS.values())}

BUILT: Mapping[type[RunRequest], FlowKind] = {
    kind.request: kind for kind in KINDS.values() if kind.request is not None and kind.build is not None
}
"""The flows whose records build their specs, by the type of their requests."""


def kind_of(flow: str) -> FlowKind:
    """Return the record of a flow. Of one that this program does not know, as of a later version, it says nothing."""
    return KINDS.get(flow) or FlowKind(flow, "", 0, _refuse_spec)


def load_spec(spec_text: str, text_of: Callable[[str], str]) -> LoadedSpec:
    """Load a spec. Raises StoreCorrupt where a text is missing or damaged."""
    return load_built_spec(decode(Spec, spec_text), text_of)


def load_built_spec(spec: Spec, text_of: Callable[[str], str]) -> LoadedSpec:
    """Load a spec that is not encoded. Raises what `text_of` raises."""
    return kind_of(spec.flow).load(SpecTexts(spec, text_of))


def _refuse_spec(texts: SpecTexts) -> LoadedSpec:
    raise unreadable(f"spec of the flow {texts.spec.flow}")
