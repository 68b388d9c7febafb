"""`audit`: who decided and changed what, through what, and what they were shown: a JSON object a line, or OTLP logs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import Since, StateFlags
from kairos_mcp.cli.session import PERSON, with_app
from kairos_mcp.cli.settings import read_settings
from kairos_mcp.cli.terminal import print_line
from kairos_mcp.cli.times import parse_since
from kairos_mcp.settings.settings import Settings
from kairos_mcp.telemetry import needs_extra

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.store.audit import AuditEntry

SENT_TOGETHER = 200


def audit(
    *,
    since: Since = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what is done from now on, until it is interrupted.")
    ] = False,
    otlp: Annotated[
        bool, typer.Option("--otlp", help="Send them as OTLP logs, to where OTEL_EXPORTER_OTLP_ENDPOINT says, instead.")
    ] = False,
    flags: StateFlags,
) -> int:
    """Print who decided and changed what, and through what: a JSON object a line, oldest first."""
    settings = read_settings(flags)
    tell = _sender() if otlp else _print

    async def tell_all(app: App) -> None:
        begun = 0 if since is None else parse_since(since, app.now(), settings.time_zone)
        if not follow:
            entries = await app.auditing.list_entries(begun)
            for first in range(0, len(entries), SENT_TOGETHER):
                await asyncio.to_thread(tell, entries[first : first + SENT_TOGETHER])
            return
        async for entry in app.auditing.follow(begun):
            await asyncio.to_thread(tell, [entry])

    with_app(settings, tell_all)
    return COMPLETED


def _print(entries: Iterable[AuditEntry]) -> None:
    for entry in entries:
        print_line(json.dumps(entry.as_json(), ensure_ascii=False))


def _sender() -> Callable[[Iterable[AuditEntry]], None]:
    """Return what sends entries as OTLP logs. Raises ConfigError where the extra is not installed."""
    try:
        from kairos_mcp.telemetry.audit_records import AuditRecords
    except ImportError as error:
        raise needs_extra("--otlp") from error
    records = AuditRecords()
    return lambda entries: records.send([(entry.at, entry.as_json()) for entry in entries])


def note_token(settings: Settings, act: str, name: str, ends_at: int | None = None) -> None:
    """Record what a command has done with a token. `ends_at`: when the tokens end that its principal had (ms since
    1970); the webhooks that these subscribed do too."""

    async def record(app: App) -> None:
        if ends_at is not None:
            await app.subscriptions.end_for(name, ends_at)
        await app.auditing.record("token", act, name, PERSON.actor)

    with_app(settings, record)
