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
from kairos_mcp.core.tool_discovery import widened
from kairos_mcp.flows.compaction import ContextRoom, compacted
from kairos_mcp.flows.ending import delivered, stopped
from kairos_mcp.flows.loop_guards import LoopGuards, lapse, turn_of
from kairos_mcp.flows.planner_input import PlannerInput
from kairos_mcp.flows.record import LoopRecord
from kairos_mcp.flows.tool_calls import executed, not_executed, numbered, stop_of, turn_messages

VERSION = 1


def planner(brief: PlannerInput) -> Flow[Outcome]:
    """The loop on one screen; its calls, guards, compaction and endings have a file each."""
    talk, room, guards, record = brief.opening(), ContextRoom.of(brief), LoopGuards(brief.prompts), LoopRecord()
    tools = brief.tools
    for number in count(1):
        name = f"round-{number}"
        if room.is_full(talk):
            shorter = yield from compacted(name, talk, brief, room)
            if shorter is None:
                return record.broken_off("context_full")
            talk, room = shorter.talk, shorter.room
            record.notes.append(shorter.note)
            guards.forget_repeats()

        turn = yield from RequestCompletion(
            name, "round", talk, tools, brief.output_schema, brief.max_tokens, guards.reminder()
        )
        if not isinstance(turn, Completion):
            return (yield from stopped(brief, talk, record, turn))
        room, kind = room.after(turn, talk), turn_of(turn)
        record.heard(turn, kind)
        if (reason := guards.ends(kind)) is not None:
            return record.broken_off(reason)

        match kind:
            case "final":
                return (yield from delivered(brief, talk, record, turn))
            case "calls":
                answered = yield from executed(numbered(turn, name), tools)
                stop = stop_of(answered) or guards.circling(answered)
            case flaw:
                answered, stop = not_executed(numbered(turn, name), flaw), None
        record.did(name, answered)
        more = widened(tools, [(each.call.name, each.answer) for each in answered])
        room, tools = room.beside_more(more.size - tools.size), more
        said = turn_messages(brief.prompts, turn.content, answered)
        talk = talk.add(*said, *lapse(brief.prompts, kind, turn))
        if stop is not None:
            return (yield from stopped(brief, talk, record, stop))
    raise AssertionError("rounds are never used up: a limit ends the loop")
