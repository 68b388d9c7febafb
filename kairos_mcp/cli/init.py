"""`init`: a settings file to begin with, in which every setting is explained and none is changed yet."""

from __future__ import annotations

import os
from pathlib import Path

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AllFlags
from kairos_mcp.cli.terminal import print_line, print_note
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.settings.explained import commented_settings
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.names import VARIABLES
from kairos_mcp.settings.settings import Flags

_HEAD = """\
# All settings of Kairos, each with its default or an example. To change one, uncomment its line and the [table] header
# above it; you may delete the rest. `kairos-mcp doctor` shows the values in force and their origins. A server reads
# this file when it starts."""


def init(*, flags: AllFlags) -> int:
    """Write a settings file that explains every setting. An existing file stays unchanged.

    It goes into the state folder, where Kairos finds it, or to --config FILE. --workspace DIR puts folders in it.
    """
    named = None if flags.config is None else Path(flags.config).expanduser().absolute()
    # A file that could not be read back is not written; a wrong variable is what it may be written for.
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    settings = load_settings(Flags(flags.home, flags.workspaces), environ)
    file = named or settings.home / "kairos.toml"
    if file.suffix != ".toml":
        raise BadArguments(f"{file.name} is not a name of a settings file.", "Give it the ending .toml.")
    folders = settings.workspaces if settings.origins["workspaces"] == "flag" else ()
    text = commented_settings(_HEAD, {"workspaces": list(map(str, folders))} if folders else {})
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{file} exists.", "Edit it, or name another one with --config FILE.") from error
    except OSError as error:
        raise ConfigError(f"{file} can't be written: {error.strerror}.", "Name another one with --config.") from error
    print_line(f"Written: {file}")
    if named is not None:
        print_note(f"Name it when you start: --config {file}, or KAIROS_CONFIG={file}.")
    print_note("It explains every setting. Each is commented out and shows its default or an example.")
    return COMPLETED
