"""Find the calls of a reply and make them well-formed: their place, their ids, their arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.exchange import Exchange, refuse_many_values

UNNAMED = "unnamed_tool"  # in place of a missing name: no tool has it, so the model gets an error
CALL_BLOCKS = ("tool_use", "tool_call", "function_call", "toolUse")  # what a part of a content that is a call is called
MAX_REPETITIONS = 20  # of arguments, which are compared with each other
_ARGUMENTS = ("arguments", "parameters", "input", "args")
_NAME = re.compile(
    r"[\"'`]?(?:(?:functions|default_api|tools)[.:])?([\w-]+)(?::\d{1,3})?(?:\(\)|[\"'`])?\s*(?:<\|.*)?", re.DOTALL
)
_OBJECT = re.compile(r"\ufeff?\s*(?:```(?:json)?)?(.*\})\s*(?:```|<\|\w{1,40}\|>|</\w{1,40}>)?", re.DOTALL)


def calls_of(holders: tuple[JsonObject, ...]) -> list[JsonObject]:
    """Return the calls that stand in the first of these that has any: in a list, alone, as JSON in a text, in the
    older form with one call at most, or as parts of the content."""
    for holder in holders:
        if listed := _read_call_list(holder.get("tool_calls")):
            return listed
    for holder in holders:
        if isinstance(legacy := holder.get("function_call"), dict):
            return [{"index": 0, "function": legacy}]
    for holder in holders:
        content = holder.get("content")
        if listed := [part for part in content if is_call_block(part)] if isinstance(content, list) else []:
            return listed
    return []


def once_each(calls: list[JsonObject], exchange: Exchange) -> list[JsonObject]:
    """Return the calls without those that repeat another one with its id: some servers send a call again as a whole."""
    kept = {
        (json.dumps({**call, "index": None}, sort_keys=True) if call.get("id") else number): call
        for number, call in enumerate(calls)
    }
    if len(kept) < len(calls):
        exchange.note_repair("a call that stood there twice was taken once")
    return list(kept.values())


def is_call_block(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in CALL_BLOCKS


def _read_call_list(given: object) -> list[JsonObject]:
    if isinstance(given, str) and given.lstrip().startswith(("[", "{")):
        refuse_many_values(given)
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return []
    if isinstance(given, dict):  # one call, or several under the numbers of a list
        given = [given] if given.keys() & {"function", "name", "id"} else list(given.values())
    return [call for call in given if isinstance(call, dict) and call] if isinstance(given, list) else []


def function_of(call: JsonObject) -> JsonObject:
    """Return what holds the name and the arguments of a call, which some servers write without a function around it."""
    function = call.get("function")
    if isinstance(function, dict):
        return function
    return {**call, "name": function} if isinstance(function, str) else call


def arguments_of(function: Mapping[str, Any]) -> Any:
    return next((function[name] for name in _ARGUMENTS if function.get(name)), None)


def repair_call_id(given: object, number: int, taken: set[str], exchange: Exchange) -> str:
    """Return the id of the reply's call of this number, from 1: the given one, else one of ours."""
    call_id = given.strip() if isinstance(given, str) else str(given) if type(given) is int else ""
    if not call_id or call_id in taken:
        exchange.note_repair("calls without an id of their own have one of Kairos")
        call_id = exchange.make_id(number)
        while call_id in taken:
            call_id += "x"
    taken.add(call_id)
    return call_id


def repair_name(given: object, exchange: Exchange) -> str:
    """Return the name of a tool: none has a dot, a colon, or a mark of a template in it, which some servers leave."""
    name = given.strip() if isinstance(given, str) else ""
    if not name:
        exchange.note_repair(f"a call without a name was taken as one of {UNNAMED}")
        return UNNAMED
    found = _NAME.fullmatch(name)
    if found is None or found[1] == name:
        return name
    exchange.note_repair("the name of a tool was read out of what stood around it")
    return found[1]


def arguments_text(given: object, exchange: Exchange) -> str:
    """Return arguments as the text that they should be: an object as its JSON, none as an empty object."""
    if given is None or isinstance(given, str):
        return mend_arguments(given, exchange) if given and given.strip() else "{}"
    exchange.note_repair("arguments that were no text were taken as what they are")
    return json.dumps(given)


def mend_arguments(text: str, exchange: Exchange) -> str:
    """Return the text of arguments as one JSON text; as it is where it has no one meaning.

    It may be JSON twice over; hold line ends as they are; stand in a fence; or hold the object beside an empty one,
    which stood for it until it came, or beside itself.
    """
    text = decode_twice(text)
    refuse_many_values(text)
    try:
        json.loads(text)
    except ValueError:
        pass
    except RecursionError:
        return text
    else:
        return text
    held = _OBJECT.fullmatch(text.strip())  # in a fence, or before a mark of a template
    values = _values_in(text) or (_values_in(held[1]) if held else [])
    told = [value for number, value in enumerate(values) if value and value not in values[:number]]
    if not values or len(told) > 1 or not all(isinstance(value, dict) for value in told):
        return text
    exchange.note_repair("arguments were read that were not quite JSON, or stood there more than once")
    return json.dumps(told[0] if told else {})


def decode_twice(text: str) -> str:
    """Return the JSON in a text that is JSON twice over; any other text as it is."""
    if not text.lstrip().startswith('"'):
        return text
    try:
        inner = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return inner if isinstance(inner, str) else text


def _values_in(text: str) -> list[Any]:
    """Return the JSON values that follow each other in a text; none where that is not all of it."""
    decoder, values, at = json.JSONDecoder(strict=False), list[Any](), 0
    while at < len(text) and len(values) <= MAX_REPETITIONS:
        if text[at].isspace():
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        values.append(value)
    return values if at >= len(text) else []
