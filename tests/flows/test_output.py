"""output_schema: the final text decoded, validated, repaired at most twice."""

from typing import Any

from support.flow_runner import Fed, feed
from support.planner_inputs import ANSWER_SCHEMA, brief, says

from kairos_mcp.core.messages import Completion
from kairos_mcp.core.steps import Failure, Refused
from kairos_mcp.flows.planner import planner


def _run_planner(*answers: Any) -> Fed:
    return feed(planner(brief(output_schema=ANSWER_SCHEMA)), answers)


def test_a_final_object_that_fits_is_the_output() -> None:
    run = _run_planner(says('{"answer": 3}'))
    assert (run.outcome.stop_reason, run.outcome.output) == ("assistant_stop", {"answer": 3})
    assert run.requests[0].output_schema == ANSWER_SCHEMA


def test_a_misfit_is_shown_to_the_model_and_the_repaired_object_is_as_good_as_a_first() -> None:
    run = _run_planner(says('{"answer": 0}'), says('{"answer": 3.0}'), says('{"answer": 3}'))
    assert run.paths == ["round-1", "output/repair-1", "output/repair-2"]
    repair = run.request("output/repair-2")
    assert (repair.purpose, len(repair.tools), repair.output_schema) == ("repair", 0, ANSWER_SCHEMA)
    assert [m.role for m in repair.conversation] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert "/answer" in repair.conversation[-1].content
    assert (run.outcome.stop_reason, run.outcome.output) == ("assistant_stop", {"answer": 3})


def test_a_model_that_never_fits_is_asked_twice_and_its_text_is_kept() -> None:
    run = _run_planner(says("not json"), says("not json either"), says("never json"))
    assert run.paths == ["round-1", "output/repair-1", "output/repair-2"]
    assert (run.outcome.stop_reason, run.outcome.status) == ("format_errors", "failed")
    assert (run.outcome.output, run.outcome.summary) == (None, "never json")


def test_an_object_in_a_turn_that_was_cut_off_is_not_believed() -> None:
    run = _run_planner(says("{}"), Completion('{"answer": 3}', finish="length"), says('{"answer": 4}'))
    assert run.outcome.output == {"answer": 4}


def test_an_empty_repair_does_not_lose_the_text() -> None:
    run = _run_planner(says("not json"), Completion(""), Completion(""))
    assert (run.outcome.stop_reason, run.outcome.summary) == ("format_errors", "not json")


def test_a_limit_on_the_repair_leads_to_the_closing_whose_text_is_decoded_once() -> None:
    run = _run_planner(says("not json"), Refused("model_calls", 1, 1), says('{"answer": 3}'))
    assert run.paths == ["round-1", "output/repair-1", "closing"]
    assert (run.outcome.stop_reason, run.outcome.output) == ("budget", {"answer": 3})


def test_a_repair_that_fails_or_is_declined_keeps_the_text() -> None:
    lost = _run_planner(says("not json"), Failure("provider_error", "gone"))
    assert (lost.outcome.stop_reason, lost.outcome.summary) == ("llm_error", "not json")
    declined = _run_planner(says("not json"), says("no", "refusal"))
    assert (declined.outcome.stop_reason, declined.outcome.summary) == ("refused", "not json")
    filtered = _run_planner(says("not json"), says("", "content_filter"))
    assert filtered.outcome.stop_reason == "content_filter"
