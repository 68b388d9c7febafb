"""How a loop ends: with the model's answer, with a closing call after a limit or a stall, or without the model.

`LoopRecord` collects what a loop has done so far: enough to end it at any moment with nothing lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kairos_mcp.core.input_checks import Undecodable
from kairos_mcp.core.messages import Completion, Conversation, Message
from kairos_mcp.core.steps import (
    CompletionAnswer,
    Failure,
    Flow,
    Mechanical,
    Outcome,
    Refused,
    RequestCompletion,
    StopReason,
    Unknown,
    make_outcome,
)
from kairos_mcp.core.text import count_of
from kairos_mcp.flows.loop_guards import StalledLoop, TurnKind
from kairos_mcp.flows.planner_input import PlannerInput, render_prompt
from kairos_mcp.flows.structured_output import (
    DeclinedRepair,
    DecodedOutput,
    InterruptedRepair,
    UndecodedOutput,
    decode_turn,
    decode_with_repairs,
)
from kairos_mcp.flows.tool_calls import MAX_CALLS_PER_TURN, AnsweredCall, limit_name

Stop = Refused | StalledLoop | Failure | Mechanical | Unknown

_MAX_TEXT_CHARS = 2_000  # of the model's last text in a summary that is made from the record


@dataclass(slots=True)
class LoopRecord:
    """What one loop has done so far. It lives in the flow's generator and is rebuilt with it by each replay."""

    rounds: int = 0
    last_text: str = ""  # the last text of the model that could be read
    calls: Counter[tuple[str, bool]] = field(default_factory=Counter)  # how many, by (tool, whether they succeeded)
    notes: list[str] = field(default_factory=list)
    counts_alike: bool = False  # for the summary, see `summarize_record`

    def record_turn(self, turn: Completion, kind: TurnKind) -> None:
        """Count a round and keep its text."""
        self.rounds += 1
        if kind != "unreadable" and turn.content.strip():
            self.last_text = turn.content

    def record_calls(self, name: str, answered: Sequence[AnsweredCall]) -> None:
        """Keep the calls of the round `name`, and note what the result has to tell about them."""
        for item in answered:
            self.calls[item.call.name, item.is_success] += 1
            if isinstance(item.answer, Unknown):
                self.notes.append(f"{item.call.id} ({item.call.name}) was begun, and its end is not known.")
        if len(answered) > MAX_CALLS_PER_TURN:
            self.notes.append(f"{name}: of {len(answered)} calls in one turn {MAX_CALLS_PER_TURN} were executed.")

    def outcome(self, stop_reason: StopReason, summary: str, output: Any = None, *notes: str) -> Outcome:
        """Make the run's outcome, with the notes collected so far before `notes`."""
        return make_outcome(stop_reason, summary, output, (*self.notes, *notes))

    def end_without_model(self, stop_reason: StopReason, *notes: str) -> Outcome:
        """End without another model call: the summary is the model's last text, else made from the record."""
        if self.last_text:
            return self.outcome(stop_reason, self.last_text, None, *notes, "The summary is the model's last text.")
        return self.outcome(stop_reason, self.summary(), None, *notes, "The summary was made from the record.")

    def summary(self) -> str:
        """Return the summary that is made from the record."""
        return summarize_record(self.rounds, self.calls, self.last_text, counts_alike=self.counts_alike)


def summarize_record(
    rounds: int, calls: Counter[tuple[str, bool]], last_text: str, *, counts_alike: bool = False
) -> str:
    """Write a summary without a model: rounds, calls by tool in order of first use, and the model's last text.

    `calls`: how many, by (tool, whether they succeeded). `counts_alike`: one call is worded as "1 calls", as records of
    older runs have it.
    """
    lines = [f"Made from the record, not by a model. Rounds: {rounds}."]
    for tool in dict.fromkeys(tool for tool, _ in calls):
        failed = calls[tool, False]
        number = calls[tool, True] + failed
        counted = f"{number} calls" if counts_alike else count_of(number, "call")
        lines.append(f"- {tool}: {counted}" + (f", {failed} failed" if failed else ""))
    if last_text:
        left_out = len(last_text) - _MAX_TEXT_CHARS
        lines += ["Last text of the model:", last_text[:_MAX_TEXT_CHARS]]
        lines += [f"({left_out} further characters are in the run's messages)"] if left_out > 0 else []
    return "\n".join(lines)


