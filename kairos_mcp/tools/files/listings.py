"""What the workspace holds, by name: list_files and file_tree."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.paths import plain_path, printable_name
from kairos_mcp.core.patterns import compile_glob
from kairos_mcp.tools.files.walk import FOLDER_ENTRIES, IgnoreRules, OmittedEntries, joined, listed, rules_above, walk
from kairos_mcp.tools.files.workspace import FolderEntry, Workspace
from kairos_mcp.tools.tool import Tool, ToolContext

LISTING_S = 30.0
LIST_LIMIT, LIST_MOST = 200, 5_000
TREE_DEPTH, TREE_DEPTH_MOST = 3, 16
TREE_ENTRIES = 500  # in one tree
TREE_FOLDER_ENTRIES = 60  # in one folder of a tree, so that one large folder doesn't hide the others
MARGIN = 0.1  # of the time that is left: kept for writing down what was found

LIST_SPEC = ToolSpec(
    "list_files",
    "List the entries of a workspace folder; with a glob, all files below it that match.\n"
    "Folder names end with /, links (never followed) with @. A glob without / matches names at any depth (*.py); "
    "one with / is relative to path (src/**/*.ts). With a glob, .git and files ignored by .gitignore are left out.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": 'Folder relative to the workspace; default "."'},
            "glob": {"type": "string", "description": "List only files that match, e.g. *.py or src/**/*.{ts,tsx}"},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": LIST_MOST,
                "description": f"Maximum number of names to return; default {LIST_LIMIT}",
            },
        },
        "required": [],
        "additionalProperties": False,
    },
    effect="read",
    category="file_ops",
)

TREE_SPEC = ToolSpec(
    "file_tree",
    "Show the folders and files below a folder as an indented tree, nearest levels first.\n"
    "Leaves out .git and files ignored by .gitignore. Says where the tree was cut.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": 'Folder relative to the workspace; default "."'},
            "depth": {
                "type": "integer",
                "minimum": 1,
                "maximum": TREE_DEPTH_MOST,
                "description": f"Number of levels to show; default {TREE_DEPTH}",
            },
        },
        "required": [],
        "additionalProperties": False,
    },
    effect="read",
    category="file_ops",
)


def listing_tools(opener: Workspace) -> list[Tool]:
    def list_files(arguments: JsonObject, around: ToolContext) -> ToolResult:
        path = plain_path(arguments.get("path", "."))
        limit: int = arguments.get("limit", LIST_LIMIT)
        if "glob" in arguments:
            return _below(opener, path, arguments["glob"], limit, around)
        return _in_folder(opener, path, limit, OmittedEntries(around.shut))

    def file_tree(arguments: JsonObject, around: ToolContext) -> ToolResult:
        path = plain_path(arguments.get("path", "."))
        return _tree(opener, path, arguments.get("depth", TREE_DEPTH), around)

    return [
        Tool(LIST_SPEC, list_files, timeout_s=LISTING_S, examples=({}, {"path": "src", "glob": "**/*.py"})),
        Tool(TREE_SPEC, file_tree, timeout_s=LISTING_S, examples=({}, {"path": "docs", "depth": 2})),
    ]


def stop_at(around: ToolContext) -> float:
    """When to stop looking and tell what was found, so that the telling is still within the deadline."""
    now = time.monotonic()
    return around.until - min(0.5, max(0.0, around.until - now) * MARGIN)


def _in_folder(opener: Workspace, path: str, limit: int, left_out: OmittedEntries) -> ToolResult:
    found, more = opener.entries(path, FOLDER_ENTRIES)
    entries = [entry for entry in found if not left_out.keeps(joined(path, entry.name))]
    lines = [joined(printable_name(path), _marked(entry, left_out)) for entry in entries[:limit]]
    notes = left_out.notes()
    if len(entries) > limit or more:
        total = f"{len(entries):,}" + ("+" if more else "")
        notes.append(f"{len(lines):,} of {total} entries shown: raise limit or give a glob")
    if words := left_out.words():
        notes.append(f"left out: {', '.join(words)}")
    told = {"path": path, "shown": len(lines), "total": None if more else len(entries), "partial": more}
    return _told(lines, notes, told, empty="This folder is empty.")


def _below(opener: Workspace, path: str, pattern: str, limit: int, around: ToolContext) -> ToolResult:
    fits, until = compile_glob(pattern), stop_at(around)
    left_out, lines, total = OmittedEntries(around.shut), list[str](), 0
    skip = 0 if path == "." else len(path) + 1
    for where, entry in walk(opener, path, until, left_out):
        if not fits(where[skip:]):
            continue
        total += 1
        if total <= limit:
            lines.append(left_out.shows(where) + ("@" if entry.kind == "link" else ""))
    notes = left_out.notes()
    if total > limit:
        notes.append(f"{len(lines):,} of {total:,} shown: raise limit or narrow the glob")
    if left_out.late:
        notes.append("the time ran out before every folder was seen: narrow path")
    if words := left_out.words():
        notes.append(f"left out: {', '.join(words)}")
    told = {"path": path, "shown": len(lines), "total": total, "partial": left_out.late}
    return _told(lines, notes, told, empty="No file fits.")


@dataclass(slots=True)
class _TreeFolder:
    """A folder of the tree: its entries, the folders among them, and how many entries were cut."""

    entries: tuple[FolderEntry, ...] = ()
    inner: dict[str, _TreeFolder] = field(default_factory=dict)
    cut: int = 0
    opened: bool = False


def _tree(opener: Workspace, path: str, depth: int, around: ToolContext) -> ToolResult:
    until, left_out, top, room = stop_at(around), OmittedEntries(around.shut), _TreeFolder(), TREE_ENTRIES
    level: list[tuple[str, _TreeFolder, IgnoreRules]] = [(path, top, rules_above(opener, path))]
    for _ in range(depth):
        below: list[tuple[str, _TreeFolder, IgnoreRules]] = []
        for where, branch, rules in level:
            if room <= 0 or time.monotonic() >= until:
                left_out.late = left_out.late or room > 0
                continue
            try:
                folder = listed(opener, where, rules, left_out)
            except KairosError:
                if branch is top:
                    raise
                left_out.unreadable += 1
                continue
            branch.entries = folder.entries[: min(room, TREE_FOLDER_ENTRIES)]
            branch.cut, branch.opened = len(folder.entries) - len(branch.entries), True
            room -= len(branch.entries)
            for entry in branch.entries:
                if entry.kind == "folder":
                    branch.inner[entry.name] = _TreeFolder()
                    below.append((joined(where, entry.name), branch.inner[entry.name], folder.rules))
        level = below
    return _drawn(path, top, left_out, full=room <= 0)


def _drawn(path: str, top: _TreeFolder, left_out: OmittedEntries, *, full: bool) -> ToolResult:
    lines: list[str] = []
    _draw(top, "", lines, left_out)
    notes = [*left_out.notes(), f"left out: {', '.join(['.git', *left_out.words()])}"]
    if full:
        notes.append(f"cut at {TREE_ENTRIES} entries: give a path below")
    if left_out.late:
        notes.append("the time ran out before every folder was seen: give a path below")
    notes.append("… marks a folder that was not opened")
    told = {"path": path, "shown": len(lines), "partial": full or left_out.late}
    return _told([f"{printable_name(path)}/", *lines], notes, told, empty="")


def _draw(branch: _TreeFolder, indent: str, lines: list[str], left_out: OmittedEntries) -> None:
    indent += "  "
    for entry in branch.entries:
        inner = branch.inner.get(entry.name)
        closed = inner is not None and not inner.opened
        lines.append(f"{indent}{_marked(entry, left_out)}{' …' if closed else ''}")
        if inner is not None:
            _draw(inner, indent, lines, left_out)
    if branch.cut:
        lines.append(f"{indent}… {branch.cut:,} more: list_files shows them")


def _marked(entry: FolderEntry, left_out: OmittedEntries) -> str:
    return left_out.shows(entry.name) + {"folder": "/", "link": "@"}.get(entry.kind, "")


def _told(lines: list[str], notes: list[str], told: JsonObject, *, empty: str) -> ToolResult:
    if notes:
        told["notes"] = notes
    text = "\n".join(lines) if lines else empty
    return ToolResult(text + "".join(f"\n[{note}]" for note in notes), data=told)
