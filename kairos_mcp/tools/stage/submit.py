"""The tool submit_changes: what a stage holds as one diff, which a person decides about, and which is applied whole.

An approval binds to every path with its state on both sides: a file that changes in the workspace or in the stage after
the question was asked is not applied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.errors import KairosError, NoChange, StaleFile, Timeout
from kairos_mcp.core.hidden_text import adds_hidden_characters
from kairos_mcp.core.masked_file import MaskedFile
from kairos_mcp.core.messages import JsonObject, ToolResult, canonical_json
from kairos_mcp.core.paths import plain_path, printable_name, shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import count_of
from kairos_mcp.core.tool import ImpliedCall, Preview, ProbeResult, Tool, ToolContext, Written, error_result
from kairos_mcp.store.tool_intents import intent_name
from kairos_mcp.tools.files.diff import unified_diff
from kairos_mcp.tools.files.edit import check_editable
from kairos_mcp.tools.files.edit_tools import EditRules, exclude_programs
from kairos_mcp.tools.files.transaction import UnclearState
from kairos_mcp.tools.stage.apply import Application, Intent
from kairos_mcp.tools.stage.changes import (
    Change,
    Conflict,
    StagedChanges,
    collect_changes,
    missing_folders,
)
from kairos_mcp.tools.stage.layers import ABSENT, State, wait_for_next_change_time
from kairos_mcp.tools.stage.stage import Stage

TIMEOUT_S = 300
MAX_NAMED = 10  # files that an error names

SUBMIT_SPEC = BUILTIN["submit_changes"].spec(
    "Have what was changed in the stage applied to the workspace, all or nothing.\n"
    "Whatever you edit, and whatever programs write, stays in a stage of this run until then. A person is shown one "
    "diff of it and decides. What is left at the end of the run is submitted by itself, so call this when the work is "
    "whole, not after each file. Returns what was applied.",
    {
        "type": "object",
        "properties": {
            "summary": {
                "type": "string",
                "maxLength": 2_000,
                "description": "What the changes do and how they were checked, for the person who decides",
            },
            "paths": {
                "type": "array",
                "items": {"type": "string"},
                "maxItems": 1_000,
                "description": "Files and folders to submit; default: all that was changed",
            },
            "drop": {
                "type": "array",
                "items": {"type": "string"},
                "maxItems": 1_000,
                "description": "Files whose changes are thrown away first: the stage then shows the workspace's",
            },
        },
        "additionalProperties": False,
    },
    category="file_ops",
)


def submit_tool(stage: Stage, rules: EditRules) -> Tool:
    """Make submit_changes for one run's stage."""
    submission = _Submission(stage, rules)
    return Tool(
        SUBMIT_SPEC,
        submission.run,
        TIMEOUT_S,
        ({"summary": "Renames total to amount; all tests pass."},),
        submission.preview,
        submission.probe,
        internal=True,
    )


