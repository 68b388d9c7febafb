"""A row that can't be read stops its own run and no other: it is named, shown with the way on, and can be ended."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.app import ASK, ME, WITHIN_S, Books, Place, asks, outcome_of, place_in, reads, says, start_run

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import Unreadable
from kairos_mcp.views.trace import TraceQuery

PERSON = Caller(via="command", client="kairos-mcp")

pytestmark = pytest.mark.unreplayed

STEPS = "(select step.id from step join run on run.n = step.run where run.id = ?1)"
ANSWERS = {
    "null for an answer": f"update answer set body = 'null' where step in {STEPS}",
    "half an answer": f"update answer set body = substr(body, 1, 9) where step in {STEPS}",
    "an answer of the wrong shape": (
        f"""update answer set body = '{{"content":5,"kind":"result"}}' where step in {STEPS}"""
    ),
    "bytes for an answer": f"update answer set body = x'00ff' where step in {STEPS}",
}
AMOUNTS = {
    "no cost": f"update answer set spent = 'none' where step in {STEPS}",
    "a cost of too few units": f"update answer set spent = '[1,2]' where step in {STEPS}",
    "words for a cost": f"""update answer set spent = '["1",0,0,0,0,0,0,0]' where step in {STEPS}""",
    "no amount held": f"update step set held = '{{' where held is not null and id in {STEPS}",
}
SENT = {
    "nothing sent": f"update step set sent = '{{' where id in {STEPS}",
    "a list for what was sent": f"update step set sent = '[]' where id in {STEPS}",
    "no accounts charged": f"update step set shared = '[' where id in {STEPS}",
}
SPECS = {
    "half a spec": "update run set spec = substr(spec, 1, 30) where id = ?1",
    "null for a spec": "update run set spec = 'null' where id = ?1",
    "a spec of another shape": "update run set spec = '[]' where id = ?1",
}
OUTCOMES = {
    "half an outcome": "update run set outcome = substr(outcome, 1, 9) where id = ?1",
    "an outcome that nobody knows": 'update run set outcome = \'{"stop_reason":"bored"}\' where id = ?1',
}


@dataclass(frozen=True)
class Filled:
    """A place with a run that waits for its caller and two that have ended; all of one day."""

    place: Place
    waits: str
    ended: str
    other: str


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Made once; each test has its rows as they were."""
    filled = fill(place_in(tmp_path_factory.mktemp("unreadable") / "place"))
    shutil.copytree(filled.place.home, filled.place.root / "kept")
    return filled


def fill(place: Place) -> Filled:
    return Filled(place, *asyncio.run(_three_runs(place)))


async def _three_runs(place: Place) -> list[str]:
    lines = (reads("a.txt", "missing.txt"), asks("why"), says("done"))
    async with App.open(place.settings(*lines), via="mcp") as app:
        made = [await start_run(app, "wait", caller_tools=(ASK,))]
    for key in ("one", "two"):
        async with App.open(place.settings(reads("b.txt"), says("done")), via="mcp") as app:
            made.append(await start_run(app, "end", key=key))
    return made


@pytest.fixture
def fresh_copy(request: pytest.FixtureRequest, tmp_path: Path) -> Filled:
    if postgres.is_chosen():
        return fill(place_in(tmp_path / "place"))
    whole: Filled = request.getfixturevalue("whole")
    shutil.rmtree(whole.place.home)
    shutil.copytree(whole.place.root / "kept", whole.place.home)
    return whole


@pytest.fixture
def place(fresh_copy: Filled) -> Place:
    """Where the commands work."""
    return fresh_copy.place


EVERY = ANSWERS | AMOUNTS | SENT | SPECS


