"""list_files, file_tree and read_file: what they show, and that whatever is cut or clamped is said."""

from __future__ import annotations

import os
import tracemalloc
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.tools import READ_BYTES, WorkspaceTools

from kairos_mcp.core.messages import ToolResult


def read(tools: WorkspaceTools, path: str, **more: int) -> ToolResult:
    return tools.call("read_file", path=path, **more)


def test_a_file_is_read_whole_with_its_lines_and_hash(tools: WorkspaceTools) -> None:
    tools.write({"src/a.py": "one\ntwo\n"})
    result = read(tools, "./src/a.py")
    assert result.content == "one\ntwo\n"
    assert result.data == {
        "path": "src/a.py",
        "lines": 2,
        "start_line": 1,
        "end_line": 2,
        "bytes": 8,
        "sha256": sha256(b"one\ntwo\n").hexdigest(),
    }


def test_an_empty_file_gives_an_empty_string_also_when_a_range_is_asked_for(tools: WorkspaceTools) -> None:
    tools.write({"empty": ""})
    assert read(tools, "empty").content == ""
    ranged = read(tools, "empty", start_line=3)
    assert (ranged.content, ranged.is_error, ranged.data["lines"]) == ("", False, 0)
    assert "clamped" in ranged.data


@pytest.mark.parametrize(
    ("start", "end", "shown", "clamped"),
    [
        (2, 2, "two\n", False),
        (2, None, "two\nthree", False),
        (None, 2, "one\ntwo\n", False),
        (2, 99, "two\nthree", True),
        (0, 1, "one\n", True),
        (-5, 1, "one\n", True),
        (50, 99, "three", True),
        (50, None, "three", True),
        (None, -1, "one\n", True),
    ],
)
def test_a_range_is_clamped_to_the_file_and_says_so(
    tools: WorkspaceTools, start: int | None, end: int | None, shown: str, clamped: bool
) -> None:
    tools.write({"a": "one\ntwo\nthree"})
    result = tools.call("read_file", path="a", start_line=start, end_line=end)
    assert not result.is_error
    assert ("clamped" in result.data) is clamped
    assert ("notes" in result.data) is clamped
    assert result.content == shown or (clamped and result.content.startswith(f"{shown}\n["))


def test_a_range_that_ends_before_it_starts_is_an_error(tools: WorkspaceTools) -> None:
    tools.write({"a": "one\ntwo"})
    assert read(tools, "a", start_line=2, end_line=1).code == "bad_arguments"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.text(st.sampled_from("ab é\r\t"), max_size=4), max_size=6), st.data())
def test_ranges_put_together_are_the_whole_file(tools: WorkspaceTools, lines: list[str], drawn: st.DataObject) -> None:
    text = "\n".join(lines)
    tools.write({"a": text})
    total = read(tools, "a").data["lines"]
    if total < 2:
        return
    cut = drawn.draw(st.integers(1, total - 1))
    first, second = read(tools, "a", end_line=cut), read(tools, "a", start_line=cut + 1)
    assert first.content + second.content == text
    assert "clamped" not in first.data
    assert "clamped" not in second.data


def test_a_byte_order_mark_is_no_part_of_the_text_but_of_the_hash(tools: WorkspaceTools) -> None:
    content = b"\xef\xbb\xbfone\r\ntwo\r\n"
    tools.write({"a": content})
    result = read(tools, "a")
    assert (result.content, result.data["sha256"]) == ("one\r\ntwo\r\n", sha256(content).hexdigest())


def test_bytes_that_are_no_text_are_shown_as_such_and_said(tools: WorkspaceTools) -> None:
    tools.write({"latin": b"caf\xe9"})
    result = read(tools, "latin")
    assert result.content.startswith("caf\ufffd\n[")
    assert result.data["notes"]


@pytest.mark.parametrize("content", [b"\x7fELF\0\0", "text".encode("utf-16"), b"a" * 8191 + b"\0"])
def test_a_binary_file_is_refused(tools: WorkspaceTools, content: bytes) -> None:
    tools.write({"a": content})
    assert read(tools, "a").code == "binary_file"


