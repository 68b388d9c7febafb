"""Check the server of the database that is the store."""

from __future__ import annotations

from collections.abc import Iterator

from kairos_mcp.cli.doctor_checks import Finding
from kairos_mcp.settings.settings import Settings

_CLOCK_S = 2.0  # by which this machine's clock may differ before it is worth a word


def check_database(settings: Settings) -> Iterator[Finding]:
    """Check the version, the settings and the clock of the database's server. Raises KairosError."""
    from kairos_mcp.app.app import make_database

    found = make_database(settings, "doctor").check_server()
    if not found.is_new_enough:
        yield Finding("database", "bad", f"PostgreSQL {found.version} is too old", "Use PostgreSQL 16 or newer.")
        return
    yield Finding("database", "ok", f"PostgreSQL {found.version}")
    if not found.keeps_session:
        text = "a session does not stay with its connection: a pooler hands it out for single transactions"
        yield Finding("database", "bad", text, "Name the server itself in `store`, or a pooler that pools sessions.")
    if not found.is_durable:
        text = "it forgets the newest commits when it loses its power: synchronous_commit or fsync is off"
        yield Finding("database", "note", text, "Switch them on, unless that is what you want.")
    if abs(found.ahead_s) > _CLOCK_S:
        text = f"its clock is {abs(found.ahead_s):.0f} s {'ahead of' if found.ahead_s > 0 else 'behind'} this machine's"
        yield Finding("database", "note", f"{text}; days and times are the database's", "Set both by NTP.")
