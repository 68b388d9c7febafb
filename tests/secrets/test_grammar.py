"""The law of masking: a secret in any form of the grammar, in any file, at any offset, is in nothing that is shown."""

from __future__ import annotations

import random
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import law
from support.planted_secrets import PLACES, PLACES_SHOWN, SHOWN_VALUES, Planted, list_planted

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


@pytest.mark.parametrize("place", PLACES)
def test_a_value_that_sounds_like_a_name_is_masked_where_credentials_stand(place: str) -> None:
    planted = [PLANTED[what] for what in PLANTED if what.startswith(f"{place}, ")]
    assert len(planted) > 25
    for each in planted:
        check_masked(each)


TELLING_WORDS = (
    "secret",
    "password",
    "Token",
    "key",
    "example",
    "test",
    "name",
    "value",
    "your",
    "xxx",
    "none",
    "7",
    "x9",
)


@law
@given(
    st.sampled_from(sorted(PLACES)),
    st.lists(st.sampled_from(TELLING_WORDS), min_size=1, max_size=4),
    st.sampled_from(["", "-", "_", "."]),
    st.tuples(st.sampled_from(["", "4", "hunter"]), st.sampled_from(["9", "zebra", "9!", "2a"])),
)
def test_any_words_with_something_of_one_s_own_are_masked(
    place: str, words: list[str], joint: str, own: tuple[str, str]
) -> None:
    value = joint.join((own[0] + words[0], *words[1:])) + own[1]
    path, line = PLACES[place]
    check_masked(Planted(path, line.format(value=value), (value,), alone=True))


@pytest.mark.parametrize("place", PLACES_SHOWN)
def test_a_placeholder_or_a_reference_is_shown_where_credentials_stand(place: str) -> None:
    path, line = PLACES[place]
    texts = [line.format(value=value) for value in SHOWN_VALUES]
    assert [text for text in texts if Redactor().mask_file(path, text.encode()).masked_content.decode() != text] == []


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
