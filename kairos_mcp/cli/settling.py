"""`settle`: a person's word on a call whose end nobody knows; the run then goes on here, if no server does."""

from __future__ import annotations

from kairos_mcp.app.app import App
from kairos_mcp.cli.session import person, settings_for, speak, stay
from kairos_mcp.settings.settings import Flags
from kairos_mcp.store.settlements import Settlement


def settle_call(
    flags: Flags,
    run_id: str,
    key: str,
    settlement: Settlement,
    note: str | None,
    *,
    digest: str | None,
    principal: str,
    as_json: bool,
) -> int:
    """The exit code is that of the run as it then rests."""
    who = person(principal)

    async def begin(host: App) -> str:
        await host.settle(run_id, key, settlement, who, note=note, digest=digest)
        await host.drive_here(run_id)
        return run_id

    return speak(stay(settings_for(flags, run_id), begin, quiet=as_json, who=who), flags, as_json=as_json)
