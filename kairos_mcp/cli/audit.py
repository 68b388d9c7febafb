"""`audit`: who decided and changed what, through what, and what they were shown: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import Since, StateFlags
from kairos_mcp.cli.session import PERSON, with_app
from kairos_mcp.cli.settings import read_settings
from kairos_mcp.cli.terminal import print_line
from kairos_mcp.cli.times import parse_since
from kairos_mcp.settings.settings import Settings

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.store.audit import AuditEntry


def audit(
    *,
    since: Since = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what is done from now on, until it is interrupted.")
    ] = False,
    flags: StateFlags,
) -> int:
    """Print who decided and changed what, and through what: a JSON object a line, oldest first."""
    settings = read_settings(flags)

    async def print_all(app: App) -> None:
        begun = 0 if since is None else parse_since(since, app.now(), settings.time_zone)
        if not follow:
            _print(await app.auditing.list_entries(begun))
            return
        async for entry in app.auditing.follow(begun):
            _print([entry])

    with_app(settings, print_all)
    return COMPLETED


def _print(entries: Iterable[AuditEntry]) -> None:
    for entry in entries:
        print_line(json.dumps(entry.as_json(), ensure_ascii=False))


def note_token(settings: Settings, act: str, name: str) -> None:
    """Record what a command has done with a token."""

    async def record(app: App) -> None:
        await app.auditing.record("token", act, name, PERSON.actor)

    with_app(settings, record)
