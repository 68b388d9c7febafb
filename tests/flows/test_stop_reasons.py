"""Each stop reason of the closed set, reached; but `cancelled`, which no flow knows, and those of cycles and teams."""

from typing import Any

import pytest
from support.flow_runner import Fed, echo, feed
from support.planner_inputs import ANSWER_SCHEMA, brief, call, says, turn

from kairos_mcp.core.messages import Completion, ToolCall, ToolResult
from kairos_mcp.core.outcomes import STOP_REASONS, Outcome, StopName, make_outcome
from kairos_mcp.core.steps import CallTool, Failure, Mechanical, Refused
from kairos_mcp.flows.planner import planner

_CUT = Completion("half a", finish="length")
_UNREADABLE = Completion("{", unreadable="cut")


def _run_planner(*answers: Any, tools: Any = echo, **changes: Any) -> Fed:
    return feed(planner(brief(**changes)), answers, tools)


def _same(_: CallTool) -> ToolResult:
    return ToolResult("same")


ENDINGS: dict[str, tuple[Fed, str]] = {
    "assistant_stop": (_run_planner(says("Done.")), "Done."),
    "no_tool_calls": (_run_planner(says("Done.", None)), "Done."),
    "max_rounds": (_run_planner(turn(call()), Refused("rounds", 1, 1), says("Sum.")), "Sum."),
    "timeout": (_run_planner(turn(call()), Refused("milliseconds", 1, 1), says("Sum.")), "Sum."),
    "budget": (_run_planner(turn(call()), Refused("nano_usd", 1, 1), says("Sum.")), "Sum."),
    "stalled": (_run_planner(*[turn(call())] * 5, says("Sum."), tools=_same), "Sum."),
    "llm_error": (_run_planner(turn(call(), content="So far."), Failure("provider_error", "gone")), "So far."),
    "length": (_run_planner(turn(call(), content="So far."), _CUT, _CUT), "half a"),
    "empty_answer": (_run_planner(turn(call(), content="So far."), Completion(), Completion()), "So far."),
    "content_filter": (_run_planner(turn(call(), content="So far."), says("", "content_filter")), "So far."),
    "refused": (_run_planner(says("I will not.", "refusal")), "I will not."),
    "format_errors": (_run_planner(turn(call(), content="So far."), *[_UNREADABLE] * 3), "So far."),
    "context_full": (_run_planner(context_tokens=10), ""),
}


OF_EVERY_RUN = [row.name for row in STOP_REASONS.values() if row.of == "any" and row.because != "person"]


@pytest.mark.parametrize("reason", OF_EVERY_RUN)
def test_each_stop_reason_is_reached_with_its_status_and_loses_nothing(reason: StopName) -> None:
    run, summary = ENDINGS[reason]
    assert (run.outcome.stop_reason, run.outcome.status) == (reason, STOP_REASONS[reason].status)
    assert (run.outcome.summary or "").startswith(summary)
    assert run.outcome.text


def test_an_outcome_cannot_have_the_status_of_another_reason() -> None:
    with pytest.raises(ValueError, match="failed"):
        Outcome("length", "completed")
    assert make_outcome("cancelled").status == "cancelled"


@pytest.mark.parametrize("limit", ["model_calls", "input_tokens", "output_tokens", "total_tokens", "tool_calls"])
def test_every_other_limit_ends_as_budget(limit: str) -> None:
    assert _run_planner(Refused(limit, 7_531, 7_530), says("Sum.")).outcome.stop_reason == "budget"


def test_the_closing_call_has_no_tools_and_names_the_limit_without_its_figures() -> None:
    run = _run_planner(turn(call()), Refused("rounds", 7_531, 7_530), says("Sum."))
    closing = run.request("closing")
    assert (closing.purpose, len(closing.tools)) == ("closing", 0)
    assert "rounds" in closing.conversation[-1].content
    assert "753" not in closing.conversation[-1].content


