"""An answer is written with the commit that follows from it only where the run is still as this server knows it."""

from __future__ import annotations

import pytest
from support.app import ME, Place, rests, says, start_run

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import NOTHING
from kairos_mcp.core.messages import Completion
from kairos_mcp.store import client_completions, queries
from kairos_mcp.store.client_completions import NewRequest
from kairos_mcp.store.inbox import SubmittedAnswer
from kairos_mcp.store.queries import RunRow

BROUGHT = [SubmittedAnswer("round-1", Completion("first", finish="stop"), dialect="native")]
CHANGED = {
    "another server had it meanwhile": "update run set fence = fence + 1",
    "another server owns it": "update run set owner = 99",
    "it was paused": "update run set paused = 'asked'",
    "it has another route": "update run set route = 'sampling'",
    "it has ended": "update run set outcome = '{}'",
}


async def start_waiting_run(app: App, route: str = "caller") -> tuple[RunRow, int]:
    """Start a run that waits and that this server has in memory; returns it and the server's number."""
    run_id = await start_run(app, route=route)
    run = await app._store.read(lambda session: queries.run_by_id(session, run_id))
    assert run.owner is None
    return run, await app._store.register_owner(1)


def everything(place: Place) -> list[object]:
    return [
        place.rows(f"select * from {table}")
        for table in ("run", "step", "answer", "account", "client_completion", "client_question")
    ]


async def test_it_is_written_at_once_where_nothing_has_changed(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run, mine = await start_waiting_run(app)
        assert await app._context.pool.commit_answers(run, BROUGHT, "caller", mine)
        assert place.rows("select fence, owner, outcome is null from run") == [(run.fence + 1, None, False)]
        assert not await app._context.pool.commit_answers(run, BROUGHT, "caller", mine)
        assert (await rests(app, run.id)).summary == "first"


@pytest.mark.unreplayed
@pytest.mark.parametrize("change", CHANGED)
async def test_nothing_is_written_where_another_process_has_changed_the_run(place: Place, change: str) -> None:
    async with App.open(place.settings(says("done")), via="mcp") as app:
        run, mine = await start_waiting_run(app)
        place.rows(CHANGED[change])
        before = everything(place)
        assert not await app._context.pool.commit_answers(run, BROUGHT, "caller", mine)
        assert everything(place) == before


@pytest.mark.unreplayed
async def test_it_is_charged_to_the_account_as_it_is_though_another_process_has_written_that(place: Place) -> None:
    async with App.open(place.settings(says("done")), via="mcp") as app:
        run, mine = await start_waiting_run(app)
        place.rows("update account set spent_rounds = spent_rounds + 7 where scope = 'run'")
        assert await app._context.pool.commit_answers(run, BROUGHT, "caller", mine)
        assert place.rows("select spent_rounds from account where scope = 'run'") == [(1 + 7,)]


async def test_nothing_is_written_where_a_client_was_asked_about_the_step(place: Place) -> None:
    """Its request is charged first: the answer that came another way is recorded by itself."""
    async with App.open(place.settings(), via="mcp") as app:
        run, mine = await start_waiting_run(app, "sampling")
        new = [NewRequest("round-1", "somebody", NOTHING)]
        await app._store.submit(lambda session: client_completions.create_requests(session, run, new, mine, 1))
        before = everything(place)
        assert not await app._context.pool.commit_answers(run, BROUGHT, "caller", mine)
        assert everything(place) == before
        await app.answers.submit(run.id, {"round-1": says("first")}, ME)
        assert (await rests(app, run.id)).summary == "first"
        assert place.rows("select ended from client_completion") == [("withdrawn",)]


async def test_nothing_is_written_where_the_ask_was_answered_before(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run, mine = await start_waiting_run(app, "sampling")
        place.rows(
            "insert into client_question values ('used', ?, '{\"round-1\": \"round-1\"}', '', '', 1, 2, null)", run.n
        )
        before = everything(place)
        assert not await app._context.pool.commit_answers(run, BROUGHT, "sampling", mine, nonce="used")
        assert everything(place) == before
