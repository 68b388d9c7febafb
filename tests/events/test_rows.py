"""What happens is a row, written by the transaction in which it happens; none is told while one before it may come."""

from __future__ import annotations

import time

from support.app import ME, PERSON, UNWATCHED, Place, finish_run, reads, rests, says, start_run
from support.cycles import MANDATE
from support.page_runs import writes
from support.postgres import both_stores, on_database, open_session

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.limits import Limits
from kairos_mcp.store import events
from kairos_mcp.store.events import BEGINNING, EventFilter
from kairos_mcp.store.rows import Session
from kairos_mcp.views.event_view import TEXT_CHARS

MINE = EventFilter("local")
TOKEN = "ghp_" + "a1B2" * 9


@both_stores
async def test_what_waits_and_what_ends_is_an_event_of_its_principal(place: Place) -> None:
    settings = place.settings(reads("a.txt"), writes("new.txt", "new\n"), says("w" * 1_000), flow=UNWATCHED)
    async with App.open(settings, via="mcp") as app:
        run_id = await start_run(app, f"Use {TOKEN}: {'g' * 1_000}", tools=("*",), limits=Limits(rounds=5))
        (item,) = (await rests(app, run_id)).waiting
        assert place.rows("select kind, what, key from event") == [("run.waiting", "approval", item["key"])]
        await app.answers.submit(run_id, {item["key"]: {"decision": "approve", "digest": item["digest"]}}, PERSON)
        await finish_run(app, run_id)
        page = await app.events.read_after(BEGINNING, MINE, ME)
        asked, ended = (each["data"] for each in page.events)
        assert [each["name"] for each in page.events] == ["run.waiting", "run.ended"]
        assert (asked["what"], asked["tool"], asked["key"]) == ("approval", "write_file", item["key"])
        assert asked["link"] == f"kairos://runs/{run_id}"
        assert max(len(asked["text"]), len(ended["text"])) <= TEXT_CHARS
        assert (asked["text"].count("[secret]"), ended["text"].count("[secret]"), TOKEN in str(page)) == (1, 1, False)
        assert (ended["status"], ended["stop_reason"]) == ("completed", "assistant_stop")
        assert not (await app.events.read_after(page.end, MINE, ME)).events
        assert not (await app.events.read_after(BEGINNING, EventFilter("other"), Caller("other"))).events
        for wanted, count in ((EventFilter("local", run="run-0"), 0), (EventFilter("local", kinds=["run.ended"]), 1)):
            assert len((await app.events.read_after(BEGINNING, wanted, ME)).events) == count


@both_stores
async def test_a_run_that_a_limit_stops_was_near_it_before(place: Place) -> None:
    """A limit is named by what was used of it."""
    names = [f"{n}.txt" for n in range(11)]
    for name in names:
        (place.workspace / name).write_text(name)
    settings = place.settings(*map(reads, names), says("enough"), flow=UNWATCHED)
    async with App.open(settings, via="mcp") as app:
        run_id = await start_run(app, limits=Limits(tool_calls=10, rounds=20))
        assert (await rests(app, run_id)).status == "stopped"
        found = (await app.events.read_after(BEGINNING, MINE, ME)).events
        assert [(each["name"], each["data"]["run_id"]) for each in found] == [
            ("budget.near", run_id),
            ("run.stopped", run_id),
        ]
        assert found[0]["data"]["limits"]["tool_calls"]["limit"] == 10


@both_stores
async def test_a_pause_waits_and_a_round_is_no_event(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_run(app, route="caller", limits=Limits(rounds=5))
        await app.answers.submit(run_id, {"round-1": reads("a.txt")}, ME)
        await rests(app, run_id)
        assert place.rows("select count(*) from event") == [(0,)]
        await app.control.pause(run_id, ME)
        await rests(app, run_id)
        (told,) = (await app.events.read_after(BEGINNING, MINE, ME)).events
        assert (told["name"], told["data"]["what"]) == ("run.waiting", "pause")


@both_stores
async def test_a_mandate_is_due_once_for_each_time(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        await app.mandates.save({**MANDATE, "schedule": {"rule": "0 3 * * *"}}, ME)

        def record(session: Session) -> None:
            session.rows("update mandate set last_due = 5")
            session.rows("update mandate set last_due = 5")

        await app._store.submit(record)
        (told,) = (await app.events.read_after(BEGINNING, MINE, ME)).events
        assert (told["name"], told["data"]["mandate_id"]) == ("mandate.due", MANDATE["id"])


@on_database
async def test_a_position_never_passes_an_open_transaction(place: Place) -> None:
    """The transaction that began first has the lower id, and commits last: until then neither event is told."""
    insert = "insert into event(kind, principal, workspace, run) values ('run.ended', 'local', '', ?)"
    store = place.settings().store
    assert store is not None
    async with App.open(place.settings(), via="mcp") as app:
        await start_run(app, route="caller")
        with open_session(store) as first, open_session(store) as second:
            first.rows("begin")
            first.rows(insert, ("first",))
            second.rows(insert, ("second",))  # commits at once
            before = await app.events.read_after(BEGINNING, MINE, ME)
            assert (before.events, place.rows("select run from event")) == ([], [("second",)])
            first.rows("commit")
        told = await app.events.read_after(before.end, MINE, ME)
        assert [each["data"]["run_id"] for each in told.events] == ["first", "second"]


@both_stores
async def test_old_events_go_and_their_ids_are_given_to_no_other(place: Place) -> None:
    insert = "insert into event(kind, principal, workspace) values ('run.ended', 'local', '')"
    async with App.open(place.settings(), via="mcp") as app:
        await start_run(app, route="caller")
        for _ in range(3):
            place.rows(insert)
        (newest,) = place.rows("select max(id) from event")
        await app._store.submit(lambda session: events.remove_old(session, int(time.time() * 1000) + 60_000))
        place.rows(insert)
        assert place.rows("select id from event order by id") == [newest, (newest[0] + 1,)]
