"""Lines that match a pattern: search_files. RE2 in this process, over files that the opener opened."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kairos_mcp.core.counting import count_of
from kairos_mcp.core.env_files import is_env_file, redact_env_file
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.paths import plain_path, printable_name
from kairos_mcp.core.patterns import compile_glob, compile_line_pattern
from kairos_mcp.tools.files.listings import stop_at
from kairos_mcp.tools.files.matching import hits, preview
from kairos_mcp.tools.files.read_tools import SNIFF_BYTES
from kairos_mcp.tools.files.walk import OmittedEntries, walk
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.tool import Tool, ToolContext

RESULTS, RESULTS_MOST = 50, 1_000
FILE_BYTES = 4 << 20  # of one file; of a larger one the rest is left out and said
SEARCH_S = 30.0

SEARCH_SPEC = ToolSpec(
    "search_files",
    "Search the workspace's text files for a regular expression (RE2); returns matching lines as path:line: text.\n"
    "Leaves out .git, files ignored by .gitignore, and binary files. Start the pattern with (?i) to ignore case; "
    "backreferences and look-around are not supported.",
    {
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "Regular expression (RE2), matched line by line"},
            "path": {"type": "string", "description": 'Folder or file to search; default "."'},
            "glob": {"type": "string", "description": "Search only files that match, e.g. *.py or src/**/*.{ts,tsx}"},
            "max_results": {
                "type": "integer",
                "minimum": 1,
                "maximum": RESULTS_MOST,
                "description": f"Maximum number of lines to return; default {RESULTS}",
            },
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
    effect="read",
    category="search",
)


@dataclass(slots=True)
class _Search:
    """One search under way: what it found so far and what it left out."""

    pattern: Any
    most: int
    until: float
    lines: list[str] = field(default_factory=list)
    files: int = 0
    binary: int = 0
    large: list[str] = field(default_factory=list)
    left_out: OmittedEntries = field(default_factory=OmittedEntries)

    @property
    def full(self) -> bool:
        return len(self.lines) >= self.most

    def over(self) -> bool:
        self.left_out.late = self.left_out.late or time.monotonic() >= self.until
        return self.full or self.left_out.late


def search_tool(opener: Workspace) -> Tool:
    def search_files(arguments: JsonObject, around: ToolContext) -> ToolResult:
        path = plain_path(arguments.get("path", "."))
        fits = compile_glob(arguments["glob"]) if "glob" in arguments else _any
        most: int = arguments.get("max_results", RESULTS)
        hunt = _Search(
            compile_line_pattern(arguments["pattern"]), most, stop_at(around), left_out=OmittedEntries(around.shut)
        )
        for where in _files(opener, path, fits, hunt):
            if hunt.over():
                break
            _search(opener, where, hunt)
        return _told(path, hunt)

    return Tool(
        SEARCH_SPEC,
        search_files,
        timeout_s=SEARCH_S,
        examples=({"pattern": "def main", "glob": "*.py"}, {"pattern": "(?i)todo", "path": "src"}),
    )


def _any(_path: str) -> bool:
    return True


def _files(opener: Workspace, path: str, fits: Callable[[str], bool], hunt: _Search) -> Iterator[str]:
    if path != "." and not opener.is_folder(path):
        with opener.file(path):  # says what is wrong with a path that was named, where a walk only counts it
            pass
        yield path
        return
    skip = 0 if path == "." else len(path) + 1
    for where, entry in walk(opener, path, hunt.until, hunt.left_out):
        if entry.kind == "file" and fits(where[skip:]):
            yield where


def _search(opener: Workspace, path: str, hunt: _Search) -> None:
    try:
        content, size = opener.found(path, FILE_BYTES)
    except KairosError:
        hunt.left_out.unreadable += 1
        return
    if content.find(b"\0", 0, SNIFF_BYTES) >= 0:
        hunt.binary += 1
        return
    hunt.files += 1
    if is_env_file(path):  # before it is looked through: a pattern must not find out what a value is
        content = redact_env_file(content.decode("utf-8", "replace")).text.encode()
    if size > FILE_BYTES:
        hunt.large.append(path)
    name = None
    for hit in hits(content, hunt.pattern, hunt.over):
        name = name or hunt.left_out.shows(path)
        hunt.lines.append(f"{name}:{hit.number}: {preview(content, hit)}")
        if hunt.full:
            return


def _told(path: str, hunt: _Search) -> ToolResult:
    partial = hunt.left_out.late
    notes = []
    if partial:
        notes.append("partial: the time ran out before every file was searched; narrow path or glob")
    if hunt.full:
        notes.append(f"stopped at {hunt.most} lines; narrow the pattern, or raise max_results")
    notes += hunt.left_out.notes()
    left_out = hunt.left_out.words()
    if hunt.binary:
        left_out.append(f"{hunt.binary:,} binary")
    if hunt.large:
        left_out.append(f"all but the first {FILE_BYTES >> 20} MiB of {', '.join(map(printable_name, hunt.large[:3]))}")
    if left_out:
        notes.append(f"left out: {', '.join(left_out)}")
    told: JsonObject = {
        "path": path,
        "matches": len(hunt.lines),
        "files": hunt.files,
        "partial": partial,
        "stopped_at_most": hunt.full,
    }
    if notes:
        told["notes"] = notes
    text = "\n".join(hunt.lines) or f"No line matches; {count_of(hunt.files, 'file')} searched."
    return ToolResult(text + "".join(f"\n[{note}]" for note in notes), data=told)
