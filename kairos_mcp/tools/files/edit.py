"""Applies edits to a text, literally: which part is replaced by what, or why nothing is.

Edits match the masked text of a file: nothing matches a secret, or a part of one, or a place where an edit would change
what stands right beside one. Pure: no file is opened here. A leading byte order mark is not part of the text and stays;
line ends stay as they are; a file that is not UTF-8 is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from kairos_mcp.core.errors import BadArguments, BinaryFile, MatchMany, MatchNone, NoChange, OverlappingEdits, TooLarge
from kairos_mcp.core.masked_file import STAND_IN, MaskedFile
from kairos_mcp.core.paths import shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.secret_forms import MASK
from kairos_mcp.core.text import is_binary
from kairos_mcp.tools.files.lookalikes import describe_lookalike

BYTE_ORDER_MARK = "\ufeff"
MAX_NAMED_LINES = 10  # line numbers that an error for an ambiguous text names
MAX_COUNTED_PLACES = 1_000  # of an ambiguous text; of more the error says "or more"
MAX_REPLACEMENTS = 100_000  # in one file by one edit, since each place takes memory


@dataclass(frozen=True, slots=True)
class TextEdit:
    """Replaces `old` by `new` at its only place, or `everywhere`. `number` is the edit's position in a plan, from 1."""

    old: str
    new: str
    everywhere: bool = False
    number: int | None = None


@dataclass(frozen=True, slots=True)
class EditResult:
    """A file's content after its edits, with where the secrets of before stand in it; `notes` say what was changed
    beyond what was asked."""

    masked: MaskedFile
    replacements: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Match:
    """Where an edit's text begins, and what stands there before and after; `is_converted`: from LF to CRLF."""

    edit: TextEdit
    starts: list[int]
    old: str
    new: str
    is_converted: bool = False

    @property
    def growth(self) -> int:
        """How much longer the file gets, in bytes, over all places."""
        return len(self.starts) * (len(self.new.encode()) - len(self.old.encode()))


def apply_text_edits(path: str, before: MaskedFile, edits: Sequence[TextEdit], max_bytes: int) -> EditResult:
    """Return the file after its edits. Each edit matches the file itself, never the result of another edit.

    `max_bytes`: how large the file may become. Raises BadArguments, BinaryFile, MatchNone, MatchMany, OverlappingEdits,
    NoChange or TooLarge; then none of the edits is applied.
    """
    check_editable(path, before.content)
    mark, text = _split_mark(before.matchable_text())
    crlf = ends_in_crlf(text)
    matched = [(edit, _match_edit(path, text, edit, crlf)) for edit in edits]
    matches = [match for _, match in matched if match is not None]
    for edit, match in matched:
        if match is None:
            raise _no_match_error(path, text, edit, matches)
    if (size := len(before.content) + sum(match.growth for match in matches)) > max_bytes:
        raise TooLarge(
            f"{shorten_path(path)} would have {size:,} bytes; at most {max_bytes:,} are allowed.", "Write less at once."
        )
    after = _replace_matches(path, text, matches)
    if after == text:
        raise NoChange(f"Together these edits change nothing in {shorten_path(path)}.", "Leave them out.")
    is_converted = any(match.is_converted for match in matches)
    notes = (f"line ends in {shorten_path(path)} are CRLF, so those of the new text are too",) if is_converted else ()
    return EditResult(before.restore(mark + after), sum(len(match.starts) for match in matches), notes)


def overwrite_text(path: str, before: MaskedFile | None, text: str, max_bytes: int) -> EditResult:
    """Return the file after its whole text is replaced. A byte order mark stays; so do line ends that are all CRLF.

    A text that the file holds already is refused, but not where it holds a secret: else one could be guessed.
    """
    check_text(text, "content")
    mark, notes, converted = "", [], text
    if before is not None:
        check_editable(path, before.content)
        mark, old = _split_mark(before.content.decode())
        if ends_in_crlf(old) and "\n" in text and "\r" not in text:
            converted = to_crlf(text)
            notes.append(f"line ends in {shorten_path(path)} are CRLF, so those of the new text are too")
        if mark and not text.startswith(BYTE_ORDER_MARK):
            notes.append(f"the byte order mark of {shorten_path(path)} was kept")
        else:
            mark = ""
    after = (mark + converted).encode()
    if len(after) > max_bytes:
        raise TooLarge(
            f"{shorten_path(path)} would have {len(after):,} bytes; at most {max_bytes:,} are allowed.",
            "Write less at once.",
        )
    if before is not None and after == before.content and not before.spans:
        raise NoChange(f"{shorten_path(path)} holds just that already.", "Nothing needs to be written.")
    return EditResult(MaskedFile(after), 1, tuple(notes))


def check_editable(path: str, content: bytes) -> None:
    """Raise BinaryFile unless the content is text in UTF-8."""
    if is_binary(content):
        raise BinaryFile(f"{shorten_path(path)} is not text ({len(content):,} bytes).", "Only text files are edited.")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise BinaryFile(
            f"{shorten_path(path)} is not UTF-8: byte {error.start:,} belongs to another encoding.",
            "Only UTF-8 is edited, so that no byte of another encoding is lost.",
        ) from None


def _split_mark(text: str) -> tuple[str, str]:
    """Return the byte order mark or an empty text, and the text after it."""
    return (BYTE_ORDER_MARK, text[1:]) if text.startswith(BYTE_ORDER_MARK) else ("", text)


