"""Encode a request for a model, and decode its reply, in two dialects; pure functions.

`native` is for routes that take tool specs and return tool calls. `text` is for those that only exchange text: the
prompt lists the tools, and a reply is one JSON object. A provider, and both kinds of sampling (a pushed request, and
one inside an InputRequiredResult), use the same functions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from string import Template
from typing import Any

from kairos_mcp.core.input_checks import Undecodable, decode_object
from kairos_mcp.core.json_schema import object_schema
from kairos_mcp.core.messages import Completion, JsonObject, Message, ToolCall, ToolSet, ToolSpec, make_tool_call
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import RequestCompletion, Sent, call_path

MAX_BRIEF_CALLS = 2  # a small model that may write many calls repeats them until its tokens are used up
MAX_INSTRUCTIONS = 64  # texts of what can be called, each of one set of tools
_NO_TOOLS = ToolSet()
_AS_WRITTEN = json.JSONEncoder(ensure_ascii=False)  # made once: `json.dumps` makes an encoder a call
_REPLY_KEYS = frozenset({"tool_calls", "final", "say"})  # of a reply in the text dialect


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """The prompts of the text dialect, from `config/prompts/text_<field>.md`.

    `tools` with `$tools`, and `$example` of a call; `final` where no tools are offered; `schema` with `$schema`.
    `answer`, also with `$schema`, is for a native route that can't be given a schema beside its tools. `is_brief`: for
    a small model, each tool is one short line, a reply has at most MAX_BRIEF_CALLS calls, and no status line is shown.
    """

    tools: str
    final: str
    schema: str
    answer: str = "$schema"
    is_brief: bool = False


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A request as a route takes it: no message has the role system, and in the text dialect none has tool calls."""

    system: str
    messages: tuple[Message, ...]
    tools: ToolSet


def encode_native(step: RequestCompletion, sent: Sent) -> EncodedRequest:
    """Encode the request unchanged; reminder and status line are appended to the newest turn."""
    system, messages = _split_system(step)
    return EncodedRequest(system, _with_tail(messages, step, sent), step.tools)


def encode_newest(step: RequestCompletion, sent: Sent, known: int) -> tuple[Message, ...]:
    """Encode what comes after the first `known` messages of the request, unchanged, with its tail at the end."""
    return _with_tail(step.conversation[known:], step, sent)


def encode_native_without_tail(step: RequestCompletion) -> EncodedRequest:
    """Encode the native request without its tail, for a route that appends the tail after a cache mark."""
    system, messages = _split_system(step)
    return EncodedRequest(system, tuple(messages), step.tools)


def format_tail(step: RequestCompletion, sent: Sent) -> str:
    """Format the end of the newest turn: the flow's reminder, then the status line; empty without both."""
    return "\n\n".join(part for part in (step.reminder, sent.tail) if part)


def describe_schema(step: RequestCompletion, prompts: TextPrompts) -> str:
    """Describe the schema of the final answer in words, for a native route that can't be given it otherwise."""
    schema = _AS_WRITTEN.encode(step.output_schema)
    return "" if step.output_schema is None else Template(prompts.answer).substitute(schema=schema)


def encode_text(step: RequestCompletion, sent: Sent, prompts: TextPrompts) -> EncodedRequest:
    """Encode the request for a model without tool support: calls and results become text."""
    system, messages = _split_system(step)
    # A small model takes "round 2 of 6" for a reason to go on looking.
    as_text = _with_tail(_messages_as_text(messages), step, replace(sent, tail=None) if prompts.is_brief else sent)
    schema = "" if step.output_schema is None else _AS_WRITTEN.encode(step.output_schema)
    instructions = _system_instructions(step.tools, schema, prompts)
    return EncodedRequest("\n\n".join(part for part in (system, instructions) if part), as_text, _NO_TOOLS)


def reply_schema(step: RequestCompletion, *, is_brief: bool = False) -> JsonObject:
    """Return the JSON Schema of a reply in the text dialect, for a route that can enforce a schema."""
    final = object_schema(
        ("final",), final=step.output_schema if step.output_schema is not None else {"type": "string"}
    )
    calls = [
        object_schema(("name", "arguments"), name={"const": tool.name}, arguments=tool.input_schema)
        for tool in step.tools
    ]
    if not calls:
        return final
    calls_schema: JsonObject = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    calls_schema |= {"maxItems": MAX_BRIEF_CALLS} if is_brief else {}
    return {"anyOf": [object_schema(("tool_calls",), tool_calls=calls_schema), final]}


def encode_text_turn(content: str, calls: Sequence[ToolCall]) -> str:
    """Encode a model's turn in the text dialect: `{"tool_calls", "say"?}`, or `{"final"}` without calls."""
    if not calls:
        return _AS_WRITTEN.encode({"final": content})
    call_objects = [{"name": call.name, "arguments": call.arguments} for call in calls]
    turn: JsonObject = {"tool_calls": call_objects} | ({"say": content} if content else {})
    return _AS_WRITTEN.encode(turn)


def decode_text_reply(reply: Completion, step: RequestCompletion, path: str) -> Completion:
    """Decode a reply in the text dialect. A reply that can't be decoded is marked unreadable, with the reason.

    Where no tools are offered, a reply that is no JSON object is taken as the text: small models answer so.
    """
    if reply.finish in ("length", "content_filter", "refusal"):
        return reply
    if reply.tool_calls:
        return replace(reply, unreadable="it calls tools otherwise than by the one JSON object that was asked for")
    if not reply.content.strip():
        return reply
    try:
        return _decode_reply_object(reply, decode_object(reply.content), step, path)
    except Undecodable as error:
        if len(step.tools) == 0:
            return reply
        return replace(reply, unreadable=error.reason)


