"""How many calls of Python and of C an act makes: a measure of its cost that every machine counts alike."""

import sys
from collections.abc import Callable


def count_calls(take: Callable[[], object]) -> int:
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        take()
    finally:
        sys.setprofile(None)
    return calls
