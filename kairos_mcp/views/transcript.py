"""A run's conversation and summary told from its rows alone, by code that knows no flow.

Used where no flow is there to ask: `continues`, the messages view, export, and the summary of a cancelled run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kairos_mcp.core.errors import Unreadable
from kairos_mcp.core.messages import Completion, Message, ToolCall, ToolResult
from kairos_mcp.core.step_path import call_path, sort_key
from kairos_mcp.core.steps import Answer, Refused, Unknown
from kairos_mcp.flows.ending import summarize_record
from kairos_mcp.flows.planner_input import PlannerInput
from kairos_mcp.flows.tool_calls import AnsweredCall, reject_calls, turn_messages
from kairos_mcp.store.codec import decode_answer
from kairos_mcp.store.queries import StepRow

TALKS = ("round", "repair", "closing")  # the purposes whose completions are turns of the conversation


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """A message and the step that brought it; None: it stood in the conversation before the first step."""

    path: str | None
    message: Message


def conversation(brief: PlannerInput, record: Sequence[StepRow]) -> tuple[Message, ...]:
    """History, goal, then each completion with the results of its calls, in the order of their paths."""
    return tuple(each.message for each in transcript(brief, answers_by_path(record), kinds_by_path(record)))


def transcript(
    brief: PlannerInput, answers: Mapping[str, Answer], kinds: Mapping[str, str]
) -> Iterator[TranscriptEntry]:
    """The conversation, each message with the path of the turn or call that it came from."""
    for message in (*brief.history, brief.goal):
        yield TranscriptEntry(None, message)
    for path in sorted((path for path, kind in kinds.items() if kind in TALKS), key=sort_key):
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


def summary(record: Sequence[StepRow]) -> str:
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
