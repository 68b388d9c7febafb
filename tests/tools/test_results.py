"""Long results are shown head and tail, kept whole, and every text is safe to store."""

from __future__ import annotations

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from kairos_mcp.core.hidden_text import show_with_note
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.tools.results import shorten

TEXTS = st.text(st.characters(codec=None), max_size=40).flatmap(
    lambda piece: st.integers(1, 200).map(lambda times: (piece + "\n") * times)
)


def test_a_short_result_stays_what_it_is() -> None:
    result = ToolResult("short", data={"a": [1, "b"]})
    assert shorten(result, 12_000, "round-1/call-1") == (result, None)


def test_a_long_result_names_its_ref_and_is_kept_whole() -> None:
    text = "".join(f"line {n}\n" for n in range(5000))
    shown, whole = shorten(ToolResult(text, is_error=True, code="stale"), 2_000, "round-3/call-2")
    assert whole == text
    assert (shown.kept, shown.chars) == (sha256(text.encode()).hexdigest(), len(text))
    assert (shown.is_error, shown.code) == (True, "stale")
    assert len(shown.content) <= 2_000
    head, _, rest = shown.content.partition("\n[")
    note, _, tail = rest.partition("]\n")
    assert text.startswith(f"{head}\n")
    assert text.endswith(f"\n{tail}")
    assert 'read_result(ref="round-3/call-2")' in note
    assert f"{len(text) - len(head) - len(tail):,} of {len(text):,}" in note


@given(TEXTS, st.integers(0, 3_000))
def test_what_is_shown_is_bounded_and_can_be_encoded(text: str, shown_chars: int) -> None:
    shown, whole = shorten(ToolResult(text), shown_chars, "round-1/call-1")
    shown.content.encode()
    assert "\0" not in shown.content
    assert len(shown.content) <= max(shown_chars, 400)
    assert (whole is None) == (shown.kept is None) == (len(show_with_note(text)) <= max(shown_chars, 400))
    if whole is not None:
        assert whole == show_with_note(text)
        assert (shown.kept, shown.chars) == (sha256(whole.encode()).hexdigest(), len(whole))
    else:
        assert shown.content == show_with_note(text)


def test_lone_surrogates_and_nul_are_made_visible_also_in_the_structured_part() -> None:
    shown, _ = shorten(ToolResult("a\udcffb\0c", data={"k\ud800": ["\0", 1, None, 2.5]}), 100, "r")
    assert shown.content.startswith("a⟦U+DCFF⟧b⟦U+0⟧c\n")
    assert shown.data == {"k⟦U+D800⟧": ["⟦U+0⟧", 1, None, 2.5]}


def test_the_same_result_is_shortened_the_same_way() -> None:
    result = ToolResult("x" * 50_000)
    assert shorten(result, 1_000, "r")[0].digest == shorten(result, 1_000, "r")[0].digest
