"""The planner loop: ask the model, execute its tool calls, show it the results, until it stops or is stopped.

The loop knows no limit, no route and no clock: it goes on until the model stops or a step is answered `Refused`.
Its steps are `round-N`, `round-N/call-M`, `round-N/compact`, `output/repair-N` and `closing`; after a closing that was
taken back, since a limit was raised while it waited, `closing-2` and `output-2/repair-N`. In a stage, `submit-N`.
Recorded runs are replayed through this file and the ones it calls: raise VERSION with any change in what they ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from kairos_mcp.core.messages import Completion, Message, ToolCall, ToolSet, add_discovered_tools
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.steps import CONTEXT_FULL, Failure, Flow, Predecessor, RequestCompletion
from kairos_mcp.flows.ending import (
    LoopGuards,
    LoopRecord,
    Stop,
    TurnKind,
    classify_turn,
    correction_messages,
    deliver_answer,
    stop_early,
)
from kairos_mcp.flows.planner_input import ContextUsage, PlannerInput, compact_conversation
from kairos_mcp.flows.submit import StageRecord, submit_rest
from kairos_mcp.flows.tool_calls import (
    AnsweredCall,
    execute_calls,
    first_stop,
    number_calls,
    reject_calls,
    turn_messages,
)

VERSION = 1
KEPT = " A run that `continues` this one takes the stage over."


def planner(planner_input: PlannerInput, stage: StageRecord | None = None) -> Flow[Outcome]:
    """Run the whole loop, and submit at its end what a stage holds. `stage`: of several loops, for which others
    submit."""
    stage = stage or StageRecord()
    outcome = yield from _loop(planner_input, stage)
    return (yield from submit_rest(stage, outcome, KEPT))[0] if planner_input.submits else outcome


def _loop(planner_input: PlannerInput, stage: StageRecord) -> Flow[Outcome]:
    """Run the loop. Tool calls, guards, compaction and endings have a file each."""
    prompts, tools = planner_input.prompts, planner_input.tools
    conversation, usage = planner_input.opening_conversation(), ContextUsage.at_start(planner_input)
    guards, record, predecessor, was_too_long = LoopGuards(prompts), LoopRecord(), None, False
    for number in count(1):
        name = f"round-{number}"
        if was_too_long or usage.is_full(conversation):
            compaction = yield from compact_conversation(
                name, conversation, planner_input, usage, was_too_long=was_too_long
            )
            if isinstance(compaction, str):
                return record.end_without_model("context_full", compaction)
            conversation, usage, predecessor = compaction.conversation, compaction.usage, None
            record.notes.append(compaction.note)
            guards.forget_repeats()

        turn = yield from RequestCompletion(
            name,
            "round",
            conversation,
            tools,
            planner_input.output_schema,
            planner_input.max_tokens,
            guards.reminder(planner_input.goal_reminder(conversation)),
            predecessor,
        )
        if isinstance(turn, Failure) and turn.code == CONTEXT_FULL and not was_too_long:
            was_too_long = True
            record.notes.append(turn.message)
            continue
        if not isinstance(turn, Completion):
            ended = yield from stop_early(planner_input, conversation, predecessor, record, turn)
            if isinstance(ended, Outcome):
                return ended
            continue
        was_too_long = False
        usage, kind = usage.after_completion(turn, conversation), classify_turn(turn)
        predecessor = Predecessor(name, len(conversation), tools, predecessor)
        record.record_turn(turn, kind)
        if (reason := guards.check_turn(kind, turn)) is not None:
            return record.end_without_model(reason)

        if kind == "final":
            ended = yield from deliver_answer(planner_input, conversation, predecessor, record, turn)
            if isinstance(ended, Outcome) and planner_input.submits:
                outcome, words = yield from submit_rest(stage, ended, KEPT)
                ended = (
                    conversation.add(*turn_messages(prompts, turn.content), Message("user", words))
                    if words
                    else outcome
                )
            if isinstance(ended, Outcome):
                return ended
            conversation = ended
            continue
        answered, stop = yield from _make_calls(kind, number_calls(turn, name), tools, guards)
        record.record_calls(name, answered)
        stage.record_calls(answered)
        widened = add_discovered_tools(tools, [(item.call.name, item.answer) for item in answered])
        usage, tools = usage.with_more_overhead(widened.size - tools.size), widened
        conversation = conversation.add(
            *turn_messages(prompts, turn.content, answered), *correction_messages(prompts, kind, turn)
        )
        if stop is not None:
            ended = yield from stop_early(planner_input, conversation, predecessor, record, stop)
            if isinstance(ended, Outcome):
                return ended
        del turn, answered  # the run may wait for long, and they stand in the conversation
    raise AssertionError("rounds are never used up: a limit ends the loop")


def _make_calls(
    kind: TurnKind, calls: Sequence[ToolCall], tools: ToolSet, guards: LoopGuards
) -> Flow[tuple[Sequence[AnsweredCall], Stop | None]]:
    """Have the calls of a turn made; return their results, and what stops the loop after them, if anything."""
    if kind != "calls":
        # A cut-off or unreadable turn may hold calls: each gets an error result, and none is executed.
        return reject_calls(calls, kind), None
    answered = yield from execute_calls(calls, tools)
    return answered, first_stop(answered) or guards.check_repeats(answered)
