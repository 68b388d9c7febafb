"""The brief: prompts from files, the user prompt, a conversation to go on from."""

from dataclasses import fields

import pytest
from support.planner_inputs import PROMPTS, conversation_faults, prompts

from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.messages import Conversation, Message, ToolCall
from kairos_mcp.flows.planner_input import Prompts, normalize_history, render_prompt, render_user_prompt
from kairos_mcp.models.dialects import TextPrompts
from kairos_mcp.specs.kinds import KINDS

USER = (PROMPTS / "planner-user.md").read_text()


def test_the_user_prompt_has_only_the_sections_that_have_something_to_say() -> None:
    text = render_user_prompt(USER, "Find it.")
    assert text == "## Goal\nFind it."
    assert render_user_prompt(USER, "Find it.", "A text.").count("## ") == 2
    assert render_user_prompt(USER, "Find it.", "A text.", ["First.", " "]).count("## ") == 3


def test_the_last_three_earlier_summaries_are_rendered_oldest_first() -> None:
    text = render_user_prompt(USER, "Find it.", None, ["s1", "s2", "s3", "s4"])
    assert "s1" not in text
    assert text.index("s2") < text.index("s3") < text.index("s4")


def test_what_a_user_gives_is_never_taken_as_a_template() -> None:
    text = render_user_prompt(USER, "Pay $goal and $5.", "${context} $earlier")
    assert "Pay $goal and $5." in text
    assert "${context} $earlier" in text


def test_linked_inputs_beyond_a_hundred_thousand_characters_are_an_error_and_never_cut() -> None:
    assert "x" * 100_000 in render_user_prompt(USER, "Find it.", "x" * 100_000)
    with pytest.raises(BadArguments):
        render_user_prompt(USER, "Find it.", "x" * 100_001)


@pytest.mark.parametrize("template", ["$gaol", "costs $ 5", "${goal"])
def test_a_template_with_a_strange_placeholder_is_a_configuration_error(template: str) -> None:
    with pytest.raises(ConfigError):
        render_user_prompt(template, "Find it.")
    with pytest.raises(ConfigError):
        Prompts.load(lambda name: template if name == "stall" else "plain")


def test_every_prompt_has_a_file_and_every_file_is_a_prompt() -> None:
    named = {file for kind in KINDS.values() for prompts in kind.specs.prompts for file in prompts.files().values()}
    named |= {"planner", "planner-short", "planner-lines", "planner-tree", "planner-user", "agent-tools"}
    named |= {f"text_{field.name}" for field in fields(TextPrompts) if field.name != "is_brief"} | {"text_tools-short"}
    assert {path.stem for path in PROMPTS.glob("*.md")} == named
    texts = prompts()
    assert all(getattr(texts, field.name) for field in fields(Prompts))
    assert render_prompt(texts.outside, tool="look", call="round-1/call-1").count("\n") == 0


def test_the_system_prompt_has_no_tool_list_and_no_json_example() -> None:
    system = (PROMPTS / "planner.md").read_text()
    assert len(system) <= 1_250
    assert "{" not in system
    assert not any(name in system for name in ("read_file", "list_files", "search_files", "file_tree"))


def test_a_conversation_from_outside_gets_ids_of_its_own() -> None:
    calls = (ToolCall("abc", "look"), ToolCall("abc", "find"))
    history = normalize_history(
        [
            Message("user", "Hi."),
            Message("assistant", "", calls),
            Message("tool", "1", tool_call_id="abc"),
            Message("tool", "2", tool_call_id="abc"),
            Message("assistant", "Done."),
        ]
    )
    assert [m.tool_call_id for m in history if m.role == "tool"] == ["earlier/call-1", "earlier/call-2"]
    assert conversation_faults(Conversation(history)) == []


_ASKS = Message("assistant", "", (ToolCall("a", "look"), ToolCall("b", "look")))


@pytest.mark.parametrize(
    "history",
    [
        [_ASKS],
        [_ASKS, Message("user", "And?")],
        [_ASKS, Message("tool", "2", tool_call_id="b"), Message("tool", "1", tool_call_id="a")],
        [Message("tool", "1", tool_call_id="a")],
        [_ASKS, *[Message("tool", "x", tool_call_id=i) for i in "aba"]],
    ],
    ids=["nothing after it", "one missing", "out of order", "no call", "one too many"],
)
def test_a_conversation_whose_calls_are_not_each_answered_once_is_refused(history: list[Message]) -> None:
    with pytest.raises(BadArguments):
        normalize_history(history)
