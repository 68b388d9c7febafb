"""Load the spec of a run, whatever its flow."""

from __future__ import annotations

from collections.abc import Callable

from kairos_mcp.core.run_spec import Spec
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.specs.load import LoadedSpec, SpecTexts
from kairos_mcp.store.rows import decode


def load_spec(spec_text: str, text_of: Callable[[str], str]) -> LoadedSpec:
    """Load a spec. Raises StoreCorrupt where a text is missing or damaged."""
    spec: Spec = decode(Spec, spec_text)
    own = kind_of(spec.flow).specs.spec
    return load_built_spec(spec if own is Spec else decode(own, spec_text), text_of)


def load_built_spec(spec: Spec, text_of: Callable[[str], str]) -> LoadedSpec:
    """Load a spec that is not encoded. Raises what `text_of` raises."""
    return kind_of(spec.flow).specs.load(SpecTexts(spec, text_of))
