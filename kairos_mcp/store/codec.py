"""How values stand in rows: encoded as JSON and decoded again; long texts once each, by the SHA-256 of their content.

What is read is validated: a damaged row raises, never half a value, and a text is compared with its hash.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from kairos_mcp.budget.units import Units
from kairos_mcp.core.errors import BadArguments, Unreadable
from kairos_mcp.core.messages import Completion, JsonObject, ToolResult
from kairos_mcp.core.steps import Answer, Failure, Mechanical, Refused, Resumed, Sent, Unknown
from kairos_mcp.store.session import Session

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
    """Return a value as JSON text, without fields that are None. Raises BadArguments for a lone surrogate."""
    kind: Any = type(value)
    try:
        return _adapter(kind).serializer.to_json(value, exclude_none=True).decode()
    except PydanticSerializationError as error:
        raise BadArguments("A text holds half of a surrogate pair.", "Send well-formed Unicode text.") from error


def decode(kind: Any, text: str) -> Any:
    """Return the value of this type that `encode` wrote. Raises Unreadable."""
    try:
        return _adapter(kind).validator.validate_json(text)
    except ValidationError as error:
        raise unreadable(kind.__name__) from error


def unreadable(what: str) -> Unreadable:
    """Return the error for a row that does not hold what it should; `name_run_in_errors` adds which run's row it is."""
    return Unreadable(f"A row holds no {what}.", "Run `kairos-mcp doctor`.")


def decode_fields(text: str) -> JsonObject:
    """Return the fields of an encoded JSON object, as of a spec or a mandate. Raises Unreadable."""
    found: JsonObject = decode(dict[str, Any], text)
    return found


def decode_texts(text: str) -> dict[str, str | None]:
    """Return encoded texts by name: the file hashes of an approval, the keys of an ask. Raises Unreadable."""
    found: dict[str, str | None] = decode(dict[str, str | None], text)
    return found


def encode_answer(answer: Answer) -> str:
    """Return an answer as JSON text."""
    return encode(answer)


def decode_answer(text: str) -> Answer:
    """Return the answer in a row, of the type that its field `kind` names. Raises Unreadable."""
    kind = (
        _ANSWER_TYPES.get(answer_kind(text)) if isinstance(text, str) else None
    )  # the column takes whatever is put into it
    if kind is None:
        raise unreadable("answer")
    answer: Answer = decode(kind, text)
    return answer


def answer_kind(text: str) -> str:
    """Return the kind of an encoded answer without decoding it: `kind` is the last field of every answer."""
    tail = text[text.rfind('"kind":"') + 8 :]
    return tail[:-2] if tail.endswith('"}') else ""


@lru_cache(maxsize=256)  # those of calls are alike
def decode_sent(text: str) -> Sent:
    """Return what the server added to a step. Raises Unreadable."""
    sent: Sent = decode(Sent, text)
    return sent


def encode_units(units: Units) -> str:
    """Return an amount as a JSON array, in the order of the fields of Units."""
    return "[%d,%d,%d,%d,%d,%d,%d,%d]" % units  # noqa: UP031 - as fast as it can be said


@lru_cache(maxsize=256)  # most calls cost the same
def decode_units(text: str) -> Units:
    """Return the amount in a JSON array. Raises Unreadable."""
    return Units._make(_decode_strictly(_UnitTuple, text, "amounts"))


@lru_cache(maxsize=256)
def decode_shared(text: str | None) -> tuple[int, ...]:
    """Return the ids of shared accounts. Raises Unreadable."""
    return tuple(_decode_strictly(list[int], text, "numbers of accounts")) if text else ()


_UnitTuple = tuple[int, int, int, int, int, int, int, int]


def _decode_strictly(kind: Any, text: str, what: str) -> Any:
    try:
        return _adapter(kind).validator.validate_json(text, strict=True)
    except ValidationError as error:
        raise unreadable(what) from error


_KEEP = (
    "insert into text(hash, body) values (?, ?) on conflict(hash) do update set body = excluded.body"
    " where text.body is distinct from excluded.body"
)
_READ = "select cast(body as blob) from text where hash = ?"  # bytes: a damaged text may be no UTF-8 at all


class _KeptText(NamedTuple):
    """A text that a transaction stores last."""

    hash: str
    body: str

    def plus(self, other: _KeptText) -> _KeptText:
        return other

    def write(self, session: Session) -> None:
        session.rows(_KEEP, self)


class DamagedText(Unreadable):
    """A text whose content no longer matches its hash; `body` is what is stored now."""

    def __init__(self, content_hash: str, body: bytes) -> None:
        super().__init__(f"The text {content_hash[:12]} is damaged.", "Run `kairos-mcp doctor`.")
        self.body = body


def keep_texts(session: Session, texts: Iterable[tuple[str, str]]) -> None:
    """Store texts, given as (hash, body). A damaged one that is stored already is replaced."""
    for text in texts:
        if session.last_writes is None:
            session.rows(_KEEP, text)
        else:
            session.last_writes.add("text", text[0], _KeptText(*text))


def read_text(session: Session, content_hash: str) -> str | None:
    """Return the text with this hash, None where there is none. Raises DamagedText."""
    found = session.row(_READ, (content_hash,))
    if found is None:
        return None
    body: bytes = found[0]
    if sha256(body).hexdigest() != content_hash:
        raise DamagedText(content_hash, body)
    return body.decode()
