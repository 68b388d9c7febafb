"""When a completion that failed in a way that may pass is asked for again."""

from __future__ import annotations

import pytest
from support.provider_calls import step_of

from kairos_mcp.core.limits import NOTHING
from kairos_mcp.core.steps import Failure, Sent
from kairos_mcp.execution.pending_step import (
    FIRST_OUTAGE_PAUSE_MS,
    MAX_ATTEMPTS,
    PendingStep,
    is_outage,
    outage_ms,
    retry_delay_s,
)
from kairos_mcp.store.commit import StepResult


def pauses(retry_after_s: float | None = None, *, retryable: bool = True) -> list[float | None]:
    """The pause after each of a step's attempts, and after the first of those when its run has sat an outage out."""
    failed = StepResult(Failure("provider_busy", "Later.", retryable, retry_after_s), NOTHING)
    tried = [PendingStep(1, step_of(), False, NOTHING, Sent("provider")) for _ in range(MAX_ATTEMPTS + 1)]
    for tries, step in enumerate(tried, 1):
        step.attempts = tries
    return [retry_delay_s(mark, failed) for mark in tried]


def test_a_completion_is_asked_for_again_after_one_second_and_then_after_twice_as_long_each_time() -> None:
    assert pauses() == [1, 2, 4, None, 1]


@pytest.mark.parametrize(("asked", "kept"), [(0.0, 0), (7.5, 7.5), (3_600.0, 30)])
def test_a_provider_says_itself_how_long_to_wait_but_for_no_more_than_half_a_minute(asked: float, kept: float) -> None:
    assert pauses(asked) == [kept, kept, kept, None, kept]


@pytest.mark.parametrize(("asked", "waits_ms"), [(None, None), (30.0, None), (3_600.0, 3_600_000)])
def test_a_provider_that_says_when_its_limit_is_reset_is_waited_for_until_then(
    asked: float | None, waits_ms: int | None
) -> None:
    failed = StepResult(Failure("provider_busy", "Later.", True, asked), NOTHING)
    first = PendingStep(1, step_of(), False, NOTHING, Sent("provider"))
    assert is_outage(first, failed, {"provider"}) == (waits_ms is not None)
    assert not is_outage(first, failed, ())
    assert outage_ms(first, failed) == (waits_ms or FIRST_OUTAGE_PAUSE_MS)


def test_what_can_not_pass_is_not_waited_for() -> None:
    assert set(pauses(retryable=False)) == {None}
