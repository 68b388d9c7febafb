"""Find entries in hosts' files that start this program, and correct those with the current folder on Python's path.

Versions before this one wrote such entries where they found no script of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from kairos_mcp.cli.hostfile import HostFile
from kairos_mcp.cli.hosts import HOSTS, Host, HostName
from kairos_mcp.cli.own_start import correct_start
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.bounded_files import read_bounded
from kairos_mcp.settings.folders import user_home

_COMMAND_KEYS = ("command", "cmd")
_ADDRESS_KEYS = ("url", "uri", "httpUrl")
_OWN_ADDRESS = re.compile(r"http://127\.0\.0\.1:[0-9]{1,5}/mcp")
_SCRIPTS = ("kairos-mcp", "kairos-mcp.exe", "kairos-loop", "kairos-loop.exe")
_NAME = b"kairos"  # a file without it has no such entry, and is not parsed


class HostEntry(NamedTuple):
    """An entry that starts this program: of which host, in which file, under which name, whether that file is a
    project's, and the words that start it."""

    host: HostName
    file: Path
    name: str
    is_project: bool
    words: Sequence[str]

    @property
    def workspaces(self) -> list[str]:
        """The folders that it names, as they are written there."""
        after = [word for option, word in pairwise(self.words) if option == "--workspace"]
        return after + [word.removeprefix("--workspace=") for word in self.words if word.startswith("--workspace=")]


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
    return any(Path(word).name in _SCRIPTS for word in words) or ("-m", "kairos_mcp") in pairwise(words)


def find_own_entries(environ: Mapping[str, str], folders: Sequence[Path]) -> Iterator[HostEntry]:
    """Find the entries that start this program: in the user's files of every host, and in the files of the projects in
    `folders`. A file that can't be read has none."""
    for name, host in HOSTS.items():
        files = [(host.users_file(environ, user_home()), False)]
        if host.projects_file is not None:
            files += [(folder / host.projects_file, True) for folder in folders]
        for file, is_project in files:
            for entry, words in _list_entries(host, file).items():
                yield HostEntry(name, file, entry, is_project, words)


def _list_entries(host: Host, file: Path) -> dict[str, list[str]]:
    """Return the words of each entry of a file that starts this program, by its name."""
    try:
        if not file.is_file() or _NAME not in read_bounded(file):  # a link in a project may lead to a pipe
            return {}
        entries = HostFile.read(file, host.written_as).content.get(host.section)
    except (OSError, ConfigError):
        return {}
    if not isinstance(entries, dict):
        return {}
    return {name: _read_words(entry) or [] for name, entry in entries.items() if starts_program(entry)}


def _read_words(entry: Any) -> list[str] | None:
    """The command line of an entry; None if it has none."""
    if not isinstance(entry, dict):
        return None
    command = next((entry[key] for key in _COMMAND_KEYS if key in entry), None)
    args = entry.get("args", [])
    if not isinstance(args, list):
        return None
    words = [command, *args]
    return words if all(isinstance(word, str) for word in words) else None
