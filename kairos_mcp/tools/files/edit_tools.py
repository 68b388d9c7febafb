"""The tools edit_file and write_file. A diff can be shown before; what is approved is made exactly as shown.

A file must still have the content that was shown for approval, and the hash that the argument `base` states, where
there is one. Without either, it must not change between this call's own read and its write; whether the model has
seen the current content then shows in whether `old_string` still matches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.errors import BadArguments, KairosError, NotFound, NotRegularFile, PathDenied, StaleFile
from kairos_mcp.core.masked_file import MaskedFile
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.paths import Scopes, plain_path, shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.secret_forms import MASK
from kairos_mcp.core.tool import Preview, ProbeResult, Tool, ToolContext, error_result
from kairos_mcp.tools.commands.workspace_lock import lock_out_programs
from kairos_mcp.tools.files.content_hash import HashContent
from kairos_mcp.tools.files.diff import unified_diff
from kairos_mcp.tools.files.edit import TextEdit, apply_text_edits, overwrite_text
from kairos_mcp.tools.files.safe_open import FOLDER
from kairos_mcp.tools.files.transaction import (
    FileChange,
    ReadContent,
    UnclearState,
    apply_changes,
    read_originals,
    recover,
)
from kairos_mcp.tools.files.workspace import Workspace

PATH = {"type": "string", "description": "File path relative to the workspace"}
EDIT_PROPERTIES: JsonObject = {
    "path": PATH,
    "old_string": {"type": "string", "description": "Exact text to replace, including whitespace; must occur once"},
    "new_string": {"type": "string", "description": "Replacement text, inserted literally"},
    "replace_all": {"type": "boolean", "description": "Replace every occurrence of old_string; default false"},
}
BASE: JsonObject = {
    "type": "object",
    "additionalProperties": {"type": ["string", "null"], "maxLength": 64},
    "description": "Hash of each file as read_file returned it, null for no file; if one differs, nothing is written",
}

EDIT_SPEC = BUILTIN["edit_file"].spec(
    "Replace text in a file.\n"
    "`old_string` must match exactly one place (include enough surrounding lines to make it unique), unless "
    "`replace_all` is true. Matching is literal. Returns a diff.",
    {
        "type": "object",
        "properties": EDIT_PROPERTIES | {"base": BASE},
        "required": ["path", "old_string", "new_string"],
        "additionalProperties": False,
    },
    category="file_ops",
)

WRITE_SPEC = BUILTIN["write_file"].spec(
    "Create a text file, or replace the whole content of one.\n"
    "Missing folders are created. To change part of a file, use edit_file. Returns a diff of a replaced file.",
    {
        "type": "object",
        "properties": {
            "path": PATH,
            "content": {"type": "string", "description": "Complete new content of the file"},
            "base": BASE,
        },
        "required": ["path", "content"],
        "additionalProperties": False,
    },
    category="file_ops",
)

ProposeChanges = Callable[[JsonObject, ToolContext, ReadContent], Sequence[FileChange]]
"""Returns what a call would change, given what the files hold; raises a subclass of KairosError."""


@dataclass(frozen=True, slots=True)
class EditRules:
    """What holds for every change of a file: the workspace, whose files no run may write, the largest file that is
    changed, what hides secrets from readers, and the hash by which contents are named."""

    workspace: Workspace
    scopes: Scopes
    max_bytes: int
    redactor: Redactor
    hash_content: HashContent

    def find_writable(self, path: str) -> str:
        """Return the plain path of a file that a run may write, as the disk spells it. Raises as
        `check_writable_path`."""
        return self.workspace.find_spelling(check_writable_path(path, self.scopes))

    def read_content(self, path: str) -> bytes | None:
        return self.workspace.read_whole(path, self.max_bytes)

    def propose_edits(self, path: str, read_content: ReadContent, edits: Sequence[TextEdit]) -> FileChange:
        """Return the change that these edits make. Raises NotFound, and what matching and checking the edits raise."""
        before = read_content(path)
        if before is None:
            raise NotFound(f"{shorten_path(path)} does not exist.", "write_file creates a file.")
        masked = self.redactor.mask_file(path, before)
        after = apply_text_edits(path, masked, edits, self.max_bytes)
        content = after.masked.content
        if not self.redactor.mask_file(path, content).covers(after.masked):
            message = f"After this edit, a value of {shorten_path(path)} that is not shown now would be shown."
            raise BadArguments(message, "Leave the name beside it as it is; nothing was changed.")
        self._check_marks(masked, content, path)
        hashes = (self.hash_content(path, before), self.hash_content(path, content))
        notes = (*after.notes, *self._note_names(path))
        return FileChange(path, before, content, hashes, after.replacements, notes, tuple(after.masked.spans))

    def propose_text(self, path: str, read_content: ReadContent, text: str) -> FileChange:
        """Return the change that gives a file this whole text. Raises what checking the text raises."""
        before = read_content(path)
        masked = None if before is None else self.redactor.mask_file(path, before)
        after = overwrite_text(path, masked, text, self.max_bytes)
        content = after.masked.content
        self._check_marks(masked, content, path)
        hashes = (self.hash_content(path, before), self.hash_content(path, content))
        notes = after.notes if before is None else (*after.notes, *self._note_names(path))
        return FileChange(path, before, content, hashes, 1, notes)

    def check_rename(self, path: str, to: str) -> None:
        """Raise BadArguments if the new name would show a value of the file that is not shown under the old one."""
        content = self.read_content(path) or b""
        mask = self.redactor.mask_file
        if not mask(to, content).covers(mask(path, content)):
            message = f"Under this name, a value of {shorten_path(path)} that is not shown now would be shown."
            raise BadArguments(message, "Keep the end of its name; nothing was changed.")

    def format_diffs(self, changes: Sequence[FileChange], *, hashes_last: bool = False) -> str:
        """Return the diffs of all changes; `hashes_last`: as a person who has to decide is shown them."""
        mask = self.redactor.mask_file
        return "\n".join(
            unified_diff(
                each.path,
                None if each.before is None else mask(each.path, each.before),
                mask(each.path, each.after),
                each.hashes,
                hashes_last=hashes_last,
                kept=each.kept,
            )
            for each in changes
        )

    def holds_secrets(self, change: FileChange) -> bool:
        """Whether a file holds secrets before or after a change: then the hash of what it would hold is not shown,
        since two plans could be found to make the same, and a secret so be guessed."""
        return any(self.redactor.mask_file(change.path, text or b"").spans for text in (change.before, change.after))

    def _note_names(self, path: str) -> tuple[str, ...]:
        """Say that a file has other names, which keep the old text: a change gives its own name a new file."""
        try:
            with self.workspace.open_file(path) as opened:
                others = os.fstat(opened.fd).st_nlink - 1
        except KairosError:
            return ()
        if others < 1:
            return ()
        what = "another name (a hard link), which keeps" if others == 1 else f"{others} other names, which keep"
        return (f"{shorten_path(path)} has {what} the old text",)

    def _check_marks(self, before: MaskedFile | None, after: bytes, path: str) -> None:
        """Raise BadArguments if the new text holds the mark that readers are shown in place of a hidden value: writing
        it would destroy the value."""
        mark = MASK.encode()
        if before is None or not before.spans or after.count(mark) <= before.content.count(mark):
            return
        message = f"The new text carries {MASK}, which stands for a value of {shorten_path(path)} that is not shown."
        raise BadArguments(message, "Edit around that value, by an old_string that leaves it out; nothing was changed.")


def make_tools(rules: EditRules) -> list[Tool]:
    """Make edit_file and write_file."""

    def edit_file(arguments: JsonObject, _ctx: ToolContext, read_content: ReadContent) -> Sequence[FileChange]:
        path = rules.find_writable(arguments["path"])
        edit = TextEdit(arguments["old_string"], arguments["new_string"], arguments.get("replace_all", False))
        return [rules.propose_edits(path, read_content, [edit])]

    def write_file(arguments: JsonObject, _ctx: ToolContext, read_content: ReadContent) -> Sequence[FileChange]:
        path = rules.find_writable(arguments["path"])
        return [rules.propose_text(path, read_content, arguments["content"])]

    an_edit = {"path": "src/main.py", "old_string": "timeout = 5\n", "new_string": "timeout = 30\n"}
    return [
        edit_tool(EDIT_SPEC, edit_file, rules, an_edit),
        edit_tool(WRITE_SPEC, write_file, rules, {"path": "notes/today.md", "content": "# Today\n"}),
    ]


def edit_tool(spec: ToolSpec, propose: ProposeChanges, rules: EditRules, example: JsonObject) -> Tool:
    """Make a tool whose calls are sets of changes, which are shown, made, and recovered after a crash in one way."""
    workspace, scopes = rules.workspace, rules.scopes

    def propose_changes(
        arguments: JsonObject, ctx: ToolContext, seen: dict[str, str | None] | None = None
    ) -> Sequence[FileChange]:
        """Propose the changes. `seen` is given the hash of each file that was looked at, None if it can't be read."""
        read = {plain_path(path): known for path, known in arguments.get("base", {}).items()}

        def read_content(path: str) -> bytes | None:
            if seen is not None:
                seen[path] = None
            content = ctx.drafts[path] if path in ctx.drafts else rules.read_content(path)
            hashed = rules.hash_content(path, content)
            if seen is not None:
                seen[path] = hashed
            _check_base(path, hashed, ctx.base_hashes, "shown")
            _check_base(path, hashed, read, "read")
            return content

        return propose(arguments, ctx, read_content)

    def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        changes = propose_changes(arguments, ctx)
        with exclude_programs(workspace, scopes, [change.path for change in changes], ctx):
            exchanged = apply_changes(workspace, changes, ctx)
        ctx.written.update({change.path: (change.before or b"", change.after) for change in changes})
        return _change_result(changes, rules, {} if exchanged else {"exchanged": False})

    def preview(arguments: JsonObject, ctx: ToolContext) -> Preview:
        seen: dict[str, str | None] = {}
        try:
            changes = propose_changes(arguments, ctx, seen)
        except KairosError as error:
            return Preview("", seen, failure=error)
        ctx.drafts.update({change.path: change.after for change in changes})
        hidden = any(change.brings_hidden for change in changes)
        notes = "".join(f"[{note}]\n" for change in changes for note in change.notes)
        return Preview(rules.format_diffs(changes, hashes_last=True) + notes, seen, hidden)

    def probe(arguments: JsonObject, ctx: ToolContext) -> ProbeResult:
        read_content = read_originals(ctx)
        if read_content is None:
            return ProbeResult("not_done")
        try:
            changes = propose(arguments, ctx, read_content)
            with exclude_programs(workspace, scopes, [change.path for change in changes], ctx):
                reverted = recover(workspace, changes, ctx)
        except (KairosError, UnclearState) as unknown:
            return ProbeResult("unclear", error_result(StaleFile(str(unknown), "A person has to look at these files.")))
        if reverted is not None:
            return ProbeResult("resolved", error_result(reverted))
        ctx.written.update({change.path: (change.before or b"", change.after) for change in changes})
        return ProbeResult("resolved", _change_result(changes, rules, {"interrupted": True}))

    return Tool(spec, run, examples=(example,), preview=preview, probe=probe)


