"""Resolves the program that a call names, once, on a PATH that no run can write; shows it in full before it runs."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from kairos_mcp.core.errors import BadArguments, CommandDenied, KairosError, NotFound
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.paths import plain_path, shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.commands.program_files import follow_links, list_interpreters
from kairos_mcp.tools.commands.sandbox import Sandbox, build_search_path
from kairos_mcp.tools.commands.toolchains import reading_folder, reading_line, shown_path
from kairos_mcp.tools.files.safe_open import FOLDER
from kairos_mcp.tools.files.workspace import Workspace, open_error

ARGUMENT_BYTES = 128 * 1024 - 1  # MAX_ARG_STRLEN of Linux
LIST_BYTES = 1 << 20  # half of what Linux takes: the sandbox needs arguments too
PROGRAM_BYTES = 256 << 20  # a larger program of the workspace is not hashed
_CHUNK_BYTES = 1 << 20
ARGV_HINT = 'argv is the program and its arguments, one text each, as ["ls", "-l", "src"].'


@dataclass(frozen=True, slots=True)
class ResolvedProgram:
    """A program ready to run. `argv` begins with its absolute path; `cwd` is a plain path; `search_path` is its PATH.

    `base_hashes` holds the SHA-256 of the program's file by its plain path, if it lies in the workspace.
    """

    argv: tuple[str, ...]
    cwd: str
    search_path: str
    base_hashes: Mapping[str, str | None]

    def describe(self) -> str:
        """Describe the call to a person: the command, with one argument a line if any could be misread; then where it
        runs. It is short, since a client's dialog shows few lines."""
        program, *rest = self.argv
        lines = [f"$ {shlex.join(self.argv)}"]
        if not all(_is_plain(argument) for argument in self.argv):
            lines = [
                f"$ {_quote(program)}",
                *(f"argument {n}: {_quote(argument)}" for n, argument in enumerate(rest, 1)),
            ]
        return "\n".join([*lines, "in the workspace" if self.cwd == "." else f"in {_quote(self.cwd)}"])


@dataclass(frozen=True, slots=True)
class ProgramReach:
    """What a program can reach: those that a `sandbox` lets it read (None: all), found by the server's `environ`.

    `configured`: what the setting command_reads names.
    """

    sandbox: Sandbox | None
    environ: Mapping[str, str]
    configured: Sequence[Path] = ()


def resolve_program(arguments: JsonObject, workspace: Workspace, root: Path, reach: ProgramReach) -> ResolvedProgram:
    """Find the program that a call's arguments (already checked against the schema) name.

    `root` is the workspace's real path. The program, what it is a link to, and the interpreter that its first line
    names must be there and be readable, so that nobody is asked about what can't be started.
    Raises BadArguments, PathDenied, NotFound, NotRegularFile, CommandDenied.
    """
    sandbox, environ = reach.sandbox, reach.environ
    argv: list[str] = arguments["argv"]
    _check_argv(argv)
    cwd = plain_path(arguments.get("cwd") or ".")
    with open_folder(workspace, cwd):
        search_path = build_search_path(environ, [root], sandbox)
    program = _locate_program(argv[0], root, cwd, search_path, reach)
    _check_readable(argv[0], program, reach)
    if not os.access(program, os.X_OK):
        raise CommandDenied(
            f"{shorten_path(argv[0])} is not executable.", "Name its interpreter first, as python or sh."
        )
    _check_interpreter(argv[0], program, search_path, reach)
    return ResolvedProgram((str(program), *argv[1:]), cwd, search_path, _hash_program(workspace, root, program))


@contextmanager
def open_folder(workspace: Workspace, path: str) -> Iterator[int]:
    """Open a folder of the workspace while the block runs; yields its descriptor. Raises PathDenied, NotFound."""
    try:
        fd = workspace.open_fd(path, FOLDER)
    except OSError as error:
        raise open_error(error, path) from None
    try:
        yield fd
    finally:
        os.close(fd)


def _check_argv(argv: Sequence[str]) -> None:
    if not argv[0]:
        raise BadArguments("The program's name is empty.", ARGV_HINT)
    total = 0
    for number, argument in enumerate(argv):
        if "\0" in argument:
            raise BadArguments(f"argv[{number}] holds a NUL character.", ARGV_HINT)
        try:
            size = len(argument.encode())
        except UnicodeEncodeError:
            raise BadArguments(f"argv[{number}] holds a lone surrogate.", ARGV_HINT) from None
        if size > ARGUMENT_BYTES:
            raise BadArguments(
                f"argv[{number}] has {size:,} bytes; at most {ARGUMENT_BYTES:,} are allowed.", "Use a file."
            )
        total += size + 1
    if total > LIST_BYTES:
        raise BadArguments(f"argv has {total:,} bytes; at most {LIST_BYTES:,} are allowed.", "Put them into a file.")


