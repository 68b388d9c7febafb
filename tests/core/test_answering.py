"""What somebody brings for the open steps of a run, taken apart and priced; and the commands that a person is shown."""

from __future__ import annotations

import shlex
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from kairos_mcp.app.answer_checks import check_repeated_answer, make_answers, split_answers, to_stored_form
from kairos_mcp.core.errors import AlreadyAnswered, BadArguments, NotWaiting
from kairos_mcp.core.limits import NOTHING, Units
from kairos_mcp.core.messages import Completion, Conversation, Message, ToolCall, ToolResult, Usage
from kairos_mcp.core.steps import Answer, CallTool, Pause, RequestCompletion, Step
from kairos_mcp.store.approvals import ApprovalRow
from kairos_mcp.store.decisions import Decision
from kairos_mcp.store.inbox import SubmittedAnswer
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.settlements import SettlementRequest
from kairos_mcp.views.waiting import decision_command, run_command

DIGEST = "a" * 64
ASKED = Conversation([Message("user", "say hello")])
WAITING: dict[str, Step] = {
    "round-1": RequestCompletion("round-1", "round", ASKED),
    "round-1/call-1": CallTool("call-1", ToolCall("round-1/call-1", "ask_person", {})),
    "round-1/call-2": CallTool("call-2", ToolCall("round-1/call-2", "ask_person", {})),
    "pause-1": Pause("pause-1", "because"),
}
APPROVED = ApprovalRow(
    step_id=1,
    path="round-1/call-1",
    key="round-1/call-1/approval",
    tool="ask_person",
    effect="irreversible",
    digest=DIGEST,
    preview="",
    base_hashes={},
    asked_at=0,
    expires_at=1,
    verdict="approve",
    decided_by="alice",
    via="command",
    client="",
    feedback="be quick",
)


def deposits_for(
    answers: dict[str, Any], approved: dict[str, ApprovalRow] | None = None, shown: int = 400
) -> list[SubmittedAnswer]:
    return make_answers(answers, WAITING, approved or {}, "run-7", shown)


# -- what a deposit is -----------------------------------------------------------------------------------------


def test_a_completion_is_charged_with_what_its_route_reports() -> None:
    usage = {"input_tokens": 100, "output_tokens": 20, "cached_tokens": 30}
    (one,) = deposits_for({"round-1": {"content": "hello", "usage": usage}})
    assert one == SubmittedAnswer(
        "round-1",
        Completion("hello", usage=Usage(100, 20, 30)),
        Units(input_tokens=100, output_tokens=20, total_tokens=120),
        30,
        "reported",
        dialect="native",
        notes=(),
    )


@pytest.mark.parametrize("usage", [None, {"input_tokens": 0, "output_tokens": 9}])
def test_one_that_reports_none_or_what_can_not_be_is_charged_with_an_estimate(usage: Any) -> None:
    """A quarter of the bytes, on both sides; that a report was not believed is said."""
    (one,) = deposits_for({"round-1": {"content": "hello", "usage": usage}})
    read = ASKED.size // 4
    assert (one.answer, one.tokens) == (Completion("hello"), Units(0, 0, read, 2, read + 2))
    assert (one.exactness, one.cached, one.dialect) == ("estimated", 0, "native")
    assert len(one.notes) == (usage is not None)


def test_the_result_of_a_call_costs_no_tokens_and_is_kept_whole_where_it_is_shortened() -> None:
    long = "".join(f"line {n}\n" for n in range(500))
    short, shortened = deposits_for({"round-1/call-1": {"content": "yes"}, "round-1/call-2": {"content": long}})
    assert short == SubmittedAnswer("round-1/call-1", ToolResult("yes"))
    answer = shortened.answer
    assert isinstance(answer, ToolResult)
    assert (shortened.path, shortened.tokens, shortened.dialect) == ("round-1/call-2", NOTHING, None)
    assert len(answer.content) <= 400 < len(long)
    assert 'ref="round-1/call-2"' in answer.content
    assert (answer.kept, answer.chars) == (sha256(long.encode()).hexdigest(), len(long))
    assert shortened.text == (answer.kept, long)


def test_what_a_person_said_with_their_approval_stands_beside_the_result_of_that_call_alone() -> None:
    answers = {path: {"content": "done"} for path in ("round-1/call-1", "round-1/call-2")}
    first, second = deposits_for(answers, {"round-1/call-1": APPROVED})
    assert first.answer == ToolResult("done", remark="A person approved ask_person. They say: be quick")
    assert second.answer == ToolResult("done")
    for silent in (replace(APPROVED, feedback=None), replace(APPROVED, verdict="expired")):
        assert deposits_for(answers, {"round-1/call-1": silent})[0].answer == ToolResult("done")


@pytest.mark.parametrize("path", ["round-2", "pause-1", "", "x" * 5_000])
def test_for_what_nobody_asked_there_is_no_deposit_not_even_of_what_stands_beside_it(path: str) -> None:
    with pytest.raises(NotWaiting) as refused:
        deposits_for({"round-1": {"content": "hello"}, path: {"content": "hello"}})
    assert refused.value.run_id == "run-7"
    assert len(refused.value.message) < 200


@pytest.mark.parametrize("answer", [{}, {"contents": "x"}, None, {"content": 1}])
@pytest.mark.parametrize("path", ["round-1", "round-1/call-1"])
def test_an_answer_that_does_not_fit_its_step_is_refused(path: str, answer: Any) -> None:
    with pytest.raises(BadArguments):
        deposits_for({path: answer})


# -- in which form it is stored --------------------------------------------------------------------------------

