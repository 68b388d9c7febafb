"""What a day may cost: used up, it pauses every run of its principal until the next day, and nothing is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.app import (
    ASK,
    ME,
    Place,
    answer_run,
    asked_digests,
    outcome_of,
    place_in,
    reads,
    rests,
    says,
    start_run,
    wait_for_step,
)
from support.daily_accounts import (
    MIDNIGHT,
    NOON,
    ZONE,
    Clock,
    app_at,
    assert_days_add_up,
    at,
    count_passed_caps,
    days_of,
    usage_of,
    wait_until_ended,
    watch_peaks,
)
from support.postgres import both_stores
from support.provider_server import WITHIN_S, Standin, calls, refuses, silent, talks

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.store import accounts
from kairos_mcp.store.connection import SqliteSession
from kairos_mcp.store.rows import Session
from kairos_mcp.store.schema import migrate

LINES = (
    reads("a.txt", **usage_of(20_000)),
    reads("b.txt", **usage_of(20_000)),
    reads("a.txt", **usage_of(20_000)),
    says("done"),
)
DAYS = {
    "model_calls": Limits(model_calls=2),
    "input_tokens": Limits(input_tokens=45_000),
    "output_tokens": Limits(output_tokens=400),
    "total_tokens": Limits(total_tokens=45_000),
}
PRICED = {"price_input": 1.0, "price_output": 10.0}
NARROW = ("read_file",)  # one tool, so that a round's bound is small


@pytest.mark.parametrize("day", DAYS.values(), ids=DAYS.keys())
async def test_a_day_that_is_used_up_pauses_the_run_which_goes_on_by_itself_on_the_next(
    place: Place, tmp_path: Any, day: Limits
) -> None:
    reference = place_in(tmp_path / "reference")
    async with app_at(reference.settings(*LINES), Clock()) as app:
        unlimited = await start_run(app, tools=NARROW)
    clock = Clock()
    async with app_at(place.settings(*LINES, day=day, time_zone=ZONE), clock) as app:
        run_id = await start_run(app, tools=NARROW)
        report = await app.runs.report(run_id, ME)
        assert (report.status, report.stop_reason, report.waiting) == ("paused", None, ())
        assert report.resume_at == "2026-11-21T05:00:00Z"
        assert place.rows("select resume_at, owner from run") == [(MIDNIGHT, None)]
        done = report.rounds
        assert 1 <= done <= 3
        while report.status == "paused":  # a day for each part
            clock.now = place.rows("select resume_at from run")[0][0]
            await app.runs.wait([run_id], until="attention", wait_s=WITHIN_S, caller=ME)
            report = await rests(app, run_id)
        assert (report.status, report.summary) == ("completed", "done")
    books = days_of(place)
    assert len(books) >= 2
    assert sum(book.spent.model_calls for book in books.values()) == 4
    assert books["2026-11-20"].spent.model_calls == done
    assert asked_digests(place, run_id) == asked_digests(reference, unlimited)
    assert outcome_of(place, run_id) == outcome_of(reference, unlimited)


async def test_a_day_that_is_limited_in_dollars_pauses_the_run(place: Place, server: Standin) -> None:
    turn = [
        talks(None, calls(("read_file", {"path": name})), finish="tool_calls", usage=(9_000, 100, 0))
        for name in ("a.txt", "b.txt")
    ]
    server.will(*turn, talks("done", usage=(9_000, 100, 0)))
    day = Limits(nano_usd=24_000_000)  # 2.4 cents; a round costs one cent, and is bounded by little more
    clock = Clock()
    settings = place.settings(model="openai:small", base_url=server.openai, day=day, time_zone=ZONE, **PRICED)
    async with app_at(settings, clock) as app:
        run_id = await start_run(app, tools=NARROW)
        assert ((await app.runs.report(run_id, ME)).status, len(server.heard)) == ("paused", 2)
        clock.now = MIDNIGHT
        assert (await wait_until_ended(app, run_id)).summary == "done"
    books = days_of(place)
    assert [books[name].spent.nano_usd for name in ("2026-11-20", "2026-11-21")] == [20_000_000, 10_000_000]


async def test_resumed_too_early_it_is_paused_again(place: Place) -> None:
    clock = Clock()
    async with app_at(place.settings(*LINES, day=Limits(model_calls=2), time_zone=ZONE), clock) as app:
        run_id = await start_run(app)
        for _ in range(2):
            await app.control.request(run_id, "resume", ME)
            report = await rests(app, run_id)
            assert (report.status, report.rounds) == ("paused", 2)
            assert place.rows("select resume_at from run") == [(MIDNIGHT,)]
        clock.now = MIDNIGHT - 1
        await asyncio.gather(*(app.watcher.pick_up_runs() for _ in range(3)))
        assert (await rests(app, run_id)).status == "paused"


async def test_runs_of_two_servers_can_not_take_a_day_over(place: Place) -> None:
    cap = 7
    settings = place.settings(*LINES, day=Limits(model_calls=cap, total_tokens=250_000), time_zone=ZONE)
    clock = Clock()
    async with app_at(settings, clock) as one, app_at(settings, clock) as other:
        first = await start_run(one, "the file is made")
        watch_peaks(place)
        apps = (one, other, one, other, one)
        starts = [app.runs.start(PlannerRequest(f"run {n}"), ME) for n, app in enumerate(apps)]
        runs = [first, *(each.run_id for each in await asyncio.gather(*starts))]
        await asyncio.gather(*(app.runs.wait(runs, until="rest", wait_s=WITHIN_S, caller=ME) for app in (one, other)))
        reports = [await one.runs.report(run_id, ME) for run_id in runs]
        assert {report.status for report in reports} <= {"paused", "completed"}
        book = days_of(place)["2026-11-20"]
        assert book.held == book.held._replace(model_calls=0)
        assert book.spent.model_calls == cap
        for day in range(1, 5):  # 24 calls in all, seven a day
            clock.now = MIDNIGHT + (day - 1) * 86_400_000
            for run_id in runs:
                await other.runs.wait([run_id], until="attention", wait_s=WITHIN_S, caller=ME)
            await wait_until_settled(one, other, runs)
        assert {(await one.runs.report(run_id, ME)).summary for run_id in runs} == {"done"}
        assert count_passed_caps(place) == 0
    assert sorted(book.spent.model_calls for book in days_of(place).values()) == [3, 7, 7, 7]


async def wait_until_settled(one: App, other: App, runs: list[str]) -> None:
    """Return once each run has ended or is paused until a later day."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            await asyncio.gather(
                *(app.runs.wait(runs, until="rest", wait_s=WITHIN_S, caller=ME) for app in (one, other))
            )
            now = one._context.clock()
            again = [await one.runs.report(run_id, ME) for run_id in runs]
            later = [report for report in again if report.resume_at is not None]
            if all(report.status in ("completed", "paused") for report in again) and not any(
                at_ms <= now for (at_ms,) in due_rows(one)
            ):
                return
            await one._context.pool.change_signal.wait(runs, 0.05 if later else 0.01)


