"""How a request is worded for a model and its reply taken apart: pure pairs of `encode` and `decode`.

`native` is for routes that take tool specs and give tool calls; `text` for those that only talk: its prompt lists
the tools, and a reply is one JSON object. Push, InputRequired and provider use the same pairs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import Template
from typing import Any

from kairos_mcp.core.messages import Completion, JsonObject, Message, ToolCall, ToolSet
from kairos_mcp.core.steps import RequestCompletion, Sent
from kairos_mcp.core.strict_json import Undecodable, decode_object

_KEYS = frozenset({"tool_calls", "final", "say"})  # of a reply in the text dialect


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """The texts of the text dialect: `tools` with `$tools`, `final` where none are offered, `schema` with `$schema`;
    and `answer`, also with `$schema`, for a native route that can't be given a schema beside its tools.

    One file each: `config/prompts/text_<field>.md`.
    """

    tools: str
    final: str
    schema: str
    answer: str = "$schema"


@dataclass(frozen=True, slots=True)
class WordedRequest:
    """A request as a route is given it: no message has the role system; in the text dialect none has calls."""

    system: str
    messages: tuple[Message, ...]
    tools: ToolSet


def native(step: RequestCompletion, sent: Sent) -> WordedRequest:
    """The request as it is; reminder and standing line stand at the tail of the newest turn."""
    system, messages = _apart(step)
    return WordedRequest(system, _with_tail(messages, step, sent), step.tools)


def untailed(step: RequestCompletion) -> WordedRequest:
    """The native request without its tail, for a route that puts `tail` behind a mark of what it may cache."""
    system, messages = _apart(step)
    return WordedRequest(system, tuple(messages), step.tools)


def tail(step: RequestCompletion, sent: Sent) -> str:
    """What the newest turn ends with: the flow's reminder, then the hands' standing line; empty without both."""
    return "\n\n".join(part for part in (step.reminder, sent.tail) if part)


def told_schema(step: RequestCompletion, prompts: TextPrompts) -> str:
    """The schema of the final answer in words, for a native route that can't be given it otherwise."""
    schema = json.dumps(step.output_schema, ensure_ascii=False)
    return "" if step.output_schema is None else Template(prompts.answer).substitute(schema=schema)


def text(step: RequestCompletion, sent: Sent, prompts: TextPrompts) -> WordedRequest:
    """The request for a model without tools: calls and results are told as text."""
    system, messages = _apart(step)
    told = _with_tail(_told(messages), step, sent)
    return WordedRequest("\n\n".join(part for part in (system, _explained(step, prompts)) if part), told, ToolSet())


def reply_schema(step: RequestCompletion) -> JsonObject:
    """What a reply in the text dialect may be, for a route that can hold a model to a schema."""
    final = _object_of(final=step.output_schema if step.output_schema is not None else {"type": "string"})
    calls = [_object_of(name={"const": tool.name}, arguments=tool.input_schema) for tool in step.tools]
    if not calls:
        return final
    wanted = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    return {"anyOf": [_object_of(tool_calls=wanted), final]}


def _object_of(**parts: JsonObject) -> JsonObject:
    return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}


def native_reply(reply: Completion) -> Completion:
    """A native reply needs no decoding."""
    return reply


def text_turn(content: str, calls: Sequence[ToolCall]) -> str:
    """A turn of a model as the text dialect has it: the object of calls with what was said beside them, or a final."""
    if not calls:
        return json.dumps({"final": content}, ensure_ascii=False)
    asked = [{"name": call.name, "arguments": call.arguments} for call in calls]
    shown: JsonObject = {"tool_calls": asked} | ({"say": content} if content else {})
    return json.dumps(shown, ensure_ascii=False)


def text_reply(reply: Completion, step: RequestCompletion, path: str) -> Completion:
    """The completion that a reply in the text dialect means; unreadable, with the reason, where it means none.

    Where no tools are offered a reply that is no object is the text itself: small models answer so.
    """
    if reply.finish in ("length", "content_filter", "refusal"):
        return reply
    if reply.tool_calls:
        return replace(reply, unreadable="it calls tools otherwise than by the one JSON object that was asked for")
    if not reply.content.strip():
        return reply
    try:
        return _meant(reply, decode_object(reply.content), step, path)
    except Undecodable as broken:
        if len(step.tools) == 0:
            return reply
        return replace(reply, unreadable=broken.reason)


