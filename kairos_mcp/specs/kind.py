"""The record of a flow: what the program knows of it by its name.

Each record stands in a module of `specs/`, beside the functions that build and load specs of its flow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import Phase, RunRequest
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.build import BuiltSpec
from kairos_mcp.specs.load import LoadedSpec, SpecTexts
from kairos_mcp.tools.registry import ToolRegistry


@dataclass(frozen=True, slots=True)
class StartSources:
    """What a spec is built from beside its request. `registry`: the tools of the run's folder. `samples`: whether the
    caller's client offers its model."""

    settings: Settings
    registry: ToolRegistry
    samples: bool = False


class FlowKind(NamedTuple):
    name: str
    """Stored with runs, so it stays."""
    tool: str
    """The MCP tool that starts it."""
    version: int
    """A run of another version can be read, and can't go on."""
    load: Callable[[SpecTexts], LoadedSpec]
    """Load a spec, so that its flow can be made anew. All is in the spec, and no file is read."""
    request: type[RunRequest] | None = None
    """What starts it."""
    build: Callable[[Any, StartSources], BuiltSpec] | None = None
    """Build the spec of such a request. None: it takes more than this, which `app/plan_starts.py` reads."""
    counts: Literal["rounds", "model calls"] = "model calls"
    """The unit that says how far a run is, where one line describes it."""
    is_call: bool = False
    """A run is one call of a tool: its goal is the tool's name, its output the result, and no model takes part."""
    has_conversation: bool = False
    """A run is one conversation, which another run can continue."""
    has_plan: bool = False
    """A run has a plan, whose tasks are shown with what they have come to."""
    has_mandate: bool = False
    """A run works on a mandate, which says what its steps call and what its output shows."""
    phase: Phase | None = None
    """The phase that it runs alone."""
    keeps_output: bool = False
    """The caller needs its output whole: what is too long for a result is cut elsewhere first."""
    tells_tasks: bool = False
    """Its output is an answer, which is also the summary, and the tasks that led to it."""
    is_workflow: bool = False
    """Telemetry reports it as a workflow of agents, and others as one agent."""

    @property
    def has_loop(self) -> bool:
        """Whether a run goes on until it stops for a reason, which its report states."""
        return not self.is_call and self.phase is None

    @property
    def has_cycles(self) -> bool:
        """Whether a run repeats cycles, may pause between them, and is the one open run of its mandate."""
        return self.has_mandate and self.phase is None

    @property
    def forks_at_steps(self) -> bool:
        """Whether a fork may begin at any step. Others begin at a round of a conversation."""
        return self.has_plan or self.has_mandate
