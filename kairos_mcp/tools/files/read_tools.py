"""The tool read_file. A range of lines is clamped to the file; the result says whatever was cut or clamped.

All that is shown is cut from the masked text of the whole file; of a file that is larger than a window of
masked_file.py, from the masked windows that the lines lie in.
"""

from __future__ import annotations

import time

from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.env_files import is_env_file
from kairos_mcp.core.errors import BadArguments, BinaryFile, TooLarge
from kairos_mcp.core.masked_file import OVERLAP_BYTES, WINDOW_BYTES, MaskedFile
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.paths import shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.secret_files import is_table, names_secret_column
from kairos_mcp.core.text import count_of, is_binary
from kairos_mcp.core.tool import Tool, ToolContext
from kairos_mcp.tools.files.content_hash import HashContent
from kairos_mcp.tools.files.edit_tools import EditRules
from kairos_mcp.tools.files.listings import stop_time
from kairos_mcp.tools.files.workspace import OpenedFile, Workspace

SCAN_BYTES = 256 << 20  # how much of a large file is read to find the line that was asked for
SCAN_STEP = 1 << 20
BOM = b"\xef\xbb\xbf"  # the byte order mark, which is not part of the text

READ_SPEC = BUILTIN["read_file"].spec(
    "Read a text file of the workspace, or a range of its lines (from 1, both ends included).\n"
    "Returns plain text. A range that exceeds the file is clamped.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Relative to the workspace"},
            "start_line": {"type": "integer", "description": "Default 1"},
            "end_line": {"type": "integer", "description": "Default: the last"},
            "line_numbers": {"type": "boolean", "description": "Show them"},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
    category="file_ops",
)


@dataclass(frozen=True, slots=True)
class LineRange:
    """The lines to show: `first` to `last`, none if both are 0. `clamped` says how that differs from what was asked."""

    first: int
    last: int
    clamped: str | None


_ReadText = tuple[bytes, JsonObject, list[str]]  # what is shown of a file, the result's data, and notes


def make_tools(rules: EditRules) -> list[Tool]:
    """Make the tool read_file for a workspace."""
    return [reading_tool(rules.workspace, rules.max_bytes, rules.redactor, rules.hash_content)]


def reading_tool(workspace: Workspace, read_bytes: int, redactor: Redactor, hash_content: HashContent) -> Tool:
    """Make the tool read_file; `read_bytes` is how much of one file a call shows."""

    def read_file(arguments: JsonObject, ctx: ToolContext, *, at_once: bool = False) -> ToolResult:
        start: int | None = arguments.get("start_line")
        end: int | None = arguments.get("end_line")
        if start is not None and end is not None and start > end:
            raise BadArguments(f"start_line {start} is after end_line {end}.", "Both ends are included.")
        numbered = bool(arguments.get("line_numbers"))
        if at_once and not arguments["path"].isascii():
            raise BlockingIOError  # its folder may have to be read
        path = workspace.find_spelling(arguments["path"])
        with workspace.open_file(path, at_once=at_once, is_hidden=ctx.is_hidden) as opened:
            head = opened.read(min(opened.size, read_bytes))
            _check_text(opened, head)
            is_table_of_secrets = is_table(opened.path) and names_secret_column(head)
            if (is_env_file(opened.path) or is_table_of_secrets) and opened.size > read_bytes:
                raise TooLarge(
                    f"{shorten_path(opened.path)} is too large for its values to be hidden.", "Read another file."
                )
            if opened.size > read_bytes:
                body, data, notes = _read_part(opened, head, start, end, stop_time(ctx), redactor)
            else:
                masked = redactor.mask_file(opened.path, head)
                body, data, notes = _read_range(opened.path, masked, start, end)
                data["sha256"] = hash_content(opened.path, head)
            return _text_result(body, data, notes, read_bytes if numbered else None)

    def read_at_once(arguments: JsonObject, ctx: ToolContext) -> ToolResult | None:
        try:
            return read_file(arguments, ctx, at_once=True)
        except BlockingIOError:
            return None

    examples = {"path": "README.md"}, {"path": "a.py", "start_line": 40}
    at_once = read_at_once if workspace.at_once else None
    return Tool(READ_SPEC, read_file, examples=examples, at_once=at_once, masks_content=True)


def _check_text(opened: OpenedFile, content: bytes) -> None:
    if is_binary(content):
        raise BinaryFile(f"{shorten_path(opened.path)} is not text ({opened.size:,} bytes).", "Read another file.")


def clamp(start: int | None, end: int | None, lines: int) -> LineRange:
    """Clamp a requested range to a file of `lines` lines."""
    first = 1 if start is None else start
    last = lines if end is None else end
    if lines == 0:
        lines_asked = start is not None or end is not None
        return LineRange(0, 0, "the file is empty" if lines_asked else None)
    inside = min(max(first, 1), lines), min(max(last, 1), lines)
    if inside == (first, last):
        return LineRange(first, last, None)
    return LineRange(*inside, f"lines {first}-{last} were asked for, {inside[0]}-{inside[1]} of {lines} are there")