def _meant(reply: Completion, said: JsonObject, step: RequestCompletion, path: str) -> Completion:
    """The object says by itself whether the turn ends; what the host states of its text is no news."""
    if not said.keys() & _KEYS and step.output_schema is not None:
        return reply  # a bare object is the final answer
    strange = sorted(said.keys() - _KEYS)
    if strange:
        raise Undecodable(f'the object has {strange[0][:40]!r}; its keys are "tool_calls" with "say", or "final"')
    match said:
        case {"tool_calls": list(calls), **rest} if calls and rest.get("final") is None:
            content = _string(rest.get("say"), "say")
            return replace(reply, content=content, tool_calls=tuple(_calls(calls, path)), finish="tool_calls")
        case {"final": str() | dict() as final, **rest} if not (rest.get("tool_calls") or rest.get("say")):
            text = final if isinstance(final, str) else json.dumps(final, ensure_ascii=False)
            return replace(reply, content=text, finish="stop")
        case _:
            raise Undecodable(
                'the object needs either "tool_calls", a list of calls, with "say" beside it, or "final" alone'
            )


def _calls(calls: list[Any], path: str) -> list[ToolCall]:
    """The calls of a turn. One whose arguments are no object is answered with an error and spoils no other."""
    found = []
    for number, call in enumerate(calls, 1):
        ordinal = f"{path}/call-{number}"
        match call:
            case {"name": str(name), **rest} if name and not rest.keys() - {"id", "arguments"}:
                found.append(_call(ordinal, name, rest.get("arguments")))
            case _:
                raise Undecodable(f'call {number} is no {{"name": text, "arguments": object}}')
    return found


def _call(ordinal: str, name: str, arguments: Any) -> ToolCall:
    match arguments:
        case None:
            return ToolCall(ordinal, name)
        case dict():
            return ToolCall(ordinal, name, arguments)
        case str():
            return ToolCall(ordinal, name, unreadable="the arguments are a text; a JSON object is needed")
        case _:
            return ToolCall(ordinal, name, unreadable="the arguments are no JSON object")


def _string(value: Any, key: str) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            raise Undecodable(f'"{key}" is no text')


def _apart(step: RequestCompletion) -> tuple[str, list[Message]]:
    messages = list(step.conversation)
    if messages and messages[0].role == "system":
        return messages[0].content, messages[1:]
    return "", messages


def _with_tail(messages: list[Message], step: RequestCompletion, sent: Sent) -> tuple[Message, ...]:
    said = tail(step, sent)
    if not said or not messages:
        return tuple(messages)
    newest = messages[-1]
    return (*messages[:-1], replace(newest, content=f"{newest.content}\n\n{said}"))


def _told(messages: list[Message]) -> list[Message]:
    """Calls become the object that asked for them, the results after a turn one user message."""
    told: list[Message] = []
    for message in messages:
        match message:
            case Message("assistant", content, (_, *_) as calls):
                told.append(Message("assistant", text_turn(content, calls)))
            case Message("tool", content) if told and told[-1].role == "user":
                told[-1] = Message("user", f"{told[-1].content}\n\n{content}")
            case Message("tool", content):
                told.append(Message("user", content))
            case _:
                told.append(message)
    return told


def _explained(step: RequestCompletion, prompts: TextPrompts) -> str:
    schema = "" if step.output_schema is None else json.dumps(step.output_schema, ensure_ascii=False)
    asked = Template(prompts.schema).substitute(schema=schema) if schema else ""
    if len(step.tools) == 0:
        return "\n\n".join(part for part in (prompts.final, asked) if part)
    lines = [
        json.dumps({"name": t.name, "description": t.description, "arguments": t.input_schema}, ensure_ascii=False)
        for t in step.tools
    ]
    return "\n\n".join(part for part in (Template(prompts.tools).substitute(tools="\n".join(lines)), asked) if part)
