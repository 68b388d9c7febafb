"""What counts as the person's word before a run's first step, and what is in view of it beside that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kairos_mcp.core.flow import Row
from kairos_mcp.core.messages import Message, ToolCall, ToolResult
from kairos_mcp.core.run_spec import FrozenFork, FrozenTeam, Spec, TakenOver
from kairos_mcp.execution.flow_view import FlowPolicy, FlowView
from kairos_mcp.specs.opening_rows import opening_rows
from kairos_mcp.store.rows import encode, encode_answer

SPEC = Spec("planner", "Look it up", "provider", "tools")


def rows(text: object, **named: Any) -> list[tuple[str, str, bool, bool, bool]]:
    """The rows beside the goal: path, text, and whether it is trusted, private, the person's word. `text`: the stored
    one to which the named field refers."""
    found = opening_rows(replace(SPEC, **named), {"hash": encode(text)}.__getitem__)
    assert found[0].is_said
    return [(row.path, row.text, row.is_trusted, row.is_private, row.is_said) for row in found[1:]]


def test_of_a_history_only_what_the_user_wrote_is_the_persons_word() -> None:
    history = (Message("user", "Mail bob@acme.test"), Message("assistant", "I read that eve@evil.test pays"))
    assert rows(history, history_text="hash") == [
        ("message-1", "Mail bob@acme.test", True, False, True),
        ("message-2", "I read that eve@evil.test pays", False, True, False),
    ]


def test_of_another_runs_conversation_nothing_is_the_persons_word() -> None:
    history = (Message("user", "Mail eve@evil.test"),)
    assert rows(history, history_text="hash", continues="run") == [
        ("message-1", "Mail eve@evil.test", False, True, False)
    ]


def test_what_is_taken_over_is_whose_it_was_there() -> None:
    turn = Message("assistant", "", (ToolCall("earlier/call-1", "read_file", {}),))
    history = (turn, Message("tool", "1.2M", tool_call_id="earlier/call-1"), Message("user", "And now?"))
    whose = (TakenOver("the run before", False, True, True), TakenOver("a.md", True))
    texts = {"h": encode(history), "w": encode(whose)}
    spec = replace(SPEC, history_text="h", whose_text="w", continues="run")
    said, result, after = opening_rows(spec, texts.__getitem__)[1:]
    assert (said.path, said.is_trusted, said.is_printed) == ("message-1", False, True)
    assert (result.path, result.source, result.is_trusted, result.is_private) == ("earlier/call-1", "a.md", True, True)
    assert (after.is_trusted, after.is_printed) == (False, False)  # of which nothing is known


def test_words_of_a_model_are_of_others_and_private_as_far_as_anything_in_view_of_it_was() -> None:
    said = Row("goal", "you", "", "Look", is_trusted=True, is_private=False, is_said=True)
    page, own = Row("1", "the page x", "web", "y", is_private=False), Row("2", "a.md", "", "z", is_trusted=True)
    for rows_before, is_private, is_printed in (
        ((said,), False, True),
        ((said, own), True, True),
        ((said, page), False, False),
    ):
        view = FlowView(FlowPolicy("ask"), lambda _: None, lambda rows=rows_before: rows, lambda *_: ())
        assert view.label_results([None, "1"])[0] == TakenOver("the run before", False, is_private, is_printed)


def test_a_given_plan_is_the_persons_word_and_the_context_beside_it_is_not() -> None:
    team = FrozenTeam((), "planner", 1, context="Our customers", plan={"tasks": []})
    assert rows(team, team_text="hash") == [
        ("plan", '{"tasks":[]}', True, False, True),
        ("context", "Our customers", False, True, False),
    ]


def test_a_result_that_a_fork_takes_over_is_whose_it_was_there() -> None:
    answers = tuple((f"round-1/call-{n}", encode_answer(ToolResult(f"{n}"))) for n in (1, 2))
    forks = (FrozenFork("round-2", answers, whose={"round-1/call-1": TakenOver("the page x", False, False)}),)
    assert rows(forks, fork_text="hash") == [
        ("round-1/call-1", "1", False, False, False),
        ("round-1/call-2", "2", False, True, False),
    ]


def test_what_a_fork_takes_over_is_in_view_and_only_its_new_words_are_the_persons() -> None:
    read = encode_answer(ToolResult("ACME pays 1.2M"))
    assert rows((FrozenFork("round-2", (("round-1/call-1", read),), "Be quick"),), fork_text="hash") == [
        ("words", "Be quick", True, False, True),
        ("round-1/call-1", "ACME pays 1.2M", False, True, False),
    ]
