"""Runs programs in a stage: in the same sandbox, over the run's layer; without a sandbox, in its copy of the workspace.

What they write anywhere in the workspace, be it `.git` or instructions to agents, is decided about when it is
submitted. A program without a sandbox can write elsewhere too, so it is asked about.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kairos_mcp.core.errors import CommandDenied
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.paths import plain_path, shorten_path
from kairos_mcp.core.tool import Preview, StopSignal, ToolContext, error_result
from kairos_mcp.tools.commands.call_filter import open_filter
from kairos_mcp.tools.commands.executable import ResolvedProgram, open_folder
from kairos_mcp.tools.commands.protected_paths import ProtectionRules, SeenFolder, survey_protected_paths
from kairos_mcp.tools.commands.run_command import CommandRunner, CommandSettings, PreparedCommand
from kairos_mcp.tools.commands.runner import LEASH_FD, STATUS_FD
from kairos_mcp.tools.commands.sandbox import Sandbox, build_search_path, scrub_environment
from kairos_mcp.tools.commands.toolchains import toolchain_variables
from kairos_mcp.tools.files.safe_open import FOLDER
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.stage.copies import COPY
from kairos_mcp.tools.stage.layers import MAX_DEPTH, folders_above
from kairos_mcp.tools.stage.stage import Stage, sum_bytes

QUOTA_POLL_S = 0.5


class StagedCommands(CommandRunner):
    """Runs the programs of one run in its stage, which may hold `most_bytes`."""

    def __init__(self, stage: Stage, commands: CommandSettings, most_bytes: int) -> None:
        super().__init__(stage.workspace, commands, ProtectionRules())
        self._stage, self._settings, self._most_bytes = stage, commands, most_bytes
        self._seen: dict[str, SeenFolder] = {}

    def preview(self, arguments: JsonObject, ctx: ToolContext) -> Preview:
        """Describe it, within `Stage.alone`."""
        if not self._bare:
            return super().preview(arguments, ctx)
        with self._open_copy() as runner:
            shown = runner.preview(arguments, ctx)
        return replace(shown, text=f"{shown.text}\nthe workspace is this run's copy of it")

    def run(self, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        """Run it, within `Stage.writing`."""
        layer = self._stage.layer
        with _watch_size(layer.root, layer.room() + self._most_bytes, ctx.stop) as watched:
            if self._bare:
                with self._open_copy() as runner:
                    result = runner.run(arguments, replace(ctx, stop=watched))
            else:
                result = super().run(arguments, replace(ctx, stop=watched))
        if watched.is_exceeded:
            full = f"The stage holds more than {self._most_bytes >> 20:,} MiB, or folders over {MAX_DEPTH} deep."
            return error_result(
                CommandDenied(f"{full} The program was killed.", "Remove what is not needed, or submit what is done.")
            )
        return result

    @contextmanager
    def _open_copy(self) -> Iterator[CommandRunner]:
        """Yield what runs programs without a sandbox in the stage's copy. Raises CommandDenied where it has none."""
        with self._stage.open_mount():  # so that the copy is up to date
            root = self._stage.layer.root
            if root.name != COPY:
                why = "This stage is a layer, which a program without a sandbox does not see."
                raise CommandDenied(why, 'A person sets commands = "sandboxed" again, or the run begins anew.')
            with Workspace(root) as copied:
                yield CommandRunner(copied, self._settings, ProtectionRules())

    def _resolve(self, arguments: JsonObject, sandbox: Sandbox) -> ResolvedProgram:
        """Find the program; one of the workspace where the stage has it."""
        assert sandbox.workspace is not None
        name, cwd = arguments["argv"][0], plain_path(arguments.get("cwd") or ".")
        with self._stage.view() as view:
            if "/" in name and not name.startswith("/"):
                path = plain_path(f"{cwd}/{name}")
                if not os.path.lexists(sandbox.workspace / path):
                    with open_folder(view, cwd), view.open_file(path) as opened:
                        if not os.fstat(opened.fd).st_mode & 0o111:
                            hint = "Name its interpreter first, as python or sh."
                            raise CommandDenied(f"{shorten_path(name)} is not executable.", hint)
                    search_path = build_search_path(self._environ, [sandbox.workspace], sandbox)
                    argv = (str(sandbox.workspace / path), *arguments["argv"][1:])
                    return ResolvedProgram(argv, cwd, search_path, {})
            return self._resolve_in(view, arguments, sandbox)

    @contextmanager
    def _prepare(
        self, program: ResolvedProgram, sandbox: Sandbox, root: int, ctx: ToolContext
    ) -> Iterator[PreparedCommand]:
        assert sandbox.workspace is not None
        unreadable = self._list_unreadable(root, ctx)
        layered = self._stage.layer.enter(sandbox)
        environ = scrub_environment(self._environ, program.search_path) | toolchain_variables(self._environ)
        with open_filter() as filter_fd:
            argv = layered.wrap(
                program.argv,
                cwd=sandbox.workspace / program.cwd,
                status_fd=STATUS_FD,
                leash_fd=LEASH_FD,
                filter_fd=filter_fd,
                unreadable=unreadable,
            )
            yield PreparedCommand(argv, "/", environ, (filter_fd,), "in the stage")

    def _list_unreadable(self, root: int, ctx: ToolContext) -> list[str]:
        """List the files that no program may read, of the workspace and of the layer, as far as the stage has them."""
        is_unreadable = self._find_unreadable(ctx)
        if is_unreadable is None:
            return []
        found = survey_protected_paths(root, ProtectionRules(), (), is_unreadable, self._seen)
        self._seen = dict(found.seen)
        with self._stage.open_root() as upper, self._stage.view() as view:
            descriptor = upper.open_fd(".", FOLDER)
            try:
                in_layer = survey_protected_paths(descriptor, ProtectionRules(), (), is_unreadable)
            finally:
                os.close(descriptor)
            paths = dict.fromkeys((*found.unreadable, *in_layer.unreadable))
            mounted = set(self._stage.layer.list_mounted())
            return [path for path in paths if _is_there(view, path) or not mounted.isdisjoint(folders_above(path))]


def _is_there(view: Workspace, path: str) -> bool:
    try:
        folder = view.open_fd(path.rpartition("/")[0] or ".", FOLDER)
    except OSError:  # the stage has no such folder
        return False
    try:
        os.stat(path.rpartition("/")[2], dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


class _SizeWatch(StopSignal):
    """Stops a program because its run was stopped, or because its stage holds too much."""

    __slots__ = ("is_exceeded",)

    def __init__(self) -> None:
        super().__init__()
        self.is_exceeded = False


@contextmanager
def _watch_size(folder: Path, most_bytes: int, stop: StopSignal) -> Iterator[_SizeWatch]:
    """Stop the program in the block once the folder's files take more than `most_bytes`. They are measured again and
    again, since the kernel has no limit for a folder."""
    watched, has_ended = _SizeWatch(), threading.Event()
    stop.add_callback(watched.set)

    def watch() -> None:
        pause_s = QUOTA_POLL_S
        while not has_ended.wait(pause_s):
            began = time.monotonic()
            if sum_bytes(folder, began + 10 * QUOTA_POLL_S) > most_bytes:
                watched.is_exceeded = True
                watched.set()
                return
            pause_s = max(QUOTA_POLL_S, 4 * (time.monotonic() - began))

    thread = threading.Thread(target=watch, name="kairos-stage-size", daemon=True)
    thread.start()
    try:
        yield watched
    finally:
        has_ended.set()
        thread.join()
