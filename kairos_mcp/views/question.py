"""What a person is asked about a call, in its parts, which dialogs, the terminal and the inbox show in one order.

First one line that says what changes, with counts; then remarks; then each changed line, its sign set apart. What is no
edit is shown line by line, as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kairos_mcp.core.builtin_tools import SUBMIT_CHANGES
from kairos_mcp.core.file_changes import NO_NEWLINE

_REMARKS = ("! ", "[", "touches ", "in the stage stay: ", "drops what was changed in ")
_SAID = ("the model says:", "> ")
_COUNTS = re.compile(r"\d+ files?: .*")


class FileDiff(NamedTuple):
    """What changes in one file. `heading`: what is done and the path; `body`: the lines of its hunks, each with its
    sign; `hashes`: of the file before and after, as a line, where they are told."""

    heading: str
    body: list[str]
    hashes: list[str]

    @property
    def changed_lines(self) -> list[str]:
        """The changed lines with their signs."""
        return [line for line in self.body if line[0] in "+-"]


class ShownQuestion(NamedTuple):
    """A question in its parts. `said`: what the model says of its changes; `lines`: of what is no edit."""

    heading: str
    said: Sequence[str]
    remarks: Sequence[str]
    diffs: Sequence[FileDiff]
    lines: Sequence[str]

    def list_all(self) -> Iterator[str]:
        """Yield all of it below the heading, where there is room: the changed lines among those around them."""
        yield from (*self.remarks, *self.said)
        for diff in self.diffs:
            if len(self.diffs) > 1:
                yield f"{diff.heading}  {count_changed(diff.changed_lines)}"
            yield from (line if line.startswith("@") else f"{line[:1]} {line[1:]}" for line in diff.body)
            yield from diff.hashes
        yield from self.lines


def part_question(heading: str, tool: str, preview: str) -> ShownQuestion:
    """Part what a person is asked about a call of this tool. `heading`: of what is no edit of one file."""
    text, said, counts = preview.rstrip("\n"), list[str](), list[str]()
    if tool == SUBMIT_CHANGES.name:
        head, blank, rest = text.partition("\n\n")
        lines = head.split("\n")
        said = [line for line in lines if line.startswith(_SAID)]
        counts = [line for line in lines if _COUNTS.fullmatch(line)]
        remarks = [line for line in lines if line not in (*said, *counts)]
        text = ("\n".join(remarks) + blank + rest).strip("\n")
    found = read_diffs(text)
    if found is None:
        return ShownQuestion(f"{tool}: {counts[0]}" if counts else heading, said, (), (), text.split("\n"))
    diffs, remarks = found
    what = diffs[0].heading if len(diffs) == 1 else f"{heading}: {len(diffs)} files"
    counted = count_changed([line for diff in diffs for line in diff.changed_lines])
    return ShownQuestion(f"{what}  {counted}", said, remarks, diffs, ())


def count_changed(lines: Sequence[str]) -> str:
    """Count changed lines, as `-2 +3`."""
    removed = sum(line.startswith("-") for line in lines)
    return f"-{removed} +{len(lines) - removed}"


def read_diffs(text: str) -> tuple[list[FileDiff], list[str]] | None:
    """Read what changes from the diffs that an edit's preview consists of, and the remarks between them.

    Each hunk has as many lines as its head says, so that no text of a file is taken for anything else. None for a text
    that is not made of diffs alone.
    """
    diffs, remarks = list[FileDiff](), list[str]()
    lines = iter(text.rstrip("\n").replace(f"\n{NO_NEWLINE}", " (no line end)").split("\n"))
    for line in lines:
        if re.match(r"(edit|create) ", line):
            if not (next(lines, "").startswith("--- ") and next(lines, "").startswith("+++ ")):
                return None
            diffs.append(FileDiff(line, [], []))
        elif (hunk := re.fullmatch(r"@@ -\d+,(\d+) \+\d+,(\d+) @@", line)) and diffs:
            body = _read_hunk(lines, int(hunk[1]), int(hunk[2]))
            if body is None:
                return None
            diffs[-1].body.extend([line, *body])
        elif line.startswith(_REMARKS):
            remarks.append(line)
        elif re.fullmatch(r"before (no file|[0-9a-f]+), after [0-9a-f]*", line) and diffs:
            diffs[-1].hashes.append(line)
        elif line:
            return None
    return (diffs, remarks) if diffs else None


def _read_hunk(lines: Iterator[str], old: int, new: int) -> list[str] | None:
    """Read a hunk of `old` and `new` lines. Return them, or None if lines are missing."""
    body = list[str]()
    while old > 0 or new > 0:
        line = next(lines, None)
        match line[:1] if line else None:
            case " ":
                old, new = old - 1, new - 1
            case "-":
                old -= 1
            case "+":
                new -= 1
            case _:
                return None
        body.append(line or "")
    return body if old == new == 0 else None
