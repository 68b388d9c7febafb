"""Runs a program: run_command. An argument list, never a shell; in a sandbox, or not at all unless a person said so.

A program that fails is a failed call. What it changes can't be known before, so its effect class is irreversible.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kairos_mcp.core.errors import CommandDenied, StaleFile
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.paths import shorten_path
from kairos_mcp.core.scopes import Scopes
from kairos_mcp.settings.settings import CommandMode, Settings
from kairos_mcp.tools.commands.executable import ResolvedProgram, folder, resolve_program
from kairos_mcp.tools.commands.name_holders import NAMES, covered
from kairos_mcp.tools.commands.protected_paths import FOLDERS, HeldPaths, ProtectionRules, protected
from kairos_mcp.tools.commands.runner import (
    FLOOD_BYTES,
    LEASH_FD,
    STATUS_FD,
    TASKS,
    CapturedStream,
    LaunchRequest,
    ProcessResult,
    run_to_end,
)
from kairos_mcp.tools.commands.sandbox import Sandbox, rooted, scrubbed
from kairos_mcp.tools.commands.undo_writes import WriteWatch, failed_by
from kairos_mcp.tools.files.scopes import package_folder, scopes_of
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.tool import Preview, Tool, ToolContext, error_result

DEFAULT_S = 60
MOST_S = 600
MARGIN_S = 5  # of the call's time, for ending what runs and telling what came of it
LEAST_MEMORY = 1 << 30

COMMAND_SPEC = ToolSpec(
    "run_command",
    "Run a program in the workspace, given as a list of arguments; no shell is involved.\n"
    "The program sees the machine read-only, without network or home folder. It may write to a private /tmp and to the "
    "workspace, except to a repository's .git and to files that instruct agents and hosts (AGENTS.md, .github, …). "
    "When it exits or its time is over, everything it started is ended too. Returns exit code, stdout and stderr; a "
    "non-zero exit code is a failure.",
    {
        "type": "object",
        "properties": {
            "argv": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "maxItems": 1000,
                "description": 'Program and its arguments, e.g. ["pytest", "-q"]',
            },
            "cwd": {"type": "string", "description": "Workspace folder to run in; default: the workspace itself"},
            "timeout_s": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": MOST_S,
                "description": f"Time limit in seconds; default {DEFAULT_S}",
            },
        },
        "required": ["argv"],
        "additionalProperties": False,
    },
    effect="irreversible",
    category="commands",
)


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """What a person has decided about programs: in a sandbox, without one (`bare`), or none at all.

    `hidden` is what no program sees, `reads` what it may read in the home folder and /tmp, `writes` are globs of
    instructions (L1) that it may write. `environ` is the server's environment, of which a program is told the least.
    """

    mode: CommandMode = "sandboxed"
    hidden: tuple[Path, ...] = ()
    reads: tuple[Path, ...] = ()
    writes: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @staticmethod
    def of(settings: Settings) -> CommandSettings:
        own = (settings.home, settings.config_dirs[-1], settings.config_file)
        hidden = tuple(path for path in own if path is not None)
        return CommandSettings(settings.commands, hidden, settings.command_reads, settings.command_writes)


def command_tools(workspace: Workspace, commands: CommandSettings, scopes: Scopes | None = None) -> list[Tool]:
    """run_command, if a person has not switched it off. `scopes` says which files are instructions; without it, those
    that are so everywhere."""
    if commands.mode == "off":
        return []
    running = _RunningCommand(
        workspace, commands, ProtectionRules.of(scopes or scopes_of(workspace.path), commands.writes)
    )
    examples = ({"argv": ["pytest", "-q"]}, {"argv": ["make", "test"], "cwd": "src", "timeout_s": 300})
    return [Tool(COMMAND_SPEC, running.run, MOST_S + MARGIN_S, examples, running.preview)]


@dataclass(frozen=True, slots=True)
class _PreparedCommand:
    """How a program is started: the whole argument list, where that stands, what it is told, and the descriptors that
    its sandbox takes. `uncovered`: what of the workspace it could write although it is protected, in words; `watch`
    tells what was made there all the same."""

    argv: Sequence[str]
    cwd: str
    environ: Mapping[str, str]
    lent: tuple[int, ...] = ()
    uncovered: str | None = None
    watch: WriteWatch | None = None


class _RunningCommand:
    def __init__(self, workspace: Workspace, commands: CommandSettings, rules: ProtectionRules) -> None:
        self._workspace = workspace
        self._rules = rules
        self._sandbox = Sandbox(
            workspace.path, hidden=commands.hidden, sealed=(package_folder(),), reads=commands.reads
        )
        self._bare = commands.mode == "bare"
        self._environ = commands.environ
        self._works = self._bare  # or was seen to; what does not work is looked at again, since a person may mend it

    def preview(self, arguments: JsonObject, ctx: ToolContext) -> Preview:
        with folder(self._workspace, ".") as root:
            program = self._resolve(arguments, self._sandbox_for(root))
            self._check_works()  # nobody is asked about a program that can't be run
        how = "WITHOUT A SANDBOX: it can do whatever this server can" if self._bare else "in a sandbox, without network"
        return Preview(f"{program.shown()}\nruns {how}", program.base)

    def run(self, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        remaining_s = ctx.deadline - time.monotonic()
        timeout_s = min(float(arguments.get("timeout_s") or DEFAULT_S), max(remaining_s - MARGIN_S, remaining_s / 2))
        with folder(self._workspace, ".") as root:
            sandbox = self._sandbox_for(root)
            program = self._resolve(arguments, sandbox)
            _check_base(program, ctx.base_hashes)
            self._check_works()
            until = time.monotonic() + timeout_s
            result, remark, undone = self._run_program(program, sandbox, root, ctx, until)
            if result.why == "no_sandbox":  # what it was built of may have changed under it; nothing has begun yet
                result, remark, undone = self._run_program(program, self._sandbox_for(root), root, ctx, until)
        return failed_by(_command_result(program, result, timeout_s, remark), undone)

    def _run_program(
        self, program: ResolvedProgram, sandbox: Sandbox, root: int, ctx: ToolContext, until: float
    ) -> tuple[ProcessResult, str | None, list[str]]:
        """Run it to its end; what should be known of how it ran, and what of its changes was undone."""
        with self._prepare(program, sandbox, root) as prepared:
            result = run_to_end(
                LaunchRequest(
                    prepared.argv,
                    not self._bare,
                    prepared.cwd,
                    prepared.environ,
                    until,
                    lambda: ctx.stop.is_set,
                    _memory(),
                    prepared.lent,
                    ctx.recheck_for(COMMAND_SPEC.effect),
                )
            )
            undone = prepared.watch.undo(ctx.memory.keep, f"{ctx.path}/taken-out") if prepared.watch else []
        return result, "without a sandbox" if self._bare else prepared.uncovered, undone

    def _sandbox_for(self, root: int) -> Sandbox:
        """The sandbox around the workspace that is open as `root`."""
        assert self._sandbox.workspace is not None, "run_command is made for a workspace"
        return replace(self._sandbox, workspace=rooted(self._sandbox.workspace, root))

    def _resolve(self, arguments: JsonObject, sandbox: Sandbox) -> ResolvedProgram:
        assert sandbox.workspace is not None
        return resolve_program(
            arguments, self._workspace, sandbox.workspace, None if self._bare else sandbox, self._environ
        )

    def _check_works(self) -> None:
        if not self._works and (why := self._sandbox.why_not()) is not None:
            raise CommandDenied(f"Programs can't be run here: {why.message}", why.hint)
        self._works = True

    @contextlib.contextmanager
    def _prepare(self, program: ResolvedProgram, sandbox: Sandbox, root: int) -> Iterator[_PreparedCommand]:
        assert sandbox.workspace is not None
        cwd_path = sandbox.workspace / program.cwd
        if not self._bare:
            names, tops = (*NAMES, *self._rules.placeholders()), sandbox.tops()
            with covered(root, names), protected(root, self._rules, {*NAMES, *tops}) as found:
                argv = sandbox.wrap(
                    program.argv, cwd=cwd_path, status_fd=STATUS_FD, leash_fd=LEASH_FD, protected=found.held
                )
                lent, environ = tuple(each.descriptor for each in found.held), scrubbed(self._environ, program.search)
                watch = WriteWatch.over(root, self._rules, found, {*NAMES, *tops})
                yield _PreparedCommand(argv, "/", environ, lent, _uncovered(found), watch)
            return
        with tempfile.TemporaryDirectory(prefix="kairos-") as home, folder(self._workspace, program.cwd) as cwd_fd:
            # The folder that was opened, wherever it is by now; elsewhere than on Linux the path has to do.
            exact = f"/proc/self/fd/{cwd_fd}" if sys.platform.startswith("linux") else str(cwd_path)
            yield _PreparedCommand(program.argv, exact, scrubbed(self._environ, program.search, home))


def _uncovered(found: HeldPaths) -> str | None:
    if found.survey.unseen:
        return f"beyond the first {FOLDERS:,} folders of the workspace it could write a .git, or instructions"
    if loose := found.loose():
        return f"it could write {len(loose)} that lie deep in the workspace of its .git and instructions"
    return None


def _check_base(program: ResolvedProgram, shown: Mapping[str, str | None]) -> None:
    """Raises StaleFile where the program is not the one that a person was shown."""
    for path, before in shown.items():
        if program.base.get(path) != before:
            raise StaleFile(f"{shorten_path(path)} has changed since this call was approved.", "Ask again.")


def _memory() -> int:
    """Bytes for a program and all that it starts: half of what the machine has."""
    return max(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2, LEAST_MEMORY)


def _command_result(
    program: ResolvedProgram, result: ProcessResult, timeout_s: float, remark: str | None
) -> ToolResult:
    """Exit and both streams; `remark` is what should be known of how it ran. No times: the same call with the same
    outcome is the same result."""
    code: str | None = None
    match result.why:
        case "exit":
            how = f"exit code {result.exit_code}"
        case "timeout":
            code, how = "timeout", f"ended after {timeout_s:.3g} s, its time; what it changed until then stays"
        case "stopped":
            code, how = "cancelled", "ended, since the call was stopped; what it changed until then stays"
        case "memory":
            how = f"ended: it and what it started took more than {_memory() >> 20:,} MB"
        case "tasks":
            how = f"ended: it started more than {TASKS} processes and threads"
        case "flood":
            how = f"ended: it wrote more than {FLOOD_BYTES >> 20} MB of output"
        case "not_started":
            return error_result(_not_started(program, result))
        case "no_sandbox":
            return error_result(_no_sandbox(result))
    notes = f"[{how}{f'; {remark}' if remark else ''}]"
    content = "\n".join([notes, *_stream("stdout", result.out), *_stream("stderr", result.err)])
    return ToolResult(content, result.exit_code != 0, {"exit_code": result.exit_code}, code)


def _stream(name: str, stream: CapturedStream) -> Iterator[str]:
    if stream.total:
        yield f"[{name}, {stream.total:,} bytes]"
        yield stream.text().removesuffix("\n")


def _not_started(program: ResolvedProgram, result: ProcessResult) -> CommandDenied:
    why = os.strerror(result.errno) if result.errno is not None else "no reason given"
    return CommandDenied(
        f"{shorten_path(Path(program.argv[0]).name)} could not be begun ({why}).",
        "Is it a program for this machine, with its interpreter installed, and is its folder still there?",
    )


def _no_sandbox(result: ProcessResult) -> CommandDenied:
    """bubblewrap's own words end with the system's, which name no path."""
    last = result.err.text().strip().rpartition("\n")[2].rpartition(": ")[2]
    why = os.strerror(result.errno) if result.errno is not None else last[:120] or "no reason given"
    return CommandDenied(
        f"The sandbox could not be made, in two tries ({why}); the program was not begun.",
        "Something in the workspace may be changing all the time: call again. `kairos-mcp doctor` tries the sandbox.",
    )
