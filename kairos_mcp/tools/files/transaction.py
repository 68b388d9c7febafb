"""Changes of files as one act: kept before, made all or none, and looked up after a crash.

The order is the promise: first an intent is kept with what every file held, then files change one by one. A crash in
between finds the intent and each file either as it was or as it was to be, and goes on; where one is neither, because
somebody else wrote it, that one is left and the others go back. The intent is forgotten with the call's answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from kairos_mcp.core.errors import KairosError, NotFound, StaleFile, Timeout
from kairos_mcp.core.messages import canonical_json
from kairos_mcp.core.paths import shorten_path
from kairos_mcp.core.text import brings_hidden
from kairos_mcp.store.tool_memory import of_call
from kairos_mcp.tools.files.atomic_write import place
from kairos_mcp.tools.files.diff import hash_of
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.tool import ToolContext

Look = Callable[[str], bytes | None]  # what the file of a plain path holds, None where there is none


class UnclearState(Exception):
    """Only a person can say what is to become of these files; the text says of which."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file and what it holds before and after; `before` is None for one that is created."""

    path: str
    before: bytes | None
    after: bytes
    replacements: int = 1
    notes: tuple[str, ...] = ()

    @property
    def brings_hidden(self) -> bool:
        """Whether it puts characters into the file that nobody sees, or that turn the direction of writing."""
        before = (self.before or b"").decode("utf-8", "surrogateescape")
        return brings_hidden(before, self.after.decode("utf-8", "surrogateescape"))

    def line(self) -> dict[str, str | int | None]:
        """The change without its texts, as the intent and the result have it."""
        return {"path": self.path, "before": hash_of(self.before), "after": hash_of(self.after)}


def carry_out(opener: Workspace, changes: Sequence[FileChange], around: ToolContext) -> bool:
    """Make every change, or none and raise why. False where one could not be exchanged, only compared and renamed.

    Between two files the run may have gone to another server, which brings the call to its end: then nothing more is
    touched here, not even to go back.
    """
    around.memory.keep(_intent(around), _as_intent(changes))
    exchanged = True
    done: list[FileChange] = []
    for change in changes:
        try:
            if done:
                around.memory.check()
            _check_time(around)
            exchanged = _make(opener, change, around) and exchanged
        except KairosError as error:
            if done:
                around.memory.check()
            _undo(opener, done, around, error)
            raise
        done.append(change)
    return exchanged


def begun(around: ToolContext) -> Look | None:
    """What the files of this call held when it began to change them; None if it never did."""
    text = around.memory.recall(_intent(around))
    if text is None:
        return None
    originals = {file["path"]: file["original"] for file in json.loads(text)["files"]}

    def look(path: str) -> bytes | None:
        original = originals.get(path)
        return None if original is None else original.encode()

    return look


def recover(opener: Workspace, changes: Sequence[FileChange], around: ToolContext) -> KairosError | None:
    """Bring a call that a crash interrupted to its end. None: all is made; an error: all is undone, and why.

    Raises Unclear where a person has to look. A crash in here is no different from the one before.
    """
    if _as_intent(changes) != around.memory.recall(_intent(around)):
        raise UnclearState("What was to be changed can't be told any more.")
    _settle(opener, changes, around)
    states = {change.path: _state(opener, change) for change in changes}
    made = [change for change in changes if states[change.path] == "after"]
    why: KairosError | None = None
    if strange := [change for change in changes if states[change.path] == "neither"]:
        why = StaleFile(f"{_names(strange)} changed while the call was interrupted.", "Read it again and start anew.")
    else:
        try:
            for change in changes:
                if states[change.path] != "after":
                    _make(opener, change, around)
                    made.append(change)
        except KairosError as error:
            why = error
    if why is not None and (left := _put_back(opener, made, around)):
        raise UnclearState(f"{why.message} {_names(left)} had been changed already and could not go back.")
    return why


def _intent(around: ToolContext) -> str:
    return of_call(around.path)


def _as_intent(changes: Sequence[FileChange]) -> str:
    """With the originals as text, since only UTF-8 is ever changed."""
    files = [
        change.line() | {"original": None if change.before is None else change.before.decode()} for change in changes
    ]
    return canonical_json({"files": files})


def _key(change: FileChange, around: ToolContext) -> str:
    return sha256(canonical_json([around.run_id, around.path, change.path]).encode()).hexdigest()[:16]


def _make(opener: Workspace, change: FileChange, around: ToolContext) -> bool:
    with place(opener, change.path, _key(change, around), making=change.before is None) as where:
        if change.before is not None:
            return where.replace(change.before, change.after)
        where.create(change.after)
        return True


def _unmake(opener: Workspace, change: FileChange, around: ToolContext) -> None:
    with place(opener, change.path, _key(change, around)) as where:
        if change.before is None:
            where.take_away(change.after)
        else:
            where.replace(change.after, change.before)


def _undo(opener: Workspace, done: Sequence[FileChange], around: ToolContext, why: KairosError) -> None:
    if left := _put_back(opener, done, around):
        raise StaleFile(
            f"{why.message} {_names(left)} had been changed already and could not go back, since it was changed again.",
            "Read these files before anything else.",
        ) from None


def _put_back(opener: Workspace, made: Sequence[FileChange], around: ToolContext) -> list[FileChange]:
    """Undo changes, the last one first; those that could not be undone."""
    left = []
    for change in reversed(made):
        try:
            _unmake(opener, change, around)
        except KairosError:
            left.append(change)
    return left


def _settle(opener: Workspace, changes: Sequence[FileChange], around: ToolContext) -> None:
    """Clear away what lies beside the files. Raises Unclear."""
    for change in changes:
        try:
            with place(opener, change.path, _key(change, around)) as where:
                settled = where.settle(change.before, change.after)
        except NotFound:
            continue  # no folder, nothing in it
        except KairosError as error:
            raise UnclearState(error.message) from None
        if not settled:
            beside = "lies what another program wrote while it was changed, in a file whose name begins with .kairos-"
            raise UnclearState(f"Beside {shorten_path(change.path)} {beside}.")


def _state(opener: Workspace, change: FileChange) -> Literal["before", "after", "neither"]:
    try:
        content = opener.whole(change.path, max(len(change.before or b""), len(change.after)))
    except KairosError:
        return "neither"
    if content == change.after:
        return "after"
    return "before" if content == change.before else "neither"


def _check_time(around: ToolContext) -> None:
    if around.stop.wanted or time.monotonic() >= around.until:
        raise Timeout("The call was to end before all was written; nothing was changed.", "Try again.")


def _names(changes: Sequence[FileChange]) -> str:
    return ", ".join(shorten_path(change.path) for change in changes)
