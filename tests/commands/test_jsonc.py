"""Editing one entry of a JSON text with comments: the law, for texts of any shape."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_mcp.core import jsonc

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(
    ["servers", "kairos", "//", ",}"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
ENTRIES = st.dictionaries(NAMES, VALUES, max_size=3)
GAPS = st.sampled_from(["", " ", "\n", "\r\n  ", "\n\t", " // it's, }\n", "/* a */", "/* {\n */ ", '// "\n'])


@st.composite
def texts(draw: st.DrawFn, value: object) -> str:
    """The value in JSON, with any white space, comments and trailing commas."""

    def gap() -> str:
        return draw(GAPS)

    def write(part: object) -> str:
        match part:
            case dict():
                members = [
                    f"{gap()}{json.dumps(name)}{gap()}:{gap()}{write(each)}{gap()}" for name, each in part.items()
                ]
                return "{" + ",".join(members) + ("," + gap()) * (bool(members) and draw(st.booleans())) + gap() + "}"
            case list():
                items = [f"{gap()}{write(each)}{gap()}" for each in part]
                return "[" + ",".join(items) + ("," + gap()) * (bool(items) and draw(st.booleans())) + gap() + "]"
            case _:
                return json.dumps(part, ensure_ascii=draw(st.booleans()))

    return gap() + write(value) + gap()


def comments_of(text: str) -> list[str]:
    return [found[0] for found in jsonc._STRING_OR_COMMENT.finditer(text) if not found[0].startswith('"')]


@given(st.data(), ENTRIES, st.none() | ENTRIES, ENTRIES)
def test_one_entry_changes_and_nothing_else(
    data: st.DataObject, others: dict[str, object], servers: dict[str, object] | None, entry: dict[str, object]
) -> None:
    before = (
        {**others, "servers": servers} if servers is not None else {k: v for k, v in others.items() if k != "servers"}
    )
    text = data.draw(texts(before))
    assert jsonc.parse(text) == before
    after = jsonc.set_entry(text, "servers", "kairos", entry)
    assert jsonc.parse(after) == {**before, "servers": {**(servers or {}), "kairos": entry}}
    if "kairos" not in (servers or {}):
        assert comments_of(after) == comments_of(text)
    removed = jsonc.remove_entry(after, "servers", "kairos")
    rest = {name: value for name, value in (servers or {}).items() if name != "kairos"}
    assert {"servers": {}, **jsonc.parse(removed)} == {**before, "servers": rest}


@given(st.data(), ENTRIES, ENTRIES)
def test_an_entry_that_is_added_and_removed_leaves_the_text_as_it_was(
    data: st.DataObject, others: dict[str, object], entry: dict[str, object]
) -> None:
    servers = {"one": 1, "two": [2]}
    text = data.draw(texts({**others, "servers": servers}))
    after = jsonc.set_entry(text, "servers", "kairos", entry)
    removed = jsonc.remove_entry(after, "servers", "kairos")
    assert comments_of(removed) == comments_of(text)
    assert "".join(removed.split()) == "".join(text.split())


def test_an_empty_text_becomes_an_object() -> None:
    assert (
        jsonc.set_entry("", "servers", "kairos", {"a": 1})
        == '{\n  "servers": {\n    "kairos": {\n      "a": 1\n    }\n  }\n}\n'
    )


@pytest.mark.parametrize(
    ("text", "left"),
    [
        *(("", "{}\n"), ("{}", "{}"), ('{"servers": {}}', "{}")),
        *(
            (text, text)
            for text in ('{\n  "a": 1\n}\n', '{\n  "a": 1,\n}\n', '{\n  "servers": {\n    // note\n  }\n}\n')
        ),
        ('{\n  "servers": {},\n  "b": 1\n}\n', '{\n  "b": 1\n}\n'),
    ],
)
def test_a_section_goes_with_its_last_entry_unless_a_comment_is_in_it(text: str, left: str) -> None:
    assert jsonc.remove_entry(jsonc.set_entry(text, "servers", "kairos", {"a": 1}), "servers", "kairos") == left


@pytest.mark.parametrize(
    "text", ["{" + "/*x" * 30_000, '{"' + '\\"' * 30_000, "{" + ",  " * 30_000 + "x", '{"a": 1}/*']
)
def test_what_is_never_closed_is_refused_in_linear_time(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(ValueError, match=r"line|Extra"):
        jsonc.parse(text)
    assert time.process_time() - begun < 2
