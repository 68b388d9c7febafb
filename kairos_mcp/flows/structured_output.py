"""The final text as the object that was asked for: decoded, validated, and asked for again, at most twice."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Literal

from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import Completion, Conversation, JsonObject, Message
from kairos_mcp.core.steps import Failure, Flow, Mechanical, Refused, RequestCompletion
from kairos_mcp.core.strict_json import Undecodable, decode_object
from kairos_mcp.flows.planner_input import PlannerInput, render_prompt
from kairos_mcp.flows.tool_calls import turn_messages

MAX_REPAIRS = 2  # SYSTEMS.md O2


@dataclass(frozen=True, slots=True)
class DecodedOutput:
    """The object, with the text that it was read from."""

    value: JsonObject
    text: str


@dataclass(frozen=True, slots=True)
class UndecodedOutput:
    """No object after every try: why not, and the last text."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class InterruptedRepair:
    """No object, and no further try: a repair was answered with what is no completion, after `talk`."""

    answer: Refused | Failure | Mechanical
    conversation: Conversation


@dataclass(frozen=True, slots=True)
class DeclinedRepair:
    """No object, and no further try: the model's side declined a repair."""

    finish: Literal["content_filter", "refusal"]


def decode_output(text: str, schema: JsonObject) -> JsonObject:
    """The object in the text, fit to the schema. Raises Undecodable with all that is wrong."""
    value = decode_object(text)
    if problems := compile_schema(schema).problems(value):
        raise Undecodable("; ".join(problems))
    return value


def decode_turn(turn: Completion, schema: JsonObject) -> JsonObject:
    """The object of a turn. Raises Undecodable also where the turn was cut off, even if its text is whole."""
    if turn.finish == "length":
        raise Undecodable("the reply was cut off at its length limit; send a shorter one")
    if turn.unreadable is not None:
        raise Undecodable(turn.unreadable)
    return decode_output(turn.content, schema)


def decode_with_repairs(
    turn: Completion, talk: Conversation, schema: JsonObject, brief: PlannerInput, name: str = "output"
) -> Flow[DecodedOutput | UndecodedOutput | InterruptedRepair | DeclinedRepair]:
    """The object of `turn`, which followed `talk`; up to two steps `NAME/repair-N` show what is wrong."""
    text = turn.content
    for number in count(1):
        try:
            return DecodedOutput(decode_turn(turn, schema), turn.content)
        except Undecodable as error:
            reason = error.reason
        if number > MAX_REPAIRS:
            return UndecodedOutput(reason, text)
        prompt = Message("user", render_prompt(brief.prompts.repair, problems=reason))
        talk = talk.add(*turn_messages(brief.prompts, turn.content), prompt)
        answer = yield from RequestCompletion(
            f"{name}/repair-{number}", "repair", talk, output_schema=schema, max_tokens=brief.max_tokens
        )
        match answer:
            case Refused() | Failure() | Mechanical():
                return InterruptedRepair(answer, talk)
            case Completion(finish="content_filter" | "refusal" as finish):
                return DeclinedRepair(finish)
            case turn:
                text = turn.content if turn.content.strip() else text
    raise AssertionError("the tries are counted")
