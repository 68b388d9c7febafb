"""Events over kills of the servers that make and send them, and of the receiver: none lost, each accepted once."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter

import pytest
from support import forked_program, postgres
from support.app import ME, Place, says
from support.forked_program import Forked
from support.postgres import both_stores

from events.receivers import DROPPED, SECRET, Endpoint, open_endpoint
from kairos_mcp.app.app import App
from kairos_mcp.app.notifier import Notifier
from kairos_mcp.app.run_pool import DriveMode
from kairos_mcp.app.subscriptions import Wanted
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.core.urls import HostRule

WITHIN_S = 60.0


def start_worker(place: Place) -> Forked:
    environ = {**os.environ, "KAIROS_SCRIPT": str(place.script), "KAIROS_DAY_MODEL_CALLS": "1000000"}
    if (database := postgres.database_of(place.root)) is not None:
        environ["KAIROS_STORE"] = database
    options = ("--home", str(place.home), "--workspace", str(place.workspace))
    return forked_program.start(["work", *options], env=environ)


async def subscribe_and_start(place: Place, endpoint: Endpoint, runs: int) -> None:
    """As a server that does not drive: the workers make the events, and send them."""
    place.home.mkdir(exist_ok=True)
    (place.home / "kairos.toml").write_text(f'private_hosts = ["127.0.0.1:{endpoint.port}"]\n')
    settings = place.settings(says("done"), private_hosts=(HostRule("127.0.0.1", port=endpoint.port),))
    async with App.open(settings, via="mcp", mode=DriveMode(drives=False)) as app:
        await app.subscriptions.subscribe(endpoint.url, SECRET, Wanted("run.ended", {}), None, None, ME)
        for n in range(runs):
            await app.runs.start(PlannerRequest(f"look {n}"), ME)


def over_kills(place: Place, runs: int, kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Notifier, "begin", lambda self: None)  # of this process
    chance = random.Random(45)
    drops = set(chance.sample(range(runs), max(1, runs // 50)))
    with open_endpoint() as endpoint:
        # The receiver ends after it has taken some events, and before it says so.
        endpoint.answer = lambda _id, before: DROPPED if not before and len(endpoint.events) in drops else 204
        asyncio.run(subscribe_and_start(place, endpoint, runs))
        killed, worker = 0, start_worker(place)
        ends = time.monotonic() + WITHIN_S + runs
        try:
            while len(endpoint.accepted()) < runs:
                assert time.monotonic() < ends, (len(endpoint.accepted()), killed)
                time.sleep(0.005)
                if killed < kills and len(endpoint.events) >= (killed + 1) * runs / (kills + 2):
                    time.sleep(chance.random() * 0.03)
                    worker.kill()
                    worker.wait()
                    killed, worker = killed + 1, start_worker(place)
        finally:
            worker.kill()
            worker.wait()
        told = Counter(body["eventId"] for body in endpoint.events)
        made = place.rows("select id, run from event where kind = 'run.ended' order by tx, id")
    assert killed == kills
    assert len(told) == len(made) == runs
    assert sum(told.values()) - runs <= kills + len(drops)
    first = list(dict.fromkeys(body["data"]["run_id"] for body in endpoint.events))
    assert first == [run for _, run in made]  # in the order in which they happened


@both_stores
@pytest.mark.unreplayed
def test_over_two_kills_each_event_is_accepted_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    over_kills(place, 8, 2, monkeypatch)


@both_stores
@pytest.mark.slow
@pytest.mark.unreplayed
def test_over_two_hundred_kills_each_of_a_thousand_events_is_accepted_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    over_kills(place, 1_000, 200, monkeypatch)
