"""The statements of the store are those that SQLite and PostgreSQL share: it prepares each that tests lead to."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import postgres
from support.sources import nodes_with

import kairos_mcp
from kairos_mcp.store.postgres.statements import number_places, order_bindings

ROOT = Path(kairos_mcp.__file__).parent
TESTS = Path(__file__).parents[1]
OF_SQLITE_ALONE = re.compile(
    r"\b(?:pragma |pragma_|sqlite_master|indexed by|insert or |json_set\(|group_concat\(|iif\(|total_changes|"
    r"changes\(\)|last_insert_rowid|glob '|begin immediate|savepoint )",
)
DRIVES_SQLITE = {  # what opens, checks and shrinks the state file, and the list of its migrations
    "store/connection.py",
    "store/file_store.py",
    "store/integrity.py",
    "store/schema.py",
}
SHARED = ("core", "budgets", "approvals", "ooda", "teams", "sampling", "records", "tasks", "registry", "histories")
OF_SQLITE = re.compile(r"pragma|sqlite_")
KEEPS_TABLES = re.compile(
    r"\s*(?:begin|commit|rollback|savepoint|release|create|drop|alter|vacuum|pragma)\b", re.IGNORECASE
)


def test_statements_of_sqlite_alone_stand_where_it_is_driven() -> None:
    first_words = re.findall(r"[a-z_]+", OF_SQLITE_ALONE.pattern)
    own = {
        file
        for file, node in nodes_with(word for word in first_words if len(word) > 2)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and OF_SQLITE_ALONE.search(node.value)
        and "`" not in node.value
        and "postgres" not in Path(file).parts
    }
    assert own == DRIVES_SQLITE


@pytest.mark.parametrize(
    ("statement", "numbered", "names"),
    [
        ("select 1 where a = ? and b in (?, ?)", "select 1 where a = $1 and b in ($2, $3)", ()),
        ("update t set a = ?, b = ?3 where c = ?2 or d = ?", "update t set a = $1, b = $3 where c = $2 or d = $4", ()),
        ("select :b, :a, :b, 'it''s ?, :c', x::text", "select $1, $2, $1, 'it''s ?, :c', x::text", ("b", "a")),
        ("select cast(body as blob) from text", "select body::varchar from text", ()),
    ],
)  # fmt: skip
def test_places_are_numbered_as_sqlite_counts_them(statement: str, numbered: str, names: tuple[str, ...]) -> None:
    assert number_places(statement) == (numbered, names)
    assert order_bindings(names, {"a": 1, "b": 2} if names else (2, 1)) == [2, 1]


@pytest.mark.postgres
def test_every_statement_that_the_program_executes_in_tests_is_prepared_by_postgresql(
    database: str, tmp_path: Path
) -> None:
    import psycopg

    command = (sys.executable, "-m", "pytest", "-q", "-p", "postgres.recorder", *SHARED)
    on_file = {name: value for name, value in os.environ.items() if name != postgres.CHOICE}
    environment = on_file | {"KAIROS_STATEMENTS": str(tmp_path), "PYTHONPATH": str(TESTS)}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    done = subprocess.run(command, cwd=TESTS, env=environment, text=True, check=False, **streams)
    assert done.returncode == 0, done.stdout[-10_000:]
    executed = {text for file in tmp_path.glob("*.json") for text in json.loads(file.read_text())}
    of_migrations = {" ".join(each.split()) for each in _texts_of_migrations()}
    refused = []
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in sorted(executed):
            plain = " ".join(statement.split()).removesuffix(";")
            if KEEPS_TABLES.match(statement) or OF_SQLITE.search(statement) or plain in of_migrations:
                continue
            prepared = connection.pgconn.prepare(b"one", number_places(statement)[0].encode())
            if prepared.status != psycopg.pq.ExecStatus.COMMAND_OK:
                refused.append((plain, prepared.error_message.decode().splitlines()[0]))
            connection.pgconn.exec_(b"deallocate one")
    assert len(executed) > 300
    assert refused == []


def _texts_of_migrations() -> Iterator[str]:
    """The statements by which a state file of an earlier version became one of this: PostgreSQL never has those."""
    from kairos_mcp.store.schema import MIGRATIONS

    return (each for migration in MIGRATIONS for each in migration.split(";"))
