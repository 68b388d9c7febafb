"""The endings of a loop: the final answer, the closing call after a limit or a stall, the end without one."""

from __future__ import annotations

from kairos_mcp.core.messages import Completion, Conversation, Message
from kairos_mcp.core.outcome import Outcome, StopReason
from kairos_mcp.core.steps import CompletionAnswer, Failure, Flow, Mechanical, Refused, RequestCompletion, Unknown
from kairos_mcp.core.strict_json import Undecodable
from kairos_mcp.flows.loop_guards import StalledLoop
from kairos_mcp.flows.planner_input import PlannerInput, say
from kairos_mcp.flows.record import LoopRecord
from kairos_mcp.flows.structured_output import (
    DeclinedRepair,
    DecodedOutput,
    InterruptedRepair,
    UndecodedOutput,
    decoded,
    fitting_turn,
)
from kairos_mcp.flows.tool_calls import limit_words

Stop = Refused | StalledLoop | Failure | Mechanical | Unknown


def delivered(brief: PlannerInput, talk: Conversation, record: LoopRecord, turn: Completion) -> Flow[Outcome]:
    """The model has stopped with a text: it is the summary, and the output where a schema was given."""
    reason: StopReason = "assistant_stop" if turn.finish == "stop" else "no_tool_calls"
    if brief.output_schema is None:
        return record.outcome(reason, turn.content)
    match (yield from decoded(turn, talk, brief.output_schema, brief)):
        case DecodedOutput(value=value, text=text):
            return record.outcome(reason, text, value)
        case UndecodedOutput(reason=why, text=text):
            return record.outcome("format_errors", text, None, f"No output: {why}.")
        case DeclinedRepair(finish=finish):
            return record.broken_off("refused" if finish == "refusal" else "content_filter")
        case InterruptedRepair(answer=stop, talk=longer):
            return (yield from stopped(brief, longer, record, stop))


def stopped(brief: PlannerInput, talk: Conversation, record: LoopRecord, stop: Stop) -> Flow[Outcome]:
    """Something ended the loop before the model did. What was said and done until then is kept."""
    match stop:
        case Refused():
            prompt = say(brief.prompts.closing, limit=limit_words(stop))
            return (yield from _summed_up(brief, talk, record, _reason_of(stop), prompt))
        case StalledLoop(tool=tool):
            prompt = say(brief.prompts.stalled, tool=tool)
            return (yield from _summed_up(brief, talk, record, "stalled", prompt))
        case Failure(code=code, message=message):
            return record.broken_off("llm_error", f"{code}: {message}")
        case Mechanical():
            return record.broken_off("llm_error", "Nobody was there to think.")
        case Unknown():
            return record.broken_off("unknown_outcome")


def _summed_up(
    brief: PlannerInput, talk: Conversation, record: LoopRecord, reason: StopReason, prompt: str
) -> Flow[Outcome]:
    asked = talk.add(Message("user", prompt))
    answer = yield from RequestCompletion(
        "closing", "closing", asked, output_schema=brief.output_schema, max_tokens=brief.max_tokens
    )
    match _summary_or_flaw(answer):
        case str(flaw):
            return record.outcome(reason, record.retold(), None, f"The summary was made from the record: {flaw}.")
        case said:
            return _with_output(brief, record, reason, said)


def _with_output(brief: PlannerInput, record: LoopRecord, reason: StopReason, answer: Completion) -> Outcome:
    """The closing's text, decoded once where a schema was given: after a limit there is no repair."""
    if answer.finish == "length":
        record.notes.append("The summary was cut off at its length limit.")
    if brief.output_schema is None:
        return record.outcome(reason, answer.content)
    try:
        return record.outcome(reason, answer.content, fitting_turn(answer, brief.output_schema))
    except Undecodable as error:
        return record.outcome(reason, answer.content, None, f"No output: {error.reason}.")


def _summary_or_flaw(answer: CompletionAnswer) -> Completion | str:
    """The closing answer, or why it is no summary."""
    match answer:
        case Refused() as refused:
            return f"the limit on {limit_words(refused)} left nothing for a closing call"
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


def _reason_of(refused: Refused) -> StopReason:
    match refused.limit:
        case "rounds":
            return "max_rounds"
        case "milliseconds":
            return "timeout"
        case _:
            return "budget"
