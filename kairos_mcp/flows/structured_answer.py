"""Structured output: decode and validate the final text; if it does not fit, ask the model again, at most twice."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Generic, Literal, Protocol, TypeVar

from kairos_mcp.core.input_checks import Undecodable, decode_object
from kairos_mcp.core.json_schema import compile_schema, text_schema
from kairos_mcp.core.limits import UNITS
from kairos_mcp.core.messages import Completion, Conversation, JsonObject, Message, ToolSet
from kairos_mcp.core.outcomes import StopName
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import (
    CompletionAnswer,
    Extended,
    Failure,
    Flow,
    Mechanical,
    Predecessor,
    Purpose,
    Refused,
    RequestCompletion,
)
from kairos_mcp.core.text import truncate
from kairos_mcp.flows.planner_input import PlannerInput, Prompts, render_prompt
from kairos_mcp.flows.tool_calls import AnsweredCall, first_stop, limit_name, number_calls, reject_calls, turn_messages

MAX_REPAIRS = 2


@dataclass(frozen=True, slots=True)
class DecodedOutput:
    """The object, with the text that it was read from."""

    value: JsonObject
    text: str


@dataclass(frozen=True, slots=True)
class UndecodedOutput:
    """No object after the last repair: the reason, and the last text."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class InterruptedRepair:
    """No object: a repair was answered with what is no completion. `conversation` ends with the repair's prompt;
    `predecessor` is the completion before it."""

    answer: Refused | Failure | Mechanical | Extended
    conversation: Conversation
    predecessor: Predecessor


@dataclass(frozen=True, slots=True)
class DeclinedRepair:
    """No object: the model or its filter declined a repair."""

    finish: Literal["content_filter", "refusal"]


def decode_output(text: str, schema: JsonObject) -> JsonObject:
    """Return the object in the text. Raises Undecodable with every way in which it does not fit the schema."""
    value = decode_object(text)
    if problems := compile_schema(schema).problems(value):
        raise Undecodable("; ".join(problems))
    return value


def decode_turn(turn: Completion, schema: JsonObject) -> JsonObject:
    """Return the object of a turn. Raises Undecodable, also for a turn that was cut off, whatever its text."""
    if turn.finish == "length":
        raise Undecodable("the reply was cut off at its length limit; send a shorter one")
    if turn.unreadable is not None:
        raise Undecodable(turn.unreadable)
    return decode_output(turn.content, schema)


def decode_with_repairs(
    turn: Completion,
    conversation: Conversation,
    predecessor: Predecessor,
    schema: JsonObject,
    planner_input: PlannerInput,
    name: str = "output",
) -> Flow[DecodedOutput | UndecodedOutput | InterruptedRepair | DeclinedRepair]:
    """Decode `turn`, the answer to `conversation` at the step of `predecessor`; steps `NAME/repair-N` show the model
    what is wrong."""
    text = turn.content
    for number in count(1):
        try:
            return DecodedOutput(decode_turn(turn, schema), turn.content)
        except Undecodable as error:
            reason = error.reason
        if number > MAX_REPAIRS:
            return UndecodedOutput(reason, text)
        prompt = Message("user", render_prompt(planner_input.prompts.repair, problems=reason))
        conversation = conversation.add(*turn_messages(planner_input.prompts, turn.content), prompt)
        request = RequestCompletion(
            f"{name}/repair-{number}",
            "repair",
            conversation,
            output_schema=schema,
            max_tokens=planner_input.max_tokens,
            predecessor=predecessor,
        )
        answer = yield from request
        match answer:
            case Refused() | Failure() | Mechanical() | Extended():
                return InterruptedRepair(answer, conversation, predecessor)
            case Completion(finish="content_filter" | "refusal" as finish):
                return DeclinedRepair(finish)
            case turn:
                text = turn.content if turn.content.strip() else text
                predecessor = Predecessor(request.name, len(conversation), request.tools, predecessor)
    raise AssertionError("the repairs are counted")


MAX_ECHO_CHARS = 20_000  # how much of an answer that can't be used is shown to the model again

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
FailureStatus = Literal["budget", "parse_error", "llm_error", "context_full", "refused", "content_filter"]


@dataclass(frozen=True, slots=True)
class PhaseFailure:
    """A phase without an output: `status` stands where the output's would; `refused`: the limit that ended it."""

    status: FailureStatus
    reason: str
    refused: Refused | None = None

    @property
    def stop_reason(self) -> StopName:
        """The reason with which a run ends whose phase failed so."""
        if self.status == "budget":
            return "budget" if self.refused is None else UNITS[self.refused.limit].ends
        return self.status

    def as_json(self) -> JsonObject:
        return {"status": self.status, "reason": self.reason}


class RepairPrompts(Protocol):
    """The message to a model about an answer that can't be used (`$problems`), or that was cut off at `$tokens`."""

    @property
    def repair(self) -> str: ...

    @property
    def cut_off(self) -> str: ...


