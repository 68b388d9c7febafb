"""Values to rows and back. What is read is validated: a damaged row is store_corrupt, never half a value."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from kairos_mcp.budget.amounts import Units
from kairos_mcp.errors import BadArguments, StoreCorrupt
from kairos_mcp.messages import Completion, ToolResult
from kairos_mcp.steps import Answer, Failure, Mechanical, Refused, Resumed, Sent, Unknown

_BY_KIND: dict[str, type[Any]] = {
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
    """The value that `encode` wrote. Raises StoreCorrupt."""
    try:
        return _adapter(kind).validator.validate_json(text)
    except ValidationError as error:
        raise StoreCorrupt(f"A row holds no {kind.__name__}.", "Run `kairos-mcp doctor`.") from error


def encode_answer(answer: Answer) -> str:
    return encode(answer)


def decode_answer(text: str) -> Answer:
    """The answer in a row; its kind is told by the field `kind`."""
    kind = _BY_KIND.get(kind_of(text))
    if kind is None:
        raise StoreCorrupt("A row holds no answer.", "Run `kairos-mcp doctor`.")
    answer: Answer = decode(kind, text)
    return answer


def kind_of(text: str) -> str:
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
    try:
        return Units(*json.loads(text))
    except (TypeError, ValueError) as error:
        raise StoreCorrupt("A row holds no amounts.", "Run `kairos-mcp doctor`.") from error
