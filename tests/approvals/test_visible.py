"""What a person decides on is all there: nothing invisible, nothing out of sight, nothing cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_mcp.core.hidden_text import make_visible


@pytest.mark.parametrize("text", ["", "a\n\tb\n", "grüße, 世界 ✓ 🙂", "- old\n+ new", "a" * 300])
def test_a_plain_text_stays_what_it_is(text: str) -> None:
    assert make_visible(text) == (text, ())


@pytest.mark.parametrize(
    ("character", "spelled"),
    [
        *(("\u200b", "\\u{200b}"), ("\u202e", "\\u{202e}"), ("\U000e0041", "\\u{e0041}"), ("\x1b", "\\u{1b}")),
        *(("\ufe0f", "\\u{fe0f}"), ("\u2800", "\\u{2800}"), ("\u00a0", "\\u{a0}"), ("\u2028", "\\u{2028}")),
        *(("\ue000", "\\u{e000}"), ("\ufeff", "\\u{feff}"), ("\x00", "\\u{0}"), ("\x85", "\\u{85}")),
    ],
)
def test_INJECTION_007_what_no_screen_shows_is_spelled_out_and_counted(character: str, spelled: str) -> None:
    shown, remarks = make_visible(f"rm{character} -rf{character}")
    assert shown == f"rm{spelled} -rf{spelled}"
    (remark,) = remarks
    assert remark.startswith("2 ")


def test_the_end_of_a_dos_line_is_seen_and_no_cause_for_alarm() -> None:
    assert make_visible("a\r\nb\r\n") == ("a\\r\nb\\r\n", ())


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("echo " + "x" * 500 + " ; rm -rf /", id="COMMAND-043"),
        *(
            "echo" + " " * 60 + "; rm -rf /",
            " " * 90 + "rm -rf /",
            "a" + "\n" * 50 + "rm -rf /",
            "a" + "\n+ " * 45 + "\nb",
        ),
    ],
)
def test_COMMAND_043_what_is_out_of_sight_is_named_and_nothing_is_cut(text: str) -> None:
    shown, remarks = make_visible(text)
    assert shown == text
    assert len(remarks) == 1


@given(st.text(max_size=60))
def test_law_what_is_shown_can_be_seen(text: str) -> None:
    shown, _ = make_visible(text)
    assert all(character in "\n\t" or not character.isascii() or character.isprintable() for character in shown)
    assert make_visible(shown)[0] == shown
    assert len(shown) >= len(text)
