"""The register of flows: the record of each, by its name.

Elsewhere code asks the record of a run's flow (`kind_of`). It knows one flow by its constant only where this flow is
meant and no other. Whoever shows a run reads the register, so it imports no flow: what builds and loads specs is
imported when a spec is.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

from kairos_mcp.core.run_spec import Phase
from kairos_mcp.flows.ooda.phase_kinds import PHASES

if TYPE_CHECKING:
    from kairos_mcp.specs.flow_specs import FlowSpecs


class FlowKind(NamedTuple):
    name: str
    """Stored with runs, so it stays."""
    tool: str
    """The MCP tool that starts it."""
    specs_at: str
    """Where its `FlowSpecs` are: a module of `specs/`, and their name in it."""
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
    def specs(self) -> FlowSpecs:
        """How its specs are built and loaded."""
        module, name = self.specs_at.split(".")
        specs: FlowSpecs = getattr(import_module(f"kairos_mcp.specs.{module}"), name)
        return specs

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


PLANNER = FlowKind("planner", "planner_run", "planner.SPECS", counts="rounds", has_conversation=True)
CALL = FlowKind("call", "registry_call", "call.SPECS", is_call=True)
PLAN = FlowKind("plan", "planner_plan", "team.PLAN_SPECS", has_plan=True, keeps_output=True)
TEAM = FlowKind("team", "team_run", "team.TEAM_SPECS", has_plan=True, tells_tasks=True, is_workflow=True)
CYCLES = FlowKind("ooda_run", "ooda_run", "ooda.CYCLES_SPECS", has_mandate=True, is_workflow=True)
PHASE_KINDS: Mapping[Phase, FlowKind] = {
    phase.name: FlowKind(
        phase.tool, phase.tool, "ooda.PHASE_SPECS", has_mandate=True, phase=phase.name, keeps_output=True
    )
    for phase in PHASES.values()
}
KINDS: Mapping[str, FlowKind] = {kind.name: kind for kind in (PLANNER, CALL, PLAN, TEAM, CYCLES, *PHASE_KINDS.values())}


def kind_of(flow: str) -> FlowKind:
    """Return the record of a flow. Of one that this program does not know, as of a later version, it says nothing."""
    return KINDS.get(flow) or FlowKind(flow, "", "flow_specs.UNKNOWN")
