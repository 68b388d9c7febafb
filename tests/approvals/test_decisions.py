"""A decision counts once, for what was shown, from whoever may give it, in time; and by the rows of the store."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.app import ASK, ME, Place, rests
from support.reviewers import (
    APPROVE,
    DIFF,
    KEY,
    LASTS_MS,
    NOW,
    STEP,
    asks_for,
    connect_person,
    digest,
    open_asking_app,
    verdicts,
    waiting,
)

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Actor, Caller
from kairos_mcp.core.errors import (
    AlreadyAnswered,
    ApprovalExpired,
    ApprovalMismatch,
    ApprovalRequired,
    BadArguments,
    KairosError,
    NotWaiting,
    UnknownRun,
)
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.store import approvals, decisions, queries
from kairos_mcp.store.approvals import LAPSED, MAX_PER_RUN, MAX_PER_WORKSPACE
from kairos_mcp.store.decisions import Decision
from kairos_mcp.store.inbox import SubmittedAnswer
from kairos_mcp.store.rows import Session
from kairos_mcp.views.waiting import decision_command

UNDECIDED = [(None, None, None, None)]
PERSON = Caller(via="command", client="kairos-mcp")


def now_in(place: Place) -> int:
    """The time at which the approval was asked for."""
    ((at,),) = place.rows("select asked_at from approval")
    return int(at)


def expire_approval(place: Place) -> None:
    """Let the approval run out, as if nobody had looked for as long as it lasts."""
    place.rows("update approval set expires_at = asked_at - 1")


# -- what is shown ---------------------------------------------------------------------------------------------


async def test_what_waits_is_shown_whole_with_what_it_is_bound_to(place):
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place)
        report = await rests(app, run_id)
        (item,) = report.waiting
        assert (report.status, item["key"], item["kind"]) == ("input_required", KEY, "approval")
        assert (item["preview"], item["digest"], item["effect"]) == (DIFF, digest(place, run_id), "irreversible")
        assert item["expires_at"].endswith("Z")
        assert f" approve --home {place.home} {run_id} {KEY}" in item["command"]
        assert item["command"] in report.next["why"]
        (brief,) = (await app.runs.report(run_id, ME, full=False)).waiting
        assert brief == {"key": KEY, "kind": "approval"}


@pytest.mark.parametrize(
    ("settings", "elicits", "tool", "named"),
    [
        ("host", False, "run_continue", "digest"),
        ("ask", True, "run_continue", "user"),
        ("ask", False, "run_status", " approve --home "),
        ("person", True, "run_status", " approve --home "),
    ],
)
async def test_the_next_move_is_one_that_the_caller_can_make(place, settings, elicits, tool, named):
    async with open_asking_app(place, approvals=settings) as app:
        run_id = await waiting(app, place)
        following = (await app.runs.report(run_id, Caller(elicits=elicits))).next
        assert following["tool"] == tool
        assert named in str(following)


async def test_a_long_preview_is_given_by_its_ref_and_never_cut(place):
    long = "\n".join(f"+line {n}" for n in range(2_000))
    async with open_asking_app(place) as app, connect_person(app, "2026-07-28", None) as client:
        run_id = await waiting(app, place, preview=long)
        (run,) = (await client.ask("run_status", {"run_ids": [run_id]}))["runs"]
        (item,) = run["waiting"]
        assert len(item["preview"]) < 200
        assert any(KEY in note for note in run["degraded"])
        page = await client.ask("run_trace", {"run_id": run_id, "ref": KEY, "max_chars": 100_000})
        assert page["text"] == long
        assert (await app.runs.report(run_id, ME)).waiting[0]["preview"] == long


# -- who may decide --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", ["ask", "person"])
async def test_whoever_calls_run_continue_decides_nothing_unless_it_is_configured(place, settings):
    async with open_asking_app(place, approvals=settings) as app:
        run_id = await waiting(app, place)
        with pytest.raises(ApprovalRequired) as refused:
            await app.answers.submit(run_id, {KEY: APPROVE | {"digest": digest(place, run_id)}}, ME)
        assert f"kairos-mcp approve {run_id} {KEY}" in refused.value.hint
        assert verdicts(place) == UNDECIDED
        assert place.rows("select count(*) from inbox") == [(0,)]


async def test_under_host_it_does_and_the_record_says_who(place):
    async with open_asking_app(place, approvals="host") as app:
        run_id = await waiting(app, place)
        given = APPROVE | {"digest": digest(place, run_id), "feedback": "carefully"}
        await app.answers.submit(run_id, {KEY: given}, Caller(client="a host 1"))
        assert verdicts(place) == [("approve", "local", "mcp", "carefully")]
        assert place.rows("select client from approval") == [("a host 1",)]
        (item,) = (await rests(app, run_id)).waiting
        assert (item["key"], item["kind"]) == (STEP, "tool_call")
        assert place.rows("select kind, taken is not null from inbox") == [("verdict", 1)]


async def test_the_tool_answers_an_error_that_names_the_command(place, era):
    async with open_asking_app(place) as app, connect_person(app, era, None) as client:
        run_id = await waiting(app, place)
        given = {"run_id": run_id, "answers": {KEY: APPROVE | {"digest": digest(place, run_id)}}}
        refused = (await client.sdk_client.call_tool("run_continue", given)).structured_content
        assert (refused["code"], refused["run_id"]) == ("approval_required", run_id)
        assert f" approve --home {place.home} {run_id} {KEY}" in refused["hint"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"decision": "approve"}, BadArguments),
        ({"decision": "yes", "digest": "0" * 64}, BadArguments),
        ({"decision": "approve", "digest": "0" * 64, "edit": "evil"}, BadArguments),
        ({"decision": "approve", "digest": "0" * 63}, BadArguments),
        ({"decision": "approve", "digest": "0" * 64, "feedback": "x" * 5_000}, BadArguments),
        ("approve", BadArguments),
        (None, BadArguments),
        pytest.param({"decision": "approve", "digest": "0" * 64}, ApprovalMismatch, id="EDIT-029"),
        ({"decision": "deny", "digest": "0" * 64}, ApprovalMismatch),
    ],
)
async def test_a_decision_that_is_not_about_what_was_shown_stores_nothing(place, answer: Any, error: type[KairosError]):
    async with open_asking_app(place, approvals="host") as app:
        run_id = await waiting(app, place)
        with pytest.raises(error):
            await app.answers.submit(run_id, {KEY: answer}, ME)
        assert verdicts(place) == UNDECIDED


async def test_nobody_answers_the_call_past_the_person_who_was_asked(place):
    async with open_asking_app(place, approvals="host") as app:
        run_id = await waiting(app, place)
        for forged in ({STEP: {"content": "done"}}, {STEP: APPROVE}, {f"{STEP}/approval#2": APPROVE}, {"x": APPROVE}):
            with pytest.raises(NotWaiting):
                await app.answers.submit(run_id, forged, ME)
        assert place.rows("select count(*) from answer where by_route = 'caller'") == [(0,)]
        assert verdicts(place) == UNDECIDED


async def test_answers_and_decisions_are_stored_all_or_none(place):
    async with open_asking_app(place, approvals="host") as app:
        run_id = await waiting(app, place)
        good = APPROVE | {"digest": digest(place, run_id)}
        with pytest.raises(NotWaiting):
            await app.answers.submit(run_id, {KEY: good, "round-7": {"content": "x"}}, ME)
        assert verdicts(place) == UNDECIDED


async def test_TENANCY_002_another_principals_approval_looks_like_none(place):
    alice, bob = Caller("alice"), Caller("bob")
    async with open_asking_app(place, approvals="host") as app:
        run_id = await waiting(app, place, caller=alice)
        given = {KEY: APPROVE | {"digest": digest(place, run_id)}}
        for attempt in (
            app.answers.submit(run_id, given, bob),
            app.answers.decide(run_id, KEY, "approve", None, bob),
            app.answers.decide(run_id, KEY, "approve", None, PERSON),
        ):
            with pytest.raises(UnknownRun):
                await attempt
        assert verdicts(place) == UNDECIDED
        assert f"--principal alice {run_id}" in (await app.runs.report(run_id, alice)).waiting[0]["command"]
        await app.answers.decide(run_id, KEY, "approve", None, Caller("alice", "command"))
        assert verdicts(place) == [("approve", "alice", "command", None)]


# -- once, in time ---------------------------------------------------------------------------------------------


async def test_the_same_decision_again_is_no_error_and_another_one_is(place):
    async with open_asking_app(place, approvals="host") as app:
        run_id = await waiting(app, place)
        given = {KEY: APPROVE | {"digest": digest(place, run_id)}}
        await app.answers.submit(run_id, given, ME)
        await app.answers.submit(run_id, given, ME)
        await app.answers.decide(run_id, KEY, "approve", None, PERSON)
        with pytest.raises(AlreadyAnswered):
            await app.answers.decide(run_id, KEY, "deny", "no!", PERSON)
        assert verdicts(place) == [("approve", "local", "mcp", None)]
        assert place.rows("select count(*) from inbox") == [(1,)]


async def test_of_many_that_decide_at_once_one_is_first(place):
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place)
        said = ["approve", "deny"] * 8
        came = await asyncio.gather(
            *(app.answers.decide(run_id, KEY, each, None, PERSON) for each in said), return_exceptions=True
        )
        ((first, *_),) = verdicts(place)
        assert [isinstance(each, AlreadyAnswered) for each in came] == [each != first for each in said]
        assert place.rows("select count(*) from inbox") == [(1,)]


async def test_EDIT_032_a_decision_after_its_time_is_none_though_no_server_lived(place):
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place)
    expire_approval(place)
    async with App.open(place.settings(), via="command") as person:
        with pytest.raises(ApprovalExpired):
            await person.answers.decide(run_id, KEY, "approve", None, PERSON)
        assert verdicts(place) == [("expired", "", "clock", None)]
        with pytest.raises(ApprovalExpired):
            await person.answers.decide(run_id, KEY, "approve", None, PERSON)
    assert place.rows("select kind, body from inbox") == [("verdict", KEY)]


@pytest.mark.parametrize(
    ("principal", "key", "words"),
    [
        ("local", KEY, ["approve", "run-1", KEY]),
        ("alice", KEY, ["approve", "--principal", "alice", "run-1", KEY]),
        ("local", f"{STEP}/settle", ["settle", "run-1", f"{STEP}/settle", "already_done"]),
        ("a b", f"{STEP}/settle", ["settle", "--principal", "a b", "run-1", f"{STEP}/settle", "already_done"]),
    ],
)
async def test_the_command_names_the_principal_of_a_run_that_is_not_the_local_ones(place, principal, key, words):
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place, caller=Caller(principal))
        with writing(place) as session:
            run = queries.run_by_id(session, run_id)
    assert shlex.split(decision_command(run._replace(id="run-1"), key)) == ["kairos-mcp", *words]


async def test_a_call_that_waits_for_a_place_is_news_when_it_is_asked_and_not_before(place):
    async with open_asking_app(place) as app:
        runs = [await waiting(app, place, key=str(n)) for n in range(MAX_PER_WORKSPACE)]
        one_more = (await _start_waiting_run(app, ME)).run_id
        news = "select news_seq from run where id = ?"
        before = place.rows(news, one_more)
        assert not asks_for(place, one_more)
        assert place.rows(news, one_more) == before
        await app.answers.decide(runs[0], KEY, "deny", None, PERSON)
        assert place.rows(news, one_more) > before


async def test_an_ended_run_asks_for_nothing(place):
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place)
        await app.control.cancel(run_id, ME)
        assert (await rests(app, run_id)).waiting == ()
        with pytest.raises(NotWaiting):
            await app.answers.decide(run_id, KEY, "approve", None, PERSON)
        assert verdicts(place) == UNDECIDED


async def test_a_key_that_waits_nowhere_names_those_that_wait(place):
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place)
        with pytest.raises(NotWaiting) as refused:
            await app.answers.decide(run_id, "round-9/call-1/approval", "approve", None, PERSON)
        assert KEY in refused.value.hint


# -- the jobs --------------------------------------------------------------------------------------------------


@contextmanager
def writing(place: Place) -> Iterator[Session]:
    """A transaction as the writer runs a job in: what a job refuses is not rolled back, so it must refuse first."""
    with place.store().write_session() as session:
        yield session


async def test_a_job_takes_a_decision_of_the_runs_own_principal_alone(place):
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place, caller=Caller("alice"))
        forged = Decision(KEY, "approve", digest(place, run_id), Actor("bob", "mcp", ""))
        with writing(place) as session:
            run = queries.run_by_id(session, run_id)
            with pytest.raises(NotWaiting):
                decisions.record_responses(session, run, (), [forged], "person", 1, NOW)
            assert decisions.only_open_decisions(session, run, [forged], NOW) == []
        assert verdicts(place) == UNDECIDED


async def test_a_verdict_is_never_written_over(place):
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place)
        yes, no = (Decision(KEY, said, digest(place, run_id), ME.actor) for said in ("approve", "deny"))
        with writing(place) as session:
            run = queries.run_by_id(session, run_id)
            decisions.write_decisions(session, run, [yes, no], NOW)
        assert verdicts(place) == [("approve", "local", "mcp", None)]
        assert place.rows("select count(*) from inbox") == [(1,)]


async def test_an_answer_that_is_refused_takes_the_decision_beside_it_along(place):
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place)
        yes = Decision(KEY, "approve", digest(place, run_id), ME.actor)
        with writing(place) as session:
            run, stray = queries.run_by_id(session, run_id), SubmittedAnswer("round-7", ToolResult("x"))
            with pytest.raises(NotWaiting):
                decisions.record_responses(session, run, [stray], [yes], "caller", 0, NOW)
        assert verdicts(place) == UNDECIDED
        assert place.rows("select count(*) from inbox") == [(0,)]


async def test_the_seventeenth_of_a_workspace_waits_for_a_place(place):
    async with open_asking_app(place) as app:
        runs = [await waiting(app, place, key=str(n)) for n in range(MAX_PER_WORKSPACE)]
        one_more = (await _start_waiting_run(app, ME)).run_id
        assert not asks_for(place, one_more)
        with pytest.raises(NotWaiting):  # nobody was shown it
            await app.answers.decide(one_more, KEY, "approve", None, PERSON)
        report = await rests(app, one_more)
        assert (report.status, report.waiting) == ("paused", ())
        assert any("not asked about yet" in text for text in report.degraded)
        assert f" {runs[0]} {KEY}`" in report.next["why"]
        assert asks_for(
            place, (await _start_waiting_run(app, Caller("bob"))).run_id
        )  # another principal's are their own
        elsewhere = (await _start_waiting_run(app, ME)).run_id
        place.rows("update run set workspace = '/another' where id = ?", elsewhere)
        assert asks_for(place, elsewhere)  # and another workspace's
        await app.answers.decide(runs[3], KEY, "deny", None, PERSON)
        assert _unasked_now(place) == []  # whoever decided has given the place on
        assert [item["key"] for item in (await rests(app, one_more)).waiting] == [KEY]


@pytest.mark.unreplayed  # its further calls are rows alone
async def test_a_fifth_of_a_run_waits_for_a_place_and_places_go_in_the_order_of_marks(place):
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place)
        ((at,),) = place.rows("select created_at from run")
        for m in range(2, 8):
            place.rows(
                "insert into step(run, path, kind, digest, fence, at, sent)"
                " select run, ?, kind, digest, fence, at, sent from step where path = ?",
                f"round-1/call-{m}",
                STEP,
            )
            assert asks_for(place, run_id, path=f"round-1/call-{m}") == (m <= MAX_PER_RUN)
        assert _unasked_now(place) == ["round-1/call-5", "round-1/call-6", "round-1/call-7"]
        assert asks_for(place, (await _start_waiting_run(app, ME)).run_id)  # another run has places left
        await app.answers.decide(run_id, "round-1/call-2/approval", "deny", None, PERSON, drive=False)
        assert _unasked_now(place) == ["round-1/call-6", "round-1/call-7"]
        place.rows("update approval set expires_at = 1 where key = 'round-1/call-3/approval'")
        with writing(place) as session:
            assert decisions.expire_overdue(session, at + 5) == 1
        assert _unasked_now(place) == ["round-1/call-7"]
        asked = "select asked_at, expires_at - asked_at from approval where key = 'round-1/call-6/approval'"
        assert place.rows(asked) == [(at + 5, LASTS_MS)]  # its time begins when it is asked


@pytest.mark.unreplayed  # one of them can't be read
@pytest.mark.parametrize("end", ["cancelled", "broken off"])
async def test_a_run_that_ends_gives_its_places_up(place, end):
    async with open_asking_app(place) as app:
        runs = [await waiting(app, place, key=str(n)) for n in range(MAX_PER_WORKSPACE)]
        one_more = (await _start_waiting_run(app, ME)).run_id
        assert not asks_for(place, one_more)
    if end == "broken off":
        place.rows("update run set spec = '?' where id = ?", runs[0])
    async with App.open(place.settings(), via="mcp") as app:
        await app.control.cancel(runs[0], ME)
        await app.runs.wait([runs[0]], until="done", wait_s=20, caller=ME)
        assert _unasked_now(place) == []


def _unasked_now(place: Place) -> list[str]:
    found = place.rows("select path from approval join step on step.id = step where unasked order by step.id")
    return [path for (path,) in found]


async def _start_waiting_run(app: App, caller: Caller) -> Any:
    key = f"unasked {len(await app.runs.newest_ids(caller, 1000))}"
    started = await app.runs.start(PlannerRequest("change it", caller_tools=(ASK,), key=key), caller)
    await app.runs.wait([started.run_id], until="rest", wait_s=20, caller=caller)
    return started


async def test_what_is_late_gets_its_verdict_once_and_its_run_is_paused(place):
    async with open_asking_app(place) as app:
        await waiting(app, place)
        at = now_in(place)
        late = at + LASTS_MS
        with writing(place) as session:
            assert [decisions.has_overdue(session, each) for each in (late - 1, late)] == [False, True]
            assert [decisions.expire_overdue(session, late) for _ in range(2)] == [1, 0]
            assert approvals.list_pending(session, 1, at) == []
        assert verdicts(place) == [("expired", "", "clock", None)]
        assert place.rows("select kind, via from inbox") == [("verdict", "clock")]
        assert place.rows("select paused from run") == [(LAPSED,)]


async def test_a_decision_wakes_whoever_owns_the_run_in_another_process(place):
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place)
        async with App.open(place.settings(), via="command") as person:
            await person.answers.decide(run_id, KEY, "approve", None, PERSON, drive=False)
        assert (await rests(app, run_id)).waiting[0]["kind"] == "tool_call"
        await app.runs.wait([run_id], until="rest", wait_s=20, caller=ME)
        await app.answers.submit(run_id, {STEP: {"content": "yes"}}, ME)
        assert (await rests(app, run_id)).summary == "done"
