"""A run of a mandate: cycle after cycle, until the goal is reached, nothing changes any more, or a person has to look.

A cycle is observe, orient, decide, act, reflect. Its status names what it came to; there is no plain "ok".
Steps beside those of the cycles: `start/check-N`, the acceptance checks before the first; `cycle-N/goal-M`, which reads
the goal again; and the pauses `cycle-N/drift-M`, `cycle-N/act/risk` and `cycle-N/checkpoint`. While a pause lasts, its
reason is the mandate's status, and it reports the cycles so far under the keys of the outcome. In the pause
`cycle-N/limit` a person decides about a limit that ended this cycle: approved, the run goes on with one more.
Where its acts work in a stage, `submit-N` at each checkpoint, in whose place a person then decides, and at the end: the
goal counts as achieved once the changes are applied.
Recorded runs are replayed through this file and the ones it calls: raise VERSION with any change in what they ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Literal

from kairos_mcp.core.builtin_tools import READ_MANDATE
from kairos_mcp.core.limit_question import RUN_SCOPE, limit_pause
from kairos_mcp.core.mandate import CHECKPOINT_PAUSE, DRIFT_PAUSE, MandateStatus
from kairos_mcp.core.messages import JsonObject, ToolCall, ToolResult
from kairos_mcp.core.outcomes import CYCLE_REASONS, Outcome, StopName, make_outcome
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import CallTool, Flow, Pause, Refused, Resumed
from kairos_mcp.core.text import count_of
from kairos_mcp.flows.ooda.act import ActResult, ActStatus, act
from kairos_mcp.flows.ooda.context import MAX_LESSONS, CarryOver, CycleContext
from kairos_mcp.flows.ooda.decide import decide
from kairos_mcp.flows.ooda.decision import decision_json
from kairos_mcp.flows.ooda.observe import observe
from kairos_mcp.flows.ooda.orient import Orientation, orient
from kairos_mcp.flows.ooda.reflect import Reflection, reflect, run_checks
from kairos_mcp.flows.structured_answer import PhaseFailure, phase_failure
from kairos_mcp.flows.submit import StageRecord, Submitted, submit_rest, submit_stage

VERSION = 1
MAX_ERRORS = 2  # cycles in a row
SURE_CYCLES = 2  # in a row in which the model is sure that it is done: then the goal counts as achieved
IDLE_CYCLES = 2  # noops in a row after which a run is over

CycleStatus = ActStatus | Literal["parse_error", "interrupted"]

_TERMINATED = frozenset(CYCLE_REASONS)
_ACT_KEYS = ("status", "risk", "files", "code", "reason")  # of an act, in a report of its cycle
_LONG_KEYS = ("old_string", "new_string", "content", "arguments", "edits", "base")  # of a decision


@dataclass(frozen=True, slots=True)
class FailedPhase:
    """The phase of a cycle that gave no output, by name, and why.

    `goal` where the goal could not be read again, `check` where the checks before the first cycle could not be run.
    """

    phase: str
    failure: PhaseFailure

    def as_json(self) -> JsonObject:
        return {"phase": self.phase, **self.failure.as_json()}


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What a cycle reports of its phases, up to the one that failed, if one did; the decision is part of the act."""

    number: int
    orientation: Orientation | None = None
    act_result: ActResult | None = None
    reflection: Reflection | None = None
    failed: FailedPhase | None = None

    @property
    def status(self) -> CycleStatus:
        """The status of the act; `parse_error` or `interrupted` where a phase failed."""
        match self.failed, self.act_result:
            case FailedPhase(failure=PhaseFailure(status="parse_error")), _:
                return "parse_error"
            case None, ActResult(status=status):
                return status
            case _:
                return "interrupted"

    @property
    def is_error(self) -> bool:
        """Whether the cycle counts towards the error threshold: a denial does not."""
        return self.status in ("parse_error", "failed")

    @property
    def is_surely_done(self) -> bool:
        """Whether the model is sure that nothing is left to do."""
        return self.reflection is not None and self.reflection.is_surely_done

    def as_json(self) -> JsonObject:
        """Return the cycle without long texts: those of an edit are in the record of the act."""
        json_fields: JsonObject = {"cycle": self.number, "status": self.status}
        if self.failed is not None:
            json_fields |= {"broken": self.failed.as_json()}
        if self.orientation is not None:
            json_fields |= {"risk_level": self.orientation.risk_level}
        if self.act_result is not None:
            decision = {k: v for k, v in decision_json(self.act_result.decision).items() if k not in _LONG_KEYS}
            act = {k: v for k, v in self.act_result.as_json().items() if k in _ACT_KEYS}
            json_fields |= {"decision": decision, "act": act}
        if self.reflection is not None:
            json_fields |= {"reflection": self.reflection.as_json()}
        return json_fields


