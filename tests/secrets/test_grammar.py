"""The law of masking: a secret in any form of the grammar, in any file, at any offset, is in nothing that is shown."""

from __future__ import annotations

import random
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.planted_secrets import Planted, list_planted

from kairos_mcp.core.masked_file import OVERLAP_BYTES, WINDOW_BYTES
from kairos_mcp.core.redaction import Redactor

PLANTED = dict(list_planted())
SAMPLE = random.Random(11).sample(sorted(PLANTED), 60)
MOST_MASKED = 1e-4  # of the lines of sources
PACKAGES = (
    *("openai", "pydantic_ai", "pydantic", "mypy", "hypothesis", "mcp", "requests", "urllib3", "starlette", "httpx2"),
    *("click", "rich", "pygments", "jsonschema", "jwt", "cryptography", "psycopg", "uvicorn", "_pytest", "anthropic"),
)


def check_masked(planted: Planted, before: str = "", after: str = "") -> None:
    before, after = ("", "") if planted.alone else (before, after)
    content = (before + planted.text + after).encode()
    masked = Redactor().mask_file(planted.path, content)
    shown = masked.masked_content.decode()
    assert [trace for trace in planted.traces if trace in shown] == [], shown[-2_000:]
    assert shown.count("\n") == content.decode().count("\n")
    assert Redactor().mask_file(planted.path, masked.masked_content).masked_content.decode() == shown


@pytest.mark.parametrize("what", SAMPLE)
def test_a_secret_in_a_form_of_the_grammar_is_masked(what: str) -> None:
    check_masked(PLANTED[what])
    check_masked(PLANTED[what], "one\n\ntwo = 2\n", "\n\nthree = 3\n")


@pytest.mark.slow
def test_a_secret_in_any_form_of_the_grammar_is_masked() -> None:
    for planted in PLANTED.values():
        check_masked(planted)
        check_masked(planted, "one\n\ntwo = 2\n", "\n\nthree = 3\n")


@pytest.mark.slow
@pytest.mark.parametrize("shift", [-4_000, -700, -20, -7, -1, 0])
def test_a_secret_that_crosses_the_end_of_a_window_is_masked(shift: int) -> None:
    for what in SAMPLE[:20]:
        planted = PLANTED[what]
        if not (planted.path.endswith(".env") or planted.path.startswith(".env") or planted.alone):
            check_masked(planted, "x\n" * ((WINDOW_BYTES + shift) // 2), "\n\ny\n" * OVERLAP_BYTES)


def list_sources(packages: tuple[str, ...]) -> Iterator[Path]:
    site = Path(sysconfig.get_paths()["purelib"])
    for package in packages:
        yield from (file for file in sorted((site / package).rglob("*")) if file.is_file())


def masked_share(packages: tuple[str, ...]) -> float:
    lines = masked = 0
    for file in list_sources(packages):
        content = file.read_bytes()
        if b"\0" not in content[:8192]:
            found = Redactor().mask_file(file.name, content)
            lines += content.count(b"\n")
            masked += len({content.count(b"\n", 0, start) for start, _ in found.spans})
    assert lines > 10_000, "the packages are there"
    return masked / lines


def test_of_the_sources_of_a_package_hardly_a_line_is_masked() -> None:
    assert masked_share(("requests", "urllib3", "starlette")) <= MOST_MASKED


@pytest.mark.slow
def test_of_the_sources_of_twenty_packages_at_most_one_line_in_ten_thousand_is_masked() -> None:
    share = masked_share(PACKAGES)
    print(f"{share:.7f} of the lines are masked", file=sys.stderr)
    assert share <= MOST_MASKED
