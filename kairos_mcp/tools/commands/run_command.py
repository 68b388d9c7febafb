"""The tool run_command: runs a program, given as an argument list and never through a shell, in a sandbox.

Without a sandbox nothing runs unless a person configured that. A program that fails is a failed call. What it changes
can't be known in advance, so the tool's effect is irreversible.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.errors import CommandDenied, StaleFile
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.paths import Scopes, printable_name, shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import FindParted
from kairos_mcp.core.tool import Preview, ProbeResult, Tool, ToolContext, error_result
from kairos_mcp.settings.settings import CommandMode, Settings
from kairos_mcp.store.tool_intents import intent_name
from kairos_mcp.tools.commands.call_filter import open_filter
from kairos_mcp.tools.commands.executable import ProgramReach, ResolvedProgram, open_folder, resolve_program
from kairos_mcp.tools.commands.held_paths import HeldPaths, hold_protected_paths, remove_mount_points
from kairos_mcp.tools.commands.interrupted_command import keep_survey, undo_interrupted
from kairos_mcp.tools.commands.missing_files import find_missed_file
from kairos_mcp.tools.commands.program_names import FindProgram, program_finder
from kairos_mcp.tools.commands.protected_paths import MAX_FOLDERS, IsUnreadable, ProtectionRules, SeenFolder
from kairos_mcp.tools.commands.runner import (
    FLOOD_BYTES,
    LEASH_FD,
    STATUS_FD,
    TASKS,
    CapturedStream,
    LaunchRequest,
    ProcessResult,
    run_process,
)
from kairos_mcp.tools.commands.sandbox import Sandbox, check_workspace_path, scrub_environment
from kairos_mcp.tools.commands.toolchains import (
    find_asked_path,
    find_caches,
    find_toolchains,
    shown_path,
    toolchain_variables,
)
from kairos_mcp.tools.commands.undo_writes import UndoneWrites, WriteWatch, mark_failed
from kairos_mcp.tools.commands.workspace_lock import share_workspace
from kairos_mcp.tools.departure import check_before_leaving
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.files.workspace_scopes import build_scopes, package_folder

DEFAULT_TIMEOUT_S = 60
MAX_TIMEOUT_S = 600
RESULT_MARGIN_S = 5  # of the call's time, left for killing the program and reporting the result
MIN_MEMORY = 1 << 30
MAX_READS = 8
KEY_VARIABLE = "KAIROS_IDEMPOTENCY_KEY"

COMMAND_SPEC = BUILTIN["run_command"].spec(
    "Run a program in the workspace, given as a list of arguments; no shell is involved.\n"
    "The program sees the system's programs and toolchains read-only; no network, home folder or .env files. It may "
    "write to a private /tmp and to the workspace, except to a repository's .git and to files that instruct agents and "
    "hosts (AGENTS.md, .github, …). "
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
                "maximum": MAX_TIMEOUT_S,
                "description": f"Time limit in seconds; default {DEFAULT_TIMEOUT_S}",
            },
            "reads": {
                "type": "array",
                "items": {"type": "string"},
                "maxItems": MAX_READS,
                "description": "What else it needs to read, e.g. ~/miniconda3, or a file like .env; asks a person",
            },
        },
        "required": ["argv"],
        "additionalProperties": False,
    },
    category="commands",
)


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """What a person has configured about programs: run them in a sandbox, without one (`bare`), or never (`off`).

    `hidden` are paths that no program sees; `reads` what it may read in the home folder and /tmp; `writes` are globs of
    instruction files that it may write. `environ` is the server's environment; a program gets very little of it.
    """

    mode: CommandMode = "sandboxed"
    hidden: tuple[Path, ...] = ()
    reads: tuple[Path, ...] = ()
    writes: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @staticmethod
    def from_settings(settings: Settings) -> CommandSettings:
        own_paths = (settings.home, settings.config_dirs[-1], settings.config_file)
        hidden = tuple(path for path in own_paths if path is not None)
        return CommandSettings(settings.commands, hidden, settings.command_reads, settings.command_writes)


def command_namer(workspace: Path, commands: CommandSettings) -> FindProgram | None:
    """Return what finds the names of programs that run_command would start; None if it is switched off."""
    if commands.mode == "off":
        return None
    sandbox = make_sandbox(workspace, commands)
    return program_finder(workspace, None if commands.mode == "bare" else sandbox, commands.environ)


def make_sandbox(workspace: Path, commands: CommandSettings) -> Sandbox:
    """Return the sandbox in which programs of a workspace run."""
    reads = (*find_toolchains(commands.environ), *commands.reads)
    caches = find_caches(commands.environ)
    return Sandbox(workspace, hidden=commands.hidden, sealed=(package_folder(),), reads=reads, caches=caches)


def command_tools(workspace: Workspace, commands: CommandSettings, scopes: Scopes | None = None) -> list[Tool]:
    """Return run_command, unless a person has switched it off.

    `scopes` says which files are instructions; by default, those that are so in every workspace.
    """
    if commands.mode == "off":
        return []
    runner = CommandRunner(
        workspace, commands, ProtectionRules.from_scopes(scopes or build_scopes(workspace.path), commands.writes)
    )
    examples = ({"argv": ["pytest", "-q"]}, {"argv": ["make", "test"], "cwd": "src", "timeout_s": 300})
    timeout_s = MAX_TIMEOUT_S + RESULT_MARGIN_S
    spec = replace(COMMAND_SPEC, reaches="outside") if commands.mode == "bare" else COMMAND_SPEC
    return [Tool(spec, runner.run, timeout_s, examples, runner.preview, runner.clean_up, marks_itself=True)]


@dataclass(frozen=True, slots=True)
class PreparedCommand:
    """How a program is started: the whole argument list, its folder, environment, and descriptors for its sandbox.

    `warning` says which protected paths it could write all the same, if any; `watch` finds out what it did there.
    """

    argv: Sequence[str]
    cwd: str
    environ: Mapping[str, str]
    pass_fds: tuple[int, ...] = ()
    warning: str | None = None
    watch: WriteWatch | None = None
    held: HeldPaths | None = None


class CommandRunner:
    """Runs the programs of one workspace, as a person has configured that."""

    def __init__(self, workspace: Workspace, commands: CommandSettings, rules: ProtectionRules) -> None:
        self._workspace = workspace
        self._rules = rules
        self._sandbox = make_sandbox(workspace.path, commands)
        self._bare = commands.mode == "bare"
        self._environ = commands.environ
        self._configured_reads = commands.reads
        # True also once the sandbox was tried with success; after a failure it is tried again: a person may mend it.
        self._is_usable = self._bare
        # What the last search of the workspace found, and the test for unreadable files that it was made with.
        self._searched: tuple[IsUnreadable | None, Mapping[str, SeenFolder]] = (None, {})

    def preview(self, arguments: JsonObject, ctx: ToolContext) -> Preview:
        with open_folder(self._workspace, ".") as root:
            sandbox = self._sandbox_for(root, arguments)
            program = self._resolve(arguments, sandbox)
            reads = self._describe_reads(sandbox, arguments.get("reads", ()))
            self._check_usable()  # so that nobody is asked to approve what can't be run
        if program.base_hashes.keys() & ctx.drafts.keys():
            raise StaleFile("A call before this one changes the program.", "It is judged once that was made.")
        protection = "WITHOUT A SANDBOX, as Kairos itself" if self._bare else "in a sandbox, without network"
        return Preview(f"{program.describe()}, {protection}{reads}", program.base_hashes)

    def _describe_reads(self, sandbox: Sandbox, asked: Sequence[str]) -> str:
        """Say what a call asks to read, with what links in it lead to, and what every program may."""
        if self._bare:
            return ""
        usual = [
            path for path in (*self._sandbox.reads, *(cache.path for cache in self._sandbox.caches)) if path.exists()
        ]
        shown = {
            "ASKS TO READ, for this call": [self._show_asked(text, sandbox) for text in asked],
            "reads also": [shown_path(path, self._environ) for path in usual],
        }
        return "".join(f"\n{word} {', '.join(dict.fromkeys(paths))}" for word, paths in shown.items() if paths)

    def _show_asked(self, text: str, sandbox: Sandbox) -> str:
        assert sandbox.workspace is not None
        path = find_asked_path(text, self._environ, sandbox.workspace)
        if path.is_relative_to(sandbox.workspace):
            return printable_name(path.relative_to(sandbox.workspace).as_posix())
        real = Path(os.path.realpath(path))
        leads = "" if real == path else f" (which is {printable_name(str(real))})"
        return f"{printable_name(shown_path(path, self._environ))}{leads}"

    def run(self, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        remaining_s = ctx.deadline - time.monotonic()
        timeout_s = min(
            float(arguments.get("timeout_s") or DEFAULT_TIMEOUT_S), max(remaining_s - RESULT_MARGIN_S, remaining_s / 2)
        )
        with open_folder(self._workspace, ".") as root:
            sandbox = self._sandbox_for(root, arguments)
            program = self._resolve(arguments, sandbox)
            for path, approved_hash in ctx.base_hashes.items():
                if program.base_hashes.get(path) != approved_hash:
                    raise StaleFile(f"{shorten_path(path)} has changed since this call was approved.", "Ask again.")
            self._check_usable()
            deadline = time.monotonic() + timeout_s
            ended, note, undone = self._run_program(program, sandbox, root, ctx, deadline)
            # The workspace may have changed while the sandbox was built; nothing has run yet, so try once more.
            if ended.reason == "no_sandbox":
                ended, note, undone = self._run_program(
                    program, self._sandbox_for(root, arguments), root, ctx, deadline
                )
        result = _command_result(program, ended, note, timeout_s, ctx.find_parted)
        return mark_failed(self._explain_failure(result, ended, sandbox), undone)

    def _explain_failure(self, result: ToolResult, ended: ProcessResult, sandbox: Sandbox) -> ToolResult:
        """Add what the program missed, if it failed since its sandbox does not show that."""
        if self._bare or not ended.exit_code:
            return result
        output = f"{ended.stdout.text()}\n{ended.stderr.text()}"
        missed = find_missed_file(output, sandbox, self._environ, self._configured_reads)
        if missed is None:
            return result
        asked = f"or call again with reads = {json.dumps([missed.folder], ensure_ascii=False)}, which asks a person"
        return replace(result, content=f"{result.content}\n[{missed.describe()}; {asked}]")

    def clean_up(self, arguments: JsonObject, ctx: ToolContext) -> ProbeResult:
        """Undo what the program of a call that a crash interrupted wrote at protected paths.

        Whether it did its work is for a person to tell.
        """
        if ctx.memory.recall(intent_name(ctx.path)) is None:
            return ProbeResult("not_done")
        with open_folder(self._workspace, ".") as root:
            undone = undo_interrupted(root, self._rules, ctx)
        if undone is None or not (undone.changes or undone.remarks):
            return ProbeResult("unclear")
        found = ToolResult("The server ended while this program ran.", is_error=True)
        return ProbeResult("unclear", mark_failed(found, undone))

    def _run_program(
        self, program: ResolvedProgram, sandbox: Sandbox, root: int, ctx: ToolContext, deadline: float
    ) -> tuple[ProcessResult, str | None, UndoneWrites]:
        """Run it to its end, and undo what it wrote at protected paths.

        Returns how it ended, a note on how it ran, if any, and what was undone.
        """
        with self._prepare(program, sandbox, root, ctx) as prepared:
            leaving = ctx
            if prepared.watch is not None:
                keep_survey(prepared.watch, ctx, deadline - time.monotonic() + RESULT_MARGIN_S)
                leaving = replace(ctx, is_marked=False)  # by the survey
            result = run_process(
                LaunchRequest(
                    prepared.argv,
                    not self._bare,
                    prepared.cwd,
                    {**prepared.environ, KEY_VARIABLE: ctx.key},
                    deadline,
                    lambda: ctx.stop.is_set,
                    _memory_limit(),
                    prepared.pass_fds,
                    check_before_leaving(leaving, COMMAND_SPEC.effect),
                )
            )
            undone = UndoneWrites()
            if prepared.watch is not None and prepared.held is not None:
                remove_mount_points(root, prepared.held)
                undone = prepared.watch.undo(ctx.memory.keep_taken, f"{ctx.path}/taken-out")
        return result, "without a sandbox" if self._bare else prepared.warning, undone

    def _sandbox_for(self, root: int, arguments: JsonObject) -> Sandbox:
        """Return the sandbox around the workspace that is open as `root`, with what this call asks to read.

        Raises NotFound, PathDenied for what no call may ask for.
        """
        assert self._sandbox.workspace is not None, "run_command is made for a workspace"
        workspace = check_workspace_path(self._sandbox.workspace, root)
        asked = (find_asked_path(text, self._environ, workspace) for text in arguments.get("reads", ()))
        outside = tuple(path for path in asked if not path.is_relative_to(workspace))  # the gate opens what is within
        return replace(self._sandbox, workspace=workspace, reads=(*self._sandbox.reads, *outside))

    def _resolve(self, arguments: JsonObject, sandbox: Sandbox) -> ResolvedProgram:
        return self._resolve_in(self._workspace, arguments, sandbox)

    def _resolve_in(self, workspace: Workspace, arguments: JsonObject, sandbox: Sandbox) -> ResolvedProgram:
        assert sandbox.workspace is not None
        return resolve_program(
            arguments,
            workspace,
            sandbox.workspace,
            ProgramReach(None if self._bare else sandbox, self._environ, self._configured_reads),
        )

    def _check_usable(self) -> None:
        if not self._is_usable and (problem := self._sandbox.find_problem()) is not None:
            raise CommandDenied(f"Programs can't be run here: {problem.message}", problem.hint)
        self._is_usable = True

    def _find_unreadable(self, ctx: ToolContext) -> IsUnreadable | None:
        """Return the test for files that the program must not read; a person opens some by command_reads."""
        is_hidden, root = ctx.is_hidden, self._sandbox.workspace
        if is_hidden is None or root is None:
            return None
        opened = [Path(os.path.realpath(path)) for path in self._configured_reads]
        real = Path(os.path.realpath(root))
        inside = [path.relative_to(real).as_posix() for path in opened if path.is_relative_to(real)]
        return lambda path: is_hidden(path) and not any(path == one or path.startswith(f"{one}/") for one in inside)

    @contextlib.contextmanager
    def _prepare(
        self, program: ResolvedProgram, sandbox: Sandbox, root: int, ctx: ToolContext
    ) -> Iterator[PreparedCommand]:
        assert sandbox.workspace is not None
        cwd_path = sandbox.workspace / program.cwd
        if not self._bare:
            top_names, is_unreadable = sandbox.protected_top_names(), self._find_unreadable(ctx)
            hidden_by, seen = self._searched
            known = seen if hidden_by is ctx.is_hidden else {}
            with (
                share_workspace(root),
                hold_protected_paths(root, self._rules, top_names, is_unreadable, known) as held,
                open_filter() as filter_fd,
            ):
                self._searched = (ctx.is_hidden, held.survey.seen)
                argv = sandbox.wrap(
                    program.argv,
                    cwd=cwd_path,
                    status_fd=STATUS_FD,
                    leash_fd=LEASH_FD,
                    filter_fd=filter_fd,
                    protected=held.entries,
                    unreadable=held.survey.unreadable,
                )
                pass_fds = (filter_fd, *(entry.descriptor for entry in held.entries))
                environ = scrub_environment(self._environ, program.search_path) | toolchain_variables(self._environ)
                watch = WriteWatch.start(root, self._rules, held, top_names, is_unreadable)
                yield PreparedCommand(argv, "/", environ, pass_fds, _describe_uncovered(held), watch, held)
            return
        with tempfile.TemporaryDirectory(prefix="kairos-") as home, open_folder(self._workspace, program.cwd) as cwd_fd:
            # Exactly the folder that was opened, even if it was moved; only Linux can do that.
            cwd = f"/proc/self/fd/{cwd_fd}" if sys.platform.startswith("linux") else str(cwd_path)
            yield PreparedCommand(program.argv, cwd, scrub_environment(self._environ, program.search_path, home))


def _describe_uncovered(held: HeldPaths) -> str | None:
    if held.survey.unvisited:
        named = ", ".join(shorten_path(printable_name(folder)) for folder in sorted(held.survey.unvisited)[:3])
        return (
            f"beyond the first {MAX_FOLDERS:,} folders of the workspace, or in those that can't be listed, it could "
            f"write a .git, or instructions: {named}"
        )
    if unheld := [path for path in held.list_unheld() if not held.survey.entries[path].is_bare]:
        return f"it could write {len(unheld)} .git folders or instruction files that lie deep in the workspace"
    return None


def _memory_limit() -> int:
    """Return the bytes that a program and all that it starts may use: half of the machine's memory."""
    return max(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2, MIN_MEMORY)


