"""The tool calls of one turn: which run in parallel, which alone, and how each result is shown to the model.

And the flow of a run that is one call of one tool: it has the same gate, budget and record as a call inside a loop.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from kairos_mcp.core.limits import UNITS
from kairos_mcp.core.messages import Completion, JsonObject, Message, ToolCall, ToolResult, ToolSet
from kairos_mcp.core.outcomes import Outcome, make_outcome
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import CallAnswer, CallTool, Failed, Flow, Refused, call_path, gather_calls
from kairos_mcp.flows.planner_input import Prompts, render_prompt

MAX_CALLS_PER_TURN = 64  # each call beyond it gets an error result
MAX_PARALLEL_READS = 10
SINGLE_CALL_VERSION = 1
SINGLE_CALL_PATH = "call-1"  # the path of its one step

_TOO_MANY_CALLS = ToolResult(
    f"Not executed: a turn may hold {MAX_CALLS_PER_TURN} calls. Call again in the next turn.",
    True,
    code="bad_arguments",
)


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A call with its answer. Every call of a turn becomes exactly one of these, in source order."""

    call: ToolCall
    answer: CallAnswer

    @property
    def is_success(self) -> bool:
        """Whether the call has a result that is no error."""
        return isinstance(self.answer, ToolResult) and not self.answer.is_error


def number_calls(turn: Completion, name: str) -> tuple[ToolCall, ...]:
    """Give the turn's calls the ids `NAME/call-N`: the name of a call's step is also its id."""
    numbered: list[ToolCall] = []
    for n, call in enumerate(turn.tool_calls, 1):
        call_id = call_path(name, n)
        has_it = call.id == call_id
        numbered.append(call if has_it else ToolCall(call_id, call.name, call.arguments, call.unreadable))
    return tuple(numbered)


def execute_calls(calls: Sequence[ToolCall], offered: ToolSet) -> Flow[tuple[AnsweredCall, ...]]:
    """Execute the calls: consecutive reads in parallel, anything else alone, in its order.

    A call with unreadable arguments, or of a tool that is not offered, is a step too: the executor answers it with an
    error, so that each call has its row.
    """
    if len(calls) == 1:  # as in most turns
        return (AnsweredCall(calls[0], (yield from _call_of_turn(calls[0]))),)
    made, others = calls[:MAX_CALLS_PER_TURN], calls[MAX_CALLS_PER_TURN:]
    alone = [call.id for call in made if (spec := offered.find(call.name)) is None or spec.effect != "read"]
    answers = yield from gather_calls(map(_call_of_turn, made), MAX_PARALLEL_READS, alone)
    return (
        *(AnsweredCall(call, _error_if_failed(answers[call.id])) for call in made),
        *(AnsweredCall(call, _TOO_MANY_CALLS) for call in others),
    )


def single_call(name: str, arguments: JsonObject) -> Flow[Outcome]:
    """Call the tool once. The run's output is `{content, is_error, data?, remark?}`."""
    match (yield from CallTool(SINGLE_CALL_PATH, ToolCall(SINGLE_CALL_PATH, name, arguments))):
        case ToolResult() as result:
            output: JsonObject = {"content": result.content, "is_error": result.is_error}
            if result.data is not None:
                output["data"] = result.data
            if result.remark is not None:
                output["remark"] = result.remark
            return make_outcome("assistant_stop", None, output)
        case Refused(limit=limit):
            return make_outcome("budget", record=f"The call was not made: the limit on {limit} is reached.")


def reject_calls(calls: Sequence[ToolCall], flaw: str) -> tuple[AnsweredCall, ...]:
    """Answer each call of a turn that was cut off or could not be read with an error; none of them is executed."""
    result = ToolResult(f"Not executed: the turn is {flaw}.", True, code="parse_error")
    return tuple(AnsweredCall(call, result) for call in calls)


def first_stop(answered: Sequence[AnsweredCall]) -> Refused | None:
    """Return the refusal after which no further call of the turn was started, if there is one."""
    for item in answered:
        if not isinstance(item.answer, ToolResult):
            return item.answer
    return None


def limit_name(refused: Refused) -> str:
    """Name a limit for a reader, without its figures: those are in the status line at the newest turn."""
    name = UNITS[refused.limit].noun
    return f"{name} of a whole day" if refused.scope.startswith("whole ") else name


def turn_messages(prompts: Prompts, content: str, answered: Sequence[AnsweredCall] = ()) -> tuple[Message, ...]:
    """Return the messages of an assistant turn: its text and calls, then one result for each call.

    An empty turn gives no message, since some providers refuse one.
    """
    if not (content.strip() or answered):
        return ()
    message = Message("assistant", content, tuple([item.call for item in answered]))
    return (message, *[result_message(prompts, item) for item in answered])


def result_message(prompts: Prompts, answered: AnsweredCall) -> Message:
    """Return the one tool message of a call: its content under a line that marks it as from outside, or a failure as
    JSON."""
    call = answered.call
    match answered.answer:
        case ToolResult(content=content, is_error=False, remark=remark):
            # A remark is ours, so it stands above the line that marks what follows as from outside.
            remark_line = "" if remark is None else f"{remark}\n"
            text = f"{remark_line}{render_prompt(prompts.outside, tool=call.name, call=call.id)}\n{content}"
        case ToolResult(content=content, code=str(code), remark=remark):
            # The error is our own: its code and message say everything.
            text = _failure_json(code, content, remark=remark)
        case ToolResult(content=content, data=data, remark=remark):
            text = _failure_json(None, content, data, remark)
        case Refused() as refused:
            text = _failure_json("budget_exhausted", f"Not executed: the limit on {limit_name(refused)} is reached.")
    return Message("tool", text, tool_call_id=call.id)


def _call_of_turn(call: ToolCall) -> CallTool:
    return CallTool(call.id, call, is_of_turn=True)


def _error_if_failed(answer: CallAnswer | Failed) -> CallAnswer:
    match answer:
        case Failed(reason=reason):  # the type of a gather has it, but a bare step never gives up
            return ToolResult(reason, is_error=True, code="cancelled")
        case result:
            return result


def _failure_json(code: str | None, message: str, data: object = None, remark: str | None = None) -> str:
    failure: JsonObject = {"success": False, "code": code, "message": message}
    failure |= {} if remark is None else {"remark": remark}
    return json.dumps(failure if data is None else failure | {"data": data}, ensure_ascii=False)
