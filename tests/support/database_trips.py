"""Count how often a server waits for its database: each time it asks for the results of what it has sent."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Group(NamedTuple):
    """A transaction of `jobs` jobs of single runs: what it took."""

    jobs: int
    trips: int
    statements: int


@contextmanager
def count_trips(writer: Any) -> Iterator[list[Group]]:
    """Yield the groups that a writer commits beside other servers, as they are committed."""
    groups: list[Group] = []
    transact: Callable[[Any], Any] = writer._transact_beside

    def transact_counted(group: Any) -> Any:
        with tempfile.TemporaryFile("w+") as trace:
            connection = writer._open_session().connection.pgconn
            connection.trace(trace.fileno())
            left = transact(group)
            connection.untrace()
            trace.seek(0)
            groups.append(Group(len(group), *count_waits(trace)))
        return left

    writer._transact_beside = transact_counted
    try:
        yield groups
    finally:
        del writer._transact_beside


def count_waits(trace: Iterable[str]) -> tuple[int, int]:
    """Trips and statements in what libpq traced; results that are asked for twice in a row come at once."""
    trips = statements = 0
    has_asked = False
    for line in trace:
        _, direction, _, message = line.split("\t", 3)
        asks = direction == "F" and message.startswith(("Sync", "Flush", "Query"))
        trips += asks and not has_asked
        statements += direction == "F" and message.startswith("Execute")
        has_asked = asks or (has_asked and direction == "F")
    return trips, statements
