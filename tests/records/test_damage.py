"""Damage: `doctor` finds it, names it and says what to do; what can't be believed is not spent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.app import ASK, Books, Place, asks, reads, says, start_run

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import StoreCorrupt
from kairos_mcp.store import integrity, queries
from kairos_mcp.store.file_store import CHECKED_BYTES


@pytest.fixture
async def filled_place(place: Place) -> Place:
    """A store with a run that has ended and one that waits."""
    lines = (reads("a.txt", "missing.txt"), asks("why"), says("done"))
    async with App.open(place.settings(*lines), via="mcp") as app:
        await start_run(app, "wait", caller_tools=(ASK,))
        (place.workspace / "long.txt").write_text("line\n" * 6_000)
    async with App.open(place.settings(reads("long.txt"), says("done")), via="mcp") as app:
        await start_run(app, "end", key="end")
    return place


def found_by(kairos: Callable[..., Any]) -> list[dict[str, str]]:
    said = kairos("doctor", "--json")
    bad = [finding for finding in said.json["findings"] if finding["state"] == "bad"]
    assert said.code == (1 if bad else 0)
    assert all(finding["cure"] for finding in bad)
    return bad


def test_nothing_is_found_where_nothing_is_wrong(filled_place: Place, kairos: Callable[..., Any]) -> None:
    assert found_by(kairos) == []


ACCOUNTS = "select account from run where key is null"
DAMAGE = {
    "an account that was refilled": (f"update account set spent_rounds = 0 where id in ({ACCOUNTS})", "spent rounds"),
    "an account that holds nothing": (f"update account set held_tool_calls = 0 where id in ({ACCOUNTS})", "held"),
    "an answer whose cost was changed": (
        "update answer set spent = replace(spent, '[1,', '[0,') where step = (select min(step) from answer)",
        "not the sum",
    ),
    "a day that was refilled": (
        "update account set spent_model_calls = 0 where scope = 'day'",
        "model_calls were spent",
    ),
    "an answer that was removed": ("delete from answer where step = (select min(step) from answer)", "not the sum"),
    "a mark that was removed": (
        "delete from step where id = (select max(step) from answer)",
        "rows of answer refer to a step",
    ),
    "an account that was removed": ("delete from account", "refer to a account"),
    "a text that was removed": ("delete from text where hash in (select hash from text limit 3)", "texts are missing"),
}


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.unreplayed
def test_rows_that_do_not_fit_are_found(filled_place: Place, kairos: Callable[..., Any], what: str) -> None:
    statement, message = DAMAGE[what]
    filled_place.rows(statement)
    said = " ".join(finding["text"] for finding in found_by(kairos))
    assert message in said


@pytest.mark.state_file("it damages that file")
@pytest.mark.unreplayed
def test_a_damaged_page_is_found_also_in_a_file_that_is_not_checked_at_each_start(
    filled_place: Place, kairos: Callable[..., Any]
) -> None:
    filled_place.rows("pragma wal_checkpoint(truncate)")
    filled_place.rows("insert into text select 'pad', hex(randomblob(?))", CHECKED_BYTES // 2 + 100_000)
    filled_place.rows("pragma wal_checkpoint(truncate)")
    assert filled_place.db.stat().st_size > CHECKED_BYTES
    assert found_by(kairos) == []
    ((page,),) = filled_place.rows("select rootpage from sqlite_master where name = 'step_path'")
    ((size,),) = filled_place.rows("pragma page_size")
    with filled_place.db.open("r+b") as file:
        file.seek((page - 1) * size + size // 2)
        file.write(b"\xa5" * (size // 2))
    (finding,) = found_by(kairos)
    assert finding["text"].startswith(("The store is damaged", "The state file is damaged"))
    assert "export" in finding["cure"]


GONE = {
    "a table": ("drop table approval", "table approval is missing"),
    "the table of owners": ("drop table owner", "table owner is missing"),
    "an index that makes a second answer impossible": ("drop index step_path", "index step_path is missing"),
    "a column": ("alter table step drop column digest", "table step is"),
}


@pytest.mark.parametrize("what", GONE)
@pytest.mark.unreplayed
def test_what_a_store_lacks_of_its_version_is_named(filled_place: Place, kairos: Callable[..., Any], what: str) -> None:
    statement, message = GONE[what]
    filled_place.rows(statement)
    (finding,) = found_by(kairos)
    assert message in finding["text"]
    assert "export" in finding["cure"]


@pytest.mark.state_file("it damages that file")
@pytest.mark.parametrize("version", [0, 2, -5])
@pytest.mark.unreplayed
def test_a_file_that_is_not_of_the_version_that_it_says_is_left_as_it_is(
    filled_place: Place, kairos: Callable[..., Any], version: int
) -> None:
    filled_place.rows(f"pragma user_version = {version}")
    before = filled_place.rows("select type, name, sql from sqlite_master")
    (finding,) = found_by(kairos)
    assert f"version {version}" in finding["text"]
    assert filled_place.rows("select type, name, sql from sqlite_master") == before
    assert filled_place.rows("pragma user_version") == [(version,)]


@pytest.mark.unreplayed
def test_what_others_put_into_the_store_is_no_damage(filled_place: Place, kairos: Callable[..., Any]) -> None:
    filled_place.rows("create index of_mine on run(created_at)")
    assert found_by(kairos) == []


@pytest.mark.state_file("it damages that file")
@pytest.mark.unreplayed
def test_what_can_still_be_read_of_a_damaged_file_is_carried_away(
    filled_place: Place, kairos: Callable[..., Any]
) -> None:
    filled_place.rows("pragma wal_checkpoint(truncate)")
    ((page,),) = filled_place.rows("select rootpage from sqlite_master where name = 'client_question_run'")
    ((size,),) = filled_place.rows("pragma page_size")
    with filled_place.db.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)
    ((run_id,),) = filled_place.rows("select id from run where key = 'end'")
    listed = kairos("runs")
    shorts = [line.split()[0] for line in listed.out.splitlines()]
    assert (listed.code, any(map(run_id.startswith, shorts)), "export" in listed.err) == (1, True, True)
    aside = filled_place.root / "aside.jsonl"
    assert kairos("export", run_id, str(aside)).code == 0
    assert kairos("replay", str(aside)).code == 0


@pytest.mark.state_file("it damages that file")
@pytest.mark.unreplayed
def test_an_index_that_does_not_fit_its_table_is_found(filled_place: Place, kairos: Callable[..., Any]) -> None:
    """Nothing that reads would stumble over it."""
    filled_place.rows("pragma wal_checkpoint(truncate)")
    ((page,),) = filled_place.rows("select rootpage from sqlite_master where name = 'run_start'")
    ((size,),) = filled_place.rows("pragma page_size")
    ((digest,),) = filled_place.rows("select start_digest from run limit 1")
    content = bytearray(filled_place.db.read_bytes())
    at = content.index(digest, (page - 1) * size, page * size)
    content[at] ^= 1
    filled_place.db.write_bytes(bytes(content))
    (finding,) = found_by(kairos)
    assert "run_start" in finding["text"]


async def test_the_sums_are_those_that_the_law_of_the_tests_has(filled_place: Place) -> None:
    with filled_place.session() as session:
        for run_id, n in filled_place.rows("select id, n from run"):
            books = Books.of(filled_place, run_id)
            assert integrity.sum_rows(session, n) == (books.spent_by_rows, books.held)
            run = queries.run_by_id(session, run_id)
            integrity.check_run_account(session, run.n, run.account)


@pytest.mark.parametrize("what", [what for what, (statement, _) in DAMAGE.items() if ACCOUNTS in statement])
@pytest.mark.unreplayed
async def test_a_damaged_ledger_refuses(filled_place: Place, what: str) -> None:
    filled_place.rows(DAMAGE[what][0])
    with filled_place.session() as session:
        ((run_id,),) = filled_place.rows("select id from run where key is null")
        run = queries.run_by_id(session, run_id)
        with pytest.raises(StoreCorrupt, match="not the sum"):
            integrity.check_run_account(session, run.n, run.account)


@pytest.mark.unreplayed
def test_old_runs_are_named_as_room_that_could_be_made(filled_place: Place, kairos: Callable[..., Any]) -> None:
    filled_place.rows("update run set ended_at = ended_at - 3456000000 where ended_at is not null")
    with_room = [f for f in kairos("doctor", "--json").json["findings"] if f["matter"] == "room"]
    assert with_room == []  # one small run is not worth a word
    columns = (
        "flow, version, spec, principal, via, client, start_digest, workspace, account, created_at, owner, fence,"
        " route, paused, outcome, ended_at"
    )
    again = f"insert into run(id, {columns}) select ?, {columns} from run where key = 'end'"
    with filled_place.session() as session:
        for number in range(1_000):
            session.rows(again, (f"old-{number}",))
    (room,) = [f for f in kairos("doctor", "--json").json["findings"] if f["matter"] == "room"]
    assert "1001 runs" in room["text"]
    assert "runs --prune --older-than 30d" in room["cure"]
