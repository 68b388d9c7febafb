"""Decide: one action, within the mandate's limits, on files that were read; the flow adds the hashes of what was."""

from __future__ import annotations

from dataclasses import replace

from kairos_mcp.core.mandate import Mandate
from kairos_mcp.core.messages import Conversation, JsonObject, Message
from kairos_mcp.core.steps import Flow
from kairos_mcp.core.strict_json import Undecodable
from kairos_mcp.flows.ooda.context import CarryOver, CycleContext
from kairos_mcp.flows.ooda.decision import CodeEdit, Decision, EditPlan, asked_schema, written
from kairos_mcp.flows.ooda.excerpts import FileExcerpts, described
from kairos_mcp.flows.ooda.orient import Orientation, acts, said, told
from kairos_mcp.flows.ooda.prompts import listed, sections
from kairos_mcp.flows.ooda.risk import problems_of
from kairos_mcp.flows.ooda.shown import as_text
from kairos_mcp.flows.ooda.structured_answer import AnswerForm, PhaseFailure, settled

TOKENS = 2_048
LONG_TOKENS = 8_192  # where whole files or several edits may be written


def decide(
    order: CycleContext, name: str, orientation: Orientation, carried: CarryOver
) -> Flow[Decision | PhaseFailure]:
    """Steps: `NAME/read-1/call-M` for orient's files, `NAME`, then `NAME/read-N/call-M` and `NAME/turn-N` as often as
    the model asks to read, and up to two repairs."""
    library = FileExcerpts(order, name)
    files = yield from library.opened(orientation.files)
    if isinstance(files, PhaseFailure):
        return files

    def read(given: JsonObject) -> Decision:
        decision = written(given, order.mandate.allowed_actions)
        if problems := [*problems_of(order, decision), *library.problems_of(decision)]:
            raise Undecodable("; ".join(problems))
        match decision:
            case CodeEdit() | EditPlan():
                return replace(decision, base=library.base_of(decision))
            case _:
                return decision

    talk = Conversation(
        (Message("system", order.says.decide), Message("user", _asked(order, orientation, carried, files)))
    )
    form = AnswerForm(
        asked_schema(order.mandate.allowed_actions),
        _tokens(order.mandate),
        read,
        order.says.loop if order.is_circling(carried) else None,
    )
    decided = yield from settled(name, talk, form, order.says, order.prompts, library)
    return decided if isinstance(decided, PhaseFailure) else decided.value


def _asked(order: CycleContext, orientation: Orientation, carried: CarryOver, files: str) -> str:
    runs = "run_tool" in order.mandate.allowed_actions
    return sections(
        order.says.decide_user,
        goal=order.mandate.goal,
        acceptance=listed(tuple(said(check) for check in order.mandate.acceptance)),
        allowed=_allowed(order.mandate),
        tools=listed(tuple(described(order, spec) for spec in order.shown_may)) if runs else "",
        lessons=order.quoted(listed(carried.lessons)),
        acts=order.quoted(acts(carried)),
        orientation=as_text(told(order, orientation)),
        files=files,
    )


def _allowed(mandate: Mandate) -> str:
    limits: JsonObject = {
        "allowed_actions": list(mandate.allowed_actions),
        "max_edit_bytes": mandate.max_edit_bytes,
        "prefer_scope": mandate.prefer_scope,
        "risk_budget": mandate.risk_budget,
    }
    return as_text({name: value for name, value in limits.items() if value is not None})


def _tokens(mandate: Mandate) -> int:
    return LONG_TOKENS if {"edit_plan", "create_file"} & set(mandate.allowed_actions) else TOKENS
