"""A model call that failed in a way that may pass: when it is made again, and when its run sits the outage out."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kairos_mcp.core.steps import Failure
from kairos_mcp.execution.accounting import StepResult
from kairos_mcp.execution.pending_step import PendingStep
from kairos_mcp.store.commit import Paused

TRIES = 4  # of a completion whose route fails in a way that may pass
BACK_OFF_S = 30.0  # the longest pause between two of them (SYSTEMS.md O6)
SIT_OUT_MS, LONGEST_MS = 30_000, 3_600_000  # how long a run sits out a provider's outage: a minute, two, … an hour


def pause_before(mark: PendingStep, performed: StepResult) -> float | None:
    """How many seconds to wait before the step is begun again: 1, 2, 4, or what the provider asks for; None where its
    answer is final."""
    match performed.answer:
        case Failure(retryable=True, retry_after_s=after) if mark.tries % TRIES:
            return min(BACK_OFF_S, 2.0 ** (mark.tries % TRIES - 1) if after is None else after)
        case _:
            return None


def is_outage(mark: PendingStep, performed: StepResult, paid: Collection[str]) -> bool:
    """Whether a paid route failed so often that the run is to be paused rather than ended."""
    match performed.answer:
        case Failure(retryable=True):
            return mark.sent.route in paid and mark.tries % TRIES == 0
        case _:
            return False


def pause_for(marks: Iterable[PendingStep], at: int) -> Paused | None:
    """Where a provider is out of reach, the run sits that out, longer each time. `at`: milliseconds."""
    out = [mark for mark in marks if mark.sits_out]
    if not out:
        return None
    longest = max(mark.tries // TRIES for mark in out)
    why = next(mark.ended.why for mark in out if mark.ended is not None)
    return Paused(f"The model's provider is out of reach ({why}).", at + min(SIT_OUT_MS << longest, LONGEST_MS))
