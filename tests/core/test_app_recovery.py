"""Several apps on one store, apps that are gone, stores that fail: nothing is lost, nobody else suffers."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from typing import Any

import apsw
import pytest
from support.app import (
    ASK,
    ME,
    WITHIN_S,
    Place,
    answer_run,
    assert_all_lawful,
    finish_run,
    open_checked_app,
    reads,
    rests,
    says,
    start_run,
    wait_for_step,
)
from support.commits import call_before_commits, leave_commits, make_full_disk_error
from support.postgres import both_stores

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import KairosError, NotForCallers, StoreCorrupt, Unreadable
from kairos_mcp.core.limits import NOTHING, Limits
from kairos_mcp.core.messages import Completion
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.execution.commit import commit
from kairos_mcp.store import queries, runs
from kairos_mcp.store.commit import CommitPlan, StepResult
from kairos_mcp.store.commit_rows import release_run
from kairos_mcp.store.inbox import SubmittedAnswer, insert_answer, insert_submitted_answers, submit_request
from kairos_mcp.store.rows import Session

DONE = {"content": "done", "finish": "stop"}
ASKS = {"tool_calls": [{"name": "ask_person", "arguments": {"question": "why"}}]}


def orphan(place: Place, run_id: str, *, paused: bool = False) -> None:
    """Leave the run as a server would that was killed: owned by one whose lock is gone."""
    place.rows("insert into owner(lock, pid, via, started_at) values ('1-dead', 1, 'mcp', 1)")
    place.rows(
        "update run set owner = (select max(id) from owner), fence = fence + 1, paused = ? where id = ?",
        "asked" if paused else None,
        run_id,
    )


# -- two apps ----------------------------------------------------------------------------------------------------


@both_stores
async def test_an_answer_left_through_another_host_reaches_the_owner(place: Place) -> None:
    settings = place.settings()
    async with open_checked_app(settings) as one, App.open(settings, via="mcp") as other:
        turn = {"tool_calls": reads("a.txt")["tool_calls"] + ASKS["tool_calls"]}
        run_id = await start_run(one, route="caller", caller_tools=(ASK,))
        await answer_run(one, run_id, round_1=turn)
        await answer_run(other, run_id, round_1__call_2={"content": "yes"})
        assert [item["key"] for item in (await rests(one, run_id)).waiting] == ["round-2"]
        assert (await answer_run(one, run_id, round_2=DONE)).summary == "done"
        assert (await rests(other, run_id)).summary == "done"


async def test_an_answer_and_a_control_request_reach_an_owner_that_is_busy(place: Place) -> None:
    ask = ASK.__class__(**{name: getattr(ASK, name) for name in ASK.__slots__} | {"effect": "read"})
    slow = {"tool_calls": ASKS["tool_calls"] * 2}
    settings = place.settings(slow, says("never", delay_s=60))
    async with open_checked_app(settings) as owner, App.open(settings, via="mcp") as other:
        run_id = await start_run(owner, caller_tools=(ask,))
        await answer_run(other, run_id, round_1__call_1={"content": "yes"})
        await other.answers.submit(run_id, {"round-1/call-2": {"content": "yes"}}, ME)
        await wait_for_step(other, "round-2")
        async with asyncio.timeout(5):
            await owner.control.cancel(run_id, ME)
            await owner.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
        assert (await other.runs.report(run_id, ME)).status == "cancelled"


async def test_another_host_can_cancel_what_this_one_performs(place: Place) -> None:
    settings = place.settings(says("never", delay_s=60))
    async with open_checked_app(settings) as owner, App.open(settings, via="mcp") as other:
        run_id = (await owner.runs.start(PlannerRequest("look"), ME)).run_id
        await wait_for_step(owner, "round-1")
        async with asyncio.timeout(5):
            await other.control.cancel(run_id, ME)
            await other.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
        assert (await owner.runs.report(run_id, ME)).status == "cancelled"


async def test_a_wait_ends_with_what_another_host_does(place: Place) -> None:
    settings = place.settings(says("done"))
    async with open_checked_app(settings) as one, App.open(settings, via="mcp") as other:
        run_id = await start_run(one, route="caller")
        waits = asyncio.create_task(other.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME))
        await asyncio.sleep(0)
        await answer_run(one, run_id, round_1=DONE)
        async with asyncio.timeout(3):
            await waits
        assert (await other.runs.report(run_id, ME)).status == "completed"


async def test_two_hosts_answer_at_once_and_one_answer_is_kept(place: Place) -> None:
    settings = place.settings()
    async with open_checked_app(settings) as one, App.open(settings, via="mcp") as other:
        run_id = await start_run(one, route="caller")
        outcomes = await asyncio.gather(
            one.answers.submit(run_id, {"round-1": DONE}, ME),
            other.answers.submit(run_id, {"round-1": {"content": "otherwise", "finish": "stop"}}, ME),
            return_exceptions=True,
        )
        assert [isinstance(outcome, KairosError) for outcome in outcomes].count(True) == 1
        await rests(one, run_id)
        assert place.rows("select count(*) from answer") == [(1,)]


async def test_a_run_whose_host_left_in_the_middle_goes_on_elsewhere(place: Place) -> None:
    settings = place.settings(reads("a.txt"), reads("b.txt", delay_s=60), says("done"))
    place.script.write_text(place.script.read_text().replace('"delay_s": 60', '"delay_s": 1.5'))
    async with App.open(settings, via="mcp") as first:
        run_id = (await first.runs.start(PlannerRequest("look"), ME)).run_id
        await wait_for_step(first, "round-2")
    async with open_checked_app(settings) as second:
        report = await rests(second, run_id)
        assert (report.status, report.summary) == ("completed", "done")
        assert report.usage["model_calls"] == 3 + report.usage["attempts"] - 3


async def test_a_host_that_was_only_looked_at_takes_nothing(place: Place) -> None:
    settings = place.settings(reads("a.txt", delay_s=1.5), says("done"))
    async with App.open(settings, via="mcp") as first:
        run_id = (await first.runs.start(PlannerRequest("look"), ME)).run_id
        await wait_for_step(first, "round-1")
    before = place.rows("select owner, fence from run")
    async with App.open(settings, via="mcp") as prober:
        assert (await prober.runs.report(run_id, ME)).status == "paused"
        assert (await prober.health())["exists"]
        assert place.rows("select owner, fence from run") == before
    async with open_checked_app(settings) as second:
        assert (await rests(second, run_id)).summary == "done"


async def test_an_app_without_the_workspace_leaves_the_run_and_says_what_it_needs(place: Place) -> None:
    settings = place.settings(reads("a.txt", delay_s=1.5), says("done"))
    async with App.open(settings, via="mcp") as first:
        run_id = (await first.runs.start(PlannerRequest("look"), ME)).run_id
        await wait_for_step(first, "round-1")
    async with App.open(place.settings(workspaces=()), via="mcp") as stranger:
        await stranger.runs.wait([run_id], until="rest", wait_s=0, caller=ME)
        report = await stranger.runs.report(run_id, ME)
        assert report.status == "paused"
        assert place.rows("select count(*) from answer") == [(0,)]
        await stranger.control.cancel(run_id, ME)
        await stranger.runs.wait([run_id], until="done", wait_s=3, caller=ME)
        assert (await stranger.runs.report(run_id, ME)).status == "cancelled"
        await assert_all_lawful(stranger)


async def test_a_paused_run_whose_owner_died_can_be_resumed(place: Place) -> None:
    settings = place.settings()
    async with App.open(settings, via="mcp") as first:
        run_id = await start_run(first, route="caller")
        await answer_run(first, run_id, round_1=ASKS | {"tool_calls": reads("a.txt")["tool_calls"]})
    orphan(place, run_id, paused=True)
    async with open_checked_app(settings) as second:
        await second.runs.wait([run_id], until="rest", wait_s=0.5, caller=ME)
        assert (await second.runs.report(run_id, ME)).status == "paused"
        await second.control.request(run_id, "resume", ME)
        assert (await rests(second, run_id)).status == "input_required"
        assert (await answer_run(second, run_id, round_2=DONE)).summary == "done"


async def test_a_paused_run_whose_owner_died_can_be_cancelled(place: Place) -> None:
    settings = place.settings()
    async with App.open(settings, via="mcp") as first:
        run_id = await start_run(first, route="caller")
    orphan(place, run_id, paused=True)
    async with open_checked_app(settings) as second:
        await second.control.cancel(run_id, ME)
        await second.runs.wait([run_id], until="done", wait_s=3, caller=ME)
        assert (await second.runs.report(run_id, ME)).status == "cancelled"


async def test_starts_that_meet_a_locked_store_all_come_through(place: Place) -> None:
    settings = place.settings(durability="full")
    async with open_checked_app(settings) as app:
        assert await app.runs.count_elsewhere(ME) == 0  # the file is there now
        with ExitStack() as stack:
            stack.enter_context(place.store().write_session())
            asyncio.get_running_loop().call_later(0.3, stack.pop_all().close)
        starts = [app.runs.start(PlannerRequest(f"goal {n}", route="caller"), ME) for n in range(4)]
        made = await asyncio.gather(*starts)
        await app.runs.wait([each.run_id for each in made], until="rest", wait_s=WITHIN_S, caller=ME)
        assert len({each.run_id for each in made}) == 4


# -- one bad run, or a failing store -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "update run set spec = '{}'",
        "update text set body = 'nonsense' where hash = (select json_extract(spec, '$.user_text') from run)",
        "update run set version = 99",
        "update run set flow = 'ooda'",
        "update step set digest = (select start_digest from run limit 1)",
        "update step set sent = 'nonsense'",
        "update answer set body = 'nonsense'",
        "update answer set body = replace(body, 'look', 'overlook')",
        "delete from account where scope = 'run'",
        "delete from step where path = 'round-1'",
    ],
)
@pytest.mark.unreplayed
async def test_one_damaged_run_does_not_stop_the_others(place: Place, damage: str) -> None:
    settings = place.settings(reads("a.txt"), says("done"))
    async with App.open(settings, via="mcp") as app:
        bad = await start_run(app, "bad", route="caller")
        await answer_run(app, bad, round_1=reads("a.txt"))
    place.rows(damage)
    orphan(place, bad)
    async with App.open(settings, via="mcp") as app:
        good = await start_run(app, "good")
        assert (await app.runs.report(good, ME)).summary == "done"
        await app.runs.wait([good], until="done", wait_s=2, caller=ME)
        for ask in (app.runs.report, app.records.replay):
            try:
                await ask(bad, ME)
            except KairosError:
                pass
            except NotForCallers as leaked:
                raise AssertionError from leaked
        with suppress(KairosError):
            await app.answers.submit(bad, {"round-2": DONE}, ME)
        assert (await rests(app, await start_run(app, "another"))).summary == "done"


@pytest.mark.parametrize(
    "tamper",
    [
        "update answer set body = replace(body, 'alpha', 'omega')",
        "update answer set body = replace(body, 'look', 'overlook')",
        "update answer set body = replace(body, 'done', 'nothing done')",
        "update run set outcome = replace(outcome, 'done', 'nothing done')",
        "delete from answer where step = (select max(step) from answer)",
        "update step set digest = (select start_digest from run limit 1) where path = 'round-2'",
        "update step set path = 'round-7' where path = 'round-2'",
    ],
)
@pytest.mark.unreplayed
async def test_a_changed_row_is_found_by_replay(place: Place, tamper: str) -> None:
    async with App.open(place.settings(reads("a.txt"), says("done")), via="mcp") as app:
        run_id = await start_run(app)
        assert (await app.records.replay(run_id, ME)).identical
        before = place.rows("select * from run join step on run = n left join answer on step = step.id")
        place.rows(tamper)
        assert place.rows("select * from run join step on run = n left join answer on step = step.id") != before
        replayed = await app.records.replay(run_id, ME)
        assert (replayed.identical, bool(replayed.first_difference)) == (False, True)


@pytest.mark.unreplayed
async def test_a_changed_text_is_found_by_its_hash_before_anything_is_replayed(place: Place) -> None:
    async with App.open(place.settings(reads("a.txt"), says("done")), via="mcp") as app:
        run_id = await start_run(app)
        place.rows("update text set body = replace(body, 'look around', 'look away')")
        with pytest.raises(Unreadable):
            await app.records.replay(run_id, ME)


async def test_an_answer_that_can_not_be_committed_is_kept_and_committed_later(place: Place) -> None:
    async with open_checked_app(place.settings(reads("a.txt"), says("done"))) as app:
        refusing = Refusing(app)
        refusing.after(3)
        run_id = await start_run(app)
        report = await app.runs.report(run_id, ME)
        assert report.status == "paused"
        answers = place.rows("select count(*) from answer")
        refusing.stop()
        report = await rests(app, run_id)
        assert (report.summary, report.usage["model_calls"], report.usage["attempts"]) == ("done", 2, 2)
        assert answers < place.rows("select count(*) from answer")


async def test_a_run_that_stands_still_can_be_cancelled(place: Place) -> None:
    async with open_checked_app(place.settings(reads("a.txt"), says("done"))) as app:
        refusing = Refusing(app)
        refusing.after(3)
        run_id = await start_run(app)
        assert (await app.runs.report(run_id, ME)).status == "paused"
        refusing.stop()
        await app.control.cancel(run_id, ME)
        assert (await app.runs.report(run_id, ME)).status == "cancelled"


async def test_a_commit_refused_in_the_middle_is_made_again_and_nothing_is_asked_twice(place: Place) -> None:
    for nth in range(1, 8):
        where = Place(place.root / str(nth))
        where.workspace.mkdir(parents=True)
        (where.workspace / "a.txt").write_text("alpha\n")
        async with open_checked_app(where.settings(reads("a.txt", "a.txt"), reads("a.txt"), says("done"))) as app:
            refusing = Refusing(app)
            refusing.after(nth, times=5)
            try:
                run_id = await start_run(app)
            except KairosError:  # the start itself was refused: nothing was made
                assert where.rows("select count(*) from run") == [(0,)]
                refusing.stop()
                run_id = await start_run(app)
            refusing.stop()
            report = await finish_run(app, run_id)
            assert (report.summary, report.usage["attempts"], report.usage["tool_calls"]) == ("done", 3, 3)


class Refusing:
    """A disk that is full from the nth commit on."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.left = self.times = 0

    def after(self, commits: int, times: int = 10**9) -> None:
        self.left, self.times = commits, times
        call_before_commits(self.app, self._before_commit)

    def stop(self) -> None:
        leave_commits(self.app)

    def _before_commit(self) -> None:
        self.left -= 1
        if self.left >= 0 or self.times <= 0:
            return
        self.times -= 1
        raise make_full_disk_error(self.app)


