"""A run's conversation and summary told from its rows alone, by code that knows no flow.

Used where no flow is there to ask: `continues`, the messages view, export, and the summary of a cancelled run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kairos_mcp.flows.brief import Brief
from kairos_mcp.flows.calls import Answered, not_executed, turn_messages
from kairos_mcp.flows.record import record_summary
from kairos_mcp.messages import Completion, Message, ToolCall, ToolResult
from kairos_mcp.steps import Answer, Refused, Unknown
from kairos_mcp.store.codec import decode_answer
from kairos_mcp.store.reading import MarkRow

TALKS = ("round", "repair", "closing")  # the purposes whose completions are turns of the conversation


def conversation(brief: Brief, record: Sequence[MarkRow]) -> tuple[Message, ...]:
    """History, goal, then each completion with the results of its calls, in the order of their paths."""
    told: list[Message] = [*brief.history, brief.goal]
    answers = answers_by_path(record)
    for row in sorted((row for row in record if row.kind in TALKS), key=lambda row: path_key(row.path)):
        match answers.get(row.path):
            case Completion() as turn:
                told += turn_messages(brief.prompts, turn.content, _answered(turn.tool_calls, answers))
            case _:
                pass
    return tuple(told)


def _answered(calls: Sequence[ToolCall], answers: Mapping[str, Answer]) -> list[Answered]:
    """Each call with what came of it; a call without a row was never made."""
    answered = []
    for call in calls:
        match answers.get(call.id):
            case ToolResult() | Refused() | Unknown() as answer:
                answered.append(Answered(call, answer))
            case _:
                answered += not_executed([call], "incomplete")
    return answered


def answers_by_path(record: Sequence[MarkRow]) -> dict[str, Answer]:
    return {row.path: decode_answer(row.body) for row in record if row.body is not None}


def summary(record: Sequence[MarkRow]) -> str:
    """What was done, where no model can be asked to say it."""
    answers = answers_by_path(record)
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
    return record_summary(rounds, calls, said)


def call_names(answers: Mapping[str, Answer]) -> dict[str, str]:
    """The tool's name at the path of each call, from the turns that asked for them."""
    names: dict[str, str] = {}
    for path, answer in answers.items():
        match answer:
            case Completion(tool_calls=calls):
                names |= {f"{path}/call-{n}": call.name for n, call in enumerate(calls, 1)}
            case _:
                pass
    return names


def path_key(path: str) -> tuple[tuple[str, int], ...]:
    """Orders paths by their ordinals: round-2 before round-10, and a turn before its calls; closing comes last."""
    parts = []
    for part in path.split("/"):
        name, _, number = part.rpartition("-")
        ordinal = int(number) if re.fullmatch(r"\d{1,9}", number) else 0
        order = {"round": "1", "output": "2", "closing": "3"}.get(name or part, "1")
        parts.append((order + (name or part), ordinal))
    return tuple(parts)
