"""Encodes a request for a model and decodes its reply, in two dialects; pure functions.

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
    """Encode the request unchanged; reminder and status line are appended to the newest turn."""
    system, messages = _split_system(step)
    return WordedRequest(system, _with_tail(messages, step, sent), step.tools)


def native_without_tail(step: RequestCompletion) -> WordedRequest:
    """Encode the native request without its tail, for a route that puts `tail` after the part that may be cached."""
    system, messages = _split_system(step)
    return WordedRequest(system, tuple(messages), step.tools)


def tail(step: RequestCompletion, sent: Sent) -> str:
    """Return the end of the newest turn: the flow's reminder, then the status line; empty without both."""
    return "\n\n".join(part for part in (step.reminder, sent.tail) if part)


def describe_schema(step: RequestCompletion, prompts: TextPrompts) -> str:
    """Describe the schema of the final answer in words, for a native route that can't be given it otherwise."""
    schema = json.dumps(step.output_schema, ensure_ascii=False)
    return "" if step.output_schema is None else Template(prompts.answer).substitute(schema=schema)


def text(step: RequestCompletion, sent: Sent, prompts: TextPrompts) -> WordedRequest:
    """Encode the request for a model without tool support: calls and results become text."""
    system, messages = _split_system(step)
    as_text = _with_tail(_messages_as_text(messages), step, sent)
    return WordedRequest(
        "\n\n".join(part for part in (system, _system_instructions(step, prompts)) if part), as_text, ToolSet()
    )


def reply_schema(step: RequestCompletion) -> JsonObject:
    """Return the JSON Schema of a reply in the text dialect, for a route that can enforce a schema."""
    final = _object_schema(final=step.output_schema if step.output_schema is not None else {"type": "string"})
    calls = [_object_schema(name={"const": tool.name}, arguments=tool.input_schema) for tool in step.tools]
    if not calls:
        return final
    calls_schema = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    return {"anyOf": [_object_schema(tool_calls=calls_schema), final]}


def _object_schema(**parts: JsonObject) -> JsonObject:
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


def decode_text_reply(reply: Completion, step: RequestCompletion, path: str) -> Completion:
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
        return _decode_reply_object(reply, decode_object(reply.content), step, path)
    except Undecodable as broken:
        if len(step.tools) == 0:
            return reply
        return replace(reply, unreadable=broken.reason)


def _decode_reply_object(reply: Completion, reply_object: JsonObject, step: RequestCompletion, path: str) -> Completion:
    """The reply object itself says whether the turn ends; the finish that the host reports is ignored."""
    if not reply_object.keys() & _KEYS and step.output_schema is not None:
        return reply  # a bare object is the final answer
    unknown_keys = sorted(reply_object.keys() - _KEYS)
    if unknown_keys:
        raise Undecodable(f'the object has {unknown_keys[0][:40]!r}; its keys are "tool_calls" with "say", or "final"')
    match reply_object:
        case {"tool_calls": list(calls), **rest} if calls and rest.get("final") is None:
            content = _optional_text(rest.get("say"), "say")
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


def _optional_text(value: Any, key: str) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            raise Undecodable(f'"{key}" is no text')


def _split_system(step: RequestCompletion) -> tuple[str, list[Message]]:
    messages = list(step.conversation)
    if messages and messages[0].role == "system":
        return messages[0].content, messages[1:]
    return "", messages


def _with_tail(messages: list[Message], step: RequestCompletion, sent: Sent) -> tuple[Message, ...]:
    reply_object = tail(step, sent)
    if not reply_object or not messages:
        return tuple(messages)
    newest = messages[-1]
    return (*messages[:-1], replace(newest, content=f"{newest.content}\n\n{reply_object}"))


def _messages_as_text(messages: list[Message]) -> list[Message]:
    """Calls become the object that asked for them, the results after a turn one user message."""
    as_text: list[Message] = []
    for message in messages:
        match message:
            case Message("assistant", content, (_, *_) as calls):
                as_text.append(Message("assistant", text_turn(content, calls)))
            case Message("tool", content) if as_text and as_text[-1].role == "user":
                as_text[-1] = Message("user", f"{as_text[-1].content}\n\n{content}")
            case Message("tool", content):
                as_text.append(Message("user", content))
            case _:
                as_text.append(message)
    return as_text


def _system_instructions(step: RequestCompletion, prompts: TextPrompts) -> str:
    schema = "" if step.output_schema is None else json.dumps(step.output_schema, ensure_ascii=False)
    asked = Template(prompts.schema).substitute(schema=schema) if schema else ""
    if len(step.tools) == 0:
        return "\n\n".join(part for part in (prompts.final, asked) if part)
    lines = [
        json.dumps({"name": t.name, "description": t.description, "arguments": t.input_schema}, ensure_ascii=False)
        for t in step.tools
    ]
    return "\n\n".join(part for part in (Template(prompts.tools).substitute(tools="\n".join(lines)), asked) if part)
