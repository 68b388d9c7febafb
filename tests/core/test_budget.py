"""The laws of spending: no reservation takes an account past a cap, and each round leaves room for a closing call."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.app import law

from kairos_mcp.budget.reservation import (
    CLOSING_MS,
    CLOSING_TOKENS,
    USEFUL_TOKENS,
    Account,
    Reservation,
    ReservationRequest,
    format_status_line,
    reserve,
)
from kairos_mcp.core.limits import NOTHING, Limits, Units, counts_of
from kairos_mcp.core.steps import Refused

COMPLETIONS = ("round", "repair", "compact", "closing")
TOKENS = ("input_tokens", "output_tokens", "total_tokens")

wide = settings(law, max_examples=150, suppress_health_check=list(HealthCheck))  # most are refused
few, some = st.integers(0, 6), st.integers(0, 12)
tokens, more = st.integers(0, 9_000), st.integers(0, 90_000)
amounts = st.builds(Units, few, few, tokens, tokens, tokens, st.just(0), few, tokens)
caps = st.builds(
    Limits,
    *(st.none() | each for each in (some, some, more, more, more)),
    st.none(),
    *(st.none() | each for each in (some, more)),
)
accounts = st.builds(Account, st.just(1), caps, amounts, amounts)


@st.composite
def completions(draw: Any, purposes: tuple[str, ...] = COMPLETIONS, **fixed: Any) -> ReservationRequest:
    purpose = draw(st.sampled_from(purposes))
    bound, wanted = draw(st.integers(0, 20_000)), draw(st.integers(1, 4_096))
    return ReservationRequest(
        counts_of(purpose), purpose, input_bound=bound, wanted_tokens=wanted, timeout_ms=300_000, **fixed
    )


calls = st.builds(
    lambda timeout, shares: ReservationRequest(counts_of("call"), "call", timeout_ms=timeout, time_shares=shares),
    st.integers(1, 60_000),
    st.integers(1, 12),
)


def after(account: Account, reservation: Reservation) -> Account:
    return Account(account.id, account.caps, account.held.plus(reservation.held), account.spent)


def over(account: Account, unit: str) -> bool:
    cap = getattr(account.caps, unit)
    return cap is not None and getattr(account.held, unit) + getattr(account.spent, unit) > cap


@law
@given(accounts, completions() | calls)
def test_no_reservation_takes_an_account_past_a_cap(account: Account, request: ReservationRequest) -> None:
    outcome = reserve(account, request)
    assume(isinstance(outcome, Reservation))
    then = after(account, outcome)
    for unit in Units._fields:
        if unit == "milliseconds" and request.purpose == "closing":
            continue  # the closing has its own half minute
        if getattr(outcome.held, unit):
            assert not over(then, unit), unit


@law
@given(accounts, completions() | calls)
def test_a_refusal_names_a_limit_that_is_set_and_its_figures(account: Account, request: ReservationRequest) -> None:
    outcome = reserve(account, request)
    assume(isinstance(outcome, Refused))
    used = getattr(account.held, outcome.limit) + getattr(account.spent, outcome.limit)
    assert (outcome.used, outcome.allowed) == (used, getattr(account.caps, outcome.limit))


@law
@given(accounts, completions() | calls)
def test_a_reservation_is_within_what_was_wanted(account: Account, request: ReservationRequest) -> None:
    outcome = reserve(account, request)
    assume(isinstance(outcome, Reservation))
    assert 0 <= outcome.max_tokens <= request.wanted_tokens
    assert outcome.timeout_ms <= max(request.timeout_ms, CLOSING_MS)
    assert outcome.held.output_tokens == outcome.max_tokens
    assert outcome.held.total_tokens == outcome.held.input_tokens + outcome.held.output_tokens


@law
@given(accounts, completions(purposes=("round", "repair")))
def test_a_completion_is_useful_or_refused(account: Account, request: ReservationRequest) -> None:
    outcome = reserve(account, request)
    assume(isinstance(outcome, Reservation))
    assert outcome.max_tokens >= min(USEFUL_TOKENS, request.wanted_tokens)


@wide
@given(accounts, completions(purposes=("round",)))
def test_after_every_round_but_the_first_a_closing_call_still_fits(
    account: Account, request: ReservationRequest
) -> None:
    account = account._replace(spent=account.spent.plus(Units(rounds=1, model_calls=1)))
    outcome = reserve(account, request)
    assume(isinstance(outcome, Reservation))
    then = after(account, outcome)
    closing = ReservationRequest(
        counts_of("closing"),
        "closing",
        input_bound=request.input_bound + outcome.max_tokens,
        wanted_tokens=CLOSING_TOKENS,
        timeout_ms=300_000,
    )
    closed = reserve(then, closing)
    assert isinstance(closed, Reservation)
    assert closed.max_tokens >= USEFUL_TOKENS


@law
@given(accounts, completions(purposes=("round",)), st.integers(0, 200_000))
def test_a_closing_call_has_half_a_minute_in_all_when_the_time_is_over(
    account: Account, request: ReservationRequest, late: int
) -> None:
    caps = Limits(milliseconds=100)
    gone = Account(1, caps, NOTHING, Units(milliseconds=100 + late))
    closing = ReservationRequest(counts_of("closing"), "closing", wanted_tokens=1_024, timeout_ms=300_000)
    assert isinstance(reserve(gone, request), Refused)
    outcome = reserve(gone, closing)
    if late < CLOSING_MS:
        assert isinstance(outcome, Reservation)
        assert outcome.timeout_ms == CLOSING_MS - late
    else:
        assert outcome == gone.refuse("milliseconds")


@law
@given(st.integers(1, 100_000), st.integers(1, 12), st.integers(1, 60_000))
def test_the_steps_of_a_commit_share_the_time_that_is_left(left: int, shares: int, timeout: int) -> None:
    account = Account(1, Limits(milliseconds=left), NOTHING, NOTHING)
    begun = 0
    for nth in range(shares):
        request = ReservationRequest(counts_of("call"), "call", timeout_ms=timeout, time_shares=shares - nth)
        outcome = reserve(account, request)
        if isinstance(outcome, Reservation):
            begun += 1
            account = after(account, outcome)
    assert begun >= min(shares, left) if left >= shares else begun <= left
    assert account.held.milliseconds <= left


@law
@given(accounts, completions(counts_only=True))
def test_an_open_step_holds_its_counts_alone(account: Account, request: ReservationRequest) -> None:
    outcome = reserve(account, request)
    assume(isinstance(outcome, Reservation))
    assert outcome.held == request.counts
    for unit in TOKENS:
        assert getattr(account.remaining, unit) != 0


@pytest.mark.parametrize("unit", TOKENS)
def test_a_completion_is_not_handed_out_where_a_token_limit_is_used_up(unit: str) -> None:
    account = Account(1, Limits(**{unit: 10}), NOTHING, Units(**{unit: 10}))
    request = ReservationRequest(counts_of("round"), "round", counts_only=True, wanted_tokens=100)
    refused = reserve(account, request)
    assert isinstance(refused, Refused)
    assert refused.limit == unit


def test_the_last_model_call_is_kept_for_the_closing() -> None:
    account = Account(1, Limits(model_calls=3), NOTHING, Units(rounds=2, model_calls=2))
    refused = reserve(account, ReservationRequest(counts_of("round"), "round", wanted_tokens=100))
    assert isinstance(refused, Refused)
    assert refused.limit == "model_calls"
    assert isinstance(
        reserve(account, ReservationRequest(counts_of("closing"), "closing", wanted_tokens=100)), Reservation
    )


@law
@given(accounts)
def test_what_is_left_is_never_below_zero(account: Account) -> None:
    for unit in Units._fields:
        left = getattr(account.remaining, unit)
        assert left is None or left >= 0


@law
@given(amounts, amounts)
def test_amounts_are_added_and_taken_away_unit_by_unit(one: Units, other: Units) -> None:
    assert one.plus(other).minus(other) == one


@law
@given(accounts)
def test_the_standing_line_is_there_exactly_where_a_limit_is(account: Account) -> None:
    set_limits = any(getattr(account.caps, unit) is not None for unit in Units._fields)
    assert (format_status_line(account) is not None) == set_limits