@contextmanager
def exclude_programs(workspace: Workspace, scopes: Scopes, paths: Iterable[str], ctx: ToolContext) -> Iterator[None]:
    """Let no program run in the workspace while instructions are changed. Raises Busy.

    A running program's sandbox covers the old file only, and the new one would be taken for the program's own work.
    """
    if not any(scopes.scope_of(path) == "L1" for path in paths):
        yield
        return
    root = workspace.open_fd(".", FOLDER)
    now = time.monotonic()
    try:
        with lock_out_programs(root, now + (ctx.deadline - now) / 2, lambda: ctx.stop.is_set):
            yield
    finally:
        os.close(root)


def check_writable_path(text: str, scopes: Scopes) -> str:
    """Return the plain path of a file that a run may write. Raises BadArguments, PathDenied, NotRegularFile."""
    path = plain_path(text)
    if (odd := next((character for character in path if not character.isprintable()), None)) is not None:
        hint = "Such a name can't be told from another; name the file without it."
        raise BadArguments(f"The path holds an invisible character (U+{ord(odd):04X}).", hint)
    if path == ".":
        raise NotRegularFile("The workspace itself is a folder.", "Name a file in it.")
    if scopes.scope_of(path) == "L0":
        hint = "It is one of the server's own, or can't be told from one; a person may change it."
        raise PathDenied(f"{shorten_path(path)} is never written by a run.", hint)
    return path


