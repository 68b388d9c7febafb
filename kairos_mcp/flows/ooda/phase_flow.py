"""What a phase does as a run of its own, beside its record in `phase_kinds.py`."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.steps import Flow

if TYPE_CHECKING:
    from kairos_mcp.flows.ooda.context import CycleContext


class PhaseFlow(NamedTuple):
    """What a phase does as a run of its own: `PHASE` of its module."""

    run: Callable[[CycleContext, str, Any], Flow[Any]]
    """Run it, with a name that its steps begin with, and its parsed input. Returns its value, or a PhaseFailure."""
    summarize: Callable[[Any], str]
    """Say in a sentence what its value is."""
    parse_input: Callable[[JsonObject], Any] = lambda _given: None
    """Parse the output of the phase before. Raises Undecodable."""
    without_refs: Callable[[JsonObject], JsonObject] = lambda given: given
    """Return its input without refs to results of the run that made it; the same object where it has none."""
    as_json: Callable[[Any], JsonObject] = methodcaller("as_json")
    """Return its value as the output of its run."""
