"""Count how often a server waits for its database: each time it asks for the results of what it has sent."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple


class Group(NamedTuple):
    """A transaction of `jobs` jobs: what it took. `is_alone`: nobody else wrote meanwhile."""

    jobs: int
    is_alone: bool
    trips: int
    statements: int


class Read(NamedTuple):
    """What one function that reads took. `caller`: the function that handed it to the store."""

    caller: str
    trips: int
    statements: int


@contextmanager
def count_trips(writer: Any) -> Iterator[list[Group]]:
    """Yield the groups that a writer commits, as they are committed; twice where one was made again."""
    groups: list[Group] = []

    def count(group: Any, *, is_alone: bool) -> Any:
        def note(trips: int, statements: int) -> None:
            groups.append(Group(len(group), is_alone, trips, statements))

        with _trace(writer._open_session().connection, note):
            return transact(group, is_alone=is_alone)

    transact = writer._transact_group
    writer._transact_group = count
    try:
        yield groups
    finally:
        del writer._transact_group


@contextmanager
def count_reads(store: Any) -> Iterator[list[Read]]:
    """Yield the reads of a store as they end, each with all that was sent for it once it had a connection."""
    reads: list[Read] = []
    read, read_in_thread, take_session = store.read, store._read, store._take_session
    in_thread = threading.local()

    async def read_named(function: Any, *, one_state: bool = False) -> Any:
        named = partial(function)
        named.caller = sys._getframe(1).f_code.co_qualname  # type: ignore[attr-defined]
        return await read(named, one_state=one_state)

    def read_counted(named: Any, one_state: bool) -> Any:
        with ExitStack() as in_thread.traces:
            in_thread.caller = named.caller
            return read_in_thread(named, one_state)

    def take_traced() -> Any:
        session, is_new = take_session()
        caller = in_thread.caller
        in_thread.traces.enter_context(_trace(session.connection, lambda *took: reads.append(Read(caller, *took))))
        return session, is_new

    store.read, store._read, store._take_session = read_named, read_counted, take_traced
    try:
        yield reads
    finally:
        del store.read, store._read, store._take_session


@contextmanager
def _trace(connection: Any, note: Callable[[int, int], None]) -> Iterator[None]:
    """Count trips and statements of a connection within, and note them at the end."""
    with tempfile.TemporaryFile("w+", errors="replace") as trace:
        connection.pgconn.trace(trace.fileno())
        try:
            yield
        finally:
            if not connection.closed:
                connection.pgconn.untrace()
            trace.seek(0)
            note(*count_waits(trace))


def count_waits(trace: Iterable[str]) -> tuple[int, int]:
    """Trips and statements in what libpq traced. A trip: what was asked for is received; whatever was asked for since
    the last one came with it, and what nobody has received is none."""
    trips = statements = 0
    has_asked = False
    for line in trace:
        _, direction, _, message = (*line.split("\t", 3), "", "", "")[:4]
        if direction == "F":
            has_asked = has_asked or message.startswith(("Sync", "Flush", "Query"))
            statements += message.startswith(("Execute", "Query"))
        elif direction == "B" and has_asked:
            trips, has_asked = trips + 1, False
    return trips, statements