@dataclass(frozen=True, slots=True)
class _Submission:
    stage: Stage
    rules: EditRules

    def preview(self, arguments: JsonObject, ctx: ToolContext) -> Preview:
        with self.stage.alone(ctx):
            found = self._collect(arguments, ctx, _dropped_paths(arguments))
            if found.conflicts:
                return Preview("", failure=_conflict_error(found.conflicts))
            if not found.changes:
                if _dropped_paths(arguments):
                    return Preview(f"drops what was changed in {', '.join(_dropped_paths(arguments))}", implies=())
                rest = found.describe_rest()
                message = "Nothing is changed that could be applied" + (f"; in the stage stay {rest}." if rest else ".")
                return Preview("", failure=NoChange(message, "Go on."))
            ctx.written.update(self._written(found.changes))
            hidden = any(self._brings_hidden(change) for change in found.changes)
            return Preview(
                self._describe(arguments, found), self._digests(found), hidden, implies=self._implied_calls(found)
            )

    def run(self, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        with self.stage.alone(ctx):
            if dropped := _dropped_paths(arguments):
                self._drop(dropped, ctx)
            found = self._collect(arguments, ctx, ())
            withheld = found.narrow(ctx.base_hashes) if ctx.base_hashes else []
            if found.conflicts:
                raise _conflict_error(found.conflicts)
            if not (found.changes or ctx.base_hashes):
                return ToolResult("Dropped; nothing else was changed that could be applied.")
            if ctx.base_hashes and (digests := self._digests(found)) != dict(ctx.base_hashes):
                raise _stale_error(digests, ctx.base_hashes)
            workspace = self.stage.workspace
            with self.stage.open_root() as upper:
                intent = Intent(
                    tuple(found.changes),
                    tuple(missing_folders(upper, (gone.path for gone in found.changes if gone.after == ABSENT))),
                    tuple(missing_folders(workspace, (made.path for made in found.changes if made.after != ABSENT))),
                )
            for sha in {state.sha for change in found.changes for state in (change.before, change.after)}:
                if sha is not None:
                    self.stage.blobs.sync(sha)
            self.stage.blobs.sync_folder()
            paths = [change.path for change in found.changes]
            with exclude_programs(workspace, self.rules.scopes, paths, ctx):
                ctx.memory.keep(intent_name(ctx.path), intent.encode())
                try:
                    self._application(intent, ctx, _deadline_check(ctx)).complete()
                except UnclearState as unclear:
                    raise StaleFile(str(unclear), "Read these files before anything else.") from None
            ctx.written.update(self._written(found.changes))
            self.stage.forget(ctx, "applied", paths, found.kept_paths)
            wait_for_next_change_time()  # else the next call could not tell these changes from those of others
            if not found.left:
                self.stage.mark_applied()
        return self._result(found.changes, found.describe_rest(), withheld, was_asked=bool(ctx.base_hashes))

    def probe(self, arguments: JsonObject, ctx: ToolContext) -> ProbeResult:
        text = ctx.memory.recall(intent_name(ctx.path))
        if text is None:
            return ProbeResult("not_done")
        intent = Intent.decode(text)
        paths = [change.path for change in intent.changes]
        try:
            with self.stage.alone(ctx), exclude_programs(self.stage.workspace, self.rules.scopes, paths, ctx):
                application = self._application(intent, ctx, ctx.memory.check_owner)
                application.clear_leftovers()
                try:
                    application.complete()
                except KairosError as reverted:
                    return ProbeResult("resolved", error_result(reverted))
                ctx.written.update(self._written(intent.changes))
                rest = self._collect(arguments, ctx, (), paths)
                withheld = [path for path in rest.narrow(()) if path not in paths]
                self.stage.forget(ctx, "applied", paths, [path for path in rest.kept_paths if path not in paths])
        except (KairosError, UnclearState) as unknown:
            return ProbeResult("unclear", error_result(StaleFile(str(unknown), "A person has to look at these files.")))
        asked = bool(ctx.base_hashes)
        return ProbeResult("resolved", self._result(intent.changes, "", withheld if asked else (), was_asked=asked))

    def _written(self, changes: Iterable[Change]) -> Written:
        """Return what the files hold before and after these changes."""
        return {change.path: (self._content(change.before), self._content(change.after)) for change in changes}

    def _application(self, intent: Intent, ctx: ToolContext, check: Callable[[], None]) -> Application:
        return Application(self.stage.workspace, self.stage.blobs, ctx, intent, check)

    def _collect(
        self, arguments: JsonObject, ctx: ToolContext, dropped: Collection[str], left: Collection[str] = ()
    ) -> StagedChanges:
        named = arguments.get("paths")
        wanted = None if named is None else [plain_path(path) for path in named]
        return collect_changes(self.stage, self.rules.scopes, ctx, wanted, {*dropped, *left})

    def _drop(self, dropped: Collection[str], ctx: ToolContext) -> None:
        """Take the changes of files, or of all files in a folder, out of the stage."""
        found = collect_changes(self.stage, self.rules.scopes, ctx, [])
        held = [*found.left, *found.strange]
        gone = [path for path in held if any(path == one or path.startswith(f"{one}/") for one in dropped)]
        self.stage.forget(
            ctx, "dropped", gone, [*found.ignored, *found.own, *(path for path in held if path not in gone)]
        )

    def _digests(self, found: StagedChanges) -> dict[str, str | None]:
        """Return, by path, what names both its states: a path that is not quite as it was shown has another one."""
        return {
            change.path: self.rules.hash_content(change.path, canonical_json(change.as_json()).encode())
            for change in found.changes
        }

    def _brings_hidden(self, change: Change) -> bool:
        if change.after.kind != "file":
            return False
        before, after = (self._content(state).decode("utf-8", "surrogateescape") for state in _states(change))
        return adds_hidden_characters(before, after)

    def _implied_calls(self, found: StagedChanges) -> tuple[ImpliedCall, ...] | None:
        """Return the calls behind these changes: if a rule lets each of them change the workspace unasked, no person
        is asked here. None: one of the changes is always asked about."""
        implied: list[ImpliedCall] = []
        for change in found.changes:
            causes = found.causes.get(change.path, [])
            is_of_program = any(call.is_command for call, _ in causes)
            is_always_asked = (
                self.rules.scopes.scope_of(change.path) == "L1"
                or change.changes_mode
                or change.after.kind == "link"
                or (change.after == ABSENT and is_of_program)
                or self._brings_hidden(change)
            )
            if is_always_asked or not causes:
                return None
            for call, path in causes:
                arguments = call.arguments if call.is_command else {"path": path}
                implied.append(ImpliedCall(call.tool, arguments, path))
        return tuple({canonical_json([each.tool, each.arguments]): each for each in implied}.values())

    def _describe(self, arguments: JsonObject, found: StagedChanges) -> str:
        """Describe the changes to the person who decides: what matters most is first."""
        lines = [_count_changes(found.changes)]
        if rest := found.describe_rest():
            lines.append(f"in the stage stay: {rest}")
        if summary := arguments.get("summary"):
            lines += ["the model says:", *(f"> {line}" for line in summary.splitlines())]
        if dropped := _dropped_paths(arguments):
            lines.append(f"drops what was changed in {', '.join(dropped)}")
        for change in sorted(found.changes, key=self._rank):
            lines += ["", *self._show(change)]
        return "\n".join(lines)

    def _rank(self, change: Change) -> tuple[bool, bool, bool, bool, int, str]:
        return (
            self.rules.scopes.scope_of(change.path) != "L1",
            change.kind != "deleted",
            not change.changes_mode,
            not self._is_binary(change),
            -abs(change.after.size - change.before.size),
            change.path,
        )

    def _show(self, change: Change) -> Iterator[str]:
        name = printable_name(change.path)
        if self.rules.scopes.scope_of(change.path) == "L1":
            yield f"! {name} instructs agents, or a host reads it by itself"
        if change.is_merged:
            yield f"{name}: what others changed meanwhile is merged in; look again"
        if change.changes_mode:
            yield f"mode of {name}: {'can be executed' if change.after.exe else 'can no longer be executed'}"
        if change.kind == "deleted":
            what = "" if change.before.kind != "file" else f" ({change.before.size:,} bytes)"
            yield f"delete {name}{what}"
        elif change.after.kind == "link":
            yield f"link {name} -> {printable_name(change.after.target or '')}"
        elif change.before.kind == "file" and change.before.sha == change.after.sha:
            return
        elif self._is_binary(change):
            sizes = f"{change.before.size:,} bytes before, {change.after.size:,} after"
            yield f"{'create' if change.kind == 'created' else 'edit'} {name}: no text; {sizes}"
        else:
            yield self._diff(change).removesuffix("\n")

    def _diff(self, change: Change) -> str:
        before = self._mask(change.path, change.before) if change.before.kind == "file" else None
        hashes = tuple(
            self.rules.hash_content(change.path, self._content(state) if state.kind == "file" else None)
            for state in _states(change)
        )
        after = self._mask(change.path, change.after)
        return unified_diff(change.path, before, after, (hashes[0], hashes[1]), hashes_last=True)

    def _mask(self, path: str, state: State) -> MaskedFile:
        return self.rules.redactor.mask_file(path, self._content(state))

    def _content(self, state: State) -> bytes:
        return self.stage.blobs.get(state.sha) if state.kind == "file" else b""

    def _is_binary(self, change: Change) -> bool:
        try:
            for state in _states(change):
                check_editable(change.path, self._content(state))
        except KairosError:
            return True
        return False

    def _result(self, changes: Sequence[Change], rest: str, withheld: Sequence[str], *, was_asked: bool) -> ToolResult:
        files = [
            {
                "path": change.path,
                "before": self._hash(change, change.before),
                "after": self._hash(change, change.after),
                "bytes": change.after.size,
            }
            for change in changes
        ]
        text = f"Applied: {_count_changes(changes)}. The workspace holds them now."
        diffs = [
            self._diff(change)
            for change in changes
            if change.before.kind == change.after.kind == "file"
            and change.before.sha != change.after.sha
            and not self._is_binary(change)
        ]
        others = [f"{change.kind} {printable_name(change.path)}" for change in changes if change.kind != "changed"]
        stays = [f"In the stage stay {rest}."] if rest else []
        if withheld:
            stays.insert(0, f"Not approved, and left in the stage: {_name_paths(withheld)}.")
        if not was_asked:
            stays.append("Nobody was asked: rules allow the calls that made these changes.")
        data: JsonObject = {"files": files, "asked": was_asked}
        if withheld:
            data["withheld"] = list(withheld)
        return ToolResult("\n".join([text, *stays, *others, "", *diffs]).rstrip("\n"), data=data)

    def _hash(self, change: Change, state: State) -> str | None:
        return self.rules.hash_content(change.path, self._content(state)) if state.kind == "file" else None


def _states(change: Change) -> tuple[State, State]:
    return change.before, change.after


def _name_paths(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - MAX_NAMED} more" if len(paths) > MAX_NAMED else ""
    return ", ".join(map(shorten_path, paths[:MAX_NAMED])) + more


def _dropped_paths(arguments: JsonObject) -> list[str]:
    return [plain_path(path) for path in arguments.get("drop") or ()]


def _count_changes(changes: Sequence[Change]) -> str:
    kinds: tuple[Literal["changed", "created", "deleted"], ...] = ("changed", "created", "deleted")
    counts = [(kind, sum(change.kind == kind for change in changes)) for kind in kinds]
    return f"{count_of(len(changes), 'file')}: {', '.join(f'{count} {kind}' for kind, count in counts if count)}"


def _conflict_error(conflicts: Sequence[Conflict]) -> StaleFile:
    met = [shorten_path(each.path) for each in conflicts if not each.is_unclear]
    unclear = [shorten_path(each.path) for each in conflicts if each.is_unclear]
    parts = []
    if met:
        parts.append(f"{', '.join(met[:MAX_NAMED])}: the workspace and the stage changed the same lines.")
    if unclear:
        what = "saved by another program while yours ran, so nobody can tell whose lines are whose."
        parts.append(f"{', '.join(unclear[:MAX_NAMED])}: {what}")
    hint = "Nothing was applied. `drop` gives such a file up; then read it, and make the change again."
    return StaleFile(" ".join(parts), hint)


def _stale_error(now: Mapping[str, str | None], approved: Mapping[str, str | None]) -> StaleFile:
    changed = [shorten_path(path) for path in sorted({*now, *approved}) if now.get(path) != approved.get(path)]
    what = "changed in the workspace or in the stage since this was approved: nothing was applied."
    return StaleFile(f"{', '.join(changed[:MAX_NAMED])} {what}", "Submit again.")


def _deadline_check(ctx: ToolContext) -> Callable[[], None]:
    def check() -> None:
        ctx.memory.check_owner()
        if ctx.stop.is_set or time.monotonic() >= ctx.deadline:
            raise Timeout("The call had to end before all files were written.", "Nothing was changed: try again.")

    return check
