"""How many more rounds a loop is granted that asks for some: judged by what it has done, never by what it says.

Integers alone, no I/O. `answer_request` is given the grants, calls and accounts as they are in the transaction that
records the answer and raises the cap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import NamedTuple

from kairos_mcp.budget.ledger import RUN, Ledger
from kairos_mcp.budget.reservation import Account
from kairos_mcp.core.file_changes import changed_files
from kairos_mcp.core.limits import BranchShare
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import Answer, task_of
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


# -- a request, with what the run's record says ----------------------------------------------------------------------

BY_BUDGET = "budget"  # who answers such a request, as the answer's row has it


class RoundsRequest(NamedTuple):
    """A loop's request for `asked` more rounds, and what bounds a grant.

    `refusal`: why it gets none, whatever it did. `most`: up to how many the run's own cap may rise. `share`: what the
    branch around the loop gets where one with limits of its own is; `open_branches`: the paths of all such branches
    that have begun and not ended.
    """

    asked: int
    refusal: str | None = None
    most: int | None = None
    share: BranchShare | None = None
    open_branches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    """A grant: the call that asked for it, and how many rounds it gave."""

    call: str
    granted: int


@dataclass(slots=True)
class LoopRecord:
    """What the loops of a run were granted and have done, in the order of the record.

    `calls`: by path, those that were answered; None: one that asked for more rounds.
    """

    grants: list[Grant] = field(default_factory=list)
    calls: list[tuple[str, MadeCall | None]] = field(default_factory=list)

    def copy(self) -> LoopRecord:
        return LoopRecord([*self.grants], [*self.calls])

    def add_call(self, path: str, digest: bytes, answer: Answer, by_route: str) -> None:
        """Add a call that was answered."""
        if by_route == BY_BUDGET:
            self.calls.append((path, None))
        elif isinstance(answer, ToolResult):
            self.calls.append((path, _made_call(digest, answer)))


def answer_request(
    ledger: Ledger, loops: LoopRecord, path: str, request: RoundsRequest
) -> tuple[ToolResult, Grant | None]:
    """Answer the request of the call at this path. What is granted is in the ledger and the record from then on."""
    own, *around = ledger.accounts_above(path)
    rests = [rest for each in (own, *around) if (rest := each.remaining.rounds) is not None]
    left = None if own.caps.rounds is None else min(rests)
    if request.refusal is not None and left is not None:
        return _as_result(RoundsGrant(0, left, request.refusal)), None
    earlier = [grant for grant in loops.grants if task_of(grant.call) == task_of(path)]
    found = grant_rounds(
        request.asked,
        [each.granted for each in earlier],
        left,
        _room(ledger, path, own, around, request),
        lambda: _progress(loops, ledger.charged_paths(path)[0], earlier),
    )
    if not found.granted:
        return _as_result(found), None
    ledger.raise_rounds(path, found.granted)
    grant = Grant(path, found.granted)
    loops.grants.append(grant)
    return _as_result(found), grant


def _as_result(grant: RoundsGrant) -> ToolResult:
    return ToolResult(grant.sentence, data=grant._asdict())


def _room(ledger: Ledger, path: str, own: Account, around: Sequence[Account], request: RoundsRequest) -> int | None:
    """Return by how many rounds the loop's cap may rise; None: nothing bounds it.

    Of the account around a branch it gets no more than its part of what is neither used, nor set aside, nor promised to
    the branches beside it: those that run keep what is left of their caps, those that have not begun divide the rest
    with it.
    """
    if not around or request.share is None:
        return None if request.most is None else request.most - (own.caps.rounds or 0)
    left = own.remaining.rounds or 0
    rooms = [rest - left for account in around if (rest := account.remaining.rounds) is not None]
    if (rest := around[0].remaining.rounds) is not None:
        mine, enclosing, *_ = ledger.charged_paths(path)
        beside = [each for each in request.open_branches if each in ledger.branches and each != mine]
        others = [ledger.accounts[each] for each in beside if ledger.charged_paths(each)[0] == enclosing]
        free = rest - sum(each.remaining.rounds or 0 for each in others) - (request.share.reserved.rounds or 0)
        rooms.append(max(0, free) // request.share.count_parts(len(others))[0] - left)
    return min(rooms, default=None)


def _progress(loops: LoopRecord, branch: str, earlier: Sequence[Grant]) -> Progress:
    """Measure what the loop of this branch did since its last grant."""
    inside = f"{branch}/" if branch != RUN else ""
    granted_at = {grant.call for grant in earlier}
    before: list[MadeCall] = []
    since: list[MadeCall] = []
    for path, call in loops.calls:
        if not path.startswith(inside):
            continue
        if path in granted_at:
            before, since = [*before, *since], []
        elif call is not None:
            since.append(call)
    return measure_progress(before, since)


def _made_call(digest: bytes, result: ToolResult) -> MadeCall:
    # What is shown of a long result names its own step; its whole text does not.
    content = result.kept.encode() if result.kept is not None else result.digest
    if result.is_error or not isinstance(result.data, dict):
        return MadeCall(digest, content, frozenset() if result.is_error else frozenset((content,)))
    files = changed_files(result)
    hashes = [result.data.get("sha256"), *(file.after for file in files)]
    found = {content, *(each.encode() for each in hashes if isinstance(each, str))}
    return MadeCall(digest, content, frozenset(found), bool(files))
