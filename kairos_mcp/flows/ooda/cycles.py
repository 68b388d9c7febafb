"""A run of a mandate: cycle after cycle, until the goal is reached, nothing changes any more, or a person has to look.

Steps beside those of the cycles: `cycle-N/goal-M`, where the goal is read again, and the pauses `cycle-N/drift-M`,
`cycle-N/act/risk` and `cycle-N/checkpoint`, whose reasons are the mandate's status while they last; each reports
the cycles so far in the keys of the outcome. Recorded runs are replayed through this file and the ones it calls: raise
VERSION with any change in what they ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count

from kairos_mcp.core.messages import JsonObject, ToolCall, ToolResult
from kairos_mcp.core.outcome import CYCLE_REASONS, Outcome, StopReason, make_outcome
from kairos_mcp.core.statuses import MandateStatus
from kairos_mcp.core.steps import CallTool, Flow, Pause, Refused, Unknown
from kairos_mcp.flows.ooda.context import CarryOver, CycleContext
from kairos_mcp.flows.ooda.cycle import CycleResult, run_cycle
from kairos_mcp.flows.ooda.structured_answer import PhaseFailure, phase_failure

VERSION = 2
READ_MANDATE = "read_mandate"
ERRORS = 2  # cycles in a row
SURE_CYCLES = 2
IDLE_CYCLES = 2  # noops in a row after which a run is over
CHECKPOINT = "paused_at_checkpoint"
DRIFT = "paused_goal_drift"

_TERMINATED = frozenset(CYCLE_REASONS)


def mandate_run(context: CycleContext, cycles: int) -> Flow[Outcome]:
    """At most `cycles` cycles of the mandate; counts and streaks begin anew with each run."""
    done: list[CycleResult] = []
    carried = context.carried
    for number in range(1, cycles + 1):
        broken = yield from _check_goal(context, number, _report(done, carried))
        if broken is not None:
            return _outcome(
                context, [*done, CycleResult(number, broken=("goal", broken))], carried, _stop_reason(broken)
            )
        warned = context.is_circling(carried)
        newest = yield from run_cycle(context, number, carried, partial(_report_with, tuple(done), carried))
        done.append(newest)
        carried = _carry_over(carried, newest)
        circling = warned and newest.acted is not None and context.is_circling(carried)
        reason = _end_reason(done, cycles, circling=circling, idle_cycles=context.idle_cycles)
        if reason is not None:
            return _outcome(context, done, carried, reason)
        if number % context.mandate.checkpoint_every == 0:
            yield from Pause(f"cycle-{number}/checkpoint", CHECKPOINT, _report(done, carried))
    raise AssertionError("the last cycle has a reason to end")


def _check_goal(context: CycleContext, number: int, so_far: JsonObject) -> Flow[PhaseFailure | None]:
    """Read the goal again; while it is not the one of the start, pause. What can't be read counts as changed."""
    for reading in count(1):
        path = f"cycle-{number}/goal-{reading}"
        call = ToolCall(path, READ_MANDATE, {"id": context.mandate.id})
        match (yield from CallTool(path, call)):
            case Refused() | Unknown() as stop:
                return phase_failure(stop)
            case ToolResult(is_error=False, data={"goal_hash": str(found)}) if found == context.mandate.goal_hash:
                return None
            case _:
                yield from Pause(f"cycle-{number}/drift-{reading}", DRIFT, so_far)
    raise AssertionError("somebody resumes it, or cancels the run")


def _carry_over(carried: CarryOver, newest: CycleResult) -> CarryOver:
    if newest.acted is not None:
        carried = carried.with_effect(newest.acted.effect)
    return (
        carried.with_lessons(newest.reflection.model_assessment.lessons) if newest.reflection is not None else carried
    )


def _end_reason(
    done: Sequence[CycleResult], cycles: int, *, circling: bool, idle_cycles: int | None
) -> StopReason | None:
    """Why the run ends after its newest cycle, if it does; of several reasons the first here."""
    newest = done[-1]
    if newest.status == "interrupted" and newest.broken is not None:
        return _stop_reason(newest.broken[1])
    if newest.reflection is not None and newest.reflection.all_hold:
        return "goal_achieved"
    if len(done) >= SURE_CYCLES and all(each.is_surely_done for each in done[-SURE_CYCLES:]):
        return "goal_achieved"
    if len(done) >= ERRORS and all(each.is_error for each in done[-ERRORS:]):
        return "error_threshold"
    if circling:
        return "loop_detected"
    if idle_cycles is not None and _is_idle(done, cycles, idle_cycles):
        return "nothing_to_do"
    if len(done) == cycles:
        return "parse_error" if newest.status == "parse_error" else "max_cycles_reached"
    return None


def _is_idle(done: Sequence[CycleResult], cycles: int, enough: int) -> bool:
    """Whether the newest cycles found nothing to do: so many of them in a row, or all of a run that is over."""
    noops = [each.status == "noop" for each in done]
    return (len(noops) >= enough and all(noops[-enough:])) or (len(noops) == cycles and all(noops))


def _stop_reason(broken: PhaseFailure) -> StopReason:
    if broken.status == "budget":
        return "timeout" if broken.limit == "milliseconds" else "budget"
    return broken.status


def _outcome(context: CycleContext, done: Sequence[CycleResult], carried: CarryOver, reason: StopReason) -> Outcome:
    status: MandateStatus = "terminated" if reason in _TERMINATED else "interrupted"
    output = {
        "mandate_id": context.mandate.id,
        "mandate_status": status,
        "reason": _mandate_reason(reason),
        **_report(done, carried),
    }
    notes = [
        f"cycle-{each.number}/{phase}: {broken.reason}"
        for each in done
        if each.broken
        for phase, broken in (each.broken,)
    ]
    return make_outcome(reason, _summary(done, reason), output, tuple(notes))


def _report(done: Sequence[CycleResult], carried: CarryOver) -> JsonObject:
    """The cycles and what they have taught, at the end or at a pause."""
    return {"cycles": [each.as_json() for each in done], **carried.as_json()}


def _report_with(done: Sequence[CycleResult], carried: CarryOver, now: CycleResult) -> JsonObject:
    return _report([*done, now], carried)


def _mandate_reason(reason: StopReason) -> str:
    """Return the reason as a mandate reports it: a last cycle that could not be read has used up the cycles."""
    if reason == "parse_error":
        return "max_cycles_reached"
    return reason if reason in _TERMINATED else "interrupted"


def _summary(done: Sequence[CycleResult], reason: StopReason) -> str:
    """Made from the record, by no model: a line a cycle."""
    lines = [f"{len(done)} cycles; ended as {reason}." if len(done) != 1 else f"1 cycle; ended as {reason}."]
    for each in done:
        acted = each.acted.effect.said if each.acted is not None else each.status
        seen = each.reflection
        judged = f"; {seen.verdict}, confidence {seen.model_assessment.confidence:g}" if seen is not None else ""
        lines.append(f"- cycle {each.number}: {acted}{judged}")
    if done and (last := done[-1].reflection) is not None and last.model_assessment.remaining:
        lines.append(f"Remaining: {'; '.join(last.model_assessment.remaining)}")
    return "\n".join(lines)
