"""The methods of the extension for events: list, poll, stream, subscribe, unsubscribe.

SEP-3415 is followed where clients agree. Where they differ both forms are served: the capability stands
under `events` and under `extensions`; errors have the codes that ChatGPT, TanStack and the design sketch use.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast

import mcp_types as wire
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY

from kairos_mcp.app.events import MAX_EVENTS
from kairos_mcp.app.receivers import Undelivered
from kairos_mcp.app.subscriptions import WantedEvents
from kairos_mcp.core.calendar import format_timestamp
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, Busy
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.server.event_protocol import (
    EVENTS,
    EventParams,
    PlainError,
    PollParams,
    SubscribeParams,
    find_event,
)
from kairos_mcp.server.sender import current_end, current_principal
from kairos_mcp.store.events import Position
from kairos_mcp.views.event_view import format_cursor, parse_cursor

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from kairos_mcp.app.app import App

HEARTBEAT_S = 15.0
NEXT_POLL_MS = 5_000
NOT_FOUND, FORBIDDEN, EXHAUSTED, UNSUPPORTED, BAD_CALLBACK = -32011, -32012, -32013, -32014, -32015


class EventNotification(wire.Notification[dict[str, Any], str]):
    """What a stream of events says: active, event, heartbeat."""

    method: str
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EventMethods:
    """The handlers of the methods, for the sender of one request."""

    app: App
    caller: Caller

    async def poll(self, params: PollParams) -> dict[str, Any]:
        """Answer with what has happened since a cursor; without one, with a cursor of now."""
        wanted, start = self._read_wanted(params), await self._start(params)
        limit = max(1, min(params.max_events or MAX_EVENTS, MAX_EVENTS))
        since = self._since(params)
        filters = wanted.filter_for(self.caller.principal)
        page = await self.app.events.read_after(start, filters, self.caller, limit, since)
        return {
            "events": list(page.events),
            "cursor": format_cursor(page.end),
            "truncated": await self.app.events.is_truncated(start),
            "hasMore": page.has_more,
            "nextPollMs": NEXT_POLL_MS,
        }

    async def stream(self, ctx: ServerRequestContext[Any], params: PollParams) -> dict[str, Any]:
        """Notify of what happens from a cursor on, until the client cancels the request."""
        wanted, at = self._read_wanted(params), await self._start(params)
        filters, since = wanted.filter_for(self.caller.principal), self._since(params)

        async def send(name: str, body: Mapping[str, Any]) -> None:
            meta = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
            note = EventNotification(method=f"notifications/events/{name}", params={**body, "_meta": meta})
            await ctx.session.send_notification(cast("wire.ServerNotification", note), ctx.request_id)

        truncated = await self.app.events.is_truncated(at)
        await send("active", {"cursor": format_cursor(at), "truncated": truncated})
        said_s = time.monotonic()
        change = self.app.events.next_change(HEARTBEAT_S)
        try:
            while True:
                page = await self.app.events.read_after(at, filters, self.caller, since=since)
                for event, position in zip(page.events, page.positions, strict=True):
                    await send("event", {**event, "cursor": format_cursor(position)})
                at = page.end
                if page.events:
                    said_s = time.monotonic()
                elif time.monotonic() - said_s >= HEARTBEAT_S:
                    await send("heartbeat", {"cursor": format_cursor(at)})
                    said_s = time.monotonic()
                if not page.has_more:
                    await change
                    change = self.app.events.next_change(HEARTBEAT_S)
        finally:
            change.cancel()

    async def subscribe(self, params: SubscribeParams) -> dict[str, Any]:
        """Subscribe a webhook, or renew it."""
        wanted, url = self._read_wanted(params), self._endpoint(params)
        start = None if params.cursor is None else self._parse(params.cursor)
        secret = params.delivery.get("secret")
        if not isinstance(secret, str):
            refuse(wire.INVALID_PARAMS, "delivery.secret is missing.")
        try:
            made = await self.app.subscriptions.subscribe(
                url, secret, wanted, start, params.ttl_ms, self.caller, current_end()
            )
        except BadArguments as error:
            refuse(wire.INVALID_PARAMS, str(error))
        except Busy as error:
            refuse(EXHAUSTED, str(error), {"limit": "subscriptions"})
        except Undelivered as error:
            refuse(BAD_CALLBACK, "The callback endpoint was not verified.", {"reason": error.why})
        self.app.notifier.look_now()
        status = {"deliveryStatus": {"active": True, "lastError": None}} if made.is_renewed and not made.tries else {}
        return {
            "id": made.id,
            "refreshBefore": format_timestamp(made.expires_at),
            "cursor": format_cursor(made.position),
            "truncated": start is not None and await self.app.events.is_truncated(start),
            **status,
        }

    async def unsubscribe(self, params: SubscribeParams) -> dict[str, Any]:
        """End the subscription of a webhook."""
        wanted, url = self._read_wanted(params), self._endpoint(params)
        if not await self.app.subscriptions.unsubscribe(url, wanted, self.caller):
            refuse(NOT_FOUND, "There is no such subscription.", {"kind": "subscription"})
        return {}

    def _endpoint(self, params: SubscribeParams) -> str:
        if not self.caller.principal:
            refuse(FORBIDDEN, "Webhooks are for clients with a principal.")
        mode, url = params.delivery.get("mode", "webhook"), params.delivery.get("url")
        if mode != "webhook":
            refuse(UNSUPPORTED, "Only webhooks are subscribed.", {"feature": "deliveryMode"})
        if not isinstance(url, str) or len(url) > 2_000:
            refuse(wire.INVALID_PARAMS, "delivery.url is missing or too long.")
        return url

    def _read_wanted(self, params: EventParams) -> WantedEvents:
        """What a request is about. Raises MCPError for an unknown kind of event, or arguments that it does not take."""
        event = find_event(params.name)
        if event is None:
            refuse(NOT_FOUND, "There is no such event.", {"kind": "event"})
        given, known = params.arguments or {}, event["inputSchema"]["properties"]
        for name, value in given.items():
            if name not in known or not isinstance(value, str) or value not in known[name].get("enum", [value]):
                refuse(wire.INVALID_PARAMS, f"The arguments of {event['name']} are texts: {', '.join(known)}.")
        arguments = {**given}
        if "workspace" in arguments:
            arguments["workspace"] = self._workspace(arguments["workspace"])
        return WantedEvents(event["name"], arguments)

    def _workspace(self, named: str) -> str:
        """The path of the workspace of this name, or of this path."""
        found = [str(path) for path in self.app.settings.workspaces if named in (str(path), path.name)]
        return found[0] if len(found) == 1 else named

    def _since(self, params: PollParams) -> int | None:
        return None if params.max_age_ms is None else self.app.now() - params.max_age_ms

    async def _start(self, params: PollParams) -> Position:
        return await self.app.events.read_position() if params.cursor is None else self._parse(params.cursor)

    def _parse(self, cursor: str) -> Position:
        try:
            return parse_cursor(cursor)
        except ValueError:
            refuse(wire.INVALID_PARAMS, "This cursor was given by no server of Kairos.")


def list_events(cursor: str | None) -> dict[str, Any]:
    """Return the kinds of events."""
    if cursor:
        refuse(wire.INVALID_PARAMS, "The list of events has one page.")
    return {"events": EVENTS}


async def open_methods(get_app: Callable[[], Awaitable[App]]) -> EventMethods:
    """Return the handlers for the sender of the request that is being answered. It is a first use like a call."""
    app = await get_app()
    app.notifier.begin()
    return EventMethods(app, Caller(current_principal()))


def refuse(code: int, text: str, data: dict[str, Any] | None = None) -> NoReturn:
    """Raise an error of the protocol; its text repeats nothing of the request."""
    raise PlainError(code, text, data)
