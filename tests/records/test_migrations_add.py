"""A migration only adds: what an earlier version has written keeps its place, its name and its meaning."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

import pytest

from kairos_mcp.store.connection import SqliteSession
from kairos_mcp.store.schema import MIGRATIONS

SAMPLE = """
    create table sample(n integer primary key, a text, b text, c text);
    create index sample_a on sample(a);
    create trigger sample_b after insert on sample begin
        update sample set b = 'new' where n = new.n;
    end;
"""
MAY_BEGIN = re.compile(r"(create (table|index|unique index|trigger)|alter table \w+ add column|insert into)\b")


def statements(migration: str) -> Iterator[str]:
    """Split a migration; the body of a trigger is one statement with its head."""
    text = ""
    for part in migration.split(";"):
        text += f"{part};"
        if sqlite3.complete_statement(text):
            if re.sub(r"--[^\n]*", "", text).strip(" \n;"):
                yield " ".join(re.sub(r"--[^\n]*", "", text).split())
            text = ""
    assert not text.strip(" \n;"), text


def columns_and_parts(session: SqliteSession) -> set[tuple[object, ...]]:
    """Return every column, index and trigger, whole."""
    tables = [name for (name,) in session.rows("select name from sqlite_master where type = 'table'")]
    columns = {(table, *column) for table in tables for column in session.rows(f"pragma table_info({table})")}
    return columns | {*session.rows("select type, name, tbl_name, sql from sqlite_master where type <> 'table'")}


def faults(session: SqliteSession, migration: str) -> list[str]:
    """Apply a migration to the tables before it; return what it does beside adding."""
    before = columns_and_parts(session)
    found = [statement for statement in statements(migration) if not MAY_BEGIN.match(statement.lower())]
    session.execute(migration)
    return found + [f"{part} is gone or changed" for part in before - columns_and_parts(session)]


@pytest.fixture
def migrated() -> Iterator[SqliteSession]:
    session = SqliteSession(":memory:")
    for migration in (*MIGRATIONS, SAMPLE):
        session.execute(migration)
    yield session
    session.close()


def test_migrations_only_add() -> None:
    session = SqliteSession(":memory:")
    session.execute(MIGRATIONS[0])
    for number, migration in enumerate(MIGRATIONS[1:], 2):
        assert faults(session, migration) == [], f"migration {number}"
    session.close()


@pytest.mark.parametrize(
    "migration",
    [
        "alter table sample add column d text",
        "create table other(n integer primary key references sample, name text not null) strict",
        "create index sample_c on sample(c); insert into sample(a) select a from sample",
        "create trigger sample_d after insert on sample begin update sample set c = a where n = new.n; end;",
    ],
)
def test_what_adds_is_no_fault(migrated: SqliteSession, migration: str) -> None:
    assert faults(migrated, migration) == []


@pytest.mark.parametrize(
    "migration",
    [
        "drop table sample",
        "drop index sample_a; create index sample_a on sample(b)",
        "drop trigger sample_b",
        "alter table sample rename column b to d",
        "alter table sample rename to other",
        "alter table sample drop column c",
        "update sample set a = 'other'",
        "delete from sample",
        "create table other(a text); insert into other select a from sample; drop table sample",
    ],
)
def test_what_does_more_than_add_is_one(migrated: SqliteSession, migration: str) -> None:
    assert faults(migrated, migration) != []
