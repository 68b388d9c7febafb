"""A run's conversation and summary told from its rows alone, by code that knows no flow.

Used where no flow is there to ask: `continues`, the messages view, export, and the summary of a cancelled run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kairos_mcp.core.errors import Unreadable
from kairos_mcp.core.messages import Completion, Message, ToolCall, ToolResult
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.step_path import call_path, sort_key
from kairos_mcp.core.steps import Answer, RecordedStep, Refused, RequestCompletion, Unknown
from kairos_mcp.flows.ending import summarize_record
from kairos_mcp.flows.planner_input import PlannerInput
from kairos_mcp.flows.tool_calls import AnsweredCall, reject_calls, turn_messages
from kairos_mcp.specs.build import LoadedSpec
from kairos_mcp.store.codec import decode_answer
from kairos_mcp.store.queries import StepRow

CONVERSATION_KINDS = ("round", "repair", "closing")  # the purposes whose completions are turns of the conversation


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """A message and the step that brought it; None: it stood in the conversation before the first step."""

    path: str | None
    message: Message


def list_messages(brief: PlannerInput, record: Sequence[StepRow]) -> tuple[Message, ...]:
    """History, goal, then each completion with the results of its calls, in the order of their paths."""
    return tuple(each.message for each in list_entries(brief, answers_by_path(record), kinds_by_path(record)))


def list_entries(
    brief: PlannerInput, answers: Mapping[str, Answer], kinds: Mapping[str, str]
) -> Iterator[TranscriptEntry]:
    """The conversation, each message with the path of the turn or call that it came from."""
    for message in (*brief.history, brief.goal):
        yield TranscriptEntry(None, message)
    for path in sorted((path for path, kind in kinds.items() if kind in CONVERSATION_KINDS), key=sort_key):
        match answers.get(path):
            case Completion() as turn:
                for message in turn_messages(brief.prompts, turn.content, _answered_calls(turn.tool_calls, answers)):
                    yield TranscriptEntry(message.tool_call_id or path, message)
            case _:
                pass


def _answered_calls(calls: Sequence[ToolCall], answers: Mapping[str, Answer]) -> list[AnsweredCall]:
    """Each call with what came of it; a call without a row was never made."""
    answered = []
    for call in calls:
        match answers.get(call.id):
            case ToolResult() | Refused() | Unknown() as answer:
                answered.append(AnsweredCall(call, answer))
            case _:
                answered += reject_calls([call], "incomplete")
    return answered


def answers_by_path(record: Sequence[StepRow]) -> dict[str, Answer]:
    return {row.path: decode_answer(row.body) for row in record if row.body is not None}


def kinds_by_path(record: Sequence[StepRow]) -> dict[str, str]:
    return {row.path: row.kind for row in record}


def summarize_run(record: Sequence[StepRow]) -> str:
    """What was done, where no model can be asked to say it; how many steps can't be read, where some can't."""
    answers: dict[str, Answer] = {}
    lost = 0
    for row in record:
        try:
            answers |= answers_by_path([row])
        except Unreadable:
            lost += 1
    names = call_names(answers)
    said, calls, rounds = "", [], 0
    for row in record:
        match answers.get(row.path):
            case Completion() as turn:
                rounds += row.kind == "round"
                said = turn.content if turn.content.strip() and turn.unreadable is None else said
            case ToolResult() as result:
                calls.append((names.get(row.path, row.path), not result.is_error))
            case _:
                pass
    told = summarize_record(rounds, calls, said)
    return told if not lost else f"{told}\nSteps whose answers can't be read: {lost}."


def call_names(answers: Mapping[str, Answer]) -> dict[str, str]:
    """The tool's name at the path of each call, from the turns that asked for them."""
    names: dict[str, str] = {}
    for path, answer in answers.items():
        match answer:
            case Completion(tool_calls=calls):
                names |= {call_path(path, n): call.name for n, call in enumerate(calls, 1)}
            case _:
                pass
    return names


_CONTINUATION = re.compile(
    r"/(?:repair|turn)-\d+$"
)  # a step that goes on with the conversation of the one that it is under


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation: the path of the phase that it is of, and its messages, the newest answer included."""

    path: str
    messages: tuple[Message, ...]


def phase_transcripts(thawed: LoadedSpec, record: Iterable[RecordedStep]) -> list[Transcript]:
    """The conversations in the order in which they began. Raises ReplayDiffers where a row does not fit the flow."""
    runner = Runner(thawed.flow())
    found: dict[str, Transcript] = {}
    for row in record:
        step = runner.replay(row.path, row.digest, row.answer)
        if isinstance(step, RequestCompletion):
            path = _CONTINUATION.sub("", row.path)
            found[path] = Transcript(path, (*step.conversation, *_closing_turn(row.answer)))
    return list(found.values())


def _closing_turn(answer: Answer | None) -> tuple[Message, ...]:
    """The turn that ends a conversation, with the calls that nobody has answered in it yet."""
    match answer:
        case Completion(content=content, tool_calls=calls) if content.strip() or calls:
            return (Message("assistant", content, calls),)
        case _:
            return ()
