"""How a loop ends: with the model's answer, with a closing call after a limit or a stall, or without the model.

The guards say what kind a turn is, how many bad turns are too many, and when the loop goes round in circles. They
depend on the answers alone; limits are enforced where steps are executed. `LoopRecord` collects what a loop has done so
far: enough to end it at any moment with nothing lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import partial
from typing import Any, Literal

from kairos_mcp.core.input_checks import Undecodable
from kairos_mcp.core.limit_question import RUN_SCOPE, limit_pause
from kairos_mcp.core.limits import UNITS
from kairos_mcp.core.messages import Completion, Conversation, Message, ToolResult
from kairos_mcp.core.outcomes import Outcome, StopName, make_outcome
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import (
    CompletionAnswer,
    Extended,
    Failure,
    Flow,
    Mechanical,
    Predecessor,
    Refused,
    RequestCompletion,
    Resumed,
)
from kairos_mcp.core.text import count_of, truncate
from kairos_mcp.flows.planner_input import PlannerInput, Prompts, render_prompt
from kairos_mcp.flows.structured_answer import (
    DeclinedRepair,
    DecodedOutput,
    InterruptedRepair,
    UndecodedOutput,
    decode_turn,
    decode_with_repairs,
)
from kairos_mcp.flows.tool_calls import MAX_CALLS_PER_TURN, AnsweredCall, limit_name, turn_messages

TurnKind = Literal["final", "calls", "truncated", "empty", "unreadable", "content_filter", "refusal"]

WARN_AFTER_REPEATS = 3  # of the same call with the same result
STALL_AFTER_REPEATS = 5
MAX_UNREADABLE_TURNS = 3  # in a row, of those with no call that can be read too
RESULT_BYTES = 8  # of a result's digest: enough to tell the results of one call apart
REMIND_AFTER_FAILED_TURNS = 2  # in a row, so that the first reminder is that of round 3


def classify_turn(turn: Completion) -> TurnKind:
    """Return the kind of a completion. The order matters: a cut-off turn is not trusted, whatever else it holds."""
    match turn:
        case Completion(finish="content_filter" | "refusal" as finish):
            return finish
        case Completion(finish="length"):
            return "truncated"
        case Completion(unreadable=str()):
            return "unreadable"
        case Completion(tool_calls=(_, *_)):
            return "calls"
        case _:
            return "final" if turn.content.strip() else "empty"


def correction_messages(prompts: Prompts, kind: TurnKind, turn: Completion) -> tuple[Message, ...]:
    """Return the message to the model after a turn that was cut off, empty or unreadable."""
    match kind:
        case "truncated":
            return (Message("user", prompts.truncated),)
        case "empty":
            return (Message("user", prompts.empty),)
        case "unreadable":
            return (Message("user", render_prompt(prompts.unreadable, reason=turn.unreadable)),)
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class StalledLoop:
    """The loop is going round in circles: the same call of this tool has given the same result too often."""

    tool: str


@dataclass(slots=True)
class LoopGuards:
    """What is remembered from turn to turn. `newest_results` grows by one entry for each different call."""

    prompts: Prompts
    useless_turns: int = 0  # cut off or empty, in a row
    unreadable_turns: int = 0  # in a row
    failed_turns: int = 0  # turns in a row in which no call succeeded
    newest_results: dict[bytes, bytes] = field(default_factory=dict)  # by a call's digest: the start of the result's
    repeats: dict[bytes, int] = field(default_factory=dict)  # by a call's digest: how often, if more than once
    warning: str | None = None  # for the next request, if the newest turn repeated a call

    def check_turn(self, kind: TurnKind, turn: Completion) -> StopName | None:
        """Count a turn, and return the reason to end the run after it, if there is one."""
        self.warning = None
        is_unreadable = kind == "unreadable" or (
            kind == "calls" and all(call.unreadable is not None for call in turn.tool_calls)
        )
        self.useless_turns = self.useless_turns + 1 if kind in ("truncated", "empty") else 0
        self.unreadable_turns = self.unreadable_turns + 1 if is_unreadable else 0
        if self.unreadable_turns >= MAX_UNREADABLE_TURNS:
            return "format_errors"
        match kind:
            case "content_filter":
                return "content_filter"
            case "refusal":
                return "refused"
            case "truncated":
                return "length" if self.useless_turns >= 2 else None
            case "empty":
                return "empty_answer" if self.useless_turns >= 2 else None
            case "unreadable" | "final" | "calls":
                return None

    def check_repeats(self, answered: Iterable[AnsweredCall]) -> StalledLoop | None:
        """Count a turn's results; return StalledLoop once a call has given the same result five times.

        A call counts once a turn, so that the model always had a chance to read the warning before the end.
        """
        has_success, worst = False, (0, "")
        for digest, item in {item.call.digest: item for item in answered}.items():
            answer = item.answer
            if isinstance(answer, ToolResult):
                has_success = has_success or not answer.is_error
                worst = max(worst, (self._count_repeats(digest, answer.digest), item.call.name))
        self.failed_turns = 0 if has_success else self.failed_turns + 1
        times, tool = worst
        if times >= WARN_AFTER_REPEATS:
            self.warning = render_prompt(self.prompts.stall, tool=tool, times=times)
        return StalledLoop(tool) if times >= STALL_AFTER_REPEATS else None

    def reminder(self, goal: str | None) -> str | None:
        """Return what the next request says once, outside the conversation; `goal`: its last line, if there is one."""
        failures = self.prompts.failures if self.failed_turns >= REMIND_AFTER_FAILED_TURNS else None
        return "\n".join(line for line in (self.warning, failures, goal) if line) or None

    def forget_repeats(self) -> None:
        """Start counting anew. After a compaction the model may well ask again for what it can no longer see."""
        self.newest_results.clear()
        self.repeats.clear()

    def _count_repeats(self, call: bytes, result: bytes) -> int:
        start = result[:RESULT_BYTES]
        if self.newest_results.get(call) != start:
            self.newest_results[call] = start
            self.repeats.pop(call, None)
            return 1
        times = self.repeats[call] = self.repeats.get(call, 1) + 1
        return times


Stop = Refused | StalledLoop | Failure | Mechanical | Extended

_MAX_TEXT_CHARS = 1_400  # of the model's last text in a record, which has room for it beside the calls


@dataclass(slots=True)
class LoopRecord:
    """What one loop has done so far. It lives in the flow's generator and is rebuilt with it by each replay."""

    rounds: int = 0
    last_text: str = ""  # the last text of the model that could be read
    calls: Counter[tuple[str, bool]] = field(default_factory=Counter)  # how many, by (tool, whether they succeeded)
    notes: list[str] = field(default_factory=list)
    questions: int = 0  # that a person was asked about limits
    closings: int = 0  # that were asked for; all but the newest were taken back
    outputs: int = 0  # final answers that were decoded
    has_asked_back: bool = False  # after a first answer without any look at a file

    def record_turn(self, turn: Completion, kind: TurnKind) -> None:
        """Count a round and keep its text."""
        self.rounds += 1
        if kind != "unreadable" and turn.content.strip():
            self.last_text = turn.content

    def record_calls(self, name: str, answered: Sequence[AnsweredCall]) -> None:
        """Keep the calls of the round `name`, and note what the result has to tell about them."""
        for item in answered:
            self.calls[item.call.name, item.is_success] += 1
        if len(answered) > MAX_CALLS_PER_TURN:
            self.notes.append(f"{name}: of {len(answered)} calls in one turn {MAX_CALLS_PER_TURN} were executed.")

    def outcome(self, stop_reason: StopName, summary: str, output: Any = None, *notes: str) -> Outcome:
        """Make the run's outcome, with the notes collected so far before `notes`."""
        return make_outcome(stop_reason, summary, output, (*self.notes, *notes))

    def end_without_model(self, stop_reason: StopName, *notes: str) -> Outcome:
        """End without another model call: the summary is the model's last text, if it said any."""
        if self.last_text:
            return self.outcome(stop_reason, self.last_text, None, *notes, "The summary is the model's last text.")
        return self.end_from_record(stop_reason, *notes)

    def end_from_record(self, stop_reason: StopName, *notes: str) -> Outcome:
        """End without a summary: the outcome says what was done."""
        done = summarize_record(self.rounds, self.calls, self.last_text)
        return make_outcome(stop_reason, None, None, (*self.notes, *notes), record=done)


