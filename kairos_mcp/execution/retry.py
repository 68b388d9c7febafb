"""When a failed model call is repeated, and when its run backs off because a provider is out of reach."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kairos_mcp.core.steps import Failure
from kairos_mcp.execution.accounting import StepResult
from kairos_mcp.execution.pending_step import PendingStep
from kairos_mcp.store.commit import Paused

MAX_ATTEMPTS = 4  # of a completion whose route fails in a way that may pass, before its run backs off
MAX_BACKOFF_S = 30.0  # the longest pause between two of them
FIRST_OUTAGE_PAUSE_MS, MAX_OUTAGE_PAUSE_MS = 30_000, 3_600_000  # doubled each time: a minute, two, ... an hour


def retry_delay_s(step: PendingStep, result: StepResult) -> float | None:
    """Seconds to wait before the next attempt: 1, 2, 4, or what the provider asks for. None: the answer is final."""
    match result.answer:
        case Failure(retryable=True, retry_after_s=after) if step.tries % MAX_ATTEMPTS:
            return min(MAX_BACKOFF_S, 2.0 ** (step.tries % MAX_ATTEMPTS - 1) if after is None else after)
        case _:
            return None


def is_outage(step: PendingStep, result: StepResult, paid_routes: Collection[str]) -> bool:
    """Whether a route that this server pays for failed so often that the run is to be paused rather than ended."""
    match result.answer:
        case Failure(retryable=True):
            return step.sent.route in paid_routes and step.tries % MAX_ATTEMPTS == 0
        case _:
            return False


def outage_pause(steps: Iterable[PendingStep], at: int) -> Paused | None:
    """How a run is paused while a provider is out of reach, longer each time; None if none is. `at`: milliseconds."""
    backing_off = [step for step in steps if step.is_backing_off]
    if not backing_off:
        return None
    failures = max(step.tries // MAX_ATTEMPTS for step in backing_off)
    reason = next(step.ended_attempt.reason for step in backing_off if step.ended_attempt is not None)
    pause_ms = min(FIRST_OUTAGE_PAUSE_MS << failures, MAX_OUTAGE_PAUSE_MS)
    return Paused(f"The model's provider is out of reach ({reason}).", at + pause_ms)