def deliver_answer(
    planner_input: PlannerInput, conversation: Conversation, record: LoopRecord, turn: Completion
) -> Flow[Outcome]:
    """End with the model's final text as the summary, and as the output where a schema was given."""
    reason: StopReason = "assistant_stop" if turn.finish == "stop" else "no_tool_calls"
    if planner_input.output_schema is None:
        return record.outcome(reason, turn.content)
    match (yield from decode_with_repairs(turn, conversation, planner_input.output_schema, planner_input)):
        case DecodedOutput(value=value, text=text):
            return record.outcome(reason, text, value)
        case UndecodedOutput(reason=why, text=text):
            return record.outcome("format_errors", text, None, f"No output: {why}.")
        case DeclinedRepair(finish=finish):
            return record.end_without_model("refused" if finish == "refusal" else "content_filter")
        case InterruptedRepair(answer=stop, conversation=longer):
            return (yield from stop_early(planner_input, longer, record, stop))


def stop_early(
    planner_input: PlannerInput, conversation: Conversation, record: LoopRecord, stop: Stop
) -> Flow[Outcome]:
    """End a loop that something stopped before the model did. What was said and done until then is kept."""
    match stop:
        case Refused():
            prompt = render_prompt(planner_input.prompts.closing, limit=limit_name(stop))
            return (yield from _request_summary(planner_input, conversation, record, _stop_reason(stop), prompt))
        case StalledLoop(tool=tool):
            prompt = render_prompt(planner_input.prompts.stalled, tool=tool)
            return (yield from _request_summary(planner_input, conversation, record, "stalled", prompt))
        case Failure(code=code, message=message):
            return record.end_without_model("llm_error", f"{code}: {message}")
        case Mechanical():
            return record.end_without_model("llm_error", "Nobody was there to think.")
        case Unknown():
            return record.end_without_model("unknown_outcome")


def _request_summary(
    planner_input: PlannerInput, conversation: Conversation, record: LoopRecord, reason: StopReason, prompt: str
) -> Flow[Outcome]:
    """Make the closing call: the model's last chance to sum up; without a usable answer the record is summarized."""
    answer = yield from RequestCompletion(
        "closing",
        "closing",
        conversation.add(Message("user", prompt)),
        output_schema=planner_input.output_schema,
        max_tokens=planner_input.max_tokens,
    )
    match _check_summary(answer):
        case str(flaw):
            return record.outcome(reason, record.summary(), None, f"The summary was made from the record: {flaw}.")
        case summary:
            return _outcome_with_output(planner_input, record, reason, summary)


def _outcome_with_output(
    planner_input: PlannerInput, record: LoopRecord, reason: StopReason, answer: Completion
) -> Outcome:
    """Use the closing call's text; where a schema was given, decode it once: after a limit there is no repair."""
    if answer.finish == "length":
        record.notes.append("The summary was cut off at its length limit.")
    if planner_input.output_schema is None:
        return record.outcome(reason, answer.content)
    try:
        return record.outcome(reason, answer.content, decode_turn(answer, planner_input.output_schema))
    except Undecodable as error:
        return record.outcome(reason, answer.content, None, f"No output: {error.reason}.")


def _check_summary(answer: CompletionAnswer) -> Completion | str:
    """Return the closing call's answer, or the reason why it is no summary."""
    match answer:
        case Refused() as refused:
            return f"the limit on {limit_name(refused)} left nothing for a closing call"
        case Failure(code=code, message=message):
            return f"the closing call failed with {code}: {message}"
        case Mechanical():
            return "nobody was there to write it"
        case Completion(unreadable=str(reason)):
            return f"the closing answer could not be read: {reason}"
        case Completion(finish="content_filter" | "refusal"):
            return "the model refused to write it"
        case summary:
            return summary if summary.content.strip() else "the closing answer was empty"


def _stop_reason(refused: Refused) -> StopReason:
    match refused.limit:
        case "rounds":
            return "max_rounds"
        case "milliseconds":
            return "timeout"
        case _:
            return "budget"
