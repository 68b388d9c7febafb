"""How a question is laid out in a client's dialog, so that nobody approves what their screen does not show.

Clients cut a dialog's message: some after three lines, some in the middle, some without a sign. So what a client is
known to show decides the way, the first of these that fits:

  whole  the message holds every changed line, or the whole call
  walk   each changed line is a field of the form, and the decision is the last one
  page   a link to the page, where all of it is seen and decided; to accept the link decides nothing
  look   the beginning, and the command that shows all of it; it can be denied here, and not approved

What was measured is in docs/clients.md; a client of another name or version is taken for the one that shows least.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kairos_mcp.settings.table_values import ClientSetting
from kairos_mcp.store.approvals import DialogView
from kairos_mcp.views.question import FileDiff, ShownQuestion, count_changed

ABOUT_CHARS = 48  # of a field's description that Claude Code shows; it quotes and cuts titles with several spaces


class Screen(NamedTuple):
    """What a client shows of a dialog at least, in a terminal of 60 columns and 24 lines."""

    name: str = "unknown"
    lines: int = 3  # of the message
    width: int = 54  # columns of a line: what is longer is cut there, not wrapped
    fields: int = 0  # changed lines that it shows as fields; 0: it may show the decision before them
    opens_links: bool = False  # its user can open a link and come back
    takes_comments: bool = True  # its user can send a form and leave a text field empty


UNKNOWN = Screen()
MEASURED = (  # the name, from this version on, before that one
    ("claude-code", (2, 1, 332), (2, 2), Screen("claude-code 2.1.332", 4, fields=12, opens_links=True)),
    ("copilot-cli", (1, 0, 102), (1, 1), Screen("copilot-cli 1.0.102", 8)),  # a link fails the whole call
    # it declines links by itself
    ("codex-mcp-client", (0, 171), (0, 172), Screen("codex-mcp-client 0.171.0", 8, takes_comments=False)),
)


def find_screen(client: str, stated: Sequence[ClientSetting] = ()) -> Screen:
    """Return what the client of this name and version shows: as a person `stated` it, else as it was measured."""
    name, _, version = client.rpartition(" ")
    for setting in stated:
        if setting.name == name:
            return Screen(f"{name}, as the settings state", setting.lines, setting.width, opens_links=setting.url)
    numbers = tuple(int(number) for number in re.findall(r"[0-9]{1,9}", version)[:3])
    return next((screen for each, low, high, screen in MEASURED if each == name and low <= numbers < high), UNKNOWN)


class Question(NamedTuple):
    """What a person is asked, before it is laid out."""

    what: ShownQuestion  # they decide about
    about: str  # what it is for, in one line
    commands: Sequence[str]  # that show all of it and ask, the shortest last
    name: str  # of the form's field
    choices: Sequence[str]
    unseen_choices: Sequence[str]  # of somebody who has not seen all of it
    page: str | None = None  # a link that shows all of it


class Layout(NamedTuple):
    """A dialog: its message with the fields of a form, or with a link."""

    message: str
    fields: Mapping[str, Any]
    link: str | None
    shown: DialogView


def lay_out(question: Question, screen: Screen) -> Layout:
    """Lay a question out for a screen, so that what can be approved there was seen there."""
    heading, diffs = question.what.heading, question.what.diffs
    notes = _wrap_lines(question.what.remarks, screen.width)
    if diffs:
        body = [*notes, *_show_changes(diffs, screen.width)]
        beginning = [*notes, *_list_files(diffs), *(show_line(line) for diff in diffs for line in diff.changed_lines)]
    else:
        beginning = body = _wrap_lines(question.what.lines, screen.width)
    has_room = count_columns(heading) <= screen.width
    if has_room and 1 + len(body) <= screen.lines:
        shown = DialogView("whole", screen.name, len(body), len(body))
        return Layout("\n".join([heading, *body]), _form(question, question.choices), None, shown)
    fields = _make_fields(diffs[0], screen) if has_room and len(diffs) == 1 and not notes else None
    if fields is not None:
        hint = f"{len(fields)} changed lines below: go down (↓) to the decision."
        shown = DialogView("walk", screen.name, len(diffs[0].changed_lines), len(diffs[0].changed_lines))
        return Layout(f"{heading}\n{hint}", fields | _form(question, question.choices, last=True), None, shown)
    return _lay_out_beginning(question, screen, heading, beginning)


def _lay_out_beginning(question: Question, screen: Screen, heading: str, lines: Sequence[str]) -> Layout:
    """Show what has room, and say where all of it is seen and decided."""
    first, rest = lines[: screen.lines - 2], lines[screen.lines - 2 :]
    seen = sum(count_columns(line) <= screen.width for line in first)
    missing = f"… {len(rest)} more"
    if screen.opens_links and question.page is not None:
        shown, link = DialogView("page", screen.name, seen, len(lines)), question.page
        fields, says = dict[str, Any](), f"{missing}. " if rest else ""
        last = f"{says}See it all and decide on the page:"
    else:
        shown, link = DialogView("look", screen.name, seen, len(lines)), None
        fields = _form(question, question.unseen_choices)
        says = f"{missing}: " if rest else "To approve it: "
        fitting = (text for text in question.commands if count_columns(says + text) <= screen.width)
        last = says + next(fitting, question.commands[-1])
    message = "\n".join(cut_to_width(line, screen.width) for line in (heading, *first, last))
    return Layout(message, fields, link, shown)


def _form(question: Question, choices: Sequence[str], *, last: bool = False) -> dict[str, Any]:
    """Return the field of the decision. `last`: behind all others, also where a client sorts them by name."""
    choice = {
        "type": "string",
        "title": question.name.capitalize(),
        "description": question.about,
        "enum": list(choices),
    }
    return {f"z{question.name}" if last else question.name: choice}


def _make_fields(diff: FileDiff, screen: Screen) -> dict[str, Any] | None:
    """Return a field for each changed line, which a person walks through; None where one has no room. What is ticked
    there does not count."""
    lines = [show_line(line) for line in diff.changed_lines]
    if not 0 < len(lines) <= screen.fields or max(map(count_columns, lines)) > ABOUT_CHARS:
        return None
    titles = (f"{n} of {len(lines)}" for n in range(1, len(lines) + 1))
    return {
        f"c{n:02}": {"type": "boolean", "title": title, "description": line}
        for n, (title, line) in enumerate(zip(titles, lines, strict=True), 1)
    }


def _list_files(diffs: Sequence[FileDiff]) -> list[str]:
    return (
        [", ".join(f"{diff.heading} {count_changed(diff.changed_lines)}" for diff in diffs)] if len(diffs) > 1 else []
    )


def _show_changes(diffs: Sequence[FileDiff], width: int) -> list[str]:
    """Return every changed line as a message of this width shows it."""
    shown = list[str]()
    for diff in diffs:
        if len(diffs) > 1:
            shown.append(f"{diff.heading}:")
        for change in _pair_lines(diff.changed_lines):
            shown += _shorten_pair(*change, width) if len(change) == 2 else map(show_line, change)
    return _wrap_lines(shown, width)


def _pair_lines(lines: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield each changed line; a removed one together with the added one that follows it."""
    waiting: str | None = None
    for line in lines:
        if waiting is not None and line[0] == "+":
            yield waiting, line
            waiting = None
            continue
        if waiting is not None:
            yield (waiting,)
        waiting = line if line[0] == "-" else None
        if waiting is None:
            yield (line,)
    if waiting is not None:
        yield (waiting,)


