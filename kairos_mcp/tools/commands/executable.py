"""Which program a call means: found once, on a PATH that no run can write, and shown in full before it runs."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kairos_mcp.core.errors import BadArguments, CommandDenied, KairosError, NotFound
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.paths import plain_path, shorten_path
from kairos_mcp.tools.commands.sandbox import Sandbox, search_path
from kairos_mcp.tools.files.safe_open import FOLDER
from kairos_mcp.tools.files.workspace import Workspace, open_error

ARGUMENT_BYTES = 128 * 1024 - 1  # MAX_ARG_STRLEN of Linux
LIST_BYTES = 1 << 20  # half of what Linux takes, with room for the sandbox's own
PROGRAM_BYTES = 256 << 20  # a larger program of the workspace is not hashed
_STEP = 1 << 20
HINT = 'argv is the program and its arguments, one text each, as ["ls", "-l", "src"].'


@dataclass(frozen=True, slots=True)
class ResolvedProgram:
    """`argv` with the program as an absolute path; `cwd` a plain path; `search` its PATH. `base`: the program's own
    SHA-256 by plain path, where it lies in the workspace."""

    argv: tuple[str, ...]
    cwd: str
    search: str
    base: Mapping[str, str | None]

    def shown(self) -> str:
        """The call for a person to decide on: what is run where, each argument apart where one could be misread."""
        program, *rest = self.argv
        lines = [f"program: {_quoted(program)}", f"folder:  {_quoted(self.cwd)}"]
        if all(_plain(argument) for argument in self.argv):
            return "\n".join([*lines, f"command: {shlex.join(self.argv)}"])
        return "\n".join([*lines, *(f"argument {n}: {_quoted(argument)}" for n, argument in enumerate(rest, 1))])


def resolve_program(
    arguments: JsonObject, workspace: Workspace, root: Path, sandbox: Sandbox | None, environ: Mapping[str, str]
) -> ResolvedProgram:
    """The program of a call whose arguments fit the schema. `root` is the workspace's real path; without `sandbox`
    everything is seen.

    Raises BadArguments, PathDenied, NotFound, NotRegularFile, CommandDenied.
    """
    argv: list[str] = arguments["argv"]
    _check(argv)
    cwd = plain_path(arguments.get("cwd") or ".")
    with folder(workspace, cwd):
        search = search_path(environ, [root], sandbox)
    found = _found(argv[0], root, cwd, search, environ)
    if sandbox is not None and not sandbox.sees(found):
        raise _unseen(argv[0])
    if not os.access(found, os.X_OK):
        raise CommandDenied(
            f"{shorten_path(argv[0])} is not executable.", "Name its interpreter first, as python or sh."
        )
    return ResolvedProgram((str(found), *argv[1:]), cwd, search, _base(workspace, root, found))


@contextmanager
def folder(workspace: Workspace, plain: str) -> Iterator[int]:
    """A folder's descriptor, open while the block runs. Raises as the opener does."""
    try:
        fd = workspace.open_fd(plain, FOLDER)
    except OSError as error:
        raise open_error(error, plain) from None
    try:
        yield fd
    finally:
        os.close(fd)


def _check(argv: Sequence[str]) -> None:
    if not argv[0]:
        raise BadArguments("The program's name is empty.", HINT)
    total = 0
    for number, argument in enumerate(argv):
        if "\0" in argument:
            raise BadArguments(f"argv[{number}] holds a NUL character.", HINT)
        try:
            size = len(argument.encode())
        except UnicodeEncodeError:
            raise BadArguments(f"argv[{number}] holds a lone surrogate.", HINT) from None
        if size > ARGUMENT_BYTES:
            raise BadArguments(f"argv[{number}] has {size:,} bytes; {ARGUMENT_BYTES:,} are the most.", "Use a file.")
        total += size + 1
    if total > LIST_BYTES:
        raise BadArguments(f"argv has {total:,} bytes; {LIST_BYTES:,} are the most.", "Put them into a file.")


def _found(name: str, root: Path, cwd: str, search: str, environ: Mapping[str, str]) -> Path:
    """A bare name is looked for in PATH; one with a slash is a path, relative to `cwd` or absolute."""
    if "/" not in name:
        found = shutil.which(name, path=search)
        if found is not None:
            return Path(found)
        elsewhere = shutil.which(name, path=environ.get("PATH", ""))
        if elsewhere is not None and not Path(os.path.realpath(elsewhere)).is_relative_to(root):
            raise _unseen(name)
        raise NotFound(
            f"There is no program {shorten_path(name)!r} in PATH.", "A program of the workspace is named as ./NAME."
        )
    path = Path(name) if name.startswith("/") else root / plain_path(f"{cwd}/{name}")
    try:
        regular = path.is_file()
    except (OSError, ValueError):
        regular = False
    if not regular:
        raise NotFound(f"There is no program {shorten_path(name)!r}.", "list_files shows what the workspace holds.")
    return path


def _unseen(name: str) -> CommandDenied:
    return CommandDenied(
        f"{shorten_path(name)!r} lies where a run's programs can't look:"
        " in a home folder, in /tmp, or among the server's own.",
        "Use another, or a person lists its folder in command_reads.",
    )


def _base(workspace: Workspace, root: Path, found: Path) -> dict[str, str | None]:
    real = Path(os.path.realpath(found))
    if not real.is_relative_to(root):
        return {}
    plain = real.relative_to(root).as_posix()
    try:
        with workspace.open_file(plain) as opened:
            if opened.size > PROGRAM_BYTES:
                return {}
            digest, offset = sha256(), 0
            while piece := opened.read(_STEP, offset):
                digest.update(piece)
                offset += len(piece)
            return {plain: digest.hexdigest()}
    except KairosError:  # not readable by us: nothing to hold it to
        return {}


def _plain(argument: str) -> bool:
    return argument.isascii() and argument.isprintable() and not argument.isspace() and len(argument) <= 200


def _quoted(argument: str) -> str:
    """One line whatever it holds, and nothing in it that only looks like something else: escaped as Python has it."""
    return argument if _plain(argument) and shlex.quote(argument) == argument else ascii(argument)