async def test_a_cancel_that_comes_during_a_commit_is_seen_before_the_next_step_begins(place: Place) -> None:
    lines = [reads("a.txt"), says("never", delay_s=60)]
    settings = place.settings(*lines, durability="full")
    async with open_checked_app(settings) as app:
        run_id = (await app.runs.start(PlannerRequest("look"), ME)).run_id
        with app._store.writer.active_run():  # as if another run moved: commits are made in the thread
            request = asyncio.create_task(cancel_within_commit(app, place, run_id))
            async with asyncio.timeout(6):
                await request
                await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
        assert (await app.runs.report(run_id, ME)).status == "cancelled"


async def cancel_within_commit(app: App, place: Place, run_id: str) -> None:
    """Cancel in the very turn of the loop in which a commit is under way."""
    while not app._store.writer._is_committing:  # noqa: ASYNC110 - the very turn of the loop is meant
        await asyncio.sleep(0)
    await app.control.cancel(run_id, ME)


@both_stores
@pytest.mark.parametrize("limits", [Limits()])
async def test_a_start_on_a_store_that_can_not_be_written_says_so_and_a_later_one_works(
    place: Place, limits: Limits
) -> None:
    async with open_checked_app(place.settings(says("done"))) as app:
        assert await app.runs.newest_ids(ME) == []
        refusing: Any = Refusing(app)
        refusing.after(0)
        with pytest.raises(KairosError) as refused:
            await start_run(app, limits=limits)
        assert refused.value.code == "no_space"
        refusing.stop()
        assert (await rests(app, await start_run(app))).summary == "done"


