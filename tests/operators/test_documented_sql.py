"""The SQL of docs/operations.md, run as it stands: it counts who lives, and makes a role and a schema that suffice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.app import ASK, Place, asks, start_run
from support.operators import Command
from support.postgres import database_of, on_database

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import KairosError

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
LIVING, MAKE = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@on_database
async def test_of_servers_the_living_alone_are_counted(place: Place) -> None:
    statement = LIVING.partition(";")[0]
    async with App.open(place.settings(asks("Which?")), via="mcp") as app:
        await start_run(app, caller_tools=(ASK,))
        ((mine,),) = place.rows("select id from owner")
        for lock, seen in (("killed", "clock_timestamp()"), ("hung", "clock_timestamp() - interval '1 minute'")):
            place.rows("insert into owner(lock, pid, via, started_at) values (?, 1, 'mcp', 1)", lock)
            place.rows(f"insert into lease(lock, key, lease_ms, seen_at) values (?, 4711, 10000, {seen})", lock)
        place.rows("update lease set key = (select key from lease where lock not in ('killed', 'hung'))"
                   " where lock = 'hung'")  # its lock is still held  # fmt: skip
        assert [(each[0], each[1]) for each in place.rows(statement)] == [(mine, "mcp")]
        place.rows("update run set owner = ?", mine)
        assert place.rows(statement) == [(mine, "mcp", 1)]
    assert place.rows(statement) == []


@on_database
def test_the_role_and_schema_that_are_made_can_have_the_tables(place: Place) -> None:
    with psycopg.connect(str(database_of(place.root))) as connection:
        (shared,) = connection.execute("select current_database()").fetchone() or ("",)
        words = MAKE.replace("in database shared", f'in database "{shared}"').replace("kairos", "kairos_of_a_test")
        for statement in filter(str.strip, words.split(";")):
            connection.execute(statement)  # type: ignore[arg-type]  # no text of its own
        connection.execute("set local role kairos_of_a_test")
        connection.execute("create table kairos_of_a_test.run(id integer)")
        found = connection.execute(
            "select setconfig from pg_db_role_setting where setrole = 'kairos_of_a_test'::regrole"
        ).fetchall()
        assert found == [(["search_path=kairos_of_a_test"],)]
        connection.rollback()


@on_database
@pytest.mark.parametrize("words", [("token", "list"), ("token", "add", "anna"), ("status",)], ids=" ".join)
def test_tables_of_another_version_are_refused(place: Place, command: Command, words: tuple[Any, ...]) -> None:
    place.rows("update version set number = 9999")
    with pytest.raises(KairosError):
        command(*words)
    assert place.rows("select count(*) from token") == [(0,)]