def _locate_program(name: str, root: Path, cwd: str, search_path: str, reach: ProgramReach) -> Path:
    """Find the program's file: a bare name in PATH; one with a slash is a path, absolute or relative to `cwd`."""
    if "/" not in name:
        found = shutil.which(name, path=search_path)
        if found is not None:
            return Path(found)
        elsewhere = shutil.which(name, path=reach.environ.get("PATH", ""))
        if elsewhere is not None and not Path(os.path.realpath(elsewhere)).is_relative_to(root):
            raise _unreadable_error(name, Path(elsewhere), reach)
        raise NotFound(
            f"There is no program {shorten_path(name)!r} in PATH.", "A program of the workspace is named as ./NAME."
        )
    path = Path(name) if name.startswith("/") else root / plain_path(f"{cwd}/{name}")
    try:
        is_file = path.is_file()
    except (OSError, ValueError):
        is_file = False
    if not is_file and path.is_symlink():
        raise NotFound(
            f"{shorten_path(name)!r} is a link to {_show(follow_links(path)[-1], reach)}, which is not there.",
            "Install what made the link, or make the link again.",
        )
    if not is_file:
        raise NotFound(f"There is no program {shorten_path(name)!r}.", "list_files shows what the workspace holds.")
    return path


def _check_readable(name: str, program: Path, reach: ProgramReach) -> None:
    """Raise CommandDenied unless a sandboxed program sees this file, and every link on the way to it."""
    if reach.sandbox is None:
        return
    *links, file = follow_links(program)
    for path in (*links, file):
        if not reach.sandbox.can_read(file if path is file else path.parent):
            raise _unreadable_error(name, path, reach)


def _check_interpreter(name: str, program: Path, search_path: str, reach: ProgramReach) -> None:
    """Raise NotFound or CommandDenied where the interpreter that a script's first line names can't be started."""
    for interpreter, file in list_interpreters(program, search_path, reach.environ.get("PATH", "")):
        if not file.exists():
            raise NotFound(
                f"{shorten_path(name)!r} is run by {_quote(interpreter)[:200]}, by its first line, which is not there.",
                "Install that, or name another interpreter first, as python or sh.",
            )
        _check_readable(f"{interpreter}, which runs {name},", file, reach)


def _unreadable_error(name: str, path: Path, reach: ProgramReach) -> CommandDenied:
    """`path`: what a sandboxed program would have to see, and does not."""
    real = Path(os.path.realpath(path))
    hidden = () if reach.sandbox is None else reach.sandbox.hidden
    if any(real.is_relative_to(os.path.realpath(folder)) for folder in hidden):
        return CommandDenied(
            f"{shorten_path(name)} is among the server's own files, which no program sees.", "Use another."
        )
    line = reading_line(path, reach.configured, reach.environ)
    asked = json.dumps(shown_path(reading_folder(path, reach.environ), reach.environ), ensure_ascii=False)
    return CommandDenied(
        f"{shorten_path(name)} is there, but a run's programs can't look at {_show(path, reach)}.",
        f"Use another, or a person lets them read it and restarts the server: {line} in kairos.toml. For one call "
        f"alone: call again with reads = [{asked}], which asks a person.",
    )


def _show(path: Path, reach: ProgramReach) -> str:
    return shorten_path(shown_path(path, reach.environ))


def _hash_program(workspace: Workspace, root: Path, program: Path) -> dict[str, str | None]:
    real = Path(os.path.realpath(program))
    if not real.is_relative_to(root):
        return {}
    path = real.relative_to(root).as_posix()
    try:
        with workspace.open_file(path) as opened:
            if opened.size > PROGRAM_BYTES:
                return {}
            digest, offset = sha256(), 0
            while piece := opened.read(_CHUNK_BYTES, offset):
                digest.update(piece)
                offset += len(piece)
            return {path: digest.hexdigest()}
    except KairosError:  # we can't read it, so there is no content to compare later
        return {}


def _is_plain(argument: str) -> bool:
    return argument.isascii() and argument.isprintable() and not argument.isspace() and len(argument) <= 200


def _quote(argument: str) -> str:
    """Return the argument as one line; Python's escapes stand for whatever could be misread."""
    return argument if _is_plain(argument) and shlex.quote(argument) == argument else ascii(argument)
