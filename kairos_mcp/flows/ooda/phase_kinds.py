"""The register of phases, in the order of a cycle: the record of each, by its name.

It is read at every start of a server, for the listing of the tools. So the modules of the phases are imported when one
is run, or its input is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kairos_mcp.core.builtin_tools import RUN_COMMAND
from kairos_mcp.core.run_spec import Phase
from kairos_mcp.flows.ooda.phase_flow import PhaseFlow


class PhaseKind(NamedTuple):
    name: Phase
    """Also of the first part of its steps' paths, and behind `ooda_` of its flow and its tool."""
    flow: Callable[[], PhaseFlow]
    """Return what it does; its module is imported then."""
    title: str
    """Of its tool."""
    about: str
    """What its tool does, for the listing."""
    output: Mapping[str, str]
    """The main keys of its output with their JSON types, for the listing."""
    input_name: str | None = None
    """The argument under which it takes the output of the phase before; None: it takes none."""
    calls: tuple[str, ...] | None = ()
    """The tools that it calls besides those that only read; None: any that the mandate allows."""

    @property
    def tool(self) -> str:
        """The MCP tool that runs it alone."""
        return f"ooda_{self.name}"


def _observe() -> PhaseFlow:
    from kairos_mcp.flows.ooda.observe import PHASE

    return PHASE


def _orient() -> PhaseFlow:
    from kairos_mcp.flows.ooda.orient import PHASE

    return PHASE


def _decide() -> PhaseFlow:
    from kairos_mcp.flows.ooda.decide import PHASE

    return PHASE


def _act() -> PhaseFlow:
    from kairos_mcp.flows.ooda.act import PHASE

    return PHASE


def _reflect() -> PhaseFlow:
    from kairos_mcp.flows.ooda.reflect import PHASE

    return PHASE


_KINDS = (
    PhaseKind("observe", _observe, "Observe", "look, with tools that only read.", {"observations": "array"}),
    PhaseKind(
        "orient",
        _orient,
        "Orient",
        "weigh an observation against the goal.",
        {"summary": "string", "priorities": "array", "risk_level": "string"},
        "observation",
    ),
    PhaseKind(
        "decide", _decide, "Decide", "choose one action. Nothing is changed yet.", {"action": "string"}, "orientation"
    ),
    PhaseKind(
        "act",
        _act,
        "Act",
        "carry out a decision. A person is asked first, unless a rule allows it.",
        {"status": "string", "decision": "object"},
        "decision",
        calls=None,
    ),
    PhaseKind(
        "reflect",
        _reflect,
        "Reflect",
        "judge the result of an act by the goal and the acceptance checks.",
        {"assessment": "string", "lessons": "array", "confidence": "number"},
        "act_result",
        calls=(RUN_COMMAND.name,),
    ),
)
PHASES: Mapping[Phase, PhaseKind] = {kind.name: kind for kind in _KINDS}


def phase_before(phase: Phase) -> PhaseKind | None:
    """Return the phase whose output this one takes; None for the first."""
    at = list(PHASES).index(phase)
    return _KINDS[at - 1] if at else None


def phase_after(phase: Phase) -> PhaseKind | None:
    """Return the phase that takes this one's output; None for the last."""
    return next(iter(_KINDS[list(PHASES).index(phase) + 1 :]), None)
