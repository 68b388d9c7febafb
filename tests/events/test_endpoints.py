"""Endpoints of webhooks that are slow, wrong or gone, and subscriptions that end with the token that asked for them."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.app import Place, says, start_run
from support.http_server import tokens_of
from support.operators import Command
from support.waiting import wait_until

from events.event_client import delivery, listening, opened, send_all
from events.receivers import SECRET, Endpoint
from kairos_mcp.app import receivers
from kairos_mcp.app.app import App
from kairos_mcp.app.subscriptions import WantedEvents
from kairos_mcp.core.calendar import DAY_MS
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.server.auth import AccessRule, Authentication

pytestmark = pytest.mark.usefixtures("by_hand")
TRIES = "select tries, next_at > 0 from listener"
ENDED = WantedEvents("run.ended", {})


async def subscribe_and_end_runs(app: App, client: Any, endpoint: Endpoint, runs: int = 1) -> None:
    await client.ask("subscribe", name="run.ended", delivery=delivery(endpoint))
    for n in range(runs):
        await start_run(app, f"run {n}")


async def test_a_slow_endpoint_is_given_up_and_tried_again_later(
    place: Place, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    endpoint.answer = lambda _id, _before: 204 if may_end.wait(20) else 500
    async with opened(listening(place, endpoint, says("done"))) as (app, client):
        await subscribe_and_end_runs(app, client, endpoint)
        monkeypatch.setattr(receivers, "SEND_S", 0.1)
        await send_all(app)
        assert place.rows(TRIES) == [(1, 1)]
        may_end.set()
        await asyncio.to_thread(wait_until, lambda: endpoint.events)
        place.rows("update listener set next_at = 0")
        await send_all(app)
        first, again = endpoint.events
        assert (first["eventId"], place.rows(TRIES)) == (again["eventId"], [(0, 0)])


@pytest.mark.parametrize("status", [302, 404, 500])
async def test_what_is_not_taken_waits_and_no_redirect_is_followed(
    place: Place, endpoint: Endpoint, status: int
) -> None:
    endpoint.answer = lambda _id, _before: status
    async with opened(listening(place, endpoint, *[says("done")] * 2)) as (app, client):
        await subscribe_and_end_runs(app, client, endpoint, 2)
        await send_all(app)
        assert (len(endpoint.events), place.rows(TRIES)) == (1, [(1, 1)])


async def test_any_server_looks_again_when_the_next_try_is_due(place: Place, endpoint: Endpoint) -> None:
    """Also one that did not make the last: it may have been another's, which has ended since."""
    async with opened(listening(place, endpoint, says("done"))) as (app, client):
        await subscribe_and_end_runs(app, client, endpoint)
        place.rows("update listener set next_at = ?", int(time.time() * 1000) + 3_000)
        await send_all(app)
        assert (endpoint.events, 0 < app.notifier._rest_s <= 3) == ([], True)


async def test_an_event_that_is_too_large_is_passed_over(place: Place, endpoint: Endpoint) -> None:
    endpoint.answer = lambda _id, _before: 413
    async with opened(listening(place, endpoint, *[says("done")] * 2)) as (app, client):
        await subscribe_and_end_runs(app, client, endpoint, 2)
        await send_all(app)
        await send_all(app)
        assert (len(endpoint.events), place.rows(TRIES)) == (2, [(0, 0)])


async def test_a_private_address_that_nobody_lists_any_more_is_sent_nothing(place: Place, endpoint: Endpoint) -> None:
    settings = listening(place, endpoint, says("done"))
    async with opened(settings) as (app, client):
        await subscribe_and_end_runs(app, client, endpoint)
    async with App.open(replace(settings, private_hosts=()), via="mcp") as app:
        await app.begin_sending()
        await send_all(app)
        assert (endpoint.events, place.rows(TRIES)) == ([], [(1, 1)])


async def test_tries_follow_each_other_ever_more_slowly_up_to_five_minutes(
    place: Place, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.answer = lambda _id, _before: 500
    async with opened(listening(place, endpoint, says("done"))) as (app, client):
        await subscribe_and_end_runs(app, client, endpoint)
        monkeypatch.setattr(app.notifier, "_clock", lambda: 10**15)
        waits = []
        place.rows("update listener set expires_at = null")
        for tries in (0, 1, 2, 8, 9, 100):
            place.rows("update listener set next_at = 0, tries = ?", tries)
            await send_all(app)
            waits += [at - 10**15 for (at,) in place.rows("select next_at from listener")]
        assert waits == [1_000, 2_000, 4_000, 256_000, 300_000, 300_000]


# -- with the token --------------------------------------------------------------------------------------------


async def test_a_subscription_does_not_outlast_the_token_that_asked_for_it(place: Place, endpoint: Endpoint) -> None:
    tokens = tokens_of(place.root)
    admission = await AccessRule(tokens).admit(f"Bearer {tokens.add('alice', lasts_days=0.5)}")
    assert admission is not None
    Authentication._answer_as(SimpleNamespace(_with_user=None), admission, {})  # type: ignore[arg-type]
    (token,) = tokens.list_tokens()
    async with opened(listening(place, endpoint)) as (_, client):
        await client.ask("subscribe", name="run.ended", delivery=delivery(endpoint), ttlMs=DAY_MS)
        await client.ask("subscribe", name="run.stopped", delivery=delivery(endpoint), ttlMs=60_000)
        long, short = (at for (at,) in place.rows("select expires_at from listener order by id"))
        assert long == token.expires_at > short


async def subscribe_for(place: Place, endpoint: Endpoint, *principals: str) -> None:
    async with App.open(listening(place, endpoint), via="mcp") as app:
        for principal in principals:
            await app.subscriptions.subscribe(endpoint.url, SECRET, ENDED, None, None, Caller(principal))


ENDS = "select principal, expires_at from listener order by id"


def test_a_revoked_token_ends_the_webhooks_of_its_principal(place: Place, endpoint: Endpoint, command: Command) -> None:
    command("token", "add", "alice")
    asyncio.run(subscribe_for(place, endpoint, "alice", "bob"))
    command("token", "revoke", "alice")
    ((left, _),) = place.rows(ENDS)
    assert left == "bob"


def test_the_webhooks_of_a_token_that_is_replaced_end_with_it(
    place: Place, endpoint: Endpoint, command: Command
) -> None:
    command("token", "add", "alice")
    asyncio.run(subscribe_for(place, endpoint, "alice"))
    command("token", "rotate", "alice", "--keep", "1h")
    older, _ = command.json("token", "list")["tokens"]
    assert place.rows(ENDS) == [("alice", older["expires_at"])]


async def test_what_ends_while_it_is_sent_events_is_sent_no_more(place: Place, endpoint: Endpoint) -> None:
    async with opened(listening(place, endpoint, *[says("done")] * 3)) as (app, client):
        await subscribe_and_end_runs(app, client, endpoint, 3)

        def end(_id: str, _before: int) -> int:
            place.rows("update listener set expires_at = 1")
            return 204

        endpoint.answer = end
        await send_all(app)
        assert len(endpoint.events) == 1
