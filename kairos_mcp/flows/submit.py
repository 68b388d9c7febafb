"""What a run in a stage does at its end: it submits what is left, once, unless a person has decided about just that.

A person who denies with words is answered: the loop goes on with them as a turn of the user, where it ended by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kairos_mcp.core.builtin_tools import CONTAINED_TOOLS, SUBMIT_CHANGES
from kairos_mcp.core.messages import JsonObject, ToolCall, ToolResult
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import CallAnswer, CallTool, Flow, Refused
from kairos_mcp.core.text import count_of, truncate
from kairos_mcp.flows.tool_calls import AnsweredCall, limit_name

SUMMARY_CHARS = 2_000
REASON_CHARS = 500


@dataclass(slots=True)
class StageRecord:
    """What is known of the stage: how often it was submitted by itself, and whether a call may have written since the
    last decision about all of it."""

    submits: int = 0
    has_undecided: bool = False

    def record_calls(self, answered: Sequence[AnsweredCall]) -> None:
        for item in answered:
            if item.call.name in CONTAINED_TOOLS:
                self.has_undecided = True
            elif item.call.name == SUBMIT_CHANGES.name and not item.call.arguments.get("paths"):
                self.has_undecided = self.has_undecided and not _is_decided(item.answer)


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of the stage's changes. `note`: why something stays in it, empty where nothing does; `words`: of the
    person who did not want all of it; `was_asked`: a person looked at it."""

    note: str = ""
    words: str = ""
    was_asked: bool = False


def submit_stage(stage: StageRecord, summary: str) -> Flow[Submitted]:
    """Submit what the stage holds, with what was done as the summary."""
    if not stage.has_undecided:
        return Submitted()
    stage.submits += 1
    path = f"submit-{stage.submits}"
    arguments: JsonObject = {"summary": summary[:SUMMARY_CHARS]} if summary else {}
    answer = yield from CallTool(path, ToolCall(path, SUBMIT_CHANGES.name, arguments))
    stage.has_undecided = False
    match answer:
        case ToolResult(is_error=False, data={"withheld": [*withheld]}, remark=remark):
            verb = "stays" if len(withheld) == 1 else "stay"
            stays = f"{count_of(len(withheld), 'file')} that a person did not approve {verb} in the stage."
            return Submitted(stays, remark or "", was_asked=True)
        case ToolResult(is_error=False, data=data):
            return Submitted(was_asked=isinstance(data, dict) and bool(data.get("asked")))
        case ToolResult(code="no_change"):
            return Submitted()
        case ToolResult(content=content, data=data, code=code):
            words = data.get("feedback", "") if isinstance(data, dict) else ""
            note = f"What was changed stays in the stage: {truncate(content, REASON_CHARS)}"
            return Submitted(note, words, was_asked=code == "denied")
        case Refused() as refused:
            return Submitted(f"The limit on {limit_name(refused)} left no call to submit the stage.")


def submit_rest(stage: StageRecord, outcome: Outcome, then: str = "") -> Flow[tuple[Outcome, str]]:
    """Submit what the stage holds at the end of a loop. Returns the outcome, with a note where something stays in the
    stage (`then`: what can be done with it), and what a person said who did not approve it; an empty text if nobody
    did."""
    submitted = yield from submit_stage(stage, outcome.text)
    notes = (*outcome.notes, f"{submitted.note}{then}") if submitted.note else outcome.notes
    return replace(outcome, notes=notes), submitted.words


def _is_decided(answer: CallAnswer) -> bool:
    """Whether a person, or a rule, has decided about what was submitted."""
    return isinstance(answer, ToolResult) and (not answer.is_error or answer.code in ("denied", "no_change"))