def run_cycle(
    context: CycleContext, number: int, carry_over: CarryOver, so_far: Callable[[CycleResult], JsonObject]
) -> Flow[CycleResult]:
    """Run one cycle. Steps: those of the five phases under `cycle-N/`.

    An act above the risk budget pauses the run; `so_far` makes the report of that pause from the cycle up to its act.
    """
    name = f"cycle-{number}"
    observation = yield from observe(context, f"{name}/observe")
    if isinstance(observation, PhaseFailure):
        return CycleResult(number, failed=FailedPhase("observe", observation))
    orientation = yield from orient(context, f"{name}/orient", observation, carry_over)
    if isinstance(orientation, PhaseFailure):
        return CycleResult(number, failed=FailedPhase("orient", orientation))
    decision = yield from decide(context, f"{name}/decide", orientation, carry_over)
    if isinstance(decision, PhaseFailure):
        return CycleResult(number, orientation, failed=FailedPhase("decide", decision))
    act_result = yield from act(
        context, f"{name}/act", decision, lambda denied: so_far(CycleResult(number, orientation, denied))
    )
    if isinstance(act_result, PhaseFailure):
        return CycleResult(number, orientation, failed=FailedPhase("act", act_result))
    reflection = yield from reflect(context, f"{name}/reflect", act_result, carry_over)
    if isinstance(reflection, PhaseFailure):
        return CycleResult(number, orientation, act_result, failed=FailedPhase("reflect", reflection))
    return CycleResult(number, orientation, act_result, reflection)


def mandate_flow(context: CycleContext, cycles: int, *, are_asked: bool = False) -> Flow[Outcome]:
    """Run at most `cycles` cycles of the mandate. Counts and streaks begin anew with each run.

    `are_asked`: the caller asked for this number of cycles, so a run that did them is complete; else it is a guard.
    """
    stage = StageRecord()
    outcome = yield from _run_cycles(context, cycles, stage, are_asked=are_asked)
    return (yield from submit_rest(stage, outcome))[0] if context.submits else outcome


def _run_cycles(context: CycleContext, cycles: int, stage: StageRecord, *, are_asked: bool) -> Flow[Outcome]:
    done: list[CycleResult] = []
    carry_over = context.carry_over
    for number in count(1):
        begun = yield from _begin_cycle(context, number, _report(done, carry_over))
        if begun == "goal_achieved":
            return _outcome(context, done, carry_over, begun)
        # The model is warned of a loop at the start of a cycle, so only a further repeat after that ends the run.
        warned = context.is_circling(carry_over)
        if begun is None:
            newest = yield from run_cycle(context, number, carry_over, partial(_report_with, tuple(done), carry_over))
        else:
            newest = CycleResult(number, failed=begun)
        done.append(newest)
        carry_over = _next_carry_over(carry_over, newest)
        if newest.act_result is not None and newest.act_result.status in ("staged", "failed"):
            stage.has_undecided = True  # a program that failed may have written before that
        if context.asks_at_limit and (yield from _is_given_more(newest, done)):
            cycles += 1  # this one counts for none
            continue
        if begun is not None:
            return _outcome(context, done, carry_over, begun.failure.stop_reason)
        circling = warned and newest.act_result is not None and context.is_circling(carry_over)
        reason = _end_reason(done, cycles, circling=circling)
        ends, at_checkpoint = reason is not None, number % context.mandate.checkpoint_every == 0
        submitted = Submitted()
        if context.submits and (at_checkpoint or (ends and newest.status != "interrupted")):
            submitted = yield from submit_stage(stage, _summarize_cycles(done, reason))
            if submitted.words:
                carry_over = _learn(carry_over, f"A person did not approve the changes: {submitted.words}")
                if number < cycles:
                    continue
        if reason is not None:
            kept = "not_applied" if submitted.note and reason == "goal_achieved" else reason
            outcome = _outcome(context, done, carry_over, kept, did_all=are_asked)
            return replace(outcome, notes=(*outcome.notes, submitted.note)) if submitted.note else outcome
        if at_checkpoint and not submitted.was_asked:
            yield from Pause(f"cycle-{number}/checkpoint", CHECKPOINT_PAUSE, _report(done, carry_over))
    raise AssertionError("the last cycle has a reason to end")


def _begin_cycle(
    context: CycleContext, number: int, so_far: JsonObject
) -> Flow[FailedPhase | Literal["goal_achieved"] | None]:
    """Read the goal again, and before the first cycle run the checks; return why the cycle can't begin or need not."""
    failure = yield from _check_goal(context, number, so_far)
    if failure is not None:
        return FailedPhase("goal", failure)
    if number > 1:
        return None
    checks = yield from run_checks(context, "start")
    if isinstance(checks, PhaseFailure):
        return FailedPhase("check", checks)
    return "goal_achieved" if checks and all(check.holds for check in checks) else None


def _is_given_more(newest: CycleResult, done: Sequence[CycleResult]) -> Flow[bool]:
    """Where a limit of the run ended its newest cycle, ask a person whether it may have more; return whether it may."""
    refused = None if newest.failed is None else newest.failed.failure.refused
    if refused is None or refused.scope != RUN_SCOPE:
        return False
    pause = limit_pause(f"cycle-{newest.number}/limit", refused, len(done), "cycle", _summarize_cycles(done, None))
    return isinstance((yield from pause), Resumed)


