"""Counted work: what a check may cost at most, in units that any machine counts alike.

Time would not do: the same value has to fit, or not, on a busy machine as on an idle one, and whenever a run is
replayed. A unit is about 0.2 microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LOOP_UNITS = 100_000  # of one check in the event loop: some 20 ms
THREAD_UNITS = 1_000_000  # of one check in a worker thread, beside which the loop goes on


class TooMuchWork(Exception):
    """A check would cost more than it may; nothing is known of its result."""


class Work:
    """The units that are left of a check, and the size of the schema that is checked against, its refs followed."""

    __slots__ = ("left", "schema_nodes")

    def __init__(self, units: int, schema_nodes: int = 0) -> None:
        self.left = units
        self.schema_nodes = schema_nodes

    def spend(self, units: int) -> None:
        """Take units. Raises TooMuchWork where fewer are left."""
        self.left -= units
        if self.left < 0:
            raise TooMuchWork

    @contextmanager
    def make_current(self) -> Iterator[None]:
        """Have `current_work` return this work while the block lasts."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


_CURRENT: ContextVar[Work] = ContextVar("current_work")


def current_work() -> Work:
    """Return the work of the check that is under way: for code that a library calls, which hands nothing on."""
    return _CURRENT.get()
