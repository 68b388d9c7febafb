"""The tool search_files: finds lines that match a pattern, with RE2 in this process, in the workspace's files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.masked_file import OVERLAP_BYTES, WINDOW_BYTES
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.paths import printable_name
from kairos_mcp.core.patterns import compile_glob, compile_line_pattern
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.text import count_of, is_binary
from kairos_mcp.core.tool import Tool, ToolContext
from kairos_mcp.tools.files.edit_tools import EditRules
from kairos_mcp.tools.files.listings import stop_time
from kairos_mcp.tools.files.matching import find_hits, preview_hit
from kairos_mcp.tools.files.walk import OmittedEntries, walk
from kairos_mcp.tools.files.workspace import Workspace

DEFAULT_RESULTS, MAX_RESULTS = 50, 1_000
FILE_BYTES = WINDOW_BYTES  # searched of one file; of a larger one the rest is left out, and a note says so
SEARCH_S = 30.0

SEARCH_SPEC = BUILTIN["search_files"].spec(
    "Search the workspace's text files for a regular expression, line by line; returns lines as path:line: text.\n"
    "Leaves out .git, files ignored by .gitignore, and binary files. RE2: (?i) ignores case; no look-around, no "
    "backreferences.",
    {
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "path": {"type": "string", "description": 'Folder or file; default "."'},
            "glob": {"type": "string", "description": "As *.py"},
            "max_results": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_RESULTS,
                "description": f"Lines; default {DEFAULT_RESULTS}",
            },
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
    category="search",
)


@dataclass(slots=True)
class _Search:
    """A running search: what it has found so far, and what it left out."""

    pattern: Any
    limit: int
    deadline: float
    lines: list[str] = field(default_factory=list)
    files: int = 0
    binary: int = 0
    large: list[str] = field(default_factory=list)
    omitted: OmittedEntries = field(default_factory=OmittedEntries)

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= self.limit

    def is_over(self) -> bool:
        self.omitted.timed_out = self.omitted.timed_out or time.monotonic() >= self.deadline
        return self.is_full or self.omitted.timed_out


def make_tools(rules: EditRules) -> list[Tool]:
    """Make the tool search_files. Patterns are matched with masked texts, so none finds out a value."""
    workspace, redactor = rules.workspace, rules.redactor

    def search_files(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        path = workspace.find_spelling(arguments.get("path", "."))
        matches = compile_glob(arguments["glob"]) if "glob" in arguments else _matches_any
        limit: int = arguments.get("max_results", DEFAULT_RESULTS)
        search = _Search(
            compile_line_pattern(arguments["pattern"]), limit, stop_time(ctx), omitted=OmittedEntries(ctx.is_hidden)
        )
        for where in _candidate_files(workspace, path, matches, search):
            if search.is_over():
                break
            _search_file(workspace, where, search, redactor)
        return _search_result(path, search)

    examples = {"pattern": "def main", "glob": "*.py"}, {"pattern": "(?i)todo", "path": "src"}
    return [Tool(SEARCH_SPEC, search_files, timeout_s=SEARCH_S, masks_content=True, examples=examples)]


def _matches_any(_path: str) -> bool:
    return True


def _candidate_files(workspace: Workspace, path: str, matches: Callable[[str], bool], search: _Search) -> Iterator[str]:
    if path != "." and not workspace.is_folder(path):
        with workspace.open_file(
            path, is_hidden=search.omitted.is_hidden
        ):  # raises what is wrong with the path; a walk would only count it
            pass
        yield path
        return
    skip = 0 if path == "." else len(path) + 1
    for where, entry in walk(workspace, path, search.deadline, search.omitted):
        if entry.kind == "file" and matches(where[skip:]):
            yield where


def _search_file(workspace: Workspace, path: str, search: _Search, redactor: Redactor) -> None:
    try:
        content, size = workspace.read_start(path, FILE_BYTES + OVERLAP_BYTES, search.omitted.is_hidden)
    except KairosError:
        search.omitted.unreadable += 1
        return
    if is_binary(content):
        search.binary += 1
        return
    search.files += 1
    content = redactor.mask_file(path, content, search.is_over).masked_part(0, FILE_BYTES)
    if size > FILE_BYTES:
        search.large.append(path)
    name = None
    for hit in find_hits(content, search.pattern, search.is_over):
        name = name or search.omitted.format_path(path)
        search.lines.append(f"{name}:{hit.number}: {preview_hit(content, hit)}")
        if search.is_full:
            return


def _search_result(path: str, search: _Search) -> ToolResult:
    partial = search.omitted.timed_out
    notes = []
    if partial:
        notes.append("partial: the time ran out before every file was searched; narrow path or glob")
    if search.is_full:
        notes.append(f"stopped at {search.limit} lines; narrow the pattern, or raise max_results")
    notes += search.omitted.notes()
    omitted = search.omitted.format_omissions()
    if search.binary:
        omitted.append(f"{search.binary:,} binary")
    if search.large:
        omitted.append(
            f"all but the first {FILE_BYTES >> 20} MiB of {', '.join(map(printable_name, search.large[:3]))}"
        )
    if omitted:
        notes.append(f"left out: {', '.join(omitted)}")
    data: JsonObject = {
        "path": path,
        "matches": len(search.lines),
        "files": search.files,
        "partial": partial,
        "stopped_at_most": search.is_full,
    }
    if notes:
        data["notes"] = notes
    text = "\n".join(search.lines) or f"No line matches; {count_of(search.files, 'file')} searched."
    return ToolResult(text + "".join(f"\n[{note}]" for note in notes), data=data)