def due_rows(app: App) -> list[tuple[int]]:
    return Place(app.settings.home.parent).rows(
        "select resume_at from run where resume_at is not null and outcome is null"
    )


async def test_budget_020_a_round_is_charged_to_the_day_on_which_it_was_reserved(place: Place) -> None:
    clock = Clock(MIDNIGHT - 1)
    lines = (reads("a.txt", delay_s=0.2, **usage_of(5_000)), says("done", **usage_of(6_000)))
    async with app_at(place.settings(*lines, time_zone=ZONE), clock) as app:
        run_id = (await app.runs.start(PlannerRequest("look"), ME)).run_id
        await wait_for_step(app, "round-1")
        clock.now = MIDNIGHT + 100
        await wait_until_ended(app, run_id)
    books = days_of(place)
    assert [books[name].spent.input_tokens for name in ("2026-11-20", "2026-11-21")] == [5_000, 6_000]


async def test_a_clock_that_was_set_back_finds_what_was_used_after_midnight(place: Place) -> None:
    clock = Clock()
    settings = place.settings(*LINES, day=Limits(model_calls=4), time_zone=ZONE)
    async with app_at(settings, clock) as app:
        await start_run(app, "first")
        clock.now = MIDNIGHT + 1
        await start_run(app, "second")
        clock.now = NOON
        third = await start_run(app, "third")
        assert ((await app.runs.report(third, ME)).status, (await app.runs.report(third, ME)).rounds) == ("paused", 0)
    assert [book.spent.model_calls for book in days_of(place).values()] == [4, 4]


