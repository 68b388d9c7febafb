"""search_files and read_result: which lines match, in which order, and within which bounds."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tools import WorkspaceTools

from kairos_mcp.core.patterns import compile_line_pattern
from kairos_mcp.tools.files import walk
from kairos_mcp.tools.files.matching import WINDOW, find_hits
from kairos_mcp.tools.files.walk import (
    MAX_RULES,
    RULE_CHARS,
    RULE_CHARS_AT_ONCE,
    RULE_SETS,
    RULES_AT_ONCE,
    _compile_rules,
)


def test_lines_are_found_in_the_order_of_paths_with_their_numbers(tools: WorkspaceTools) -> None:
    tools.write({"b.txt": "no\nyes here\r\n\nyes", "a/z.txt": "yes", "a.txt": "yes yes\n", "c.txt": "no"})
    result = tools.call("search_files", pattern="yes")
    assert result.content.splitlines() == [
        "a/z.txt:1: yes",
        "a.txt:1: yes yes",
        "b.txt:2: yes here",
        "b.txt:4: yes",
    ]
    assert (result.data["matches"], result.data["files"], result.data["partial"]) == (4, 4, False)


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        ("^b", [2]),
        ("a$", [1, 2, 3]),
        ("^$", [4]),
        ("(?i)BA", [2, 3]),
        (r"[^x]+", [1, 2, 3, 5]),
        (r"\s*b", [2, 3]),
        (r"a\nb", []),
        ("a|d", [1, 2, 3, 5]),
        ("é", [5]),
    ],
)
def test_a_pattern_is_about_one_line(tools: WorkspaceTools, pattern: str, lines: list[int]) -> None:
    tools.write({"f": "aa\nba\n  ba\n\ndé\n"})
    found = tools.lines(tools.call("search_files", pattern=pattern))
    assert [int(line.split(":")[1]) for line in found if line.startswith("f:")] == lines


def test_a_search_can_be_narrowed_to_a_folder_a_file_and_a_glob(tools: WorkspaceTools) -> None:
    tools.write({"a.py": "x", "src/b.py": "x", "src/c.md": "x"})
    assert tools.lines(tools.call("search_files", pattern="x", path="src")) == [
        "src/b.py:1: x",
        "src/c.md:1: x",
    ]
    assert tools.lines(tools.call("search_files", pattern="x", path="src/c.md")) == ["src/c.md:1: x"]
    assert tools.lines(tools.call("search_files", pattern="x", glob="*.py")) == ["a.py:1: x", "src/b.py:1: x"]
    assert tools.lines(tools.call("search_files", pattern="x", path="src", glob="b.*")) == ["src/b.py:1: x"]
    assert tools.call("search_files", pattern="x", path="none").code == "not_found"


def test_git_ignored_and_binary_files_are_left_out_and_said(tools: WorkspaceTools) -> None:
    tools.write({".gitignore": "out/\n", "out/a": "x", ".git/b": "x", "bin": b"x\0", "good": "x", ".hidden": "x"})
    result = tools.call("search_files", pattern="x")
    assert tools.lines(result) == [".hidden:1: x", "good:1: x"]
    assert result.data["notes"]


def test_a_gitignore_with_lines_that_are_no_patterns_still_counts(tools: WorkspaceTools) -> None:
    tools.write({".gitignore": "!\n*.log\n" + "*a" * 40 + "b\n", "x.log": "x", "a" * 200: "x", "y": "x"})
    began = time.monotonic()
    assert tools.lines(tools.call("search_files", pattern="^x"))[-1] == "y:1: x"
    assert tools.call("search_files", pattern="^x").data["matches"] == 2
    assert time.monotonic() - began < 2  # such a pattern takes hours by backtracking


@pytest.mark.parametrize("rule", ["*x{}?y*z", "[a-z]*[!0-9]" * 5 + "{}", "é*" * 9 + "{}"])
def test_of_a_gitignore_without_end_the_first_rules_count_and_that_is_said(tools: WorkspaceTools, rule: str) -> None:
    rules = ["*.log", *(rule.format(n) for n in range(30_000))]
    tools.write({".gitignore": "\n".join([*rules[:MAX_RULES], "# later", "*.txt"]), "x.log": "x", "y.txt": "x"})
    result = tools.call("search_files", pattern="^x")
    assert tools.lines(result) == ["y.txt:1: x"]
    assert any(".gitignore" in note and f"{MAX_RULES:,}" in note for note in result.data["notes"])
    parts = list(_compile_rules(rules[:MAX_RULES]))
    assert max(len(part.patterns) for part in parts) <= RULES_AT_ONCE
    assert sum(len(part.patterns) for part in parts) == MAX_RULES
    (tools.workspace / ".gitignore").write_text("\n".join([*rules[: MAX_RULES - 2], "*.txt", "!y.*"]))
    assert tools.lines(tools.call("search_files", pattern="^x")) == ["y.txt:1: x"]  # the last rule that matches counts


def test_of_a_gitignore_no_long_rule_counts_and_few_characters_are_compiled_at_once(
    tools: WorkspaceTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[list[str]] = []
    compile_part = walk._compile_part
    monkeypatch.setattr(walk, "_compile_part", lambda lines: compiled.append(lines) or compile_part(lines))
    large = "[\u0100-\uffff]"
    rules = ["?" * 100_000, *["?" * RULE_CHARS] * 9, large * (RULE_SETS + 1), *[large * RULE_SETS] * 9, "*.log"]
    tools.write({".gitignore": "\n".join(rules), "x.log": "x", "y.txt": "x"})
    result = tools.call("search_files", pattern="^x")
    assert tools.lines(result) == ["y.txt:1: x"]
    assert any(f"{RULE_CHARS:,} characters" in note for note in result.data["notes"])
    assert max(sum(map(len, lines)) for lines in compiled) <= RULE_CHARS_AT_ONCE
    assert max("".join(lines).count("[") for lines in compiled) == RULE_SETS


def test_a_search_stops_at_max_results_and_says_so(tools: WorkspaceTools) -> None:
    tools.write({f"f{n}": "x\n" * 10 for n in range(10)})
    result = tools.call("search_files", pattern="x", max_results=15)
    assert tools.lines(result) == [*[f"f0:{n}: x" for n in range(1, 11)], *[f"f1:{n}: x" for n in range(1, 6)]]
    assert result.data["stopped_at_most"]
    assert not result.data["partial"]


def test_search_006_a_line_of_50_mb_gives_a_short_preview(tools: WorkspaceTools) -> None:
    (tools.workspace / "long").write_bytes(b"a" * 100_000 + b"x" + b"a" * (50 << 20))
    result = tools.call("search_files", pattern="x")
    assert len(tools.lines(result)) == 1
    assert "ax" in result.content
    assert len(result.content) < 400
    assert result.data["notes"]  # only the beginning of so large a file is searched


def test_search_012_a_search_that_runs_out_of_time_tells_what_it_has(tools: WorkspaceTools) -> None:
    """The case has 10 GB and one second; 400 sparse files of 64 MB and a shorter time do the same."""
    tools.write({"0": "zz"})
    for n in range(400):
        tools.write({f"d{n}/f": "b"})
        os.truncate(tools.workspace / f"d{n}" / "f", 9000)
        with open(tools.workspace / f"d{n}" / "f", "r+b") as file:
            file.write(b"b" * 9000)
        os.truncate(tools.workspace / f"d{n}" / "f", 64 << 20)
    began = time.monotonic()
    result = tools.call("search_files", pattern="zz", seconds=0.2)
    assert time.monotonic() - began < 1
    assert not result.is_error
    assert result.data["partial"]
    assert tools.lines(result) == ["0:1: zz"]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.text(st.sampled_from("abé "), max_size=5), st.sampled_from([0, 0, 0, WINDOW, 3 * WINDOW])),
        max_size=8,
    ),
    st.sampled_from(["a", "ab", "é", "b$", "^b"]),
)
def test_hits_are_the_lines_that_match_whatever_their_length(parts: list[tuple[str, int]], pattern: str) -> None:
    lines = ["c" * padding + text for text, padding in parts]
    matching = {
        "b$": lambda line: line.endswith("b"),
        "^b": lambda line: line.startswith("b"),
    }.get(pattern, lambda line: pattern in line)
    content = "\n".join(lines).encode()
    found = list(find_hits(content, compile_line_pattern(pattern), lambda: False))
    assert [hit.number for hit in found] == [n for n, line in enumerate(lines, 1) if matching(line)]
    assert [content[hit.start : hit.end].decode() for hit in found] == [line for line in lines if matching(line)]


def test_the_costliest_patterns_keep_the_deadline(tools: WorkspaceTools) -> None:
    tools.write({"a": "".join("abcdefgh "[(n * n * 7 + n // 3) % 9] for n in range(1 << 20))})
    began = time.monotonic()
    result = tools.call("search_files", pattern="(?:.{0,250}a){4}!", seconds=1)
    assert time.monotonic() - began < 5  # one window may end after the deadline, the next one doesn't begin
    assert not result.is_error


def test_a_kept_text_is_read_in_pages_that_put_together_are_the_whole(tools: WorkspaceTools) -> None:
    text = "".join(f"line {n} é\n" for n in range(3000))
    tools.kept["round-1/call-1"] = text
    offset, read = 0, ""
    while offset is not None:
        page = tools.call("read_result", ref="round-1/call-1", offset=offset)
        read += page.content.rpartition("\n[")[0]
        assert len(page.content) < 9_000
        offset = page.data["next_offset"]
    assert read == text


def test_a_kept_text_is_searched_and_the_offsets_lead_to_the_lines(tools: WorkspaceTools) -> None:
    text = "".join(f"é line {n}\n" for n in range(300))
    tools.kept["r"] = text
    result = tools.call("read_result", ref="r", grep="line 1[0-9]$")
    assert len(tools.lines(result)) == 10
    first = tools.lines(result)[0]
    offset = int(first.split("offset ")[1].split(")")[0])
    assert text[offset:].startswith("é line 10\n")
    assert tools.call("read_result", ref="r", offset=offset).content.startswith("é line 10\n")


def test_many_hits_of_a_kept_text_go_on_at_the_next_offset(tools: WorkspaceTools) -> None:
    tools.kept["r"] = "x é\n" * 120
    offset: int | None = 0
    sizes = []
    while offset is not None:
        result = tools.call("read_result", ref="r", grep="x", offset=offset)
        sizes.append(result.data["matches"])
        offset = result.data["next_offset"]
    assert sizes == [50, 50, 20]


def test_a_ref_that_is_not_there_and_an_offset_past_the_end_are_errors(tools: WorkspaceTools) -> None:
    tools.kept["r"] = "abc"
    assert tools.call("read_result", ref="s").code == "not_found"
    assert tools.call("read_result", ref="r", offset=4).code == "bad_arguments"
    assert tools.call("read_result", ref="r", offset=-1).code == "bad_arguments"
    assert tools.call("read_result", ref="r", offset=3).content.startswith("\n[")
