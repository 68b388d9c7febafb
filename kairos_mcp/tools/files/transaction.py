"""Changes several files as one transaction: all or none, even if the server crashes in between.

First an intent is stored with the original content of every file, then the files are changed one by one. Recovery
after a crash finds the intent, and each file in its old or its new state, and completes the change. If a file is in
neither state, because another program wrote it, that file is left alone and the others are reverted. The intent is
deleted with the call's answer, or when the call begins anew.

Before each change, a revert and the clearing of leftovers, the run's owner is checked again (`ctx.memory.check_owner`):
a server that was stopped meanwhile must not touch the files of a call that another server now completes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Literal

from kairos_mcp.core.errors import KairosError, NotFound, StaleFile, Timeout
from kairos_mcp.core.hidden_text import adds_hidden_characters
from kairos_mcp.core.messages import canonical_json
from kairos_mcp.core.paths import shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.secret_spans import Span
from kairos_mcp.core.tool import ToolContext
from kairos_mcp.store.tool_intents import intent_name
from kairos_mcp.tools.files.atomic_write import open_slot
from kairos_mcp.tools.files.diff import Hashes
from kairos_mcp.tools.files.workspace import Workspace

ReadContent = Callable[[str], bytes | None]  # the content of the file at a plain path; None if there is none


class UnclearState(Exception):
    """Only a person can decide what should happen to these files; the text names them."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file and its content before and after; `before` is None for a file that is created. `hashes`: of both, keyed.
    `kept`: where in `after` the secrets of `before` are, in order; empty if the whole text was given anew."""

    path: str
    before: bytes | None
    after: bytes
    hashes: Hashes
    replacements: int = 1
    notes: tuple[str, ...] = ()
    kept: tuple[Span, ...] = ()

    @property
    def brings_hidden(self) -> bool:
        """Whether it puts invisible characters into the file, or ones that turn the direction of writing."""
        before = (self.before or b"").decode("utf-8", "surrogateescape")
        return adds_hidden_characters(before, self.after.decode("utf-8", "surrogateescape"))

    def line(self) -> dict[str, str | int | None]:
        """Return the change without its texts, as intent and result contain it."""
        return {"path": self.path, "before": self.hashes[0], "after": self.hashes[1]}


def apply_changes(workspace: Workspace, changes: Sequence[FileChange], ctx: ToolContext) -> bool:
    """Apply all changes, or none and raise the cause. Returns False if a file could only be renamed, not exchanged.

    Raises FenceLost if another server has taken over the run between two files. That server completes the call, so
    nothing more is changed here, not even to revert.
    """
    ctx.memory.keep(_intent_name(ctx), _format_intent(changes))
    exchanged = True
    done: list[FileChange] = []
    for change in changes:
        try:
            if done:
                ctx.memory.check_owner()
            if ctx.stop.is_set or time.monotonic() >= ctx.deadline:
                # What became of the files is said by the hint, which is replaced where one of them could not go back.
                raise Timeout("The call had to end before all files were written.", "Nothing was changed: try again.")
            exchanged = _apply_change(workspace, change, ctx) and exchanged
        except KairosError as error:
            if done:
                ctx.memory.check_owner()
            _revert_or_raise(workspace, done, ctx, error)
            raise
        done.append(change)
    return exchanged


def read_originals(ctx: ToolContext) -> ReadContent | None:
    """Return a reader of the files' content from before this call changed any; None if it never began to."""
    text = ctx.memory.recall(_intent_name(ctx))
    if text is None:
        return None
    originals = {file["path"]: file["original"] for file in json.loads(text)["files"]}

    def read_content(path: str) -> bytes | None:
        original = originals.get(path)
        return None if original is None else original.encode()

    return read_content


