"""Explains what a program in a sandbox missed: a program or a library that is on this machine and is not shown inside.

The output of a failed program names what it did not find. These names are looked up outside; only programs, libraries
and their folders are reported, so that no output finds out which other files there are.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kairos_mcp.core.paths import shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.commands.program_files import follow_links, list_interpreters
from kairos_mcp.tools.commands.sandbox import Sandbox
from kairos_mcp.tools.commands.toolchains import reading_folder, reading_line, shown_path

MAX_OUTPUT_CHARS = 16_384  # of its end, where failures are reported
MAX_NAMES = 40
_LOADER_CACHE = Path("/etc/ld.so.cache")
_LOADER_CACHE_BYTES = 4 << 20
_PATH = re.compile(r"/[\w.+@/-]+")
_LIBRARY = re.compile(r"(\blib[\w.+-]+\.so(?:\.\d+)*)")
# What shells, env, Python, Node and Go say of a program that is not on their PATH.
_PROGRAM = re.compile(
    r"""([\w.+-]+):\ (?:command\ )?not\ found
    | (?:env|exec):\ ['"\u2018]?([\w.+-]+)['"\u2019]?:\ (?:No\ such\ file|executable\ file\ not\ found)
    | No\ such\ file\ or\ directory:\ '([\w.+-]+)'
    | spawn\ ([\w.+-]+)\ ENOENT""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class MissedFile:
    """A program or library that is there outside, `where`, and not inside; `line` of the settings file opens it, and a
    call may ask to read `folder`."""

    name: str
    where: str
    folder: str
    line: str

    def describe(self) -> str:
        hidden = f"{self.name} is there, at {self.where}, but the sandbox does not show it"
        return f"{hidden}; {self.line} in kairos.toml opens it"


def find_missed_file(
    output: str, sandbox: Sandbox, environ: Mapping[str, str], configured: Sequence[Path] = ()
) -> MissedFile | None:
    """Return what is there outside and was missed inside; None where nothing is known of it.

    `output`: what the program has written. `environ`: the server's environment. `configured`: what command_reads
    names now.
    """
    for name, path in _list_named_files(output[-MAX_OUTPUT_CHARS:], environ):
        hidden = _find_hidden_file(path, sandbox, environ)
        if hidden is not None:
            line = reading_line(hidden, configured, environ)
            where = shorten_path(shown_path(hidden, environ))
            return MissedFile(name, where, shown_path(reading_folder(hidden, environ), environ), line)
    return None


def _list_named_files(output: str, environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    names = [next(filter(None, found.groups())) for found in _PROGRAM.finditer(output)]
    for name in dict.fromkeys(names[:MAX_NAMES]):
        found_program = shutil.which(name, path=environ.get("PATH", ""))
        if found_program is not None:
            yield name, Path(found_program)
    for name in dict.fromkeys(_LIBRARY.findall(output)[:MAX_NAMES]):
        yield from ((name, path) for path in _find_library(name, environ))
    for text in dict.fromkeys(_PATH.findall(output)[-MAX_NAMES:]):
        path = Path(text.rstrip("."))
        if path.is_file() and (os.access(path, os.X_OK) or ".so" in path.name):
            yield path.name, path


def _find_hidden_file(path: Path, sandbox: Sandbox, environ: Mapping[str, str]) -> Path | None:
    """Return the first file on the way from a path to what it starts that is outside the view; None for our own."""
    whole_path = environ.get("PATH", "")
    files = [*follow_links(path), *(file for _, file in list_interpreters(path, whole_path, whole_path))]
    for file in (link for each in files for link in follow_links(each)):
        real = Path(os.path.realpath(file))
        if any(real.is_relative_to(os.path.realpath(folder)) for folder in sandbox.hidden):
            return None
        shows = sandbox.can_read(file.parent) if file.is_symlink() else sandbox.can_read(file)
        if not shows and file.exists():
            return file
    return None


def _find_library(name: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield where the loader would find a library outside: in LD_LIBRARY_PATH, in its cache, beside the programs."""
    folders = [part for part in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if part]
    folders += [f"{os.path.dirname(part)}/lib" for part in environ.get("PATH", "").split(os.pathsep) if part]
    yield from (Path(folder, name) for folder in folders if Path(folder, name).is_file())
    try:
        with _LOADER_CACHE.open("rb") as file:
            cache = file.read(_LOADER_CACHE_BYTES)
    except OSError:
        return
    for found in re.findall(rb"\0(/[^\0]*/" + re.escape(name.encode()) + rb")(?=\0)", cache):
        yield Path(os.fsdecode(found))
