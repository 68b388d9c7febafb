"""Set or remove one entry in a JSON text that people write too, comments and trailing commas included.

Only the entry's own characters change. Standard parsers give values, not where they stand, and a text that is written
anew from values loses its comments; so the text is blanked of what plain JSON has not, and searched with `json` itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from kairos_mcp.core.messages import JsonObject

# What is never closed reaches to the end: else the end is looked for from each place where it could have begun.
_STRING = r'"(?:\\.|[^"\\])*+"?'
_STRING_OR_COMMENT = re.compile(_STRING + r"|//[^\r\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_STRING_OR_TRAILING_COMMA = re.compile(_STRING + r"|,(?=\s*+[}\]])", re.DOTALL)
_DECODER = json.JSONDecoder()


class _Member(NamedTuple):
    """Where a member of an object stands: its name, its value, and the end of that."""

    name: int
    value: int
    end: int


def parse(text: str) -> JsonObject:
    """Parse a JSON object with comments and trailing commas; an empty text is an empty object. Raises ValueError, also
    for a key that is given twice: which one counts would be a guess."""
    plain = blank_extras(text).strip() or "{}"
    if not plain.startswith("{"):
        raise ValueError("it holds no JSON object")
    content: JsonObject = json.loads(plain, object_pairs_hook=_refuse_duplicate_keys)
    return content


def set_entry(text: str, section: str, name: str, value: JsonObject) -> str:
    """Return the text with this entry in the object `section`; both are added where they are missing."""
    text = text if blank_extras(text).strip() else text + "{}\n"
    root = _members(text, _start(text))
    if section not in root:
        return _add(text, _start(text), section, {name: value})
    found = _members(text, root[section].value)
    if name not in found:
        return _add(text, root[section].value, name, value)
    here = found[name]
    return text[: here.value] + _encode(text, value, _indent_at(text, here.name)) + text[here.end :]


def remove_entry(text: str, section: str, name: str) -> str:
    """Return the text without this entry, which is in it. The section goes with it where nothing is left in it, not
    even a comment."""
    text = _remove(text, _members(text, _start(text))[section].value, name)
    if _is_empty(text, _members(text, _start(text))[section].value):
        text = _remove(text, _start(text), section)
        if _is_empty(text, start := _start(text)):
            return text[: start + 1] + text[text.index("}", start) :]
    return text


def _is_empty(text: str, start: int) -> bool:
    """Whether the object at `start` holds nothing but space."""
    return text[start + 1 :].lstrip().startswith("}")


def _remove(text: str, start: int, name: str) -> str:
    """Remove a member of the object that starts at `start`."""
    members = _members(text, start)
    here, names = members[name], list(members)
    comma = _comma_after(text, here.end)
    begin, end = here.name, here.end if comma is None else comma + 1
    before = text[:begin].rstrip(" \t")
    # Its line break goes with it only where another one follows: a comment before it would swallow the rest else.
    if before.endswith("\n") and text[end:].lstrip(" \t").startswith(("\r", "\n")):
        begin = len(before.removesuffix("\n").removesuffix("\r"))
    if comma is None and names[0] != name:  # the last one: the comma before it goes too
        comma = _comma_after(text, members[names[-2]].end)
        assert comma is not None
        return text[:comma] + text[comma + 1 : begin] + text[end:]
    return text[:begin] + text[end:]


def _add(text: str, start: int, name: str, value: Any) -> str:
    """Add a member at the end of the object that starts at `start`."""
    members, newline = _members(text, start), "\r\n" if "\r\n" in text else "\n"
    if not members:
        indent = _indent_at(text, start)
        inner = indent + _unit(text)
        closing = "" if blank_extras(text)[start + 1 :].lstrip(" \t").startswith(("\n", "\r")) else newline + indent
        return f"{text[: start + 1]}{newline}{inner}{_member(text, name, value, inner)}{closing}{text[start + 1 :]}"
    last = list(members.values())[-1]
    comma, indent = _comma_after(text, last.end), _indent_at(text, last.name)
    separated, end = (
        (text, comma + 1) if comma is not None else (f"{text[: last.end]},{text[last.end :]}", last.end + 1)
    )
    rest = re.compile(r"[^\r\n]*").match(_without_comments(separated), end)
    assert rest is not None
    at = end if rest[0].strip() else rest.end()  # behind a comment that ends the line
    added = f"{newline}{indent}{_member(text, name, value, indent)}{'' if comma is None else ','}"
    return separated[:at] + added + separated[at:]


def _member(text: str, name: str, value: Any, indent: str) -> str:
    return f"{json.dumps(name, ensure_ascii=False)}: {_encode(text, value, indent)}"


def _encode(text: str, value: Any, indent: str) -> str:
    """Encode a value to stand at this indentation, with the indentation unit and the line ends of the text."""
    newline = "\r\n" if "\r\n" in text else "\n"
    encoded = json.dumps(value, indent=_unit(text), ensure_ascii=False)
    try:
        encoded.encode()
    except UnicodeEncodeError:  # a lone surrogate can only be written as an escape
        encoded = json.dumps(value, indent=_unit(text))
    return encoded.replace("\n", newline + indent)


def blank_extras(text: str) -> str:
    """Return the text as plain JSON, of the same length: spaces in place of comments and trailing commas."""
    return _blank(_without_comments(text), _STRING_OR_TRAILING_COMMA)


def _without_comments(text: str) -> str:
    """The text with spaces in place of comments, also of the line breaks in them."""
    return _blank(text, _STRING_OR_COMMENT)


def _blank(text: str, string_or_other: re.Pattern[str]) -> str:
    """The text with spaces in place of what the pattern finds and is no string."""

    def blank(found: re.Match[str]) -> str:
        is_open = found[0].startswith("/*") and (len(found[0]) < 4 or not found[0].endswith("*/"))
        return found[0] if found[0].startswith('"') or is_open else " " * len(found[0])

    return string_or_other.sub(blank, text)


def _start(text: str) -> int:
    return blank_extras(text).index("{")


def _members(text: str, start: int) -> Mapping[str, _Member]:
    """The members of the object at `start`. Raises ValueError if absent."""
    plain, found = blank_extras(text), dict[str, _Member]()
    if plain[start] != "{":
        raise ValueError("it holds no JSON object")
    at = _skip_space(plain, start + 1)
    while plain[at] != "}":
        name, end = _DECODER.raw_decode(plain, at)
        value = _skip_space(plain, _skip_space(plain, end) + 1)  # past the colon
        _, end = _DECODER.raw_decode(plain, value)
        found[name] = _Member(at, value, end)
        at = _skip_space(plain, end)
        if plain[at] == ",":
            at = _skip_space(plain, at + 1)
    return found


def _skip_space(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _comma_after(text: str, end: int) -> int | None:
    """Where the comma after a value stands; None if there is not even a trailing one."""
    bare = _without_comments(text)
    at = _skip_space(bare, end)
    return at if bare[at] == "," else None


def _indent_at(text: str, at: int) -> str:
    """The space with which the line of `at` begins."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _unit(text: str) -> str:
    """One step of the text's indentation: that of its first member."""
    first = re.search(r"\{[ \t]*\r?\n([ \t]+)\S", _without_comments(text))
    return first[1] if first else "  "


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> JsonObject:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key is given twice")
    return content