def recover(workspace: Workspace, changes: Sequence[FileChange], ctx: ToolContext) -> KairosError | None:
    """Complete a call that a crash interrupted. Returns None if all changes are made; if all are reverted, the error.

    Raises UnclearState if a person has to look or the time is over, and FenceLost if another server has taken over the
    run; both before the next write. If this crashes too, it can be called again.
    """
    if _format_intent(changes) != ctx.memory.recall(_intent_name(ctx)):
        raise UnclearState("What was to be changed is not known any more.")
    _check_recovery(ctx)  # a staging file may be the one that the run's new owner writes through
    _clear_staging(workspace, changes, ctx)
    states = {change.path: _file_state(workspace, change) for change in changes}
    made = [change for change in changes if states[change.path] == "after"]
    cause: KairosError | None = None
    if strange := [change for change in changes if states[change.path] == "neither"]:
        cause = StaleFile(
            f"{_format_paths(strange)} changed while the call was interrupted.", "Read it again and start over."
        )
    else:
        try:
            for change in changes:
                if states[change.path] != "after":
                    _check_recovery(ctx)
                    _apply_change(workspace, change, ctx)
                    made.append(change)
        except KairosError as error:
            cause = error
    if cause is not None:
        _check_recovery(ctx)
        if unreverted := _revert_changes(workspace, made, ctx):
            raise UnclearState(
                f"{cause.message} {_format_paths(unreverted)} had been changed already and could not go back."
            )
    return cause


def _check_recovery(ctx: ToolContext) -> None:
    """Check right before a write of a recovery that it may go on. Raises FenceLost, UnclearState."""
    ctx.memory.check_owner()
    if time.monotonic() >= ctx.deadline:  # whoever waited has given up: the call counts as unclear, a person is asked
        raise UnclearState("The recovery was to end before all files were looked at.")


def _intent_name(ctx: ToolContext) -> str:
    return intent_name(ctx.path)


def _format_intent(changes: Sequence[FileChange]) -> str:
    """Write the intent as JSON, with the originals as text, since only UTF-8 is ever changed."""
    files = [
        change.line() | {"original": None if change.before is None else change.before.decode()} for change in changes
    ]
    return canonical_json({"files": files})


def _staging_key(change: FileChange, ctx: ToolContext) -> str:
    return sha256(canonical_json([ctx.run_id, ctx.path, change.path]).encode()).hexdigest()[:16]


def _apply_change(workspace: Workspace, change: FileChange, ctx: ToolContext) -> bool:
    with open_slot(workspace, change.path, _staging_key(change, ctx), make_missing=change.before is None) as slot:
        if change.before is not None:
            return slot.replace(change.before, change.after)
        slot.create(change.after)
        return True


def _revert_change(workspace: Workspace, change: FileChange, ctx: ToolContext) -> None:
    with open_slot(workspace, change.path, _staging_key(change, ctx)) as slot:
        if change.before is None:
            slot.remove(change.after)
        else:
            slot.replace(change.after, change.before)


def _revert_or_raise(workspace: Workspace, done: Sequence[FileChange], ctx: ToolContext, cause: KairosError) -> None:
    if unreverted := _revert_changes(workspace, done, ctx):
        raise StaleFile(
            f"{cause.message} {_format_paths(unreverted)} had been changed already and could not go back.",
            "Read these files before anything else.",
        ) from None


def _revert_changes(workspace: Workspace, made: Sequence[FileChange], ctx: ToolContext) -> list[FileChange]:
    """Undo changes, the last one first; return those that could not be undone."""
    unreverted = []
    for change in reversed(made):
        try:
            _revert_change(workspace, change, ctx)
        except KairosError:
            unreverted.append(change)
    return unreverted


def _clear_staging(workspace: Workspace, changes: Sequence[FileChange], ctx: ToolContext) -> None:
    """Remove the staging files beside the files. Raises UnclearState."""
    for change in changes:
        try:
            with open_slot(workspace, change.path, _staging_key(change, ctx)) as slot:
                settled = slot.clear_leftovers(change.before, change.after)
        except NotFound:
            continue  # no folder, so no staging files
        except KairosError as error:
            raise UnclearState(error.message) from None
        if not settled:
            beside = "is what another program wrote meanwhile, in a file whose name begins with .kairos-"
            raise UnclearState(f"Beside {shorten_path(change.path)} {beside}.")


def _file_state(workspace: Workspace, change: FileChange) -> Literal["before", "after", "neither"]:
    try:
        content = workspace.read_whole(change.path, max(len(change.before or b""), len(change.after)))
    except KairosError:
        return "neither"
    if content == change.after:
        return "after"
    return "before" if content == change.before else "neither"


def _format_paths(changes: Sequence[FileChange]) -> str:
    return ", ".join(shorten_path(change.path) for change in changes)
