"""Send events to those who listen: to a person by the settings, to webhooks that clients subscribed.

A listener is a row, which one server at a time owns, as it owns runs; another takes it over once that one is dead. What
was sent is recorded afterwards. So after a crash an event may be sent again, with the same id, and none is lost. The
events of a listener are sent in their order: a receiver that fails is tried again later, and the rest waits behind.

Nothing of this runs before a first call, or while nobody listens.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from kairos_mcp.app.context import AppContext, Operations
from kairos_mcp.app.receivers import Undelivered, make_notification, notify_person
from kairos_mcp.app.run_pool import EVERY_RUN
from kairos_mcp.app.subscriptions import WEBHOOK, send_event, wanted_of
from kairos_mcp.core.calendar import DAY_MS, load_time_zone
from kairos_mcp.core.decision_rights import LOCAL, LOCAL_CALLER, Caller
from kairos_mcp.core.errors import ConfigError, KairosError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.table_values import NotifySetting
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.store import events, ownership
from kairos_mcp.store.events import EVENT_KINDS, EventFilter, EventRow, ListenerRow, Position
from kairos_mcp.store.rows import Session
from kairos_mcp.views.event_view import as_occurrence, describe_event, format_cursor, is_over

GATHER_S = 0.25  # from a commit to the look that follows it: what happens at once is sent at once
REST_S = 5.0  # between two looks at most, where somebody listens
IDLE_S = 30.0  # between two looks for somebody who listens
CLOSE_S = 2.0  # for a command to send what is left when it ends
RUN_MS = 60_000  # between two notifications of one run
FORGET_MS = DAY_MS  # a person is not notified of what is older
FIRST_RETRY_MS, LAST_RETRY_MS = 1_000, 300_000
MAX_BATCH = 100
SKIP = 1_000  # events that concern nobody, after which a position is moved past them

log = logging.getLogger(__name__)


class PersonState(NamedTuple):
    """What the row of a person's receiver remembers: when which run was last told of, and which events wait since."""

    told: Mapping[str, int]
    held: Sequence[int]

    @staticmethod
    def from_json(text: str) -> PersonState:
        value: Any = json.loads(text)
        return PersonState(value.get("told", {}), value.get("held", ()))


