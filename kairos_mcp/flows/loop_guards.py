"""The guards of a loop: what kind a turn is, how many bad turns are too many, when the loop goes round in circles.

Everything here depends on the answers alone; limits are enforced where steps are executed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from kairos_mcp.core.messages import Completion, Message, ToolResult
from kairos_mcp.core.steps import StopReason
from kairos_mcp.flows.planner_input import Prompts, render_prompt
from kairos_mcp.flows.tool_calls import AnsweredCall

TurnKind = Literal["final", "calls", "truncated", "empty", "unreadable", "content_filter", "refusal"]

WARN_AFTER_REPEATS = 3  # of the same call with the same result
STALL_AFTER_REPEATS = 5
MAX_UNREADABLE_TURNS = 3  # in a row
RESULT_BYTES = 8  # of a result's digest: enough to tell the results of one call apart
REMIND_AFTER_FAILED_TURNS = 2  # in a row, so that the first reminder is that of round 3


def classify_turn(turn: Completion) -> TurnKind:
    """Return the kind of a completion. The order matters: a cut-off turn is not trusted, whatever else it holds."""
    match turn:
        case Completion(finish="content_filter" | "refusal" as finish):
            return finish
        case Completion(finish="length"):
            return "truncated"
        case Completion(unreadable=str()):
            return "unreadable"
        case Completion(tool_calls=(_, *_)):
            return "calls"
        case _:
            return "final" if turn.content.strip() else "empty"


def correction_messages(prompts: Prompts, kind: TurnKind, turn: Completion) -> tuple[Message, ...]:
    """Return what the model is told after a turn that was cut off, empty or unreadable."""
    match kind:
        case "truncated":
            return (Message("user", prompts.truncated),)
        case "empty":
            return (Message("user", prompts.empty),)
        case "unreadable":
            return (Message("user", render_prompt(prompts.unreadable, reason=turn.unreadable)),)
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class StalledLoop:
    """The loop is going round in circles: the same call of this tool has given the same result too often."""

    tool: str


@dataclass(slots=True)
class LoopGuards:
    """What is remembered from turn to turn. `newest_results` grows by one entry for each different call."""

    prompts: Prompts
    useless_turns: int = 0  # cut off or empty, in a row
    unreadable_turns: int = 0  # in a row
    failed_turns: int = 0  # turns in a row in which no call succeeded
    newest_results: dict[bytes, bytes] = field(default_factory=dict)  # by a call's digest: the start of the result's
    repeats: dict[bytes, int] = field(default_factory=dict)  # by a call's digest: how often, if more than once
    warning: str | None = None  # for the next request, if the newest turn repeated a call

    def check_turn(self, kind: TurnKind) -> StopReason | None:
        """Count a turn, and return the reason to end the run after it, if there is one."""
        self.warning = None
        self.useless_turns = self.useless_turns + 1 if kind in ("truncated", "empty") else 0
        self.unreadable_turns = self.unreadable_turns + 1 if kind == "unreadable" else 0
        match kind:
            case "content_filter":
                return "content_filter"
            case "refusal":
                return "refused"
            case "truncated":
                return "length" if self.useless_turns >= 2 else None
            case "empty":
                return "empty_answer" if self.useless_turns >= 2 else None
            case "unreadable":
                return "format_errors" if self.unreadable_turns >= MAX_UNREADABLE_TURNS else None
            case "final" | "calls":
                return None

    def check_repeats(self, answered: Iterable[AnsweredCall]) -> StalledLoop | None:
        """Count a turn's results; return StalledLoop once a call has given the same result five times.

        A call counts once a turn, so that the model always had a chance to read the warning before the end.
        """
        latest = {item.call.digest: item for item in answered}
        self.failed_turns = 0 if any(item.is_success for item in latest.values()) else self.failed_turns + 1
        worst: tuple[int, str] = (0, "")
        for digest, item in latest.items():
            if isinstance(item.answer, ToolResult):
                worst = max(worst, (self._count_repeats(digest, item.answer.digest), item.call.name))
        times, tool = worst
        if times >= WARN_AFTER_REPEATS:
            self.warning = render_prompt(self.prompts.stall, tool=tool, times=times)
        return StalledLoop(tool) if times >= STALL_AFTER_REPEATS else None

    def reminder(self, goal: str | None) -> str | None:
        """Return what the next request says once, outside the conversation; `goal`: its last line, if there is one."""
        failures = self.prompts.failures if self.failed_turns >= REMIND_AFTER_FAILED_TURNS else None
        return "\n".join(line for line in (self.warning, failures, goal) if line) or None

    def forget_repeats(self) -> None:
        """Start counting anew. After a compaction the model may well ask again for what it can no longer see."""
        self.newest_results.clear()
        self.repeats.clear()

    def _count_repeats(self, call: bytes, result: bytes) -> int:
        start = result[:RESULT_BYTES]
        if self.newest_results.get(call) != start:
            self.newest_results[call] = start
            self.repeats.pop(call, None)
            return 1
        times = self.repeats[call] = self.repeats.get(call, 1) + 1
        return times
