"""Accept a completion in the forms in which models write one, and return it in the one form that is stored.

What is taken beside `{content?, tool_calls?, usage?, finish?}`: its content alone; a content that is an object where
the request has a schema, or a list of Anthropic's blocks; calls in OpenAI's and in Anthropic's form. A form is known by
all its keys. What has none of them is returned unchanged, and the parser refuses it.
"""

from __future__ import annotations

import json
from typing import Any

from kairos_mcp.core.input_checks import Undecodable, find_unfit_value, parse_strict_json
from kairos_mcp.core.messages import JsonObject

_COMPLETION_KEYS = frozenset({"content", "tool_calls", "usage", "finish"})


def to_stored_form(answer: object, *, is_json_asked: bool) -> object:
    """Return the answer as `{content?, tool_calls?, usage?, finish?}`, if it has one of the forms that models use.

    `is_json_asked`: whether the request has a schema, so that an object is a text that was not encoded.
    """
    if find_unfit_value(answer) is not None:
        return answer
    match answer:
        case dict() if answer.keys() & _COMPLETION_KEYS:
            completion = answer
        case dict() if not is_json_asked:
            return answer if (call := _plain_call(answer)) is answer else {"tool_calls": [call]}
        case str() | list() | dict():
            completion = {"content": answer}
        case _:
            return answer
    return _with_plain_calls(_with_plain_content(completion, is_json_asked=is_json_asked))


def _with_plain_content(answer: JsonObject, *, is_json_asked: bool) -> JsonObject:
    match answer.get("content"):
        case dict() as content if is_json_asked:
            return {**answer, "content": json.dumps(content, ensure_ascii=False)}
        case list(blocks) if blocks and all(map(_is_block, blocks)):
            calls = [block for block in blocks if block["type"] == "tool_use"]
            if calls and answer.get("tool_calls"):
                return answer  # two lists of calls: neither is known to be the whole one
            text = "".join(block["text"] for block in blocks if block["type"] == "text")
            return {**answer, "content": text, **({"tool_calls": calls} if calls else {})}
        case _:
            return answer


def _is_block(block: Any) -> bool:
    """Whether this is one of Anthropic's blocks: `{type: text, text}` or `{type: tool_use, id?, name, input}`."""
    match block:
        case {"type": "text", "text": str(), **rest}:
            return not rest
        case _:
            return _is_anthropic_call(block)


def _is_anthropic_call(call: Any) -> bool:
    match call:
        case {"type": "tool_use", "name": str(), "input": dict(), **rest}:
            return not rest.keys() - {"id"}
        case _:
            return False


def _with_plain_calls(answer: JsonObject) -> JsonObject:
    match answer.get("tool_calls"):
        case list(calls):
            return {**answer, "tool_calls": [_plain_call(call) for call in calls]}
        case _:
            return answer


def _plain_call(call: Any) -> Any:
    """Return OpenAI's `{type: function, id?, function: {name, arguments}}` and Anthropic's `{type: tool_use, id?, name,
    input}` as `{id?, name, arguments}`; anything else as it is."""
    match call:
        case {
            "type": "function",
            "function": {"name": str(name), "arguments": str() | dict() as given, **more},
            **rest,
        }:
            is_known = not more and not rest.keys() - {"id"}
            return {**rest, "name": name, "arguments": _decode_arguments(given)} if is_known else call
        case {"type": "tool_use", "name": name, "input": arguments, **rest} if _is_anthropic_call(call):
            return {**rest, "name": name, "arguments": arguments}
        case _:
            return call


def _decode_arguments(given: str | JsonObject) -> object:
    """Decode arguments that are a JSON text, as OpenAI's are. Any other text stays, and makes the call unreadable."""
    if isinstance(given, dict):
        return given
    try:
        value = parse_strict_json(given)
    except Undecodable:
        return given
    return value if isinstance(value, dict) else given
