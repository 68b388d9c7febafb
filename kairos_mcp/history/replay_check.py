"""Builds a run again from what was recorded and compares every step that was asked; tells the first difference.

It knows rows and flows, no store: what is compared may have come in a file from another machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, field
from itertools import product
from typing import Any

from kairos_mcp.core.messages import Completion, Conversation, JsonObject, Message, ToolCall, ToolSet
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.steps import Answer, CallTool, Flow, Pause, RequestCompletion, Step, sort_key, turn_of
from kairos_mcp.core.text import truncate
from kairos_mcp.flows.planner_input import PlannerInput
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.store.rows import decode, encode
from kairos_mcp.views.transcript import list_entries

SHOWN_CHARS = 400


@dataclass(frozen=True, slots=True)
class RecordedEntry:
    """A recorded step: the digest of its request, and the answer if there is one. `call`: the call, unless a model's
    turn contains it. `is_redacted`: a secret was taken out of that answer since, so later digests differ now."""

    path: str
    kind: str
    digest: bytes
    answer: Answer | None
    call: ToolCall | None = None
    is_redacted: bool = False


@dataclass(frozen=True, slots=True)
class Recording:
    """A run to be built again. `outcome`: as it was encoded, null while it has not ended. `is_redacted`: a secret was
    taken out of its texts, so that no digest is that of then."""

    run_id: str
    loaded: LoadedSpec
    entries: Sequence[RecordedEntry]
    outcome: str | None
    is_redacted: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step where the replay diverges: the recorded request, the replayed request, and the first differing
    message ({at, recorded, asked}, `at` from 1).

    `certain`: the recorded request has the recorded digest. If not, it is an approximation made from rows that don't
    hold it.
    """

    path: str
    text: str
    recorded: JsonObject | None = None
    asked: JsonObject | None = None
    message: JsonObject | None = None
    certain: bool = True


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Result of a replay: identical, or the first difference. `by_shape`: steps of which only path and kind could be
    compared, since a secret had been removed from what came before them."""

    run_id: str
    steps: int
    difference: Difference | None = None
    by_shape: int = 0

    @property
    def identical(self) -> bool:
        return self.difference is None

    @property
    def first_difference(self) -> str | None:
        return None if self.difference is None else f"{self.difference.path}: {self.difference.text}"

    def as_json(self) -> JsonObject:
        found = asdict(self.difference) if self.difference is not None else None
        return {
            "run_id": self.run_id,
            "steps": self.steps,
            "identical": self.identical,
            "compared_by_shape": self.by_shape,
            "first_difference": found,
        }


def replay(recording: Recording) -> ReplayReport:
    """Fold the recording and compare. Raises nothing for a flow that breaks on it: that is a difference too."""
    fold = _ReplayComparison(recording)
    for entry in recording.entries:
        difference = fold.compare_step(entry)
        if difference is not None:
            return ReplayReport(recording.run_id, len(recording.entries), difference, fold.by_shape)
    return ReplayReport(recording.run_id, len(recording.entries), fold.compare_ending(), fold.by_shape)


@dataclass(slots=True)
class _ReplayComparison:
    recording: Recording
    runner: Runner = field(init=False)
    by_shape: int = 0
    doubtful: bool = False

    def __post_init__(self) -> None:
        flow: Flow[Any] = self.recording.loaded.flow()
        self.runner = Runner(flow)
        self.doubtful = self.recording.is_redacted

    def compare_step(self, entry: RecordedEntry) -> Difference | None:
        step = self.runner.waiting.get(entry.path)
        if step is None:
            waits = ", ".join(self.runner.waiting) or ("nothing: it has ended" if self.runner.finished else "nothing")
            return Difference(entry.path, f"the record has a step here; the flow waits for {waits}")
        self.by_shape += self.doubtful
        if _kind(step) != entry.kind or (step.digest != entry.digest and not self.doubtful):
            return _explain_difference(self.recording, entry, step)
        if entry.answer is not None:
            self.doubtful = self.doubtful or entry.is_redacted
            try:
                self.runner.answer(entry.path, entry.answer)
            except Exception as broken:  # whatever a changed flow does with an old answer
                return Difference(entry.path, f"the flow breaks on the recorded answer with {type(broken).__name__}")
        return None

    def compare_ending(self) -> Difference | None:
        """Whether the flow ends as the record says; a cancelled run's outcome is not the flow's."""
        from kairos_mcp.core.outcomes import Outcome

        recorded = self.recording.outcome
        if recorded is None or self.doubtful:
            return None
        outcome: Outcome = decode(Outcome, recorded)
        if outcome.status == "cancelled":
            return None
        if not self.runner.finished:
            waits = ", ".join(self.runner.waiting)
            return Difference(
                "outcome", f"the record says {outcome.stop_reason}; the flow has not ended, it asks {waits}"
            )
        gives = self.runner.outcome
        if encode(gives) == encode(outcome):
            return None
        before, now = asdict(outcome), asdict(gives)
        differ = [name for name in before if before[name] != now[name]]
        return Difference(
            "outcome",
            f"the outcome is not the one that these answers give: {', '.join(differ)}",
            {name: _truncate_value(before[name]) for name in differ},
            {name: _truncate_value(now[name]) for name in differ},
        )


def _kind(step: Step) -> str:
    match step:
        case RequestCompletion():
            return step.purpose
        case CallTool():
            return "call"
        case Pause():
            return "pause"


def _explain_difference(recording: Recording, entry: RecordedEntry, step: Step) -> Difference:
    match step:
        case CallTool(call=call) if entry.kind == "call":
            return _explain_call(recording, entry, call)
        case RequestCompletion() if entry.kind not in ("call", "pause"):
            return _explain_request(recording, entry, step)
        case _:
            asked = {"kind": _kind(step)}
            text = f"the record has a {entry.kind} here, the flow asks a {_kind(step)}"
            return Difference(entry.path, text, {"kind": entry.kind}, asked)


def _explain_call(recording: Recording, entry: RecordedEntry, call: ToolCall) -> Difference:
    asked = {"kind": "call", "tool": call.name, "arguments": call.arguments}
    before = entry.call or _call_of_turn(recording, entry.path)
    if before is None or before.digest != entry.digest:
        text = f"the call of {call.name} is not the one that was recorded; the turn that asked for it was changed"
        return Difference(entry.path, text, None, asked, certain=False)
    what = "tool" if before.name != call.name else "arguments"
    recorded = {"kind": "call", "tool": before.name, "arguments": before.arguments}
    return Difference(entry.path, f"the {what} of the call differ", recorded, asked)


def _call_of_turn(recording: Recording, path: str) -> ToolCall | None:
    """Return the recorded call of the turn that asked for it."""
    turn, number = turn_of(path)
    answers = {entry.path: entry.answer for entry in recording.entries}
    match answers.get(turn):
        case Completion(tool_calls=calls) if 0 < number <= len(calls):
            return calls[number - 1]
        case _:
            return None


def _explain_request(recording: Recording, entry: RecordedEntry, step: RequestCompletion) -> Difference:
    """Explain a request that differs: the recorded one is found by its digest, among those that are likely."""
    planner_input = recording.loaded.planner_input
    likely = list(_likely_requests(recording, planner_input, entry, step)) if planner_input is not None else []
    found = next((each for each in likely if each.digest == entry.digest), None)
    before = found or (likely[0] if likely else None)
    if before is None:
        return Difference(entry.path, "the request differs", {"kind": entry.kind}, _shown_step(step), certain=False)
    message = _first_differing_message(before.conversation, step.conversation)
    differ = [name for name, value in _shown_step(before).items() if _shown_step(step)[name] != value]
    text = f"{', '.join(differ) or 'the request'} differ" if found else (
        "the request is not the one that was recorded: an answer before it was changed, or the flow"
    )  # fmt: skip
    return Difference(entry.path, text, _shown_step(before), _shown_step(step), message, certain=found is not None)


def _likely_requests(
    recording: Recording, planner_input: PlannerInput, entry: RecordedEntry, step: RequestCompletion
) -> Iterator[RequestCompletion]:
    """Yield the requests that may have been recorded: the conversation as the rows give it, or as the flow has it now,
    with each other part of the request as it is now, as the spec has it, or left out."""
    answers = {each.path: each.answer for each in recording.entries if each.answer is not None}
    kinds = {each.path: each.kind for each in recording.entries}
    entries, here = list_entries(planner_input, answers, kinds), sort_key(entry.path)
    before = [each for each in entries if each.path is None or sort_key(turn_of(each.path)[0]) < here]
    system = [Message("system", planner_input.system)] if planner_input.system else []
    talks = (Conversation([*system, *(each.message for each in before)]), step.conversation)
    tools = (step.tools, planner_input.tools, ToolSet())
    schemas = (step.output_schema, planner_input.output_schema, None)
    for talk, offered, schema, most, reminder in product(
        talks, tools, schemas, (step.max_tokens, planner_input.max_tokens), (step.reminder, None)
    ):
        kind = entry.kind  # as recorded: a wrong one makes a digest that fits nothing
        yield RequestCompletion(step.name, kind, talk, offered, schema, most, reminder)  # type: ignore[arg-type]  # above


def _shown_step(step: RequestCompletion) -> JsonObject:
    return {
        "kind": step.purpose,
        "messages": len(step.conversation),
        "last_message": _truncate_value(step.conversation[-1].content) if len(step.conversation) else None,
        "tools": [spec.name for spec in step.tools],
        "schema": step.output_schema is not None,
        "max_tokens": step.max_tokens,
        "reminder": step.reminder,
    }


def _first_differing_message(recorded: Conversation, asked: Conversation) -> JsonObject | None:
    for at in range(max(len(recorded), len(asked))):
        before = recorded[at] if at < len(recorded) else None
        now = asked[at] if at < len(asked) else None
        if before != now:
            return {"at": at + 1, "recorded": _message(before), "asked": _message(now)}
    return None


def _message(message: Message | None) -> JsonObject | None:
    if message is None:
        return None
    shown: JsonObject = {"role": message.role, "content": _truncate_value(message.content)}
    if message.tool_calls:
        shown["tool_calls"] = [call.name for call in message.tool_calls]
    return shown


def _truncate_value(value: Any) -> Any:
    return truncate(value, SHOWN_CHARS, "… ({total} characters)") if isinstance(value, str) else value
