"""Copy what a state folder keeps into an empty database: rows, tokens and the sealing key."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

from kairos_mcp.core.errors import StoreBusy
from kairos_mcp.store import schema
from kairos_mcp.store.file_store import FileStore, living_processes
from kairos_mcp.store.key_file import KEY_FILE
from kairos_mcp.store.ownership import ANY_SERVER
from kairos_mcp.store.postgres.connection import Connection, translate_errors
from kairos_mcp.store.postgres.schema import SEALING_KEY
from kairos_mcp.store.postgres.session import PostgresSession
from kairos_mcp.store.postgres.writer import begin, commit, undo
from kairos_mcp.store.rows import Session
from kairos_mcp.store.schema import Table

LEFT_OUT = ("owner",)  # servers of the folder, which have ended
_SHARED_AT, _SHARED_BYTES = 0x40000002, 510  # where SQLite locks a file that it has open, in its file format


def copy_folder(folder: Path, connect: Callable[[], Connection]) -> tuple[dict[str, int], int]:
    """Copy a state folder into a database that has tables and no rows, in one transaction. Return how many rows of each
    table were copied, and how many tokens.

    The folder's state file is brought to this version first. A run that a server of the folder left unfinished is
    nobody's from then on, so that the next server goes on with it. Raises StoreBusy where a server of the folder lives
    or the database has rows already, and the store's errors.
    """
    source = FileStore(folder, "full", "copy")
    _require_unused(source)  # before it is opened here: with the descriptor of a look go all locks of this process
    try:
        source.open()
        with source.read_session() as rows, rows.one_state():
            return _copy_rows(rows, folder, connect)
    finally:
        if source.is_open:
            source.reader.close()


def _require_unused(source: FileStore) -> None:
    """Raise StoreBusy where a server of the folder lives, or any process has its state file open."""
    pids = ", ".join(str(pid) for pid in living_processes(source.home))
    if pids or _is_open(source.path):
        whose = f"A server uses {source.home} (process {pids})." if pids else f"A process has {source.path} open."
        raise StoreBusy(whose, "End it first: what it writes would be lost.")


def _is_open(file: Path) -> bool:
    """Whether another process has the state file open, as a server has that has written nothing yet."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # opening the store says what is wrong
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED_BYTES, _SHARED_AT)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _copy_rows(rows: Session, folder: Path, connect: Callable[[], Connection]) -> tuple[dict[str, int], int]:
    target = PostgresSession(connect())
    try:
        with translate_errors():
            target.rows("set statement_timeout = 0")
            begin(target)
            try:
                copied = _copy_tables(rows, target), _copy_secrets(folder, target)
            except BaseException:
                undo(target)
                raise
            commit(target)
    finally:
        target.close()
    return copied


def _copy_tables(rows: Session, target: PostgresSession) -> dict[str, int]:
    tables = [table for table in schema.list_tables() if table.name not in LEFT_OUT]
    for table in tables:
        if target.row(f"select 1 from {table.name} limit 1") is not None:
            raise StoreBusy(
                f"The database has rows already, in the table {table.name}.",
                "Name an empty one, in which only `kairos-mcp store migrate` was run.",
            )
    copied = {table.name: _copy_table(rows, target, table) for table in tables}
    target.rows("update run set owner = ? where owner is not null", (ANY_SERVER,))
    target.rows("update listener set owner = null")
    return copied


def _copy_table(rows: Session, target: PostgresSession, table: Table) -> int:
    """Copy a table and return how many rows it has. What its triggers would write is copied as well."""
    columns, order = ", ".join(table.columns), " order by rowid" if table.is_ordered else ""
    count = 0
    target.rows(f"alter table {table.name} disable trigger user")
    with target.connection.cursor() as cursor, cursor.copy(f"copy {table.name}({columns}) from stdin") as copy:
        for row in rows.stream(f"select {columns} from {table.name}{order}"):
            copy.write_row(row)
            count += 1
    target.rows(f"alter table {table.name} enable trigger user")
    if table.key is not None:
        following = f"coalesce((select max({table.key}) from {table.name}), 0) + 1"
        target.rows(f"select setval(pg_get_serial_sequence('{table.name}', '{table.key}'), {following}, false)")
    return count


def _copy_secrets(folder: Path, target: PostgresSession) -> int:
    """Copy the hashes of the tokens, so that they stay valid, and the sealing key; return how many tokens there are."""
    tokens = 0
    for file in sorted(folder.glob("tokens/*")):
        if file.suffix not in ("", ".2"):
            continue
        hashed, _, rest = file.read_text(encoding="utf-8").partition("\n")
        fields = json.loads(rest) if rest.strip() else {}
        made_at = fields.get("made_at", file.stat().st_mtime_ns // 1_000_000)
        new = "insert into token(name, hash, made_at, expires_at, scopes) values (?, ?, ?, ?, ?)"
        scopes = " ".join(fields.get("scopes", ("run", "approve", "admin")))
        tokens += target.change(new, (file.stem, hashed, made_at, fields.get("expires_at"), scopes))
    if (key := folder / KEY_FILE).exists():
        target.rows("insert into secret(name, value) values (?, ?)", (SEALING_KEY, key.read_bytes()))
    return tokens
