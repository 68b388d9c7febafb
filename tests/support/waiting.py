"""A bounded wait for what no event tells of, as another program's file or row: it is looked at again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

LOOK_S = 0.02  # more often, it would take from what is waited for
T = TypeVar("T")


def wait_until(
    seen: Callable[[], T], within_s: float = 30.0, describe: Callable[[], object] = lambda: "it never came"
) -> T:
    """Return what `seen` gives as soon as that is true; fails with what `describe` gives then if it isn't in time."""
    ends = time.monotonic() + within_s
    while not (found := seen()):
        assert time.monotonic() < ends, describe()
        time.sleep(LOOK_S)  # between two looks
    return found
