"""The law of an edit, for any text: it is replaced literally, or nothing is and the reason is the right one."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from kairos_mcp.core.errors import (
    BadArguments,
    BinaryFile,
    KairosError,
    MatchMany,
    MatchNone,
    NoChange,
    OverlappingEdits,
    TooLarge,
)
from kairos_mcp.core.masked_file import MaskedFile
from kairos_mcp.tools.files.diff import changed_blocks, unified_diff
from kairos_mcp.tools.files.edit import TextEdit, apply_text_edits, ends_in_crlf, overwrite_text, to_crlf

MOST = 1 << 20
law = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

small = st.text(alphabet="ab \n", max_size=24)  # few letters, so that things occur often, and twice
any_text = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
texts = st.one_of(small, small.map(to_crlf), st.text(alphabet="ab\r\n", max_size=24), any_text)


@st.composite
def lines(draw: st.DrawFn) -> str:
    """A text of a few short lines, with one kind of line end or several."""
    rows = draw(st.lists(st.text(alphabet="abc", max_size=2), min_size=1, max_size=6))
    ends = draw(st.sampled_from(["\n", "\r\n", "mixed"]))
    return "".join(row + (draw(st.sampled_from(["\n", "\r\n", "\r"])) if ends == "mixed" else ends) for row in rows)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, TextEdit]:
    """A text and an edit, mostly of a piece of it, as it is or with LF for CRLF."""
    text = draw(st.one_of(lines(), lines(), texts))
    start = draw(st.integers(0, max(0, len(text) - 1)))
    inside = text[start : start + draw(st.integers(1, 8))]
    old = draw(st.sampled_from([inside, inside.replace("\r\n", "\n"), draw(texts)]))
    new = draw(st.one_of(lines(), texts, st.just(inside)))
    return text, TextEdit(old, new, draw(st.booleans()))


def places(text: str, old: str) -> int:
    """At how many places a text could be meant, overlapping ones too."""
    return sum(text.startswith(old, at) for at in range(len(text)))


def expected_edit(text: str, edit: TextEdit) -> str | type[KairosError]:
    """The law again, said otherwise: by counting places, not by looking for one after the other."""
    if not edit.old:
        return BadArguments
    old, new = edit.old, edit.new
    if ends_in_crlf(text) and "\r" not in old:
        if not places(text, old) and "\n" in old:
            old, new = to_crlf(old), to_crlf(new)
        elif "\n" not in old and "\r" not in new:
            new = to_crlf(new)
    if old == new:
        return NoChange
    if not (count := places(text, old)):
        return MatchNone
    if count > 1 and not edit.everywhere:
        return MatchMany
    return text.replace(old, new) if edit.everywhere else text.replace(old, new, 1)


@law
@given(cases(), st.booleans())
@example(("aaa", TextEdit("aa", "b")), False)
@example(("x\r\ny\r\n", TextEdit("x", "1\n2")), False)
def test_an_edit_replaces_literally_or_changes_nothing_and_says_why(case: tuple[str, TextEdit], marked: bool) -> None:
    text, edit = case
    assume(marked or not text.startswith("\ufeff"))
    content = ("\ufeff" * marked + text).encode()
    wanted = expected_edit(text, edit)
    if isinstance(wanted, str):
        assert (
            apply_text_edits("f", MaskedFile(content), [edit], MOST).masked.content.decode()
            == "\ufeff" * marked + wanted
        )
        return
    with pytest.raises(KairosError) as caught:
        apply_text_edits("f", MaskedFile(content), [edit], MOST)
    assert caught.type is wanted


@law
@given(texts, st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5), texts), min_size=1, max_size=4), st.data())
def test_edits_of_one_file_are_the_same_in_any_order_and_all_match_the_text_as_it_was(
    text: str, cuts: list[tuple[int, int, str]], data: st.DataObject
) -> None:
    edits = [TextEdit(text[at : at + length], new, False, n) for n, (at, length, new) in enumerate(cuts, 1)]
    shuffled = data.draw(st.permutations(edits))

    def outcome(those: list[TextEdit]) -> bytes | str:
        try:
            return apply_text_edits("f", MaskedFile(text.encode()), those, MOST).masked.content
        except KairosError as error:
            return error.code

    found = outcome(edits)
    if isinstance(found, bytes):
        assert outcome(shuffled) == found
        singly = text
        for edit in sorted(edits, key=lambda one: text.index(one.old), reverse=True):  # the last one first
            at = text.index(edit.old)
            new = apply_text_edits("f", MaskedFile(text.encode()), [edit], MOST).masked.content.decode()
            singly = singly[:at] + new[at : len(new) - len(text) + at + len(edit.old)] + singly[at + len(edit.old) :]
        assert found.decode() == singly
    else:
        assert isinstance(outcome(shuffled), str)


@law
@given(st.one_of(st.none(), texts), texts)
def test_a_rewritten_file_holds_the_text_and_keeps_its_mark_and_its_line_ends(before: str | None, text: str) -> None:
    content = None if before is None else before.encode()
    try:
        found = overwrite_text(
            "f", None if content is None else MaskedFile(content), text, MOST
        ).masked.content.decode()
    except NoChange:
        found = before
    assert found is not None
    whole = before or ""
    mark, old = ("\ufeff", whole[1:]) if whole.startswith("\ufeff") else ("", whole)
    assert found.removeprefix(mark).replace("\r\n", "\n") == text.removeprefix(mark).replace("\r\n", "\n")
    assert found.startswith(mark)
    if ends_in_crlf(old) and "\r" not in text and "\n" in text:
        assert ends_in_crlf(found)
    elif not ends_in_crlf(old):
        assert found in (text, mark + text)


def apply_diff(before: str, diff: str) -> str:
    """Apply the diff to a text, as `patch` would."""
    lines, made, at = [f"{line}\n" for line in before.split("\n")], [], 0
    lines[-1] = lines[-1].removesuffix("\n")
    rows = [f"{row}\n" for row in diff.split("\n")][5:-1]
    for n, row in enumerate(rows):
        body = row[1:].removesuffix("\n") if rows[n + 1 : n + 2] == ["\\ No newline at end of file\n"] else row[1:]
        match row[0]:
            case "@":
                start, count = (int(part) for part in row.split()[1][1:].split(","))
                upto = start - 1 if count else start
                made += lines[at:upto]
                at = upto
            case " ":
                assert lines[at] == body
                made.append(body)
                at += 1
            case "-":
                assert lines[at] == body
                at += 1
            case "+":
                made.append(body)
            case _:
                assert row[0] == "\\"
    return "".join(made + lines[at:])


@law
@given(texts, texts)
@example("a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n", "a\nB\nc\nd\ne\nf\ng\nh\ni\nJ\n")
def test_a_diff_makes_the_one_text_of_the_other(before: str, after: str) -> None:
    assume(before != after)
    if ends_in_crlf(before) and ends_in_crlf(after):
        before, after = before.replace("\r\n", "\n"), after.replace("\r\n", "\n")
    assert (
        apply_diff(before, unified_diff("f", *map(MaskedFile, (before.encode(), after.encode())), ("1", "2"))) == after
    )


@law
@given(st.lists(st.sampled_from("abcde"), max_size=30), st.lists(st.sampled_from("abcde"), max_size=30))
def test_blocks_replaced_in_order_give_the_other_side(a: list[str], b: list[str]) -> None:
    made, at = [], 0
    for a0, a1, b0, b1 in changed_blocks(a, b):
        assert a0 < a1 or b0 < b1
        made += a[at:a0] + b[b0:b1]
        at = a1
    assert made + a[at:] == b


@pytest.mark.parametrize("shape", ["sorted", "nested", "equal"])
def test_a_diff_takes_no_longer_for_a_text_that_is_made_to_be_slow(shape: str) -> None:
    match shape:
        case "sorted":  # quadratic for a comparison that looks for the longest match again and again
            a, b = [f"{n}" for n in range(60_000)], [f"{n}" for n in range(60_000, 0, -1)]
        case "nested":  # each anchor uncovers just one further
            a = [row for n in range(20_000) for row in (f"{n + 1}", f"{n}")]
            b = [f"{n}" for n in range(20_000)]
        case _:
            a, b = ["x"] * 60_000, ["x", "y"] * 30_000
    began = time.process_time()
    changed_blocks(a, b)
    assert time.process_time() - began < 5


def test_what_is_too_large_is_refused_before_it_is_made() -> None:
    with pytest.raises(TooLarge):
        apply_text_edits("f", MaskedFile(b"a" * 1_000_000), [TextEdit("a", "b" * 1_000_000, everywhere=True)], MOST)
    with pytest.raises(TooLarge):
        apply_text_edits("f", MaskedFile(b"a" * 100_000), [TextEdit("a", "b" * 20, everywhere=True)], MOST)
    with pytest.raises(TooLarge):
        overwrite_text("f", None, "a" * (MOST + 1), MOST)


def test_an_ambiguous_text_names_its_lines_and_costs_little_however_often_it_stands_there() -> None:
    with pytest.raises(MatchMany, match=r"3 times in f: line 1, 3, 3"):
        apply_text_edits("f", MaskedFile(b"a=1\nb\na=1a=1\n"), [TextEdit("a=1", "q")], MOST)
    began = time.process_time()
    with pytest.raises(MatchMany, match=r"1,000 or more times"):
        apply_text_edits("f", MaskedFile(b"a" * 1_000_000), [TextEdit("a" * 1_000, "q")], MOST)
    assert time.process_time() - began < 5


def test_an_edit_that_needs_what_another_one_makes_is_told_so() -> None:
    edits = [TextEdit("b=2", "c=3", number=1), TextEdit("c=3", "d=4", number=2)]
    with pytest.raises(MatchNone) as caught:
        apply_text_edits("f", MaskedFile(b"a=1\nb=2\n"), edits, MOST)
    assert "another edit" in caught.value.hint
    with pytest.raises(MatchNone) as caught:
        apply_text_edits("f", MaskedFile(b"a=1\nb=2\n"), [edits[0], TextEdit("zzz", "d", number=2)], MOST)
    assert "another edit" not in caught.value.hint


def test_edits_that_touch_do_not_overlap_and_those_that_share_a_letter_do() -> None:
    assert (
        apply_text_edits("f", MaskedFile(b"abcd"), [TextEdit("ab", "1"), TextEdit("cd", "2")], MOST).masked.content
        == b"12"
    )
    for second in ("bc", "ab", "abcd", "b"):
        with pytest.raises(OverlappingEdits):
            apply_text_edits("f", MaskedFile(b"abcd"), [TextEdit("ab", "1"), TextEdit(second, "2")], MOST)


def test_edits_that_undo_each_other_change_nothing() -> None:
    with pytest.raises(NoChange):
        apply_text_edits("f", MaskedFile(b"ab"), [TextEdit("a", ""), TextEdit("b", "ab")], MOST)


@pytest.mark.parametrize("content", [b"\xff\xfea\0b\0", b"caf\xe9\n", b"\0", bytes(range(256))])
def test_what_is_no_utf_8_is_left_alone(content: bytes) -> None:
    with pytest.raises(BinaryFile):
        apply_text_edits("f", MaskedFile(content), [TextEdit("a", "b")], MOST)
    with pytest.raises(BinaryFile):
        overwrite_text("f", MaskedFile(content), "text", MOST)


@pytest.mark.parametrize("text", ["\ud800", "a\0b"])
def test_what_no_text_file_can_hold_is_refused(text: str) -> None:
    with pytest.raises(BadArguments):
        apply_text_edits("f", MaskedFile(b"a"), [TextEdit("a", text)], MOST)
    with pytest.raises(BadArguments):
        overwrite_text("f", None, text, MOST)
