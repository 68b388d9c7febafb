"""Rows: the sessions in which functions of the store read and write them, and the encoding of values in them.

A session takes statements and returns rows; it names no driver. Statements use the SQL that SQLite and PostgreSQL
share, except to take JSON apart and to read each database's own tables about itself.

Values are stored as JSON. Each long text is stored once, under the SHA-256 of its content. All that is read is
validated: a damaged row raises an error and gives no half of a value, and a text is compared with its hash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, lru_cache
from hashlib import sha256
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, Self, TypeVar, overload

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from kairos_mcp.core.errors import BadArguments, Unreadable
from kairos_mcp.core.limits import UNITS, UNITS_OF_FIRST_VERSION, Units
from kairos_mcp.core.messages import Completion, JsonObject, ToolCall, ToolResult
from kairos_mcp.core.steps import Answer, Extended, Failure, Mechanical, Refused, Resumed, Sent, StoredCall

Row = tuple[Any, ...]
T = TypeVar("T")
Bindings = Sequence[Any] | Mapping[str, Any]  # by position (?) or by name (:name)


class Session(Protocol):
    """A connection to the store, inside a transaction.

    `last_writes`: collects the writes that the transaction makes last; None: they are made at once.
    """

    last_writes: LastWrites | None

    def rows(self, statement: str, bindings: Bindings = ()) -> list[Row]:
        """Execute a statement and return all of its rows; none for a statement that only writes."""
        ...

    def row(self, statement: str, bindings: Bindings = ()) -> Row | None:
        """Execute a statement and return its first row; None if absent."""
        ...

    def stream(self, statement: str, bindings: Bindings = ()) -> Iterator[Row]:
        """Execute a statement and yield its rows one by one: for more of them than memory should hold."""
        ...

    def finds(self, statement: str, bindings: Bindings = ()) -> bool:
        """Execute a statement that seldom finds a row, and return whether it found one."""
        ...

    def insert(self, statement: str, bindings: Bindings = ()) -> int:
        """Insert one row and return the integer key that it was given."""
        ...

    def change(self, statement: str, bindings: Bindings = ()) -> int:
        """Execute a statement that writes and return how many rows it changed."""
        ...

    def changed_rows(self) -> int:
        """Return how many rows this session has written so far, also in transactions that were undone."""
        ...

    def read_version(self) -> int:
        """Return a number that changes when any other connection has committed."""
        ...

    def require_alone(self) -> None:
        """Raise NotAlone where other servers write meanwhile: the transaction is undone, and made again alone.

        Called before a job of one run reads or writes what belongs to others as well.
        """
        ...

    def one_state(self) -> AbstractContextManager[None]:
        """Read everything within from one state of the store, whatever others write meanwhile. Await nothing within."""
        ...

    def together(self, reads: Sequence[Callable[[Session], T]]) -> list[T]:
        """Return what each of these independent functions reads.

        A driver over a network sends their statements together: all of them take as many round trips as the function
        with the longest chain of dependent statements. A function may be called more than once, so it only reads, by
        `rows`, `row`, `finds` and `together`. If several functions raise, any of their errors is raised. See
        `read_together` and `read_each`.
        """
        ...


A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
Read = Callable[[Session], T]


@overload
def read_together(session: Session, a: Read[A], b: Read[B], /) -> tuple[A, B]: ...
@overload
def read_together(session: Session, a: Read[A], b: Read[B], c: Read[C], /) -> tuple[A, B, C]: ...
@overload
def read_together(session: Session, a: Read[A], b: Read[B], c: Read[C], d: Read[D], /) -> tuple[A, B, C, D]: ...
@overload
def read_together(
    session: Session, a: Read[A], b: Read[B], c: Read[C], d: Read[D], e: Read[E], /
) -> tuple[A, B, C, D, E]: ...
@overload
def read_together(
    session: Session, a: Read[A], b: Read[B], c: Read[C], d: Read[D], e: Read[E], f: Read[F], /
) -> tuple[A, B, C, D, E, F]: ...
def read_together(session: Session, *reads: Read[Any]) -> tuple[Any, ...]:
    """Return what each of these functions reads, by `Session.together`."""
    return tuple(session.together(reads))


def read_each(session: Session, read: Callable[[Session, A], B], of: Iterable[A]) -> list[B]:
    """Return what a function reads of each of these, by `Session.together`."""

    def read_of(each: A) -> Read[B]:
        return lambda session: read(session, each)

    return session.together([read_of(each) for each in of])


class LastWrite(Protocol):
    """A pending change of a row that runs share."""

    def plus(self, other: Self) -> Self:
        """Return the change that is this one followed by the other."""
        ...

    def write(self, session: Session) -> object:
        """Write it now."""
        ...


class LastWrites:
    """The writes that a transaction makes last: of rows that runs share, which other transactions then wait for.

    If several servers write side by side, each under the locks of its own runs, two of them could wait for each other
    over shared rows. So these writes are collected, summed for each row, and made in the same order by all servers.
    `count`: how many were collected.
    """

    def __init__(self) -> None:
        self.count = 0
        self._writes: dict[tuple[str, int | str], LastWrite] = {}

    def add(self, table: str, key: int | str, write: LastWrite) -> None:
        """Add a change of the row with this key."""
        self.count += 1
        before = self._writes.get((table, key))
        self._writes[table, key] = write if before is None else before.plus(write)

    def write(self, session: Session) -> None:
        """Write all changes, with a session that collects none."""
        for _, write in sorted(self._writes.items(), key=itemgetter(0)):
            write.write(session)


class NotAlone(Exception):
    """A job of one run turned out to concern other runs: it is run again while no other server writes."""


class CorruptRows(Exception):
    """Rows contradict each other, which is found only after something was written: the whole transaction is undone.

    A KairosError from a job refuses that job alone, before its first write; this one ends its transaction.
    """


def placeholders(values: Collection[object]) -> str:
    """Return a `?` for each value, for `in (…)`. It is null for no values, which nothing equals: PostgreSQL has no
    empty list."""
    return ", ".join("?" * len(values)) or "null"


LISTED_ID = "case when item.type = 'integer' then cast(item.value as bigint) end"
"""SQL for an id in a list of ids that `json_each(…) as item` takes apart; null for anything else in the list."""


def json_or_null(column: str) -> str:
    """Return SQL for a JSON column that is null where the column holds no JSON.

    So one damaged row does not make a statement fail for all others.
    """
    return f"case when json_valid({column}) then {column} end"


_ANSWER_TYPES: dict[str, type[Any]] = {
    "completion": Completion,
    "result": ToolResult,
    "refused": Refused,
    "failure": Failure,
    "mechanical": Mechanical,
    "extended": Extended,
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
    """Return the error for a row that does not contain what it should; `name_run_in_errors` adds the run's id."""
    return Unreadable(f"A row holds no {what}.", "Run `kairos-mcp doctor`.")


