"""Find entries in hosts' files that start this program with the current folder on Python's path, and correct them.

Versions before this one wrote such entries where they found no script of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from kairos_mcp.cli.hostfile import HostFile
from kairos_mcp.cli.hosts import HOSTS, Host, HostName
from kairos_mcp.cli.own_start import correct_start, find_unsafe_start
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.bounded_files import read_bounded
from kairos_mcp.settings.folders import user_home

_COMMAND_KEYS = ("command", "cmd")
_ADDRESS_KEYS = ("url", "uri", "httpUrl")
_OWN_ADDRESS = re.compile(r"http://127\.0\.0\.1:[0-9]{1,5}/mcp")
_SCRIPTS = ("kairos-mcp", "kairos-mcp.exe", "kairos-loop", "kairos-loop.exe")
_MODULE = b"kairos_mcp"  # a file without it has no such entry, and is not parsed


def correct_entry(entry: Any, program: Sequence[str]) -> JsonObject | None:
    """Return the entry with a start that is safe, and all else as it is; None if it needs no correction."""
    words = _read_words(entry)
    corrected = None if words is None else correct_start(words, program)
    if corrected is None:
        return None
    key = next(key for key in _COMMAND_KEYS if key in entry)
    return {**entry, key: corrected[0], "args": corrected[1:]}


def is_own_entry(entry: Any) -> bool:
    """Whether an entry starts this program, or reaches it over HTTP on this machine as `install --http` writes it."""
    if starts_program(entry):
        return True
    address = next((entry[key] for key in _ADDRESS_KEYS if key in entry), None) if isinstance(entry, dict) else None
    return isinstance(address, str) and _OWN_ADDRESS.fullmatch(address) is not None


def starts_program(entry: Any) -> bool:
    """Whether an entry starts this program, by its script, by uvx or by Python, perhaps behind a wrapper."""
    words = _read_words(entry) or []
    return any(Path(word).name in _SCRIPTS for word in words) or ("-m", _MODULE.decode()) in pairwise(words)


def find_unsafe_entries(
    environ: Mapping[str, str], folders: Sequence[Path]
) -> Iterator[tuple[HostName, Path, str, bool]]:
    """Find the entries that run modules of the folder that a host opens: in the user's files of every host, and in the
    files of the projects in `folders`. A file that can't be read has none.

    Yields whose it is, its file, its name, and whether the file is a project's.
    """
    for name, host in HOSTS.items():
        files = [(host.users_file(environ, user_home()), False)]
        if host.projects_file is not None:
            files += [(folder / host.projects_file, True) for folder in folders]
        for file, is_project in files:
            for entry in _list_unsafe(host, file):
                yield name, file, entry, is_project


def _list_unsafe(host: Host, file: Path) -> list[str]:
    try:
        if not file.is_file() or _MODULE not in read_bounded(file):  # a link in a project may lead to a pipe
            return []
        entries = HostFile.read(file, host.written_as).content.get(host.section)
    except (OSError, ConfigError):
        return []
    if not isinstance(entries, dict):
        return []
    words = {name: _read_words(entry) for name, entry in entries.items()}
    return [name for name, found in words.items() if found is not None and find_unsafe_start(found) is not None]


def _read_words(entry: Any) -> list[str] | None:
    """The command line of an entry; None where it is none."""
    if not isinstance(entry, dict):
        return None
    command = next((entry[key] for key in _COMMAND_KEYS if key in entry), None)
    args = entry.get("args", [])
    if not isinstance(args, list):
        return None
    words = [command, *args]
    return words if all(isinstance(word, str) for word in words) else None
