"""The guards of ownership one by one, as jobs on a real store: who may take a run, and what its owner does next."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.app import (
    ME,
    WITHIN_S,
    Place,
    assert_lawful,
    open_checked_app,
    reads,
    rests,
    says,
    start_run,
    wait_for_step,
)
from support.commits import call_after_commits

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import AlreadyAnswered, FenceLost, NotWaiting
from kairos_mcp.core.limits import Limits, counts_of
from kairos_mcp.core.messages import Completion
from kairos_mcp.core.outcomes import make_outcome
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.execution.commit import commit
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.store import ownership, queries, runs
from kairos_mcp.store.commit import CommitPlan, DroppedStep
from kairos_mcp.store.inbox import SubmittedAnswer, drain_inbox, insert_submitted_answers, submit_request
from kairos_mcp.store.rows import Session, encode


async def start_owned_run(app: App) -> tuple[queries.RunRow, int, int]:
    """Start a run that waits and that a living server owns; returns it, its owner's number and its fence."""
    run_id = await start_run(app, route="caller")
    run = await app._store.read(lambda session: queries.run_by_id(session, run_id))
    mine = await app._store.register_owner(1)
    fence = await app._store.submit(lambda connection: runs.take_run(connection, run.n, mine, ()))
    assert fence is not None
    return run, mine, fence