def _check_base(path: str, hashed: str | None, base: Mapping[str, str | None], when: str) -> None:
    """Raise StaleFile if the content is not that in `base`, or `base` lacks the file; an empty one checks nothing."""
    if base and (path not in base or base[path] != hashed):
        raise StaleFile(f"{shorten_path(path)} is not what was {when}.", "Read it again and propose the change again.")


def _change_result(changes: Sequence[FileChange], rules: EditRules, extra_data: JsonObject) -> ToolResult:
    """Build the result of a call. `extra_data` is for the record, not for a model: how the files were changed."""
    notes = [note for change in changes for note in change.notes]
    data: JsonObject = {"files": [change.line() | {"bytes": len(change.after)} for change in changes]} | extra_data
    if notes:
        data["notes"] = notes
    lines = "\n".join(_summarize_change(change) for change in changes)
    diff = rules.format_diffs([change for change in changes if change.before is not None])
    text = f"{lines}\n\n{diff}".rstrip("\n")
    return ToolResult(text + "".join(f"\n[{note}]" for note in notes), data=data)


def _summarize_change(change: FileChange) -> str:
    if change.before is None:
        return f"Created {change.path} ({len(change.after):,} bytes)."
    times = f"{change.replacements:,} replacement{'s' * (change.replacements != 1)}"
    return f"Changed {change.path} ({times}, {len(change.after):,} bytes now)."
