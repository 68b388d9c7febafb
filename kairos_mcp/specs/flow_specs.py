"""How the specs of a flow are built and loaded.

Each record stands in a module of `specs/`, beside its functions, where the flow's `FlowKind` says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import RunRequest, Spec
from kairos_mcp.flows.prompt_texts import PromptTexts
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.build import BuiltSpec
from kairos_mcp.specs.load import LoadedSpec, SpecTexts
from kairos_mcp.store.rows import unreadable
from kairos_mcp.tools.registry import ToolRegistry


@dataclass(frozen=True, slots=True)
class StartSources:
    """What a spec is built from beside its request. `registry`: the tools of the run's folder. `samples`: whether the
    caller's client offers its model."""

    settings: Settings
    registry: ToolRegistry
    samples: bool = False


class FlowSpecs(NamedTuple):
    version: int
    """A run of another version can be read, and can't go on."""
    load: Callable[[SpecTexts[Any]], LoadedSpec]
    """Load a spec, so that its flow can be made anew. All is in the spec, and no file is read."""
    request: type[RunRequest] | None = None
    """What starts the flow."""
    build: Callable[[Any, StartSources], BuiltSpec] | None = None
    """Build the spec of such a request. None: it takes more than this, which `app/plan_starts.py` reads."""
    spec: type[Spec] = Spec
    """What it builds and loads: a subclass, if it has fields that no other flow has."""
    prompts: tuple[type[PromptTexts], ...] = ()
    """The sentences of ours that its specs hold. If a stored text is damaged, they are read anew."""


def _refuse_spec(texts: SpecTexts[Spec]) -> LoadedSpec:
    raise unreadable(f"spec of the flow {texts.spec.flow}")


UNKNOWN = FlowSpecs(0, _refuse_spec)
"""Of a flow that this program does not know."""
