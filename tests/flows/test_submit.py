"""A run in a stage submits at its end what is left, once, unless a person has decided about just that."""

from __future__ import annotations

from typing import Any

import pytest
from support.flow_runner import Fed, feed
from support.planner_inputs import TOOLS, brief, call, conversation_faults, says, turn

from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.messages import ToolResult, ToolSet
from kairos_mcp.core.steps import CallTool, Refused
from kairos_mcp.flows.planner import planner

STAGED = ToolSet((*TOOLS, *(BUILTIN[name].spec("", {}, "x") for name in ("edit_file", "submit_changes"))))
EDIT, SUBMIT = turn(call("edit_file")), turn(call("submit_changes"))
APPLIED, NO_CHANGE = ToolResult("Applied."), ToolResult("Nothing.", True, code="no_change")


def denied(words: str | None = None) -> ToolResult:
    return ToolResult("A person denied it.", True, {} if words is None else {"feedback": words}, "denied")


def fed(*answers: Any, submitted: Any = APPLIED, **changes: Any) -> Fed:
    """Feed a planner; `submitted`: the answers of submits, the last one for all further ones."""
    left = list(submitted) if isinstance(submitted, list) else [submitted]

    def answer(step: CallTool) -> Any:
        if step.call.name != "submit_changes":
            return ToolResult(f"result of {step.name}")
        return left.pop(0) if len(left) > 1 else left[0]

    return feed(planner(brief(tools=STAGED, **{"submits": True, **changes})), answers, answer)


def test_what_is_left_is_submitted_with_what_the_model_says() -> None:
    run = fed(EDIT, says("Done."))
    assert run.paths == ["round-1", "round-1/call-1", "round-2", "submit-1"]
    assert run.calls[-1].call.arguments == {"summary": "Done."}
    assert (run.outcome.summary, run.outcome.notes) == ("Done.", ())


@pytest.mark.parametrize(
    "answers", [(says("Done."),), (turn(call()), says("Done.")), (EDIT, SUBMIT, says("Done."))], ids=str
)
def test_where_nothing_is_left_nothing_is_submitted(answers: Any) -> None:
    assert "submit-1" not in fed(*answers).paths


def test_a_run_without_a_stage_submits_nothing() -> None:
    assert "submit-1" not in fed(EDIT, says("Done."), submits=False).paths


def test_words_of_a_denial_are_a_turn_of_the_user_and_the_loop_goes_on() -> None:
    run = fed(EDIT, says("Done."), EDIT, says("Now."), submitted=[denied("Use b."), APPLIED])
    assert run.paths[-2:] == ["round-4", "submit-2"]
    conversation = run.request("round-3").conversation
    assert [(each.role, each.content) for each in list(conversation)[-2:]] == [
        ("assistant", "Done."),
        ("user", "Use b."),
    ]
    assert conversation_faults(conversation) == []
    assert run.outcome.notes == ()


def test_what_was_denied_is_not_asked_about_again() -> None:
    assert fed(EDIT, says("Done."), says("Then not."), submitted=denied("No.")).paths[-1] == "round-3"
    assert "submit-1" not in fed(EDIT, SUBMIT, says("Done."), submitted=denied("No.")).paths
    partial = turn(call("submit_changes", paths=["a"]))
    assert fed(EDIT, partial, says("Done.")).paths[-1] == "submit-1"  # of the other paths nobody decided


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (denied(), "A person denied it"),
        (ToolResult("a.txt changed.", True, code="stale_file"), "a.txt changed."),
        (Refused("tool_calls", 1, 1), "left no call"),
    ],
    ids=str,
)
def test_what_stays_in_the_stage_is_said(answer: Any, note: str) -> None:
    run = fed(EDIT, says("Done."), submitted=answer)
    assert run.outcome.summary == "Done."
    assert note in run.outcome.notes[-1]
    assert fed(EDIT, says("Done."), submitted=NO_CHANGE).outcome.notes == ()


def test_a_loop_that_a_limit_ended_submits_too_and_no_words_make_it_go_on() -> None:
    run = fed(EDIT, Refused("rounds", 1, 1), says("Sum."), submitted=denied("Go on."))
    assert (run.paths[-2:], run.outcome.stop_reason) == (["closing", "submit-1"], "max_rounds")
