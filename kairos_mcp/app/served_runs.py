"""What a server serves, as its row says it to other processes, and with which settings."""

from __future__ import annotations

from hashlib import sha256

from kairos_mcp import __version__
from kairos_mcp.core.routes import ROUTES
from kairos_mcp.settings.names import KEYS
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store import ownership
from kairos_mcp.store.ownership import Owners, ServedRuns
from kairos_mcp.store.rows import Session

DIGEST_CHARS = 16


def describe_served_runs(settings: Settings, slots: int | None = None) -> ServedRuns:
    """Describe what a server with these settings serves. Values are kept as digests: one may hold a secret."""
    needs = {name: route.setting for name, route in ROUTES.items() if route.setting is not None}
    return ServedRuns(
        tuple(str(folder) for folder in settings.workspaces),
        tuple(name for name, setting in needs.items() if getattr(settings, setting) is not None),
        __version__,
        _setting_digests(settings),
        None if settings.config_file is None else str(settings.config_file),
        settings.place,
        slots,
    )


def differing_settings(settings: Settings, serves: ServedRuns) -> list[str]:
    """Return the names of the settings that differ from that server's."""
    own = _setting_digests(settings)
    return [name for name in own if serves.settings.get(name) != own[name]]


def outdated_servers(session: Session, owners: Owners, settings: Settings) -> list[tuple[int, list[str]]]:
    """Return the living servers that began before the settings file was changed, by process, with the settings that
    differ for them now. `settings`: as they are read now."""
    file = settings.config_file
    if file is None:
        return []
    changed_at = file.stat().st_mtime_ns // 10**6
    living = ownership.list_serving(session, owners)
    return [
        (pid, names)
        for pid, started_at, served in living
        if started_at < changed_at and (names := differing_settings(settings, served))
    ]


def _setting_digests(settings: Settings) -> dict[str, str]:
    names = [name for name, key in KEYS.items() if key.compared]
    return {name: sha256(repr(getattr(settings, name)).encode()).hexdigest()[:DIGEST_CHARS] for name in names}
