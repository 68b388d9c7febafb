"""The settings of a command, from its flags and the environment; with the current folder as workspace if none is set.

Imports are kept light: a host starts `serve` often, some only to list the tools.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kairos_mcp.cli.terminal import print_note
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.limits import Limits
from kairos_mcp.server.log_lines import write_log_lines
from kairos_mcp.settings.file_ownership import list_readable_secrets
from kairos_mcp.settings.folders import current_folder, user_home
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.names import unknown_variables
from kairos_mcp.settings.settings import Flags, Settings

log = logging.getLogger(__name__)


def read_settings(flags: Flags) -> Settings:
    """The settings as configured. Raises ConfigError."""
    return load_settings(flags, os.environ)


def unknown_variable_notes() -> Iterator[str]:
    """Name each variable with our prefix that is no setting: a mistyped one would be ignored in
    silence."""
    for name, similar in unknown_variables(os.environ):
        yield f"{name} is not a setting and is ignored" + (f"; is {similar} meant?" if similar else "")


def settings_for_server(flags: Flags) -> Settings:
    """The settings of a server, which has no workspace but those that are configured. From here on it logs as they say:
    first of all what a person should know who configured it.

    `--workspace .` is the folder that its host started it in, which may be far too wide: then it is left out.
    """
    notes = [*unknown_variable_notes()]
    if "." in flags.workspaces and _is_too_wide(here := current_folder()):
        notes.append(f"{here}, where this was started, is too wide to be a workspace")
        flags = replace(flags, workspaces=tuple(folder for folder in flags.workspaces if folder != "."))
    settings = read_settings(flags)
    write_log_lines(os.environ, settings.log_format)
    notes += list_readable_secrets(settings, os.environ)
    notes += _refused_tool_notes(settings)
    if not settings.workspaces:
        notes.append("no --workspace is given, so there are no file tools")
    for note in notes:
        log.warning("%s", note)
    return settings


def _refused_tool_notes(settings: Settings) -> Iterator[str]:
    """Say of each tool of `[[http_tools]]` whose host is not allowed which setting allows it."""
    if not settings.http_tools:
        return  # as on most servers, which need not import what follows
    from kairos_mcp.tools.http.addresses import find_refused_tools

    for text, cure in find_refused_tools(settings):
        yield f"{text}. {cure}"


def settings_here(flags: Flags) -> Settings:
    """The settings, with the current folder as the workspace if none is configured; a note says which secrets other
    users of this machine can read. Raises ConfigError where that folder is too wide to be one."""
    settings = read_settings(flags)
    for text in list_readable_secrets(settings, os.environ):
        print_note(f"kairos-mcp: {text}")
    return settings if settings.workspaces else with_current_folder(settings)


def with_current_folder(settings: Settings) -> Settings:
    """Return the settings with the current folder as the workspace. Raises ConfigError where it is too wide."""
    return replace(settings, workspaces=(_current_folder(),))


def settings_for_list(flags: Flags) -> Settings:
    """As `settings_here`, but without a workspace where the current folder is too wide: then a list is of all."""
    try:
        return settings_here(flags)
    except ConfigError:
        return read_settings(flags)


def current_workspace(settings: Settings) -> Path:
    """The configured workspace that holds the current folder, else the first one."""
    here = current_folder()
    return next((folder for folder in settings.workspaces if here.is_relative_to(folder)), settings.workspaces[0])


def parse_limits(texts: tuple[str, ...]) -> Limits:
    """Limits as typed, each KEY=VALUE. Raises BadArguments."""
    from kairos_mcp.settings.schema import limits_from_texts

    given: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not value or name in given:
            raise BadArguments(f"--limit {text[:80]!r} is not KEY=VALUE, each key once.", "As --limit rounds=8.")
        given[name] = value
    return limits_from_texts(given)


def _current_folder() -> Path:
    """The current folder; never `/`, the home folder or one above it: that would open far more than was meant."""
    here = current_folder()
    if _is_too_wide(here):
        cure = "Go into the folder of a project, or name one by --workspace DIR."
        raise ConfigError(f"{here} is too wide to be a workspace.", cure)
    return here


def _is_too_wide(folder: Path) -> bool:
    """Whether a folder is `/`, the home folder or one above it."""
    home = user_home()
    return folder == Path(folder.anchor) or folder == home or folder in home.parents
