"""What a server serves, as its row says it to other processes, with which settings, and what it lacks for a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from kairos_mcp import __version__
from kairos_mcp.core.routes import ROUTES
from kairos_mcp.settings.names import KEYS
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.store import serving
from kairos_mcp.store.ownership import Owners, ServedRuns
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session
from kairos_mcp.store.serving import ServingServer

DIGEST_CHARS = 16


def describe_served_runs(settings: Settings, slots: int | None = None, *, drives: bool = True) -> ServedRuns:
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
        drives,
    )


def missing_settings(run: RunRow, serves: ServedRuns, *, by_hand: bool = False) -> Iterator[str]:
    """Yield what a server lacks for a run, but for its tools. `by_hand`: it may work in any folder of its machine.

    Which versions of flows another version of this program has is not known, so it lacks none.
    """
    if serves.version == __version__ and kind_of(run.flow).specs.version != run.version:
        yield f"version {run.version} of the flow {run.flow}"
    route = ROUTES.get(run.route)
    if route is not None and route.lacking is not None and route.name not in serves.routes:
        yield route.lacking
    is_at = run.place in (None, serves.place)
    if run.workspace and not (is_at and (by_hand or run.workspace in serves.workspaces)):
        at = "" if is_at else f" at the place {run.place}"
        yield f"the workspace {Path(run.workspace).name!r}{at}"


def missing_elsewhere(session: Session, owners: Owners, run: RunRow, own_number: int) -> list[tuple[str, ...]]:
    """Return of each living server that drives runs, but for the one that asks, what it lacks for this run."""
    living = serving.list_driving(session, owners)
    return [tuple(missing_settings(run, each.serves)) for each in living if each.number != own_number]


def differing_settings(settings: Settings, serves: ServedRuns) -> list[str]:
    """Return the names of the settings that differ from that server's."""
    own = _setting_digests(settings)
    return [name for name in own if serves.settings.get(name) != own[name]]


def differing_servers(
    session: Session, owners: Owners, settings: Settings
) -> list[tuple[ServingServer, Sequence[str]]]:
    """Return the living servers with the names of the settings that differ for them from `settings`, as read now.

    In a state folder only those that began before the settings file was changed: each host may start its server with
    other settings. Servers that share a database are meant to have the same.
    """
    file = settings.config_file
    changed_at = 0 if file is None else file.stat().st_mtime_ns // 10**6
    found = [(server, differing_settings(settings, server.serves)) for server in serving.list_serving(session, owners)]
    is_shared = settings.store is not None
    return [(server, names) for server, names in found if names and (is_shared or server.started_at < changed_at)]


def _setting_digests(settings: Settings) -> dict[str, str]:
    names = [name for name, key in KEYS.items() if key.compared]
    return {name: sha256(repr(getattr(settings, name)).encode()).hexdigest()[:DIGEST_CHARS] for name in names}
