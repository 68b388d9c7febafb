"""`install`: the entry that makes a host start this server, shown or put into its file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from kairos_mcp.cli.hostfile import HostFile
from kairos_mcp.cli.hosts import HostConfigPlace, HostName, place_of
from kairos_mcp.cli.speech import say, tell
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags, standing_in

NAME = "kairos"


def install_into(host: HostName, flags: Flags, *, write: bool, force: bool, project: bool) -> int:
    """Show the entry, or write it: never over another of the same name without `force`."""
    place = place_of(host, os.environ, project=project)
    if project and not flags.workspaces:
        flags = Flags(flags.home, (str(standing_in()),), flags.config)
    settings = load_settings(flags, os.environ)  # what could not start is not installed
    entry = entry_for(place, flags)
    if settings.origins["workspaces"] not in ("flag", "file"):  # the host has another environment
        tell("No --workspace is given: this entry has no file tools.")
    if not write:
        say(json.dumps({place.section: {NAME: entry}}, indent=2, ensure_ascii=False))
        tell(f"This belongs into {place.file}; --write puts it there.")
        return 0
    return _write(place, entry, force=force)


def entry_for(place: HostConfigPlace, flags: Flags) -> JsonObject:
    """How the host starts us: absolute, since a host has a folder and a PATH of its own."""
    words = [*_command(), "serve"]
    if flags.home is not None:
        words += ["--home", os.path.abspath(os.path.expanduser(flags.home))]
    for folder in flags.workspaces:
        words += ["--workspace", os.path.abspath(os.path.expanduser(folder))]
    if flags.config is not None:
        words += ["--config", os.path.abspath(os.path.expanduser(flags.config))]
    entry: JsonObject = {"command": words[0], "args": words[1:]}
    return {"type": "stdio", **entry} if place.typed else entry


def _write(place: HostConfigPlace, entry: JsonObject, *, force: bool) -> int:
    file = HostFile.read(place.file)
    before = file.entry(place.section, NAME)
    if before == entry:
        say(f"{place.file} has this entry already.")
        return 0
    if before is not None and not force:
        raise ConfigError(
            f"{place.file} has another entry {NAME!r} under {place.section!r}.",
            "Nothing was changed; --force replaces it and keeps a copy of the file.",
        )
    copy = file.write(place.section, NAME, entry)
    say(f"Written: {place.file}")
    if copy is not None:
        say(f"As it was before: {copy}")
    tell(place.afterwards)
    return 0


def _command() -> list[str]:
    """The script beside this Python, else the module; links stay, since a virtual environment needs them."""
    folder = Path(os.path.abspath(sys.executable)).parent
    script = folder / ("kairos-mcp.exe" if os.name == "nt" else "kairos-mcp")
    if script.is_file() and os.access(script, os.X_OK):
        return [str(script)]
    return [os.path.abspath(sys.executable), "-m", "kairos_mcp"]
