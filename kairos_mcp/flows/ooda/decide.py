"""Decide: choose one action, within the mandate's limits, on files that were read.

The flow adds the hashes of what was read, so that an edit only applies to the file that the model saw.
"""

from __future__ import annotations

from dataclasses import replace

from kairos_mcp.core.input_checks import Undecodable
from kairos_mcp.core.mandate import Mandate
from kairos_mcp.core.messages import Conversation, JsonObject, Message
from kairos_mcp.core.steps import Flow
from kairos_mcp.flows.ooda.context import CarryOver, CycleContext
from kairos_mcp.flows.ooda.decision import (
    CodeEdit,
    Decision,
    EditPlan,
    decision_json,
    decision_schema,
    parse_action,
)
from kairos_mcp.flows.ooda.decision_checks import find_problems
from kairos_mcp.flows.ooda.excerpts import FileExcerpts, describe_tool
from kairos_mcp.flows.ooda.orient import (
    Orientation,
    describe_check,
    list_newest_acts,
    orientation_for_decide,
    parse_orientation,
)
from kairos_mcp.flows.ooda.phase_flow import PhaseFlow
from kairos_mcp.flows.ooda.prompts import format_json, format_list
from kairos_mcp.flows.planner_input import render_sections
from kairos_mcp.flows.structured_answer import AnswerForm, PhaseFailure, request_answer

MAX_TOKENS = 2_048
MAX_EDIT_TOKENS = 8_192  # where whole files or several edits may be written


def decide(
    context: CycleContext, name: str, orientation: Orientation, carry_over: CarryOver
) -> Flow[Decision | PhaseFailure]:
    """Ask the model for a decision, and let it read before it decides.

    Steps: `NAME/read-1/call-M` for the files that orient named, `NAME`, then `NAME/read-N/call-M` and `NAME/turn-N`
    as often as the model asks to read, and up to two repairs.
    """
    excerpts = FileExcerpts(context, name)
    files = yield from excerpts.read_parts(orientation.files)
    if isinstance(files, PhaseFailure):
        return files

    def parse(given: JsonObject) -> Decision:
        decision = parse_action(given, context.mandate.allowed_actions, {})
        if problems := [*find_problems(context, decision), *excerpts.find_problems(decision)]:
            raise Undecodable("; ".join(problems))
        match decision:
            case CodeEdit() | EditPlan():
                return replace(decision, base=excerpts.base_for(decision))
            case _:
                return decision

    conversation = Conversation(
        (
            Message("system", context.phase_prompts.decide),
            Message("user", _user_prompt(context, orientation, carry_over, files)),
        )
    )
    form = AnswerForm(
        decision_schema(context.mandate.allowed_actions),
        MAX_EDIT_TOKENS if {"edit_plan", "create_file"} & set(context.mandate.allowed_actions) else MAX_TOKENS,
        parse,
        context.phase_prompts.loop if context.is_circling(carry_over) else None,
    )
    answer = yield from request_answer(name, conversation, form, context.phase_prompts, context.prompts, excerpts)
    return answer if isinstance(answer, PhaseFailure) else answer.value


def _user_prompt(context: CycleContext, orientation: Orientation, carry_over: CarryOver, files: str) -> str:
    can_run_tools = "run_tool" in context.mandate.allowed_actions
    tools = tuple(describe_tool(context, spec) for spec in context.shown_runnable) if can_run_tools else ()
    return render_sections(
        context.phase_prompts.decide_user,
        goal=context.mandate.goal,
        acceptance=format_list(tuple(describe_check(check) for check in context.mandate.acceptance)),
        allowed=_describe_limits(context.mandate),
        tools=format_list(tools),
        lessons=context.quote(format_list(carry_over.lessons)),
        acts=context.quote(list_newest_acts(carry_over)),
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


PHASE = PhaseFlow(
    lambda context, name, orientation: decide(context, name, orientation, context.carry_over),
    lambda decision: f"Decided: {decision.kind}.",
    parse_orientation,
    as_json=decision_json,
)
