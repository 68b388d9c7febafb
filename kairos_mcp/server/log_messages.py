"""Send a client what happened to runs as log messages, from the level that it names; to one that names none, nothing.

Up to 2025-11-25 a client names a level for its session (`logging/setLevel`) and hears of all runs of its principal in
the workspaces at hand. From 2026-07-28 on it names a level in the `_meta` of a call and hears of the runs of this call,
in the call's own stream, while the call lasts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_args

import mcp_types as wire
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import KairosError

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.session import ServerSession

    from kairos_mcp.app.app import App
    from kairos_mcp.app.run_log import LogSnapshot
    from kairos_mcp.views.run_log import LogEntry

LEVELS: Sequence[wire.LoggingLevel] = get_args(wire.LoggingLevel)  # the least urgent first

log = logging.getLogger(__name__)


class SessionLog:
    """The log of a session up to 2025-11-25, from the moment at which it named a level. It ends with the session."""

    def __init__(
        self,
        session: ServerSession,
        level: wire.LoggingLevel,
        get_app: Callable[[], Awaitable[App]],
        caller: Caller,
    ) -> None:
        self.level = level
        self._began_s = time.monotonic()  # the app may take a moment to open, and runs begin meanwhile
        self._session = session
        self._get_app = get_app
        self._caller = caller
        self._task = asyncio.create_task(self._follow())

    def close(self) -> None:
        """Stop logging to this session."""
        self._task.cancel()

    async def _follow(self) -> None:
        try:
            await self._send_news(await self._get_app())
        except Exception:  # the client has gone in a way that the SDK does not know, or the state file is out of reach
            log.warning("a client's log ends here", exc_info=True)

    async def _send_news(self, app: App) -> None:
        from kairos_mcp.app.watch import LOG

        if app.watch.is_full:
            log.warning("too many subscriptions are open: a client that wants log messages gets none")
            return
        with app.watch.watching(self._caller.principal) as watcher:
            await app.watch.add(watcher, [LOG])
            since = app.now() - int((time.monotonic() - self._began_s) * 1000)  # by the clock of the rows
            seen = await app.watch.see_older(since, self._caller)
            while True:
                with suppress(KairosError):  # the state file is busy or gone: the next change brings the next look
                    now = await app.watch.see_all(seen, self._caller)
                    for entry in _at_level(app.watch.entries(seen, now, self._caller), self.level):
                        await self._session.send_notification(_message(entry))
                    seen = now
                await watcher.take()


class CallLog:
    """The log of one call from 2026-07-28 on. It follows the runs that the call is about."""

    def __init__(self, ctx: ServerRequestContext[Any], level: wire.LoggingLevel, app: App, caller: Caller) -> None:
        self._ctx = ctx
        self._level = level
        self._app = app
        self._caller = caller
        self._run_ids: dict[str, None] = {}
        self._seen: LogSnapshot | None = None

    async def begin(self, run_ids: Collection[str]) -> None:
        """Start logging: these runs from now on, later ones from their beginning."""
        self._run_ids |= dict.fromkeys(run_ids)
        self._seen = await self._app.watch.see(run_ids, self._caller)

    def follow(self, run_id: str) -> None:
        """Tell of this run too."""
        self._run_ids[run_id] = None

    async def send_news(self) -> None:
        """Send what has happened since the last time, if it can be read."""
        if self._seen is None or not self._run_ids:
            return
        try:
            now = await self._app.watch.see(self._run_ids, self._caller)
        except KairosError:
            return
        entries = self._app.watch.entries(self._seen, now, self._caller)
        self._seen = now
        for entry in _at_level(entries, self._level):
            await self._ctx.session.send_notification(_message(entry), related_request_id=self._ctx.request_id)


def set_level(
    ctx: ServerRequestContext[Any], level: wire.LoggingLevel, get_app: Callable[[], Awaitable[App]], caller: Caller
) -> wire.EmptyResult:
    """Send the session what happens from now on, from this level upwards."""
    session = ctx.lifespan_context.session_of(ctx, caller.principal, "")
    if isinstance(session.log, SessionLog):
        session.log.level = level
    else:
        session.log = SessionLog(ctx.session, level, get_app, caller)
    return wire.EmptyResult()


async def open_log(
    ctx: ServerRequestContext[Any], app: App, caller: Caller, run_ids: Collection[str]
) -> CallLog | None:
    """The log of a call whose `_meta` names a level; `run_ids`: the runs that its arguments name."""
    named = (ctx.meta or {}).get(wire.LOG_LEVEL_META_KEY)
    level = next((level for level in LEVELS if level == named), None)
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS or level is None:
        return None
    opened = CallLog(ctx, level, app, caller)
    try:
        await opened.begin(run_ids)
    except KairosError:  # the call itself reports that
        return None
    return opened


def _at_level(entries: Iterable[LogEntry], level: wire.LoggingLevel) -> list[LogEntry]:
    return [entry for entry in entries if LEVELS.index(entry.level) >= LEVELS.index(level)]


def _message(entry: LogEntry) -> wire.LoggingMessageNotification:
    params = wire.LoggingMessageNotificationParams(level=entry.level, logger=entry.logger, data=entry.data)
    return wire.LoggingMessageNotification(params=params)
