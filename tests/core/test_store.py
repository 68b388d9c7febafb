"""The file: made from nothing, by several at once, refused where it is newer, damaged, odd or out of reach."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import apsw
import pytest
from support.app import Place

from kairos_mcp.core.errors import KairosError, StoreCorrupt, StoreUnavailable
from kairos_mcp.store import file_store, schema
from kairos_mcp.store.connection import connect
from kairos_mcp.store.database import make_folder
from kairos_mcp.store.file_store import FileStore
from kairos_mcp.store.rows import Session

pytestmark = pytest.mark.state_file("it is about the file itself")


@pytest.fixture(autouse=True)
def each_file_is_made_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not copied, as elsewhere in the tests (support/copied_stores.py)."""
    monkeypatch.setattr(file_store, "make_folder", make_folder)


def open_store(place: Place) -> FileStore:
    return FileStore(place.home, "process", "test")


def tables(place: Place) -> set[str]:
    return {name for (name,) in place.rows("select name from sqlite_master where type = 'table'")}


async def test_nothing_is_made_before_something_is_asked_of_it(place: Place) -> None:
    store = open_store(place)
    assert not store.exists
    assert not store.is_open
    await store.close()
    assert not place.home.exists()


async def test_the_first_look_makes_a_private_folder_and_the_newest_schema(place: Place) -> None:
    store = open_store(place)
    assert store.reader.pragma("user_version") == len(schema.MIGRATIONS)
    await store.close()
    assert stat.S_IMODE(place.home.stat().st_mode) == 0o700
    assert {"run", "step", "answer", "attempt", "account", "inbox", "note", "text", "owner"} <= tables(place)


async def test_a_file_from_a_newer_program_is_refused_and_left_as_it_is(place: Place) -> None:
    store = open_store(place)
    assert store.reader is not None
    await store.close()
    place.rows(f"pragma user_version = {len(schema.MIGRATIONS) + 1}")
    with pytest.raises(StoreUnavailable):
        _ = open_store(place).reader
    assert place.rows("pragma user_version") == [(len(schema.MIGRATIONS) + 1,)]


def test_a_migration_that_breaks_leaves_nothing_behind(tmp_path: Path) -> None:
    connection = connect(tmp_path / "kairos.db", "process")
    connection.execute("create table inbox(id)")  # one of the tables that the migration makes
    with pytest.raises(StoreCorrupt):
        schema.migrate(connection)
    assert connection.pragma("user_version") == 0
    assert list(connection.execute("select name from sqlite_master where name = 'account'")) == []
    connection.execute("drop table inbox")
    schema.migrate(connection)
    assert connection.pragma("user_version") == len(schema.MIGRATIONS)


MIGRATES = """
import sys
from pathlib import Path
from kairos_mcp.store.file_store import FileStore
from kairos_mcp.store.rows import Session
sys.stdin.read(1)
FileStore(Path(sys.argv[1]), "process", "test").reader.execute("select 1 from run")
"""


def test_processes_that_migrate_at_once_make_one_schema(place: Place) -> None:
    racers = [
        subprocess.Popen([sys.executable, "-c", MIGRATES, str(place.home)], stdin=subprocess.PIPE) for _ in range(4)
    ]
    for racer in racers:
        racer.stdin.write(b".")
        racer.stdin.flush()
    codes = [racer.wait(20) for racer in racers]
    for racer in racers:
        racer.stdin.close()
    assert codes == [0] * 4
    assert place.rows("pragma user_version") == [(len(schema.MIGRATIONS),)]
    assert place.rows("pragma integrity_check") == [("ok",)]


async def test_a_statement_that_fails_while_it_is_read_row_by_row_is_the_stores_own_error(place: Place) -> None:
    store = FileStore(place.home, "process", "test")
    with pytest.raises(StoreCorrupt):
        list(store.reader.stream("select * from nothing"))
    await store.close()


