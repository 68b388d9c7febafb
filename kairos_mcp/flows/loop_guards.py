"""The guards of a loop: what a turn is, how many bad ones are too many, when a loop goes round in circles.

Everything here follows from answers alone. What follows from limits is the hands' matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from kairos_mcp.core.messages import Completion, Message, ToolResult
from kairos_mcp.core.outcome import StopReason
from kairos_mcp.flows.planner_input import Prompts, say
from kairos_mcp.flows.tool_calls import AnsweredCall

Turn = Literal["final", "calls", "truncated", "empty", "unreadable", "content_filter", "refusal"]

WARN_AT = 3  # the same call with the same result
STALL_AT = 5
UNREADABLE = 3  # in a row
FAILED_TURNS = 2  # in a row, so that the first reminder is that of round 3; SYSTEMS.md P10


def turn_of(turn: Completion) -> Turn:
    """What the completion is. Where several hold, the first here decides: a cut-off turn is not believed."""
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


def lapse(prompts: Prompts, kind: Turn, turn: Completion) -> tuple[Message, ...]:
    """What the model is told after a turn that is of no use."""
    match kind:
        case "truncated":
            return (Message("user", prompts.truncated),)
        case "empty":
            return (Message("user", prompts.empty),)
        case "unreadable":
            return (Message("user", say(prompts.unreadable, reason=turn.unreadable)),)
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class StalledLoop:
    """The loop goes round in circles: the same call of this tool has given the same result too often."""

    tool: str


@dataclass(slots=True)
class _RepeatCounter:
    result: bytes
    times: int


@dataclass(slots=True)
class LoopGuards:
    """What must be remembered from turn to turn. It grows by one entry for each different call."""

    prompts: Prompts
    cut_or_empty: int = 0  # turns in a row
    unreadable: int = 0
    failed: int = 0
    repeats: dict[bytes, _RepeatCounter] = field(default_factory=dict)
    warning: str | None = None  # for the next request: the newest turn repeated a call

    def ends(self, turn: Turn) -> StopReason | None:
        """Take note of a turn; the reason to end the run with it, if there is one."""
        self.warning = None
        self.cut_or_empty = self.cut_or_empty + 1 if turn in ("truncated", "empty") else 0
        self.unreadable = self.unreadable + 1 if turn == "unreadable" else 0
        match turn:
            case "content_filter":
                return "content_filter"
            case "refusal":
                return "refused"
            case "truncated":
                return "length" if self.cut_or_empty >= 2 else None
            case "empty":
                return "empty_answer" if self.cut_or_empty >= 2 else None
            case "unreadable":
                return "format_errors" if self.unreadable >= UNREADABLE else None
            case "final" | "calls":
                return None

    def circling(self, answered: Iterable[AnsweredCall]) -> StalledLoop | None:
        """Take note of a turn's results; Stalled where a call has now given the same result five times.

        A call counts once a turn: before the end there has always been a warning that the model could read.
        """
        latest = {each.call.digest: each for each in answered}
        self.failed = 0 if any(each.went_well for each in latest.values()) else self.failed + 1
        worst: tuple[int, str] = (0, "")
        for digest, each in latest.items():
            if isinstance(each.answer, ToolResult):
                worst = max(worst, (self._count(digest, each.answer.digest), each.call.name))
        times, tool = worst
        if times >= WARN_AT:
            self.warning = say(self.prompts.stall, tool=tool, times=times)
        return StalledLoop(tool) if times >= STALL_AT else None

    def reminder(self) -> str | None:
        """What the next request says beside the conversation, once."""
        failures = self.prompts.failures if self.failed >= FAILED_TURNS else None
        return "\n".join(line for line in (self.warning, failures) if line) or None

    def forget_repeats(self) -> None:
        """After a compaction: what the model can no longer see it may well ask again."""
        self.repeats.clear()

    def _count(self, call: bytes, result: bytes) -> int:
        known = self.repeats.get(call)
        if known is None or known.result != result:
            known = self.repeats[call] = _RepeatCounter(result, 0)
        known.times += 1
        return known.times