def _shorten_pair(removed: str, added: str, width: int) -> tuple[str, str]:
    """Return a removed line and the one in its place, without so much of what both share that both fit this width.

    They stay whole where their difference has no room.
    """
    old, new = removed[1:], added[1:]
    room = width - len("- ……")
    begin = _shared_length(old, new)
    end = _shared_length(old[begin:][::-1], new[begin:][::-1])
    span = max(count_columns(old[begin : len(old) - end]), count_columns(new[begin : len(new) - end]))
    if max(count_columns(show_line(removed)), count_columns(show_line(added))) <= width or span > room:
        return show_line(removed), show_line(added)
    around = (room - span) // 4  # each character may take two columns
    first, last = max(0, begin - around), max(0, end - around)

    def shorten(sign: str, line: str) -> str:
        return f"{sign} {'…' * (first > 0)}{line[first : len(line) - last]}{'…' * (last > 0)}"

    return shorten("-", old), shorten("+", new)


def _shared_length(one: str, other: str) -> int:
    """Count the characters that both begin with."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _wrap_lines(lines: Sequence[str], width: int) -> list[str]:
    """Break lines into pieces of this width, each but the first behind an arrow; nothing is left out."""
    pieces = list[str]()
    for line in lines:
        rest, mark = line, ""
        while count_columns(mark + rest) > width:
            piece = cut_to_width(mark + rest, width, end="")
            pieces.append(piece)
            rest, mark = rest[len(piece) - len(mark) :], "↪ "
        pieces.append(mark + rest)
    return pieces


def show_line(line: str) -> str:
    """Set the sign of a changed line apart; a tab is shown as a space."""
    return f"{line[:1]} {line[1:]}".replace("\t", " ") if line[:1] in "-+" else line


def count_columns(text: str) -> int:
    """Count the columns that a text takes in a terminal, with no character taken for less than one."""
    return len(text) if text.isascii() else sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


def cut_to_width(text: str, width: int, end: str = "…") -> str:
    """Cut a text to `width` columns; `end` marks that something was cut."""
    if count_columns(text) <= width:
        return text
    kept, room = "", width - len(end)
    for character in text:
        room -= count_columns(character)
        if room < 0:
            break
        kept += character
    return kept + end
