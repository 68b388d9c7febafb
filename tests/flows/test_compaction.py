"""Compaction: when it comes, what it keeps, and what it may not part."""

from typing import Any

from support.flow_runner import Fed, feed
from support.planner_inputs import brief, call, conversation_faults, says, turn

from kairos_mcp.core.messages import Completion, Message, ToolCall, ToolResult, Usage
from kairos_mcp.core.steps import CallTool, Failure, Mechanical, Refused
from kairos_mcp.flows.planner import planner
from kairos_mcp.flows.planner_input import ContextUsage, normalize_history, render_transcript

LONG = "word " * 400  # 2,000 characters, some 500 tokens


def _long(step: CallTool) -> ToolResult:
    return ToolResult(f"{step.name} {LONG}")


def _rounds(number: int) -> list[Completion]:
    return [turn(call(n=n), call(m=n), content=f"Round {n} said.") for n in range(number)]


def _run_planner(*answers: Any, context_tokens: int = 4_000, **changes: Any) -> Fed:
    return feed(planner(brief(context_tokens=context_tokens, **changes)), answers, _long)


def test_at_92_percent_the_middle_becomes_a_summary_and_the_ends_stay() -> None:
    run = _run_planner(*_rounds(4), says("Goal: the goal."), says("Done."))
    assert run.paths[-2:] == ["round-5/compact", "round-5"]
    before, after = run.request("round-4").conversation, run.request("round-5").conversation
    assert list(after)[:2] == list(before)[:2]
    assert (after[2].role, "Goal: the goal." in after[2].content) == ("user", True)
    assert [m.tool_call_id for m in after[-2:]] == ["round-4/call-1", "round-4/call-2"]
    assert conversation_faults(after) == []
    assert after.size < before.size
    assert run.outcome.stop_reason == "assistant_stop"
    assert len(run.outcome.notes) == 1


def test_the_compact_request_is_small_and_offers_nothing() -> None:
    run = _run_planner(*_rounds(4), says("Goal: the goal."), says("Done."))
    request = run.request("round-5/compact")
    assert (request.purpose, len(request.tools), request.output_schema) == ("compact", 0, None)
    assert [m.role for m in request.conversation] == ["system", "user"]
    assert request.conversation.size < 4_000 * 4 * 0.4
    assert "round-1/call-1" in request.conversation[1].content
    assert "round-4/call-1" not in request.conversation[1].content


def test_where_nobody_summarises_older_results_shrink_to_the_paths_of_their_steps() -> None:
    for answer in (
        Mechanical(),
        Refused("total_tokens", 1, 1),
        Failure("provider_error", "gone"),
        Completion(),
    ):
        run = _run_planner(*_rounds(4), answer, says("Done."))
        after = run.request("round-5").conversation
        results = {m.tool_call_id: m.content for m in after if m.role == "tool"}
        assert len(results) == 8
        assert "round-1/call-2" in results["round-1/call-2"]
        assert LONG not in results["round-1/call-2"]
        assert LONG in results["round-4/call-2"]
        assert conversation_faults(after) == []
        assert len(run.outcome.notes) == 1


def test_what_does_not_get_a_third_smaller_ends_as_context_full() -> None:
    run = _run_planner(*_rounds(4), says(LONG * 6))
    assert run.paths[-1] == "round-5/compact"
    assert (run.outcome.stop_reason, run.outcome.summary) == ("context_full", "Round 3 said.")


def test_a_conversation_without_a_middle_is_full_at_once() -> None:
    run = _run_planner(*_rounds(1), context_tokens=1_000)
    assert run.paths == ["round-1", "round-1/call-1", "round-1/call-2"]
    assert run.outcome.stop_reason == "context_full"


def test_the_reported_input_counts_more_than_bytes() -> None:
    reported = [turn(call(n=1), tokens=100), turn(call(n=2), tokens=3_900), says("Short."), says("Done.")]
    assert "round-3/compact" in feed(planner(brief(context_tokens=4_000)), reported).paths


def test_the_next_prompt_is_the_reported_input_and_a_quarter_of_the_bytes_added_since() -> None:
    asked = brief().opening_conversation()
    longer = asked.add(Message("assistant", "x" * 400))
    room = ContextUsage.at_start(brief()).after_completion(Completion("x", usage=Usage(1_000, 1)), asked)
    assert room.estimate_tokens(longer) == 1_000 + (longer.size - asked.size) // 4
    assert room.after_compaction().estimate_tokens(longer) == ContextUsage.at_start(brief()).estimate_tokens(longer)


def test_an_estimate_of_the_hands_does_not_count_as_reported() -> None:
    asked = brief().opening_conversation()
    bounded = Completion("x", usage=Usage(90_000, 1, exactness="bounded"))
    assert ContextUsage.at_start(brief()).after_completion(bounded, asked) == ContextUsage.at_start(brief())


def test_the_smallest_context_seen_is_the_measure() -> None:
    room = ContextUsage.at_start(brief(context_tokens=100_000))
    asked = brief().opening_conversation()
    for context in (50_000, 8_000, 64_000):
        room = room.after_completion(Completion("x", context_tokens=context), asked)
    assert room.context_tokens == 8_000


def test_a_summary_of_a_summary_still_holds_the_first_one() -> None:
    answers = [*_rounds(4), says("Goal: FIRST."), *_rounds(3), says("Goal: SECOND."), says("Done.")]
    run = _run_planner(*answers)
    compactions = [r for r in run.requests if r.purpose == "compact"]
    assert len(compactions) == 2
    assert "Goal: FIRST." in compactions[1].conversation[1].content


def test_after_a_compaction_a_call_may_be_repeated_without_being_a_stall() -> None:
    same = [turn(call(a=1)) for _ in range(4)]
    run = feed(
        planner(brief(context_tokens=4_000)),
        [*same, *_rounds(3), *_rounds(1), says("Goal: it."), *same, says("Done.")],
        lambda step: ToolResult("same" if "a" in step.call.arguments else f"{step.name} {LONG}"),
    )
    assert "round-9/compact" in run.paths
    assert run.outcome.stop_reason == "assistant_stop"


def test_a_long_history_is_compacted_before_the_first_round_and_the_goal_stays() -> None:
    history = [
        message
        for n in range(6)
        for message in (
            Message("assistant", "", (ToolCall(f"x{n}", "look"),)),
            Message("tool", LONG, tool_call_id=f"x{n}"),
        )
    ]
    run = _run_planner(Mechanical(), says("Done."), history=normalize_history(history), context_tokens=3_000)
    assert run.paths == ["round-1/compact", "round-1"]
    conversation = run.request("round-1").conversation
    assert conversation[-1].content == "Reach the goal."
    assert conversation_faults(conversation) == []
    assert not any("ref" in m.content for m in conversation if m.role == "tool")


def test_a_transcript_keeps_to_its_bound_and_says_what_it_left_out() -> None:
    room = ContextUsage(4_000, 0)
    text = render_transcript(
        [Message("user", "FIRST"), *[Message("assistant", f"{n} {LONG}") for n in range(50)]], room
    )
    assert len(text) < 2_600
    assert "FIRST" in text
    assert f"[assistant]\n> 49 {LONG[:50]}" in text
    assert f"[assistant]\n> 0 {LONG[:50]}" not in text