# -- the guards of the record ------------------------------------------------------------------------------------


@both_stores
async def test_an_owner_whose_run_was_taken_commits_nothing_more(place: Place) -> None:
    settings = place.settings(reads("a.txt", delay_s=0.5), says("done", delay_s=0.5))
    async with open_checked_app(settings) as first, App.open(settings, via="mcp") as second:
        run_id = (await first.runs.start(PlannerRequest("look"), ME)).run_id
        await wait_for_step(first, "round-1")
        orphan(place, run_id)  # as if the first had been stopped for so long that it was thought dead
        assert (await rests(second, run_id)).summary == "done"
        assert place.rows("select path from attempt join step on step.id = step") == [("round-1",)]
        fences = dict(place.rows("select path, fence from step"))
        assert fences["round-1"] == 1
        assert {fence for path, fence in fences.items() if path != "round-1"} == {3}


@pytest.mark.parametrize("came", ["an answer", "a control request", "nothing"])
async def test_a_run_is_not_let_go_of_while_something_that_came_was_not_seen(place: Place, came: str) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_run(app, route="caller")
        run = await app._store.read(lambda session: queries.run_by_id(session, run_id))
        (waits,) = (await app._store.read(lambda session: queries.open_steps(session, run.n))).values()
        owner = await app._store.register_owner(1)
        fence = await app._store.submit(lambda c: runs.take_run(c, run.n, owner, ()))
        if came == "an answer":
            brought = SubmittedAnswer("round-1", Completion("done", finish="stop"))
            assert (
                await app._store.submit(lambda c: insert_submitted_answers(c, run, [brought], "caller", owner, 1))
                is None
            )
        elif came == "a control request":
            assert (
                await app._store.submit(lambda c: submit_request(c, run, "pause", "asked", ME.actor, owner, 1)) is None
            )
        plan = CommitPlan(run.n, run_id, owner, fence, run.account, 1, may_release=True, open_step_ids=(waits.step_id,))
        assert await app._store.submit(lambda c: release_run(c, plan)) == (came == "nothing")
        if came != "nothing":
            assert not (await app._store.submit(lambda c: commit(c, plan))).released
            assert place.rows("select owner from run") == [(owner,)]


