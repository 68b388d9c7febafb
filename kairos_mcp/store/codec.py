"""Values to rows and back. What is read is validated: a damaged row is store_corrupt, never half a value."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from kairos_mcp.budget.units import Units
from kairos_mcp.core.errors import BadArguments, Unreadable
from kairos_mcp.core.messages import Completion, JsonObject, ToolResult
from kairos_mcp.core.steps import Answer, Failure, Mechanical, Refused, Resumed, Sent, Unknown

_ANSWER_TYPES: dict[str, type[Any]] = {
    "completion": Completion,
    "result": ToolResult,
    "refused": Refused,
    "failure": Failure,
    "mechanical": Mechanical,
    "unknown": Unknown,
    "resumed": Resumed,
}


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def encode(value: Any) -> str:
    """A value of ours as JSON text, without what is None. Raises BadArguments for a lone surrogate."""
    kind: Any = type(value)
    try:
        return _adapter(kind).serializer.to_json(value, exclude_none=True).decode()
    except PydanticSerializationError as error:
        raise BadArguments("A text holds half of a surrogate pair.", "Send well-formed Unicode text.") from error


def decode(kind: Any, text: str) -> Any:
    """The value that `encode` wrote. Raises Unreadable."""
    try:
        return _adapter(kind).validator.validate_json(text)
    except ValidationError as error:
        raise unreadable(kind.__name__) from error


def unreadable(what: str) -> Unreadable:
    """That a row does not hold what it is there for. Whoever knows whose row it is adds that."""
    return Unreadable(f"A row holds no {what}.", "Run `kairos-mcp doctor`.")


def decode_fields(text: str) -> JsonObject:
    """The fields of a JSON object, as a spec or a mandate is kept. Raises Unreadable."""
    found: JsonObject = decode(dict[str, Any], text)
    return found


def decode_texts(text: str) -> dict[str, str | None]:
    """Texts by name: the files that leave stands on, the keys of an ask. Raises Unreadable."""
    found: dict[str, str | None] = decode(dict[str, str | None], text)
    return found


def encode_answer(answer: Answer) -> str:
    return encode(answer)


def decode_answer(text: str) -> Answer:
    """The answer in a row; its kind is told by the field `kind`."""
    kind = (
        _ANSWER_TYPES.get(answer_kind(text)) if isinstance(text, str) else None
    )  # the column takes whatever is put into it
    if kind is None:
        raise unreadable("answer")
    answer: Answer = decode(kind, text)
    return answer


def answer_kind(text: str) -> str:
    """The kind of an encoded answer. Every answer ends with its kind, since the field stands last."""
    tail = text[text.rfind('"kind":"') + 8 :]
    return tail[:-2] if tail.endswith('"}') else ""


@lru_cache(maxsize=256)  # those of calls are alike
def decode_sent(text: str) -> Sent:
    sent: Sent = decode(Sent, text)
    return sent


def encode_units(units: Units) -> str:
    return "[%d,%d,%d,%d,%d,%d,%d,%d]" % units  # noqa: UP031 - as fast as it can be said


@lru_cache(maxsize=256)  # most calls cost the same
def decode_units(text: str) -> Units:
    return Units._make(_decode_strictly(_UnitTuple, text, "amounts"))


@lru_cache(maxsize=256)
def decode_shared(text: str | None) -> tuple[int, ...]:
    """Numbers of accounts."""
    return tuple(_decode_strictly(list[int], text, "numbers of accounts")) if text else ()


_UnitTuple = tuple[int, int, int, int, int, int, int, int]


def _decode_strictly(kind: Any, text: str, what: str) -> Any:
    try:
        return _adapter(kind).validator.validate_json(text, strict=True)
    except ValidationError as error:
        raise unreadable(what) from error
