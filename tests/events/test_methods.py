"""The extension for events, as clients use it: listed, polled, streamed, and sent to webhooks that they subscribed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.app import ME, Place, rests, says, start_run
from support.page_runs import writes
from support.task_client import PLAIN, PlainRequest

from events.event_client import WITHIN_S, delivery, listening, opened, send_all
from events.receivers import SECRET, Endpoint
from kairos_mcp.app import subscriptions
from kairos_mcp.server.event_protocol import EVENTS
from kairos_mcp.store.events import EVENT_KINDS

ERAS = ("auto", "legacy")


@pytest.mark.parametrize("era", ERAS)
async def test_events_are_listed_and_polled(place: Place, era: str) -> None:
    async with opened(place.settings(says("done"), says("done")), era) as (app, client):
        assert (await client.ask("list"))["events"] == EVENTS
        assert tuple(each["name"] for each in EVENTS) == EVENT_KINDS
        first = await client.ask("poll", name="run.ended", arguments={})
        assert (first["events"], first["truncated"], first["hasMore"]) == ([], False, False)
        run_id = await start_run(app)
        other = await start_run(app, "another")
        one = await client.ask("poll", name="run.ended", cursor=first["cursor"], maxEvents=1)
        assert ([each["data"]["run_id"] for each in one["events"]], one["hasMore"]) == ([run_id], True)
        rest = await client.ask("poll", name="run.ended", cursor=one["cursor"])
        assert ([each["data"]["run_id"] for each in rest["events"]], rest["hasMore"]) == ([other], False)
        again = await client.ask("poll", name="run.ended", cursor=first["cursor"], arguments={"run_id": other})
        assert again["events"] == rest["events"]
        assert (await client.ask("poll", name="run.ended", cursor=rest["cursor"]))["events"] == []


async def test_both_forms_of_the_capability_are_declared(place: Place) -> None:
    async with opened(place.settings()) as (_, client):
        found = await client.client.session.send_request(PlainRequest(method="server/discover", params={}), PLAIN)
        assert found["capabilities"]["events"] == {}
        assert "io.modelcontextprotocol/events" in found["capabilities"]["extensions"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_stream_begins_where_its_cursor_is_and_ends_when_it_is_cancelled(place: Place, era: str) -> None:
    async with opened(place.settings(says("done"), says("done")), era) as (app, client):
        cursor = (await client.ask("poll", name="run.ended"))["cursor"]
        run_id = await start_run(app)
        stream = asyncio.create_task(client.ask("stream", name="run.ended", cursor=cursor))
        name, active = await client.heard()
        assert (name, active["cursor"], active["truncated"]) == ("active", cursor, False)
        name, event = await client.heard()
        assert (name, event["data"]["run_id"]) == ("event", run_id)
        assert active["_meta"] == event["_meta"]
        later = await start_run(app, "another")
        assert (await client.heard())[1]["data"]["run_id"] == later
        stream.cancel()


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("poll", {"name": "run.begun"}, -32011),
        ("poll", {"name": "run.ended", "cursor": "1"}, -32602),
        ("poll", {"name": "run.ended", "arguments": {"what": "approval"}}, -32602),
        ("poll", {"name": "run.waiting", "arguments": {"what": "sleep"}}, -32602),
        ("subscribe", {"name": "run.ended", "delivery": {"mode": "push"}}, -32014),
        ("subscribe", {"name": "run.ended", "delivery": {"url": "http://example.com/", "secret": SECRET}}, -32602),
        (
            "subscribe",
            {"name": "run.ended", "delivery": {"url": "https://example.com/", "secret": "whsec_YWJj"}},
            -32602,
        ),
        ("subscribe", {"name": "run.ended", "delivery": {"url": "https://127.0.0.1/", "secret": SECRET}}, -32015),
        ("unsubscribe", {"name": "run.ended", "delivery": {"url": "https://example.com/"}}, -32011),
    ],
)
async def test_what_is_no_request_is_refused(place: Place, method: str, params: dict[str, Any], code: int) -> None:
    async with opened(place.settings()) as (_, client):
        assert (await client.refused(method, **params))[0] == code


async def test_a_webhook_is_verified_signed_and_sent_each_event_in_order(place: Place, endpoint: Endpoint) -> None:
    """One that fails is sent again with the same id, and what comes after it waits."""
    endpoint.answer = lambda _id, before: 503 if before == 0 else 204
    async with opened(listening(place, endpoint, *[says("done")] * 2)) as (app, client):
        made = await client.ask("subscribe", name="run.ended", arguments={}, delivery=delivery(endpoint))
        assert [body["type"] for _, body in endpoint.sent] == ["verification"]
        runs = [await start_run(app), await start_run(app, "another")]
        async with asyncio.timeout(WITHIN_S):
            while len(endpoint.accepted()) < 2:
                place.rows("update listener set next_at = 0")
                app.notifier.look_now()
                app._context.pool.change_signal.notify_all()
                await asyncio.sleep(0.02)
        assert [body["data"]["run_id"] for body in endpoint.events] == [runs[0], runs[0], runs[1], runs[1]]
        assert {headers["x-mcp-subscription-id"] for headers, _ in endpoint.sent} == {made["id"]}
        assert all(headers["webhook-id"] == body["eventId"] for headers, body in endpoint.sent if "eventId" in body)


async def test_a_subscription_is_renewed_and_ended_by_its_key(place: Place, endpoint: Endpoint) -> None:
    async with opened(listening(place, endpoint)) as (_, client):
        asked = {"name": "run.ended", "arguments": {}, "delivery": delivery(endpoint)}
        first = await client.ask("subscribe", **asked, ttlMs=60_000)
        again = await client.ask("subscribe", **asked, ttlMs=120_000)
        other = await client.ask("subscribe", **{**asked, "name": "run.stopped"})
        assert (first["id"] == again["id"], first["id"] == other["id"]) == (True, False)
        assert again["refreshBefore"] > first["refreshBefore"]
        assert len(endpoint.sent) == 1  # it was verified once
        await client.ask("unsubscribe", **asked)
        assert (await client.refused("unsubscribe", **asked))[0] == -32011
        assert place.rows("select name from listener") == [(f"webhook:{other['id']}",)]


@pytest.mark.parametrize(("status", "why"), [(302, "http_3xx"), (404, "http_4xx"), (200, "challenge_failed")])
async def test_an_endpoint_that_does_not_want_events_gets_none(
    place: Place, endpoint: Endpoint, status: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpoint, "take", lambda *_: (status, b'{"challenge": "other"}'))
    async with opened(listening(place, endpoint)) as (_, client):
        refused = await client.refused("subscribe", name="run.ended", delivery=delivery(endpoint))
        assert refused == (-32015, {"reason": why})
        assert place.rows("select name from listener") == []


async def test_what_has_expired_is_sent_nothing_and_begins_anew(place: Place, endpoint: Endpoint) -> None:
    async with opened(listening(place, endpoint, *[says("done")] * 2)) as (app, client):
        asked = {"name": "run.ended", "delivery": delivery(endpoint)}
        await client.ask("subscribe", **asked)
        place.rows("update listener set expires_at = 1")
        await start_run(app)
        assert not await app.notifier._look()
        await client.ask("subscribe", **asked)
        run_id = await start_run(app, "another")
        await send_all(app)
        assert [body["data"]["run_id"] for body in endpoint.events] == [run_id]


async def test_an_endpoint_that_is_gone_ends_its_subscription(place: Place, endpoint: Endpoint) -> None:
    endpoint.answer = lambda _id, _before: 410
    async with opened(listening(place, endpoint, says("done"))) as (app, client):
        await client.ask("subscribe", name="run.ended", delivery=delivery(endpoint))
        await start_run(app)
        await send_all(app)
        assert (len(endpoint.events), place.rows("select name from listener")) == (1, [])


async def test_a_principal_has_so_many_subscriptions(
    place: Place, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "MAX_SUBSCRIPTIONS", 1)
    async with opened(listening(place, endpoint)) as (_, client):
        await client.ask("subscribe", name="run.ended", delivery=delivery(endpoint))
        refused = await client.refused("subscribe", name="run.stopped", delivery=delivery(endpoint))
        assert refused == (-32013, {"limit": "subscriptions"})


async def test_a_question_reaches_a_webhook_with_its_link_and_no_content(place: Place, endpoint: Endpoint) -> None:
    async with opened(listening(place, endpoint, writes("new.txt", "the content\n"))) as (app, client):
        await client.ask("subscribe", name="run.waiting", delivery=delivery(endpoint))
        run_id = await start_run(app, tools=("write_file",))
        await rests(app, run_id)
        await send_all(app)
        (body,) = endpoint.events
        assert (body["data"]["tool"], body["data"]["link"]) == ("write_file", f"kairos://runs/{run_id}")
        assert "the content" not in str(body)
        await app.control.cancel(run_id, ME)
