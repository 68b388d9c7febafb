"""Check answers for the open steps of a run against what waits, and price them: all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kairos_mcp.core.decision_results import approval_remark
from kairos_mcp.core.decision_rights import Actor
from kairos_mcp.core.errors import AlreadyAnswered, NotWaiting
from kairos_mcp.core.messages import Completion, ToolResult
from kairos_mcp.core.steps import Answer, CallTool, RequestCompletion, Step
from kairos_mcp.execution.accounting import drop_impossible_usage, estimate_usage, usage_units
from kairos_mcp.models import answers
from kairos_mcp.models.answers import (
    parse_approval_decision,
    parse_caller_completion,
    parse_completion,
    parse_settlement,
    parse_tool_result,
)
from kairos_mcp.store import settlements
from kairos_mcp.store.approvals import ApprovalRow
from kairos_mcp.store.decisions import Decision
from kairos_mcp.store.inbox import SubmittedAnswer
from kairos_mcp.store.settlements import KEY_SUFFIX, SettlementRequest
from kairos_mcp.tools.results import shorten


def to_stored_form(value: object, step: Step | None, recorded: Answer | None) -> object:
    """Return a completion in the form that is stored, and every other answer as it is.

    `step`: the open one that is answered; `recorded`: the answer that a step has already.
    """
    match step or recorded:
        case RequestCompletion(output_schema=schema):
            return answers.to_stored_form(value, is_json_asked=schema is not None)
        case Completion(tool_calls=calls):  # an object that was taken for it was its calls, or else its JSON
            return answers.to_stored_form(value, is_json_asked=not calls)
        case _:
            return value


def make_answers(
    answers: Mapping[str, object],
    waiting: Mapping[str, Step],
    approved: Mapping[str, ApprovalRow],
    run_id: str,
    shown_chars: int,
) -> list[SubmittedAnswer]:
    """Make an answer row for each answer. `approved`: the newest approvals, by the step's path.

    Raises NotWaiting, BadArguments; nothing is stored then.
    """
    remarks = {
        path: approval_remark(row.tool, row.feedback) for path, row in approved.items() if row.verdict == "approve"
    }
    return [
        _make_answer(path, value, waiting.get(path), remarks.get(path), run_id, shown_chars)
        for path, value in answers.items()
    ]


def _make_answer(
    path: str, value: object, step: Step | None, remark: str | None, run_id: str, shown_chars: int
) -> SubmittedAnswer:
    match step:
        case RequestCompletion():
            answer, notes = drop_impossible_usage(path, parse_caller_completion(value, path))
            usage = answer.usage or estimate_usage(step, answer)
            spent = usage_units(usage)
            # A waiting completion is shown in the native dialect.
            return SubmittedAnswer(
                path, answer, spent, usage.cached_tokens, usage.exactness, dialect="native", notes=notes
            )
        case CallTool():
            result, full_text = shorten(replace(parse_tool_result(value), remark=remark), shown_chars, path)
            text = (result.kept, full_text) if result.kept is not None and full_text is not None else None
            return SubmittedAnswer(path, result, text=text)
        case _:
            raise NotWaiting(
                f"Nothing waits under {path[:120]!r}.",
                "run_status shows the keys that wait now.",
                run_id=run_id,
            )


def split_answers(
    answers: Mapping[str, object], is_approval: Callable[[str], bool], who: Actor
) -> tuple[dict[str, object], list[Decision], list[SettlementRequest]]:
    """Split answers by kind: for steps, for approvals, for calls of unknown outcome. Raises BadArguments."""
    for_steps, decided, settled = dict[str, object](), list[Decision](), list[SettlementRequest]()
    for key, value in answers.items():
        if is_approval(key):
            decided.append(parse_approval_decision(value, key, who))
        elif settlements.is_settlement_key(key):
            settled.append(parse_settlement(value, key.removesuffix(KEY_SUFFIX)))
        else:
            for_steps[key] = value
    return for_steps, decided, settled


def check_repeated_answer(path: str, value: object, recorded: object, run_id: str, shown_chars: int) -> None:
    """Check an answer for a step that has one: the same answer again is no error.

    Raises AlreadyAnswered, BadArguments.
    """
    match recorded:
        case Completion():
            same = drop_impossible_usage(path, parse_completion(value, path))[0] == recorded
        case ToolResult(remark=remark):
            same = shorten(replace(parse_tool_result(value), remark=remark), shown_chars, path)[0] == recorded
        case _:  # the recorded answer is the server's own: a refusal, the end of a pause
            parse_tool_result(value)
            same = False
    if not same:
        raise AlreadyAnswered(
            f"{path!r} already has another answer.",
            "run_status shows the run's status.",
            run_id=run_id,
        )
