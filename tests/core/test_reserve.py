"""One limit at a time: what is reserved never takes its account past it, and what does not fit is refused by name."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kairos_mcp.budget.reservation import (
    SHARED_SCOPES,
    Account,
    Reservation,
    ReservationRequest,
    format_status_line,
    minimum_hold,
    reserve,
    shared_part,
)
from kairos_mcp.core.limits import FREE, NOTHING, UNITS, Limits, Price, Units, counts_of
from kairos_mcp.core.steps import Refused

ROUND = ReservationRequest(
    counts_of("round"), "round", input_bound=2_000, wanted_tokens=4_000, timeout_ms=60_000, price=Price(3, 9)
)
CALL = ReservationRequest(counts_of("call"), "call", timeout_ms=60_000)
USED = Units(rounds=1, model_calls=1)
LEFT = {  # so much that something fits, and not all that is wanted
    "input_tokens": 10_000,
    "output_tokens": 3_000,
    "total_tokens": 5_600,
    "nano_usd": 30_000,
    "milliseconds": 1_000,
}


def account_with_cap(unit: str, cap: int, **more: int) -> Account:
    return Account(1, Limits(**{unit: cap, **more}), NOTHING, USED)


@pytest.mark.parametrize("unit", ["rounds", "model_calls", "tool_calls"])
def test_a_count_that_is_used_up_is_refused(unit: str) -> None:
    refused = reserve(account_with_cap(unit, getattr(USED, unit)), CALL if unit == "tool_calls" else ROUND)
    assert isinstance(refused, Refused)
    assert refused.limit == unit


@pytest.mark.parametrize("unit", LEFT)
def test_a_completion_is_clamped_to_what_is_left(unit: str) -> None:
    outcome = reserve(account_with_cap(unit, LEFT[unit]), ROUND)
    assert isinstance(outcome, Reservation)
    assert 0 < getattr(outcome.held, unit) <= LEFT[unit]


@pytest.mark.parametrize(
    ("limits", "spent", "line"),
    [
        (Limits(rounds=12), Units(rounds=2), "[round 3 of 12]"),
        (Limits(rounds=10), Units(rounds=6), "[round 7 of 10]"),
        (Limits(rounds=10), Units(rounds=7), "[round 8 of 10; 3 rounds left: finish]"),
        (Limits(rounds=10), Units(rounds=9), "[round 10 of 10; 1 round left: finish]"),
        (Limits(rounds=0), NOTHING, "[round 1 of 0]"),
        (Limits(model_calls=8), Units(model_calls=5), "[5 of 8 model calls]"),
        (Limits(model_calls=8), Units(model_calls=6), "[6 of 8 model calls; little is left: finish]"),
        (Limits(tool_calls=9), Units(tool_calls=1), "[1 of 9 tool calls]"),
        (Limits(model_calls=20_000), Units(model_calls=10_400), "[10400 of 20000 model calls]"),  # tokens alone in k
        (Limits(tool_calls=20_000), Units(tool_calls=10_400), "[10400 of 20000 tool calls]"),
        (Limits(total_tokens=10_000), Units(total_tokens=7_499), "[7499 of 10k tokens]"),
        (Limits(total_tokens=10_000), Units(total_tokens=7_500), "[7500 of 10k tokens; little is left: finish]"),
        (Limits(nano_usd=10**9), Units(nano_usd=210_000_000), "[$0.21 of $1.00]"),
        (Limits(milliseconds=60_000), Units(milliseconds=1_000), "[1 of 60 s]"),
        (Limits(total_tokens=99, rounds=4), NOTHING, "[round 1 of 4, 0 of 99 tokens]"),
    ],
)
def test_the_line_that_the_model_is_shown(limits: Limits, spent: Units, line: str) -> None:
    assert format_status_line(Account(1, limits, NOTHING, spent)) == line
    held = Account(1, limits, spent._replace(rounds=0), spent._replace(**dict.fromkeys(Units._fields[1:], 0)))
    assert ("finish" in (format_status_line(held) or "")) is ("finish" in line)  # what is held is not left either


def test_without_a_limit_there_is_no_line() -> None:
    assert format_status_line(Account(1, Limits(), NOTHING, USED)) is None


def test_a_repair_leaves_a_closing_call_its_room_as_soon_as_a_round_was_made() -> None:
    repair = ROUND._replace(counts=counts_of("repair"), purpose="repair")
    account = account_with_cap("total_tokens", LEFT["total_tokens"])
    first = account._replace(spent=NOTHING)
    assert reserve(account, repair) != reserve(first, repair)
    granted, of_round = reserve(account, repair), reserve(account, ROUND)
    assert isinstance(granted, Reservation)
    assert isinstance(of_round, Reservation)
    assert granted.max_tokens == of_round.max_tokens


@pytest.mark.parametrize("unit", LEFT)
def test_a_completion_that_does_not_fit_is_refused(unit: str) -> None:
    refused = reserve(account_with_cap(unit, 0), ROUND)
    assert isinstance(refused, Refused)
    assert (refused.limit, refused.used, refused.allowed) == (unit, 0, 0)


@pytest.mark.parametrize("unit", [unit for unit in LEFT if unit != "milliseconds"])
def test_after_a_round_a_closing_call_fits(unit: str) -> None:
    """It reads what the round read and wrote, and writes 1,024 tokens: each at its price."""
    account = account_with_cap(unit, LEFT[unit])
    outcome = reserve(account, ROUND)
    assert isinstance(outcome, Reservation)
    after = account.settle(NOTHING, outcome.held._replace(milliseconds=0))
    read = outcome.held.input_tokens + outcome.max_tokens
    closing = ROUND._replace(counts=counts_of("closing"), purpose="closing", input_bound=read, wanted_tokens=1_024)
    closed = reserve(after, closing)
    assert isinstance(closed, Reservation)
    assert closed.max_tokens == 1_024


@pytest.mark.parametrize("unit", [unit for unit in LEFT if unit != "milliseconds"])
def test_the_first_round_fits_into_what_one_needs_at_least_and_into_nothing_less(unit: str) -> None:
    needed = getattr(minimum_hold(ROUND), unit)
    assert isinstance(reserve(Account(1, Limits(**{unit: needed}), NOTHING, NOTHING), ROUND), Reservation)
    assert isinstance(reserve(Account(1, Limits(**{unit: needed - 1}), NOTHING, NOTHING), ROUND), Refused)


@pytest.mark.parametrize("purpose", ["phase", "repair"])
def test_a_phase_keeps_nothing_for_a_closing_call(purpose: str) -> None:
    """No closing call follows it: of what is left it may write all, instead of being cut off for nothing."""
    asked = ROUND._replace(counts=counts_of(purpose), purpose=purpose, wanted_tokens=1_024)
    account = Account(1, Limits(total_tokens=5_600), NOTHING, NOTHING)
    outcome = reserve(account, asked)
    assert isinstance(outcome, Reservation)
    assert outcome.max_tokens == 1_024


@pytest.mark.parametrize("unit", ["model_calls", "total_tokens", "nano_usd"])
def test_what_runs_share_is_never_passed_either(unit: str) -> None:
    cap = 10**12  # on a new day it would fit
    own, day = (
        Account(1, Limits(), NOTHING, USED),
        Account(2, Limits(**{unit: cap}), NOTHING, Units(**{unit: cap}), "day"),
    )
    refused = reserve(own, ROUND, (day,))
    assert isinstance(refused, Refused)
    assert (refused.limit, refused.scope) == (unit, "day")


@pytest.mark.parametrize("shares", [1, 3, 4])
@pytest.mark.parametrize("asked", [CALL, ROUND])
def test_steps_that_begin_in_one_commit_divide_the_time_that_is_left_of_the_nearest_account(
    asked: ReservationRequest, shares: int
) -> None:
    account = (
        account_with_cap("milliseconds", 10_000)
        .hold(Units(milliseconds=4_000))
        .settle(NOTHING, Units(milliseconds=1_000))
    )
    outcome = reserve(account, asked._replace(time_shares=shares))
    assert isinstance(outcome, Reservation)
    assert (outcome.timeout_ms, outcome.held.milliseconds) == (5_000 // shares, 5_000 // shares)


@pytest.mark.parametrize("shares", [1, 3])
def test_closing_calls_divide_what_is_left_of_the_half_minute_that_they_have_beyond_the_limit(shares: int) -> None:
    spent = Units(rounds=1, milliseconds=12_000)
    account = Account(1, Limits(milliseconds=10_000), NOTHING, spent)
    closing = ROUND._replace(counts=counts_of("closing"), purpose="closing", time_shares=shares)
    outcome = reserve(account, closing)
    assert isinstance(outcome, Reservation)
    assert outcome.timeout_ms == 28_000 // shares
    over = account.settle(NOTHING, Units(milliseconds=28_000))
    assert reserve(over, closing) == over.refuse("milliseconds")


def test_the_time_of_a_step_is_bounded_by_every_account_around_it_which_divide_nothing_again() -> None:
    nearest, run = (
        Account(2, Limits(milliseconds=8_000), NOTHING, USED, "branch task-1"),
        Account(1, Limits(milliseconds=1_500), NOTHING, USED),
    )
    for asked in (CALL, ROUND):
        outcome = reserve(nearest, asked._replace(time_shares=4), (), [run])
        assert isinstance(outcome, Reservation)
        assert (outcome.timeout_ms, outcome.held.milliseconds) == (1_500, 1_500)
        outcome = reserve(nearest, asked._replace(time_shares=8), (), [run])
        assert isinstance(outcome, Reservation)
        assert (outcome.timeout_ms, outcome.held.milliseconds) == (1_000, 1_000)
    over = run.settle(NOTHING, Units(milliseconds=1_500))
    assert reserve(nearest, CALL, (), [over]) == over.refuse("milliseconds")


def test_without_a_limit_of_time_a_step_has_all_that_it_asks_for() -> None:
    free = Account(1, Limits(), NOTHING, USED)
    for asked in (CALL, ROUND):
        outcome = reserve(free, asked._replace(time_shares=4), (), [free])
        assert isinstance(outcome, Reservation)
        assert (outcome.timeout_ms, outcome.held.milliseconds) == (60_000, 60_000)


# -- the same figures, reckoned in another way -----------------------------------------------------------------

TOKEN_UNITS = ("input_tokens", "output_tokens", "total_tokens", "nano_usd")


def amount(unit: str, read: int, written: int, price: Price) -> int:
    """What a completion uses of a unit."""
    return {
        "input_tokens": read,
        "output_tokens": written,
        "total_tokens": read + written,
        "nano_usd": read * price.read + written * price.written,
    }[unit]


def fits(account: Account, request: ReservationRequest, written: int, closing: int | None) -> bool:
    """Whether a completion that writes so much stays within every cap, and a closing call after it too: that reads
    what this one read and wrote, and writes `closing` tokens."""
    price = request.price or FREE
    for unit in TOKEN_UNITS:
        cap = getattr(account.caps, unit)
        more = amount(unit, request.input_bound, written, price)
        if closing is not None:
            more += amount(unit, request.input_bound + written, closing, price)
        used = getattr(account.held, unit) + getattr(account.spent, unit)
        if cap is not None and more and used + more > cap:
            return False
    return True


def most(account: Account, request: ReservationRequest, wanted: int, closing: int | None = None) -> int:
    """The most tokens that fit, at most what is wanted; -1 where not even an answer of none fits."""
    return bisect(range(wanted + 1), 0, key=lambda written: not fits(account, request, written, closing)) - 1


def expected_grant(account: Account, request: ReservationRequest, others: Sequence[Account]) -> int | None:
    """The tokens that a completion is granted, or None for a refusal. Fewer than 256 help nobody, unless fewer are
    wanted; a first round that leaves no room for a closing call may have the whole."""
    begun = account.spent.rounds > 0
    keeps = request.purpose == "round" or (request.purpose == "repair" and begun)
    tokens, enough = 0, min(256, request.wanted_tokens)
    for closing in (1_024, 512) if keeps else (None,):
        tokens = tokens if tokens >= enough else most(account, request, request.wanted_tokens, closing)
    if tokens < enough and keeps and not begun:
        tokens = most(account, request, request.wanted_tokens)
    for each in others:
        if tokens < enough:
            return None
        wanted, enough = tokens, min(256, tokens)
        tokens = most(each, request, wanted)
    return tokens if tokens >= enough else None


def some_account(chance: random.Random, number: int, scope: str) -> Account:
    tops = {"nano_usd": 60_000}
    caps = {unit: chance.randint(0, tops.get(unit, 16_000)) for unit in TOKEN_UNITS if chance.random() < 0.4}
    held, spent = (Units(**{unit: chance.choice((0, chance.randint(0, 3_000))) for unit in TOKEN_UNITS}) for _ in "ab")
    return Account(number, Limits(**caps), held, spent._replace(rounds=chance.choice((0, 0, 3))), scope)


def some_completion(chance: random.Random) -> ReservationRequest:
    purpose = chance.choice(("round", "round", "repair", "compact", "phase", "closing"))
    wanted = chance.choice((1, 255, 256, 257, chance.randint(1, 4_096)))
    price = chance.choice((FREE, Price(3, 9), Price(0, 2), Price(5, 0)))
    bound = chance.choice((0, chance.randint(0, 6_000)))
    return ReservationRequest(
        counts_of(purpose), purpose, input_bound=bound, wanted_tokens=wanted, timeout_ms=7, price=price
    )


def test_a_completion_is_granted_exactly_as_many_tokens_as_fit_everywhere() -> None:
    granted = refused = 0
    for seed in range(1_500):
        chance = random.Random(seed)
        own, request = some_account(chance, 1, "branch a"), some_completion(chance)
        around = [some_account(chance, 2 + nth, "run") for nth in range(chance.randint(0, 1))]
        shared = [some_account(chance, 5 + nth, "day") for nth in range(chance.randint(0, 2))]
        outcome, tokens = reserve(own, request, shared, around), expected_grant(own, request, [*around, *shared])
        assert (outcome.max_tokens if isinstance(outcome, Reservation) else None) == tokens, seed
        if isinstance(outcome, Reservation) and tokens is not None:
            granted, price = granted + 1, request.price or FREE
            assert outcome.held == request.counts._replace(
                **{unit: amount(unit, request.input_bound, tokens, price) for unit in TOKEN_UNITS}, milliseconds=7
            )
        elif isinstance(outcome, Refused):
            refused += 1
            assert says_what_is_used(outcome, [own, *around, *shared]), seed
            assert is_alone_enough(outcome, [own, *around, *shared], request), seed
    assert min(granted, refused) > 300


def says_what_is_used(refused: Refused, accounts: Sequence[Account]) -> bool:
    """Whether a refusal has the figures of an account of that scope: what is spent and what is held, and its cap."""
    return any(
        getattr(each.spent, refused.limit) + getattr(each.held, refused.limit) == refused.used
        and getattr(each.caps, refused.limit) == refused.allowed
        and refused.scope in (each.scope, f"whole {each.scope}")
        for each in accounts
    )


def is_alone_enough(refused: Refused, accounts: Sequence[Account], request: ReservationRequest) -> bool:
    """Whether one of the accounts, with no cap but that which the refusal names, would refuse as well."""
    for each in accounts:
        one = each._replace(caps=Limits(**{refused.limit: getattr(each.caps, refused.limit)}))
        for wanted in range(1, request.wanted_tokens + 1, 64):
            is_last = wanted + 64 > request.wanted_tokens
            alone = request._replace(wanted_tokens=request.wanted_tokens if is_last else wanted)
            if isinstance(reserve(one, alone), Refused):
                return True
    return False


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        ("round", Units(rounds=1, model_calls=1)),
        ("call", Units(tool_calls=1)),
        ("pause", NOTHING),
        ("closing", Units(model_calls=1)),
        ("repair", Units(model_calls=1)),
        ("phase", Units(model_calls=1)),
    ],
)
def test_each_kind_of_step_counts_as_what_it_is(kind: str, counts: Units) -> None:
    assert counts_of(kind) == counts


def test_an_account_of_which_nothing_else_is_said_is_the_run_s_own() -> None:
    refused = reserve(Account(1, Limits(rounds=2), Units(rounds=1), Units(rounds=1)), ROUND)
    assert refused == Refused("rounds", 2, 2, "run")


def test_of_what_runs_share_the_rounds_the_tool_calls_and_the_time_are_none() -> None:
    assert shared_part(Units(1, 2, 3, 4, 5, 6, 7, 8)) == Units(0, 2, 3, 4, 5, 6, 0, 0)


def test_a_step_of_which_nothing_is_said_holds_its_counts_alone_and_costs_nothing() -> None:
    free = Account(1, Limits(), NOTHING, NOTHING)
    assert reserve(free, ReservationRequest(counts_of("call"), "call")) == Reservation(counts_of("call"), 0, 0)
    outcome = reserve(free, ReservationRequest(counts_of("closing"), "closing", wanted_tokens=10))
    assert outcome == Reservation(Units(model_calls=1, output_tokens=10, total_tokens=10), 10, 0)


@pytest.mark.parametrize("price", [None, FREE, Price(3, 9)])
def test_where_nobody_knows_a_price_only_what_has_no_limit_of_money_is_granted(price: Price | None) -> None:
    plenty, free = (Account(1, Limits(nano_usd=cap), NOTHING, USED) for cap in (10**12, None))
    request = ROUND._replace(price=price)
    assert isinstance(reserve(free, request, [free], [free]), Reservation)
    for own, shared, around in ((plenty, [], []), (free, [plenty], []), (free, [], [plenty])):
        outcome = reserve(own, request, shared, around)
        assert isinstance(outcome, Refused) == (price is None)
        assert not isinstance(outcome, Refused) or outcome.limit == "nano_usd"
    unpriced = reserve(free, ROUND._replace(price=None))
    assert isinstance(unpriced, Reservation)
    assert unpriced.held.nano_usd == 0


@pytest.mark.parametrize("rounds", [0, 1])
@pytest.mark.parametrize("left", [0, 1, 2])
def test_the_last_model_call_is_for_the_closing_unless_no_round_was_made_yet(rounds: int, left: int) -> None:
    spent = Units(rounds=rounds, model_calls=rounds)
    account = Account(1, Limits(model_calls=rounds + left), NOTHING, spent)
    free = Account(2, Limits(), NOTHING, USED)
    for open_step in (False, True):
        asked = ROUND._replace(counts_only=open_step)
        is_granted = left > 1 or (left == 1 and not rounds)
        outcome = reserve(account, asked)
        assert isinstance(outcome, Reservation) if is_granted else outcome == account.refuse("model_calls")
        closing = asked._replace(counts=counts_of("closing"), purpose="closing")
        assert isinstance(reserve(account, closing), Reservation) == (left > 0)
        # of an account around, or one that others share, nothing is kept
        assert isinstance(reserve(free, asked, (), [account]), Reservation) == (left > 0)
        assert isinstance(reserve(free, asked, [account]), Reservation) == (left > 0)
    assert isinstance(reserve(account, CALL), Reservation)


@pytest.mark.parametrize("unit", ["input_tokens", "output_tokens", "total_tokens", "milliseconds"])
def test_what_is_handed_out_is_asked_for_while_anything_is_left_and_holds_its_counts_alone(unit: str) -> None:
    free = Account(2, Limits(), NOTHING, USED)
    asked = ROUND._replace(counts_only=True)
    closing = asked._replace(counts=counts_of("closing"), purpose="closing")
    call = CALL._replace(counts_only=True)
    for left in (0, 1):
        account = Account(1, Limits(**{unit: 9}), NOTHING, Units(rounds=1, **{unit: 9 - left}))
        for request in (asked, closing, call):
            needs_none = request is call if unit != "milliseconds" else request is closing
            for outcome in (reserve(account, request), reserve(free, request, (), [account])):
                if left or needs_none:
                    assert outcome == Reservation(request.counts, request.wanted_tokens, 0)
                else:
                    assert outcome == account.refuse(unit)


def test_a_closing_call_has_its_half_minute_also_where_no_time_was_allowed_at_all() -> None:
    closing = ROUND._replace(counts=counts_of("closing"), purpose="closing")
    for cap in (0, 1):
        outcome = reserve(Account(1, Limits(milliseconds=cap), NOTHING, NOTHING), closing)
        assert isinstance(outcome, Reservation)
        assert outcome.timeout_ms == 30_000 + cap
    barely, over = (
        Account(1, Limits(milliseconds=cap), NOTHING, Units(milliseconds=cap + used))
        for cap, used in ((5, 29_999), (5, 30_000))
    )
    outcome = reserve(barely, closing)
    assert isinstance(outcome, Reservation)
    assert outcome.timeout_ms == 1
    assert reserve(over, closing) == over.refuse("milliseconds")


def test_time_that_can_not_be_divided_is_refused() -> None:
    account = account_with_cap("milliseconds", 3)
    assert [
        isinstance(reserve(account, CALL._replace(time_shares=shares)), Reservation) for shares in (0, 1, 3, 4)
    ] == [
        *(True, True, True),
        False,
    ]


def test_a_limit_that_a_whole_day_has_no_room_for_is_said_to_be_of_the_whole_day() -> None:
    own = Account(1, Limits(), NOTHING, NOTHING)
    spent = Units(model_calls=1, total_tokens=50_000)
    for caps, scope in (
        (Limits(total_tokens=50_000), "day"),
        (Limits(total_tokens=2_255), "whole day"),
        (Limits(total_tokens=2_256), "day"),
        (Limits(model_calls=1), "day"),
        (Limits(model_calls=0), "whole day"),
    ):
        day = Account(2, caps, NOTHING, spent, "day")
        unit = "total_tokens" if caps.total_tokens is not None else "model_calls"
        refused = day.refuse(unit)
        assert reserve(own, ROUND, [day]) == replace(refused, scope=scope)


def test_the_accounts_that_runs_share_are_those_of_a_day_and_of_a_mandate() -> None:
    """A refusal of one of these, as its row names it, pauses a run instead of ending it."""
    assert set(SHARED_SCOPES) == {"day", "mandate", "no day"}


@pytest.mark.parametrize(("left", "granted"), [(255, False), (256, True), (257, True)])
def test_256_tokens_are_enough_and_fewer_are_not(left: int, granted: bool) -> None:
    """Beside the short closing call that is kept free after a round, where one was made before."""
    for purpose, closing in (("round", 512), ("compact", 0)):
        asked = ROUND._replace(counts=counts_of(purpose), purpose=purpose, input_bound=0)
        outcome = reserve(account_with_cap("output_tokens", left + closing), asked)
        assert isinstance(outcome, Reservation) == granted
        assert not isinstance(outcome, Reservation) or outcome.max_tokens == left
    longer = reserve(account_with_cap("output_tokens", left + 1_024), ROUND._replace(input_bound=0))
    assert isinstance(longer, Reservation)
    assert longer.max_tokens == (left if granted else left + 512)


def test_a_step_that_says_nothing_of_others_divides_its_time_with_none() -> None:
    outcome = reserve(account_with_cap("milliseconds", 10), CALL)
    assert isinstance(outcome, Reservation)
    assert outcome.timeout_ms == 10


def test_what_is_left_of_a_unit_is_what_is_neither_held_nor_spent_and_never_below_nothing() -> None:
    account = Account(1, Limits(rounds=9, tool_calls=2), Units(rounds=3, tool_calls=2), Units(rounds=4, tool_calls=2))
    assert [getattr(account.remaining, unit) for unit in ("rounds", "tool_calls", "model_calls")] == [2, 0, None]


def test_an_amount_of_which_nothing_is_said_is_nothing_of_every_unit() -> None:
    assert tuple(Units()) == tuple(NOTHING) == (0,) * len(UNITS)


def test_of_the_half_minute_of_a_closing_call_what_others_hold_is_gone_too() -> None:
    account = Account(1, Limits(milliseconds=10_000), Units(milliseconds=4_000), Units(milliseconds=12_000))
    outcome = reserve(account, ROUND._replace(counts=counts_of("closing"), purpose="closing"))
    assert isinstance(outcome, Reservation)
    assert outcome.timeout_ms == 24_000
