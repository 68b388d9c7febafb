"""Who is told of a resource that changes, in both eras; and that nobody looks where nobody wants to know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import apsw
import mcp_types as wire
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from support.app import WITHIN_S, Place, answer_run, says, start_run
from support.notified import Notified, subscribe
from support.sampling_clients import ERAS, LEGACY, MODERN, provide_app

from kairos_mcp.app.app import App
from kairos_mcp.app.watch import LIST, REST_S, Topic, Versions, Watch
from kairos_mcp.core.decision_rights import LOCAL, Caller
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.server.mcp_server import build_server
from kairos_mcp.server.sender import set_principal
from kairos_mcp.server.subscriptions import MAX_URIS

DONE = {"content": "Done."}


@asynccontextmanager
async def open_notified_client(app: App, era: str, principal: str = LOCAL) -> AsyncIterator[tuple[Client, Notified]]:
    """A client of this principal, as long as no other one connects, and what it is told."""
    notified = Notified()
    set_principal(principal)
    server = build_server(provide_app(app), app.settings)
    async with Client(server, mode=ERAS[era], message_handler=notified if era == LEGACY else None) as client:
        capability = client.server_capabilities.resources
        assert capability is not None
        assert (capability.subscribe, capability.list_changed) == (True, True)
        yield client, notified
    set_principal(LOCAL)


async def stops_looking(app: App) -> None:
    async with asyncio.timeout(WITHIN_S):
        while app.watch.is_looking:  # noqa: ASYNC110 - the server has no event for the end of a stream
            await asyncio.sleep(0.01)


async def test_a_subscriber_is_told_of_its_run_and_no_other(place: Place, era: str) -> None:
    async with App.open(place.settings(), via="mcp") as app, open_notified_client(app, era) as (client, notified):
        mine, other = await start_run(app, "mine", route="caller"), await start_run(app, "other", route="caller")
        uris = [f"kairos://runs/{mine}", f"kairos://runs/{mine}/answer"]
        async with subscribe(client, notified, era, *uris) as accepted:
            assert accepted == uris
            await answer_run(app, other, round_1=DONE)
            await answer_run(app, mine, round_1=DONE)
            assert set(await notified.until(*uris)) == set(uris)
            answer = await client.read_resource(uris[1])
            assert answer.contents[0].text.endswith("Done.")
        await stops_looking(app)


async def test_what_another_process_writes_is_told(place: Place, era: str) -> None:
    settings = place.settings()
    async with App.open(settings, via="mcp") as app, open_notified_client(app, era) as (client, notified):
        run_id = await start_run(app, route="caller")
        async with (
            App.open(settings, via="mcp") as other,
            subscribe(client, notified, era, f"kairos://runs/{run_id}"),
        ):
            await answer_run(other, run_id, round_1=DONE)
            uri = f"kairos://runs/{run_id}"
            assert set(await notified.until(uri)) == {uri}


async def test_the_inbox_the_budget_the_runs_and_the_list_are_told(place: Place, era: str) -> None:
    edit = {"path": "a.txt", "old_string": "alpha\n", "new_string": "omega\n"}
    settings = place.settings({"tool_calls": [{"name": "edit_file", "arguments": edit}]}, says("Done."))
    async with App.open(settings, via="mcp") as app, open_notified_client(app, era) as (client, notified):
        await app.mandates.save({"id": "m", "goal": "one"}, Caller())
        uris = ["kairos://inbox", "kairos://runs", "kairos://budget", "kairos://mandates/m"]
        async with subscribe(client, notified, era, *uris, lists=True):
            await start_run(app, tools=("edit_file",))
            await app.mandates.save({"id": "m", "goal": "two"}, Caller())
            assert {*uris, None} == set(await notified.until(*uris, None))


async def test_a_list_that_changes_again_is_told_after_a_pause(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kairos_mcp.app.watch.REST_S", 3_600.0)
    async with App.open(place.settings(), via="mcp") as app:
        with app.watch.watching(LOCAL) as watcher:
            await app.watch.add(watcher, [LIST, Topic("runs")])
            await start_run(app, route="caller")
            assert set(await watcher.take()) == {LIST, Topic("runs")}
            await start_run(app, "another", route="caller")
            assert await watcher.take() == [Topic("runs")]
            monkeypatch.setattr("kairos_mcp.app.watch.REST_S", 0.0)
            await start_run(app, "a third", route="caller")
            assert set(await watcher.take()) == {LIST, Topic("runs")}


async def test_a_principal_is_told_nothing_of_another_s_runs(place: Place) -> None:
    settings = place.settings(says("Done."))
    async with App.open(settings, via="mcp") as app:
        hers = (await app.runs.start(PlannerRequest("hers", route="caller"), Caller("alice"))).run_id
        await app.runs.wait([hers], until="rest", wait_s=WITHIN_S, caller=Caller("alice"))
        uri = f"kairos://runs/{hers}"
        async with open_notified_client(app, LEGACY, "bob") as (client, _):
            for each in (uri, "kairos://runs/run-000000000000", "kairos://nothing", "kairos://mandates/x"):
                with pytest.raises(MCPError) as refusal:
                    async with subscribe(client, Notified(), LEGACY, each):
                        pass
                assert refusal.value.code == wire.INVALID_PARAMS
                assert refusal.value.error.message
        async with open_notified_client(app, MODERN, "bob") as (client, notified):
            wished = [uri, "kairos://runs/run-000000000000", "kairos://nothing", "kairos://runs"]
            async with subscribe(client, notified, MODERN, *wished, lists=True) as accepted:
                assert accepted == ["kairos://runs"]
                await app.answers.submit(hers, {"round-1": DONE}, Caller("alice"))
                await app.runs.wait([hers], until="done", wait_s=WITHIN_S, caller=Caller("alice"))
                mine = (await app.runs.start(PlannerRequest("his", route="caller"), Caller("bob"))).run_id
                await notified.until("kairos://runs", None)
                assert uri not in notified.told
                assert mine


async def test_nobody_looks_before_somebody_subscribes_nor_after_the_last_has_gone(place: Place, era: str) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_run(app, route="caller")
        async with open_notified_client(app, era) as (client, notified):
            assert not app.watch.is_looking
            async with subscribe(client, notified, era, f"kairos://runs/{run_id}"):
                assert app.watch.is_looking
            await stops_looking(app)
            await client.list_resources()
            assert app.watch.is_looking == (era == LEGACY)  # who has read the list is told when it changes
        await stops_looking(app)


@pytest.mark.state_file("it counts the statements of SQLite")
async def test_one_look_is_made_for_all_subscribers(place: Place) -> None:
    with statements() as made:
        looks = await count_looks_for_five(place, made)
    assert 1 <= looks <= 3  # after a commit, or after two that were far apart


@contextmanager
def statements() -> Iterator[list[str]]:
    """Every statement of the connections that are opened while the block lasts."""
    made: list[str] = []

    def trace(connection: apsw.Connection) -> None:
        connection.exec_trace = lambda _cursor, statement, _bindings: made.append(statement) is None

    apsw.connection_hooks.append(trace)
    try:
        yield made
    finally:
        apsw.connection_hooks.remove(trace)


async def count_looks_for_five(place: Place, made: list[str]) -> int:
    """How often it was looked for what five subscribers are told of one change."""
    async with App.open(place.settings(), via="mcp") as app, open_notified_client(app, MODERN) as (client, _):
        run_id = await start_run(app, route="caller")
        uri, many = f"kairos://runs/{run_id}", [Notified() for _ in range(5)]
        async with AsyncExitStack() as stack:
            for each in many:
                await stack.enter_async_context(subscribe(client, each, MODERN, uri))
            made.clear()
            await answer_run(app, run_id, round_1=DONE)
            for each in many:
                await each.until(uri)
            return sum("and id in (" in statement for statement in made)


class OvertakenWatch(Watch):
    """Does something once, after the next look has read its rows and before it is over."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def _read(self, wanted: Mapping[str, set[Topic]]) -> dict[str, Versions]:
        found = await super()._read(wanted)
        if (act := self.meanwhile) is not None:
            self.meanwhile = None
            await act()
        return found


