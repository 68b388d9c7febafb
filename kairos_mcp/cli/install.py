"""`install`: the entry with which an MCP host starts this server, printed, written into the host's file, or removed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.host_entries import correct_entry, is_own_entry, starts_program
from kairos_mcp.cli.hostfile import HostFile
from kairos_mcp.cli.hosts import HOSTS, Host, HostName, find_host
from kairos_mcp.cli.http_entries import find_token, make_http_entry
from kairos_mcp.cli.options import AllFlags
from kairos_mcp.cli.own_start import find_distribution, installed_words
from kairos_mcp.cli.settings import read_settings
from kairos_mcp.cli.terminal import print_line, print_note
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.folders import current_folder
from kairos_mcp.settings.settings import Flags

ENTRY = "kairos"


def install(
    name: Annotated[
        str, typer.Argument(metavar="HOST", help=f"{', '.join(HOSTS)}.", autocompletion=lambda: list(HOSTS))
    ],
    *,
    write: Annotated[bool, typer.Option("--write", help="Edit the host's file; a copy of it is kept.")] = False,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Remove the entry; a copy is kept.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an entry that differs.")] = False,
    project: Annotated[
        bool, typer.Option("--project", help="Use the project's file in this folder, not the user's.")
    ] = False,
    http: Annotated[
        bool, typer.Option("--http", help="An entry for `serve --transport http`, with your token.")
    ] = False,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=1, max=65535, help="With --http: the port of that server.")
    ] = 8765,
    flags: AllFlags,
) -> int:
    """Add this server to a host: print the entry for the host's file, or write it with --write.

    Without --workspace, an entry for all projects works in the open folder, if the host can name it.
    """
    if uninstall and (write or force):
        raise BadArguments(
            "--uninstall can't be combined with --write or --force.",
            "It edits the host's file by itself; leave them out.",
        )
    host = find_host(name)
    chosen = HOSTS[host]
    file = chosen.file(os.environ, project=project)
    if uninstall:
        return _remove_entry(chosen, file)
    if http:
        entry, is_secret = _http_entry(host, flags, port, writes=write, project=project)
        return _print_or_write(chosen, file, entry, write=write, force=force, is_secret=is_secret)
    open_folder = None
    if project and not flags.workspaces:
        read_settings(Flags(flags.home, (str(current_folder()),), flags.config))
        open_folder = chosen.open_folder  # a file that a team shares names no folder of this machine
        if open_folder is None:
            flags = Flags(flags.home, (str(current_folder()),), flags.config)
        print_note("The program's path is that of this machine; other members of a team run install too.")
    settings = read_settings(flags)  # an entry that could not start is not installed
    if open_folder is None and settings.origins["workspaces"] not in ("flag", "file"):  # the host's environment differs
        open_folder = chosen.open_folder
        if open_folder is None:
            print_note("No --workspace is given: this entry has no file tools.")
    entry = chosen.make_entry(server_command(flags, open_folder))
    return _print_or_write(chosen, file, entry, write=write, force=force)


def _print_or_write(
    host: Host, file: Path, entry: JsonObject, *, write: bool, force: bool, is_secret: bool = False
) -> int:
    if write:
        return _write_entry(host, file, entry, force=force, is_secret=is_secret)
    print_line(host.written_as.set_entry("", host.section, ENTRY, entry).rstrip())
    print_note(f"Add this to {file}, or let --write do it.")
    return COMPLETED


def _http_entry(host: HostName, flags: Flags, port: int, *, writes: bool, project: bool) -> tuple[JsonObject, bool]:
    """Return an entry for our server over HTTP, and whether it holds a token: of files it does so in the user's alone,
    and it is shown on a terminal alone."""
    if flags.workspaces:
        raise BadArguments(
            "--workspace can't be combined with --http.", "Give it to `kairos-mcp serve --transport http`."
        )
    settings = read_settings(flags)
    may_hold_token = not project and (writes or sys.stdout.isatty())
    token = find_token(settings) if may_hold_token else None
    entry = make_http_entry(host, f"http://127.0.0.1:{port}/mcp", token)
    print_note(f"`kairos-mcp serve --transport http --port {port}` has to run.")
    return entry, token is not None


def server_command(flags: Flags, open_folder: str | None) -> list[str]:
    """The command that starts this server, with absolute paths: a host has a folder and a PATH of its own.

    `open_folder`: the host's word for the folder that is open, as the workspace."""
    words = [*_program(), "serve"]
    if flags.home is not None:
        words += ["--home", os.path.abspath(os.path.expanduser(flags.home))]
    for folder in flags.workspaces:
        words += ["--workspace", os.path.abspath(os.path.expanduser(folder))]
    if open_folder is not None:
        words += ["--workspace", open_folder]
    if flags.config is not None:
        words += ["--config", os.path.abspath(os.path.expanduser(flags.config))]
    return words


