"""Webhooks that clients subscribe: accepted once their endpoint has said that it wants them, kept until they expire.

The key of a subscription is its principal, its address, the kind of event and the arguments. A subscription of the same
key renews it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import Any, NamedTuple

from kairos_mcp.app.context import Operations
from kairos_mcp.app.receivers import Undelivered, decode_secret, make_client, post, reply_json, signature_headers
from kairos_mcp.core.calendar import DAY_MS
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, Busy
from kairos_mcp.core.messages import JsonObject, canonical_json
from kairos_mcp.core.urls import Url, parse_url
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store import events
from kairos_mcp.store.events import EventFilter, EventKind, ListenerRow, Position
from kairos_mcp.store.rows import Session

LEAST_TTL_MS, USUAL_TTL_MS, MOST_TTL_MS = 60_000, DAY_MS, 7 * DAY_MS
MAX_SUBSCRIPTIONS = 64  # of one principal
WEBHOOK = "webhook:"  # what names of their listeners begin with
ID_HEADER = "X-MCP-Subscription-Id"


class WantedEvents(NamedTuple):
    """What a client wants to be told of: a kind of event, narrowed by arguments."""

    kind: EventKind
    arguments: Mapping[str, str]

    def filter_for(self, principal: str) -> EventFilter:
        given = dict(self.arguments)
        workspace = given.pop("workspace", None)
        mandate, run = given.pop("mandate_id", None), given.pop("run_id", None)
        workspaces = None if workspace is None else (workspace,)
        return EventFilter(principal, (self.kind,), workspaces, run, mandate, given.pop("what", None))


class Subscription(NamedTuple):
    """A subscription that was granted. `tries`: that failed by now; `is_renewed`: it was there before."""

    id: str
    expires_at: int
    position: Position
    tries: int
    is_renewed: bool


class Subscriptions(Operations):
    """Subscribe and unsubscribe webhooks."""

    async def subscribe(
        self,
        url: str,
        secret: str,
        wanted: WantedEvents,
        start: Position | None,
        ttl_ms: int | None,
        caller: Caller,
        ends_at: int | None = None,
    ) -> Subscription:
        """Subscribe, or renew. The endpoint is asked first, unless it has answered for this principal before.

        `ends_at`: when the caller's token ends (ms since 1970); the subscription does not outlast it.

        Raises BadArguments for an invalid address or secret, Undelivered if the endpoint does not answer as it
        should, Busy if there are too many.
        """
        address, _ = check_url(url, self._settings), check_secret(secret)
        number = subscription_id(caller.principal, url, wanted)
        name, now = WEBHOOK + number, self._clock()
        known = await self._store.read(lambda session: events.list_listeners(session, now))
        mine = [each for each in known if each.principal == caller.principal and each.name.startswith(WEBHOOK)]
        before = next((each for each in mine if each.name == name), None)
        if before is None and len(mine) >= MAX_SUBSCRIPTIONS:
            raise Busy(f"{MAX_SUBSCRIPTIONS} subscriptions are the most.", "Unsubscribe from some first.")
        if all(json.loads(each.body)["url"] != url for each in mine):
            await asyncio.to_thread(verify_endpoint, address, secret, number, self._settings)
        granted = now + max(LEAST_TTL_MS, min(USUAL_TTL_MS if ttl_ms is None else ttl_ms, MOST_TTL_MS))
        granted = granted if ends_at is None else min(granted, ends_at)
        body = canonical_json({"url": url, "kind": wanted.kind, "arguments": dict(wanted.arguments)})

        def write(session: Session) -> ListenerRow | None:
            events.remove_expired(session, now)
            signed_by = json.dumps(_keep_previous(before, secret))
            events.add_listener(
                session, name, caller.principal, body, secret=signed_by, start=start, expires_at=granted
            )
            return events.find_listener(session, name)

        row = await self._store.submit(write)
        assert row is not None
        return Subscription(number, granted, row.position, before.tries if before else 0, before is not None)

    async def unsubscribe(self, url: str, wanted: WantedEvents, caller: Caller) -> bool:
        """End a subscription; return whether there was one."""
        name = WEBHOOK + subscription_id(caller.principal, url, wanted)
        return await self._store.submit(lambda session: events.remove_listener(session, name))

    async def end_for(self, principal: str, at: int) -> None:
        """Have the subscriptions of a principal end then (ms since 1970) at the latest: its token does."""
        if self._store.exists:

            def end(session: Session) -> None:
                events.end_webhooks(session, principal, at)
                events.remove_expired(session, self._clock())

            await self._store.submit(end)


def subscription_id(principal: str, url: str, wanted: WantedEvents) -> str:
    """Return the id of a subscription, which follows from its key."""
    key = canonical_json([principal, url, wanted.kind, dict(wanted.arguments)])
    return f"sub_{sha256(key.encode()).hexdigest()[:24]}"


def check_url(text: str, settings: Settings) -> Url:
    """Return the address of an endpoint: https, or a private host that a person listed. Raises BadArguments."""
    try:
        url = parse_url(text)
    except ValueError:
        raise BadArguments("delivery.url is not a URL.", "Send the https address of your endpoint.") from None
    if url.scheme != "https" and not any(rule.includes(url) for rule in settings.private_hosts):
        raise BadArguments("delivery.url is not https.", "Send the https address of your endpoint.")
    return url


def check_secret(text: str) -> bytes:
    """Return the key of a secret. Raises BadArguments, which does not quote it."""
    try:
        return decode_secret(text)
    except ValueError:
        raise BadArguments(
            "delivery.secret is no secret of Standard Webhooks.", "Send whsec_ and 24 to 64 random bytes as base64."
        ) from None


def verify_endpoint(url: Url, secret: str, number: str, settings: Settings) -> None:
    """Have an endpoint say that it wants events: it is sent a challenge, signed, and has to return it. Blocks. Raises
    Undelivered."""
    challenge, message = secrets.token_urlsafe(24), f"msg_verification_{secrets.token_hex(8)}"
    body = canonical_json({"type": "verification", "challenge": challenge}).encode()
    headers = _headers(number, (secret,), message, body)
    match reply_json(post(make_client(settings), url, headers, body)):
        case {"challenge": str(returned)} if compare_digest(returned.encode(), challenge.encode()):
            return
        case _:
            raise Undelivered("challenge_failed")


def send_event(listener: ListenerRow, occurrence: JsonObject, cursor: str, settings: Settings) -> None:
    """Send one event to the endpoint of a subscription. Blocks. Raises Undelivered."""
    try:
        url = check_url(json.loads(listener.body)["url"], settings)
    except BadArguments:  # a person no longer lists its host
        raise Undelivered("connection_refused") from None
    body = canonical_json({**occurrence, "cursor": cursor}).encode()
    number, signed_by = listener.name.removeprefix(WEBHOOK), json.loads(listener.secret or "[]")
    post(make_client(settings), url, _headers(number, signed_by, occurrence["eventId"], body), body)


def wanted_of(listener: ListenerRow) -> WantedEvents:
    """Return what a subscription is about."""
    body: Any = json.loads(listener.body)
    return WantedEvents(body["kind"], body["arguments"])


def _headers(number: str, signed_by: Sequence[str], message: str, body: bytes) -> list[tuple[str, str]]:
    signed = signature_headers([decode_secret(secret) for secret in signed_by], message, body)
    return [("Content-Type", "application/json"), (ID_HEADER, number), *signed]


def _keep_previous(before: ListenerRow | None, secret: str) -> list[str]:
    """Return the secrets to sign with: after a change the one before as well, until the next renewal."""
    previous = json.loads(before.secret or "[]")[:1] if before is not None else []
    return [secret, *(each for each in previous if each != secret)]
