"""Each phase as a run of its own: typed JSON in, typed JSON out. Each takes the output of the one before unchanged."""

from __future__ import annotations

from typing import get_args

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.input_checks import Undecodable
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcomes import Outcome, StopName, make_outcome
from kairos_mcp.core.run_spec import Phase
from kairos_mcp.core.steps import Flow
from kairos_mcp.flows.ooda.context import CycleContext
from kairos_mcp.flows.ooda.phase_kinds import PHASES, phase_before
from kairos_mcp.flows.structured_answer import FailureStatus, PhaseFailure

VERSION = 1
_DONE: StopName = "assistant_stop"  # of a run without a loop; the report shows null, as for a single call


def check_phase_input(phase: Phase, given: JsonObject | None) -> None:
    """Raise BadArguments unless `given` is the whole output of the phase before. Call it before a run is started."""
    kind, before = PHASES[phase], phase_before(phase)
    if before is None:
        return
    name, hint = kind.input_name, f"Give the output of {before.tool} unchanged."
    if given is None:
        raise BadArguments(f"{kind.tool} needs {name}.", hint)
    match given:
        case {"status": str(status)} if status in get_args(FailureStatus):
            raise BadArguments(f"{name}: {before.tool} gave nothing ({status}).", f"Call {before.tool} again.")
        case _:
            pass
    try:
        kind.flow().parse_input(given)
    except Undecodable as error:
        raise BadArguments(f"{name}: {error.reason}.", hint) from None


def phase_flow(context: CycleContext, phase: Phase, given: JsonObject | None = None) -> Flow[Outcome]:
    """Run one phase alone; its steps begin with its name. `given` has passed `check_phase_input`."""
    flow = PHASES[phase].flow()
    value = yield from flow.run(context, phase, flow.parse_input(given or {}))
    if isinstance(value, PhaseFailure):
        return make_outcome(value.stop_reason, None, value.as_json(), record=value.reason)
    return make_outcome(_DONE, flow.summarize(value), flow.as_json(value))