def _command_result(
    program: ResolvedProgram, result: ProcessResult, note: str | None, timeout_s: float, find_parted: FindParted
) -> ToolResult:
    """Build the result: how the program ended and ran, and both streams.

    It states no duration, so that the same call with the same outcome gives the same result.
    """
    code = None
    match result.reason:
        case "exit":
            ending = f"exit code {result.exit_code}"
        case "timeout":
            code = "timeout"
            ending = f"killed after {timeout_s:.3g} s, its time limit; what it changed until then stays"
        case "stopped":
            code = "cancelled"
            ending = "killed, since the call was stopped; what it changed until then stays"
        case "memory":
            ending = f"killed: it and what it started used more than {_memory_limit() >> 20:,} MB"
        case "tasks":
            ending = f"killed: it started more than {TASKS} processes and threads"
        case "flood":
            ending = f"killed: it wrote more than {FLOOD_BYTES >> 20} MB of output"
        case "not_started":
            return error_result(_not_started_error(program, result))
        case "no_sandbox":
            return error_result(_no_sandbox_error(result))
    notes = f"[{ending}{f'; {note}' if note else ''}]"
    stdout = _format_stream("stdout", result.stdout, find_parted)
    stderr = _format_stream("stderr", result.stderr, find_parted)
    content = "\n".join([notes, *stdout, *stderr])
    return ToolResult(content, result.exit_code != 0, {"exit_code": result.exit_code}, code)


def _format_stream(name: str, stream: CapturedStream, find_parted: FindParted) -> Iterator[str]:
    if stream.total:
        yield f"[{name}, {stream.total:,} bytes]"
        yield stream.text(find_parted).removesuffix("\n")


def _not_started_error(program: ResolvedProgram, result: ProcessResult) -> CommandDenied:
    reason = os.strerror(result.errno) if result.errno is not None else "no reason given"
    return CommandDenied(
        f"{shorten_path(Path(program.argv[0]).name)} could not be started ({reason}).",
        "Is it a program for this machine, with its interpreter installed, and is its folder still there?",
    )


def _no_sandbox_error(result: ProcessResult) -> CommandDenied:
    """Build the error for a sandbox that could not be made. Of bubblewrap's message only the last part is quoted: it is
    the system's own and names no path."""
    last = result.stderr.text().strip().rpartition("\n")[2].rpartition(": ")[2]
    reason = os.strerror(result.errno) if result.errno is not None else last[:120] or "no reason given"
    return CommandDenied(
        f"The sandbox could not be made, in two tries ({reason}); the program was not started.",
        "Something in the workspace may be changing all the time: call again. `kairos-mcp doctor` tries the sandbox.",
    )
