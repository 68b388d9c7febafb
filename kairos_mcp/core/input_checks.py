"""Check what comes from outside: JSON, decoded strictly; placeholders, which are refused; what pydantic found wrong.

Nothing is repaired, completed or rewritten: a model only gets a reason that it can read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from pydantic_core import ValidationError

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.json_bounds import MAX_VALUES, has_more_values
from kairos_mcp.core.messages import JsonObject

REPLY_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 64
MAX_OBJECTS = 10  # objects of one reply; of more the refusal says so
MAX_PIECES = 2_000  # pieces of prose in brackets that are tried as JSON
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1  # what SQLite and most readers hold exactly
_TOO_MANY_DIGITS = "an integer does not fit into 64 bits"
_NO_NUMBER = "NaN and Infinity are no JSON numbers"
_INVISIBLE = " \t\r\n\ufeff\u200b\u200c\u200d\u2060"
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_OPENING = re.compile(r"[\[{]")
_FENCE = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)([^\r\n]*+)\r?$", re.MULTILINE)
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
TOO_MANY_VALUES = f"it holds more than {MAX_VALUES:,} values"


class Undecodable(ValueError):
    """A text that can't be decoded. `reason` may be shown to the model that wrote it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _NotJson(Undecodable):
    """The text as a whole is no JSON; the object may be a part of it. Any other Undecodable is final."""


def decode_object(text: str) -> JsonObject:
    """Return the JSON object of a reply: the whole text, else its one outermost fence, else its one balanced object.

    Raises Undecodable: duplicate keys, NaN, Infinity, integers beyond 64 bits, lone surrogates, too deep, too
    large, too many values, cut off, two objects, none, or something that is no object.
    """
    _refuse_size(text)
    bare = text.lstrip(_INVISIBLE).rstrip()
    if not bare:
        raise Undecodable("the reply is empty; one JSON object is needed")
    try:
        return _require_object(parse_strict_json(bare))
    except _NotJson as broken:
        reason = broken
    fenced = _outermost_fences(bare)
    if len(fenced) == 1:
        try:
            return _require_object(parse_strict_json(fenced[0].strip(_INVISIBLE)))
        except _NotJson as broken:
            reason = broken
    return _find_balanced_object(bare, reason)


