"""Each phase as a run of its own: typed JSON in, typed JSON out. Each takes the output of the one before unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.input_checks import Undecodable
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcomes import Outcome, StopName, make_outcome
from kairos_mcp.core.run_spec import PHASES, Phase
from kairos_mcp.core.steps import Flow
from kairos_mcp.flows.ooda.act import ActResult, act, parse_act_result
from kairos_mcp.flows.ooda.context import CycleContext
from kairos_mcp.flows.ooda.decide import decide
from kairos_mcp.flows.ooda.decision import (
    CodeEdit,
    CreateFile,
    Decision,
    EditPlan,
    Noop,
    RunTool,
    decision_json,
    parse_decision,
)
from kairos_mcp.flows.ooda.observe import Observation, observe, parse_observation
from kairos_mcp.flows.ooda.orient import Orientation, orient, parse_orientation
from kairos_mcp.flows.ooda.reflect import Reflection, reflect
from kairos_mcp.flows.structured_answer import FailureStatus, PhaseFailure

VERSION = 1
INPUT_NAMES: dict[Phase, str] = {
    "orient": "observation",
    "decide": "orientation",
    "act": "decision",
    "reflect": "act_result",
}
"""The argument under which each phase takes the output of the one before."""
_PARSERS: dict[Phase, Callable[[JsonObject], Any]] = {
    "orient": parse_observation,
    "decide": parse_orientation,
    "act": parse_decision,
    "reflect": parse_act_result,
}


def check_phase_input(phase: Phase, given: JsonObject | None) -> None:
    """Raise BadArguments unless `given` is the whole output of the phase before. Call it before a run is started."""
    parse = _PARSERS.get(phase)
    if parse is None:
        return
    name, before = INPUT_NAMES[phase], PHASES[PHASES.index(phase) - 1]
    hint = f"Give the output of ooda_{before} unchanged."
    if given is None:
        raise BadArguments(f"ooda_{phase} needs {name}.", hint)
    match given:
        case {"status": str(status)} if status in get_args(FailureStatus):
            raise BadArguments(f"{name}: ooda_{before} gave nothing ({status}).", f"Call ooda_{before} again.")
        case _:
            pass
    try:
        parse(given)
    except Undecodable as error:
        raise BadArguments(f"{name}: {error.reason}.", hint) from None


def drop_refs(phase: Phase, given: JsonObject) -> JsonObject:
    """Return the input of a phase, which has passed `check_phase_input`, without the refs to results of the run that
    made it; the same object where it has none. Call it where that run is not known: nothing can be read by them."""
    match phase, given:
        case "orient", {"observations": list(items)} if any("ref" in item for item in items):
            return given | {"observations": [_without_ref(item) for item in items]}
        case "reflect", {"ref": _}:
            return _without_ref(given)
        case _:
            return given


def _without_ref(given: JsonObject) -> JsonObject:
    return {key: value for key, value in given.items() if key != "ref"}


def phase_flow(context: CycleContext, phase: Phase, given: JsonObject | None = None) -> Flow[Outcome]:
    """Run one phase alone; its steps begin with its name. `given` has passed `check_phase_input`."""
    output = yield from _run_phase(context, phase, given or {})
    match output:
        case PhaseFailure() as failure:
            return make_outcome(failure.stop_reason, None, failure.as_json(), record=failure.reason)
        case Observation() | Orientation() | ActResult() | Reflection():
            return make_outcome(_DONE, _summarize_phase(output), output.as_json())
        case CodeEdit() | EditPlan() | CreateFile() | RunTool() | Noop():
            return make_outcome(_DONE, f"Decided: {output.kind}.", decision_json(output))


def _run_phase(
    context: CycleContext, phase: Phase, given: JsonObject
) -> Flow[Observation | Orientation | Decision | ActResult | Reflection | PhaseFailure]:
    match phase:
        case "observe":
            return (yield from observe(context, phase))
        case "orient":
            return (yield from orient(context, phase, parse_observation(given), context.carry_over))
        case "decide":
            return (yield from decide(context, phase, parse_orientation(given), context.carry_over))
        case "act":
            return (yield from act(context, phase, parse_decision(given)))
        case "reflect":
            return (yield from reflect(context, phase, parse_act_result(given), context.carry_over))


_DONE: StopName = "assistant_stop"  # of a run without a loop; the report shows null, as for a single call


def _summarize_phase(output: Observation | Orientation | ActResult | Reflection) -> str:
    match output:
        case Observation(items=items):
            results = sum(item.status == "result" for item in items)
            return f"Observed: {results} of {len(items)} gave a result."
        case Orientation(summary=summary):
            return summary
        case ActResult(status=status, reason=reason):
            return f"The act: {status}." + (f" {reason}" if reason else "")
        case Reflection(verdict=verdict):
            return f"Judged: {verdict}."