@dataclass(frozen=True, slots=True)
class AnswerForm(Generic[T_co]):
    """What an answer has to be. `parse` makes a value of the decoded object, or raises Undecodable with all problems.

    `reminder`: one more sentence for the model, outside the conversation. `max_repairs`: how often it is asked again.
    """

    schema: JsonObject
    max_tokens: int
    parse: Callable[[JsonObject], T_co]
    reminder: str | None = None
    max_repairs: int = MAX_REPAIRS


@dataclass(frozen=True, slots=True)
class DecodedAnswer(Generic[T_co]):
    """A model's answer as a value, and the step that it answered: the last repair, if there were any."""

    value: T_co
    step: str


class ReadingTools(Protocol):
    """The tools that a model may call before it answers."""

    @property
    def callable_tools(self) -> ToolSet: ...

    def execute_calls(self, turn: Completion) -> Flow[tuple[AnsweredCall, ...]]: ...


def request_answer(
    name: str,
    conversation: Conversation,
    form: AnswerForm[T],
    repair_prompts: RepairPrompts,
    prompts: Prompts,
    reading_tools: ReadingTools | None = None,
) -> Flow[DecodedAnswer[T] | PhaseFailure]:
    """Ask the model until it gives an answer of this form, or can't be asked any more: one that was cut off at its
    length limit is repaired once.

    Steps: `NAME`, `NAME/repair-N`, and `NAME/turn-N` after each turn that only called tools; `reading_tools` names the
    calls.
    """
    repairs, was_cut_off, turns = 0, False, count(2)
    step, purpose = name, _PHASE
    predecessor: Predecessor | None = None
    while True:
        tools = reading_tools.callable_tools if reading_tools is not None else ToolSet()
        turn = yield from RequestCompletion(
            step,
            purpose,
            conversation,
            tools,
            form.schema,
            max_tokens=form.max_tokens,
            reminder=form.reminder,
            predecessor=predecessor,
        )
        if not isinstance(turn, Completion) or turn.finish in ("content_filter", "refusal"):
            return phase_failure(turn)
        is_cut_off, predecessor = turn.finish == "length", Predecessor(step, len(conversation), tools, predecessor)
        if reading_tools is not None and len(tools) and turn.tool_calls and not is_cut_off and turn.unreadable is None:
            answered = yield from reading_tools.execute_calls(turn)
            if (stop := first_stop(answered)) is not None:
                return phase_failure(stop)
            conversation = conversation.add(*turn_messages(prompts, turn.content, answered))
            step, purpose = f"{name}/turn-{next(turns)}", _PHASE
            continue
        try:
            return DecodedAnswer(form.parse(_decode_object(turn)), step)
        except Undecodable as error:
            reason = error.reason
        if repairs == form.max_repairs or (is_cut_off and was_cut_off):
            return PhaseFailure("parse_error", reason)
        repairs, was_cut_off = repairs + 1, was_cut_off or is_cut_off
        if is_cut_off:
            prompt = render_prompt(repair_prompts.cut_off, tokens=form.max_tokens)
        else:
            problems = " ".join(reason.split()) if prompts.quoted else reason  # it may name keys that a model made up
            prompt = render_prompt(repair_prompts.repair, problems=problems)
        content = truncate(turn.content, MAX_ECHO_CHARS, "\n[{left_out} further characters]")
        conversation = conversation.add(
            *turn_messages(prompts, content, reject_calls(number_calls(turn, step), reason)), Message("user", prompt)
        )
        step, purpose = f"{name}/repair-{repairs}", _REPAIR


_WHY_NOT_SHORTENED = "Nothing was shortened: what this step shows is made for it, and needed whole."
_PHASE: Purpose = "phase"
_REPAIR: Purpose = "repair"


def phase_failure(answer: CompletionAnswer) -> PhaseFailure:
    """Say why a phase can't go on after this answer."""
    match answer:
        case Refused() as refused:
            return PhaseFailure("budget", f"The limit on {limit_name(refused)} is reached.", refused)
        case Failure(code="context_full", message=message):
            return PhaseFailure("context_full", f"{message} {_WHY_NOT_SHORTENED}")
        case Failure(code=code, message=message):
            return PhaseFailure("llm_error", f"{code}: {message}")
        case Mechanical() | Extended():
            return PhaseFailure("llm_error", "Nobody was there to think.")
        case Completion(finish="content_filter"):
            return PhaseFailure("content_filter", "A filter at the model's side held the answer back.")
        case Completion():
            return PhaseFailure("refused", "The model declined.")


def text_list_schema(max_items: int, max_chars: int) -> JsonObject:
    return {"type": "array", "items": text_schema(max_chars), "maxItems": max_items}


def _decode_object(turn: Completion) -> JsonObject:
    if turn.finish == "length":
        raise Undecodable("it was cut off at its length limit")
    if turn.unreadable is not None:
        raise Undecodable(turn.unreadable)
    if turn.tool_calls:
        raise Undecodable("no tool can be called now; nothing was executed")
    return decode_object(turn.content)
