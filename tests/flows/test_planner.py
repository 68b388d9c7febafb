"""The planner loop: rounds, calls, results, reminders."""

import json

from support.flow_runner import echo, feed
from support.planner_inputs import brief, call, conversation_faults, says, turn

from kairos_mcp.core.messages import Completion, Message, ToolCall, ToolResult
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.steps import CallTool, Gather, Refused
from kairos_mcp.flows.planner import planner


def test_a_model_that_answers_at_once_is_asked_once_with_system_and_user() -> None:
    run = feed(planner(brief()), [says("Done.")])
    (request,) = run.requests
    assert [(m.role, m.content) for m in request.conversation] == [
        ("system", "You are a test."),
        ("user", "Reach the goal."),
    ]
    assert (request.name, request.purpose, len(request.tools)) == ("round-1", "round", 3)
    assert (run.outcome.summary, run.outcome.notes) == ("Done.", ())


def test_a_prior_conversation_stands_between_system_and_user() -> None:
    history = (Message("user", "Before."), Message("assistant", "Indeed."))
    run = feed(planner(brief(history=history)), [says("Done.")])
    assert [m.content for m in run.requests[0].conversation] == [
        "You are a test.", "Before.", "Indeed.", "Reach the goal.",
    ]  # fmt: skip


def test_each_result_is_fed_back_under_the_ordinal_of_its_call() -> None:
    run = feed(planner(brief()), [turn(call(a=1), content="I look."), says("Done.")])
    said, result = run.request("round-2").conversation[2:]
    assert (said.role, said.content, [c.id for c in said.tool_calls]) == (
        "assistant",
        "I look.",
        ["round-1/call-1"],
    )
    assert (result.role, result.tool_call_id) == ("tool", "round-1/call-1")
    header, _, content = result.content.partition("\n")
    assert "look" in header
    assert "round-1/call-1" in header
    assert content == "result of round-1/call-1"


def test_consecutive_reads_go_side_by_side_and_a_write_is_a_barrier() -> None:
    calls = [call("look"), call("find"), call("write"), call("look"), call("write"), call("write")]
    run = feed(planner(brief()), [turn(*calls), says("Done.")])
    runner = Runner(planner(brief()))
    runner.answer("round-1", turn(*calls))
    begun = []
    while "round-2" not in runner.waiting:
        begun.append([path.removeprefix("round-1/call-") for path in runner.waiting if runner.try_begin(path)])
        for number in begun[-1]:
            runner.answer(f"round-1/call-{number}", ToolResult("so"))
    assert begun == [["1", "2"], ["3"], ["4"], ["5"], ["6"]]
    assert [c.name for c in run.calls] == [f"round-1/call-{n}" for n in range(1, 7)]
    ids = [m.tool_call_id for m in run.request("round-2").conversation if m.role == "tool"]
    assert ids == [f"round-1/call-{n}" for n in range(1, 7)]


def test_at_most_ten_reads_are_gathered_at_once() -> None:
    flow = planner(brief())
    next(flow)
    gather = flow.send(turn(*(call("look", n=n) for n in range(20))))
    assert isinstance(gather, Gather)
    assert (len(gather.branches), gather.max_parallel) == (20, 10)


def test_a_tool_that_is_not_offered_is_a_step_of_its_own_and_a_barrier() -> None:
    refusal = ToolResult("The tool is not offered.", is_error=True, code="tool_not_offered")
    run = feed(
        planner(brief()),
        [turn(call("look"), call("rm"), call("look")), says("Done.")],
        lambda step: refusal if step.call.name == "rm" else echo(step),
    )
    runner = Runner(planner(brief()))
    runner.answer("round-1", turn(call("look"), call("rm"), call("look")))
    assert [path for path in runner.waiting if runner.try_begin(path)] == ["round-1/call-1"]
    assert run.paths == ["round-1", "round-1/call-1", "round-1/call-2", "round-1/call-3", "round-2"]


def test_a_failing_call_is_told_as_json_with_success_false() -> None:
    ours = ToolResult("No such file.", is_error=True, code="not_found")
    callers = ToolResult("It is shut.", is_error=True, data={"hours": [9, 17]})
    run = feed(
        planner(brief()),
        [turn(call(), call("write")), says("Done.")],
        lambda step: ours if step.call.name == "look" else callers,
    )
    parsed = [json.loads(m.content) for m in run.request("round-2").conversation[-2:]]
    assert parsed == [
        {"success": False, "code": "not_found", "message": "No such file."},
        {"success": False, "code": None, "message": "It is shut.", "data": {"hours": [9, 17]}},
    ]


def test_a_call_with_unreadable_arguments_is_a_step_that_the_hands_answer() -> None:
    broken = ToolCall("x", "look", unreadable="no JSON object")
    refusal = ToolResult("no JSON object", is_error=True, code="bad_arguments")
    run = feed(planner(brief()), [turn(broken), says("Done.")], lambda _: refusal)
    assert [(c.name, c.call.arguments, c.call.unreadable) for c in run.calls] == [
        ("round-1/call-1", {}, "no JSON object")
    ]


