"""Open the state folder: a connection that reads, the writer, and this server's ownership, each at first use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import apsw

from kairos_mcp.core.errors import StoreBusy, StoreCorrupt, StoreUnavailable
from kairos_mcp.core.run_spec import GIVEN
from kairos_mcp.store import approvals, schema, texts
from kairos_mcp.store import ownership as owners
from kairos_mcp.store.codec import decode_answer
from kairos_mcp.store.connection import Durability, connect, fetch_one, json_or_null, translate_errors
from kairos_mcp.store.ownership import Ownership, ServedRuns
from kairos_mcp.store.writer import Job, Writer

T = TypeVar("T")

FILE = "kairos.db"
CHECKED_BYTES = 32 * 1024 * 1024  # a larger file is checked by `doctor` alone: 1 MiB takes about 1 ms


class Store:
    """One state folder. Nothing is created or opened before something is asked of it.

    `salvage`: open a damaged file as well, for what can still be read of it. `serves`: what this server tells others
    about itself, so that they know which runs it can go on with.
    """

    def __init__(
        self,
        home: Path,
        durability: Durability,
        via: str,
        *,
        salvage: bool = False,
        served_runs: ServedRuns | None = None,
    ) -> None:
        self.home = home
        self._served_runs = served_runs
        self._salvage = salvage
        self.path = home / FILE
        self._durability: Durability = durability
        self._via = via

    @property
    def exists(self) -> bool:
        return self.path.exists()

    @cached_property
    def reader(self) -> apsw.Connection:
        """The connection that reads; opening it makes the folder and brings the file to the newest version."""
        _make_folder(self.home)
        _make_file(self.path)
        with translate_errors():
            connection = connect(self.path, self._durability, reads=True)
            try:
                if not self._salvage:
                    _check_integrity(connection, self.path)
                schema.migrate(connection)
                connection.execute("pragma query_only = on")
            except BaseException:
                connection.close()
                raise
        return connection

    @cached_property
    def writer(self) -> Writer:
        assert self.reader is not None  # migrated before anything writes
        return Writer(self.path, self._durability, connect(self.path, self._durability))

    @cached_property
    def ownership(self) -> Ownership:
        assert self.reader is not None
        owners.remove_dead_locks(self.home)
        return Ownership(self.home, self._served_runs)

    @property
    def is_open(self) -> bool:
        """Whether anything was asked of the file yet."""
        return "reader" in self.__dict__

    @property
    def owner_number(self) -> int:
        """This server's number as an owner, or -1 while it has owned nothing."""
        return self.ownership.number or -1 if "ownership" in self.__dict__ else -1

    async def register_owner(self, at: int) -> int:
        """This server's number as an owner of runs; its row is made at the first call."""
        mine = self.ownership
        if not mine.number:
            mine.number = await self.submit(lambda connection: mine.register(connection, self._via, at))
        return mine.number

    async def submit(self, job: Job[T]) -> T:
        """Commit the job; see Writer.submit. Of a server that was stopped while it wrote, the error says so: to call
        again would be of no use."""
        try:
            return await self.writer.submit(job)
        except StoreBusy as busy:
            stopped = next((each for each in owners.list_living(self.reader, self.home) if each.stopped), None)
            if stopped is None:
                raise
            raise StoreBusy(
                f"{busy.message} A server that was stopped (process {stopped.pid}) may be what holds it.",
                f"Let it go on (kill -CONT {stopped.pid}), or end it (kill -KILL {stopped.pid}); others take its runs.",
            ) from busy

    def check_writable(self) -> None:
        """Raises what a write would meet now, of the store's errors; nothing is written."""
        with translate_errors():
            connection = connect(self.path, self._durability)
            try:
                connection.execute("begin immediate")
                connection.execute("rollback")
            finally:
                connection.close()

    @contextmanager
    def read_connection(self) -> Iterator[apsw.Connection]:
        """Open a connection for a worker thread that reads, and close it at the end."""
        connection = connect(self.path, self._durability, read_only=True)
        try:
            yield connection
        finally:
            connection.close()

    def read_full_text(self, connection: apsw.Connection, n: int, path: str) -> str | None:
        """The whole text of the result at `path` of run number `n`, or the preview of an approval; None where there is
        no such result. A phase alone also has what it was given, and what the run has that gave it."""
        if approvals.is_approval_key(path):
            asked = approvals.find_by_key(connection, n, path)
            return None if asked is None else asked.preview
        found = fetch_one(
            connection,
            "select body from mark join answer on answer.mark = mark.id where run = ? and path = ?",
            (n, path),
        )
        answer = decode_answer(found[0]) if found else None
        match getattr(answer, "kind", None):
            case "result":
                kept: str | None = getattr(answer, "kept", None)
                content: str = getattr(answer, "content", "")
                return texts.read_text(connection, kept) if kept else content
            case "completion":
                said: str = getattr(answer, "content", "")
                return said
            case _ if found is None:
                return self._read_given_text(connection, n, path)
            case _:
                return None

    def _read_given_text(self, connection: apsw.Connection, n: int, path: str) -> str | None:
        found = fetch_one(
            connection,
            f"select json_extract({json_or_null('run.spec')}, '$.given_text'), before.n from run"
            f" left join run before on before.id = json_extract({json_or_null('run.spec')}, '$.given_by')"
            " and before.principal = run.principal where run.n = ?",
            (n,),
        )
        given, before = found or (None, None)
        if path == GIVEN:
            return None if given is None else texts.read_text(connection, given)
        return None if before is None else self.read_full_text(connection, before, path)

    async def close(self) -> None:
        """Commit what is queued and let go of everything that was opened."""
        opened = self.__dict__
        if "writer" in opened:
            await self.writer.close()
        if "ownership" in opened:
            self.ownership.close()
        if "reader" in opened:
            self.reader.close()


def _make_folder(home: Path) -> None:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(
            f"The state folder can't be made: {error.strerror}.",
            "Name another one with --home or KAIROS_HOME.",
        ) from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise StoreUnavailable("The state folder can't be written.", "Check its permissions, or --home.")


def _make_file(path: Path) -> None:
    """Made by SQLite it could be read by whoever may read the folder; the log beside it has the mode of the file."""
    with suppress(OSError):  # it is there, or SQLite says what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _check_integrity(connection: apsw.Connection, path: Path) -> None:
    if path.stat().st_size > CHECKED_BYTES:
        return
    found = fetch_one(connection, "pragma quick_check(1)")
    if found is None or found[0] != "ok":
        raise StoreCorrupt("The state file is damaged.", "Run `kairos-mcp doctor`; move the file away to start anew.")