@pytest.mark.parametrize("damage", EVERY)
async def test_a_list_names_a_run_that_cannot_be_read_and_shows_the_others(fresh_copy: Filled, damage: str) -> None:
    fresh_copy.place.rows(EVERY[damage], fresh_copy.waits)
    async with App.open(fresh_copy.place.settings(), via="command") as app:
        shown = {run_id: await app.runs.report(run_id, ME) for run_id in await app.runs.newest_ids(ME)}
    assert {shown[run_id].status for run_id in (fresh_copy.ended, fresh_copy.other)} == {"completed"}
    assert all(shown[run_id].calls for run_id in (fresh_copy.ended, fresh_copy.other))
    if damage == "no amount held":
        return  # its answers are there, so nobody asks
    stands = shown[fresh_copy.waits]
    assert stands.status == "paused"
    assert stands.next is not None
    assert stands.next["arguments"] == {"run_id": fresh_copy.waits, "action": "cancel"}
    assert any(fresh_copy.waits in text and "doctor" in text for text in stands.degraded)


def test_the_commands_name_runs_that_cannot_be_read_and_the_way_on(
    fresh_copy: Filled, kairos: Callable[..., Any]
) -> None:
    fresh_copy.place.rows(SPECS["half a spec"], fresh_copy.waits)
    fresh_copy.place.rows(OUTCOMES["half an outcome"], fresh_copy.ended)
    listed = kairos("runs")
    assert listed.code == 0
    assert re.search(rf"cancel .*{fresh_copy.waits}`", listed.out)
    shorts = [line.split()[0] for line in listed.out.splitlines()]
    assert all(any(run_id.startswith(short) for short in shorts) for run_id in (fresh_copy.ended, fresh_copy.other))
    finding = kairos("show", fresh_copy.waits, "--view", "events")
    assert finding.code == 1
    assert fresh_copy.waits in finding.err
    said = " ".join(each["text"] for each in kairos("doctor", "--json").json["findings"] if each["state"] == "bad")
    assert fresh_copy.waits in said
    assert fresh_copy.ended in said
    assert kairos("cancel", fresh_copy.waits).code == 0


@pytest.mark.parametrize("damage", ANSWERS | SPECS | OUTCOMES)
async def test_a_list_names_an_ended_run_that_cannot_be_read(fresh_copy: Filled, damage: str) -> None:
    fresh_copy.place.rows((ANSWERS | SPECS | OUTCOMES)[damage], fresh_copy.ended)
    async with App.open(fresh_copy.place.settings(), via="command") as app:
        shown = {run_id: await app.runs.report(run_id, ME, full=False) for run_id in await app.runs.newest_ids(ME)}
    assert shown[fresh_copy.other].status == "completed"
    assert shown[fresh_copy.waits].status == "input_required"
    assert shown[fresh_copy.ended].status == ("failed" if damage in OUTCOMES else "completed")
    assert any(fresh_copy.ended in text for text in shown[fresh_copy.ended].degraded)


@pytest.mark.parametrize("damage", EVERY | OUTCOMES)
async def test_doctor_names_the_run_and_no_other(fresh_copy: Filled, damage: str) -> None:
    broken = fresh_copy.ended if damage in OUTCOMES else fresh_copy.waits
    fresh_copy.place.rows((EVERY | OUTCOMES)[damage], broken)
    async with App.open(fresh_copy.place.settings(), via="command") as app:
        finding = " ".join((await app.health(thorough=True))["damage"])
    assert "can't be read of" in finding
    assert broken in finding
    assert fresh_copy.other not in finding


@pytest.mark.parametrize("damage", EVERY)
async def test_a_run_that_cannot_be_read_is_cancelled_at_once(fresh_copy: Filled, damage: str) -> None:
    fresh_copy.place.rows(EVERY[damage], fresh_copy.waits)
    async with App.open(fresh_copy.place.settings(), via="command") as app:
        async with asyncio.timeout(WITHIN_S / 2):
            await app.control.cancel(fresh_copy.waits, ME)
            await app.runs.wait([fresh_copy.waits], until="done", wait_s=WITHIN_S, caller=ME)
        assert (await app.runs.report(fresh_copy.waits, ME)).status == "cancelled"
        assert (await app.runs.report(fresh_copy.other, ME)).status == "completed"
    assert outcome_of(fresh_copy.place, fresh_copy.waits)["stop_reason"] == "cancelled"
    assert not any(_held_units(fresh_copy))
    ((owner,),) = fresh_copy.place.rows("select owner from run where id = ?", fresh_copy.waits)
    assert owner is None


