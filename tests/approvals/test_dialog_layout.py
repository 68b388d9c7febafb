"""How questions are laid out for the screens of clients: what can be approved in a dialog was on its screen before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from kairos_mcp.cli.output import question_lines
from kairos_mcp.cli.terminal import DiffLine
from kairos_mcp.core.masked_file import MaskedFile
from kairos_mcp.server.dialog_layout import (
    MEASURED,
    UNKNOWN,
    Layout,
    Question,
    Screen,
    count_columns,
    cut_to_width,
    find_screen,
    lay_out,
)
from kairos_mcp.settings.table_values import ClientSetting
from kairos_mcp.tools.files.diff import unified_diff
from kairos_mcp.views.question import part_question, read_diffs

PAGE = "http://127.0.0.1:8766/#/runs/run-0123456789ab"
SCREENS = [UNKNOWN, *(screen for *_, screen in MEASURED)]
HASHES = ("0" * 64, "1" * 64)


def ask(text: str, *, page: str | None = PAGE) -> Question:
    commands = (
        "/a/path/to/the/program/kairos-mcp approve --home /a run-0123456789ab",
        "kairos-mcp approve run-0123456789ab",
    )
    choices = ["deny", "approve"], ["leave", "deny"]
    what = part_question("a_tool (write)", "a_tool", text)
    return Question(what, "digest 0123", commands, "decision", *choices, page)


def diff(before: str, after: str, path: str = "src/app/settings.py") -> str:
    return unified_diff(path, MaskedFile(before.encode()), MaskedFile(after.encode()), HASHES, hashes_last=True)


def see(laid_out: Layout, screen: Screen) -> list[str]:
    """What a client with this screen shows before its user can choose: so many lines, each cut at the width; then, if
    it shows fields, their descriptions."""
    lines = laid_out.message.split("\n")
    seen = [
        cut_to_width(line, screen.width)
        for line in (lines if len(lines) <= screen.lines else lines[: screen.lines - 1])
    ]
    if screen.fields:
        seen += [cut_to_width(field["description"], 48) for field in laid_out.fields.values()]
    return seen


def can_approve(laid_out: Layout) -> bool:
    return any("approve" in field.get("enum", ()) for field in laid_out.fields.values())


def make_edits() -> Iterator[Any]:
    """Edits of one to 200 lines, with long lines, wide characters, and the end of a line that comes or goes."""
    chance = random.Random(7)
    for size in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 20, 40, 60, 100, 200):
        old = "".join(f"value_{n} = old_{n:03}\n" for n in range(size))
        yield pytest.param(old, old.replace("old", "new"), id=f"{size} lines")
    yield pytest.param("    if a:\n        b\n" * 2, "    if c:\n        d\n" * 2, id="indented lines")
    yield pytest.param("".join(f"{n:<46}\n" for n in range(6)), "".join(f"{n:<47}.\n" for n in range(6)), id="fields")
    words = " ".join(f"word{n}" for n in range(40))
    yield pytest.param(f"{words}\n", f"{words.replace('word20', 'other')}\n", id="one word of a long line")
    yield pytest.param(f"{words}\n", f"{words[::-1]}\n", id="all of a long line")
    yield pytest.param("a\n" * 30, "a\n" * 15 + "漢字" * 30 + "\n" + "a\n" * 15, id="a wide line")
    yield pytest.param("a", "a\n", id="the end of the last line")
    yield pytest.param("a\nb\nc\n", "", id="all of it")
    yield pytest.param("", "a\n", id="a first line")
    yield pytest.param("--- a\n+++ b\n", "@@ -1,1 +1,1 @@\n-x\n", id="lines that look like a diff")
    yield pytest.param("edit x\n", "edit y\nbefore 0, after 1\n", id="lines that look like a heading")
    for n in range(20):
        before = [f"{chance.choice('abc')}{chance.randrange(9)}" for _ in range(chance.randrange(1, 12))]
        after = [line if chance.random() < 0.6 else f"{line}x" for line in before if chance.random() < 0.9]
        yield pytest.param("\n".join(before), "\n".join(after), id=f"random {n}")


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.name)
@pytest.mark.parametrize(("before", "after"), list(make_edits()))
def test_every_changed_line_is_seen_where_it_can_be_approved(before, after, screen):
    if before == after:
        return
    text = diff(before, after)
    laid_out = lay_out(ask(text), screen)
    found = read_diffs(text)
    assert found is not None
    ((read,), remarks) = found
    assert remarks == []
    assert can_approve(laid_out) == laid_out.shown.decides
    assert can_approve(laid_out) or laid_out.shown.lines < laid_out.shown.of or screen.lines < 4
    assert all(count_columns(line) <= screen.width for line in laid_out.message.split("\n"))
    assert len(laid_out.message.split("\n")) <= screen.lines
    if laid_out.shown.decides:
        seen = see(laid_out, screen)
        assert sum(line[:2] in ("- ", "+ ") for line in seen) == len(read.changed_lines)
        assert not any(line.endswith("…") and line not in laid_out.message for line in seen)


def on_terminal(text: str, tool: str = "a_tool") -> list[str]:
    return [line.text if isinstance(line, DiffLine) else line for line in question_lines(tool, "write", text)]


@pytest.mark.parametrize(("before", "after"), list(make_edits()))
def test_a_terminal_shows_the_same_with_all_the_lines_around(before, after):
    """The heading and each changed line as in a dialog, in their order; and every line of the diff once."""
    if before == after:
        return
    text = diff(before, after)
    heading, *shown = on_terminal(text)
    message = lay_out(ask(text), Screen("roomy", lines=500, width=500)).message
    assert message.split("\n") == [heading, *(line for line in shown if line[:2] in ("- ", "+ "))]
    read = read_diffs(text)
    assert read is not None
    whole = [f"{line[0]} {line[1:]}" if line[0] in "+- " else line for line in read[0][0].body]
    assert shown == [*whole, "before 000000000000, after 111111111111"]


def test_a_submit_is_headed_alike_with_what_the_model_says_where_there_is_room():
    said = "2 files: 2 changed\nin the stage stay: log.txt\nthe model says:\n> Renames a.\n> edit a"
    text = f"! one.py holds words of others (round-1)\n{said}\n\n{diff('a', 'b', 'one.py')}\n{diff('c', 'd', 'two.py')}"
    heading, *shown = on_terminal(text, "submit_changes")
    assert heading == "submit_changes (write): 2 files  -2 +2"
    assert shown[:5] == [
        *("! one.py holds words of others (round-1)", "in the stage stay: log.txt"),
        *("the model says:", "> Renames a.", "> edit a"),
    ]
    assert shown[5:8] == ["edit one.py  -1 +1", "@@ -1,1 +1,1 @@", "- a (no line end)"]
    dialog = part_question("submit_changes (write)", "submit_changes", text)
    assert (dialog.heading, [*dialog.remarks]) == (heading, shown[:2])


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.name)
def test_a_line_in_place_of_another_shows_what_differs(screen):
    words = " ".join(f"word{n}" for n in range(40))
    laid_out = lay_out(ask(diff(f"{words}\n", f"{words.replace('word20', 'other')}\n")), screen)
    removed, added = laid_out.message.split("\n")[1:3]
    assert laid_out.shown.decides
    assert "word20" in removed
    assert "other" in added


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.name)
@pytest.mark.parametrize("length", [1, 60, 130, 200, 400, 900])
def test_a_call_is_shown_whole_or_can_not_be_approved(screen, length):
    word = "".join(chr(97 + n % 26) for n in range(length))
    laid_out = lay_out(ask(f"program: {word}"), screen)
    body = "".join(line.removeprefix("↪ ") for line in laid_out.message.split("\n")[1:])
    assert laid_out.shown.decides == (body == f"program: {word}") == can_approve(laid_out)


def test_a_remark_is_shown_or_nothing_is_approved():
    text = "! 1 secret is not shown\n" + diff("a\n", "b\n")
    assert not lay_out(ask(text), UNKNOWN).shown.decides
    longer = "! 1 secret is not shown\n" + diff("a\nb\n", "c\nd\n")
    assert lay_out(ask(longer), find_screen("claude-code 2.1.332")).shown.way == "page"
    assert "! 1 secret is not shown" in lay_out(ask(text), find_screen("copilot-cli 1.0.102")).message


@pytest.mark.parametrize("lines", ["-a\n-b", "-a\n-b\n+c", "-a\n+b\n+c", "-a", " a\n b\n c"])
def test_a_text_that_is_no_whole_diff_is_shown_line_by_line(lines):
    """A hunk that has other lines than its head says: what is no line of a file could hide among them."""
    text = f"edit a\n--- a/a\n+++ b/a\n@@ -1,1 +1,1 @@\n{lines}"
    assert read_diffs(text) is None
    assert lay_out(ask(text), find_screen("copilot-cli 1.0.102")).message.split("\n")[1:] == text.split("\n")


def test_an_edit_of_several_files_names_them():
    text = "\n".join([diff("a\n", "b\n", "one.py"), diff("c\n", "d\n", "two.py")])
    laid_out = lay_out(ask(text), find_screen("copilot-cli 1.0.102"))
    assert laid_out.message.split("\n") == [
        "a_tool (write): 2 files  -2 +2",
        *("edit one.py:", "- a", "+ b"),
        *("edit two.py:", "- c", "+ d"),
    ]
    beginning = lay_out(ask(text), UNKNOWN)
    assert beginning.message.split("\n")[1] == "edit one.py -1 +1, edit two.py -1 +1"
    assert (beginning.shown.way, beginning.shown.decides) == ("look", False)


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.name)
@pytest.mark.parametrize("page", [None, PAGE])
def test_what_has_no_room_is_counted_beside_the_way_to_see_it(screen, page):
    laid_out = lay_out(ask(diff("a\n" * 5_000, "b\n" * 5_000), page=page), screen)
    heading, *seen, last = laid_out.message.split("\n")
    assert heading.endswith("-5000 +5000")
    assert (laid_out.shown.lines, laid_out.shown.of) == (len(seen), 10_000)
    assert last.startswith(f"… {10_000 - len(seen)} more")
    assert last.endswith(("kairos-mcp approve run-0123456789ab", "decide on the page:"))


def test_a_link_is_for_clients_known_to_open_it_and_decides_nothing():
    text = diff("a\n" * 50, "b\n" * 50)
    known, other = find_screen("claude-code 2.1.332"), find_screen("claude-code 3.0")
    assert (lay_out(ask(text), known).link, lay_out(ask(text), other).link) == (PAGE, None)
    assert (lay_out(ask(text), known).fields, lay_out(ask(text, page=None), known).shown.way) == ({}, "look")


def test_a_person_may_state_what_their_client_shows():
    stated = [ClientSetting("my-host", 12, 90, True)]
    screen = find_screen("my-host 7", stated)
    assert (screen.lines, screen.width, screen.opens_links) == (12, 90, True)
    assert find_screen("other-host 7", stated) is UNKNOWN


@pytest.mark.parametrize(
    ("client", "name"),
    [
        ("claude-code 2.1.332", "claude-code 2.1.332"),
        ("claude-code 2.1.400", "claude-code 2.1.332"),
        ("claude-code 2.1.331", "unknown"),
        ("claude-code 2.2.0", "unknown"),
        ("copilot-cli 1.0.102", "copilot-cli 1.0.102"),
        ("codex-mcp-client 0.172.0", "unknown"),
        ("claude-code", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_client_of_another_version_shows_what_every_client_shows(client, name):
    assert find_screen(client).name == name