@pytest.mark.unreplayed
async def test_a_run_that_somebody_living_owns_is_taken_by_nobody(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run, mine, fence = await start_owned_run(app)
        for dead in ((), (mine + 1,)):
            assert await app._store.submit(lambda c, dead=dead: runs.take_run(c, run.n, mine + 2, dead)) is None
        assert place.rows("select owner, fence from run") == [(mine, fence)]
        assert await app._store.submit(lambda c: runs.take_run(c, run.n, mine + 2, (mine,))) == fence + 1


async def test_control_requests_are_applied_by_the_owner_alone(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run, mine, fence = await start_owned_run(app)
        await app._store.submit(lambda c: submit_request(c, run, "pause", "asked", ME.actor, mine, 1))
        for owner, number in ((mine, fence - 1), (mine + 1, fence)):
            with pytest.raises(FenceLost):
                await app._store.submit(lambda c, o=owner, n=number: drain_inbox(c, run, o, n, 1))
        assert place.rows("select paused, taken from run, inbox") == [(None, None)]
        await app._store.submit(lambda c: drain_inbox(c, run, mine, fence, 1))
        assert place.rows("select paused from run") == [("asked",)]


async def test_an_answer_is_taken_for_an_open_step_and_another_one_is_refused(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run, mine, _ = await start_owned_run(app)

        def bring(text: str, path: str = "round-1") -> Callable[[Session], int | None]:
            deposits = [SubmittedAnswer(path, Completion(text, finish="stop"))]
            return lambda connection: insert_submitted_answers(connection, run, deposits, "caller", mine, 1)

        place.rows("update step set held = '[1,1,0,0,0,0,0,0]'")  # begun by the owner itself
        with pytest.raises(NotWaiting):
            await app._store.submit(bring("mine"))
        place.rows("update step set held = null")
        await app._store.submit(bring("first"))
        await app._store.submit(bring("first"))
        with pytest.raises(AlreadyAnswered):
            await app._store.submit(bring("second"))
        assert place.rows("select json_extract(body, '$.content') from answer") == [("first",)]


async def test_what_was_answered_meanwhile_is_not_released_as_well(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run, mine, fence = await start_owned_run(app)
        (waits,) = (await app._store.read(lambda session: queries.open_steps(session, run.n))).values()
        brought = [SubmittedAnswer("round-1", Completion("came", finish="stop"))]
        await app._store.submit(lambda c: insert_submitted_answers(c, run, brought, "caller", mine, 1))
        released = [DroppedStep(waits.step_id, "round-1", counts_of("round"), ())]
        outcome = encode(make_outcome("cancelled", "cancelled"))
        plan = CommitPlan(run.n, run.id, mine, fence, run.account, 1, dropped_steps=released, outcome=outcome)
        await app._store.submit(lambda c: commit(c, plan))
        assert_lawful(place, run.id)


@pytest.mark.unreplayed
async def test_an_account_that_is_not_the_sum_of_its_rows_spends_nothing_more(place: Place) -> None:
    settings = place.settings(says("done"))
    async with App.open(settings, via="mcp") as app:
        run_id = await start_run(app, route="caller")
    place.rows("update account set spent_total_tokens = spent_total_tokens + 1 where scope = 'run'")
    async with App.open(settings, via="mcp") as app:
        await app.control.reroute(run_id, "scripted", ME)
        assert "not the sum of its rows" in str((await rests(app, run_id)).degraded)
        assert place.rows("select count(*) from answer") == [(0,)]


async def test_an_owner_that_lives_is_not_among_the_dead(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        _, mine, _ = await start_owned_run(app)
        other = place.store()

        async def list_dead() -> list[int]:
            return await app._store.read(lambda session: ownership.dead_owners(session, app._store.owners, mine))

        try:
            number = await other.register_owner(1)
            place.rows("update run set owner = ?", number)
            assert await list_dead() == []
        finally:
            await other.close()
        assert await list_dead() == [number]


async def test_a_release_raises_the_fence(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        _, mine, fence = await start_owned_run(app)
        assert await app._store.submit(lambda c: ownership.release_runs(c, mine)) == 1
        assert place.rows("select owner, fence from run") == [(ownership.ANY_SERVER, fence + 1)]


async def test_a_step_that_a_cancel_forestalled_during_its_commit_is_never_begun(place: Place) -> None:
    """The cancel is a row before the commit of the call's mark is over; the worker is told in that very moment. Several
    times, since a look at the store a moment later might still save one that has begun."""
    touch = {"tool_calls": [{"name": "write_file", "arguments": {"path": "made.txt", "content": "made\n"}}]}
    settings = place.settings(reads("a.txt"), touch, says("never"), gate=(GateRule("write_file", "allow"),))
    async with open_checked_app(settings) as app:
        for nth in range(6):
            forestalling = Forestalling(app, place, "round-2/call-1")
            asked = PlannerRequest(f"make {nth}", tools=("read_file", "write_file"))
            run_id = (await app.runs.start(asked, ME)).run_id
            async with asyncio.timeout(WITHIN_S):
                await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
            assert forestalling.when == [("round-2/call-1", False)]  # marked by that commit, and nothing was made yet
            assert (await app.runs.report(run_id, ME)).status == "cancelled"
            assert not (place.workspace / "made.txt").exists()


@pytest.mark.parametrize("clock", ["goes on", "is set back"])
async def test_a_lost_attempt_is_charged_with_the_time_that_has_passed_at_most(place: Place, clock: str) -> None:
    """What a step may take is all the time that is left: were that charged, a crash would end each run with a limit."""
    settings = place.settings(reads("a.txt", delay_s=0.5), says("done"))
    async with App.open(settings, via="mcp") as first:
        asked = PlannerRequest("look", limits=Limits(milliseconds=300_000))
        run_id = (await first.runs.start(asked, ME)).run_id
        await wait_for_step(first, "round-1")
        place.rows("update run set owner = 0, fence = fence + 1")  # as if it had been killed
    if clock == "is set back":
        place.rows("update step set at = at + 3600000")
    async with open_checked_app(settings) as second:
        report = await rests(second, run_id)
        ended = ("completed", "done", "assistant_stop") if clock == "goes on" else ("stopped", None, "timeout")
        assert (report.status, report.stop_reason) == (ended[0], ended[2]), report
        ((lost,),) = place.rows("select lost ->> 7 from attempt") or ((None,),)
        assert lost is None if clock == "is set back" else lost < 1_000 * WITHIN_S


class Forestalling:
    """Leaves a request to cancel right after the commit that marks a step, before whoever committed goes on.

    No watcher can be quicker, nor later save the worker: it is told within the call that commits, as by another task
    that was waiting for the loop, and the step would be begun before anything else is looked at.
    """

    def __init__(self, app: App, place: Place, path: str) -> None:
        self._app, self._place, self._path = app, place, path
        self.when: list[tuple[str, bool]] = []
        self._loop = asyncio.get_running_loop()
        call_after_commits(app, self._committed)

    def _committed(self) -> None:
        if self.when:
            return
        found = self._place.rows(
            "select run from step where path = ? and run not in (select run from inbox)", self._path
        )
        if not found:
            return
        made = (Path(self._place.workspace) / "made.txt").exists()
        self.when.append((self._path, made))
        self._place.rows(
            "insert into inbox(run, kind, body, principal, via, client, at) values (?, 'cancel', '', ?, ?, ?, 1)",
            *found[0],
            *ME.actor,
        )
        if threading.current_thread() is threading.main_thread():
            self._app._context.pool.nudge(found[0][0], interrupt=True)
        else:  # comes to the loop before the end of the commit does
            self._loop.call_soon_threadsafe(lambda: self._app._context.pool.nudge(found[0][0], interrupt=True))