@pytest.mark.parametrize(
    "closing",
    [
        Refused("total_tokens", 1, 1),
        Failure("provider_error", "gone"),
        Mechanical(),
        Completion("{", unreadable="cut"),
        Completion("  "),
        Completion("I will not.", finish="refusal"),
    ],
    ids=["refused", "failed", "nobody", "unreadable", "empty", "declined"],
)
def test_a_closing_call_that_gives_no_summary_leaves_one_made_from_the_record(closing: Any) -> None:
    run = _run_planner(turn(call(), call("write"), content="I found the door."), Refused("rounds", 1, 1), closing)
    assert (run.outcome.stop_reason, run.outcome.status, run.outcome.summary) == ("max_rounds", "stopped", None)
    assert "look" in run.outcome.record
    assert "write" in run.outcome.record
    assert "I found the door." in run.outcome.record
    assert len(run.outcome.notes) == 1


def test_a_failure_keeps_code_and_message_in_the_notes() -> None:
    run = _run_planner(turn(call()), Failure("provider_error", "The script has ended."))
    assert any("provider_error" in note and "The script has ended." in note for note in run.outcome.notes)
    assert "look" in run.outcome.record


def test_the_second_bad_turn_in_a_row_decides_between_length_and_empty_answer() -> None:
    assert _run_planner(_CUT, Completion()).outcome.stop_reason == "empty_answer"
    assert _run_planner(Completion(), _CUT).outcome.stop_reason == "length"


def test_a_good_turn_between_two_bad_ones_forgives_the_first() -> None:
    assert _run_planner(_CUT, turn(call()), _CUT, says("Done.")).outcome.stop_reason == "assistant_stop"
    run = _run_planner(_UNREADABLE, _UNREADABLE, turn(call()), _UNREADABLE, _UNREADABLE, says("Done."))
    assert run.outcome.stop_reason == "assistant_stop"


def test_a_final_text_after_a_limit_with_a_schema_is_decoded_once_without_repair() -> None:
    good = _run_planner(Refused("rounds", 1, 1), says('{"answer": 3}'), output_schema=ANSWER_SCHEMA)
    assert (good.outcome.stop_reason, good.outcome.output) == ("max_rounds", {"answer": 3})
    bad = _run_planner(Refused("rounds", 1, 1), says("three"), output_schema=ANSWER_SCHEMA)
    assert bad.paths == ["round-1", "closing"]
    assert (bad.outcome.stop_reason, bad.outcome.output, bad.outcome.summary) == ("max_rounds", None, "three")
    assert bad.request("closing").output_schema == ANSWER_SCHEMA
    assert len(bad.outcome.notes) == 1


_UNREADABLE_CALL = turn(ToolCall("from-outside", "look", unreadable="the arguments are no JSON object"))


@pytest.mark.parametrize("bad", [[_UNREADABLE_CALL] * 5, [_UNREADABLE, _UNREADABLE_CALL] * 3])
def test_turns_whose_calls_can_not_be_read_are_format_errors_and_no_stall(bad: list[Completion]) -> None:
    run = _run_planner(turn(call(), content="So far."), *bad, says("Sum."))
    assert (run.outcome.stop_reason, run.outcome.status, run.outcome.summary) == ("format_errors", "failed", "So far.")
    assert [path for path in run.paths if "/" not in path] == ["round-1", "round-2", "round-3", "round-4"]


def test_a_call_that_can_be_read_forgives_the_one_beside_it() -> None:
    mixed = turn(call(), *_UNREADABLE_CALL.tool_calls)
    run = _run_planner(_UNREADABLE_CALL, _UNREADABLE_CALL, mixed, _UNREADABLE_CALL, _UNREADABLE_CALL, says("Done."))
    assert run.outcome.stop_reason == "assistant_stop"


def test_one_call_is_counted_as_one() -> None:
    refused = Refused("model_calls", 1, 1)
    run = _run_planner(turn(call("look"), content="I look."), refused, refused)
    assert "- look: 1 call\n" in run.outcome.record
