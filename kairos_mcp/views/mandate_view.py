"""Report on a run's mandate or phase from its rows: status, reason, and the output of a run that has not ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kairos_mcp.core.mandate import CHECKPOINT_PAUSE, DRIFT_PAUSE, RISK_PAUSE
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcomes import STOP_REASONS, Outcome
from kairos_mcp.core.schedule import Schedule, describe_schedule
from kairos_mcp.core.steps import Pause, last_part
from kairos_mcp.core.text import truncate
from kairos_mcp.flows.ooda.phase_kinds import phase_after
from kairos_mcp.specs.kinds import CYCLES, FlowKind, kind_of
from kairos_mcp.store import mandates
from kairos_mcp.store.approvals import WaitingItems
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session, decode
from kairos_mcp.views.waiting import OpenStep

MAX_TOLD_CYCLES = 3  # in a checkpoint's next call: as many as may pass between two checkpoints
AIM_CHARS = 120
_PAUSES = {"checkpoint": CHECKPOINT_PAUSE, "drift": DRIFT_PAUSE, "risk": RISK_PAUSE}
_PAUSE_REASONS: Mapping[str, str] = {
    CHECKPOINT_PAUSE: "If they want it to go on, resuming begins the next cycle.",
    RISK_PAUSE: (
        "The risk of what was decided is above the mandate's budget; resuming records it as denied and goes on."
    ),
    DRIFT_PAUSE: (
        "The mandate's goal was changed or can't be read, so this run goes no further; start a new one afterwards."
    ),
}


def current_pause(waits: WaitingItems) -> str | None:
    """Return the status of the pause that the run's flow waits at, or None."""
    pauses = [path for path, row in waits.steps.items() if row.kind == "pause"]
    return next((_PAUSES[last_part(path).name] for path in pauses), None)


def call_after_pause(run: RunRow, word: str, steps: Mapping[str, OpenStep] | None) -> tuple[str, JsonObject, str]:
    """Return the next call at a pause: its tool, arguments and reason; at a checkpoint after what was done, which the
    user is to be told first. `steps`: the open steps, without which (None) only the output says what was done."""
    action = "cancel" if word == DRIFT_PAUSE else "resume"
    report = f"A checkpoint: first tell the user what was done ({_describe_cycles(steps)}). "
    why = f"{report if word == CHECKPOINT_PAUSE else ''}{_PAUSE_REASONS[word]}"
    return "run_control", {"run_id": run.id, "action": action}, why


def _describe_cycles(steps: Mapping[str, OpenStep] | None) -> str:
    """Say what the newest cycles did, each in a few words."""
    done = _output_so_far(steps or {}).get("cycles", [])
    texts = []
    for cycle in done[-MAX_TOLD_CYCLES:]:
        decision = cycle.get("decision", {})
        aim = truncate(" ".join((decision.get("intent") or decision.get("reason") or "").split()), AIM_CHARS)
        what = " ".join(filter(None, (decision.get("action"), decision.get("target") or decision.get("tool"))))
        verdict = cycle.get("reflection", {}).get("assessment")
        told = f"cycle {cycle['cycle']}: {what or 'no decision'}, {cycle['status']}"
        texts.append(told + (f", {verdict}" if verdict else "") + (f', "{aim}"' if aim else ""))
    return "; ".join(texts) or "`output` has it"


def call_after_phase(run: RunRow, outcome: Outcome) -> tuple[str, JsonObject, str] | None:
    """Return the call of the phase that takes this one's output: its tool, arguments and reason; None where there is no
    such phase, or no output."""
    phase = kind_of(run.flow).phase
    following = None if phase is None else phase_after(phase)
    if following is None or following.input_name is None or outcome.stop_reason != "assistant_stop":
        return None
    return following.tool, {following.input_name: run.id}, f"It takes what {phase} gave, for the same mandate."


def is_unfinished(kind: FlowKind, outcome: Outcome) -> bool:
    """Whether cycles ended with something left to do, with which a new run of the mandate can go on."""
    return kind.has_cycles and STOP_REASONS[outcome.stop_reason].because in _CONTINUABLE


