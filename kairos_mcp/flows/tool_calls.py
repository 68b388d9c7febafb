"""One turn's calls: which run side by side, which stand alone, and how each result is told to the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kairos_mcp.core.messages import Completion, JsonObject, Message, ToolCall, ToolResult, ToolSet
from kairos_mcp.core.steps import CallAnswer, CallTool, Failed, Flow, Refused, Unknown, gather_calls
from kairos_mcp.flows.planner_input import Prompts, render_prompt

MAX_CALLS_PER_TURN = 64  # a guard: what a turn asks beyond it gets an error result
MAX_PARALLEL_READS = 10  # SYSTEMS.md P3

_EXCESS = ToolResult(
    f"Not executed: a turn may hold {MAX_CALLS_PER_TURN} calls. Call again in the next turn.",
    True,
    code="bad_arguments",
)
_LIMIT_WORDS = {"nano_usd": "money", "milliseconds": "time", "total_tokens": "tokens"}


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A call with what came of it. Every call of a turn becomes exactly one of these, in source order."""

    call: ToolCall
    answer: CallAnswer

    @property
    def is_success(self) -> bool:
        return isinstance(self.answer, ToolResult) and not self.answer.is_error


def number_calls(turn: Completion, name: str) -> tuple[ToolCall, ...]:
    """The turn's calls with the ordinals of this flow: the name of each call's step is also its id."""
    ids = [f"{name}/call-{n}" for n in range(1, len(turn.tool_calls) + 1)]
    if ids == [call.id for call in turn.tool_calls]:
        return turn.tool_calls
    return tuple([replace(call, id=own) for own, call in zip(ids, turn.tool_calls, strict=True)])


def execute_calls(calls: Sequence[ToolCall], offered: ToolSet) -> Flow[tuple[AnsweredCall, ...]]:
    """Call them: consecutive reads together, anything else alone and in its place.

    A call with unreadable arguments and one of a tool that is not offered are steps too: the hands answer
    them with an error, so that each call has its row. Once a limit refuses a call, or the end of one is
    unknown, nothing more of the turn is begun.
    """
    answered: list[AnsweredCall] = []
    stopped: CallAnswer | None = None
    for group in _group_calls(calls[:MAX_CALLS_PER_TURN], offered):
        if stopped is not None:
            answered += [AnsweredCall(call, _answer_not_started(stopped)) for call in group]
            continue
        for call, answer in zip(group, (yield from _execute_group(group)), strict=True):
            answered.append(AnsweredCall(call, answer))
            if stopped is None and not isinstance(answer, ToolResult):
                stopped = answer
    answered += [AnsweredCall(call, _EXCESS) for call in calls[MAX_CALLS_PER_TURN:]]
    return tuple(answered)


def reject_calls(calls: Sequence[ToolCall], why: str) -> tuple[AnsweredCall, ...]:
    """The calls of a turn of which nothing may run, since it was cut off or could not be read."""
    result = ToolResult(f"Not executed: the turn is {why}.", True, code="parse_error")
    return tuple(AnsweredCall(call, result) for call in calls)


def first_stop(answered: Sequence[AnsweredCall]) -> Refused | Unknown | None:
    """The answer after which nothing more of the turn was begun, if there is one."""
    for each in answered:
        match each.answer:
            case Refused() | Unknown() as stop:
                return stop
            case ToolResult():
                pass
    return None


def limit_name(refused: Refused) -> str:
    """A limit by its name for a reader, never with its figures: those are in the hands' standing line."""
    words = _LIMIT_WORDS.get(refused.limit, refused.limit.replace("_", " "))
    return f"{words} of a whole day" if refused.scope.startswith("whole ") else words


def turn_messages(prompts: Prompts, content: str, answered: Sequence[AnsweredCall] = ()) -> tuple[Message, ...]:
    """An assistant turn and the results of its calls; an empty turn is no message: some routes refuse one."""
    if not (content.strip() or answered):
        return ()
    said = Message("assistant", content, tuple([each.call for each in answered]))
    return (said, *[result_message(prompts, each) for each in answered])


def result_message(prompts: Prompts, answered: AnsweredCall) -> Message:
    """The one tool message of a call: content marked as from outside, or a failure as JSON (P4)."""
    call = answered.call
    match answered.answer:
        case ToolResult(content=content, is_error=False, remark=remark):
            before = "" if remark is None else f"{remark}\n"  # above the line below which nothing is ours
            text = f"{before}{render_prompt(prompts.outside, tool=call.name, call=call.id)}\n{content}"
        case ToolResult(content=content, code=str(code), remark=remark):  # ours: code and message say everything
            text = _failure_json(code, content, remark=remark)
        case ToolResult(content=content, data=data, remark=remark):
            text = _failure_json(None, content, data, remark)
        case Refused() as refused:
            text = _failure_json("budget_exhausted", f"Not executed: the limit on {limit_name(refused)} is reached.")
        case Unknown():
            text = _failure_json("cancelled", "The call was begun; whether it took effect is not known.")
    return Message("tool", text, tool_call_id=call.id)


def _group_calls(calls: Sequence[ToolCall], offered: ToolSet) -> list[list[ToolCall]]:
    groups: list[list[ToolCall]] = []
    after_read = False
    for call in calls:
        reads = _only_reads(call, offered)
        if reads and after_read:
            groups[-1].append(call)
        else:
            groups.append([call])
        after_read = reads
    return groups


def _only_reads(call: ToolCall, offered: ToolSet) -> bool:
    spec = offered.find(call.name)
    return spec is not None and spec.effect == "read"


def _execute_group(group: Sequence[ToolCall]) -> Flow[list[CallAnswer]]:
    if len(group) == 1:
        return [(yield from CallTool(group[0].id, group[0]))]
    answers = yield from gather_calls([CallTool(call.id, call) for call in group], MAX_PARALLEL_READS)
    return [_error_if_failed(answer) for answer in answers.values()]


def _error_if_failed(answer: CallAnswer | Failed) -> CallAnswer:
    match answer:
        case Failed(reason=reason):  # in the type of every Gather; a bare step has no way to give up
            return ToolResult(reason, is_error=True, code="cancelled")
        case result:
            return result


def _answer_not_started(stopped: CallAnswer) -> CallAnswer:
    match stopped:
        case Unknown():
            return ToolResult("Not executed: the end of a call before it is not known.", True, code="cancelled")
        case refused:
            return refused


def _failure_json(code: str | None, message: str, data: object = None, remark: str | None = None) -> str:
    told: JsonObject = {"success": False, "code": code, "message": message}
    told |= {} if remark is None else {"remark": remark}
    return json.dumps(told if data is None else told | {"data": data}, ensure_ascii=False)
