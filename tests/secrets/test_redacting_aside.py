"""Texts from outside are redacted without holding the event loop, in time proportional to their length."""

from __future__ import annotations

import ast
import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import kairos_mcp
from kairos_mcp.app.answers import Answers
from kairos_mcp.app.redact_aside import SMALL_CHARS, redact_aside
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.input_checks import REPLY_BYTES
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.secret_keys import PEM, find_key_blocks

APP = Path(kairos_mcp.__file__).parent / "app"
SLOW = {"redact_text", "redact_json", "redact_spec", "redact_request", "redact_arguments"}
SHORT = {"agents.py": "a file of at most 64 KiB", "tools.py": "the last lines of a server's output"}


class CountedBytes(bytes):
    """A text that counts the characters in which it is searched."""

    searched = 0

    def find(self, *given: Any) -> int:
        found = super().find(*given)
        if given[0] == b"-----END ":
            type(self).searched += (len(self) if found < 0 else found) - given[1]
        return found


def test_no_part_of_a_text_is_searched_twice_for_the_end_of_a_key() -> None:
    for text in (
        b"-----BEGIN PRIVATE KEY-----\n" * 2_000,
        (b"-----BEGIN PRIVATE KEY-----\n" * 40 + b"-----END \n") * 50,
    ):
        CountedBytes.searched = 0
        assert len(list(find_key_blocks(CountedBytes(text), re.finditer(PEM, text)))) <= 1
        assert CountedBytes.searched <= len(text)


def test_a_key_block_behind_many_beginnings_is_masked() -> None:
    key = "-----BEGIN PRIVATE KEY-----\n" + "aB3dE5gH" * 8 + "\n-----END PRIVATE KEY-----\n"
    bait = "-----BEGIN PRIVATE KEY-----\n" * 3 + "-----END \n"
    shown = Redactor().redact_text(bait + key + bait + key).text
    assert "aB3dE5gH" not in shown
    assert shown.startswith("-----BEGIN"), "without key material nothing is masked"


@pytest.mark.parametrize("value", ["x" * (SMALL_CHARS + 1), {"a": [{"x" * SMALL_CHARS: "x"}]}])
async def test_a_large_value_is_redacted_in_a_worker_thread(value: object) -> None:
    assert await redact_aside(lambda _value: threading.get_ident(), value) != threading.get_ident()
    assert await redact_aside(lambda _value: threading.get_ident(), "x") == threading.get_ident()


async def test_the_loop_serves_others_while_a_text_is_redacted() -> None:
    is_served = threading.Event()

    def redact(_text: str) -> bool:
        return is_served.wait(30)

    redacting = asyncio.ensure_future(redact_aside(redact, "x" * SMALL_CHARS + "x"))
    asyncio.get_running_loop().call_soon(is_served.set)
    assert await redacting


def test_every_operation_redacts_aside() -> None:
    for file in APP.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SLOW:
                is_key = isinstance(node.args[0], ast.Attribute) and node.args[0].attr == "key"  # 200 characters
                assert file.name in SHORT or is_key, f"{file.name}:{node.lineno} holds the event loop"


async def test_an_answer_that_is_too_large_is_refused_before_it_is_searched() -> None:
    answers: Answers = object.__new__(Answers)  # nothing of it is asked before the size
    with pytest.raises(BadArguments, match="characters"):
        await answers.keys_unmasked({"round-1": {"content": "x" * (REPLY_BYTES + 1)}})