def _read_range(path: str, masked: MaskedFile, start: int | None, end: int | None) -> _ReadText:
    content = masked.masked_content
    lines = content.count(b"\n") + (0 if content.endswith(b"\n") or not content else 1)
    lines_asked = clamp(start, end, lines)
    body = content.removeprefix(BOM)
    if lines_asked.last < lines or lines_asked.first > 1:
        ended = lines_asked.last < lines or content.endswith(b"\n")
        body = b"\n".join(body.split(b"\n")[lines_asked.first - 1 : lines_asked.last]) + b"\n" * ended
    data: JsonObject = {
        "path": path,
        "lines": lines,
        "start_line": lines_asked.first,
        "end_line": lines_asked.last,
        "bytes": len(masked.content),
        "sha256": None,
    }
    if lines_asked.clamped:
        data["clamped"] = lines_asked.clamped
    notes = [lines_asked.clamped] if lines_asked.clamped and lines else []
    if masked.spans:
        data["masked"] = count = len(masked.spans)
        notes.append(f"{count_of(count, 'value')} of {shorten_path(path)} {'is' if count == 1 else 'are'} not shown")
    return body, data, notes


def _read_part(
    opened: OpenedFile,
    head: bytes,
    start: int | None,
    end: int | None,
    deadline: float,
    redactor: Redactor,
) -> _ReadText:
    """Read lines of a file that is larger than what one call reads; its number of lines stays unknown."""
    offset, line = _seek_line(opened, start, deadline) if start is not None and start > 1 else (0, 1)
    body = opened.read(len(head), offset) if offset else head
    _check_text(opened, body)
    cut_in_line = b"\n" not in body and offset + len(body) < opened.size
    if not cut_in_line and offset + len(body) < opened.size:
        body = body[: body.rfind(b"\n") + 1]
    body = read_masked(opened, offset, offset + len(body), redactor)
    rows = body.split(b"\n")
    rows = rows[:-1] if body.endswith(b"\n") else rows
    if end is not None and 0 < end - line + 1 < len(rows):
        rows, cut_in_line = rows[: end - line + 1], False
    last = line + len(rows) - 1
    notes = [f"{opened.size:,} bytes; a call reads {len(head):,}: lines {line}-{last} are shown"]
    if cut_in_line:
        notes.append(f"line {line} is longer than that and shown in part")
    if start is not None and line != max(start, 1):
        notes.append(f"line {start} was asked for, {line} is the last")
    data: JsonObject = {
        "path": opened.path,
        "lines": None,
        "start_line": line,
        "end_line": last,
        "bytes": opened.size,
        "sha256": None,
        "clamped": "; ".join(notes),
    }
    return b"\n".join(rows).removeprefix(BOM if not offset else b""), data, notes


def read_masked(opened: OpenedFile, start: int, end: int, redactor: Redactor) -> bytes:
    """Return the masked text from byte `start` to `end`. The windows begin at the same places whatever is read."""
    pieces: list[bytes] = []
    for window in range(start // WINDOW_BYTES * WINDOW_BYTES, end, WINDOW_BYTES):
        first = max(0, window - OVERLAP_BYTES)
        content = opened.read(window + WINDOW_BYTES + OVERLAP_BYTES - first, first)
        masked = redactor.mask_file(opened.path, content)
        pieces.append(masked.masked_part(max(start, window) - first, min(end, window + WINDOW_BYTES) - first))
    return b"".join(pieces)


def _seek_line(opened: OpenedFile, number: int, deadline: float) -> tuple[int, int]:
    """Return where a line starts, and its number; of a file that has fewer lines, its last line."""
    offset, begins, line = 0, 0, 1
    while step := opened.read(SCAN_STEP, offset):
        ends = step.count(b"\n")
        if line + ends >= number:
            at = -1
            for _ in range(number - line):
                at = step.index(b"\n", at + 1)
            begins, line = offset + at + 1, number
            break
        if ends:
            begins, line = offset + step.rfind(b"\n") + 1, line + ends
        offset += len(step)
        if offset >= SCAN_BYTES or time.monotonic() >= deadline:
            far = f"line {line:,} is {offset:,} bytes in"
            raise TooLarge(
                f"{shorten_path(opened.path)} is too large to find line {number}: {far}.", "Ask for one before."
            )
    if begins == opened.size and line > 1:
        return _seek_line(opened, line - 1, deadline)  # the newline that ends the last line begins no further line
    return begins, line


def _number_lines(body: bytes, first: int, most: int) -> tuple[bytes, int]:
    """Return whole lines with their numbers, in at most `most` bytes but one line at least; and the last number.

    Of empty lines the numbers are nine times the text.
    """
    numbered, number, at = bytearray(), first, 0
    while at < len(body):
        newline = body.find(b"\n", at)
        end = len(body) if newline < 0 else newline + 1
        line = b"%d\t%b" % (number, body[at:end])
        if numbered and len(numbered) + len(line) > most:
            break
        numbered += line
        number, at = number + 1, end
    return bytes(numbered), number - 1


def _text_result(body: bytes, data: JsonObject, notes: list[str], numbered_bytes: int | None) -> ToolResult:
    """Make the result. `numbered_bytes`: how much is shown of numbered lines; None without numbers."""
    if numbered_bytes is not None and body:
        body, last = _number_lines(body, data["start_line"], numbered_bytes)
        if last < data["end_line"]:
            cut = (
                f"a call shows {numbered_bytes:,} bytes, numbers included: lines {data['start_line']}-{last} are shown"
            )
            data |= {"end_line": last, "clamped": "; ".join(filter(None, (data.get("clamped"), cut)))}
            notes = [*notes, cut]
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = body.decode("utf-8", "replace")
        notes = [*notes, "bytes that are not UTF-8 are shown as \ufffd"]
    if notes:
        data["notes"] = notes
    return ToolResult(text + "".join(f"\n[{note}]" for note in notes), data=data)