def test_a_new_file_that_another_server_is_writing_is_opened_once_that_has_ended(tmp_path: Path) -> None:
    other = apsw.Connection(str(tmp_path / "kairos.db"))
    other.execute("create table t(x); begin immediate")
    ended = threading.Timer(0.2, other.execute, ("commit",))
    ended.start()
    opened = connect(tmp_path / "kairos.db", "full")
    ended.join()
    assert opened.pragma("journal_mode") == "wal"


@pytest.mark.parametrize("kind", ["folder", "link", "dangling link", "fifo"])
@pytest.mark.unreplayed
def test_an_odd_file_in_its_place_is_refused(place: Place, kind: str) -> None:
    place.home.mkdir()
    match kind:
        case "folder":
            place.db.mkdir()
        case "link":
            (place.root / "elsewhere").write_bytes(b"")
            place.db.symlink_to(place.root / "elsewhere")
        case "dangling link":
            place.db.symlink_to(place.root / "nowhere")
        case _:
            os.mkfifo(place.db)
    with pytest.raises(StoreUnavailable):
        _ = open_store(place).reader
    assert not (place.root / "nowhere").exists()


@pytest.mark.parametrize("kind", ["a file", "beneath a file"])
def test_a_folder_that_can_not_be_made_is_said_to_be_out_of_reach(place: Place, kind: str) -> None:
    place.home.write_text("in the way")
    home = place.home if kind == "a file" else place.home / "deeper"
    with pytest.raises(KairosError) as refused:
        _ = FileStore(home, "process", "test").reader
    assert refused.value.code in ("store_unavailable", "store_corrupt")


@pytest.mark.unreplayed
async def test_a_file_cut_short_is_corrupt(place: Place) -> None:
    store = open_store(place)
    for n in range(200):
        await store.submit(lambda c, n=n: c.execute("insert into text values (?, ?)", (str(n), "x" * 500)))
    await store.close()
    with place.db.open("r+b") as file:
        file.truncate(place.db.stat().st_size - 2_048)
    with pytest.raises(StoreCorrupt):
        _ = open_store(place).reader


@pytest.mark.parametrize("body", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 4_000])
@pytest.mark.unreplayed
def test_a_file_that_is_something_else_is_corrupt_and_left_as_it_is(place: Place, body: bytes) -> None:
    place.home.mkdir()
    place.db.write_bytes(body)
    with pytest.raises(StoreCorrupt):
        _ = open_store(place).reader
    assert place.db.read_bytes() == body


def test_the_file_is_its_owners_alone_also_in_a_folder_that_others_may_read(place: Place) -> None:
    place.home.mkdir(mode=0o755)
    store = open_store(place)
    assert store.reader is not None
    modes = {file.name: file.stat().st_mode & 0o777 for file in place.home.glob("kairos.db*")}
    assert set(modes.values()) == {0o600}
    assert "kairos.db-wal" in modes


async def test_what_one_connection_reads_it_can_not_write(place: Place) -> None:
    store = open_store(place)
    with pytest.raises(apsw.ReadOnlyError):
        store.reader.execute("insert into text values ('h', 'b')")
    await store.close()


async def test_a_read_is_executed_at_once_and_gives_nobody_else_a_turn(place: Place) -> None:
    store = open_store(place)
    reading = store.read(lambda session: session.row("select 7"))
    with pytest.raises(StopIteration) as ended:  # at its first step
        reading.send(None)
    assert ended.value.value == (7,)
    await store.close()


@pytest.mark.parametrize("one_state", [True, False])
async def test_what_is_read_of_one_state_is_not_changed_by_what_others_write(place: Place, one_state: bool) -> None:
    store = open_store(place)

    def count_twice(session: Session) -> tuple[object, object]:
        before = session.row("select count(*) from text")
        place.rows("insert into text values ('of another', 'connection')")
        return before, session.row("select count(*) from text")

    before, after = await store.read(count_twice, one_state=one_state)
    assert (before == after) is one_state
    assert await store.read(lambda session: session.row("select count(*) from text")) == (1,)
    await store.close()
