"""The tools list_files and file_tree: they show what the workspace holds, by name."""

from __future__ import annotations

import time
from dataclasses import field

from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.paths import printable_name
from kairos_mcp.core.patterns import compile_glob
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.tool import Tool, ToolContext
from kairos_mcp.tools.files.edit_tools import EditRules
from kairos_mcp.tools.files.walk import (
    FOLDER_ENTRIES,
    IgnoreRules,
    OmittedEntries,
    ignore_rules_at,
    join_path,
    list_folder,
    walk,
)
from kairos_mcp.tools.files.workspace import FolderEntry, Workspace

LISTING_S = 30.0
DEFAULT_LISTED, MAX_LISTED = 200, 5_000
DEFAULT_TREE_DEPTH, MAX_TREE_DEPTH = 3, 16
TREE_ENTRIES = 500  # in one tree
TREE_FOLDER_ENTRIES = 60  # in one folder of a tree, so that one large folder doesn't hide the others
RESULT_SHARE = 0.1  # of the time that is left, kept for writing the result

LIST_SPEC = BUILTIN["list_files"].spec(
    "List the entries of a workspace folder; with a glob, all files below it that match.\n"
    "Folder names end with /, links (never followed) with @. A glob without / matches names at any depth; with a glob, "
    ".git and files ignored by .gitignore are left out.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": 'Default "."'},
            "glob": {"type": "string", "description": "As *.py or src/**/*.{ts,tsx}"},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_LISTED,
                "description": f"Default {DEFAULT_LISTED}",
            },
        },
        "additionalProperties": False,
    },
    category="file_ops",
)

TREE_SPEC = BUILTIN["file_tree"].spec(
    "Show the folders and files below a folder as an indented tree, nearest levels first.\n"
    "Leaves out .git and files ignored by .gitignore.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": 'Default "."'},
            "depth": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_TREE_DEPTH,
                "description": f"Default {DEFAULT_TREE_DEPTH}",
            },
        },
        "additionalProperties": False,
    },
    category="file_ops",
)


