"""The names of settings: in the settings file, and as environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from kairos_mcp.core.limits import CAPS, DAY_CAPS
from kairos_mcp.core.limits_table import limits_to_json
from kairos_mcp.settings.key import Key
from kairos_mcp.settings.settings import DEFAULT_CAPS, DEFAULT_DAY, Settings


def default_value(name: str) -> Any:
    """Return the default of a setting, as the settings file would write it; None if absent."""
    group, _, leaf = name.partition(".")
    if leaf:
        return limits_to_json({"limits": DEFAULT_CAPS, "day": DEFAULT_DAY}[group])[leaf]
    return next(setting.default for setting in fields(Settings) if setting.name == name)


def variable_name(name: str) -> str:
    """Return the environment variable of a setting: `limits.usd` is KAIROS_LIMITS_USD."""
    return "KAIROS_WORKSPACE" if name == "workspaces" else f"KAIROS_{name.replace('.', '_').upper()}"


TOKEN_VARIABLE = "KAIROS_HTTP_TOKEN"  # read by hosts, from their entries in files of a project
TRUST_VARIABLE = "KAIROS_TRUST_FILE_MODES"  # for a file system that has no owners and modes of its own


def unknown_variables(environ: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """List unknown variables with our prefix, each with a known one of a similar name, or None.

    Every start and doctor warn about them, since one may be misspelled.
    """
    known = {*VARIABLES, "KAIROS_HOME", "KAIROS_CONFIG", TOKEN_VARIABLE, TRUST_VARIABLE}
    unknown = sorted(name for name in environ if name.upper().startswith("KAIROS_") and name not in known)
    if not unknown:
        return []
    from difflib import get_close_matches  # only when needed: the time to start is measured

    near = {name: get_close_matches(name.upper(), sorted(known), n=1, cutoff=0.8) for name in unknown}
    return [(name, near[name][0] if near[name] else None) for name in unknown]


KEYS: Mapping[str, Key] = {each.name: each.metadata["key"] for each in fields(Settings) if each.metadata}
"""Each setting by its name; `limits` and `day` as the tables that they are."""

CAP_NAMES = (*(f"limits.{name}" for name in CAPS), *(f"day.{name}" for name in DAY_CAPS))
SETTINGS = (*(name for name in KEYS if name not in ("limits", "day")), *CAP_NAMES)
"""Every setting that a file may hold, limits one by one; not `home`, which holds the file."""

VARIABLES = {variable_name(name): name for name in SETTINGS if name in CAP_NAMES or KEYS[name].in_variable}
"""The settings that a variable can hold, by its name."""
