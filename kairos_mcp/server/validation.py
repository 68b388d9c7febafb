"""Check arguments, and word a refusal, which names what is wrong and what is valid; the schemas of arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.input_checks import (
    TOO_MANY_VALUES,
    Undecodable,
    find_unfit_value,
    parse_strict_json,
    refuse_placeholders,
)
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import nearest_names, truncate
from kairos_mcp.flows.ooda.phase_kinds import PHASES
from kairos_mcp.server.arguments.base import IN_LISTING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from kairos_mcp.server.arguments.base import Arguments

    A = TypeVar("A", bound=Arguments)
else:
    A = TypeVar("A")

MAX_DEPTH = 64  # more than any schema or answer needs; JSON deeper than 200 never gets here
MAX_PROBLEMS = 5
KEY_CHARS = 40

JSON_TEXTS = frozenset(
    ("answers", "arguments", "limits", "plan", *filter(None, (kind.input_name for kind in PHASES.values())))
)
"""Arguments that are objects, and may be given as JSON texts of them."""

Place = tuple[int | str, ...]


def validate_arguments(argument_class: type[A], given: JsonObject | None) -> A:
    """Return the arguments as a value of their class. Raises BadArguments, which names each problem and quotes no
    value."""
    arguments = _decode_texts(given or {})
    unfit = find_unfit_value(arguments)
    if unfit == TOO_MANY_VALUES:
        raise BadArguments(f"The call is refused: {unfit}.", "Send less at once, or long lists as a text.")
    if unfit is not None and (problem := _find_bad_json(arguments)) is not None:
        raise BadArguments(*problem)
    refuse_placeholders(arguments)
    try:
        return argument_class.model_validate(arguments)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
    schema = flat_schema(argument_class)
    text = "; ".join(_word_problem(problem, schema) for problem in problems[:MAX_PROBLEMS])
    more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
    raise BadArguments(f"{text}{more}.", _valid_names(schema, problems))


def _decode_texts(arguments: JsonObject) -> JsonObject:
    """Return the arguments with the objects that stand there as JSON texts. Raises BadArguments."""
    texts = {name: text.strip() for name, text in arguments.items() if name in JSON_TEXTS and isinstance(text, str)}
    decoded: JsonObject = {}
    for name, text in texts.items():
        if text.startswith("{"):
            try:
                decoded[name] = parse_strict_json(text)
            except Undecodable as error:
                raise BadArguments(f"`{name}` is a text: {error.reason}.", "Give the object itself.") from None
    return {**arguments, **decoded}


def _find_bad_json(arguments: JsonObject) -> tuple[str, str] | None:
    """Return message and hint if the JSON holds, at any depth, NaN, infinity, half a surrogate pair or too deep
    nesting; None if it holds none. Slow, since it knows where each value is."""
    stack: list[tuple[Place, Any]] = [((), arguments)]
    while stack:
        place, value = stack.pop()
        match value:
            case float() if not math.isfinite(value):
                return f"{_format_place(place)} is not a finite number.", "Leave it out, or give a finite one."
            case str() if not _is_encodable(value):
                return f"{_format_place(place)} holds half of a surrogate pair.", "Send well-formed Unicode text."
            case dict() | list() if len(place) >= MAX_DEPTH:
                return f"{_format_place(place[:3])} is nested deeper than {MAX_DEPTH}.", "Send something flatter."
            case dict():
                if not all(isinstance(key, str) and _is_encodable(key) for key in value):
                    return f"{_format_place(place)} has a key that is not a text.", "Send well-formed Unicode keys."
                stack += [((*place, key), inner) for key, inner in value.items()]
            case list():
                stack += [((*place, at), inner) for at, inner in enumerate(value)]
            case _:
                pass
    return None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _format_place(place: Place) -> str:
    parts = [truncate(str(part), KEY_CHARS, "...") for part in place]
    return f"`{'.'.join(parts).encode(errors='replace').decode()}`" if parts else "The call"


def _word_problem(problem: ErrorDetails, schema: JsonObject) -> str:
    match problem["type"]:
        case "missing":
            return f"{_format_place(problem['loc'])} is required"
        case "extra_forbidden":
            *place, name = problem["loc"]
            near = nearest_names(str(name), list(_schema_at(schema, tuple(place)).get("properties", {})))
            return f"{_format_place(problem['loc'])} is not known here (nearest: {', '.join(near)})"
        case _:
            return f"{_format_place(problem['loc'])}: {problem['msg']}"


def _valid_names(schema: JsonObject, problems: list[ErrorDetails]) -> str:
    """List the names that are valid at the place of the first unknown or missing one, else those of the whole call."""
    for problem in problems:
        if problem["type"] in ("extra_forbidden", "missing"):
            schema = _schema_at(schema, problem["loc"][:-1])
            break
    required = schema.get("required", [])
    optional = [name for name in schema.get("properties", {}) if name not in required]
    return f"Required: {', '.join(required) or 'none'}. Optional: {', '.join(optional) or 'none'}."


def _schema_at(schema: JsonObject, place: Place) -> JsonObject:
    for part in place:
        inner = schema["items"] if isinstance(part, int) else schema["properties"][part]
        schema = inner
    return schema


LISTED_KEYS = frozenset({"type", "enum", "description", "properties", "required", "items"})
"""What a model needs to make a call. Bounds and patterns would cost tokens in every session; a refusal names them."""


@cache
def flat_schema(argument_class: type[Arguments]) -> JsonObject:
    """Return the schema of the arguments without $defs, and without null for what may be absent."""
    schema = argument_class.model_json_schema()
    definitions = schema.pop("$defs", {})
    return _flatten(schema, definitions)


def listed_schema(argument_class: type[Arguments]) -> JsonObject:
    """Return the schema as clients are sent it, with the texts of `in_listing`. The elements of an array are explained
    in its description."""
    return _shorten(flat_schema(argument_class)) | {"additionalProperties": False}


def _flatten(node: JsonObject, definitions: JsonObject) -> JsonObject:
    if "$ref" in node:
        return _flatten(_replace_key(node, "$ref", definitions[node["$ref"].rpartition("/")[2]]), definitions)
    if "anyOf" in node:
        options = [option for option in node["anyOf"] if option != {"type": "null"}]
        first = options[0]  # hosts want exactly one type; the description names the others
        return _flatten(_replace_key(node, "anyOf", first), definitions)
    return _map_children(node, lambda inner: _flatten(inner, definitions))


def _replace_key(node: JsonObject, key: str, replacement: JsonObject) -> JsonObject:
    return {**replacement, **{name: value for name, value in node.items() if name != key}}


def _shorten(node: JsonObject) -> JsonObject:
    kept = {key: value for key, value in node.items() if key in LISTED_KEYS}
    if (text := node.get(IN_LISTING)) is not None:
        kept["description"] = text
    if not kept.get("description"):
        kept.pop("description", None)
    if kept.get("items", {}).get("type") == "object":
        kept["items"] = {"type": "object"}
    return _map_children(kept, _shorten)


def _map_children(node: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
    """Return the node with `change` applied to each schema directly below it."""
    changed: dict[str, Any] = dict(node)
    if "properties" in node:
        changed["properties"] = {name: change(inner) for name, inner in node["properties"].items()}
    if "items" in node:
        changed["items"] = change(node["items"])
    return changed
