"""Decide: one action, within the mandate's limits, on files that were read; the flow adds the hashes of what was."""

from __future__ import annotations

from dataclasses import replace

from kairos_mcp.core.mandate import Mandate
from kairos_mcp.core.messages import Conversation, JsonObject, Message
from kairos_mcp.core.steps import Flow
from kairos_mcp.core.strict_json import Undecodable
from kairos_mcp.flows.ooda.context import CarryOver, CycleContext
from kairos_mcp.flows.ooda.decision import CodeEdit, Decision, EditPlan, decision_schema, parse_written_decision
from kairos_mcp.flows.ooda.excerpts import FileExcerpts, describe_tool
from kairos_mcp.flows.ooda.orient import Orientation, describe_check, list_newest_acts, orientation_for_decide
from kairos_mcp.flows.ooda.prompts import format_list, render_sections
from kairos_mcp.flows.ooda.risk import problems_of
from kairos_mcp.flows.ooda.shown import format_json
from kairos_mcp.flows.ooda.structured_answer import AnswerForm, PhaseFailure, request_answer

TOKENS = 2_048
LONG_TOKENS = 8_192  # where whole files or several edits may be written


def decide(
    context: CycleContext, name: str, orientation: Orientation, carried: CarryOver
) -> Flow[Decision | PhaseFailure]:
    """Steps: `NAME/read-1/call-M` for orient's files, `NAME`, then `NAME/read-N/call-M` and `NAME/turn-N` as often as
    the model asks to read, and up to two repairs."""
    excerpts = FileExcerpts(context, name)
    files = yield from excerpts.read_parts(orientation.files)
    if isinstance(files, PhaseFailure):
        return files

    def read(given: JsonObject) -> Decision:
        decision = parse_written_decision(given, context.mandate.allowed_actions)
        if problems := [*problems_of(context, decision), *excerpts.problems_of(decision)]:
            raise Undecodable("; ".join(problems))
        match decision:
            case CodeEdit() | EditPlan():
                return replace(decision, base=excerpts.base_of(decision))
            case _:
                return decision

    conversation = Conversation(
        (
            Message("system", context.phase_prompts.decide),
            Message("user", _user_prompt(context, orientation, carried, files)),
        )
    )
    form = AnswerForm(
        decision_schema(context.mandate.allowed_actions),
        _max_tokens(context.mandate),
        read,
        context.phase_prompts.loop if context.is_circling(carried) else None,
    )
    decided = yield from request_answer(name, conversation, form, context.phase_prompts, context.prompts, excerpts)
    return decided if isinstance(decided, PhaseFailure) else decided.value


def _user_prompt(context: CycleContext, orientation: Orientation, carried: CarryOver, files: str) -> str:
    runs = "run_tool" in context.mandate.allowed_actions
    return render_sections(
        context.phase_prompts.decide_user,
        goal=context.mandate.goal,
        acceptance=format_list(tuple(describe_check(check) for check in context.mandate.acceptance)),
        allowed=_describe_limits(context.mandate),
        tools=format_list(tuple(describe_tool(context, spec) for spec in context.shown_may)) if runs else "",
        lessons=context.quote(format_list(carried.lessons)),
        acts=context.quote(list_newest_acts(carried)),
        orientation=format_json(orientation_for_decide(context, orientation)),
        files=files,
    )


def _describe_limits(mandate: Mandate) -> str:
    limits: JsonObject = {
        "allowed_actions": list(mandate.allowed_actions),
        "max_edit_bytes": mandate.max_edit_bytes,
        "prefer_scope": mandate.prefer_scope,
        "risk_budget": mandate.risk_budget,
    }
    return format_json({name: value for name, value in limits.items() if value is not None})


def _max_tokens(mandate: Mandate) -> int:
    return LONG_TOKENS if {"edit_plan", "create_file"} & set(mandate.allowed_actions) else TOKENS