def _write_entry(host: Host, file: Path, entry: JsonObject, *, force: bool, is_secret: bool) -> int:
    """Write the entry, never over another one of the same name without `force`; of one whose start is unsafe the start
    alone is corrected. Raises ConfigError."""
    found = HostFile.read(file, host.written_as)
    before = found.entry(host.section, ENTRY)
    if before == entry:
        print_line(f"{file} has this entry already.")
        return COMPLETED
    corrected = None if before is None or force else correct_entry(before, _program())
    starts = "command" in entry or "cmd" in entry
    if corrected is not None and starts:
        print_note("The old entry let Python import modules from the folder that the host opens.")
        if corrected != entry:
            print_note("Its command is corrected and its options are unchanged. --force replaces them too.")
        entry = corrected
    elif before is not None and not force and (starts or not starts_program(before)):
        raise ConfigError(
            f"{file} has another entry {ENTRY!r} under {host.section!r}.",
            "Nothing was changed; --force replaces it and keeps a copy of the file.",
        )
    copy = found.set_entry(host.section, ENTRY, entry, is_secret=is_secret)
    print_line(f"Written: {file}")
    _print_copy(copy)
    print_note(host.then)
    return COMPLETED


def _remove_entry(host: Host, file: Path) -> int:
    found = HostFile.read(file, host.written_as)
    entry = found.entry(host.section, ENTRY)
    if entry is None:
        print_line(f"{file} has no entry {ENTRY!r}; nothing was changed.")
        return COMPLETED
    if not is_own_entry(entry):
        raise ConfigError(
            f"The entry {ENTRY!r} under {host.section!r} in {file} does not start this program.",
            "Nothing was changed; if you no longer need the entry, remove it by hand.",
        )
    copy = found.remove_entry(host.section, ENTRY)
    print_line(f"Removed: {ENTRY} from {file}")
    _print_copy(copy)
    print_note(f"Restart {host.name}: its server runs until then.")
    print_note("State and settings of Kairos are kept.")
    return COMPLETED


def _print_copy(copy: Path | None) -> None:
    if copy is not None:
        print_line(f"As it was before: {copy}")


def _program() -> list[str]:
    """The words that start what is installed; where uvx started it, uvx with what it was given. Raises ConfigError."""
    # what uvx installs lies in uv's cache, which is pruned; a virtual environment bears the tag of a cache itself
    if (uv := os.environ.get("UV")) and any((folder / "CACHEDIR.TAG").is_file() for folder in Path(sys.prefix).parents):
        # On an index the package that bears the command's own name is somebody else's.
        distribution = find_distribution()
        stated = None if distribution is None else distribution.read_text("direct_url.json")  # PEP 610
        url: str = json.loads(stated)["url"] if stated else "" if distribution is None else distribution.name
        source = ["--from", unquote(urlsplit(url).path) if url.startswith("file:") else url] if url else []
        return [uv, "tool", "run", *source, "kairos-mcp"]
    return list(installed_words())
