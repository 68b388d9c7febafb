"""The law of spending: what a step may hold of an account, decided before it begins. Integers alone, no I/O.

The store calls `grant` inside the transaction that marks the step, with the account as it is then; so two steps can
never be granted the same token. Rules and figures are those of RULINGS.md, "Limits and budgets".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kairos_mcp.budget.units import FREE, NOTHING, Account, Price, Remaining, Units
from kairos_mcp.core.steps import Refused

USEFUL_TOKENS = 256  # a completion granted less than this says nothing worth its price
CLOSING_TOKENS = 1024  # what a closing call may write, kept free before each round
CLOSING_MS = 30_000  # what a closing call may take after `seconds` ran out
USEFUL_MS = 1


class ReservationRequest(NamedTuple):
    """What a step would use. `counts` are exact; the rest bounds a completion that this server makes.

    `input_bound`, `wanted_tokens`: tokens in and out of a completion (0 for a tool call). `timeout_ms`: the longest
    it may take. `shares`: how many steps of this turn divide the time that is left. `open_step`: handed out to
    somebody else, so it holds its counts alone. `price`: None where this server pays and does not know how much.
    """

    counts: Units
    purpose: str
    external: bool = False
    input_bound: int = 0
    wanted_tokens: int = 0
    timeout_ms: int = 0
    shares: int = 1
    price: Price | None = FREE


class Reservation(NamedTuple):
    """Leave to begin: what the step holds of the account, the tokens it may write and the time it may take."""

    held: Units
    max_tokens: int
    timeout_ms: int


NO_DAY = "no day"  # the scope of a refusal where it can't be said which day a model call belongs to
SHARED_SCOPES = (
    "day",
    "mandate",
    NO_DAY,
)  # scopes of the accounts that runs share: one of these that is empty pauses a run
WHOLE_PREFIX = "whole "  # before such a scope: not even an empty account of this kind has room for what was asked


def reserve(
    account: Account, request: ReservationRequest, shared: Sequence[Account] = (), enclosing: Sequence[Account] = ()
) -> Reservation | Refused:
    """Leave to begin the step, or the first limit that forbids it.

    `account` is the nearest: the run's own, or that of the branch which the step stands in. `around` are those of
    which that is a part, up to the run's; `shared` what the run shares with others.
    """
    leave = _reserve_in_nearest(account, request)
    for each in enclosing:
        if isinstance(leave, Refused):
            return leave
        leave = _reserve_in_enclosing(each, request, leave)
    for each in shared:
        if isinstance(leave, Refused):
            return leave
        leave = _reserve_in_shared(each, request, leave)
    return leave


def minimum_hold(request: ReservationRequest) -> Units:
    """What a completion needs at least: all that it may read, and the fewest tokens that are worth their price."""
    return _make_reservation(request, min(USEFUL_TOKENS, request.wanted_tokens), 0).held


def _reserve_in_enclosing(account: Account, claim: ReservationRequest, leave: Reservation) -> Reservation | Refused:
    """The leave, within what is left of an account around the nearest, which alone keeps a closing call free."""
    rest = account.remaining
    if (unit := _exhausted_unit(rest, claim.counts)) is not None:
        return account.refuse(unit)
    if claim.external:
        return _reserve_external(account, rest, claim)
    timeout = _grant_time(account, rest, claim._replace(timeout_ms=leave.timeout_ms, shares=1))
    if isinstance(timeout, Refused):
        return timeout
    if not claim.wanted_tokens:
        return Reservation(claim.counts._replace(milliseconds=timeout), 0, timeout)
    return _limit_tokens(account, rest, claim, leave._replace(timeout_ms=timeout))


def _reserve_in_shared(account: Account, claim: ReservationRequest, leave: Reservation) -> Reservation | Refused:
    """The leave, within what is left of a shared account. An empty one pauses the run, so nothing is kept free."""
    refused = _reserve_in_account(account, claim, leave)
    if isinstance(refused, Refused):
        empty = Account(account.id, account.caps, NOTHING, NOTHING, account.scope)
        if isinstance(
            _reserve_in_account(empty, claim, leave), Refused
        ):  # so would the next day's be: to wait for it is no use
            return Refused(refused.limit, refused.used, refused.allowed, f"{WHOLE_PREFIX}{account.scope}")
    return refused


def _reserve_in_account(account: Account, claim: ReservationRequest, leave: Reservation) -> Reservation | Refused:
    rest = account.remaining
    if rest.model_calls is not None and claim.counts.model_calls > rest.model_calls:
        return account.refuse("model_calls")
    if claim.external:
        return _reserve_external(account, rest, claim)
    return _limit_tokens(account, rest, claim, leave)


def _limit_tokens(
    account: Account, rest: Remaining, claim: ReservationRequest, leave: Reservation
) -> Reservation | Refused:
    """The leave with as many of its tokens as there is room for."""
    if claim.price is None and rest.nano_usd is not None:
        return account.refuse("nano_usd")
    tokens, unit = _affordable_tokens(rest, claim._replace(wanted_tokens=leave.max_tokens), keeps_closing=False)
    if tokens < min(USEFUL_TOKENS, leave.max_tokens):
        return account.refuse(unit)
    return _make_reservation(claim, tokens, leave.timeout_ms)


def _exhausted_unit(rest: Remaining, counts: Units) -> str | None:
    """The unit of which there are not as many left as the step counts."""
    for unit, wanted, left in (
        ("rounds", counts.rounds, rest.rounds),
        ("model_calls", counts.model_calls, rest.model_calls),
        ("tool_calls", counts.tool_calls, rest.tool_calls),
    ):
        if left is not None and wanted > left:
            return unit
    return None


def _reserve_in_nearest(account: Account, claim: ReservationRequest) -> Reservation | Refused:
    rest, counts = account.remaining, claim.counts
    if (unit := _exhausted_unit(rest, counts)) is not None:
        return account.refuse(unit)
    if counts.rounds and rest.model_calls == 1 and account.spent.rounds:
        return account.refuse("model_calls")  # the last call is kept for the closing
    if claim.external:
        return _reserve_external(account, rest, claim)
    timeout = _grant_time(account, rest, claim)
    if isinstance(timeout, Refused):
        return timeout
    if not claim.wanted_tokens:
        return Reservation(counts._replace(milliseconds=timeout), 0, timeout)
    tokens = _grant_tokens(account, rest, claim)
    if isinstance(tokens, Refused):
        return tokens
    return _make_reservation(claim, tokens, timeout)


def _make_reservation(claim: ReservationRequest, tokens: int, timeout: int) -> Reservation:
    counts, read = claim.counts, claim.input_bound
    price = (claim.price or FREE).cost(read, tokens)
    held = Units(
        counts.rounds, counts.model_calls, read, tokens, read + tokens, price, counts.tool_calls, milliseconds=timeout
    )
    return Reservation(held, tokens, timeout)


def _reserve_external(account: Account, rest: Remaining, claim: ReservationRequest) -> Reservation | Refused:
    """Somebody else's completion holds no tokens, but is not asked for where none are left."""
    if claim.wanted_tokens:
        for unit in ("input_tokens", "output_tokens", "total_tokens"):
            if getattr(rest, unit) == 0:
                return account.refuse(unit)
    if claim.purpose != "closing" and rest.milliseconds == 0:
        return account.refuse("milliseconds")
    return Reservation(claim.counts, claim.wanted_tokens, 0)