def summarize_record(rounds: int, calls: Counter[tuple[str, bool]], last_text: str) -> str:
    """Say without a model what was done: rounds, calls by tool in order of first use, and the model's last text.

    `calls`: how many, by (tool, whether they succeeded).
    """
    lines = [f"{count_of(rounds, 'round')} done." if rounds else "No answer: the model never replied."]
    for tool in dict.fromkeys(tool for tool, _ in calls):
        failed = calls[tool, False]
        number = calls[tool, True] + failed
        lines.append(f"- {tool}: {count_of(number, 'call')}" + (f", {failed} failed" if failed else ""))
    if last_text:
        shown = truncate(last_text, _MAX_TEXT_CHARS, "\n({left_out} further characters are in the run's messages)")
        lines += ["Last text of the model:", shown]
    return "\n".join(lines)


def deliver_answer(
    planner_input: PlannerInput,
    conversation: Conversation,
    predecessor: Predecessor,
    record: LoopRecord,
    turn: Completion,
) -> Flow[Outcome | Conversation]:
    """End with the model's final text as the summary, and as the output where a schema was given; or return the
    conversation with which the loop goes on, as `stop_early` does. `predecessor`: the
    round of that text."""
    if planner_input.asks_back and not (record.calls or record.has_asked_back):
        record.has_asked_back = True
        asked_back = Message("user", planner_input.prompts.look_first)
        return conversation.add(*turn_messages(planner_input.prompts, turn.content), asked_back)
    reason: StopName = "assistant_stop" if turn.finish == "stop" else "no_tool_calls"
    if planner_input.output_schema is None:
        return record.outcome(reason, turn.content)
    record.outputs += 1
    name = _step_name("output", record.outputs)
    match (
        yield from decode_with_repairs(
            turn, conversation, predecessor, planner_input.output_schema, planner_input, name
        )
    ):
        case DecodedOutput(value=value, text=text):
            return record.outcome(reason, text, value)
        case UndecodedOutput(reason=why, text=text):
            return record.outcome("format_errors", text, None, f"No output: {why}.")
        case DeclinedRepair(finish=finish):
            return record.end_without_model("refused" if finish == "refusal" else "content_filter")
        case InterruptedRepair(answer=stop, conversation=longer, predecessor=newest):
            return (yield from stop_early(planner_input, longer, newest, record, stop))


