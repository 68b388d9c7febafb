"""What fifteen servers send, each in its own dialect of the two forms.

No live server was asked. Each fixture names its source, and says whether it was written after documentation or has the
shape of what was reported publicly; the texts in it are ours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.provider_calls import asking, step_of
from support.provider_server import Standin, raw
from support.replies import MESSAGES, Taken, events, take, whole

from kairos_mcp.core.messages import Completion
from kairos_mcp.core.model import ModelInput
from kairos_mcp.core.steps import Failure, Sent
from kairos_mcp.models.replies.border import CHAT

FILES = sorted(Path(__file__).with_name("dialects").glob("*.json"))
CASES = [
    pytest.param(dialect, case, id=f"{file.stem}: {case['name']}")
    for file in FILES
    for dialect in [json.loads(file.read_text())]
    for case in dialect["cases"]
]


def body_of(case: dict[str, Any]) -> list[bytes]:
    """The bytes of a case: a whole reply, an error, or events after what may stand before them."""
    if "whole" in case or "error" in case:
        return whole(case.get("whole", case.get("error")))
    values = [each for each in case["events"] if each != "[DONE]"]
    parts = list(events(values, done="[DONE]" in case["events"]))
    if case.get("named"):
        parts = [f"event: {value['type']}\n".encode() + part for value, part in zip(values, parts, strict=True)]
    return [case.get("raw_before", "").encode(), *parts]


def check_failure(answer: Any, expected: dict[str, Any]) -> None:
    assert isinstance(answer, Failure), answer
    assert (answer.code, answer.retryable) == (expected["code"], expected["retryable"])
    assert expected["words"] in answer.message
    assert answer.retry_after_s == expected.get("wait", answer.retry_after_s)
    assert answer.unknown_end or not expected.get("unknown_end")


def test_the_fixtures_are_of_fifteen_servers_and_name_their_sources() -> None:
    dialects = [json.loads(file.read_text()) for file in FILES]
    assert len({each["server"] for each in dialects}) >= 15
    assert all("https://" in each["source"] and each["origin"] for each in dialects)


@pytest.mark.parametrize("size", [0, 7])
@pytest.mark.parametrize(("dialect", "case"), [each for each in CASES if "status" not in each.values[1]])
def test_a_dialect_is_read_as_it_was_meant(dialect: dict[str, Any], case: dict[str, Any], size: int) -> None:
    parts, form, expected = body_of(case), MESSAGES if dialect["form"] == "message" else CHAT, case["expected"]
    if size:
        text = b"".join(parts)
        parts = [text[at : at + size] for at in range(0, len(text), size)]
    taken = take(parts, form)
    if "code" in expected:
        check_failure(taken, expected)
        return
    assert isinstance(taken, Taken), taken
    usage = None if taken.usage is None else list(taken.usage)
    assert [taken.content, [[name, given] for _, name, given in taken.calls], taken.finish, usage] == [
        expected["content"],
        expected["calls"],
        expected["finish"],
        expected["usage"],
    ]
    assert [call_id for call_id, *_ in taken.calls] == expected.get("ids", [])


@pytest.mark.parametrize(("dialect", "case"), CASES)
async def test_a_dialect_gives_a_completion_over_http(
    server: Standin, dialect: dict[str, Any], case: dict[str, Any]
) -> None:
    is_stream, expected = "events" in case, case["expected"]
    kind = "text/event-stream" if is_stream else "application/json"
    server.will(raw(b"".join(body_of(case)), kind, case.get("status", 200)))
    name = "anthropic:claude-standin" if dialect["form"] == "message" else "openai:small"
    heard: list[str] = []
    async with asking(name, server.address if "anthropic" in name else server.openai) as model:
        step = step_of()
        listener = heard.append if is_stream else None
        answer = await model(ModelInput(step.name, step, Sent("provider"), on_text=listener))
    if "code" in expected:
        check_failure(answer, expected)
        return
    assert isinstance(answer, Completion), answer
    assert answer.content == expected["content"]
    assert [[call.name, call.arguments] for call in answer.tool_calls] == expected["calls"]
    counts = None if answer.usage is None else [*(answer.usage.input_tokens, answer.usage.output_tokens)]
    assert counts == (None if expected["usage"] is None else expected["usage"][:2])
    assert not is_stream or "".join(heard) == answer.content
