"""The guards of a loop: what a turn is, how many bad ones are too many, when a loop goes round in circles.

Everything here follows from answers alone. What follows from limits is the hands' matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from kairos_mcp.core.messages import Completion, Message, ToolResult
from kairos_mcp.core.outcome import StopReason
from kairos_mcp.flows.planner_input import Prompts, render_prompt
from kairos_mcp.flows.tool_calls import AnsweredCall

TurnKind = Literal["final", "calls", "truncated", "empty", "unreadable", "content_filter", "refusal"]

WARN_AFTER_REPEATS = 3  # the same call with the same result
STALL_AFTER_REPEATS = 5
MAX_UNREADABLE_TURNS = 3  # in a row
REMIND_AFTER_FAILED_TURNS = 2  # in a row, so that the first reminder is that of round 3; SYSTEMS.md P10


def classify_turn(turn: Completion) -> TurnKind:
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


def correction_messages(prompts: Prompts, kind: TurnKind, turn: Completion) -> tuple[Message, ...]:
    """What the model is told after a turn that is of no use."""
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
    useless_turns: int = 0  # turns in a row
    unreadable_turns: int = 0
    failed_turns: int = 0
    repeats: dict[bytes, _RepeatCounter] = field(default_factory=dict)
    warning: str | None = None  # for the next request: the newest turn repeated a call

    def check_turn(self, turn: TurnKind) -> StopReason | None:
        """Take note of a turn; the reason to end the run with it, if there is one."""
        self.warning = None
        self.useless_turns = self.useless_turns + 1 if turn in ("truncated", "empty") else 0
        self.unreadable_turns = self.unreadable_turns + 1 if turn == "unreadable" else 0
        match turn:
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
        """Take note of a turn's results; Stalled where a call has now given the same result five times.

        A call counts once a turn: before the end there has always been a warning that the model could read.
        """
        latest = {each.call.digest: each for each in answered}
        self.failed_turns = 0 if any(each.is_success for each in latest.values()) else self.failed_turns + 1
        worst: tuple[int, str] = (0, "")
        for digest, each in latest.items():
            if isinstance(each.answer, ToolResult):
                worst = max(worst, (self._count_repeats(digest, each.answer.digest), each.call.name))
        times, tool = worst
        if times >= WARN_AFTER_REPEATS:
            self.warning = render_prompt(self.prompts.stall, tool=tool, times=times)
        return StalledLoop(tool) if times >= STALL_AFTER_REPEATS else None

    def reminder(self) -> str | None:
        """What the next request says beside the conversation, once."""
        failures = self.prompts.failures if self.failed_turns >= REMIND_AFTER_FAILED_TURNS else None
        return "\n".join(line for line in (self.warning, failures) if line) or None

    def forget_repeats(self) -> None:
        """After a compaction: what the model can no longer see it may well ask again."""
        self.repeats.clear()

    def _count_repeats(self, call: bytes, result: bytes) -> int:
        known = self.repeats.get(call)
        if known is None or known.result != result:
            known = self.repeats[call] = _RepeatCounter(result, 0)
        known.times += 1
        return known.times