def parse_strict_json(text: str) -> Any:
    """Parse a text that is one JSON value and nothing else. Raises Undecodable."""
    _refuse_size(text)
    if has_more_values(text, MAX_VALUES):
        raise Undecodable(TOO_MANY_VALUES)
    try:
        value = json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_int=_parse_integer
        )
    except json.JSONDecodeError as error:
        raise _NotJson(f"not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise Undecodable(_TOO_DEEP) from None
    if (reason := find_unfit_value(value)) is not None:
        raise Undecodable(reason)
    return value


def find_unfit_value(value: object) -> str | None:
    """Return why a value is refused (NaN, lone surrogate, huge integer, too deep, too large, too many), or None."""
    size = parts = 0
    level: list[object] = [value]
    for _ in range(MAX_DEPTH + 1):
        parts += len(level)
        if parts > 2 * MAX_VALUES:  # names are among them
            return TOO_MANY_VALUES
        inner: list[object] = []
        for part in level:
            if isinstance(part, str):
                try:
                    size += len(part) if part.isascii() else len(part.encode())
                except UnicodeEncodeError:
                    return "a text holds a lone surrogate, which is not a character"
                continue
            size += 1
            if isinstance(part, dict):
                for key in part:
                    if not isinstance(key, str):
                        return "a key is no text"
                inner += part
                inner += part.values()
            elif isinstance(part, list | tuple):
                inner += part
            elif part is not None and not isinstance(part, bool) and (flaw := _find_flaw(part)) is not None:
                return flaw
        if size > REPLY_BYTES:
            return f"the value is larger than {REPLY_BYTES} bytes"
        if not inner:
            return None
        level = inner
    return _TOO_DEEP


def _find_flaw(number: object) -> str | None:
    match number:
        case int():
            return None if _SMALLEST <= number <= _LARGEST else _TOO_MANY_DIGITS
        case float():
            return None if math.isfinite(number) else _NO_NUMBER
        case _:
            return "a value is of no JSON type"


def _require_object(value: Any) -> JsonObject:
    match value:
        case dict():
            return value
        case list():
            raise Undecodable("the reply is an array; one JSON object is needed")
        case _:
            raise Undecodable("the reply is a bare value; one JSON object is needed")


def _outermost_fences(text: str) -> list[str]:
    """Return the content of each outermost fence; fences inside another belong to its content."""
    contents: list[str] = []
    if "```" not in text and "~~~" not in text:
        return contents
    opened: re.Match[str] | None = None
    for line in _FENCE.finditer(text):
        if opened is None:
            opened = line
        elif line[1].startswith(opened[1]) and not line[2].strip(" \t"):
            contents.append(text[opened.end() : line.start()])
            opened = None
    return contents if opened is None else []


def _find_balanced_object(text: str, reason: Undecodable) -> JsonObject:
    """Return the one object between prose. What is inside something balanced but broken is not searched."""
    if text.count("{") + text.count("[") > MAX_VALUES or text.count('"') > 4 * MAX_VALUES:
        raise Undecodable(f"{TOO_MANY_VALUES}, or too many brackets and quotes beside them")
    found: list[JsonObject] = []
    depth, start = 0, 0
    pieces, has_brackets = 0, False
    for token in _brackets_in_prose(text):
        has_brackets = True
        if token[0] in "[{":
            start = token.start() if depth == 0 else start
            depth += 1
        elif depth > 0:
            depth -= 1
            pieces += depth == 0
            if pieces > MAX_PIECES:
                raise Undecodable(f"the reply holds more than {MAX_PIECES:,} pieces in brackets; send one JSON object")
            # Enough is known once there are several: to parse each would take long.
            if (
                depth == 0
                and len(found) < MAX_OBJECTS
                and isinstance(value := _parse_or_none(text[start : token.end()]), dict)
            ):
                found.append(value)
    if depth:
        raise Undecodable("the reply is cut off: a bracket is never closed; send one whole JSON object")
    if len(found) > 1:
        many = f"{len(found)} JSON objects" if len(found) < MAX_OBJECTS else f"{MAX_OBJECTS} JSON objects or more"
        raise Undecodable(f"the reply holds {many}; send exactly one")
    if not found:
        raise reason if has_brackets else Undecodable("the reply holds no JSON object; send one and nothing else")
    return found[0]


def _brackets_in_prose(text: str) -> Iterator[re.Match[str]]:
    """Yield the brackets outside strings. A quote begins a string only inside brackets: prose has its own quotes."""
    depth, position = 0, 0
    while (token := (_TOKEN if depth else _OPENING).search(text, position)) is not None:
        position = token.end()
        if token[0][0] == '"':
            continue
        yield token
        depth += 1 if token[0] in "[{" else -1


def _parse_or_none(text: str) -> Any:
    try:
        return parse_strict_json(text)
    except _NotJson:
        return None


def _refuse_size(text: str) -> None:
    if len(text) > REPLY_BYTES or (not text.isascii() and len(text.encode(errors="replace")) > REPLY_BYTES):
        raise Undecodable(f"the reply is larger than {REPLY_BYTES} bytes")


def _unique_keys(pairs: list[tuple[str, Any]]) -> JsonObject:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise Undecodable("an object has the same key twice")
    return value


def _refuse_constant(_: str) -> NoReturn:
    raise Undecodable(_NO_NUMBER)


def _parse_integer(digits: str) -> int:
    if len(digits) > 20:  # before int() sees it: thousands of digits are slow, or refused by the interpreter
        raise Undecodable(_TOO_MANY_DIGITS)
    return int(digits)


class Placeholder:
    """Texts in a proposed call that its caller has to replace.

    They are a few fixed ones, so that no real answer can be mistaken for one.
    """

    ANSWER = "<your answer, or tool_calls instead>"
    TEXT = "<your answer>"
    RESULT = "<the tool's result>"
    DECISION = "<approve or deny>"
    DIGEST = "<its digest>"
    SETTLEMENT = "<already_done or reattempt>"
    ALL = frozenset((ANSWER, TEXT, RESULT, DECISION, DIGEST, SETTLEMENT))


def refuse_placeholders(arguments: Any) -> None:
    """Raise BadArguments where a placeholder stands anywhere in these arguments."""
    if _holds_placeholder(arguments):
        _refuse_placeholder(arguments)


def _holds_placeholder(arguments: Any) -> bool:
    """Look through all values without noting where each is: that takes most of the time."""
    pending = [arguments]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, str) and value.strip() in Placeholder.ALL:
            return True
    return False


def _refuse_placeholder(arguments: Any) -> None:
    pending: list[tuple[str, Any]] = [("", arguments)]
    while pending:
        place, value = pending.pop()
        match value:
            case str() if value.strip() in Placeholder.ALL:
                raise BadArguments(
                    f"{place.removeprefix('.') or 'It'} holds the placeholder {value.strip()}.",
                    "Put what it names in its place, and call again.",
                )
            case dict():
                pending += [(f"{place}.{str(key)[:40]}", inner) for key, inner in value.items()]
            case list():
                pending += [(f"{place}.{at}", inner) for at, inner in enumerate(value)]
            case _:
                pass


PLACE_CHARS = 80


class Problem(NamedTuple):
    """A problem: pydantic's name of its kind, where it is (`limits.usd`; empty: the whole value), and what it is."""

    kind: str
    place: str
    message: str


def first_problem(error: ValidationError) -> Problem:
    """Return the first problem, without any value."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])[:PLACE_CHARS]
    return Problem(first["type"], place, plain_problem(first["msg"]))


_PLAIN_WORDS = (
    (re.compile(r", unable to parse string as .*"), ""),
    (re.compile(r"^Value error, "), ""),
    (re.compile(r"^Field required$"), "it is missing"),
    (re.compile(r"^Extra inputs are not permitted$"), "there is no such key"),
    (re.compile(r"^Input should be"), "it has to be"),
    (re.compile(r"\ba valid integer$"), "a whole number"),
    (re.compile(r"\ba valid string$"), "a text"),
    (re.compile(r"\ba valid boolean$"), "true or false"),
    (re.compile(r"\ba valid (\w+)$"), r"a \1"),
    (re.compile(r"\bless than or equal to (\S+)$"), r"at most \1"),
    (re.compile(r"\bgreater than or equal to (\S+)$"), r"at least \1"),
)


def plain_problem(message: str) -> str:
    """Say pydantic's message in the words of a person."""
    for pattern, words in _PLAIN_WORDS:
        message = pattern.sub(words, message)
    return message
