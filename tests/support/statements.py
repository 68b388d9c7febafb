"""Count the SQL statements on every connection that a test opens, but for those that a timer adds on a slow machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import apsw

BY_A_TIMER = ("_watch_store", "_cancel_when_unneeded")  # the look for commits of others, the watch of a slow client


def is_by_timer() -> bool:
    """Whether a timer brought about what is being executed."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name not in BY_A_TIMER:
        frame = frame.f_back
    return frame is not None


@dataclass
class Statements:
    """So many statements until now, transactions among them, and names that SQLite looked up to plan one."""

    count: int = 0
    begun: int = 0
    looked_up: int = 0

    def add(self, _cursor: object, statement: str, _bindings: object) -> bool:
        if not is_by_timer():
            self.count += 1
            self.begun += statement.startswith("begin")
        return True

    def _look_up(self, *_name: object) -> int:
        self.looked_up += not is_by_timer()
        return apsw.SQLITE_OK

    def trace(self, connection: apsw.Connection) -> None:
        connection.exec_trace = self.add
        connection.authorizer = self._look_up


@contextmanager
def count_statements() -> Iterator[Statements]:
    statements = Statements()
    apsw.connection_hooks.append(statements.trace)
    try:
        yield statements
    finally:
        apsw.connection_hooks.remove(statements.trace)
