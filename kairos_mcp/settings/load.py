"""Load the settings from flags, the environment (`KAIROS_*`), the settings file and defaults; the first one wins.

Values are validated by `schema.py`, which is imported only where there are any: `serve` starts often, mostly without.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.limits_table import limits_from_json
from kairos_mcp.settings.file_ownership import check_settings_file, check_state_folder
from kairos_mcp.settings.folders import absolute_path, packaged_folder
from kairos_mcp.settings.names import CAP_NAMES, SETTINGS, VARIABLES
from kairos_mcp.settings.settings import DEFAULT_CAPS, DEFAULT_DAY, Flags, Origin, Settings, hash_file


def load_settings(flags: Flags, environ: Mapping[str, str]) -> Settings:
    """Load the settings. Nothing is created or written, and only the settings file is opened.

    Raises ConfigError, also where another user could have written the settings file or the state folder.
    """
    home, home_from = _find_home(flags, environ)
    check_state_folder(home, environ)
    file = _find_settings_file(flags, environ, home)
    layers: list[tuple[Origin, dict[str, Any]]] = []
    if file is not None:
        from kairos_mcp.settings.schema import read_settings_file

        layers.append(("file", read_settings_file(file)))
    if any(name in environ for name in VARIABLES):
        from kairos_mcp.settings.schema import read_environment

        layers.append(("environment", read_environment(environ)))
    layers.append(("flag", _read_flags(flags)))

    values: dict[str, Any] = {}
    origins: dict[str, Origin] = dict.fromkeys(SETTINGS, "default")
    for origin, layer in layers:
        values.update(layer)
        origins.update(dict.fromkeys(layer, origin))
    caps: dict[str, dict[str, int | float]] = {"limits": {}, "day": {}}
    for name in CAP_NAMES:
        if name in values:
            group, _, leaf = name.partition(".")
            caps[group][leaf] = values.pop(name)
    if "time_zone" in values:
        from kairos_mcp.core.calendar import load_time_zone

        load_time_zone(values["time_zone"])
    if "workspaces" in values:
        values["workspaces"] = tuple(dict.fromkeys(_resolve_folder(path) for path in values["workspaces"]))
        for folder in values["workspaces"]:
            if folder.is_relative_to(home.resolve()):  # no run may read or write there
                raise ConfigError(f"The workspace {folder} is inside the state folder {home}.", "Name another folder.")
    return Settings(
        home=home,
        config_dirs=(packaged_folder("config"), home / "config"),
        limits=DEFAULT_CAPS._replace(**limits_from_json(caps["limits"])),
        day=DEFAULT_DAY._replace(**limits_from_json(caps["day"])),
        config_file=file,
        config_hash=None if file is None else hash_file(file),
        origins=MappingProxyType({"home": home_from, **origins}),
        **values,
    )


def _find_home(flags: Flags, environ: Mapping[str, str]) -> tuple[Path, Origin]:
    if flags.home is not None:
        return absolute_path(flags.home), "flag"
    if environ.get("KAIROS_HOME"):
        return absolute_path(environ["KAIROS_HOME"]), "environment"
    from platformdirs import user_state_path

    return user_state_path("kairos-mcp", appauthor=False), "default"


def _find_settings_file(flags: Flags, environ: Mapping[str, str], home: Path) -> Path | None:
    """Return the settings file: one that was named has to exist; the one in the state folder may be missing."""
    named = flags.config or environ.get("KAIROS_CONFIG")
    if named:
        check_settings_file(absolute_path(named), environ)
        return absolute_path(named)
    usual = home / "kairos.toml"
    return usual if usual.exists() else None


def _read_flags(flags: Flags) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if flags.workspaces:
        values["workspaces"] = [absolute_path(text) for text in flags.workspaces]
    if flags.tools is not None:
        values["tools"] = flags.tools
    if flags.read_only:
        values["read_only"] = True
    if flags.place is not None:
        from kairos_mcp.settings.schema import check_place

        values["place"] = check_place(flags.place)
    return values


def _resolve_folder(path: Path) -> Path:
    try:
        folder = path.resolve(strict=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"The workspace '{path}' can't be found.", "Name a folder that exists.") from error
    if not folder.is_dir():
        raise ConfigError(f"The workspace '{path}' is not a folder.", "Name a folder, not a file.")
    return folder
