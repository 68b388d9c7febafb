"""The scripted model: lines in order or by path, errors, delays, and the end of a script."""

import pytest

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.messages import Completion, Conversation, ToolCall
from kairos_mcp.core.steps import Failure, RequestCompletion
from kairos_mcp.models.answers import Script, ScriptedAnswer

SCRIPT = """
{"tool_calls": [{"name": "look", "arguments": {}}]}
{"for": "closing", "content": "Summed up."}

{"error": {"code": "provider_busy", "message": "later", "retryable": true}, "delay_s": 0.5}
{"content": "Done.", "finish": "stop", "delay_s": 2}
"""


def test_lines_are_taken_in_order_but_for_those_with_a_path_of_their_own() -> None:
    script = Script.parse(SCRIPT)
    assert script.answer_for("round-1", 0) == ScriptedAnswer(
        Completion(tool_calls=(ToolCall("round-1/call-1", "look"),))
    )
    assert script.answer_for("round-2", 1) == ScriptedAnswer(Failure("provider_busy", "later", True), 0.5)
    assert script.answer_for("round-3", 2) == ScriptedAnswer(Completion("Done.", finish="stop"), 2)
    assert script.answer_for("closing", 9).answer == Completion("Summed up.")


def test_a_retry_of_a_step_gets_its_line_again() -> None:
    script = Script.parse(SCRIPT)
    assert script.answer_for("round-1", 0) == script.answer_for("round-1", 0)
    assert script.answer_for("closing", 3) == script.answer_for("closing", 3)


def test_a_script_that_ends_too_soon_is_a_failure_that_is_not_retried() -> None:
    answer = Script.parse(SCRIPT).answer_for("round-4", 3).answer
    assert isinstance(answer, Failure)
    assert (answer.code, answer.retryable) == ("provider_error", False)
    assert "round-4" in answer.message


def test_a_script_keeps_every_request_that_it_was_asked() -> None:
    script = Script.parse(SCRIPT)
    request = RequestCompletion("round-1", "round", Conversation())
    script.answer_for("round-1", 0, request)
    assert script.requests == [("round-1", request)]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"content": "x", "content": "y"}',
        '{"contents": "x"}',
        '{"content": "x", "error": {"code": "a", "message": "b"}}',
        '{"error": {"code": "a"}}',
        '{"error": "gone"}',
        '{"content": "x", "delay_s": -1}',
        '{"content": "x", "delay_s": NaN}',
        '{"content": "x", "delay_s": "1"}',
        '{"content": "x", "for": ""}',
        '{"content": "x", "usage": {"input_tokens": -1, "output_tokens": 0}}',
    ],
)
def test_a_line_that_is_no_answer_is_named_by_its_number(line: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Script.parse(f'{{"for": "closing", "content": "x"}}\n\n{line}\n')
    assert "ine 3 " in refusal.value.message
