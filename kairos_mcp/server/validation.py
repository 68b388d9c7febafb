"""Arguments checked, and a refusal worded: it names what is wrong, says what is valid, echoes no value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from kairos_mcp.core import placeholders
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import truncate

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from kairos_mcp.server.arguments.base import Arguments

    A = TypeVar("A", bound=Arguments)
else:
    A = TypeVar("A")

NESTED = 64  # deeper than any schema or answer needs; JSON beyond 200 never gets here
SHOWN = 5
KEY_CHARS = 40

Place = tuple[int | str, ...]


def validate_arguments(model: type[A], given: JsonObject | None) -> A:
    """The arguments as the model's value; raises BadArguments that says what is wrong with each."""
    arguments = given or {}
    unfit = _unfit(arguments)
    if unfit is not None:
        raise BadArguments(*unfit)
    placeholders.refuse_placeholders(arguments)
    try:
        return model.model_validate(arguments)
    except ValidationError as refused:
        problems = refused.errors(include_url=False, include_input=False, include_context=False)
    said = "; ".join(_word_problem(problem) for problem in problems[:SHOWN])
    more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    raise BadArguments(f"{said}{more}.", _valid_names(model, problems))


def _unfit(arguments: JsonObject) -> tuple[str, str] | None:
    """What none of our JSON may hold, wherever it hides: NaN, infinities, half characters, deep nesting."""
    left: list[tuple[Place, Any]] = [((), arguments)]
    while left:
        place, value = left.pop()
        match value:
            case float() if not math.isfinite(value):
                return f"{_name_place(place)} is not a finite number.", "Leave it out, or give a finite one."
            case str() if not _encodable(value):
                return f"{_name_place(place)} holds half of a surrogate pair.", "Send well-formed Unicode text."
            case dict() | list() if len(place) >= NESTED:
                return f"{_name_place(place[:3])} is nested deeper than {NESTED}.", "Send something flatter."
            case dict():
                if not all(isinstance(key, str) and _encodable(key) for key in value):
                    return f"{_name_place(place)} has a key that is not a text.", "Send well-formed Unicode keys."
                left += [((*place, key), inner) for key, inner in value.items()]
            case list():
                left += [((*place, at), inner) for at, inner in enumerate(value)]
            case _:
                pass
    return None


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name_place(place: Place) -> str:
    parts = [truncate(str(part), KEY_CHARS, "...") for part in place]
    return f"`{'.'.join(parts).encode(errors='replace').decode()}`" if parts else "The call"


def _word_problem(problem: ErrorDetails) -> str:
    match problem["type"]:
        case "missing":
            return f"{_name_place(problem['loc'])} is required"
        case "extra_forbidden":
            return f"{_name_place(problem['loc'])} is not known here"
        case _:
            return f"{_name_place(problem['loc'])}: {problem['msg']}"


def _valid_names(model: type[Arguments], problems: list[ErrorDetails]) -> str:
    """The names that are valid where the first unknown or missing one stood; else those of the whole call."""
    from kairos_mcp.server.schemata import flat_schema

    schema = flat_schema(model)
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