async def test_a_pause_that_a_wrong_clock_began_ends_when_a_person_says_that_it_is_right_again(place: Place) -> None:
    clock = Clock(at("2031-01-01T12:00"))
    async with app_at(place.settings(*LINES, day=Limits(model_calls=2), time_zone=ZONE), clock) as app:
        run_id = await start_run(app)
        assert (await app.runs.report(run_id, ME)).resume_at == "2031-01-02T05:00:00Z"
        clock.now = NOON
        await app.control.trust_clock(ME)
        assert (await wait_until_ended(app, run_id)).summary == "done"


async def test_what_a_caller_brings_is_charged_to_the_day(place: Place) -> None:
    clock = Clock()
    brought = {**reads("a.txt"), **usage_of(700, 300)}
    async with app_at(place.settings(day=Limits(total_tokens=1_000), time_zone=ZONE), clock) as app:
        run_id = await start_run(app, route="caller")
        assert days_of(place)["2026-11-20"].held.model_calls == 1
        report = await answer_run(app, run_id, round_1=brought)
        assert (report.status, report.resume_at) == ("paused", "2026-11-21T05:00:00Z")
        assert days_of(place)["2026-11-20"].spent.total_tokens == 1_000
        clock.now = MIDNIGHT
        await app.runs.wait([run_id], until="attention", wait_s=WITHIN_S, caller=ME)
        assert (await rests(app, run_id)).status == "input_required"
        report = await answer_run(app, run_id, round_2=says("done"))
        assert report.status == "completed"
    assert days_of(place)["2026-11-21"].spent.model_calls == 1


@pytest.mark.parametrize("route", ["caller", "provider"])
async def test_a_cancelled_run_holds_nothing_of_the_day(place: Place, server: Standin, route: str) -> None:
    server.will(silent)
    settings = place.settings(model="openai:small", base_url=server.openai, time_zone=ZONE)
    async with app_at(settings, Clock()) as app:
        run_id = (await app.runs.start(PlannerRequest("look", route=route), ME)).run_id
        await wait_for_step(app, "round-1")
        assert days_of(place)["2026-11-20"].held.model_calls == 1
        if route == "provider":
            async with asyncio.timeout(WITHIN_S):
                await server.came.wait()
        await app.control.cancel(run_id, ME)
        await wait_until_ended(app, run_id)
    book = days_of(place)["2026-11-20"]
    assert set(book.held) == {0}
    assert (book.spent.model_calls, book.spent.output_tokens) == ((1, 4_096) if route == "provider" else (0, 0))


@pytest.mark.unreplayed
async def test_a_stuck_run_that_is_cancelled_holds_nothing_of_the_day(place: Place) -> None:
    clock = Clock()
    async with App.open(place.settings(time_zone=ZONE), via="mcp") as app:
        run_id = await start_run(app, route="caller")
    place.rows("update step set digest = (select start_digest from run limit 1)")
    async with App.open(place.settings(time_zone=ZONE), via="mcp") as app:
        await app.control.cancel(run_id, ME)
        await wait_until_ended(app, run_id)
    (book,) = days_of(place).values()
    assert set(book.held) == {0}
    assert_days_add_up(place)
    assert clock.now == NOON


async def test_budget_011_a_lost_attempt_stays_charged_on_its_day(place: Place, server: Standin) -> None:
    server.will(silent, talks("done", usage=(900, 10, 0)))
    settings = place.settings(model="openai:small", base_url=server.openai, time_zone=ZONE)
    clock = Clock()
    app = App(settings, "mcp", clock, lambda: "run-lost")
    run_id = (await app.runs.start(PlannerRequest("look"), ME)).run_id
    async with asyncio.timeout(WITHIN_S):
        await server.came.wait()
    await app._close()
    clock.now = MIDNIGHT
    async with app_at(settings, clock) as second:
        await second.control.request(run_id, "resume", ME)
        assert (await wait_until_ended(second, run_id)).summary == "done"
    books = days_of(place)
    lost, then = books["2026-11-20"].spent, books["2026-11-21"].spent
    assert (lost.model_calls, lost.output_tokens) == (1, 4_096)
    assert then.total_tokens == 910
    assert {set(book.held) == {0} for book in books.values()} == {True}