def _grant_time(account: Account, rest: Remaining, claim: ReservationRequest) -> int | Refused:
    if rest.milliseconds is None:
        return claim.timeout_ms
    if claim.purpose == "closing":
        spare = account.remaining_with_overtime(CLOSING_MS) // max(1, claim.shares)
        return min(claim.timeout_ms, spare) if spare >= USEFUL_MS else account.refuse("milliseconds")
    share = rest.milliseconds // max(1, claim.shares)
    if share < USEFUL_MS:
        return account.refuse("milliseconds")
    return min(claim.timeout_ms, share)


def _grant_tokens(account: Account, rest: Remaining, claim: ReservationRequest) -> int | Refused:
    """The tokens a completion may write: what is wanted, clamped so that it and, after a round, a closing call fit.

    The first round may take what would be kept for the closing; its summary then comes from the record. A phase is no
    round, and no closing call follows it: it may take what there is.
    Money that can't be counted can't be kept within a limit, so an unknown price is refused.
    """
    if claim.price is None and rest.nano_usd is not None:
        return account.refuse("nano_usd")
    keeps_closing = claim.purpose == "round" or (claim.purpose == "repair" and account.spent.rounds > 0)
    roomy = _affordable_tokens(rest, claim, keeps_closing)
    if roomy[0] >= USEFUL_TOKENS or roomy[0] >= claim.wanted_tokens:
        return roomy[0]
    if keeps_closing and not account.spent.rounds:
        tight = _affordable_tokens(rest, claim, keeps_closing=False)
        if tight[0] >= min(USEFUL_TOKENS, claim.wanted_tokens):
            return tight[0]
        roomy = tight
    return account.refuse(roomy[1])


_READ, _WRITTEN, _EITHER = Price(1, 0), Price(0, 1), Price(1, 1)


def _affordable_tokens(rest: Remaining, claim: ReservationRequest, keeps_closing: bool) -> tuple[int, str]:
    """How many tokens may be written, and the unit that sets this bound.

    Each unit weighs a token that is read and one that is written: 1 or 0, or its price. A closing call reads at most
    what this completion reads and writes, so with one to come a token written now is read once more.
    """
    room = (claim.wanted_tokens, "total_tokens")
    for unit, left, weight in (
        ("input_tokens", rest.input_tokens, _READ),
        ("output_tokens", rest.output_tokens, _WRITTEN),
        ("total_tokens", rest.total_tokens, _EITHER),
        ("nano_usd", rest.nano_usd, claim.price or FREE),
    ):
        if left is None:
            continue
        spare, each = left - weight.cost(claim.input_bound, 0), weight.written
        if keeps_closing:
            spare -= weight.cost(claim.input_bound, CLOSING_TOKENS)
            each += weight.read
        most = spare // each if each else (claim.wanted_tokens if spare >= 0 else spare)
        room = min(room, (most, unit))
    return room
