"""What tokens cost: never more than was reserved for them, never past a cap, and never counted where nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.app import law

from kairos_mcp.budget.reservation import SHORT_CLOSING_TOKENS, Account, Reservation, ReservationRequest, reserve
from kairos_mcp.core.limits import NOTHING, Limits, Price, Units, counts_of
from kairos_mcp.core.messages import Usage
from kairos_mcp.core.steps import Refused
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.settings.settings import Settings

PURPOSES = ("round", "repair", "compact", "closing")
KNOWN = ["openai:gpt-5", "openai-responses:gpt-4o-mini", "anthropic:claude-sonnet-4-5", "deepseek:deepseek-chat"]

prices = st.builds(Price, st.integers(0, 80_000), st.integers(0, 400_000))
caps = st.integers(0, 10**10)


@st.composite
def claims(
    draw: st.DrawFn, price: st.SearchStrategy[Price | None] = prices, purposes: tuple[str, ...] = PURPOSES
) -> ReservationRequest:
    purpose = draw(st.sampled_from(purposes))
    bound, wanted = draw(st.integers(0, 50_000)), draw(st.integers(1, 8_192))
    return ReservationRequest(
        counts_of(purpose), purpose, input_bound=bound, wanted_tokens=wanted, timeout_ms=1_000, price=draw(price)
    )


def account(cap: int | None, spent: int = 0, rounds: int = 0) -> Account:
    return Account(1, Limits(nano_usd=cap), NOTHING, Units(nano_usd=spent, rounds=rounds))


@law
@given(caps, st.integers(0, 10**10), claims())
def test_what_is_held_is_the_worst_case_and_fits_the_cap(cap: int, spent: int, request: ReservationRequest) -> None:
    outcome = reserve(account(cap, spent), request)
    assume(isinstance(outcome, Reservation))
    assert request.price is not None
    assert outcome.held.nano_usd == request.price.cost(request.input_bound, outcome.max_tokens)
    if outcome.held.nano_usd:
        assert spent + outcome.held.nano_usd <= cap


@law
@given(caps, claims(purposes=("round", "repair")))
def test_after_a_round_a_closing_call_can_still_be_paid(cap: int, request: ReservationRequest) -> None:
    before = account(cap, rounds=1)
    outcome = reserve(before, request)
    assume(isinstance(outcome, Reservation))
    assert request.price is not None
    left = cap - outcome.held.nano_usd
    assert request.price.cost(request.input_bound + outcome.max_tokens, SHORT_CLOSING_TOKENS) <= left


@law
@given(caps, claims(st.none()))
def test_money_that_nobody_can_count_is_not_spent_under_a_cap(cap: int, request: ReservationRequest) -> None:
    refused = reserve(account(cap), request)
    assert isinstance(refused, Refused)
    assert refused.limit == "nano_usd"
    assert isinstance(reserve(account(None), request), Reservation)


@law
@given(
    st.sampled_from(KNOWN),
    st.integers(0, 2_000_000),
    st.integers(0, 2_000_000),
    st.integers(0, 2_000_000),
    st.integers(0, 2_000_000),
)
def test_no_report_within_its_bound_costs_more_than_was_held(
    model: str, read: int, cached: int, written_to_cache: int, written: int
) -> None:
    assume(cached + written_to_cache <= read)
    tariff = Tariff(model)
    price = tariff.highest_price()
    assert price is not None
    cost = tariff.cost(Usage(read, written, cached), None, written_to_cache)
    assert 0 <= cost <= price.cost(read, written)


def test_the_figures_of_a_known_model_are_those_of_its_list() -> None:
    assert Tariff("openai:gpt-5").highest_price() == Price(1_250, 10_000)
    assert Tariff("openai:gpt-5").cost(Usage(1_000, 100, 200), None) == 800 * 1_250 + 200 * 125 + 100 * 10_000


def test_a_reply_by_another_model_is_priced_by_the_one_that_answered() -> None:
    asked, usage = Tariff("openai:gpt-5"), Usage(1_000, 100)
    assert asked.cost(usage, "gpt-4o-mini") == Tariff("openai:gpt-4o-mini").cost(usage, None)
    assert asked.cost(usage, "nobody-knows") == asked.cost(usage, None)


@pytest.mark.parametrize("model", ["openai:nobody-knows", "nobody:gpt-5", "nothing", ":", ""])
def test_an_unknown_model_has_no_price_and_costs_nothing_known(model: str) -> None:
    assert Tariff(model).highest_price() is None
    assert Tariff(model).cost(Usage(1_000, 100), None) == 0


def test_an_address_of_ones_own_has_no_price_but_a_known_one_has_that_of_its_list() -> None:
    assert Tariff("openai:gpt-5", "http://10.0.0.1:8080/v1").highest_price() is None
    assert Tariff("openai:gpt-5", "https://api.openai.com/v1").highest_price() == Tariff("openai:gpt-5").highest_price()


def test_a_stated_price_goes_before_the_list_and_is_rounded_up() -> None:
    stated = Tariff("openai:gpt-5", None, (0.0625, 2.0))
    assert stated.highest_price() == Price(63, 2_000)
    assert stated.cost(Usage(10, 1), "gpt-5") == 10 * 63 + 2_000


@pytest.mark.parametrize(
    ("stated", "price"),
    [
        ((0.0, 0.0), (0, 0)),
        ((0.0, 15.0), (0, 15_000)),
        ((0.0005, 0.0), (1, 0)),
        ((0.001, 0.0011), (1, 2)),
        ((1e-9, 1e-9), (1, 1)),
    ],
)
def test_a_free_token_costs_nothing_and_the_least_price_a_nano_dollar(
    stated: tuple[float, float], price: tuple[int, int]
) -> None:
    tariff = Tariff("openai:mine", stated_prices=stated)
    assert tariff.highest_price() == Price(*price)
    assert tariff.cost(Usage(7, 3), None) == 7 * price[0] + 3 * price[1]
    assert tariff.cost(Usage(0, 0), None) == 0


def test_a_reply_of_no_tokens_costs_nothing_and_what_is_less_than_a_nano_dollar_costs_one() -> None:
    known = Tariff("openai:gpt-4.1-nano")  # a cached token of it is 25 nano-dollars
    assert known.cost(Usage(0, 0), None) == 0
    assert known.cost(Usage(1, 0, 1), None) == 25


def test_address_and_price_hold_for_the_configured_provider_and_model(tmp_path: Path) -> None:
    settings = Settings(tmp_path, (), model="openai:a", base_url="http://here/v1", price_input=1.0, price_output=2.0)
    assert Tariff.from_settings(settings, "openai:a") == Tariff("openai:a", "http://here/v1", (1.0, 2.0))
    assert Tariff.from_settings(settings, "openai:b") == Tariff("openai:b", "http://here/v1")
    assert Tariff.from_settings(settings, "anthropic:c") == Tariff("anthropic:c")
