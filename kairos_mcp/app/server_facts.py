"""Describe which runs a server serves, and with which settings, so that a command can tell how its own differ."""

from __future__ import annotations

from dataclasses import fields
from hashlib import sha256

from kairos_mcp import __version__
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store.ownership import ServedRuns

NOT_COMPARED = frozenset(
    (
        *("home", "config_dirs", "config_file", "origins"),  # paths
        *("workspaces", "tools", "route", "durability", "keep_days"),  # no step of a run depends on these
    )
)
DIGEST_CHARS = 16


def describe_served_runs(settings: Settings) -> ServedRuns:
    """Describe what a server with these settings serves. Values are kept as digests: one may hold a secret."""
    routes = (("scripted", settings.script), ("provider", settings.model))
    return ServedRuns(
        tuple(str(folder) for folder in settings.workspaces),
        tuple(name for name, value in routes if value is not None),
        __version__,
        _setting_digests(settings),
        None if settings.config_file is None else str(settings.config_file),
    )


def differing_settings(settings: Settings, serves: ServedRuns) -> list[str]:
    """Return the names of the settings that differ from that server's."""
    own = _setting_digests(settings)
    return [name for name in own if serves.settings.get(name) != own[name]]


def _setting_digests(settings: Settings) -> dict[str, str]:
    names = [field.name for field in fields(Settings) if field.name not in NOT_COMPARED]
    return {name: sha256(repr(getattr(settings, name)).encode()).hexdigest()[:DIGEST_CHARS] for name in names}
