"""A secret that a bound would part is left out before it, since no later search finds half of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import ME, PERSON, Place, rests

from kairos_mcp.app.app import App
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.text import truncate
from kairos_mcp.core.tool import ToolContext
from kairos_mcp.tools import tool
from kairos_mcp.tools.commands.runner import HEAD_BYTES
from kairos_mcp.tools.entry_points import RESULT_CHARS as FUNCTION_CHARS
from kairos_mcp.tools.entry_points import build_tool
from kairos_mcp.tools.mcp_servers.tool_results import RESULT_CHARS, UNKNOWN_CHARS, convert_answer
from kairos_mcp.tools.tool import call_redacted

KEY = "kq-4711-zX9+/pLm=c0ffee"
SHOWN = Redactor([KEY])


def say(words: str) -> ToolResult:
    return convert_answer({"content": [{"type": "text", "text": words}]}, SHOWN.find_parted).result


def say_unknown(words: str) -> ToolResult:
    return convert_answer({"content": [{"kind": words}]}, SHOWN.find_parted).result


@pytest.mark.parametrize(("answer", "limit"), [(say, RESULT_CHARS), (say_unknown, UNKNOWN_CHARS - len('{"kind":"'))])
@pytest.mark.parametrize("before", [1, 12, len(KEY) - 1])
def test_a_server_s_answer_is_not_cut_within_a_known_key(
    answer: Callable[[str], ToolResult], limit: int, before: int
) -> None:
    cut = SHOWN.redact_text(answer("." * (limit - before) + KEY + "." * 100).content).text.partition("cut here")[0]
    assert cut.count(".") == limit - before
    assert "q" not in cut


@given(st.text(), st.text(), st.integers(0, len(KEY) * 2))
def test_no_text_is_cut_within_a_known_key(before: str, after: str, at: int) -> None:
    text, limit = before + KEY + after, max(0, len(before) + at - len(KEY) // 2)
    cut = truncate(text, limit, "", SHOWN.find_parted)
    assert text.startswith(cut)
    assert len(cut) <= limit
    whole = len(before) + len(KEY)
    assert len(cut) <= len(before) or len(cut) >= whole or limit >= len(text)


def test_what_an_installed_function_returns_is_not_cut_within_a_known_key() -> None:
    @tool(effect="read")
    def long() -> str:
        """Return a long text."""
        return "." * (FUNCTION_CHARS - 10) + KEY + "." * 100

    made = build_tool("long", long, "test")
    ctx = ToolContext("run-1", time.monotonic() + 20, lambda _ref: None, find_parted=SHOWN.find_parted)
    content = call_redacted(SHOWN, made, {}, ctx).content
    assert content.partition("\n")[0] == "." * (FUNCTION_CHARS - 10)


async def test_a_program_s_output_that_is_cut_within_a_key_is_stored_without_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTED_TOKEN", KEY)
    output = "." * (HEAD_BYTES - 12) + KEY + "." * 1_000_000
    (place.workspace / "output").write_text(output)
    async with App.open(place.settings(commands="bare"), via="mcp") as app:
        run_id = await app.runs.start_call("run_command", {"argv": ["cat", "output"]}, ME)
        await rests(app, run_id)
        await app.answers.decide(run_id, "call-1/approval", "approve", None, PERSON)
        await rests(app, run_id)
    stored = [str(row) for (row,) in place.rows("select body from text")]
    assert max(len(text) for text in stored) > HEAD_BYTES
    assert not [text for text in stored if KEY[:8] in text]
