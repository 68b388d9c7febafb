"""The one way in which a text is cut."""

from __future__ import annotations

from kairos_mcp.core.text import truncate


def test_a_text_within_its_limit_stays() -> None:
    assert truncate("four", 4) == "four"
    assert truncate("", 0) == ""


def test_what_is_cut_is_marked_and_may_be_counted() -> None:
    assert truncate("fives", 4) == "five…"
    assert truncate("x" * 1_203, 3, "[{left_out:,} of {total:,}]") == "xxx[1,200 of 1,203]"


def test_braces_of_the_text_are_no_fields() -> None:
    assert truncate("{left_out}{0}", 12) == "{left_out}{0…"
