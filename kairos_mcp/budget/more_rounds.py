"""How many more rounds a loop is granted that asks for some: judged by what it has done, never by what it says.

Integers alone, no I/O. The store calls `grant_rounds` inside the transaction that answers the request and raises the
cap, with the grants, calls and accounts as they are then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kairos_mcp.core.text import count_of

MAX_GRANTS = 2  # of a task with all its tries, or of a run without tasks
MAX_GRANTED_ROUNDS = 10  # of all its grants together


class MadeCall(NamedTuple):
    """A call that a loop made: digests of what was asked and of its result, and the files that it left changed.

    `found`: digests of what it showed: its result, and the files that it read or wrote; none where it failed.
    """

    call: bytes
    result: bytes
    found: frozenset[bytes] = frozenset()
    changes_files: bool = False


class Progress(NamedTuple):
    """What a loop did since its last grant, or since it began.

    `repeats`: how many of its `calls` repeat an earlier one. `finds_new`: one of them showed what none before did.
    """

    calls: int
    repeats: int
    finds_new: bool


class RoundsGrant(NamedTuple):
    """The answer to a request for more rounds. `left`: how many the loop has now; None: as many as it likes."""

    granted: int
    left: int | None
    reason: str

    @property
    def sentence(self) -> str:
        """The answer as the loop's model reads it."""
        left = "" if self.left is None else f" {count_of(self.left, 'round')} left now."
        if self.granted:
            return f"{count_of(self.granted, 'more round')} granted: {self.reason}.{left}"
        return f"No more rounds: {self.reason}.{left} Finish with what you have."


def measure_progress(before: Iterable[MadeCall], since: Iterable[MadeCall]) -> Progress:
    """Measure the calls `since` the last grant, knowing those `before` it.

    A call repeats an earlier one that asked the same, if the result is the same too, or if that one succeeded and no
    file was changed in between: then a result that differs, as by a date in it, tells nothing new.
    """
    newest: dict[bytes, tuple[bytes, int | None]] = {}  # by what was asked: result, changes before it (None: it failed)
    seen: set[bytes] = set()
    changes = calls = repeats = 0
    finds_new = False
    for each, counts in (*((call, False) for call in before), *((call, True) for call in since)):
        known = newest.get(each.call)
        is_repeat = known is not None and (known[0] == each.result or known[1] == changes)
        if counts:
            calls, repeats = calls + 1, repeats + is_repeat
            finds_new = finds_new or not (is_repeat or each.found <= seen)
        seen |= each.found
        changes += each.changes_files
        newest[each.call] = each.result, changes if each.found else None
    return Progress(calls, repeats, finds_new)


def grant_rounds(
    asked: int,
    earlier: Sequence[int],
    left: int | None,
    room: int | None,
    measure: Callable[[], Progress],
) -> RoundsGrant:
    """Decide on a request for `asked` more rounds.

    `earlier`: the rounds of each grant before. `left`: what is left of the loop's own cap; None: there is none. `room`:
    by how many that cap may rise within the limits around it; None: there are none. `measure` is called last.
    """
    if left is None:
        return RoundsGrant(0, None, "the rounds of this loop are not limited")
    if len(earlier) >= MAX_GRANTS or sum(earlier) >= MAX_GRANTED_ROUNDS:
        most = f"{MAX_GRANTS} times and {MAX_GRANTED_ROUNDS} rounds in all"
        return RoundsGrant(0, left, f"{sum(earlier)} were granted before, and {most} is the most")
    if room is not None and room <= 0:
        return RoundsGrant(0, left, "the limits around this loop have none left for it")
    calls, repeats, finds_new = measure()
    since = "the last grant" if earlier else "the start"
    made = f"{count_of(calls, 'call')} since {since}, {repeats or 'none'} of them repeated"
    if not finds_new:
        return RoundsGrant(0, left, f"no call since {since} showed anything that was not known before")
    if repeats * 2 >= calls:
        return RoundsGrant(0, left, made)
    granted = min(asked, MAX_GRANTED_ROUNDS - sum(earlier), asked if room is None else room)
    cut = f"; {asked} were asked for, and the limits have no more" if granted < asked else ""
    return RoundsGrant(granted, left + granted, f"{made}{cut}")
