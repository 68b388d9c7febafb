"""How a run ends: its status, its stop reason, and what it returns.

One row of the table is all that the program knows of a stop reason. Runs store the names, so a name never changes.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import truncate

EndStatus = Literal["completed", "stopped", "failed", "cancelled"]
"""`completed`: the run came to an end of its own. `stopped`: a guard ended it, be it a limit or one against running in
circles. `failed`: it could not go on. `cancelled`: a person or a caller ended it."""

RunStatus = Literal["working", "input_required", "paused", EndStatus]

TaskStatus = Literal["waiting", "working", "done", "stopped", "failed", "skipped"]
"""Of a task of a team."""

END_STATUSES: tuple[EndStatus, ...] = get_args(EndStatus)
RUN_STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)

StopName = Literal[
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
    "not_applied",
    "llm_error",
    "length",
    "content_filter",
    "refused",
    "format_errors",
    "parse_error",
    "empty_answer",
    "context_full",
    "team_done",
    "tasks_failed",
    "cancelled",
]


class StopReason(NamedTuple):
    name: StopName
    status: EndStatus
    words: str
    """What people read after the status: "stopped (out of rounds)"."""
    because: Literal["done", "limit", "circling", "model", "declined", "flow", "person"]
    """What ended the run: `done`, itself; `limit`, an amount or a count; `circling`, what it did led nowhere; `model`,
    an answer that another try may do better; `declined`, a model that did not want to; `flow`, anything else that kept
    it from going on; `person`, somebody outside."""
    of: Literal["any", "cycles", "team"] = "any"
    """The runs that can end so: any run, runs of cycles, or teams."""
    may_complete: bool = False
    """A run that did all that it was asked for ends as `completed` with this reason as well: nothing cut it short."""
    is_plain: bool = False
    """The page shows the status alone: the words would add nothing."""


_ROWS = (
    StopReason("assistant_stop", "completed", "answered", "done", is_plain=True),
    StopReason("no_tool_calls", "completed", "answered", "done", is_plain=True),
    StopReason("max_rounds", "stopped", "out of rounds", "limit"),
    StopReason("budget", "stopped", "out of budget", "limit"),
    StopReason("timeout", "stopped", "out of time", "limit"),
    StopReason("stalled", "stopped", "repeating itself", "circling"),
    StopReason("goal_achieved", "completed", "goal achieved", "done", "cycles"),
    StopReason("max_cycles_reached", "stopped", "all cycles run", "limit", "cycles", may_complete=True),
    StopReason("error_threshold", "stopped", "too many failed cycles", "circling", "cycles"),
    StopReason("loop_detected", "stopped", "going in circles", "circling", "cycles"),
    StopReason("nothing_to_do", "completed", "nothing to do", "done", "cycles"),
    StopReason("not_applied", "stopped", "its changes not applied", "circling", "cycles"),
    StopReason("llm_error", "failed", "no answer from the model", "model"),
    StopReason("length", "failed", "answers cut off", "model"),
    StopReason("content_filter", "failed", "blocked by a content filter", "declined"),
    StopReason("refused", "failed", "refused by the model", "declined"),
    StopReason("format_errors", "failed", "unreadable answers", "model"),
    StopReason("parse_error", "failed", "unreadable answer", "model", "cycles"),
    StopReason("empty_answer", "failed", "empty answers", "model"),
    StopReason("context_full", "failed", "context full", "flow"),
    StopReason("team_done", "completed", "tasks done", "done", "team", is_plain=True),
    StopReason("tasks_failed", "failed", "no task done", "flow", "team"),
    # Written by the worker that cancels a run (execution/cancellation.py): no flow returns it.
    StopReason("cancelled", "cancelled", "by request", "person", is_plain=True),
)
STOP_REASONS = MappingProxyType({reason.name: reason for reason in _ROWS})

CYCLE_REASONS = frozenset(reason.name for reason in _ROWS if reason.of == "cycles")

RECORD_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run returns."""

    stop_reason: StopName
    status: EndStatus
    summary: str | None = None
    """The model's closing words about the run; None if no model said any."""
    output: Any = None
    notes: tuple[str, ...] = ()
    """What was done otherwise than requested; a result shows it as `degraded`."""
    record: str | None = None
    """What the run did, made from its recorded steps if there is no summary; at most `RECORD_CHARS` characters."""

    @property
    def text(self) -> str:
        """The summary, or the record if there is none."""
        return self.summary or self.record or ""

    def __post_init__(self) -> None:
        row = STOP_REASONS[self.stop_reason]
        if self.status != row.status and not (row.may_complete and self.status == "completed"):
            raise ValueError(f"a run that ends as {row.name} is {row.status}")


def make_outcome(
    stop_reason: StopName,
    summary: str | None = None,
    output: Any = None,
    notes: tuple[str, ...] = (),
    *,
    record: str | None = None,
    did_all: bool = False,
) -> Outcome:
    """Make an outcome with this stop reason and the status that belongs to it. A long `record` is cut.

    `did_all`: the run did all that it was asked for, which completes it where its reason allows that.
    """
    row = STOP_REASONS[stop_reason]
    status = "completed" if did_all and row.may_complete else row.status
    if record is not None:
        record = truncate(record, RECORD_CHARS - 1)
    return Outcome(stop_reason, status, summary, output, notes, record)
