"""Accounts: caps, held and spent amounts; what a step reserves before it begins; the status line.

Integers alone, no I/O. A branch that begins gets caps of its own, computed from the accounts of that moment; they rise
once its siblings have left more. In whatever order branches begin, spend and end, the running ones may together spend
no more than the enclosing account has left, less what is set aside there. Even if this calculation were wrong, the
enclosing accounts would refuse.

`reserve` is called with the accounts as they are in the transaction that records the start of the step: read there, or
in memory, with amounts that this transaction then compares. So two steps can never reserve the same token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias

from kairos_mcp.core.limits import FREE, NOTHING, UNITS, UNLIMITED, Amount, BranchShare, Cap, Limits, Price, Unit, Units
from kairos_mcp.core.steps import Refused

Remaining: TypeAlias = Amount["int | None"]
"""What an account has left of each unit: neither spent nor held, never below zero; None if the unit is not limited."""

_remaining: Callable[[list[int | None]], Remaining] = partial(tuple.__new__, Amount)


class Account(NamedTuple):
    """The amounts that may be used (`caps`; None: no limit), that steps without an answer hold, and that are spent.

    `scope`: `run`, `branch` and its path, or, for an account that several runs share, `day` or `mandate`.
    """

    id: int
    caps: Limits
    held: Units
    spent: Units
    scope: str = "run"

    @property
    def remaining(self) -> Remaining:
        left, held, spent = [*UNLIMITED], self.held, self.spent
        for place, _, most in self.caps.caps:
            used = held[place] + spent[place]
            left[place] = most - used if most > used else 0
        return _remaining(left)

    def settle(self, held: Units, spent: Units) -> Account:
        """Return the account after a step that held `held` has ended and cost `spent`."""
        return _account((self.id, self.caps, self.held.minus(held), self.spent.plus(spent), self.scope))

    def hold(self, held: Units) -> Account:
        """Return the account after a step has reserved `held`."""
        return _account((self.id, self.caps, self.held.plus(held), self.spent, self.scope))

    def refuse(self, unit: str) -> Refused:
        """Return the refusal of a step for which too little of this unit is left."""
        used: int = getattr(self.spent, unit) + getattr(self.held, unit)
        return Refused(unit, used, getattr(self.caps, unit), self.scope)


_account = partial(tuple.__new__, Account)


_NOT_SHARED = {field: 0 for field, unit in UNITS.items() if not unit.shared}


def shared_part(amount: Units) -> Units:
    """Return the part of an amount that counts in shared accounts: model calls, their tokens and their price."""
    return amount._replace(**_NOT_SHARED)


class BranchOpening(NamedTuple):
    """The caps of a branch that starts, and whether they buy its first step and, after a round, a closing call."""

    caps: Limits
    is_enough: bool = True


def open_branch(
    share: BranchShare,
    enclosing: Account,
    siblings: Sequence[Account] = (),
    first: ReservationRequest | None = None,
) -> BranchOpening:
    """Return the caps of a branch that begins: in each unit what was asked for it, at most its part of what is free.

    Free is what the enclosing account has neither spent, nor held, nor set aside, nor left in the caps of the running
    `siblings`. It is divided into a part for each branch that may begin now, and one as a reserve. If such a part would
    not buy the `first` step, it is divided into fewer, at last into this branch's part and the reserve. If even that
    part is too small, the caps are all that is free, and `is_enough` is False: the branch waits while a sibling runs.
    When a branch ends, what it has left is free again.
    """
    free = _free_by_unit(share, enclosing, siblings)
    parts = share.count_parts(len(siblings))
    if first is None:
        return BranchOpening(_divide(share, free, parts[0]))
    for count in parts:
        caps = _divide(share, free, count)
        if _buys_closing(Account(0, _binding_caps(share, caps), NOTHING, NOTHING), first, CLOSING_TOKENS):
            return BranchOpening(caps)
    return BranchOpening(_divide(share, free, 1), is_enough=False)


def raise_caps(
    share: BranchShare, branch: Account, enclosing: Account, siblings: Sequence[Account], step: ReservationRequest
) -> Limits | None:
    """Return higher caps for a branch that needs more for a step; None if its part of what is free buys too little.

    What ended siblings have left is for those that have not begun, so caps rise only once all have begun. The unused
    part of the branch's own caps counts as free. What is free is divided among all branches that have not ended, or
    among fewer if so small a part would not buy the step.
    """
    if share.unended > len(siblings) + 1:
        return None
    free, asked = _free_by_unit(share, enclosing, siblings), _unused_share(share, branch)
    for count in range(share.unended, 0, -1):
        raised = _add_part(branch, _divide(asked, free, count))
        if _buys_closing(branch._replace(caps=raised), step, SHORT_CLOSING_TOKENS):
            return raised if raised != branch.caps else None
    return None


def _unused_share(share: BranchShare, branch: Account) -> BranchShare:
    """Return the share of a branch less what it has used of what was asked for it."""
    used = branch.held.plus(branch.spent)
    rest = [None if asked is None else max(0, asked - done) for asked, done in zip(share.limits, used, strict=True)]
    return share._replace(limits=Limits(*rest))


def _add_part(branch: Account, part: Limits) -> Limits:
    """Return the caps of a branch with this much left of each unit, and in no unit less than before."""
    caps: list[int | None] = []
    for now, more, done in zip(branch.caps, part, branch.held.plus(branch.spent), strict=True):
        caps.append(None if now is None or more is None else max(now, done + more))
    return Limits(*caps)


def is_final(share: BranchShare, branch: Account, unit: str) -> bool:
    """Whether the cap of a branch in this unit never rises: it is all that was asked for the branch."""
    asked, cap = getattr(share.limits, unit), getattr(branch.caps, unit)
    return asked is not None and cap is not None and cap >= asked


def _free_by_unit(share: BranchShare, enclosing: Account, siblings: Sequence[Account]) -> list[int | None]:
    promised = [each.remaining for each in siblings]
    free: list[int | None] = []
    for place, (left, aside) in enumerate(zip(enclosing.remaining, share.reserved, strict=True)):
        kept = (aside or 0) + sum(each[place] or 0 for each in promised)
        free.append(None if left is None else max(0, left - kept))
    return free


def _divide(share: BranchShare, free: Sequence[int | None], parts: int) -> Limits:
    caps: list[int | None] = []
    for asked, amount, aside in zip(share.limits, free, share.reserved, strict=True):
        keeps_share = share.keeps_share and aside is None
        part = None if amount is None else amount // (parts + keeps_share)
        caps.append(part if asked is None else asked if part is None else min(asked, part))
    return Limits(*caps)


def _binding_caps(share: BranchShare, caps: Limits) -> Limits:
    """Return the caps without those that are all that was asked: to wait would not raise them."""
    asked = share.limits
    return Limits(*(None if cap == most else cap for cap, most in zip(caps, asked, strict=True)))


def _buys_closing(account: Account, step: ReservationRequest, closing_tokens: int) -> bool:
    """Whether an account buys the step and, if it is a round, a closing call that may write `closing_tokens`."""
    remaining = account.remaining
    if step.purpose == "round" and remaining.model_calls == 1:
        return False
    if isinstance(_reserve_in_nearest(account, step), Refused):
        return False
    if step.counts_only or step.purpose != "round":
        return True
    return _affordable_tokens(remaining, step, closing_tokens)[0] >= min(USEFUL_TOKENS, step.wanted_tokens)


def format_status_line(account: Account, *, closing: bool = False) -> str | None:
    """Return the status line: `[round 3 of 12, 38k of 100k tokens]`; None if nothing is limited.

    The closing call is no further round, and its prompt already says that it is the last one.
    """
    caps = _in_line_order(account.caps.caps)
    if not caps:
        return None
    parts = ", ".join([_format_cap(account, cap, closing=closing) for cap in caps])
    return f"[{parts}{'' if closing else _warning(account, caps)}]"


@lru_cache(maxsize=256)  # most runs have the same limits, and their status is formatted every round
def _in_line_order(caps: tuple[Cap, ...]) -> tuple[Cap, ...]:
    return tuple(sorted(caps, key=lambda cap: UNITS[cap.unit].order))


def _format_cap(account: Account, cap: Cap, *, closing: bool) -> str:
    place, unit, most = cap
    spent = account.spent[place]
    match UNITS[unit]:
        case Unit(name="rounds", words=words):
            return f"{words} {spent + account.held.rounds + (not closing)} of {most}"
        case Unit(words="$" as sign, scale=scale):
            return f"{sign}{spent / scale:.2f} of {sign}{most / scale:.2f}"
        case Unit(held="count", words=words):
            return f"{spent} of {most} {words}"
        case Unit(held="time", words=words, scale=scale):
            return f"{spent / scale:.0f} of {most / scale:.0f} {words}"
        case Unit(words=words):
            return f"{_short_number(spent)} of {_short_number(most)} {words}"


def _warning(account: Account, caps: Iterable[Cap]) -> str:
    """Tell the model to finish, from 3 rounds of 10 left, or a quarter of any other limit."""
    held, spent, is_little = account.held, account.spent, False
    for place, unit, most in caps:
        left = max(0, most - held[place] - spent[place])
        if unit != "rounds":
            is_little = is_little or left * 4 <= most
        elif most and left * 10 <= most * 3:
            return f"; {left} {'round' if left == 1 else 'rounds'} left: finish"
    return "; little is left: finish" if is_little else ""


def _short_number(tokens: int) -> str:
    return f"{tokens / 1000:.0f}k" if tokens >= 10_000 else str(tokens)


_COUNTED = [(place, field) for place, (field, unit) in enumerate(UNITS.items()) if unit.held == "count"]
_KNOWN_AFTER = [(place, field) for place, (field, unit) in enumerate(UNITS.items()) if unit.held == "after"]
_WEIGHED = [(place, field, unit.weighs) for place, (field, unit) in enumerate(UNITS.items()) if unit.held == "tokens"]
_TIMED = [place for place, unit in enumerate(UNITS.values()) if unit.held == "time"]
_units: Callable[[list[int]], Units] = partial(tuple.__new__, Units)

USEFUL_TOKENS = 256  # a completion granted less than this says nothing worth its price
CLOSING_TOKENS = 1024  # what a closing call may write, kept free before each round
SHORT_CLOSING_TOKENS = 512  # the same where little is left: what is worth its price, and as much for the call's prompt
CLOSING_MS = 30_000  # what a closing call may take after `seconds` ran out
USEFUL_MS = 1


class ReservationRequest(NamedTuple):
    """The most that a step may use. `counts` are exact; the other fields bound a completion that this server makes.

    `input_bound`, `wanted_tokens`: tokens in and out of a completion (0 for a tool call). `timeout_ms`: the longest
    that the step may take. `time_shares`: how many steps of this commit divide the time that is left.
    `counts_only`: it holds no tokens and no time, since somebody outside completes or decides, or since it does not
    begin now. `price`: of a token; None if this server pays an unknown price.
    """

    counts: Units
    purpose: str
    counts_only: bool = False
    input_bound: int = 0
    wanted_tokens: int = 0
    timeout_ms: int = 0
    time_shares: int = 1
    price: Price | None = FREE


class Reservation(NamedTuple):
    """Permission to begin: the amounts that the step holds, the tokens that it may write, the time that it may take."""

    held: Units
    max_tokens: int
    timeout_ms: int


NO_DAY = "no day"  # the scope of a refusal if the clock does not tell which day a model call belongs to
# Scopes of the accounts that runs share: when one of these is exhausted, the run pauses.
SHARED_SCOPES = ("day", "mandate", NO_DAY)
WHOLE_PREFIX = "whole "  # before such a scope: not even an unused account of this kind has room for the step


def reserve(
    account: Account, request: ReservationRequest, shared: Sequence[Account] = (), enclosing: Sequence[Account] = ()
) -> Reservation | Refused:
    """Return a reservation that every account of the step has room for, or the first refusal.

    `account` is the nearest: the run's own, or that of the branch in which the step is. `enclosing` are the accounts
    around a branch, up to the run's; `shared` are those that the run shares with others (a day, a mandate).
    """
    reservation = _reserve_in_nearest(account, request)
    for other in enclosing:
        if isinstance(reservation, Refused):
            return reservation
        reservation = _reserve_in_enclosing(other, request, reservation)
    for other in shared:
        if isinstance(reservation, Refused):
            return reservation
        reservation = _reserve_in_shared(other, request, reservation)
    return reservation


def minimum_hold(request: ReservationRequest) -> Units:
    """Return the least that a completion needs: its whole input, and the fewest output tokens worth their price."""
    return _make_reservation(request, min(USEFUL_TOKENS, request.wanted_tokens), 0).held


def _reserve_in_enclosing(
    account: Account, request: ReservationRequest, reservation: Reservation
) -> Reservation | Refused:
    """Fit the reservation into an enclosing account. Only the nearest account keeps a closing call free."""
    remaining = account.remaining
    if (unit := _exhausted_unit(remaining, request.counts)) is not None:
        return account.refuse(unit)
    if request.counts_only:
        return _reserve_outside(account, remaining, request)
    timeout = _grant_time(account, remaining, request._replace(timeout_ms=reservation.timeout_ms, time_shares=1))
    if isinstance(timeout, Refused):
        return timeout
    if not request.wanted_tokens:
        return _reserve_time(request.counts, timeout)
    return _limit_tokens(account, remaining, request, reservation._replace(timeout_ms=timeout))


def _reserve_in_shared(
    account: Account, request: ReservationRequest, reservation: Reservation
) -> Reservation | Refused:
    """Fit the reservation into a shared account. An exhausted one pauses the run, so nothing is kept free."""
    refused = _fit_into_shared(account, request, reservation)
    if isinstance(refused, Refused):
        empty = Account(account.id, account.caps, NOTHING, NOTHING, account.scope)
        # Where even an unused account would refuse, so would that of the next day: waiting for it is no use.
        if isinstance(_fit_into_shared(empty, request, reservation), Refused):
            return Refused(refused.limit, refused.used, refused.allowed, f"{WHOLE_PREFIX}{account.scope}")
    return refused


def _fit_into_shared(account: Account, request: ReservationRequest, reservation: Reservation) -> Reservation | Refused:
    remaining = account.remaining
    if remaining.model_calls is not None and request.counts.model_calls > remaining.model_calls:
        return account.refuse("model_calls")
    if request.counts_only:
        return _reserve_outside(account, remaining, request)
    return _limit_tokens(account, remaining, request, reservation)


def _limit_tokens(
    account: Account, remaining: Remaining, request: ReservationRequest, reservation: Reservation
) -> Reservation | Refused:
    """Return the reservation with as many of its tokens as the account has left."""
    if request.price is None and remaining.nano_usd is not None:
        return account.refuse("nano_usd")
    tokens, unit = _affordable_tokens(remaining, request._replace(wanted_tokens=reservation.max_tokens))
    if tokens < min(USEFUL_TOKENS, reservation.max_tokens):
        return account.refuse(unit)
    return _make_reservation(request, tokens, reservation.timeout_ms)


def _exhausted_unit(remaining: Remaining, counts: Units) -> str | None:
    """Return the first unit that forbids the step, or None: less is left of it than the step counts; or nothing is
    left of it, and only the answer of this call tells how much was used."""
    for place, unit in _COUNTED:
        left = remaining[place]
        if left is not None and counts[place] > left:
            return unit
    for place, unit in _KNOWN_AFTER:
        if remaining[place] == 0 and counts.tool_calls:
            return unit
    return None


def _reserve_in_nearest(account: Account, request: ReservationRequest) -> Reservation | Refused:
    remaining, counts = account.remaining, request.counts
    if (unit := _exhausted_unit(remaining, counts)) is not None:
        return account.refuse(unit)
    if counts.rounds and remaining.model_calls == 1 and account.spent.rounds:
        return account.refuse("model_calls")  # the last call is kept for the closing
    if request.counts_only:
        return _reserve_outside(account, remaining, request)
    timeout = _grant_time(account, remaining, request)
    if isinstance(timeout, Refused):
        return timeout
    if not request.wanted_tokens:
        return _reserve_time(counts, timeout)
    tokens = _grant_tokens(account, remaining, request)
    if isinstance(tokens, Refused):
        return tokens
    return _make_reservation(request, tokens, timeout)


@lru_cache(maxsize=256)  # calls of a tool have the same timeout, as long as so much is left
def _reserve_time(counts: Units, timeout: int) -> Reservation:
    return Reservation(counts._replace(milliseconds=timeout), 0, timeout)


def _make_reservation(request: ReservationRequest, tokens: int, timeout: int) -> Reservation:
    held, read, price = [*request.counts], request.input_bound, request.price or FREE
    for place, _, fixed in _WEIGHED:
        weight = fixed or price
        held[place] = weight.read * read + weight.written * tokens
    for place in _TIMED:
        held[place] = timeout
    return Reservation(_units(held), tokens, timeout)


def _reserve_outside(account: Account, remaining: Remaining, request: ReservationRequest) -> Reservation | Refused:
    """Reserve for a step that somebody else performs: it holds no tokens, but a completion needs that some are left."""
    if request.wanted_tokens:
        for place, unit, weight in _WEIGHED:
            if weight is not None and remaining[place] == 0:
                return account.refuse(unit)
    if request.purpose != "closing" and remaining.milliseconds == 0:
        return account.refuse("milliseconds")
    return Reservation(request.counts, request.wanted_tokens, 0)


def _grant_time(account: Account, remaining: Remaining, request: ReservationRequest) -> int | Refused:
    if remaining.milliseconds is None:
        return request.timeout_ms
    if request.purpose == "closing":
        caps, used = account.caps, account.spent.milliseconds + account.held.milliseconds
        # All attempts share this overtime.
        spare = ((caps.milliseconds or 0) + CLOSING_MS - used) // max(1, request.time_shares)
        return min(request.timeout_ms, spare) if spare >= USEFUL_MS else account.refuse("milliseconds")
    share = remaining.milliseconds // max(1, request.time_shares)
    if share < USEFUL_MS:
        return account.refuse("milliseconds")
    return min(request.timeout_ms, share)


def _grant_tokens(account: Account, remaining: Remaining, request: ReservationRequest) -> int | Refused:
    """Return the tokens that a completion may write: those wanted, as far as room is left for a closing call.

    If little is left, the room is for a short closing call. The first round may use that room too; the outcome then has
    a record in place of a summary. No closing call follows a phase, so a phase may use all that is left. An unknown
    price is refused under a limit on money.
    """
    if request.price is None and remaining.nano_usd is not None:
        return account.refuse("nano_usd")
    found = (0, "total_tokens")
    for closing_tokens in _closings_to_keep(account, request):
        found = _affordable_tokens(remaining, request, closing_tokens)
        if found[0] >= min(USEFUL_TOKENS, request.wanted_tokens):
            return found[0]
    return account.refuse(found[1])


def _closings_to_keep(account: Account, request: ReservationRequest) -> tuple[int | None, ...]:
    """Return, most first, for how many tokens of a closing call to keep room after this completion; None: for none."""
    if request.purpose == "round":
        return (
            (CLOSING_TOKENS, SHORT_CLOSING_TOKENS)
            if account.spent.rounds
            else (CLOSING_TOKENS, SHORT_CLOSING_TOKENS, None)
        )
    return (CLOSING_TOKENS, SHORT_CLOSING_TOKENS) if request.purpose == "repair" and account.spent.rounds else (None,)


def _affordable_tokens(
    remaining: Remaining, request: ReservationRequest, closing_tokens: int | None = None
) -> tuple[int, str]:
    """Return how many tokens may be written, and the unit that sets this bound.

    Each unit weighs a token that is read and one that is written: by 1, by 0 or by its price. A closing call reads at
    most what this completion reads and writes. So if room is kept for one, a token written now counts as read, too.
    """
    room = (request.wanted_tokens, "total_tokens")
    for place, unit, fixed in _WEIGHED:
        left, weight = remaining[place], fixed or request.price or FREE
        if left is None:
            continue
        spare, token_weight = left - weight.cost(request.input_bound, 0), weight.written
        if closing_tokens is not None:
            spare -= weight.cost(request.input_bound, closing_tokens)
            token_weight += weight.read
        most = spare // token_weight if token_weight else (request.wanted_tokens if spare >= 0 else spare)
        room = min(room, (most, unit))
    return room
