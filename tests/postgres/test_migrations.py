"""Tables are made and changed by one command alone: a server refuses another version and says which."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import postgres

from kairos_mcp.core.errors import StoreTooNew, StoreUnavailable
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.store import schema

pytestmark = pytest.mark.postgres
NEWEST = len(schema.MIGRATIONS)
ADDED = """
    alter table run add column colour text;
    create table hat(id integer primary key, run integer references run, body blob);
    create index hat_run on hat(run); create trigger hat_insert after insert on hat begin
        update run set seq = seq + 1 where n = new.run; update run set colour = 'red' where n = new.run; end;
"""


@pytest.fixture
def empty(server: str) -> str:
    return postgres.make_empty_schema(server)


def open_store(where: str, tmp_path: Path) -> Any:
    from kairos_mcp.store.postgres.database import PostgresStore

    return PostgresStore(tmp_path / "home", where, "test")


def migrate(where: str) -> tuple[int, int]:
    from kairos_mcp.store.postgres.schema import migrate

    with postgres.open_session(where) as session:
        return migrate(session)


def tables_of(where: str) -> set[str]:
    with postgres.open_session(where) as session:
        found = session.rows(
            "select relname from pg_class where relkind = 'r' and relnamespace = current_schema()::regnamespace"
        )
    return {name for (name,) in found}


def test_a_server_that_is_too_old_is_named_before_a_statement_fails(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kairos_mcp.store.postgres import schema as tables

    monkeypatch.setattr(tables, "LEAST_VERSION", 990_000)
    with pytest.raises(StoreUnavailable, match="too old"):
        migrate(empty)
    assert tables_of(empty) == set()


def test_a_store_makes_no_tables_and_says_what_does(empty: str, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="no tables") as refused:
        open_store(empty, tmp_path).open()
    assert "`kairos-mcp store migrate`" in refused.value.hint
    assert tables_of(empty) == set()
    assert migrate(empty) == (0, NEWEST)
    open_store(empty, tmp_path).open()
    assert {"run", "step", "lease", "version"} <= tables_of(empty)


def test_processes_that_migrate_at_once_make_the_tables_once(empty: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(migrate, [empty] * 4))
    assert sorted(found) == [(0, NEWEST), *[(NEWEST, NEWEST)] * 3]


def test_another_version_is_refused_and_an_older_one_is_brought_to_this(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ADDED))
    with pytest.raises(StoreUnavailable, match=f"has version {NEWEST}"):
        open_store(database, tmp_path).open()
    assert migrate(database) == (NEWEST, NEWEST + 1)
    open_store(database, tmp_path).open()
    with postgres.open_session(database) as session:
        session.rows("insert into owner(lock, pid, via, started_at) values ('l', 1, 'test', 1)")
        assert session.insert("insert into hat(run, body) values (?, ?)", (1, b"x")) == 1
    monkeypatch.undo()
    with pytest.raises(StoreTooNew):
        open_store(database, tmp_path).open()
    with pytest.raises(StoreTooNew):
        migrate(database)


def test_servers_of_the_version_before_go_on_beside_what_was_added(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(database, tmp_path)
    store.open()
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ADDED))
    migrate(database)
    with store.write_session() as session:
        n = session.insert("insert into owner(lock, pid, via, started_at) values ('l', 1, 'test', 1)")
    assert n == 1


LACKING = {
    "table approval": "drop table approval",
    "column digest of table step": "alter table step drop column digest",
    "index step_run": "drop index step_run",
    "unique index step_path": "drop index step_path; create index step_path on step(run, path)",
    "trigger step_insert_seq": "alter table step disable trigger step_insert_seq",
    "function instr": "drop function instr cascade",
}


@pytest.mark.parametrize("what", LACKING)
def test_what_the_database_lacks_of_its_version_is_named(database: str, tmp_path: Path, what: str) -> None:
    store = open_store(database, tmp_path)
    assert store.find_damage(Outcome) == []
    with postgres.open_session(database) as session:
        for statement in LACKING[what].split("; "):
            session.rows(statement)
    (damage,) = store.find_damage(Outcome)
    assert f"{what} is missing" in damage