def stop_early(
    planner_input: PlannerInput,
    conversation: Conversation,
    predecessor: Predecessor | None,
    record: LoopRecord,
    stop: Stop,
) -> Flow[Outcome | Conversation]:
    """End a loop that something stopped before the model did. What was said and done until then is kept. Where the
    closing was taken back, return the conversation with which the loop goes on."""
    ask = partial(_request_summary, planner_input, conversation, predecessor, record)
    match stop:
        case Refused():
            if planner_input.asks_at_limit and stop.scope == RUN_SCOPE:
                record.questions += 1
                name = _step_name("limit", record.questions)
                if isinstance((yield from limit_pause(name, stop, record.rounds, "round", record.last_text)), Resumed):
                    return conversation
            prompt = render_prompt(planner_input.prompts.closing, limit=limit_name(stop))
            return (yield from ask(_stop_reason(stop), prompt))
        case StalledLoop(tool=tool):
            prompt = render_prompt(planner_input.prompts.stalled, tool=tool)
            return (yield from ask("stalled", prompt))
        case Failure(code="context_full", message=message):
            return record.end_without_model("context_full", *(() if message in record.notes else (message,)))
        case Failure(code=code, message=message):
            return record.end_without_model("llm_error", f"{code}: {message}")
        case Mechanical() | Extended():
            return record.end_without_model("llm_error", "Nobody was there to think.")


def _request_summary(
    planner_input: PlannerInput,
    conversation: Conversation,
    predecessor: Predecessor | None,
    record: LoopRecord,
    reason: StopName,
    prompt: str,
) -> Flow[Outcome | Conversation]:
    """Make the closing call: the model's last chance to sum up. Without a usable answer there is no summary."""
    record.closings += 1
    answer = yield from RequestCompletion(
        _step_name("closing", record.closings),
        "closing",
        conversation.add(Message("user", prompt)),
        output_schema=planner_input.output_schema,
        max_tokens=planner_input.max_tokens,
        predecessor=predecessor,
    )
    if isinstance(answer, Extended):
        return conversation
    match _check_summary(answer):
        case str(flaw):
            return record.end_from_record(reason, f"There is no summary: {flaw.rstrip('.')}.")
        case summary:
            return _outcome_with_output(planner_input, record, reason, summary)


def _step_name(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def _outcome_with_output(
    planner_input: PlannerInput, record: LoopRecord, reason: StopName, answer: Completion
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
        case Mechanical() | Extended():
            return "nobody was there to write it"
        case Completion(unreadable=str(reason)):
            return f"the closing answer could not be read: {reason}"
        case Completion(finish="content_filter" | "refusal"):
            return "the model refused to write it"
        case summary:
            return summary if summary.content.strip() else "the closing answer was empty"


def _stop_reason(refused: Refused) -> StopName:
    return UNITS[refused.limit].ends
