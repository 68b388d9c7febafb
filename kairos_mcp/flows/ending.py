"""The endings of a loop: the final answer, the closing call after a limit or a stall, the end without one."""

from __future__ import annotations

from kairos_mcp.core.messages import Completion, Conversation, Message
from kairos_mcp.core.outcome import Outcome, StopReason
from kairos_mcp.core.steps import CompletionAnswer, Failure, Flow, Mechanical, Refused, RequestCompletion, Unknown
from kairos_mcp.core.strict_json import Undecodable
from kairos_mcp.flows.loop_guards import StalledLoop
from kairos_mcp.flows.planner_input import PlannerInput, render_prompt
from kairos_mcp.flows.record import LoopRecord
from kairos_mcp.flows.structured_output import (
    DeclinedRepair,
    DecodedOutput,
    InterruptedRepair,
    UndecodedOutput,
    decode_turn,
    decode_with_repairs,
)
from kairos_mcp.flows.tool_calls import limit_name

Stop = Refused | StalledLoop | Failure | Mechanical | Unknown


def deliver_answer(brief: PlannerInput, talk: Conversation, record: LoopRecord, turn: Completion) -> Flow[Outcome]:
    """The model has stopped with a text: it is the summary, and the output where a schema was given."""
    reason: StopReason = "assistant_stop" if turn.finish == "stop" else "no_tool_calls"
    if brief.output_schema is None:
        return record.outcome(reason, turn.content)
    match (yield from decode_with_repairs(turn, talk, brief.output_schema, brief)):
        case DecodedOutput(value=value, text=text):
            return record.outcome(reason, text, value)
        case UndecodedOutput(reason=why, text=text):
            return record.outcome("format_errors", text, None, f"No output: {why}.")
        case DeclinedRepair(finish=finish):
            return record.end_without_model("refused" if finish == "refusal" else "content_filter")
        case InterruptedRepair(answer=stop, conversation=longer):
            return (yield from stop_early(brief, longer, record, stop))


def stop_early(brief: PlannerInput, talk: Conversation, record: LoopRecord, stop: Stop) -> Flow[Outcome]:
    """Something ended the loop before the model did. What was said and done until then is kept."""
    match stop:
        case Refused():
            prompt = render_prompt(brief.prompts.closing, limit=limit_name(stop))
            return (yield from _request_summary(brief, talk, record, _stop_reason(stop), prompt))
        case StalledLoop(tool=tool):
            prompt = render_prompt(brief.prompts.stalled, tool=tool)
            return (yield from _request_summary(brief, talk, record, "stalled", prompt))
        case Failure(code=code, message=message):
            return record.end_without_model("llm_error", f"{code}: {message}")
        case Mechanical():
            return record.end_without_model("llm_error", "Nobody was there to think.")
        case Unknown():
            return record.end_without_model("unknown_outcome")


def _request_summary(
    brief: PlannerInput, talk: Conversation, record: LoopRecord, reason: StopReason, prompt: str
) -> Flow[Outcome]:
    asked = talk.add(Message("user", prompt))
    answer = yield from RequestCompletion(
        "closing", "closing", asked, output_schema=brief.output_schema, max_tokens=brief.max_tokens
    )
    match _check_summary(answer):
        case str(flaw):
            return record.outcome(reason, record.summary(), None, f"The summary was made from the record: {flaw}.")
        case said:
            return _outcome_with_output(brief, record, reason, said)


def _outcome_with_output(brief: PlannerInput, record: LoopRecord, reason: StopReason, answer: Completion) -> Outcome:
    """The closing's text, decoded once where a schema was given: after a limit there is no repair."""
    if answer.finish == "length":
        record.notes.append("The summary was cut off at its length limit.")
    if brief.output_schema is None:
        return record.outcome(reason, answer.content)
    try:
        return record.outcome(reason, answer.content, decode_turn(answer, brief.output_schema))
    except Undecodable as error:
        return record.outcome(reason, answer.content, None, f"No output: {error.reason}.")


def _check_summary(answer: CompletionAnswer) -> Completion | str:
    """The closing answer, or why it is no summary."""
    match answer:
        case Refused() as refused:
            return f"the limit on {limit_name(refused)} left nothing for a closing call"
        case Failure(code=code, message=message):
            return f"the closing call failed with {code}: {message}"
        case Mechanical():
            return "nobody was there to write it"
        case Completion(unreadable=str(reason)):
            return f"the closing answer could not be read: {reason}"
        case Completion(finish="content_filter" | "refusal"):
            return "the model refused to write it"
        case said:
            return said if said.content.strip() else "the closing answer was empty"


def _stop_reason(refused: Refused) -> StopReason:
    match refused.limit:
        case "rounds":
            return "max_rounds"
        case "milliseconds":
            return "timeout"
        case _:
            return "budget"
