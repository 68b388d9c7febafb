"""The law of branches: each has its share of what is free when it begins, which buys a round and a closing where that
can be; and together they never have more than is left, less what is set aside."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import law

from kairos_mcp.budget.reservation import (
    Account,
    Reservation,
    ReservationRequest,
    open_branch,
    raise_caps,
    reserve,
)
from kairos_mcp.core.limits import NOTHING, UNLIMITED, BranchShare, Limits, Units, counts_of

pytestmark = pytest.mark.unreplayed  # a flow of its own

amounts = st.integers(0, 100_000)


def run_with(left: int, spent: int = 0) -> Account:
    return Account(1, Limits(total_tokens=left), NOTHING, Units(total_tokens=spent))


def branch_caps(share: BranchShare, enclosing: Account, siblings: Sequence[Account] = ()) -> Limits:
    """Return the caps of a branch, whatever its first step needs."""
    return open_branch(share, enclosing, siblings).caps


@law
@given(st.integers(1, 16), st.integers(1, 16), amounts, amounts, st.none() | amounts, st.data())
def test_however_they_begin_spend_and_end_they_never_reach_what_is_set_aside(
    count: int, limit: int, whole: int, aside: int, asked: int | None, data: Any
) -> None:
    unstarted, running, spent, ended = count, [], 0, 0
    while unstarted or running:
        while unstarted and len(running) < limit:
            share = BranchShare(Limits(total_tokens=asked), count - ended, Limits(total_tokens=aside))
            cap = branch_caps(share, run_with(whole, spent)).total_tokens
            assert cap is not None
            assert asked is None or cap <= asked
            running.append(cap)
            unstarted -= 1
        assert sum(running) <= max(0, whole - spent - aside)
        nth = data.draw(st.integers(0, len(running) - 1))
        used = data.draw(st.integers(0, running[nth]))
        spent, running[nth] = spent + used, running[nth] - used
        if data.draw(st.sampled_from((True, False))):
            running.pop(nth)
            ended += 1


@law
@given(st.integers(1, 16), amounts)
def test_those_that_begin_together_have_the_same(count: int, whole: int) -> None:
    caps = {branch_caps(BranchShare(UNLIMITED, count), run_with(whole)).total_tokens for _ in range(count)}
    assert caps == {whole // count}


@law
@given(st.integers(1, 16), amounts)
def test_where_nothing_is_limited_around_a_branch_has_what_was_asked_for_it(among: int, asked: int) -> None:
    around = Account(1, UNLIMITED, NOTHING, NOTHING)
    assert branch_caps(BranchShare(Limits(rounds=asked), among), around) == Limits(rounds=asked)
    assert branch_caps(BranchShare(UNLIMITED, among), around) == UNLIMITED


@law
@given(st.integers(1, 16), st.integers(1, 16), st.booleans(), amounts, amounts, st.integers(1, 20_000), st.randoms())
def test_whatever_runs_side_by_side_keeps_what_it_has_and_what_is_set_aside_stays(
    count: int, limit: int, keeps_share: bool, whole: int, aside: int, bound: int, chance: Random
) -> None:
    first = ReservationRequest(counts_of("round"), "round", input_bound=bound, wanted_tokens=4_096)
    running: list[Account] = []
    unstarted, spent, ended = count, 0, 0
    while unstarted or running:
        while unstarted and len(running) < limit:
            share = BranchShare(UNLIMITED, count - ended, Limits(total_tokens=aside), limit, keeps_share)
            caps, is_enough = open_branch(share, run_with(whole, spent), running, first)
            branch = Account(2, caps, NOTHING, NOTHING)
            if is_enough:
                made = reserve(branch, first)
                assert isinstance(made, Reservation)
                more = ReservationRequest(counts_of("closing"), "closing", False, made.held.total_tokens, 1_024)
                assert isinstance(reserve(branch.settle(NOTHING, made.held), more), Reservation)
            elif running:
                break
            running.append(branch)
            unstarted -= 1
        assert sum(each.remaining.total_tokens or 0 for each in running) <= max(0, whole - spent - aside)
        nth = chance.randrange(len(running))
        used = chance.randint(0, running[nth].remaining.total_tokens or 0)
        spent, running[nth] = spent + used, running[nth].settle(NOTHING, Units(total_tokens=used))
        if chance.random() < 0.5:
            running.pop(nth)
            ended += 1


@law
@given(st.integers(1, 8), st.booleans(), amounts, amounts, st.none() | amounts, st.integers(1, 5_000), st.integers())
def test_a_branch_that_gets_more_takes_nothing_from_another_nor_of_what_is_set_aside(
    count: int, keeps_share: bool, whole: int, aside: int, asked: int | None, bound: int, seed: int
) -> None:
    step = ReservationRequest(counts_of("round"), "round", input_bound=bound, wanted_tokens=4_096)
    share = BranchShare(Limits(total_tokens=asked), count, Limits(total_tokens=aside), count, keeps_share)
    chance, running = Random(seed), list[Account]()
    for number in range(count):
        running.append(Account(number, branch_caps(share, run_with(whole), running), NOTHING, Units(rounds=1)))
    spent = 0
    while running:
        number = chance.randrange(len(running))
        branch = running.pop(number)
        used = chance.randint(0, branch.remaining.total_tokens or 0)
        spent, branch = spent + used, branch.settle(NOTHING, Units(total_tokens=used))
        share = share._replace(unended=len(running) + 1)
        raised = raise_caps(share, branch, run_with(whole, spent), running, step)
        if raised is not None:
            assert (raised.total_tokens or 0) >= (branch.caps.total_tokens or 0)
            assert asked is None or (raised.total_tokens or 0) <= asked
            branch = branch._replace(caps=raised)
            assert isinstance(reserve(branch, step), Reservation)
        if chance.random() < 0.6:
            running.append(branch)
        assert sum(each.remaining.total_tokens or 0 for each in running) <= max(0, whole - spent - aside)


def test_those_that_run_get_more_once_all_have_begun_and_as_much_as_each_other() -> None:
    step = ReservationRequest(counts_of("round"), "round", input_bound=1_000, wanted_tokens=4_096)
    branch = Account(2, Limits(total_tokens=5_000), NOTHING, Units(rounds=1, total_tokens=5_000))
    beside = Account(3, Limits(total_tokens=5_000), NOTHING, Units(rounds=1, total_tokens=2_000))
    share, around = BranchShare(UNLIMITED, 2), run_with(30_000, 7_000)
    assert raise_caps(share, branch, around, [beside], step) == Limits(total_tokens=15_000)  # half of what is free
    assert raise_caps(share._replace(unended=3), branch, around, [beside], step) is None  # the third comes first
    bounded = share._replace(limits=Limits(total_tokens=14_000))
    assert raise_caps(bounded, branch, around, [beside], step) == Limits(total_tokens=14_000)  # all that was asked for
    little = run_with(15_000, 7_000)  # half of it would buy no round
    assert raise_caps(share, branch, little, [beside], step) == Limits(total_tokens=10_000)
    assert raise_caps(share, branch, run_with(12_000, 7_000), [beside], step) is None


def test_as_many_divide_what_is_free_as_may_run_and_one_part_stays_for_those_to_come() -> None:
    share = BranchShare(UNLIMITED, 16, side_by_side=4)
    first = branch_caps(share, run_with(50_000))
    assert first == Limits(total_tokens=10_000)
    running = [Account(2, first, NOTHING, NOTHING)] * 3
    assert branch_caps(share, run_with(50_000), running) == Limits(total_tokens=10_000)
    last = BranchShare(UNLIMITED, 4, side_by_side=4)  # none is left to come
    assert branch_caps(last, run_with(50_000), running) == Limits(total_tokens=20_000)


ROUND = ReservationRequest(counts_of("round"), "round", input_bound=1_000, wanted_tokens=4_096)
NEEDED = 2 * (1_000 + 256) + 1_024  # what it reads and writes is read once more by the closing


def test_fewer_run_where_a_part_for_each_would_buy_no_round_and_closing_and_one_alone_has_the_reserve() -> None:
    share = BranchShare(UNLIMITED, 16, side_by_side=16)
    assert open_branch(share, run_with(4 * NEEDED), (), ROUND).caps == Limits(total_tokens=NEEDED)
    assert open_branch(share, run_with(4 * NEEDED - 1), (), ROUND).caps == Limits(total_tokens=(4 * NEEDED - 1) // 3)
    assert open_branch(share, run_with(2 * NEEDED - 1), (), ROUND) == (Limits(total_tokens=2 * NEEDED - 1), False)


def test_what_comes_after_them_keeps_a_part_in_the_units_that_are_not_named() -> None:
    around = Account(1, Limits(total_tokens=9_000, nano_usd=9_000, rounds=9), NOTHING, NOTHING)
    share = BranchShare(UNLIMITED, 2, Limits(total_tokens=1_000, rounds=0), keeps_share=True)
    assert branch_caps(share, around) == Limits(total_tokens=4_000, nano_usd=3_000, rounds=4)


def test_what_was_asked_for_a_branch_itself_is_no_reason_to_wait() -> None:
    share = BranchShare(Limits(model_calls=1, total_tokens=500), 2)
    assert open_branch(share, run_with(50_000), (), ROUND).is_enough
