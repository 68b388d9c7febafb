"""What a phase asks a model for, and how an answer comes about: one call, up to two repairs, or no answer at all.

An answer is what a model wrote, never what a program made of it: no default action, no risk that nobody named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, Literal, Protocol, TypeVar

from kairos_mcp.core.messages import Completion, Conversation, JsonObject, Message, ToolSet
from kairos_mcp.core.steps import (
    CompletionAnswer,
    Failure,
    Flow,
    Mechanical,
    Purpose,
    Refused,
    RequestCompletion,
    Unknown,
)
from kairos_mcp.core.strict_json import Undecodable, decode_object
from kairos_mcp.flows.ooda.prompts import PhasePrompts
from kairos_mcp.flows.planner_input import Prompts, render_prompt
from kairos_mcp.flows.structured_output import MAX_REPAIRS
from kairos_mcp.flows.tool_calls import AnsweredCall, first_stop, limit_name, number_calls, reject_calls, turn_messages

ECHO_CHARS = 20_000  # how much of an answer that can't be used is shown to the model again

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Unmade = Literal["budget", "parse_error", "llm_error", "refused", "content_filter", "unknown_outcome"]


@dataclass(frozen=True, slots=True)
class PhaseFailure:
    """A phase that gave nothing: `status` stands where its output's would; `limit` is the unit that was refused."""

    status: Unmade
    reason: str
    limit: str | None = None

    def as_json(self) -> JsonObject:
        return {"status": self.status, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class AnswerForm(Generic[T_co]):
    """`read` makes the value of a decoded object, or raises Undecodable with all that is wrong."""

    schema: JsonObject
    tokens: int
    read: Callable[[JsonObject], T_co]
    reminder: str | None = None


@dataclass(frozen=True, slots=True)
class DecodedAnswer(Generic[T_co]):
    """A value that a model gave, and the step at which it did: that of the last repair, if there were any."""

    value: T_co
    step: str


class ReadingTools(Protocol):
    """What a model may call while it makes up its mind."""

    @property
    def offered(self) -> ToolSet: ...

    def called(self, turn: Completion) -> Flow[tuple[AnsweredCall, ...]]: ...


@dataclass(slots=True)
class _Tries:
    """How often a model may still be asked again; an answer that was cut off is repaired once."""

    name: str
    done: int = 0
    cut_off: bool = False

    def next(self, *, cut: bool) -> str | None:
        """The name of the next repair, None where there is none."""
        if self.done == MAX_REPAIRS or (cut and self.cut_off):
            return None
        self.done, self.cut_off = self.done + 1, self.cut_off or cut
        return f"{self.name}/repair-{self.done}"


def request_answer(
    name: str,
    conversation: Conversation,
    form: AnswerForm[T],
    says: PhasePrompts,
    prompts: Prompts,
    reading: ReadingTools | None = None,
) -> Flow[DecodedAnswer[T] | PhaseFailure]:
    """The value that the model gives at last. Steps: `NAME`, `NAME/repair-N`, and after each turn that only called
    tools `NAME/turn-N`; the calls are named by `reading`."""
    tries, turns = _Tries(name), count(2)
    step, purpose = name, _PHASE
    while True:
        tools = reading.offered if reading is not None else ToolSet()
        turn = yield from RequestCompletion(
            step, purpose, conversation, tools, form.schema, max_tokens=form.tokens, reminder=form.reminder
        )
        if not isinstance(turn, Completion) or turn.finish in ("content_filter", "refusal"):
            return phase_failure(turn)
        cut = turn.finish == "length"
        if reading is not None and len(tools) and turn.tool_calls and not cut and turn.unreadable is None:
            answered = yield from reading.called(turn)
            if (stop := first_stop(answered)) is not None:
                return phase_failure(stop)
            conversation = conversation.add(*turn_messages(prompts, turn.content, answered))
            step, purpose = f"{name}/turn-{next(turns)}", _PHASE
            continue
        try:
            return DecodedAnswer(form.read(_object_of(turn)), step)
        except Undecodable as error:
            reason = error.reason
        again = tries.next(cut=cut)
        if again is None:
            return PhaseFailure("parse_error", reason)
        problems = " ".join(reason.split()) if prompts.quoted else reason  # it may name keys that a model made up
        prompt = (
            render_prompt(says.cut_off, tokens=form.tokens) if cut else render_prompt(says.repair, problems=problems)
        )
        conversation = conversation.add(*_echo_turn(prompts, turn, step, reason), Message("user", prompt))
        step, purpose = again, _REPAIR


_PHASE: Purpose = "phase"
_REPAIR: Purpose = "repair"


def phase_failure(answer: CompletionAnswer | Unknown) -> PhaseFailure:
    """Why a phase can't go on after this answer."""
    match answer:
        case Refused(limit=limit) as refused:
            return PhaseFailure("budget", f"The limit on {limit_name(refused)} is reached.", limit)
        case Failure(code=code, message=message):
            return PhaseFailure("llm_error", f"{code}: {message}")
        case Mechanical():
            return PhaseFailure("llm_error", "Nobody was there to think.")
        case Completion(finish="content_filter"):
            return PhaseFailure("content_filter", "A filter at the model's side held the answer back.")
        case Completion():
            return PhaseFailure("refused", "The model declined.")
        case Unknown():
            return PhaseFailure("unknown_outcome", "A call was begun; whether it took effect is not known.")


def fitted(value: JsonObject, problems: Sequence[str]) -> JsonObject:
    """The value, if there are no problems with it; else Undecodable with all of them."""
    if problems:
        raise Undecodable("; ".join(problems))
    return value


def object_schema(required: Sequence[str] = (), **properties: JsonObject) -> JsonObject:
    """The schema of an object with these keys and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def text_schema(max_chars: int, min_chars: int = 1) -> JsonObject:
    return {"type": "string", "minLength": min_chars, "maxLength": max_chars}


def text_list_schema(max_items: int, max_chars: int) -> JsonObject:
    return {"type": "array", "items": text_schema(max_chars), "maxItems": max_items}


def _object_of(turn: Completion) -> JsonObject:
    if turn.finish == "length":
        raise Undecodable("it was cut off at its length limit")
    if turn.unreadable is not None:
        raise Undecodable(turn.unreadable)
    if turn.tool_calls:
        raise Undecodable("no tool can be called now; nothing was executed")
    return decode_object(turn.content)


def _echo_turn(prompts: Prompts, turn: Completion, step: str, why: str) -> tuple[Message, ...]:
    """The turn as the model is shown it again; its calls, none of which was executed, have a result each."""
    content = turn.content
    if len(content) > ECHO_CHARS:
        content = f"{content[:ECHO_CHARS]}\n[{len(content) - ECHO_CHARS} further characters]"
    return turn_messages(prompts, content, reject_calls(number_calls(turn, step), why))