async def test_what_is_committed_during_a_look_brings_the_next_one(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_run(app, route="caller")

        async def answer_unnoticed() -> None:
            await answer_run(app, run_id, round_1=DONE)
            await app.watcher._check_store()  # else the check for commits of other processes finds it a moment later

        watch, topic = OvertakenWatch(app._context), Topic("run", run_id)
        with watch.watching(LOCAL) as watcher:
            await watch.add(watcher, [topic])
            watch.meanwhile = answer_unnoticed
            await start_run(app, "another", route="caller")
            async with asyncio.timeout(REST_S - 1):  # after that time it is looked again in any case
                assert await watcher.take() == [topic]
        assert watch.meanwhile is None


async def test_there_is_an_end_to_what_one_client_may_subscribe_to(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app, open_notified_client(app, MODERN) as (client, notified):
        run_id = await start_run(app, route="caller")
        pairs = [tuple(sorted((a, b))) for a in range(len(run_id)) for b in range(len(run_id))]
        names = {"".join(f"%{ord(c):x}" if at in pair else c for at, c in enumerate(run_id)) for pair in pairs}
        uris = [f"kairos://runs/{name}{part}" for name in names for part in ("", "/trace")]
        assert len(uris) > MAX_URIS
        with pytest.raises(MCPError, match="Unsubscribe from some first") as refusal:
            async with subscribe(client, notified, MODERN, *uris):
                pass
        assert refusal.value.code == wire.INVALID_PARAMS
        await stops_looking(app)
