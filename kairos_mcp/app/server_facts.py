"""What a server says of itself to commands that leave something for it, and how a command's own settings differ."""

from __future__ import annotations

from dataclasses import fields
from hashlib import sha256

from kairos_mcp import __version__
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store.ownership import ServedRuns

NOT_COMPARED = frozenset(
    (
        *("home", "config_dirs", "config_file", "origins"),  # where things lie
        *("workspaces", "tools", "route", "durability", "keep_days"),  # nothing that a call of a run is made by
    )
)
DIGEST_CHARS = 16


def served_by(settings: Settings) -> ServedRuns:
    """What a server with these settings goes by. Of the values digests alone are kept: one may hold a secret."""
    routes = (("scripted", settings.script), ("provider", settings.model))
    return ServedRuns(
        tuple(str(folder) for folder in settings.workspaces),
        tuple(name for name, there in routes if there is not None),
        __version__,
        _digests(settings),
        None if settings.config_file is None else str(settings.config_file),
    )


def differences(settings: Settings, serves: ServedRuns) -> list[str]:
    """The names of settings that are otherwise here than with that server."""
    mine = _digests(settings)
    return [name for name in mine if serves.settings.get(name) != mine[name]]


def _digests(settings: Settings) -> dict[str, str]:
    named = [each.name for each in fields(Settings) if each.name not in NOT_COMPARED]
    return {name: sha256(repr(getattr(settings, name)).encode()).hexdigest()[:DIGEST_CHARS] for name in named}
