"""The law of branches: an equal share each when it begins, and together never more than is left less what is aside."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import law

from kairos_mcp.budget.reservation import Account, branch_caps
from kairos_mcp.core.limits import NOTHING, UNLIMITED, BranchShare, Limits, Units

pytestmark = pytest.mark.unreplayed  # a flow of its own

amounts = st.integers(0, 100_000)


def run_with(left: int, spent: int = 0) -> Account:
    return Account(1, Limits(total_tokens=left), NOTHING, Units(total_tokens=spent))


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
