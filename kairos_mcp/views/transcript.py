"""A run's conversation and summary told from its rows alone, by code that knows no flow.

Used where no flow is there to ask: `continues`, the messages view, export, and the summary of a cancelled run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kairos_mcp.core.errors import Unreadable
from kairos_mcp.core.messages import Completion, Message, ToolCall, ToolResult
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.steps import Answer, RecordedStep, Refused, RequestCompletion, call_path, sort_key
from kairos_mcp.flows.ending import summarize_record
from kairos_mcp.flows.planner_input import PlannerInput
from kairos_mcp.flows.tool_calls import AnsweredCall, reject_calls, turn_messages
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.store.queries import StepRow
from kairos_mcp.store.rows import decode_answer

CONVERSATION_KINDS = ("round", "repair", "closing")  # the purposes whose completions are turns of the conversation


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """A message with the path of the step that brought it; None: it was there before the first step."""

    path: str | None
    message: Message


def list_entries(
    planner_input: PlannerInput, answers: Mapping[str, Answer], kinds: Mapping[str, str]
) -> Iterator[TranscriptEntry]:
    """Yield the conversation, each message with the path of the turn or call that it came from."""
    for message in planner_input.opening_messages:
        yield TranscriptEntry(None, message)
    for path in sorted((path for path, kind in kinds.items() if kind in CONVERSATION_KINDS), key=sort_key):
        match answers.get(path):
            case Completion() as turn:
                for message in turn_messages(
                    planner_input.prompts, turn.content, _answered_calls(turn.tool_calls, answers)
                ):
                    yield TranscriptEntry(message.tool_call_id or path, message)
            case _:
                pass


def _answered_calls(calls: Sequence[ToolCall], answers: Mapping[str, Answer]) -> list[AnsweredCall]:
    """Return each call with its answer; a call without a row was never made."""
    answered = []
    for call in calls:
        match answers.get(call.id):
            case ToolResult() | Refused() as answer:
                answered.append(AnsweredCall(call, answer))
            case _:
                answered += reject_calls([call], "incomplete")
    return answered


def answers_by_path(record: Sequence[StepRow]) -> dict[str, Answer]:
    return {row.path: decode_answer(row.body) for row in record if row.body is not None}


def kinds_by_path(record: Sequence[StepRow]) -> dict[str, str]:
    return {row.path: row.kind for row in record}


def summarize_run(record: Sequence[StepRow]) -> str:
    """Summarize what a run has done, without a model; say how many steps can't be read, if some can't."""
    answers: dict[str, Answer] = {}
    asked: dict[str, ToolCall] = {}
    lost = 0
    for row in record:
        try:
            answers |= answers_by_path([row])
            asked |= calls_by_path([row], answers)
        except Unreadable:
            lost += 1
    last_text, calls, rounds = "", Counter[tuple[str, bool]](), 0
    for row in record:
        match answers.get(row.path):
            case Completion() as turn:
                rounds += row.kind == "round"
                last_text = turn.content if turn.content.strip() and turn.unreadable is None else last_text
            case ToolResult() as result:
                call = asked.get(row.path)
                calls[row.path if call is None else call.name, not result.is_error] += 1
            case _:
                pass
    summary = summarize_record(rounds, calls, last_text)
    return summary if not lost else f"{summary}\nSteps whose answers can't be read: {lost}."


def calls_by_path(record: Iterable[StepRow], answers: Mapping[str, Answer]) -> dict[str, ToolCall]:
    """Return the call at each path, from the turn that asked for it or from the row of its step."""
    calls: dict[str, ToolCall] = {}
    for row in record:
        match answers.get(row.path):
            case Completion(tool_calls=of_turn):
                calls |= {call_path(row.path, n): call for n, call in enumerate(of_turn, 1)}
            case _ if (call := row.call) is not None:
                calls[row.path] = call
            case _:
                pass
    return calls


_CONTINUATION = re.compile(
    r"/(?:repair|turn)-\d+$"
)  # a step that goes on with the conversation of the one that it is under


def phase_transcripts(loaded: LoadedSpec, record: Iterable[RecordedStep]) -> Mapping[str, tuple[Message, ...]]:
    """Return the conversations of a run's phases by path, in the order in which they began, with the newest answers.

    The flow makes their prompts, so no row has them: the run is replayed, and each request shows its conversation.
    Raises ReplayDiffers where a row does not fit the flow.
    """
    runner = Runner(loaded.flow())
    found: dict[str, tuple[Message, ...]] = {}
    for row in record:
        step = runner.replay(row.path, row.digest, row.answer)
        if isinstance(step, RequestCompletion):
            path = _CONTINUATION.sub("", row.path)
            found[path] = (*step.conversation, *_closing_turn(row.answer))
    return found


def _closing_turn(answer: Answer | None) -> tuple[Message, ...]:
    """Return the turn that ends a conversation, with its unanswered calls; nothing where it is empty."""
    match answer:
        case Completion(content=content, tool_calls=calls) if content.strip() or calls:
            return (Message("assistant", content, calls),)
        case _:
            return ()
