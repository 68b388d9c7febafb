"""One limit at a time: what a grant holds never takes its account past it, and what does not fit is refused by name."""

from __future__ import annotations

import pytest

from kairos_mcp.budget.amounts import NOTHING, Account, Price, Units, counts_of
from kairos_mcp.budget.granting import Claim, Grant, grant, least
from kairos_mcp.steps import Limits, Refused

ROUND = Claim(counts_of("round"), "round", input_bound=2_000, wanted_tokens=4_000, timeout_ms=60_000, price=Price(3, 9))
CALL = Claim(counts_of("call"), "call", timeout_ms=60_000)
USED = Units(rounds=1, model_calls=1)
LEFT = {  # so much that something fits, and not all that is wanted
    "input_tokens": 10_000,
    "output_tokens": 3_000,
    "total_tokens": 5_600,
    "nano_usd": 30_000,
    "milliseconds": 1_000,
}


def capped(unit: str, cap: int, **more: int) -> Account:
    return Account(1, Limits(**{unit: cap, **more}), NOTHING, USED)


@pytest.mark.parametrize("unit", ["rounds", "model_calls", "tool_calls"])
def test_a_count_that_is_used_up_is_refused(unit: str) -> None:
    refused = grant(capped(unit, getattr(USED, unit)), CALL if unit == "tool_calls" else ROUND)
    assert isinstance(refused, Refused)
    assert refused.limit == unit


@pytest.mark.parametrize("unit", LEFT)
def test_a_completion_is_clamped_to_what_is_left(unit: str) -> None:
    leave = grant(capped(unit, LEFT[unit]), ROUND)
    assert isinstance(leave, Grant)
    assert 0 < getattr(leave.held, unit) <= LEFT[unit]


@pytest.mark.parametrize("unit", LEFT)
def test_a_completion_that_does_not_fit_is_refused(unit: str) -> None:
    refused = grant(capped(unit, 0), ROUND)
    assert isinstance(refused, Refused)
    assert (refused.limit, refused.used, refused.allowed) == (unit, 0, 0)


@pytest.mark.parametrize("unit", [unit for unit in LEFT if unit != "milliseconds"])
def test_after_a_round_a_closing_call_fits(unit: str) -> None:
    """It reads what the round read and wrote, and writes 1,024 tokens: each at its price."""
    account = capped(unit, LEFT[unit])
    leave = grant(account, ROUND)
    assert isinstance(leave, Grant)
    after = account.settle(NOTHING, leave.held._replace(milliseconds=0))
    read = leave.held.input_tokens + leave.max_tokens
    closing = ROUND._replace(counts=counts_of("closing"), purpose="closing", input_bound=read, wanted_tokens=1_024)
    closed = grant(after, closing)
    assert isinstance(closed, Grant)
    assert closed.max_tokens == 1_024


@pytest.mark.parametrize("unit", [unit for unit in LEFT if unit != "milliseconds"])
def test_the_first_round_fits_into_what_one_needs_at_least_and_into_nothing_less(unit: str) -> None:
    needed = getattr(least(ROUND), unit)
    assert isinstance(grant(Account(1, Limits(**{unit: needed}), NOTHING, NOTHING), ROUND), Grant)
    assert isinstance(grant(Account(1, Limits(**{unit: needed - 1}), NOTHING, NOTHING), ROUND), Refused)


@pytest.mark.parametrize("purpose", ["phase", "repair"])
def test_a_phase_keeps_nothing_for_a_closing_call(purpose: str) -> None:
    """No closing call follows it: of what is left it may write all, instead of being cut off for nothing."""
    asked = ROUND._replace(counts=counts_of(purpose), purpose=purpose, wanted_tokens=1_024)
    account = Account(1, Limits(total_tokens=5_600), NOTHING, NOTHING)
    leave = grant(account, asked)
    assert isinstance(leave, Grant)
    assert leave.max_tokens == 1_024


@pytest.mark.parametrize("unit", ["model_calls", "total_tokens", "nano_usd"])
def test_what_runs_share_is_never_passed_either(unit: str) -> None:
    cap = 10**12  # on a new day it would fit
    own, day = (
        Account(1, Limits(), NOTHING, USED),
        Account(2, Limits(**{unit: cap}), NOTHING, Units(**{unit: cap}), "day"),
    )
    refused = grant(own, ROUND, (day,))
    assert isinstance(refused, Refused)
    assert (refused.limit, refused.scope) == (unit, "day")


@pytest.mark.parametrize("shares", [1, 3, 4])
@pytest.mark.parametrize("asked", [CALL, ROUND])
def test_steps_that_begin_in_one_turn_divide_the_time_that_is_left_of_the_nearest_account(
    asked: Claim, shares: int
) -> None:
    account = capped("milliseconds", 10_000).hold(Units(milliseconds=4_000)).settle(NOTHING, Units(milliseconds=1_000))
    leave = grant(account, asked._replace(shares=shares))
    assert isinstance(leave, Grant)
    assert (leave.timeout_ms, leave.held.milliseconds) == (5_000 // shares, 5_000 // shares)


@pytest.mark.parametrize("shares", [1, 3])
def test_closing_calls_divide_what_is_left_of_the_half_minute_that_they_have_beyond_the_limit(shares: int) -> None:
    spent = Units(rounds=1, milliseconds=12_000)
    account = Account(1, Limits(milliseconds=10_000), NOTHING, spent)
    closing = ROUND._replace(counts=counts_of("closing"), purpose="closing", shares=shares)
    leave = grant(account, closing)
    assert isinstance(leave, Grant)
    assert leave.timeout_ms == 28_000 // shares
    over = account.settle(NOTHING, Units(milliseconds=28_000))
    assert grant(over, closing) == over.refusal("milliseconds")


def test_the_time_of_a_step_is_bounded_by_every_account_around_it_which_divide_nothing_again() -> None:
    nearest, run = (
        Account(2, Limits(milliseconds=8_000), NOTHING, USED, "branch task-1"),
        Account(1, Limits(milliseconds=1_500), NOTHING, USED),
    )
    for asked in (CALL, ROUND):
        leave = grant(nearest, asked._replace(shares=4), (), [run])
        assert isinstance(leave, Grant)
        assert (leave.timeout_ms, leave.held.milliseconds) == (1_500, 1_500)
        leave = grant(nearest, asked._replace(shares=8), (), [run])
        assert isinstance(leave, Grant)
        assert (leave.timeout_ms, leave.held.milliseconds) == (1_000, 1_000)
    over = run.settle(NOTHING, Units(milliseconds=1_500))
    assert grant(nearest, CALL, (), [over]) == over.refusal("milliseconds")


def test_without_a_limit_of_time_a_step_has_all_that_it_asks_for() -> None:
    free = Account(1, Limits(), NOTHING, USED)
    for asked in (CALL, ROUND):
        leave = grant(free, asked._replace(shares=4), (), [free])
        assert isinstance(leave, Grant)
        assert (leave.timeout_ms, leave.held.milliseconds) == (60_000, 60_000)
