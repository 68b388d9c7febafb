"""What a run in a stage does at its end: it submits what is left, once, unless a person has decided about just that.

A person who denies with words is answered: the loop goes on with them as a turn of the user, where it ended by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kairos_mcp.core.builtin_tools import CONTAINED_TOOLS, SUBMIT_CHANGES
from kairos_mcp.core.messages import JsonObject, ToolCall, ToolResult
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.steps import CallAnswer, CallTool, Flow, Refused
from kairos_mcp.core.text import truncate
from kairos_mcp.flows.tool_calls import AnsweredCall, limit_name

SUMMARY_CHARS = 2_000
REASON_CHARS = 500


@dataclass(slots=True)
class StageRecord:
    """What is known of the stage: how often the end submitted, and whether a call may have written since the last
    decision about all of it."""

    submits: int = 0
    has_undecided: bool = False

    def record_calls(self, answered: Sequence[AnsweredCall]) -> None:
        for item in answered:
            if item.call.name in CONTAINED_TOOLS:
                self.has_undecided = True
            elif item.call.name == SUBMIT_CHANGES.name and not item.call.arguments.get("paths"):
                self.has_undecided = self.has_undecided and not _is_decided(item.answer)


def submit_rest(stage: StageRecord, outcome: Outcome) -> Flow[tuple[Outcome, str]]:
    """Submit what the stage holds at the end of a loop. Returns the outcome, with a note where something stays in the
    stage, and what a person said who denied it; an empty text if nobody did."""
    if not stage.has_undecided:
        return outcome, ""
    stage.submits += 1
    path = f"submit-{stage.submits}"
    arguments: JsonObject = {"summary": outcome.text[:SUMMARY_CHARS]} if outcome.text else {}
    answer = yield from CallTool(path, ToolCall(path, SUBMIT_CHANGES.name, arguments))
    stage.has_undecided = False
    match answer:
        case ToolResult(is_error=False) | ToolResult(code="no_change"):
            return outcome, ""
        case ToolResult(content=content, data=data):
            words = data.get("feedback", "") if isinstance(data, dict) else ""
            reason = truncate(content, REASON_CHARS)
            return _with_note(outcome, f"What was changed stays in the stage, for `continues`: {reason}"), words
        case Refused() as refused:
            return _with_note(outcome, f"The limit on {limit_name(refused)} left no call to submit the stage."), ""


def _is_decided(answer: CallAnswer) -> bool:
    """Whether a person, or a rule, has decided about what was submitted."""
    return isinstance(answer, ToolResult) and (not answer.is_error or answer.code in ("denied", "no_change"))


def _with_note(outcome: Outcome, note: str) -> Outcome:
    return replace(outcome, notes=(*outcome.notes, note))