def make_tools(rules: EditRules) -> list[Tool]:
    """Make list_files and file_tree."""
    workspace = rules.workspace

    def list_files(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        path = workspace.find_spelling(arguments.get("path", "."))
        limit: int = arguments.get("limit", DEFAULT_LISTED)
        if "glob" in arguments:
            return _list_matching(workspace, path, arguments["glob"], limit, ctx)
        return _list_folder(workspace, path, limit, OmittedEntries(ctx.is_hidden))

    def file_tree(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        path = workspace.find_spelling(arguments.get("path", "."))
        return _build_tree(workspace, path, arguments.get("depth", DEFAULT_TREE_DEPTH), ctx)

    return [
        Tool(LIST_SPEC, list_files, timeout_s=LISTING_S, examples=({}, {"path": "src", "glob": "**/*.py"})),
        Tool(TREE_SPEC, file_tree, timeout_s=LISTING_S, examples=({}, {"path": "docs", "depth": 2})),
    ]


def stop_time(ctx: ToolContext) -> float:
    """Return when a search must stop, so that its result is written before the deadline."""
    now = time.monotonic()
    return ctx.deadline - min(0.5, max(0.0, ctx.deadline - now) * RESULT_SHARE)


def _list_folder(workspace: Workspace, path: str, limit: int, omitted: OmittedEntries) -> ToolResult:
    found, more = workspace.entries(path, FOLDER_ENTRIES)
    entries = [entry for entry in found if not omitted.hides(join_path(path, entry.name))]
    lines = [join_path(printable_name(path), _format_entry(entry, omitted)) for entry in entries[:limit]]
    notes = omitted.notes()
    if len(entries) > limit or more:
        total = f"{len(entries):,}" + ("+" if more else "")
        notes.append(f"{len(lines):,} of {total} entries shown: raise limit or give a glob")
    if words := omitted.format_omissions():
        notes.append(f"left out: {', '.join(words)}")
    data = {"path": path, "shown": len(lines), "total": None if more else len(entries), "partial": more}
    return _listing_result(lines, notes, data, empty="This folder is empty.")


def _list_matching(workspace: Workspace, path: str, pattern: str, limit: int, ctx: ToolContext) -> ToolResult:
    matches, deadline = compile_glob(pattern), stop_time(ctx)
    omitted, lines, total = OmittedEntries(ctx.is_hidden), list[str](), 0
    skip = 0 if path == "." else len(path) + 1
    for where, entry in walk(workspace, path, deadline, omitted):
        if not matches(where[skip:]):
            continue
        total += 1
        if total <= limit:
            lines.append(omitted.format_path(where) + ("@" if entry.kind == "link" else ""))
    notes = omitted.notes()
    if total > limit:
        notes.append(f"{len(lines):,} of {total:,} shown: raise limit or narrow the glob")
    if omitted.timed_out:
        notes.append("the time ran out before every folder was seen: narrow path")
    if words := omitted.format_omissions():
        notes.append(f"left out: {', '.join(words)}")
    data = {"path": path, "shown": len(lines), "total": total, "partial": omitted.timed_out}
    return _listing_result(lines, notes, data, empty="No file fits.")


@dataclass(slots=True)
class _TreeFolder:
    """A folder of the tree: its entries, the folders among them, and how many entries were left out."""

    entries: tuple[FolderEntry, ...] = ()
    subfolders: dict[str, _TreeFolder] = field(default_factory=dict)
    cut_count: int = 0
    is_opened: bool = False


def _build_tree(workspace: Workspace, path: str, depth: int, ctx: ToolContext) -> ToolResult:
    deadline, omitted, top, remaining = stop_time(ctx), OmittedEntries(ctx.is_hidden), _TreeFolder(), TREE_ENTRIES
    level: list[tuple[str, _TreeFolder, IgnoreRules]] = [(path, top, ignore_rules_at(workspace, path))]
    for _ in range(depth):
        next_level: list[tuple[str, _TreeFolder, IgnoreRules]] = []
        for where, branch, rules in level:
            if remaining <= 0 or time.monotonic() >= deadline:
                omitted.timed_out = omitted.timed_out or remaining > 0
                continue
            try:
                folder = list_folder(workspace, where, rules, omitted)
            except KairosError:
                if branch is top:
                    raise
                omitted.unreadable += 1
                continue
            branch.entries = folder.entries[: min(remaining, TREE_FOLDER_ENTRIES)]
            branch.cut_count, branch.is_opened = len(folder.entries) - len(branch.entries), True
            remaining -= len(branch.entries)
            for entry in branch.entries:
                if entry.kind == "folder":
                    branch.subfolders[entry.name] = _TreeFolder()
                    next_level.append((join_path(where, entry.name), branch.subfolders[entry.name], folder.rules))
        level = next_level
    return _tree_result(path, top, omitted, full=remaining <= 0)


def _tree_result(path: str, top: _TreeFolder, omitted: OmittedEntries, *, full: bool) -> ToolResult:
    lines: list[str] = []
    _draw_folder(top, "", lines, omitted)
    notes = [*omitted.notes(), f"left out: {', '.join(['.git', *omitted.format_omissions()])}"]
    if full:
        notes.append(f"cut at {TREE_ENTRIES} entries: give a path below")
    if omitted.timed_out:
        notes.append("the time ran out before every folder was seen: give a path below")
    notes.append("… marks a folder that was not opened")
    data = {"path": path, "shown": len(lines), "partial": full or omitted.timed_out}
    return _listing_result([f"{printable_name(path)}/", *lines], notes, data, empty="")


def _draw_folder(branch: _TreeFolder, indent: str, lines: list[str], omitted: OmittedEntries) -> None:
    indent += "  "
    for entry in branch.entries:
        subfolder = branch.subfolders.get(entry.name)
        is_closed = subfolder is not None and not subfolder.is_opened
        lines.append(f"{indent}{_format_entry(entry, omitted)}{' …' if is_closed else ''}")
        if subfolder is not None:
            _draw_folder(subfolder, indent, lines, omitted)
    if branch.cut_count:
        lines.append(f"{indent}… {branch.cut_count:,} more: list_files shows them")


def _format_entry(entry: FolderEntry, omitted: OmittedEntries) -> str:
    return omitted.format_path(entry.name) + {"folder": "/", "link": "@"}.get(entry.kind, "")


def _listing_result(lines: list[str], notes: list[str], data: JsonObject, *, empty: str) -> ToolResult:
    if notes:
        data["notes"] = notes
    text = "\n".join(lines) if lines else empty
    return ToolResult(text + "".join(f"\n[{note}]" for note in notes), data=data)