class Notifier(Operations):
    """The one task of this process that sends events."""

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._receivers = {_name_of(setting): setting for setting in self._settings.notify}
        self._task: asyncio.Task[None] | None = None
        self._sending: dict[int, asyncio.Task[None]] = {}
        self._has_listeners = False  # that are this server's
        self._due = asyncio.Event()  # there may be something to send
        self._rest_s = REST_S  # from the last look to the next one at most
        self._begun_at = 0

    def begin(self) -> None:
        """Send events from now on. A command does so only for a person: it ends soon."""
        if self._task is None and (self._receivers or not self._context.is_command):
            self._begun_at = self._clock()
            self._task = asyncio.create_task(self._send_for_ever())

    def look_now(self) -> None:
        """Look at once: somebody has subscribed."""
        self._due.set()

    async def close(self) -> None:
        """Send nothing more. A command first sends what it has made happen itself."""
        if self._task is None:
            return
        self._task.cancel()
        if self._context.is_command:
            with suppress(KairosError, OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._look()
                    await asyncio.gather(*self._sending.values())
        for task in self._sending.values():
            task.cancel()
        await asyncio.gather(self._task, *self._sending.values(), return_exceptions=True)
        if self._has_listeners:
            mine = self._store.owner_number
            with suppress(KairosError, OSError):
                await self._store.submit(partial(events.release_listeners, owner=mine))

    async def _send_for_ever(self) -> None:
        change: asyncio.Task[None] | None = None  # none while nobody listens: then nothing of the store is watched
        try:
            while True:
                listens = change is not None  # if the store is busy, as before
                try:
                    listens = await self._look()
                except (KairosError, OSError):
                    pass  # the store is busy or away
                except Exception:
                    log.exception("a bug kept events from being sent")
                if not listens:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._due.wait(), IDLE_S)
                elif change is not None and not self._due.is_set():
                    await self._until_due(change)
                self._due.clear()
                if change is not None:
                    change.cancel()
                # Before the next look: what is committed during it brings another one.
                change = self._next_change() if listens else None
        finally:
            if change is not None:
                change.cancel()

    async def _until_due(self, change: asyncio.Task[None]) -> None:
        """Wait for a change, and a moment for others that come with it; or for the next try at what has failed."""
        due = asyncio.create_task(self._due.wait())
        await asyncio.wait((change, due), timeout=self._rest_s, return_when=asyncio.FIRST_COMPLETED)
        due.cancel()
        if change.done():
            await asyncio.sleep(GATHER_S)

    def _next_change(self) -> asyncio.Task[None]:
        self._context.watcher.watch()
        return asyncio.create_task(self._pool.change_signal.wait((EVERY_RUN,), REST_S, urgent=False))

    async def _look(self) -> bool:
        """Begin to send to each listener of this server's that has something to be sent; whether there is any. Until
        something else has opened the store nothing is read: a read would create one."""
        if not self._store.is_open:
            return bool(self._receivers)
        now = self._clock()
        listeners = await self._store.read(partial(events.list_listeners, at=now))
        known = {listener.name for listener in listeners}
        if missing := [name for name in self._receivers if name not in known]:
            await self._store.submit(partial(self._add_receivers, names=missing))
            listeners = await self._store.read(partial(events.list_listeners, at=now))
        served = [each for each in listeners if each.name in self._receivers or each.name.startswith(WEBHOOK)]
        tries = [each.next_at for each in served if each.next_at > now]  # also of one whose server has ended since
        self._rest_s = min(REST_S, (min(tries) - now) / 1000) if tries else REST_S
        for listener in served:
            if listener.id not in self._sending and listener.next_at <= now and (mine := await self._claim(listener)):
                task = self._sending[listener.id] = asyncio.create_task(self._send_to(mine))
                task.add_done_callback(partial(self._forget, listener.id))
        return bool(served)

    def _forget(self, listener: int, _: asyncio.Task[None]) -> None:
        self._sending.pop(listener, None)

    def _add_receivers(self, session: Session, names: Sequence[str]) -> None:
        """Add new receivers of the settings: they get what has happened since the first request here."""
        start = events.position_before(session, self._begun_at)
        for name in names:
            events.add_listener(session, name, LOCAL, start=start)

    async def _claim(self, listener: ListenerRow) -> ListenerRow | None:
        """Make this server the one that sends; None where another one is that lives."""
        mine, owners = await self._store.register_owner(self._clock()), self._store.owners
        if listener.owner == mine:
            return listener
        if listener.owner is not None:
            other = listener.owner
            if await self._store.read(lambda session: ownership.is_owner_alive(session, owners, other)):
                return None
        is_mine = await self._store.submit(lambda session: events.claim_listener(session, listener, mine))
        self._has_listeners = self._has_listeners or is_mine
        return listener._replace(owner=mine) if is_mine else None

    async def _send_to(self, listener: ListenerRow) -> None:
        try:
            if listener.name in self._receivers:
                await self._notify(listener, self._receivers[listener.name])
            else:
                await self._send_webhook(listener)
        except (KairosError, OSError) as error:
            if isinstance(error, ConfigError):
                log.warning("nobody is notified: %s", error)
                await self._put_off(listener)
        except Undelivered as error:
            log.warning("an event was not taken by %s: %s", listener.name, error.why)
            await self._put_off(listener)
        except Exception:
            log.exception("a bug kept events from being sent")
            await self._put_off(listener)

    async def _put_off(self, listener: ListenerRow) -> None:
        at = self._clock() + min(FIRST_RETRY_MS << min(listener.tries, 20), LAST_RETRY_MS)
        with suppress(KairosError, OSError):
            await self._store.submit(partial(events.record_failed, listener=listener, next_at=at))
            self._due.set()  # the look that follows sees when the next try is due

    # -- a person ----------------------------------------------------------------------------------------------

    async def _notify(self, listener: ListenerRow, setting: NotifySetting) -> None:
        """Tell a person of what happened since they were told last, except of runs that they were told of just now."""
        now = self._clock()
        if setting.quiet is not None and _is_quiet(setting.quiet, now, self._settings.time_zone):
            return
        state = PersonState.from_json(listener.state)
        kinds = [kind for kind in EVENT_KINDS if any(fnmatchcase(kind, glob) for glob in setting.events)]
        told = {run: at for run, at in state.told.items() if 0 <= now - at < RUN_MS}
        wanted, page = EventFilter(LOCAL, kinds), self._context.find_page(LOCAL_CALLER)

        def read(session: Session) -> tuple[list[EventRow], list[tuple[EventRow, JsonObject]], Position]:
            newest = events.newest_position(session)
            new = events.read_after(session, listener.position, wanted, MAX_BATCH) if kinds else []
            found = [*events.read_events(session, state.held), *new]
            held = [event for event in found if (event.run or "") in told]
            ready = [event for event in found if (event.run or "") not in told and now - event.at < FORGET_MS]
            ready = [event for event in ready if not is_over(session, event)]
            shown = [(event, describe_event(session, event, LOCAL_CALLER, page)) for event in ready]
            return held, shown, new[-1].position if len(new) == MAX_BATCH else max(listener.position, newest)

        held, shown, end = await self._store.read(read, one_state=True)
        told_of = [
            (event, data)
            for event, data in shown
            if event.kind != "run.ended" or not kind_of(data.get("flow", "")).is_call
        ]
        if told_of:
            what = make_notification([as_occurrence(event, data) for event, data in told_of])
            await asyncio.to_thread(notify_person, setting, what, self._settings)
            told |= {event.run or "": now for event, _ in told_of}
        kept = [event.id for event in held][-MAX_BATCH:]
        if told_of or kept != [*state.held] or end.event - listener.event >= SKIP:
            text = json.dumps({"told": told, "held": kept})
            await self._record(listener._replace(state=text), end)

    # -- webhooks ----------------------------------------------------------------------------------------------

    async def _send_webhook(self, listener: ListenerRow) -> None:
        """Send the endpoint of a subscription what has happened, one event after another."""
        caller = Caller(listener.principal)
        wanted = wanted_of(listener).filter_for(listener.principal)
        page = self._context.find_page(caller)

        def read(session: Session) -> tuple[list[tuple[EventRow, JsonObject]], Position]:
            newest = events.newest_position(session)
            found = events.read_after(session, listener.position, wanted, MAX_BATCH)
            return [(event, describe_event(session, event, caller, page)) for event in found], newest

        while True:
            found, newest = await self._store.read(read, one_state=True)
            for event, data in found:
                try:
                    occurrence, cursor = as_occurrence(event, data), format_cursor(event.position)
                    await asyncio.to_thread(send_event, listener, occurrence, cursor, self._settings)
                except Undelivered as error:
                    if error.status == GONE:
                        await self._store.submit(partial(events.remove_listener, name=listener.name))
                        return
                    if error.status != TOO_LARGE:
                        raise
                if not await self._record(listener, event.position):
                    return  # another server sends by now, or nobody listens any more
                listener = listener._replace(tx=event.tx, event=event.id, tries=0)
            if len(found) < MAX_BATCH:
                break
        if newest.event - listener.event >= SKIP:
            await self._record(listener, newest)

    async def _record(self, listener: ListenerRow, to: Position) -> bool:
        at = self._clock()
        return await self._store.submit(lambda session: events.record_sent(session, listener, to, at))


PERSON = "notify:"
GONE, TOO_LARGE = 410, 413  # replies after which nothing is sent again


def _name_of(setting: NotifySetting) -> str:
    return PERSON + sha256(repr(setting).encode()).hexdigest()[:16]


def _is_quiet(quiet: tuple[int, int], now: int, time_zone: str) -> bool:
    """Whether a time (ms since 1970) is between these two minutes of its day; they may lie around midnight."""
    begins, ends = quiet
    local = datetime.fromtimestamp(now / 1000, load_time_zone(time_zone))
    minute = local.hour * 60 + local.minute
    return begins <= minute < ends if begins <= ends else minute >= begins or minute < ends
