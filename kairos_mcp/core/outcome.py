"""How a run ended: the closed set of stop reasons, and the status that each one means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from kairos_mcp.core.quick_dataclass import dataclass

StopReason = Literal[
    "assistant_stop",
    "no_tool_calls",
    "max_rounds",
    "budget",
    "timeout",
    "stalled",
    "goal_achieved",
    "max_cycles_reached",
    "error_threshold",
    "loop_detected",
    "nothing_to_do",
    "llm_error",
    "length",
    "content_filter",
    "refused",
    "format_errors",
    "parse_error",
    "unknown_outcome",
    "empty_answer",
    "context_full",
    "team_done",
    "tasks_failed",
    "cancelled",
]
CYCLE_REASONS: tuple[StopReason, ...] = (
    *("goal_achieved", "max_cycles_reached", "error_threshold", "loop_detected", "nothing_to_do", "parse_error"),
)
"""Stop reasons that only runs of OODA cycles have."""
TEAM_REASONS: tuple[StopReason, ...] = ("team_done", "tasks_failed")
"""Stop reasons that only team runs have."""
EndStatus = Literal["completed", "failed", "cancelled"]

STATUS_OF: Mapping[StopReason, EndStatus] = {
    "assistant_stop": "completed",
    "no_tool_calls": "completed",
    "max_rounds": "completed",
    "budget": "completed",
    "timeout": "completed",
    "stalled": "completed",
    "goal_achieved": "completed",
    "max_cycles_reached": "completed",
    "error_threshold": "completed",
    "loop_detected": "completed",
    "nothing_to_do": "completed",
    "team_done": "completed",
    "llm_error": "failed",
    "length": "failed",
    "content_filter": "failed",
    "refused": "failed",
    "format_errors": "failed",
    "parse_error": "failed",
    "unknown_outcome": "failed",
    "empty_answer": "failed",
    "context_full": "failed",
    "tasks_failed": "failed",
    "cancelled": "cancelled",  # written by the executor; no flow knows that it was cancelled
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run returns. `notes` go to the result's `degraded`: whatever was done differently from the request."""

    stop_reason: StopReason
    status: EndStatus
    summary: str | None = None
    output: Any = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.status != STATUS_OF[self.stop_reason]:
            raise ValueError(f"a run that ends as {self.stop_reason} is {STATUS_OF[self.stop_reason]}")


def make_outcome(
    stop_reason: StopReason, summary: str | None = None, output: Any = None, notes: tuple[str, ...] = ()
) -> Outcome:
    """Make an outcome with this stop reason and the status that belongs to it."""
    return Outcome(stop_reason, STATUS_OF[stop_reason], summary, output, notes)