CALLED = {"type": "tool_use", "name": "clock", "input": {}}
AS_A_CALL, AS_JSON = {"tool_calls": [{"name": "clock", "arguments": {}}]}, {"content": '{"n": 1}'}
FREE = RequestCompletion("round-1", "round", ASKED)
WITH_SCHEMA = RequestCompletion("round-1", "round", ASKED, output_schema={"type": "object"})
TURN_WITH_CALLS = Completion("", tool_calls=(ToolCall("round-1/call-1", "clock", {}),))


@pytest.mark.parametrize(
    ("step", "recorded", "given", "stored"),
    [
        (FREE, None, CALLED, AS_A_CALL),
        (FREE, None, {"n": 1}, {"n": 1}),
        (WITH_SCHEMA, None, {"n": 1}, AS_JSON),
        (WITH_SCHEMA, TURN_WITH_CALLS, {"n": 1}, AS_JSON),
        (None, Completion('{"n": 1}'), {"n": 1}, AS_JSON),
        (None, TURN_WITH_CALLS, CALLED, AS_A_CALL),
        (WAITING["round-1/call-1"], None, CALLED, CALLED),
        (None, ToolResult("yes"), CALLED, CALLED),
        (None, None, CALLED, CALLED),
    ],
)
def test_an_object_for_a_completion_is_its_json_where_that_was_asked_and_else_a_call(
    step: Step | None, recorded: Answer | None, given: Any, stored: Any
) -> None:
    """What was asked is known by the open step; of one that is answered already, by what it was answered."""
    assert to_stored_form(given, step, recorded) == stored


# -- what it is about ------------------------------------------------------------------------------------------


def test_answers_are_told_apart_by_what_they_are_about() -> None:
    answers = {
        "round-1": {"content": "hello"},
        "round-1/call-1/approval": {"decision": "deny", "digest": DIGEST, "feedback": "no"},
        "round-1/call-2/settle": {"settlement": "reattempt", "digest": DIGEST},
        "odd/approval": {"content": "a step of that name"},
    }
    who = ("alice", "command", "")
    steps, decided, settled = split_answers(answers, lambda key: key == "round-1/call-1/approval", who)
    assert steps == {"round-1": {"content": "hello"}, "odd/approval": {"content": "a step of that name"}}
    assert decided == [Decision("round-1/call-1/approval", "deny", DIGEST, who, "no")]
    assert settled == [SettlementRequest("round-1/call-2", "reattempt", None, DIGEST)]


@pytest.mark.parametrize("key", ["round-1/call-1/approval", "round-1/call-2/settle"])
def test_a_decision_that_is_none_is_refused(key: str) -> None:
    with pytest.raises(BadArguments):
        split_answers({key: {"content": "yes"}}, lambda name: name.endswith("/approval"), ("alice", "command", ""))


# -- the same again --------------------------------------------------------------------------------------------

SAID = {"content": "yes"}
LONG = {"content": "word " * 1_000}


def deposited_answer(value: dict[str, Any], approved: dict[str, ApprovalRow] | None = None) -> object:
    return deposits_for({"round-1/call-1": value}, approved)[0].answer


def check_again(path: str, value: object, before: object) -> None:
    check_repeated_answer(path, value, before, "run-7", 400)


def test_the_same_answer_again_is_no_error() -> None:
    for value in (SAID, LONG, {**SAID, "is_error": True, "data": {"n": 1}}):
        for approved in ({}, {"round-1/call-1": APPROVED}):
            check_again("round-1/call-1", value, deposited_answer(value, approved))
    for usage in ({"input_tokens": 5, "output_tokens": 1}, {"input_tokens": 0, "output_tokens": 1}, None):
        value = {"content": "hello", "usage": usage}
        check_again("round-1", value, deposits_for({"round-1": value})[0].answer)


def test_another_answer_is_refused_and_says_of_which_run() -> None:
    for path, value, before in (
        ("round-1/call-1", {"content": "no"}, deposited_answer(SAID)),
        ("round-1/call-1", {**SAID, "is_error": True}, deposited_answer(SAID)),
        ("round-1/call-1", {"content": "word " * 1_001}, deposited_answer(LONG)),
        ("round-1/call-1", {"content": "no"}, deposited_answer(SAID, {"round-1/call-1": APPROVED})),
        ("round-1/call-1", SAID, Pause("pause-1", "because")),
        ("round-1", {"content": "hello "}, Completion("hello")),
    ):
        with pytest.raises(AlreadyAnswered) as refused:
            check_again(path, value, before)
        assert refused.value.run_id == "run-7"


@pytest.mark.parametrize("before", [ToolResult("yes"), Completion("yes"), None])
def test_an_answer_again_that_is_none_is_refused_as_one(before: object) -> None:
    with pytest.raises(BadArguments):
        check_again("round-1", {"contents": "yes"}, before)


# -- the commands ----------------------------------------------------------------------------------------------


def run_of(principal: str) -> RunRow:
    nothing = dict.fromkeys(RunRow._fields)
    return RunRow(**{**nothing, "id": "run-7", "principal": principal})  # type: ignore[arg-type]  # no more is read


@pytest.mark.parametrize("principal", ["local", "alice", "it's me; rm -rf /"])
def test_a_command_names_whose_run_it_is_unless_it_is_that_of_the_state_folder_s_owner(principal: str) -> None:
    run, whose = run_of(principal), [] if principal == "local" else ["--principal", principal]
    assert shlex.split(decision_command(run, "a b/approval")) == [
        "kairos-mcp",
        "approve",
        *whose,
        "run-7",
        "a b/approval",
    ]
    assert shlex.split(decision_command(run, "call-1/settle")) == [
        *("kairos-mcp", "settle", *whose, "run-7", "call-1/settle", "already_done")
    ]
    assert shlex.split(run_command(run, "resume")) == ["kairos-mcp", "resume", *whose, "run-7"]