async def test_interrupted_and_folded_again_the_sums_stay(place: Place) -> None:
    clock = Clock()
    settings = place.settings(*LINES, day=Limits(model_calls=2), time_zone=ZONE)
    request = PlannerRequest("look around", caller_tools=(ASK,), key="one")
    for nth in range(8):
        app = App(settings, "mcp", clock, lambda: "run-one")
        going = asyncio.create_task(app.runs.start(request, ME))
        while app._store.writer.commits < nth and not going.done():  # noqa: ASYNC110 - a count has no event
            await asyncio.sleep(0)
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
        await app._close()
        if place.db.exists():
            assert_days_add_up(place)
    async with app_at(settings, clock) as app:
        run_id = (await app.runs.start(request, ME)).run_id
        assert (await rests(app, run_id)).status == "paused"
        clock.now = MIDNIGHT
        await wait_until_ended(app, run_id)
    assert [book.spent.model_calls for book in days_of(place).values()] == [2, 2]


async def test_budget_016_a_limit_lowered_below_what_is_used_stops_at_the_next_call(place: Place) -> None:
    clock = Clock()
    async with app_at(place.settings(*LINES, day=Limits(model_calls=9), time_zone=ZONE), clock) as app:
        run_id = await start_run(app, route="caller")
        await answer_run(app, run_id, round_1=reads("a.txt"))
        lowered = place.settings(*LINES, day=Limits(model_calls=1), time_zone=ZONE)
        async with app_at(lowered, clock) as other:
            second = await start_run(other, "second")
            assert (await other.runs.report(second, ME)).status == "paused"
            spending = await other.records.read_spending("day", ME)
            assert (spending["limits"]["model_calls"], spending["remaining"]["model_calls"]) == (1, 0)
        report = await answer_run(app, run_id, round_2=reads("b.txt"))
        assert report.status == "paused"
        day = await app.records.read_spending("day", ME)
        assert all(left is None or left >= 0 for left in day["remaining"].values())


async def test_raised_limits_let_a_resumed_run_go_on_the_same_day(place: Place) -> None:
    clock = Clock()
    async with app_at(place.settings(*LINES, day=Limits(model_calls=2), time_zone=ZONE), clock) as app:
        run_id = await start_run(app)
    async with app_at(place.settings(*LINES, day=Limits(model_calls=9), time_zone=ZONE), clock) as app:
        assert (await app.runs.report(run_id, ME)).status == "paused"
        await start_run(app, "another, which finds the day")
        await app.control.request(run_id, "resume", ME)
        assert (await wait_until_ended(app, run_id)).summary == "done"
    assert days_of(place)["2026-11-20"].spent.model_calls == 8


