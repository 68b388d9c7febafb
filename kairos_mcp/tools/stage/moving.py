"""The tools delete_file and move_file, of runs that work in a stage: what they do is undone by leaving it there."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.errors import NotFound, NotRegularFile, StaleFile
from kairos_mcp.core.messages import JsonObject, ToolResult, canonical_json
from kairos_mcp.core.paths import shorten_path
from kairos_mcp.core.tool import Preview, Tool, ToolContext
from kairos_mcp.tools.files.atomic_write import make_folders, write_error
from kairos_mcp.tools.files.edit_tools import PATH, EditRules
from kairos_mcp.tools.files.safe_open import FOLDER
from kairos_mcp.tools.files.workspace import Workspace, open_error
from kairos_mcp.tools.stage.layers import ABSENT, read_state

DELETE_SPEC = BUILTIN["delete_file"].spec(
    "Delete a file, or a symbolic link, in this run's stage.",
    {"type": "object", "properties": {"path": PATH}, "required": ["path"], "additionalProperties": False},
    category="file_ops",
)
MOVE_SPEC = BUILTIN["move_file"].spec(
    "Move or rename a file in this run's stage.\nMissing folders are created; nothing is overwritten.",
    {
        "type": "object",
        "properties": {"path": PATH, "to": {"type": "string", "description": "The path that it then has"}},
        "required": ["path", "to"],
        "additionalProperties": False,
    },
    category="file_ops",
)


def moving_tools(rules: EditRules) -> list[Tool]:
    """Make delete_file and move_file."""
    workspace = rules.workspace

    def delete_file(arguments: JsonObject, _ctx: ToolContext) -> ToolResult:
        path = rules.find_writable(arguments["path"])
        with _open_folder(workspace, path) as folder:
            _check_file(folder, path)
            os.unlink(_name(path), dir_fd=folder)
        return ToolResult(f"Deleted {path}.")

    def move_file(arguments: JsonObject, _ctx: ToolContext) -> ToolResult:
        path, to = rules.find_writable(arguments["path"]), rules.find_writable(arguments["to"])
        rules.check_rename(path, to)
        with _open_folder(workspace, path) as old, _open_folder(workspace, to, make_missing=True) as new:
            _check_file(old, path)
            try:
                os.stat(_name(to), dir_fd=new, follow_symlinks=False)
            except FileNotFoundError:
                os.rename(_name(path), _name(to), src_dir_fd=old, dst_dir_fd=new)
            else:
                raise StaleFile(f"{shorten_path(to)} exists.", "Delete it first, or take another name.")
        return ToolResult(f"Moved {path} to {to}.")

    def preview(*names: str) -> Callable[[JsonObject, ToolContext], Preview]:
        def describe(arguments: JsonObject, _ctx: ToolContext) -> Preview:
            paths = [rules.find_writable(arguments[name]) for name in names]
            return Preview(" -> ".join(paths), {path: _hash(rules, path) for path in paths})

        return describe

    return [
        Tool(DELETE_SPEC, delete_file, examples=({"path": "old.py"},), preview=preview("path"), internal=True),
        Tool(
            MOVE_SPEC,
            move_file,
            examples=({"path": "a.py", "to": "src/a.py"},),
            preview=preview("path", "to"),
            internal=True,
        ),
    ]


def _hash(rules: EditRules, path: str) -> str | None:
    """Hash what stands at a path, however large it is; None where nothing does. Raises what opening it does."""
    try:
        state = read_state(rules.workspace, path)
    except OSError as error:
        raise open_error(error, path) from None
    return None if state == ABSENT else rules.hash_content(path, canonical_json(state.as_json()).encode())


def _name(path: str) -> str:
    return path.rpartition("/")[2]


@contextmanager
def _open_folder(workspace: Workspace, path: str, *, make_missing: bool = False) -> Iterator[int]:
    """Open the folder that a path lies in. Raises NotFound, PathDenied, and what writing there raises."""
    folder = path.rpartition("/")[0] or "."
    try:
        try:
            descriptor = workspace.open_fd(folder, FOLDER)
        except FileNotFoundError:
            if not make_missing:
                raise
            descriptor = make_folders(workspace, folder, [])
    except OSError as error:
        raise open_error(error, path) from None
    try:
        yield descriptor
    except OSError as error:
        raise write_error(error, path) from None
    finally:
        os.close(descriptor)


def _check_file(folder: int, path: str) -> None:
    try:
        mode = os.stat(_name(path), dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        raise NotFound(f"{shorten_path(path)} does not exist.", "list_files shows what there is.") from None
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise NotRegularFile(f"{shorten_path(path)} is not a file.", "Name the files in it, one by one.")
