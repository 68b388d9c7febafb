"""Ask a server without what it has refused: fields and forms of a request that are usual, and not taken by all.

Each variation says the same in another way, or leaves out what the answer is checked for here anyway. It is tried where
an error names it and it would change the request, once for each server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.plain_schema import plain_schema

Change = Callable[[JsonObject], JsonObject]
LIMIT_FIELDS = ("max_completion_tokens", "max_tokens")  # two names of the same; some servers know one of them alone
_SYSTEM_ROLES = ("system", "developer")
_ALL = ("chat", "message", "response")


class Variation(NamedTuple):
    """`name`: what a server has refused. `words`: how an error names it. `change` leaves a request without it as it
    is."""

    name: str
    words: re.Pattern[str]
    change: Change
    forms: tuple[str, ...] = ("chat",)


def vary(body: JsonObject, form: str, refused: Iterable[str]) -> JsonObject:
    """Return the request without what was refused."""
    wanted = {*refused}
    for variation in VARIATIONS:
        if variation.name in wanted and form in variation.forms:
            body = variation.change(body)
    return body


def find_possible(body: JsonObject, form: str, refused: Iterable[str]) -> tuple[str, ...]:
    """Return the names of what this request has, could do without, and was not refused before."""
    before = {*refused}
    if before & {*LIMIT_FIELDS}:  # a server that refuses both names is not asked by the first again
        before |= {*LIMIT_FIELDS}
    return tuple(
        each.name for each in VARIATIONS if each.name not in before and form in each.forms and each.change(body) != body
    )


def _whole_word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z_]){name}(?![a-z_])")


def _without(*names: str) -> Change:
    return lambda body: {key: value for key, value in body.items() if key not in names}


def _rename_key(name: str, other: str) -> Change:
    def rename(body: JsonObject) -> JsonObject:
        return {other if key == name else key: value for key, value in body.items()}

    return rename


def _of_messages(change: Callable[[list[JsonObject]], list[JsonObject]]) -> Change:
    return lambda body: {**body, "messages": change(body["messages"])} if "messages" in body else body


def _each_turn(change: Change) -> Change:
    return _of_messages(lambda turns: [change(turn) if turn.get("role") == "assistant" else turn for turn in turns])


def _with_reasoning(turn: JsonObject) -> JsonObject:
    return {"reasoning_content": "", **turn}


def _with_content(turn: JsonObject) -> JsonObject:
    return {**turn, "content": ""} if turn.get("content") is None else turn


def _without_system(messages: list[JsonObject]) -> list[JsonObject]:
    """Return the messages with what the system says before the first words of the user."""
    said = [each["content"] for each in messages if each.get("role") in _SYSTEM_ROLES]
    others = [each for each in messages if each.get("role") not in _SYSTEM_ROLES]
    first = next((number for number, each in enumerate(others) if each.get("role") == "user"), None)
    if first is None:
        return messages
    whole = {**others[first], "content": _join([*said, others[first]["content"]])}
    return [*others[:first], whole, *others[first + 1 :]] if said else messages


def _alternating(messages: list[JsonObject]) -> list[JsonObject]:
    """Return the messages with turns of one side joined; what a user says behind a result stands in the result."""
    joined: list[JsonObject] = []
    for message in messages:
        last = joined[-1] if joined else {}
        is_behind = message.get("role") == "user" and last.get("role") in ("user", "tool")
        if is_behind or all(each.get("role") == "assistant" and not each.get("tool_calls") for each in (last, message)):
            joined[-1] = {**last, "content": _join([last["content"], message["content"]])}
        else:
            joined.append(message)
    return joined


def _join(contents: list[Any]) -> str:
    """Join contents, each a text, nothing, or a list of parts."""
    parts = [part for content in contents for part in (content if isinstance(content, list) else [content])]
    texts = [part.get("text", "") if isinstance(part, dict) else part for part in parts]
    return "\n\n".join(text for text in texts if text)


def _with_plain_schemas(body: JsonObject) -> JsonObject:
    return {**body, "tools": [_with_plain_schema(tool) for tool in body["tools"]]} if body.get("tools") else body


def _with_plain_schema(tool: JsonObject) -> JsonObject:
    match tool:
        case {"function": {"parameters": dict(schema)} as function}:
            return {**tool, "function": {**_without("strict")(function), "parameters": plain_schema(schema)}}
        case {"input_schema": dict(schema)}:
            return {**tool, "input_schema": plain_schema(schema)}
        case {"parameters": dict(schema)}:
            return {**tool, "parameters": plain_schema(schema)}
        case _:
            return tool


VARIATIONS: tuple[Variation, ...] = (
    Variation(
        "max_completion_tokens",
        _whole_word("max_completion_tokens"),
        _rename_key("max_completion_tokens", "max_tokens"),
    ),
    Variation("max_tokens", _whole_word("max_tokens"), _rename_key("max_tokens", "max_completion_tokens")),
    Variation("stream_options", _whole_word("stream_options"), _without("stream_options")),
    Variation("stream", _whole_word("stream"), _without("stream", "stream_options"), _ALL),
    Variation("temperature", _whole_word("temperature"), _without("temperature"), _ALL),
    Variation("tool_choice", _whole_word("tool_choice"), _without("tool_choice")),
    Variation("response_format", re.compile("response_?format|json_schema", re.I), _without("response_format")),
    Variation(
        "turns without reasoning_content",  # DeepSeek takes an empty one
        re.compile(r"reasoning_content.{0,60}(?:passed back|missing|required)|[Mm]issing.{0,20}reasoning_content"),
        _each_turn(_with_reasoning),
    ),
    Variation(
        "reasoning in turns",
        re.compile(r"(?<![a-z_])reasoning(?:_content|_details)?(?![a-z_])"),
        _each_turn(_without("reasoning_content", "reasoning", "reasoning_details")),
    ),
    Variation(
        "turns without content",
        re.compile(r"content(?![a-z_]).{0,80}(?:null|None|string|required|missing)|(?:null|None|missing).{0,60}content"),
        _each_turn(_with_content),
    ),
    Variation(
        "system messages",
        re.compile(r"system.{0,20}(?:role|message|prompt|instruction).{0,20}not (?:supported|allowed)|"
                   r"(?:not support|unsupported|unknown).{0,20}(?:role.{0,10})?system", re.I),
        _of_messages(_without_system),
    ),
    Variation(
        "turns of one side in a row",
        re.compile(r"roles? must alternate|[Uu]nexpected role|must alternate between"),
        _of_messages(_alternating),
    ),
    Variation(
        "detailed schemas of tools",
        re.compile(r"function_declarations|(?:parameters|input_?schema|tools)\W{1,3}\w|additionalProperties|\$schema|"
                   r"[Ii]nvalid (?:JSON )?schema|JSON [Ss]chema|schema (?:is|for|must|not)"),
        _with_plain_schemas,
        _ALL,
    ),
)  # fmt: skip
"""In the order in which they are tried: what an error names exactly stands before what it may mean."""