def decode_fields(text: str) -> JsonObject:
    """Return the fields of an encoded JSON object, as of a spec or a mandate. Raises Unreadable."""
    found: JsonObject = decode(dict[str, Any], text)
    return found


def decode_texts(text: str) -> dict[str, str | None]:
    """Return encoded texts by name: of an approval's file hashes, of a client question's keys. Raises Unreadable."""
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


def decode_call(path: str, text: str | None) -> ToolCall | None:
    """Return the call that the row of the step at this path stores; None if it stores none. Raises Unreadable."""
    if text is None:
        return None
    call: StoredCall = decode(StoredCall, text)
    return call.at(path)


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
    return _UNITS_TEMPLATE % units


@lru_cache(maxsize=256)  # most calls cost the same
def decode_units(text: str) -> Units:
    """Return the amount in a JSON array; a unit that is newer than the row is 0. Raises Unreadable."""
    found = _decode_strictly(list[int], text, "amounts")
    missing = len(UNITS) - len(found)
    if missing < 0:
        raise Unreadable(
            f"A row holds amounts in {len(found)} units, and this version of Kairos knows {len(UNITS)}.",
            "A newer version wrote it: use that one.",
        )
    if len(found) < UNITS_OF_FIRST_VERSION:
        raise unreadable("amounts")
    return Units._make((*found, *[0] * missing))


@lru_cache(maxsize=256)
def decode_shared(text: str | None) -> tuple[int, ...]:
    """Return the ids of shared accounts. Raises Unreadable."""
    return tuple(_decode_strictly(list[int], text, "numbers of accounts")) if text else ()


_UNITS_TEMPLATE = f"[{','.join(['%d'] * len(UNITS))}]"  # the fastest way to write an amount


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
    """Return the text with this hash, None if absent. Raises DamagedText."""
    found = session.row(_READ, (content_hash,))
    if found is None:
        return None
    body: bytes = found[0]
    if sha256(body).hexdigest() != content_hash:
        raise DamagedText(content_hash, body)
    return body.decode()