def check_text(text: str, name: str) -> None:
    """Raise BadArguments for a text that no text file can hold."""
    if "\0" in text:
        raise BadArguments(f"{name} holds a NUL character.", "A text file has none.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadArguments(f"{name} holds a lone surrogate, which UTF-8 can't encode.", "Leave it out.") from None


def ends_in_crlf(text: str) -> bool:
    """Return whether the text has line ends and all of them are CRLF."""
    return 0 < text.count("\r\n") == text.count("\n") == text.count("\r")


def to_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _match_edit(path: str, text: str, edit: TextEdit, crlf: bool) -> _Match | None:
    """Find an edit's text exactly; failing that, in a file that is all CRLF, with both texts converted from LF.

    In such a file, a new text with LF that replaces a part of a line is converted too, so that line ends don't mix.
    """
    where = f"edit {edit.number}: " if edit.number else ""
    if not edit.old:
        raise BadArguments(f"{where}old_string is empty.", "Name the text to replace; write_file fills a file.")
    check_text(edit.new, f"{where}new_string")
    found = _Match(edit, _find_places(path, text, edit.old, edit), edit.old, edit.new)
    if crlf and "\r" not in edit.old:
        if not found.starts and "\n" in edit.old:
            old = to_crlf(edit.old)
            found = _Match(edit, _find_places(path, text, old, edit), old, to_crlf(edit.new), "\n" in edit.new)
        elif "\n" not in edit.old and "\n" in edit.new and "\r" not in edit.new:
            found = _Match(edit, found.starts, edit.old, to_crlf(edit.new), is_converted=True)
    if found.old == found.new:
        raise NoChange(f"{where}old_string and new_string are the same.", "Leave it out, or say what is to change.")
    if len(found.starts) > 1 and not edit.everywhere:
        raise _ambiguous_match_error(path, text, found)
    return found if found.starts else None


def _find_places(path: str, text: str, old: str, edit: TextEdit) -> list[int]:
    """Return where `old` begins: without overlaps if all are replaced, else every place, up to MAX_COUNTED_PLACES.

    A place whose changed part would touch a secret is none: what is put beside a secret could make it a text that is
    shown.
    """
    if STAND_IN in old:
        return []  # no JSON text that stands for text has this character
    left, right = _changed_part(old, edit.new)
    if edit.everywhere and (count := text.count(old)) > MAX_REPLACEMENTS:
        raise TooLarge(
            f"old_string occurs {count:,} times in {shorten_path(path)}.",
            f"At most {MAX_REPLACEMENTS:,} are replaced at once.",
        )
    starts: list[int] = []
    step = len(old) if edit.everywhere else 1
    at = text.find(old)
    while at >= 0 and (edit.everywhere or len(starts) < MAX_COUNTED_PLACES):
        touched = text[max(0, at + left - 1) : at + left] + text[at + right : at + right + 1]
        if STAND_IN not in touched:
            starts.append(at)
        at = text.find(old, at + step)
    return starts


def _changed_part(old: str, new: str) -> tuple[int, int]:
    """Return from where to where `old` differs from `new`."""
    left, end, other_end = 0, len(old), len(new)
    while left < min(end, other_end) and old[left] == new[left]:
        left += 1
    while left < min(end, other_end) and old[end - 1] == new[other_end - 1]:
        end, other_end = end - 1, other_end - 1
    return left, end


def _replace_matches(path: str, text: str, matches: Sequence[_Match]) -> str:
    spans = [(start, start + len(match.old), match) for match in matches for start in match.starts]
    spans.sort(key=lambda span: span[:2])
    for (_, end, one), (start, _, other) in pairwise(spans):
        if start < end:
            raise OverlappingEdits(
                f"{_name_edit(one.edit)} and {_name_edit(other.edit)} meet"
                f" in line {_line_number(text, start)} "
                f"of {shorten_path(path)}.",
                "Join them into one edit; no edit of the plan holds.",
            )
    pieces: list[str] = []
    at = 0
    for start, end, match in spans:
        pieces += (text[at:start], match.new)
        at = end
    return "".join([*pieces, text[at:]])


def _no_match_error(path: str, text: str, edit: TextEdit, others: Sequence[_Match]) -> MatchNone:
    what = f"{_name_edit(edit)}: old_string" if edit.number else "old_string"
    problem = f"{what} is not in {shorten_path(path)}."
    if others:
        try:
            needed = edit.old in _replace_matches(path, text, others)
        except OverlappingEdits:
            needed = False
        if needed:
            hint = (
                "It needs what another edit of the plan makes, but all match the file as it is: join the two into one."
            )
            return MatchNone(problem, hint)
    if "\r\n" in edit.old and "\r" not in text:
        return MatchNone(problem, "It has CRLF line ends and the file has LF.")
    if STAND_IN not in edit.old and (described := describe_lookalike(text, edit.old)) is not None:
        return MatchNone(problem, f"{described} Write these characters, or replace a part without them.")
    if MASK in edit.old:
        return MatchNone(
            problem,
            f"{MASK} stands for a value that is not shown. Edit around it, by an old_string that leaves it out.",
        )
    return MatchNone(problem, "It has to be the file's own text, every space of it; read_file shows it.")


def _ambiguous_match_error(path: str, text: str, match: _Match) -> MatchMany:
    count = len(match.starts)
    lines = ", ".join(str(_line_number(text, start)) for start in match.starts[:MAX_NAMED_LINES])
    times = f"{count:,}{' or more' * (count == MAX_COUNTED_PLACES)} times"
    what = f"{_name_edit(match.edit)}: old_string" if match.edit.number else "old_string"
    return MatchMany(
        f"{what} occurs {times} in {shorten_path(path)}: line {lines}{', …' * (count > MAX_NAMED_LINES)}.",
        "Take in more of what is around the one you mean, or set replace_all.",
    )


def _name_edit(edit: TextEdit) -> str:
    return f"edit {edit.number}" if edit.number else "this edit"


def _line_number(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
