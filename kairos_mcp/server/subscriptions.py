"""Tell clients of resources that changed: up to 2025-11-25 by session, from 2026-07-28 on in streams that they open."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import mcp_types as wire
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourcesListChanged, ResourceUpdated

from kairos_mcp.app.watch import LIST, Topic, Watcher
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, Busy, KairosError
from kairos_mcp.core.text import truncate
from kairos_mcp.server.resources import GetApp, find_kind, protocol_error
from kairos_mcp.server.sender import current_principal

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.session import ServerSession

    from kairos_mcp.app.app import App
    from kairos_mcp.server.client_sessions import ClientSession

MAX_URIS = 200  # of one session or stream

log = logging.getLogger(__name__)


class Subscriptions:
    """The subscriptions of one client: URIs by topic, and whether it wants to hear of changes of the list."""

    def __init__(self, app: App, principal: str) -> None:
        """Raises Busy if there are too many subscribers."""
        if app.watch.is_full:
            raise Busy("Too many subscriptions are open here.", "End some, or read the resource when you need it.")
        self._app = app
        self._stack = ExitStack()
        self.watcher: Watcher = self._stack.enter_context(app.watch.watching(principal))
        self._uris: dict[Topic, dict[str, None]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to be told."""
        return not self.watcher.topics

    async def add(self, uri: str, topic: Topic) -> None:
        """Tell of this resource too. Raises BadArguments if there are too many."""
        if sum(map(len, self._uris.values())) >= MAX_URIS:
            raise BadArguments(f"{MAX_URIS} resources are the most to subscribe to.", "Unsubscribe from some first.")
        self._uris.setdefault(topic, {})[uri] = None
        await self._app.watch.add(self.watcher, [topic])

    async def add_list(self) -> None:
        """Tell of changes of the list too."""
        await self._app.watch.add(self.watcher, [LIST])

    def remove(self, uri: str) -> None:
        """Tell of this resource no more."""
        for topic, uris in list(self._uris.items()):
            uris.pop(uri, None)
            if not uris:
                del self._uris[topic]
                self.watcher.topics.discard(topic)

    async def take(self) -> list[str | None]:
        """Wait for changes and return their URIs; None means the list itself."""
        changed: list[str | None] = []
        for topic in await self.watcher.take():
            changed += [*([None] if topic == LIST else []), *self._uris.get(topic, ())]
        return changed

    def close(self) -> None:
        """Close all subscriptions."""
        self._stack.close()


class SessionSubscriptions(Subscriptions):
    """The subscriptions of a session up to 2025-11-25. They end with it, or with the last one."""

    def __init__(self, app: App, principal: str, session: ServerSession) -> None:
        super().__init__(app, principal)
        self._session = session
        self._task = asyncio.create_task(self._notify())

    async def _notify(self) -> None:
        try:
            while True:
                for uri in await self.take():
                    if uri is None:
                        await self._session.send_notification(wire.ResourceListChangedNotification())
                    else:
                        await self._session.send_resource_updated(uri)
        except Exception:  # the client has gone in a way that the SDK does not know; nobody waits for this task
            log.debug("a subscriber can't be told any more", exc_info=True)

    def close(self) -> None:
        self._task.cancel()
        super().close()


async def subscribe(ctx: ServerRequestContext[Any], uri: str, get_app: GetApp) -> wire.EmptyResult:
    """Have a session told whenever this resource changes. Raises MCPError for one that does not exist, or is another
    principal's."""
    app, caller = await get_app(), Caller(current_principal())
    try:
        topic = await _find_topic(uri, get_app, app, caller)
        if topic is not None:
            await _subscriptions_of(ctx, app).add(uri, topic)
    except KairosError as error:
        raise protocol_error(error, app, caller, uri=truncate(uri, 400)) from error
    return wire.EmptyResult()


async def subscribe_to_list(ctx: ServerRequestContext[Any], get_app: GetApp) -> None:
    """Have a session that has read the list told whenever it changes."""
    app = await get_app()
    try:
        await _subscriptions_of(ctx, app).add_list()
    except KairosError as error:  # the list itself is answered all the same
        log.warning("changes of the list are not reported: %s", error)


def unsubscribe(ctx: ServerRequestContext[Any], uri: str) -> wire.EmptyResult:
    """Tell the session no more of this resource."""
    session = _session_of(ctx)
    if isinstance(session.subscriptions, SessionSubscriptions):
        session.subscriptions.remove(uri)
        if session.subscriptions.is_empty:
            session.close_subscriptions()
    return wire.EmptyResult()


async def listen(
    ctx: ServerRequestContext[Any], params: wire.SubscriptionsListenRequestParams, get_app: GetApp
) -> wire.SubscriptionsListenResult:
    """Serve a stream of changes until the client closes it. What it asks for and is not there, or is another
    principal's, is missing in what is acknowledged. Raises MCPError for too many streams or resources."""
    app, caller = await get_app(), Caller(current_principal())
    subscriptions: Subscriptions | None = None
    task: asyncio.Task[None] | None = None
    try:
        subscriptions = Subscriptions(app, caller.principal)
        wanted = await _accept(subscriptions, params.notifications, get_app, app, caller)
        bus = InMemorySubscriptionBus()
        task = asyncio.create_task(_publish(subscriptions, bus))
        return await ListenHandler(bus)(ctx, params.model_copy(update={"notifications": wanted}))
    except KairosError as error:
        raise protocol_error(error, app, caller) from error
    finally:
        if task is not None:
            task.cancel()
        if subscriptions is not None:
            subscriptions.close()


async def _accept(
    subscriptions: Subscriptions, wanted: wire.SubscriptionFilter, get_app: GetApp, app: App, caller: Caller
) -> wire.SubscriptionFilter:
    """What of a client's wishes it will be told."""
    uris: list[str] = []
    for uri in dict.fromkeys(wanted.resource_subscriptions or ()):
        try:
            topic = await _find_topic(uri, get_app, app, caller)
        except KairosError:
            continue
        uris.append(uri)
        if topic is not None:
            await subscriptions.add(uri, topic)
    if wanted.resources_list_changed:
        await subscriptions.add_list()
    return wanted.model_copy(update={"resource_subscriptions": uris or None})


async def _publish(subscriptions: Subscriptions, bus: InMemorySubscriptionBus) -> None:
    while True:
        for uri in await subscriptions.take():
            await bus.publish(ResourcesListChanged() if uri is None else ResourceUpdated(uri=uri))


async def _find_topic(uri: str, get_app: GetApp, app: App, caller: Caller) -> Topic | None:
    """Return the topic of this resource; None if it does not change while the server runs, or if nothing reports its
    changes. Raises KairosError for one that does not exist, or is another principal's."""
    kind, values = find_kind(uri)
    if kind.topic == "run":  # not read: a run that goes on has no answer yet
        await app.runs.find(values["id"], caller)
    else:
        await kind.read(get_app, caller, values)
    return None if kind.topic is None else Topic(kind.topic, values.get("id", ""))


def _session_of(ctx: ServerRequestContext[Any]) -> ClientSession:
    session: ClientSession = ctx.lifespan_context.session_of(ctx, current_principal(), "")
    return session


def _subscriptions_of(ctx: ServerRequestContext[Any], app: App) -> SessionSubscriptions:
    session = _session_of(ctx)
    if isinstance(session.subscriptions, SessionSubscriptions):
        return session.subscriptions
    session.subscriptions = made = SessionSubscriptions(app, current_principal(), ctx.session)
    return made
