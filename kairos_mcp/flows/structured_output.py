"""Structured output: decode and validate the final text; if it does not fit, ask the model again, at most twice."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Literal

from kairos_mcp.core.input_checks import Undecodable, decode_object
from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import Completion, Conversation, JsonObject, Message
from kairos_mcp.core.steps import Failure, Flow, Mechanical, Refused, RequestCompletion
from kairos_mcp.flows.planner_input import PlannerInput, render_prompt
from kairos_mcp.flows.tool_calls import turn_messages

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
    """No object: a repair was answered with what is no completion. `conversation` ends with the repair's prompt."""

    answer: Refused | Failure | Mechanical
    conversation: Conversation


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
    turn: Completion, conversation: Conversation, schema: JsonObject, planner_input: PlannerInput, name: str = "output"
) -> Flow[DecodedOutput | UndecodedOutput | InterruptedRepair | DeclinedRepair]:
    """Decode `turn`, the answer to `conversation`; steps `NAME/repair-N` show the model what is wrong."""
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
        answer = yield from RequestCompletion(
            f"{name}/repair-{number}", "repair", conversation, output_schema=schema, max_tokens=planner_input.max_tokens
        )
        match answer:
            case Refused() | Failure() | Mechanical():
                return InterruptedRepair(answer, conversation)
            case Completion(finish="content_filter" | "refusal" as finish):
                return DeclinedRepair(finish)
            case turn:
                text = turn.content if turn.content.strip() else text
    raise AssertionError("the repairs are counted")