DAMAGE = {
    "less spent": "update account set spent_total_tokens = 1 where scope = 'day'",
    "nothing spent": "update account set spent_model_calls = 0 where scope = 'day'",
    "less held": "update account set held_model_calls = 0 where scope = 'day'",
    "removed": "delete from account where scope = 'day';"
    " insert into account(id, scope) select 1, 'day' where not exists (select 1 from account where id = 1)",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.unreplayed
async def test_a_damaged_day_refuses_instead_of_beginning_anew(place: Place, damage: str) -> None:
    clock, settings = Clock(), place.settings(*LINES, time_zone=ZONE)
    async with app_at(settings, clock) as app:
        await start_run(app, "first")
        waiting = await start_run(app, "waiting", route="caller")
    for statement in damage.split(";"):
        place.rows(statement)
    app = App(settings, "mcp", clock, lambda: "run-second")
    try:
        run_id = await start_run(app, "second")
        report = await app.runs.report(run_id, ME)
        assert (report.status, report.rounds) == ("paused", 0)
        assert (await app.health(thorough=True))["damage"]
        clock.now = MIDNIGHT  # what is damaged is that day alone
        await app.control.request(run_id, "resume", ME)
        assert (await wait_until_ended(app, run_id)).summary == "done"
        assert (await app.runs.report(waiting, ME)).status in ("input_required", "paused")
    finally:
        await app._close()


def test_a_step_or_an_attempt_alone_is_a_charge() -> None:
    step = (
        "insert into step(run, path, kind, digest, fence, at, shared) values (1, 'round-1', 'round', x'', 1, 1, '[1]')"
    )
    columns = "step, fence, at, held, shared, ended, lost, waits_outside"
    attempt = f"insert into attempt({columns}) values (1, 1, 1, '[]', '[1]', 'failed', '[]', 0)"
    for charge, table in ((step, "step"), (attempt, "attempt")):
        session = SqliteSession(":memory:")
        migrate(session)
        assert session.row(accounts.ANY_CHARGE) is None
        session.rows(charge)
        assert session.row(accounts.ANY_CHARGE) is not None
        session.rows(f"update {table} set shared = null")
        assert session.row(accounts.ANY_CHARGE) is None
        session.close()


async def test_dollars_of_a_day_without_a_price_are_refused_with_the_cure(place: Place) -> None:
    elsewhere = "http://10.0.0.1:1/v1"  # at a loopback address a model costs nothing
    settings = place.settings(model="openai:small", base_url=elsewhere, day=Limits(nano_usd=10**9))
    async with app_at(settings, Clock()) as app:
        with pytest.raises(BadArguments) as refused:
            await app.runs.start(PlannerRequest("x"), ME)
        assert "day.usd" in str(refused.value)
        assert "price_input" in f"{refused.value} {refused.value.hint}"
        run_id = await start_run(app, route="caller")
        assert (await app.runs.report(run_id, ME)).status == "input_required"  # the caller pays, not this server
        with pytest.raises(BadArguments):
            await app.control.reroute(run_id, "provider", ME)
    assert place.rows("select 1 from step where sent like '%provider%'") == []


async def test_an_outage_while_somebody_pauses_the_run_leaves_their_pause(place: Place, server: Standin) -> None:
    busy = refuses(429, Retry_After="0")

    async def last(heard: Any) -> Any:
        request = asyncio.create_task(app.control.pause(run_id, ME))
        async with asyncio.timeout(WITHIN_S):
            while not place.rows("select 1 from inbox"):  # noqa: ASYNC110 - another's file or count has no event
                await asyncio.sleep(0.005)
        requests.append(request)
        return await busy(heard)

    requests: list[asyncio.Task[None]] = []
    server.will(busy, busy, busy, last, talks("done"))
    settings = place.settings(model="openai:small", base_url=server.openai, time_zone=ZONE)
    async with app_at(settings, Clock()) as app:
        run_id = (await app.runs.start(PlannerRequest("look", key="k"), ME)).run_id
        await rests(app, run_id)
        assert place.rows("select paused, resume_at from run") == [("somebody asked for it", None)]
        await asyncio.gather(*requests)


async def test_a_pause_that_is_over_is_ended_also_where_its_server_has_died(place: Place) -> None:
    clock, settings = Clock(), place.settings(*LINES, day=Limits(model_calls=2), time_zone=ZONE)
    async with app_at(settings, clock) as app:
        run_id = await start_run(app)
        ((number,),) = place.rows("select max(id) from owner")
    place.rows("update run set owner = ?", number)  # as a server leaves it that dies before it lets go
    clock.now = MIDNIGHT
    async with app_at(settings, clock) as app:
        assert (await wait_until_ended(app, run_id)).summary == "done"


@both_stores
async def test_the_charges_of_a_day_are_added_up_once_for_all_runs_that_begin_together(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    added_up = list[int]()
    check = accounts.check_shared_account

    def count_check(session: Session, account: int) -> None:
        added_up.append(account)
        check(session, account)

    monkeypatch.setattr(accounts, "check_shared_account", count_check)
    async with app_at(place.settings(says("done")), Clock()) as app:
        await start_run(app)
        assert added_up == []  # nothing was charged to any account before
    async with app_at(place.settings(says("done")), Clock()) as app:
        await asyncio.gather(*(start_run(app, f"look {number}") for number in range(8)))
        # On a database a read is made twice: what it asks for, then with all answers.
        assert 1 <= len(added_up) <= 2