def _held_units(filled: Filled) -> tuple[int, ...]:
    units = "held_rounds, held_model_calls, held_tool_calls, held_total_tokens, held_milliseconds"
    (found,) = filled.place.rows(
        f"select {units} from account where id = (select account from run where id = ?)", filled.waits
    )
    return found


async def test_a_begun_step_that_does_not_say_what_it_holds_is_charged_with_all_that_the_account_held(
    fresh_copy: Filled,
) -> None:
    place = fresh_copy.place
    account = "(select account from run where id = ?1)"
    place.rows(f"update step set held = 'x' where id in {STEPS} and path = 'round-2/call-1'", fresh_copy.waits)
    place.rows(f"update account set held_total_tokens = 70 where id = {account}", fresh_copy.waits)
    before = Books.of(place, fresh_copy.ended)
    ((tokens, calls),) = place.rows(
        f"select spent_total_tokens, spent_tool_calls from account where id = {account}", fresh_copy.waits
    )
    async with App.open(place.settings(), via="command") as app:
        await app.control.cancel(fresh_copy.waits, ME)
        await app.runs.wait([fresh_copy.waits], until="done", wait_s=WITHIN_S, caller=ME)
    found = place.rows(
        f"select spent_total_tokens, spent_tool_calls, held_total_tokens from account where id = {account}",
        fresh_copy.waits,
    )
    assert found == [(tokens + 70, calls + 1, 0)]
    ((body, spent),) = place.rows(
        f"select body, spent from answer join step on step.id = answer.step where step in {STEPS}"
        " and path = 'round-2/call-1'",
        fresh_copy.waits,
    )
    assert json.loads(body)["code"] == "cancelled"
    assert json.loads(spent)[4] == 70
    assert Books.of(place, fresh_copy.ended) == before


GONE = {
    "its account holds less than its rows": "update account set held_tool_calls = 0 where id = {account}",
    "its account is gone": "delete from account where id = {account}",
}


@pytest.mark.parametrize("damage", GONE)
async def test_a_run_whose_account_does_not_fit_is_cancelled_at_once(fresh_copy: Filled, damage: str) -> None:
    account = "(select account from run where id = ?1)"
    fresh_copy.place.rows(GONE[damage].format(account=account), fresh_copy.waits)
    async with App.open(fresh_copy.place.settings(), via="command") as app, asyncio.timeout(WITHIN_S / 2):
        await app.control.cancel(fresh_copy.waits, ME)
        await app.runs.wait([fresh_copy.waits], until="done", wait_s=WITHIN_S, caller=ME)
        assert (await app.runs.report(fresh_copy.waits, ME)).status == "cancelled"


async def test_a_server_that_stands_still_on_such_a_run_hears_of_its_end_from_another_process(
    fresh_copy: Filled, kairos: Callable[..., Any]
) -> None:
    place = fresh_copy.place
    place.rows(ANSWERS["null for an answer"], fresh_copy.waits)
    place.rows("insert into owner(id, lock, pid, via, started_at) values (77, 'gone', 1, 'mcp', 0)")
    place.rows("update run set owner = 77 where id = ?", fresh_copy.waits)
    async with App.open(place.settings(), via="mcp") as app:
        await app.runs.wait([fresh_copy.waits], until="rest", wait_s=WITHIN_S, caller=ME)
        assert (await app.runs.report(fresh_copy.waits, ME)).status == "paused"
        ((owner,),) = place.rows("select owner from run where id = ?", fresh_copy.waits)
        assert owner not in (None, 77)  # it is this server's, which lives
        said = await asyncio.to_thread(kairos, "cancel", fresh_copy.waits)
        assert said.code == 0
    assert outcome_of(place, fresh_copy.waits)["status"] == "cancelled"


@pytest.mark.parametrize("damage", SPECS)
async def test_pruning_leaves_a_run_whose_spec_cannot_be_read_and_says_so(fresh_copy: Filled, damage: str) -> None:
    fresh_copy.place.rows(SPECS[damage], fresh_copy.ended)
    fresh_copy.place.rows("update run set ended_at = ended_at - 3456000000 where ended_at is not null")
    async with App.open(fresh_copy.place.settings(), via="command") as app:
        done = await app.runs.prune(30, shrink=True)
        assert (done.runs, done.unreadable) == (1, (fresh_copy.ended,))
        assert (await app.runs.prune(30, shrink=True)).unreadable == (fresh_copy.ended,)
    left = {run_id for (run_id,) in fresh_copy.place.rows("select id from run")}
    assert left == {fresh_copy.waits, fresh_copy.ended}


