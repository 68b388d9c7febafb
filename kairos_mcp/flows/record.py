"""What a loop has said and done so far: enough to end it at any moment with nothing lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kairos_mcp.core.messages import Completion
from kairos_mcp.core.outcome import Outcome, StopReason, make_outcome
from kairos_mcp.core.steps import Unknown
from kairos_mcp.flows.loop_guards import TurnKind
from kairos_mcp.flows.tool_calls import MAX_CALLS_PER_TURN, AnsweredCall

_TEXT = 2_000  # characters of the last text that stand in a summary made from the record


@dataclass(slots=True)
class LoopRecord:
    """A loop's own memory: it lives in the generator and is rebuilt with it, so it need not be frozen."""

    rounds: int = 0
    last_text: str = ""  # the last text that the model gave and that could be read
    calls: list[tuple[str, bool]] = field(default_factory=list)  # (tool, went well), in source order
    notes: list[str] = field(default_factory=list)

    def record_turn(self, turn: Completion, kind: TurnKind) -> None:
        self.rounds += 1
        if kind != "unreadable" and turn.content.strip():
            self.last_text = turn.content

    def record_calls(self, name: str, answered: Sequence[AnsweredCall]) -> None:
        for each in answered:
            self.calls.append((each.call.name, each.is_success))
            if isinstance(each.answer, Unknown):
                self.notes.append(f"{each.call.id} ({each.call.name}) was begun, and its end is not known.")
        if len(answered) > MAX_CALLS_PER_TURN:
            self.notes.append(f"{name}: of {len(answered)} calls in one turn {MAX_CALLS_PER_TURN} were executed.")

    def outcome(self, stop_reason: StopReason, summary: str, output: Any = None, *notes: str) -> Outcome:
        return make_outcome(stop_reason, summary, output, (*self.notes, *notes))

    def end_without_model(self, stop_reason: StopReason, *notes: str) -> Outcome:
        """The end without another model call: the last text is the summary, else what the record can tell."""
        if self.last_text:
            return self.outcome(stop_reason, self.last_text, None, *notes, "The summary is the model's last text.")
        return self.outcome(stop_reason, self.summary(), None, *notes, "The summary was made from the record.")

    def summary(self) -> str:
        return summarize_record(self.rounds, self.calls, self.last_text)


def summarize_record(rounds: int, calls: Iterable[tuple[str, bool]], last_text: str) -> str:
    """A summary that no model writes: rounds, calls by tool in order of first use, and the last text."""
    tally: dict[str, list[bool]] = {}
    for tool, went_well in calls:
        tally.setdefault(tool, []).append(went_well)
    lines = [f"Made from the record, not by a model. Rounds: {rounds}."]
    for tool, results in tally.items():
        failed = results.count(False)
        lines.append(f"- {tool}: {len(results)} calls" + (f", {failed} failed" if failed else ""))
    if last_text:
        left_out = len(last_text) - _TEXT
        lines += ["Last text of the model:", last_text[:_TEXT]]
        lines += [f"({left_out} further characters are in the run's messages)"] if left_out > 0 else []
    return "\n".join(lines)
