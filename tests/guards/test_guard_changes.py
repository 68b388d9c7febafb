"""Each change of the guard table's vocabulary, by the code that it leaves, and the rows that can't apply."""

from __future__ import annotations

import ast

import pytest
from guard_changes import (
    Change,
    DoesNotApply,
    always,
    apply_change,
    never,
    replaced,
    replaced_words,
    without,
    without_words,
)
from guard_names import change_module

CODE = '''
@checked
def act(text, *, most=8):
    """Act."""
    if len(text) > most or text in KNOWN and not text.strip():
        raise TooLong(text, most=most)
    with held(text):
        note(redact(text))
    kept = {"a": 1, "b": 2}
    match text:
        case "x" if most:
            return f"update run set {text} where owner is null and fence = {most}"
        case _:
            return sorted((text, kept), key=str, reverse=True)
'''


def change_code(change: Change, code: str = CODE) -> str:
    return ast.unparse(apply_change(change, ast.parse(code).body[0]))


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (never("len(text) > most"), "len(text) > most or", "False or"),
        (always("text in KNOWN"), "text in KNOWN", "True"),
        (never("len(...) > most or ..."), "len(text) > most or (text in KNOWN and (not text.strip()))", "False"),
        (without("not text.strip()"), "(text in KNOWN and (not text.strip()))", "text in KNOWN"),
        (without("raise TooLong(...)"), "raise TooLong(text, most=most)", "pass"),
        (without("most=most"), "text, most=most", "text"),
        (without("kept"), "(text, kept)", "(text,)"),
        (without("'b': 2"), ", 'b': 2", ""),
        (without("checked"), "@checked\n", ""),
        (without('case "x" if most: ...'), "        case 'x' if most:\n            return f'update run set {text} where"
         " owner is null and fence = {most}'\n", ""),
        (replaced("redact(text)", "text"), "redact(text)", "text"),
        (replaced("with held(text): ...", "if True: ..."), "with held(text)", "if True"),
        (replaced("sorted(..., reverse=True)", "sorted(...)"), ", reverse=True", ""),
        (replaced("'a': 1", "'a': 3"), "'a': 1", "'a': 3"),
        (replaced("8", "9"), "most=8", "most=9"),
        (without_words("owner is null and"), "owner is null and ", ""),
        (replaced_words("fence = {most}", "true"), "fence = {most}", "true"),
    ],
    ids=str,
)  # fmt: skip
def test_a_change_leaves_all_else_as_it_is(change: Change, before: str, after: str) -> None:
    whole = ast.unparse(ast.parse(CODE))
    assert whole.count(before) == 1
    assert change_code(change) == whole.replace(before, after)


def test_only_the_syntax_of_the_quoted_part_counts() -> None:
    code = "def act():\n    return check(\n        'a',  # first\n        (b),\n    )\n"
    assert change_code(replaced('check("a", b)', "None"), code) == "def act():\n    return None"


@pytest.mark.parametrize(
    "change",
    [never("text"), never("unknown"), without("len(text) > 9"), never("if"), without_words("fence = {text}")],
    ids=str,
)
def test_a_change_that_does_not_apply_exactly_once_is_refused(change: Change) -> None:
    with pytest.raises(DoesNotApply):
        change_code(change)


@pytest.mark.parametrize("name", ["Gate.no_such_name", "no_such_module:Gate.judge"])
def test_a_row_of_what_is_gone_is_refused(name: str) -> None:
    with pytest.raises(DoesNotApply, match=name):
        change_module(name, (never("True"),))