@pytest.mark.parametrize("before", [100, 10_000, 3 << 20])
def test_a_part_in_another_encoding_behind_much_text_makes_a_file_binary(tools: WorkspaceTools, before: int) -> None:
    """As a shell of Windows appends it: no secret would be found in it."""
    appended = "PASSWORD=hunter2hunter2\n".encode("utf-16-le")
    tools.write({"a": b"text\n" * (before // 5) + appended})
    first_line = before // 5 - 1
    assert read(tools, "a", start_line=first_line).code == "binary_file"
    found = tools.call("search_files", pattern="P.A.S.S", path="a")
    edited = tools.call("edit_file", path="a", old_string="PASSWORD", new_string="x")
    assert found.content.startswith("No line matches; 0 files searched.")
    assert edited.is_error


def test_a_file_larger_than_a_read_is_read_in_part_and_says_where_to_go_on(tools: WorkspaceTools) -> None:
    lines = [f"line {n:06} " + "x" * 50 for n in range(1, 50_001)]
    tools.write({"log": "\n".join(lines) + "\n"})
    first = read(tools, "log")
    last = first.data["end_line"]
    assert first.content.splitlines()[:last] == lines[:last]
    assert first.data["sha256"] is None
    assert first.data["lines"] is None
    assert "clamped" in first.data
    further = read(tools, "log", start_line=last + 1, end_line=last + 2)
    assert further.content.splitlines()[:2] == lines[last : last + 2]
    assert read(tools, "log", start_line=50_000).content.splitlines()[0] == lines[-1]
    beyond = read(tools, "log", start_line=70_000)
    assert (beyond.content.splitlines()[0], beyond.data["start_line"]) == (lines[-1], 50_000)


def test_one_line_longer_than_a_read_is_shown_in_part(tools: WorkspaceTools) -> None:
    tools.write({"long": "y" * (READ_BYTES + 10)})
    result = read(tools, "long")
    assert result.content.startswith("y" * READ_BYTES + "\n[")
    assert len(result.data["notes"]) == 2


@pytest.mark.parametrize("head", [b"", b"text\n" * 2000])
def test_path_045_ten_sparse_gigabytes_take_no_memory(tools: WorkspaceTools, head: bytes) -> None:
    tools.write({"sparse": head})
    os.truncate(tools.workspace / "sparse", 10 << 30)
    tools.call("read_file", path="sparse")
    tracemalloc.start()
    try:
        whole = read(tools, "sparse")
        tools.call("search_files", pattern="no such thing")
        far = tools.call("read_file", path="sparse", start_line=10**9, seconds=0.2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20
    assert (whole.code, far.code) == ("binary_file", "binary_file")


def test_a_folder_is_listed_by_name_with_paths_that_can_be_read(tools: WorkspaceTools) -> None:
    tools.write({"src/b.py": "", "src/a.py": "", "src/pkg/c.py": "", "src/.hidden": ""})
    os.symlink("a.py", tools.workspace / "src" / "link")
    result = tools.call("list_files", path="src")
    assert result.content.splitlines() == ["src/.hidden", "src/a.py", "src/b.py", "src/link@", "src/pkg/"]
    assert result.data == {"path": "src", "shown": 5, "total": 5, "partial": False}
    assert tools.call("list_files").content == "src/"


def test_a_listing_past_its_limit_says_how_many_there_are(tools: WorkspaceTools) -> None:
    tools.write({f"f{n:03}": "" for n in range(30)})
    result = tools.call("list_files", limit=10)
    assert tools.lines(result) == [f"f{n:03}" for n in range(10)]
    assert (result.data["shown"], result.data["total"]) == (10, 30)
    globbed = tools.call("list_files", glob="f*", limit=10)
    assert tools.lines(globbed) == tools.lines(result)
    assert (globbed.data["shown"], globbed.data["total"]) == (10, 30)
    assert tools.call("list_files", limit=0).code == "bad_arguments"


@pytest.mark.parametrize(
    ("glob", "path", "found"),
    [
        ("*.py", None, ["a.py", "src/b.py", "src/deep/c.py"]),
        ("/*.py", None, ["a.py"]),
        ("src/*.py", None, ["src/b.py"]),
        ("src/**/*.py", None, ["src/b.py", "src/deep/c.py"]),
        ("*.py", "src", ["src/b.py", "src/deep/c.py"]),
        ("deep/*", "src", ["src/deep/c.py"]),
        ("**/*.{py,md}", None, ["a.py", "src/b.py", "src/deep/c.py", "src/x.md"]),
        ("[ab].py", None, ["a.py", "src/b.py"]),
        ("[!ab].??", None, ["src/deep/c.py", "src/x.md"]),
        ("src/", None, ["src/b.py", "src/deep/c.py", "src/x.md"]),
        ("none", None, ["No file fits."]),
    ],
)
def test_globs_find_files_below_a_folder(tools: WorkspaceTools, glob: str, path: str | None, found: list[str]) -> None:
    tools.write({"a.py": "", "src/b.py": "", "src/x.md": "", "src/deep/c.py": "", ".git/z.py": ""})
    assert tools.call("list_files", glob=glob, path=path).content.splitlines() == found


def test_a_glob_leaves_out_git_and_what_is_ignored_and_says_so(tools: WorkspaceTools) -> None:
    tools.write({".gitignore": "build/\n*.log\n!keep.log\n", "build/x": "", "a.log": "", "keep.log": ""})
    tools.write({"sub/.gitignore": "*.tmp\n!b.log", "sub/t.tmp": "", "sub/b.log": "", "u.tmp": "", ".git/c": ""})
    result = tools.call("list_files", glob="**")
    assert tools.lines(result) == [".gitignore", "keep.log", "sub/.gitignore", "sub/b.log", "u.tmp"]
    assert result.data["notes"]
    assert tools.lines(tools.call("list_files", glob="*", path="build")) == ["build/x"]  # asked for by name


def test_a_tree_shows_the_nearest_levels_first_and_where_it_was_cut(tools: WorkspaceTools) -> None:
    tools.write({"a/b/c/d.txt": "", "a/e.txt": "", "z.txt": "", ".git/config": "", "many/x": ""})
    tools.write({f"many/f{n:03}": "" for n in range(100)})
    result = tools.call("file_tree", depth=2)
    lines = tools.lines(result)
    assert lines[:6] == ["./", "  a/", "    b/ …", "    e.txt", "  many/", "    f000"]
    assert lines[-2:] == ["    … 41 more: list_files shows them", "  z.txt"]
    assert "    d.txt" not in lines
    assert tools.lines(tools.call("file_tree", path="a/b")) == ["a/b/", "  c/", "    d.txt"]


def test_a_large_tree_is_bounded_and_each_top_folder_is_named(tools: WorkspaceTools) -> None:
    tools.write({f"d{n:02}/f{m:02}": "" for n in range(40) for m in range(30)})
    result = tools.call("file_tree")
    lines = tools.lines(result)
    assert len([line for line in lines if line.startswith("  d")]) == 40
    assert len(lines) < 560
    assert result.data["partial"]


def test_names_that_are_no_plain_text_are_spelled_out(tools: WorkspaceTools) -> None:
    for name in (b"caf\xe9", b"two\nlines", b"esc\x1b[31m", "schön".encode()):
        Path(os.fsdecode(os.fsencode(tools.workspace) + b"/" + name)).write_bytes(b"needle")
    expected = ["caf\\xe9", "esc\\x1b[31m", "schön", "two\\nlines"]
    *listed, note = tools.call("list_files").content.splitlines()
    assert listed == expected
    assert note.startswith("[3 names ")
    assert tools.lines(tools.call("search_files", pattern="needle")) == [f"{name}:1: needle" for name in expected]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_said(tools: WorkspaceTools) -> None:
    tools.write({"secret": "x"})
    (tools.workspace / "secret").chmod(0)
    assert tools.call("read_file", path="secret").code == "path_denied"


def test_listings_that_run_out_of_time_say_so(tools: WorkspaceTools) -> None:
    tools.write({"a/b": "", "c/d": ""})
    for result in (tools.call("list_files", glob="*", seconds=0), tools.call("file_tree", seconds=0)):
        assert not result.is_error
        assert result.data["partial"]


@pytest.mark.parametrize(
    ("text", "asked", "shown"),
    [
        ("one\ntwo\n", {}, "1\tone\n2\ttwo\n"),
        ("one\n\nthree", {"start_line": 2}, "2\t\n3\tthree"),
        ("one\r\ntwo\r\n", {"start_line": 2, "end_line": 2}, "2\ttwo\r\n"),
        ("", {}, ""),
    ],
)
def test_lines_are_numbered_where_that_is_asked_for(
    tools: WorkspaceTools, text: str, asked: dict[str, int], shown: str
) -> None:
    tools.write({"a.txt": text.encode()})
    result = read(tools, "a.txt", line_numbers=True, **asked)
    assert result.content == shown
    assert result.data["sha256"] == sha256(text.encode()).hexdigest()
    assert read(tools, "a.txt", line_numbers=False).content == text


def test_numbered_lines_take_no_more_than_a_call_shows(tools: WorkspaceTools) -> None:
    tools.write({"empty": b"\n" * READ_BYTES, "full": b"x" * READ_BYTES, "behind": b"\n" * (2 * READ_BYTES)})
    for name, start in (("empty", 1), ("empty", READ_BYTES // 2), ("behind", 5)):
        result = read(tools, name, line_numbers=True, start_line=start)
        shown = result.content.partition("\n[")[0]
        last = start + shown.count("\n") - 1
        assert READ_BYTES - 20 < len(shown) <= READ_BYTES
        assert shown.startswith(f"{start}\t\n")
        assert shown.endswith(f"\n{last}\t\n")
        assert result.data["end_line"] == last
        assert f"lines {start}-{last} are shown" in result.data["clamped"]
    assert read(tools, "full", line_numbers=True).content == "1\t" + "x" * READ_BYTES


def test_lines_of_a_large_file_are_numbered_as_they_stand_in_it(tools: WorkspaceTools) -> None:
    tools.write({"large": (b"x" * 99 + b"\n") * (READ_BYTES // 50)})
    first = read(tools, "large", start_line=900, end_line=901, line_numbers=True).content
    assert first.startswith("900\t" + "x" * 99 + "\n901\t")