@pytest.mark.parametrize("damage", SENT | AMOUNTS)
async def test_what_a_day_has_used_is_told_also_where_one_row_cannot_be_read(fresh_copy: Filled, damage: str) -> None:
    async with App.open(fresh_copy.place.settings(), via="command") as app:
        whole = (await app.records.read_spending("day", ME))["spent"]
        fresh_copy.place.rows((SENT | AMOUNTS)[damage], fresh_copy.waits)
        said = await app.records.read_spending("day", ME)
    assert said["spent"] == whole
    if damage == "nothing sent":
        assert "unreadable" in {each["route"] for each in said["by"]}


async def test_a_share_of_a_day_that_no_row_tells_is_shown_as_nothing(fresh_copy: Filled) -> None:
    fresh_copy.place.rows("update answer set spent = ''")
    async with App.open(fresh_copy.place.settings(), via="command") as app:
        (share,) = (await app.records.read_spending("day", ME))["by"]
    assert (share["attempts"], share["total_tokens"]) == (0, 0)


@pytest.mark.parametrize("damage", SENT | AMOUNTS | SPECS | ANSWERS)
async def test_another_run_of_the_day_goes_on_beside_it(fresh_copy: Filled, damage: str) -> None:
    fresh_copy.place.rows((SENT | AMOUNTS | SPECS | ANSWERS)[damage], fresh_copy.waits)
    async with App.open(fresh_copy.place.settings(reads("b.txt"), says("done")), via="mcp") as app:
        fresh = await start_run(app, "another", key="three")
        assert (await app.runs.report(fresh, ME)).status == "completed"


@pytest.mark.parametrize("damage", ANSWERS | SPECS)
async def test_whatever_is_asked_of_such_a_run_names_it_and_the_way_on(fresh_copy: Filled, damage: str) -> None:
    fresh_copy.place.rows((ANSWERS | SPECS)[damage], fresh_copy.waits)
    answer = {"round-2/call-1": {"content": "because"}}
    async with App.open(fresh_copy.place.settings(), via="mcp") as app:
        with pytest.raises(Unreadable, match=fresh_copy.waits) as refused:
            await app.answers.submit(fresh_copy.waits, answer, ME)
        assert "cancel" in refused.value.hint
        for view in ("events", "messages"):
            with pytest.raises(Unreadable, match=fresh_copy.waits):
                await app.records.trace(fresh_copy.waits, TraceQuery(view), ME)
        with pytest.raises(Unreadable, match=fresh_copy.waits):
            await app.records.replay(fresh_copy.waits, ME)


async def test_an_approval_whose_files_cannot_be_read_is_named_and_its_run_can_be_ended(tmp_path: Path) -> None:
    place = place_in(tmp_path / "asks")
    edit = {"name": "edit_file", "arguments": {"path": "a.txt", "old_string": "alpha", "new_string": "omega"}}
    async with App.open(place.settings({"tool_calls": [edit]}, says("done")), via="mcp") as app:
        run_id = await start_run(app, "change it", tools=("*",))
    place.rows("update approval set base = '['")
    async with App.open(place.settings(), via="command") as app:
        (finding,) = (await app.health(thorough=True))["damage"]
        assert run_id in finding
        await app.runs.wait([run_id], until="rest", wait_s=WITHIN_S, caller=ME)
        assert (await app.runs.report(run_id, ME)).status == "paused"
        with pytest.raises(Unreadable, match=run_id):
            await app.answers.decide(run_id, "round-1/call-1/approval", "approve", None, PERSON)
        await app.control.cancel(run_id, ME)
        await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
        assert (await app.runs.report(run_id, ME)).status == "cancelled"
    assert (place.workspace / "a.txt").read_text() == "alpha\n"