def test_of_seventy_calls_in_a_turn_sixty_four_are_executed_and_each_has_a_result() -> None:
    run = feed(planner(brief()), [turn(*(call("look", n=n) for n in range(70))), says("Done.")])
    assert len(run.calls) == 64
    assert conversation_faults(run.request("round-2").conversation) == []
    results = [m for m in run.request("round-2").conversation if m.role == "tool"]
    assert [json.loads(m.content)["code"] for m in results[64:]] == ["bad_arguments"] * 6
    assert len(run.outcome.notes) == 1


def test_a_call_refused_by_a_limit_leads_to_the_closing_call() -> None:
    refused = Refused("tool_calls", 1, 1)
    run = feed(
        planner(brief()),
        [turn(call("look"), call("write"), call("look"), call("find")), says("Summed up.")],
        lambda step: echo(step) if step.name == "round-1/call-1" else refused,
    )
    assert run.paths == ["round-1", *(f"round-1/call-{n}" for n in range(1, 5)), "closing"]
    closing = run.request("closing").conversation
    assert conversation_faults(closing) == []
    codes = [json.loads(m.content)["code"] for m in closing if m.role == "tool" and m.content.startswith("{")]
    assert codes == ["budget_exhausted"] * 3
    assert (run.outcome.stop_reason, run.outcome.summary) == ("budget", "Summed up.")


def test_the_same_call_with_the_same_result_is_warned_at_three_and_stalled_at_five() -> None:
    answers = [*(turn(call(a=1)) for _ in range(5)), says("Summed up.")]
    run = feed(planner(brief()), answers, lambda _: ToolResult("same"))
    assert run.paths[-1] == "closing"
    assert [r.reminder is not None for r in run.requests] == [False, False, False, True, True, False]
    assert (run.outcome.stop_reason, run.outcome.status) == ("stalled", "stopped")
    assert run.outcome.summary == "Summed up."


def test_a_changed_result_resets_the_stall_guard() -> None:
    def changing(step: CallTool) -> ToolResult:
        return ToolResult("new" if step.name == "round-3/call-1" else "same")

    run = feed(planner(brief()), [*(turn(call(a=1)) for _ in range(7)), says("Done.")], changing)
    assert run.outcome.stop_reason == "assistant_stop"
    assert [r.name for r in run.requests if r.reminder] == ["round-7", "round-8"]


def test_five_equal_calls_in_one_turn_do_not_stall_a_model_that_was_never_warned() -> None:
    run = feed(planner(brief()), [turn(*(call(a=1) for _ in range(5))), says("Done.")], lambda _: ToolResult("same"))
    assert run.outcome.stop_reason == "assistant_stop"


def test_two_failed_turns_are_reminded_of_from_round_three_on_and_never_in_the_conversation() -> None:
    def failing(step: CallTool) -> ToolResult:
        return ToolResult(step.name, is_error=True, code="not_found")

    answers = [turn(call(n=1)), turn(call(n=2)), turn(call(n=3)), says("Done.")]
    run = feed(planner(brief()), answers, failing)
    assert [r.name for r in run.requests if r.reminder] == ["round-3", "round-4"]
    reminder = run.request("round-3").reminder or ""
    assert not any(reminder in m.content for r in run.requests for m in r.conversation)


def test_one_success_ends_the_reminders_of_failures_until_two_more_turns_have_failed() -> None:
    def failing(step: CallTool) -> ToolResult:
        return ToolResult(step.name, is_error=not step.name.startswith("round-3"))

    run = feed(planner(brief()), [*(turn(call(n=n)) for n in range(5)), says("Done.")], failing)
    assert [r.name for r in run.requests if r.reminder] == ["round-3", "round-6"]


def test_a_truncated_turn_executes_nothing_and_is_shown_to_the_model() -> None:
    cut = Completion("I will", (call("write"), call("look")), "length")
    run = feed(planner(brief()), [cut, says("Done.")])
    assert run.calls == []
    shown = run.request("round-2").conversation
    assert conversation_faults(shown) == []
    assert [m.role for m in shown[2:]] == ["assistant", "tool", "tool", "user"]
    assert run.outcome.stop_reason == "assistant_stop"


def test_an_empty_turn_is_shown_to_the_model_without_an_empty_message() -> None:
    run = feed(planner(brief()), [Completion(" \n"), says("Done.")])
    assert [m.role for m in run.request("round-2").conversation] == ["system", "user", "user"]


def test_an_unreadable_turn_is_shown_to_the_model_with_its_reason() -> None:
    run = feed(planner(brief()), [Completion("{oops", unreadable="a bracket is missing"), says("Done.")])
    said, prompt = run.request("round-2").conversation[2:]
    assert (said.role, said.content) == ("assistant", "{oops")
    assert "a bracket is missing" in prompt.content


def test_ids_from_outside_never_reach_a_conversation() -> None:
    run = feed(planner(brief()), [turn(call(), call()), turn(call()), says("Done.")])
    ids = [c.id for m in run.request("round-3").conversation for c in m.tool_calls]
    assert ids == ["round-1/call-1", "round-1/call-2", "round-2/call-1"]