@pytest.mark.unreplayed
async def test_a_mark_takes_one_answer_whoever_brings_it(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        await start_run(app, route="caller")
        ((mark,),) = place.rows("select id from step")

        def answer(session: Session) -> None:
            insert_answer(session, mark, StepResult(Completion("x"), NOTHING), "caller", 1)

        await app._store.submit(answer)
        with pytest.raises(KairosError):
            await app._store.submit(answer)
        assert place.rows("select count(*) from answer") == [(1,)]


@pytest.mark.unreplayed
@pytest.mark.state_file("the pages of the file are damaged")
async def test_a_file_damaged_under_the_host_is_said_to_be_damaged(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_run(app, route="caller")
        app._store.writer._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        whole = place.db.read_bytes()
        place.db.write_bytes(whole[:12_288] + b"\xff" * (len(whole) - 12_288))
        for look in (app.runs.report, app.records.replay):
            with pytest.raises(StoreCorrupt):
                await look(run_id, ME)
        for ask in (app.answers.submit(run_id, {"round-1": DONE}, ME), app.control.cancel(run_id, ME)):
            with pytest.raises(StoreCorrupt):
                await ask
        with pytest.raises(StoreCorrupt):
            await start_run(app, "another", route="caller")


@pytest.mark.unreplayed
@both_stores
async def test_whoever_waits_is_not_told_that_a_run_stands_still_which_goes_on_here(place: Place) -> None:
    """Its server ends while the call waits; nobody but the call looks for such runs here."""
    settings = place.settings(reads("a.txt", delay_s=1.0), says("done"))
    async with App.open(settings, via="mcp") as first, App.open(settings, via="mcp") as second:
        run_id = (await first.runs.start(PlannerRequest("look"), ME)).run_id
        await wait_for_step(first, "round-1")
        waiting = asyncio.create_task(second.runs.wait([run_id], until="attention", wait_s=WITHIN_S, caller=ME))
        await asyncio.sleep(0.2)  # until it waits
        second.watcher.close()
        place.rows("insert into owner(lock, pid, via, started_at) values ('of one that ended', 0, 'mcp', 0)")
        place.rows("update run set fence = fence + 1, owner = (select max(id) from owner)")
        second._context.pool.change_signal.notify_all()
        (run,) = await waiting
        assert (run.outcome is not None, (await second.runs.report(run_id, ME)).status) == (True, "completed")