def _check_goal(context: CycleContext, number: int, so_far: JsonObject) -> Flow[PhaseFailure | None]:
    """Read the goal again, and pause while it is not the one of the start. A goal that can't be read has changed."""
    for reading in count(1):
        path = f"cycle-{number}/goal-{reading}"
        call = ToolCall(path, READ_MANDATE.name, {"id": context.mandate.id})
        match (yield from CallTool(path, call)):
            case Refused() as stop:
                return phase_failure(stop)
            case ToolResult(is_error=False, data={"goal_hash": str(found)}) if found == context.mandate.goal_hash:
                return None
            case _:
                yield from Pause(f"cycle-{number}/drift-{reading}", DRIFT_PAUSE, so_far)
    raise AssertionError("somebody resumes it, or cancels the run")


def _next_carry_over(carry_over: CarryOver, newest: CycleResult) -> CarryOver:
    if newest.act_result is not None:
        carry_over = replace(carry_over, effects=(*carry_over.effects, newest.act_result.effect))
    if newest.reflection is not None:
        carry_over = _learn(carry_over, *newest.reflection.model_assessment.lessons)
    return carry_over


def _learn(carry_over: CarryOver, *lessons: str) -> CarryOver:
    new = tuple(lesson for lesson in lessons if lesson not in carry_over.lessons)
    return replace(carry_over, lessons=(*carry_over.lessons, *new)[-MAX_LESSONS:])


def _end_reason(done: Sequence[CycleResult], cycles: int, *, circling: bool) -> StopName | None:
    """Return why the run ends after its newest cycle, or None. Of several reasons the first here counts."""
    newest = done[-1]
    if newest.status == "interrupted" and newest.failed is not None:
        return newest.failed.failure.stop_reason
    checks = newest.reflection.checks if newest.reflection is not None else ()
    if checks and all(check.holds for check in checks):
        return "goal_achieved"
    if len(done) >= SURE_CYCLES and all(cycle.is_surely_done for cycle in done[-SURE_CYCLES:]):
        return "goal_achieved"
    if len(done) >= MAX_ERRORS and all(cycle.is_error for cycle in done[-MAX_ERRORS:]):
        return "error_threshold"
    if circling:
        return "loop_detected"
    noops = [cycle.status == "noop" for cycle in done]
    if (len(noops) >= IDLE_CYCLES and all(noops[-IDLE_CYCLES:])) or (len(noops) == cycles and all(noops)):
        return "nothing_to_do"
    if len(done) == cycles:
        return "parse_error" if newest.status == "parse_error" else "max_cycles_reached"
    return None


def _outcome(
    context: CycleContext,
    done: Sequence[CycleResult],
    carry_over: CarryOver,
    reason: StopName,
    *,
    did_all: bool = False,
) -> Outcome:
    status: MandateStatus = "terminated" if reason in _TERMINATED else "interrupted"
    output = {
        "mandate_id": context.mandate.id,
        "mandate_status": status,
        "reason": _mandate_reason(reason),
        **_report(done, carry_over),
    }
    notes = [
        f"cycle-{cycle.number}/{cycle.failed.phase}: {cycle.failed.failure.reason}" for cycle in done if cycle.failed
    ]
    told = _summarize_cycles(done, reason)
    if any(cycle.reflection is not None for cycle in done):
        return make_outcome(reason, told, output, tuple(notes), did_all=did_all)
    return make_outcome(reason, None, output, tuple(notes), record=told, did_all=did_all)


def _report(done: Sequence[CycleResult], carry_over: CarryOver) -> JsonObject:
    """Return the cycles, and what they hand on, for the outcome or a pause."""
    return {"cycles": [cycle.as_json() for cycle in done], **carry_over.as_json()}


def _report_with(done: Sequence[CycleResult], carry_over: CarryOver, current: CycleResult) -> JsonObject:
    return _report([*done, current], carry_over)


def _mandate_reason(reason: StopName) -> str:
    """Return the reason as a mandate reports it: a last cycle that could not be read has used up the cycles."""
    if reason == "parse_error":
        return "max_cycles_reached"
    return reason if reason in _TERMINATED else "interrupted"


def _summarize_cycles(done: Sequence[CycleResult], reason: StopName | None) -> str:
    """Write one line per cycle: what was done, and how the model judged it."""
    ended = "so far" if reason is None else f"ended as {reason}"
    lines = [f"{count_of(len(done), 'cycle')}; {ended}."]
    if not done:
        lines.append("Every acceptance check held before the first cycle, so nothing was done.")
    for cycle in done:
        effect = cycle.act_result.effect.said if cycle.act_result is not None else cycle.status
        verdict = ""
        if (reflection := cycle.reflection) is not None:
            verdict = f"; {reflection.verdict}, confidence {reflection.model_assessment.confidence:g}"
        lines.append(f"- cycle {cycle.number}: {effect}{verdict}")
    if done and (last := done[-1].reflection) is not None and last.model_assessment.remaining:
        lines.append(f"Remaining: {'; '.join(last.model_assessment.remaining)}")
    return "\n".join(lines)
