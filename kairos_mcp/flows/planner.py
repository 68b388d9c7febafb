"""The planner loop: ask the model, run what it calls, show it the results, until it stops or is stopped.

It knows no limit, no route and no clock: it goes on until the model stops or a step is answered `Refused`.
Its steps are `round-N`, `round-N/call-M`, `round-N/compact`, `output/repair-N` and `closing`.
Recorded runs replay through this file and those it calls: who changes what they ask raises VERSION.
"""

from __future__ import annotations

from itertools import count

from kairos_mcp.core.messages import Completion
from kairos_mcp.core.outcome import Outcome
from kairos_mcp.core.steps import Flow, RequestCompletion
from kairos_mcp.core.tool_discovery import add_discovered_tools
from kairos_mcp.flows.compaction import ContextUsage, compact_conversation
from kairos_mcp.flows.ending import deliver_answer, stop_early
from kairos_mcp.flows.loop_guards import LoopGuards, classify_turn, correction_messages
from kairos_mcp.flows.planner_input import PlannerInput
from kairos_mcp.flows.record import LoopRecord
from kairos_mcp.flows.tool_calls import execute_calls, first_stop, number_calls, reject_calls, turn_messages

VERSION = 1


def planner(planner_input: PlannerInput) -> Flow[Outcome]:
    """The loop on one screen; its calls, guards, compaction and endings have a file each."""
    talk, room, guards, record = (
        planner_input.opening_conversation(),
        ContextUsage.at_start(planner_input),
        LoopGuards(planner_input.prompts),
        LoopRecord(),
    )
    tools = planner_input.tools
    for number in count(1):
        name = f"round-{number}"
        if room.is_full(talk):
            shorter = yield from compact_conversation(name, talk, planner_input, room)
            if shorter is None:
                return record.end_without_model("context_full")
            talk, room = shorter.conversation, shorter.usage
            record.notes.append(shorter.note)
            guards.forget_repeats()

        turn = yield from RequestCompletion(
            name, "round", talk, tools, planner_input.output_schema, planner_input.max_tokens, guards.reminder()
        )
        if not isinstance(turn, Completion):
            return (yield from stop_early(planner_input, talk, record, turn))
        room, kind = room.after_completion(turn, talk), classify_turn(turn)
        record.record_turn(turn, kind)
        if (reason := guards.check_turn(kind)) is not None:
            return record.end_without_model(reason)

        match kind:
            case "final":
                return (yield from deliver_answer(planner_input, talk, record, turn))
            case "calls":
                answered = yield from execute_calls(number_calls(turn, name), tools)
                stop = first_stop(answered) or guards.check_repeats(answered)
            case flaw:
                answered, stop = reject_calls(number_calls(turn, name), flaw), None
        record.record_calls(name, answered)
        more = add_discovered_tools(tools, [(each.call.name, each.answer) for each in answered])
        room, tools = room.with_more_overhead(more.size - tools.size), more
        said = turn_messages(planner_input.prompts, turn.content, answered)
        talk = talk.add(*said, *correction_messages(planner_input.prompts, kind, turn))
        if stop is not None:
            return (yield from stop_early(planner_input, talk, record, stop))
    raise AssertionError("rounds are never used up: a limit ends the loop")