def _decode_reply_object(reply: Completion, reply_object: JsonObject, step: RequestCompletion, path: str) -> Completion:
    """Decode the reply's object. The object says whether the turn ends; the reported finish is ignored."""
    if not reply_object.keys() & _REPLY_KEYS and step.output_schema is not None:
        return reply  # a bare object is the final answer
    unknown_keys = sorted(reply_object.keys() - _REPLY_KEYS)
    if unknown_keys:
        raise Undecodable(f'the object has {unknown_keys[0][:40]!r}; its keys are "tool_calls" with "say", or "final"')
    match reply_object:
        case {"tool_calls": list(calls), **rest} if calls and rest.get("final") is None:
            content = _optional_text(rest.get("say"), "say")
            return reply.with_turn(content, tuple(_parse_calls(calls, path)), "tool_calls")
        case {"final": str() | dict() as final, **rest} if not (rest.get("tool_calls") or rest.get("say")):
            text = final if isinstance(final, str) else _AS_WRITTEN.encode(final)
            return reply.with_turn(text, reply.tool_calls, "stop")
        case _:
            raise Undecodable(
                'the object needs either "tool_calls", a list of calls, with "say" beside it, or "final" alone'
            )


def _parse_calls(calls: list[Any], path: str) -> list[ToolCall]:
    """Parse the calls of a turn. One whose arguments are no object is marked unreadable, and spoils no other."""
    parsed = []
    for number, call in enumerate(calls, 1):
        ordinal = call_path(path, number)
        match call:
            case {"name": str(name), **rest} if name and not rest.keys() - {"id", "arguments"}:
                arguments = rest.get("arguments")
                parsed.append(make_tool_call(ordinal, name, {} if arguments is None else arguments))
            case _:
                raise Undecodable(f'call {number} is no {{"name": text, "arguments": object}}')
    return parsed


def _optional_text(value: Any, key: str) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            raise Undecodable(f'"{key}" is no text')


def _split_system(step: RequestCompletion) -> tuple[str, list[Message]]:
    messages = step.conversation[:]
    if messages and messages[0].role == "system":
        return messages[0].content, messages[1:]
    return "", messages


def _with_tail(messages: list[Message], step: RequestCompletion, sent: Sent) -> tuple[Message, ...]:
    tail = format_tail(step, sent)
    if not tail or not messages:
        return tuple(messages)
    newest = messages[-1]
    return (*messages[:-1], replace(newest, content=f"{newest.content}\n\n{tail}"))


def _messages_as_text(messages: list[Message]) -> list[Message]:
    """Turn calls into the object of the text dialect, and the results after a turn into one user message."""
    as_text: list[Message] = []
    for message in messages:
        if message.role == "assistant" and message.tool_calls:
            as_text.append(Message("assistant", encode_text_turn(message.content, message.tool_calls)))
        elif message.role != "tool":
            as_text.append(message)
        elif as_text and as_text[-1].role == "user":
            as_text[-1] = Message("user", f"{as_text[-1].content}\n\n{message.content}")
        else:
            as_text.append(Message("user", message.content))
    return as_text


@lru_cache(MAX_INSTRUCTIONS)
def _system_instructions(tools: ToolSet, schema: str, prompts: TextPrompts) -> str:
    """Say what can be called, and how. `schema`: of the answer, as JSON; empty for none.

    Each round of a run asks with the same set of tools, which never changes, so the text is kept for it."""
    schema_text = Template(prompts.schema).substitute(schema=schema) if schema else ""
    if len(tools) == 0:
        return "\n\n".join(part for part in (prompts.final, schema_text) if part)
    describe = _describe_briefly if prompts.is_brief else _describe_fully
    lines = [describe(tool) for tool in tools]
    first = next(iter(tools))
    arguments = dict.fromkeys(first.input_schema.get("required", ()), "...")
    example = encode_text_turn("", (ToolCall("", first.name, arguments),))
    tools_text = Template(prompts.tools).substitute(tools="\n".join(lines), example=example)
    return "\n\n".join(part for part in (tools_text, schema_text) if part)


def _describe_fully(tool: ToolSpec) -> str:
    described = {"name": tool.name, "description": tool.description, "arguments": tool.input_schema}
    return _AS_WRITTEN.encode(described)


def _describe_briefly(tool: ToolSpec) -> str:
    """`- read_file {"path": string, "start_line"?: integer}: Read a text file.`: the arguments with their types, and
    the first line of the description. The schema of an argument that has no simple type is given in full."""
    properties, required = tool.input_schema.get("properties", {}), tool.input_schema.get("required", ())
    arguments = [
        f"{_AS_WRITTEN.encode(name)}{'' if name in required else '?'}: {_format_type(schema)}"
        for name, schema in properties.items()
    ]
    return f"- {tool.name} {{{', '.join(arguments)}}}: {tool.description.partition(chr(10))[0]}"


def _format_type(schema: Any) -> str:
    match schema:
        case {"type": "string" | "integer" | "number" | "boolean" as kind, **rest} if not rest.keys() & {
            "enum",
            "const",
        }:
            return str(kind)
        case _:
            return _AS_WRITTEN.encode(schema)
