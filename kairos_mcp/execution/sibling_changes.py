"""What the tasks of a run know of each other's changes of files, so that none is overwritten unseen.

A call that would change a file which another task has changed since this one last looked at it is answered `stale_file`
once, with what was changed. All of it follows from the recorded calls and answers, and is rebuilt from them. Only the
tools for files are known: what programs change is not. Where a run has no tasks, nothing is kept.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field, replace
from functools import partial
from typing import NamedTuple

from kairos_mcp.core.builtin_tools import APPLY_EDIT_PLAN, PLAN_EDITS, READ_FILE, names_where
from kairos_mcp.core.errors import StaleFile
from kairos_mcp.core.file_changes import changed_files
from kairos_mcp.core.messages import ToolCall, ToolResult
from kairos_mcp.core.paths import printable_name, shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import Answer, CallTool, task_of, turn_of
from kairos_mcp.core.text import truncate
from kairos_mcp.core.tool import error_result
from kairos_mcp.store.queries import StepRow
from kairos_mcp.tools.touched_paths import read_named_paths

SHOWN_CHARS = 2_000  # of what others have changed
CHANGED_BY = "changed_by"  # in the data of a result: the calls whose changes it shows

TRACKED_EDIT_TOOLS = frozenset(names_where(lambda tool: tool.is_tracked))
_NOTED_TOOLS = TRACKED_EDIT_TOOLS | frozenset(names_where(lambda tool: tool.is_look))


class _Look(NamedTuple):
    """When a task last looked at a file in a turn."""

    at: int
    turn: str


class _Change(NamedTuple):
    """A change of a file: the call that made it, when it had ended, and what it changed."""

    call: str
    at: int
    diff: str


@dataclass(slots=True)
class SiblingChanges:
    """The files that the tasks of one run looked at and changed.

    Moments are counted: a call looks when it begins, and its change is there when it has ended. A model knows of what
    its calls showed from its next turn on, so what it saw in the same turn does not count.
    """

    _now: int = 0
    _begun: dict[str, int] = field(default_factory=dict)  # calls under way
    _looks: dict[tuple[str, str], list[_Look]] = field(default_factory=dict)  # by task and file: of its last two turns
    _changes: dict[str, list[_Change]] = field(default_factory=partial(defaultdict, list))  # by file
    _turn_shown: dict[tuple[str, str], str] = field(default_factory=dict)  # by task and change: the turn told of it
    _planned: dict[str, tuple[str, ...]] = field(default_factory=dict)  # files by plan
    _locks: dict[str, asyncio.Lock] = field(default_factory=partial(defaultdict, asyncio.Lock))

    def rebuild(self, calls: Iterable[tuple[StepRow, CallTool]]) -> None:
        """Begin anew with the recorded calls of tasks.

        Where an end and a begin are of the same moment, the begin counts as the earlier one: so a task is rather told
        once too often.
        """
        events: list[tuple[int, bool, int, str, ToolCall, Answer | None]] = []
        for row, step in calls:
            events.append(((row.newest or row).at, False, row.id, row.path, step.call, None))
            if (answer := row.answer) is not None:
                events.append((row.answered_at or row.at, True, row.id, row.path, step.call, answer))
        self._begun, self._looks, self._turn_shown, self._planned = {}, {}, {}, {}
        self._changes.clear()
        for _, _, _, path, call, answer in sorted(events, key=lambda event: event[:3]):
            if answer is None:
                self.begin(path, call)
            else:
                self.end(path, call, answer)

    def may_change(self, path: str, call: ToolCall) -> bool:
        """Whether the call at this path may change files that other tasks know of."""
        return call.name in TRACKED_EDIT_TOOLS and bool(task_of(path))

    def begin(self, path: str, call: ToolCall) -> None:
        """Note that the call at this path begins."""
        if call.name in _NOTED_TOOLS and task_of(path):
            self._begun[path] = self._tick()

    def end(self, path: str, call: ToolCall, answer: Answer) -> None:
        """Note the answer of the call at this path."""
        if call.name not in _NOTED_TOOLS or not (task := task_of(path)) or not isinstance(answer, ToolResult):
            return
        begun, turn = self._begun.pop(path, self._now), turn_of(path)[0]
        data = answer.data if isinstance(answer.data, dict) else {}
        if answer.is_error:
            self._turn_shown |= {(task, change): turn for change in data.get(CHANGED_BY, ())}
            return
        changed = (*changed_files(answer), *changed_files(answer, "staged"))
        for file in changed:
            self._changes[file.path].append(_Change(path, self._tick(), _diff_of(file.path, answer)))
        files = [file.path for file in changed]
        if call.name == PLAN_EDITS.name:
            files = [file["path"] for file in data["files"]]
            self._planned[data["plan_id"]] = tuple(files)
        elif call.name == READ_FILE.name:
            files = [data["path"]]
        for name in files:
            looks = [look for look in self._looks.get((task, name), ()) if look.turn != turn]
            self._looks[task, name] = [*looks[-1:], _Look(begun, turn)]

    def refusal(self, path: str, call: ToolCall) -> ToolResult | None:
        """Return the answer of a call that would change what another task has changed unseen; None if it may go on."""
        if not (task := task_of(path)) or call.name not in TRACKED_EDIT_TOOLS:
            return None
        turn = turn_of(path)[0]
        unseen = {
            file: changes
            for file in self._files_of(call)
            if (changes := [each for each in self._changes.get(file, ()) if self._is_unseen(each, file, task, turn)])
        }
        return _refuse(unseen) if unseen else None

    @asynccontextmanager
    async def changing(self, path: str, call: ToolCall) -> AsyncIterator[None]:
        """Let no other task change the files of this call meanwhile, so that each sees what the one before did."""
        async with AsyncExitStack() as locks:
            if self.may_change(path, call):
                for file in sorted(self._files_of(call)):  # in one order, so that no two wait for each other
                    await locks.enter_async_context(self._locks[file])
            yield

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def _files_of(self, call: ToolCall) -> frozenset[str]:
        """The files that a call would change, as far as its arguments tell."""
        if call.name == APPLY_EDIT_PLAN.name:
            return frozenset(self._planned.get(str(call.arguments.get("plan_id")), ()))
        return frozenset(read_named_paths(None, call.arguments))

    def _is_unseen(self, change: _Change, file: str, task: str, turn: str) -> bool:
        if task_of(change.call) == task or self._turn_shown.get((task, change.call), turn) != turn:
            return False
        looks = [look.at for look in self._looks.get((task, file), ()) if look.turn != turn]
        return max(looks, default=0) < change.at


def _diff_of(file: str, result: ToolResult) -> str:
    """The diff of one file in a result, cut."""
    start = result.content.find(f"--- a/{printable_name(file)}\n")
    if start < 0:
        return f"{shorten_path(file)} was created."
    end = result.content.find("\n\n", start)  # no line of a diff is empty
    return truncate(result.content[start : end if end >= 0 else None].rstrip("\n"), SHOWN_CHARS)


def _refuse(unseen: dict[str, list[_Change]]) -> ToolResult:
    """Answer a call with what others have changed, the newest last; the oldest is cut first."""
    changes = [each for found in unseen.values() for each in found]
    who = ", ".join(dict.fromkeys(task_of(each.call) for each in changes))
    files = ", ".join(shorten_path(file) for file in unseen)
    refused = error_result(
        StaleFile(
            f"{files} was changed by {who} since you last read it; nothing was written.",
            "This is told once: look at the change, and make your call again as it then should be. What programs "
            "change is not known here.",
        )
    )
    shown = "\n".join(f"{each.call}:\n{each.diff}" for each in changes)
    cut = shown if len(shown) <= SHOWN_CHARS else "…" + shown[-SHOWN_CHARS:]
    calls = [each.call for each in changes]
    return replace(refused, content=f"{refused.content}\n\n{cut}", data={**refused.data, CHANGED_BY: calls})
