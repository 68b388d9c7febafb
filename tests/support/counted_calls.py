"""How many calls of Python and of C an act makes: a measure of its cost that every machine counts alike."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class CountedCalls:
    calls: int = 0


@contextmanager
def counting_calls() -> Iterator[CountedCalls]:
    """Count the calls that this thread makes inside the block, as the event loop that runs in it does."""
    counted = CountedCalls()

    def count(_frame: object, event: str, _arg: object) -> None:
        counted.calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield counted
    finally:
        sys.setprofile(None)


def count_calls(take: Callable[[], object]) -> int:
    with counting_calls() as counted:
        take()
    return counted.calls