def call_after_cycles(outcome: Outcome, mandate: JsonObject) -> tuple[str, JsonObject, str]:
    """Return the call after the end of unfinished cycles: its tool, arguments and reason. `mandate`: the arguments
    that name its mandate."""
    reason = STOP_REASONS[outcome.stop_reason]
    ended = "The cycles that were asked for are done"
    if outcome.status != "completed":
        ended = f"{_CONTINUABLE[reason.because]} ({reason.words})"
    return CYCLES.tool, mandate, f"{ended}; a new run of the mandate goes on with what this one learned."


_CONTINUABLE: Mapping[str, str] = {"limit": "A limit ended it", "model": "The model failed it"}
"""What to say of a run that ended early, by what its stop reason is because of."""


def read_reference(session: Session, run: RunRow) -> JsonObject | None:
    """Return the arguments that name the mandate of a run of cycles, with its folder only where another one has its id
    too; None where it is not saved any more."""
    named = mandates.find_by_id(session, run.principal, run.mandate or "")
    if all(each.workspace != (run.workspace or "") for each in named):
        return None
    return {"mandate_id": run.mandate} | ({} if len(named) == 1 else {"workspace": run.workspace})


def mandate_status(run: RunRow, waits: WaitingItems | None) -> JsonObject:
    """Return {status, reason?} of a mandate from its newest run. `waits`: what that run waits for."""
    if run.outcome is None:
        return {"status": (current_pause(waits) if waits is not None else None) or "active"}
    outcome: Outcome = decode(Outcome, run.outcome)
    match outcome.output:
        case {"mandate_status": str(status), "reason": str(reason)}:
            return {"status": status, "reason": reason}
        case _:
            return {"status": "interrupted", "reason": "interrupted"}


def mandate_output(
    run: RunRow,
    outcome: Outcome | None,
    waits: WaitingItems,
    status: str,
    steps: Mapping[str, OpenStep] | None = None,
) -> Any:
    """Return the output that a run shows: its own once it has one, else its status.

    Where `steps` is given, a pause of a mandate also shows its cycles so far, under the keys of the final output.
    """
    if outcome is not None and outcome.output is not None:
        return outcome.output
    acts = ((key, row.digest) for key, row in waits.approvals.items() if "act/call-1" in row.path)
    awaits = next(({"status": "awaiting_approval", "key": key, "digest": digest} for key, digest in acts), None)
    kind = kind_of(run.flow)
    if kind.has_cycles:
        stands = mandate_status(run, waits)
        told: JsonObject = {"mandate_id": run.mandate, "mandate_status": stands.pop("status"), **stands}
        if steps is not None and current_pause(waits) is not None:
            told |= _output_so_far(steps)
        return told | ({"act": awaits} if awaits is not None else {})
    if kind.phase is not None:
        return {"status": status} if awaits is None else awaits
    return None


def _output_so_far(steps: Mapping[str, OpenStep]) -> JsonObject:
    return next((each.step.progress for each in steps.values() if isinstance(each.step, Pause)), {})


def with_schedule_words(item: JsonObject) -> JsonObject:
    """Add to a listed mandate what its schedule says in words."""
    schedule: Any = item.get("schedule")
    return item if schedule is None else item | {"schedule_words": describe_schedule(Schedule(**schedule))}


def show_cycle(run_id: str, cycle: JsonObject) -> JsonObject:
    """Return a cycle of an outcome or a pause in one row: what was done and how it was judged."""
    decision, reflection = cycle.get("decision", {}), cycle.get("reflection", {})
    return {
        "run_id": run_id,
        "n": cycle["cycle"],
        "status": cycle["status"],
        "action": decision.get("action"),
        "target": decision.get("target") or decision.get("tool"),
        "intent": decision.get("intent") or decision.get("reason"),
        "verdict": reflection.get("assessment"),
        "confidence": reflection.get("confidence"),
        "lessons": reflection.get("lessons", []),
    }
