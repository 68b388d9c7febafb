"""What functions of the store are given to read and write rows: statements in, rows out, no driver named.

Statements use the SQL that SQLite and PostgreSQL share, but for taking JSON apart and for the tables that each keeps
about itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any, Protocol, Self, TypeVar, overload

Row = tuple[Any, ...]
T = TypeVar("T")
Bindings = Sequence[Any] | Mapping[str, Any]  # by position (?) or by name (:name)


class Session(Protocol):
    """A connection to the store, within the transaction of whoever hands it out.

    `last_writes`: takes what the transaction has to write last; None: it is written at once.
    """

    last_writes: LastWrites | None

    def rows(self, statement: str, bindings: Bindings = ()) -> list[Row]:
        """Execute a statement and return all of its rows; none for a statement that only writes."""
        ...

    def row(self, statement: str, bindings: Bindings = ()) -> Row | None:
        """Execute a statement and return its first row; None where there is none."""
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
        """Return what these functions read, each for itself: where a driver waits for a network, it waits for all of
        them at once, as often as the one waits whose statements depend on each other most often.

        A function may be called more than once, so it does nothing but read, by `rows`, `row`, `finds` and `together`.
        Of what several raise, any is raised. See `read_together` and `read_each`.
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
    """What is to become of a row that runs share."""

    def plus(self, other: Self) -> Self:
        """Return what becomes of it by this and then the other."""
        ...

    def write(self, session: Session) -> object:
        """Write it now."""
        ...


class LastWrites:
    """What a transaction writes last: rows that runs share, which others would wait for from then on.

    Where several servers write side by side, each under the locks of its own runs, two of them could wait for each
    other over such rows. So these are collected, summed for each row, and written in one order by all. `count`: how
    many were collected.
    """

    def __init__(self) -> None:
        self.count = 0
        self._writes: dict[tuple[str, int | str], LastWrite] = {}

    def add(self, table: str, key: int | str, write: LastWrite) -> None:
        """Leave what is to become of the row with this key."""
        self.count += 1
        before = self._writes.get((table, key))
        self._writes[table, key] = write if before is None else before.plus(write)

    def write(self, session: Session) -> None:
        """Write all of it, with a session that collects nothing."""
        for _, write in sorted(self._writes.items(), key=itemgetter(0)):
            write.write(session)


class NotAlone(Exception):
    """A job of one run turned out to concern others as well: it is run again while nobody else writes."""


class CorruptRows(Exception):
    """Rows contradict each other, which is found only after something was written: the whole transaction is undone.

    A KairosError from a job refuses that job alone, before its first write; this one ends its transaction.
    """


def placeholders(values: Collection[object]) -> str:
    """Return the places of so many bindings, for `in (…)`. For none it is null, which nothing equals: PostgreSQL knows
    no empty list."""
    return ", ".join("?" * len(values)) or "null"


LISTED_ID = "case when item.type = 'integer' then cast(item.value as bigint) end"
"""SQL for an id in a list of ids that `json_each(…) as item` takes apart; null for whatever else stands there."""


def json_or_null(column: str) -> str:
    """Return SQL for a JSON column that is null where the column holds no JSON.

    So one damaged row does not make a statement fail for all others.
    """
    return f"case when json_valid({column}) then {column} end"
