"""Open the state folder: the connection that reads, the writer and this server's ownership, each at its first use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from kairos_mcp.core.errors import StoreBusy, StoreCorrupt, StoreUnavailable
from kairos_mcp.core.run_spec import GIVEN
from kairos_mcp.settings.settings import Durability
from kairos_mcp.store import approvals, schema, texts
from kairos_mcp.store import ownership as owners
from kairos_mcp.store.codec import decode_answer
from kairos_mcp.store.connection import SqliteSession, connect, translate_errors
from kairos_mcp.store.ownership import Ownership, ServedRuns
from kairos_mcp.store.session import Session, json_or_null
from kairos_mcp.store.writer import Job, Writer

T = TypeVar("T")

FILE = "kairos.db"
CHECKED_BYTES = 32 * 1024 * 1024  # a larger file is checked by `doctor` alone: 1 MiB takes about 1 ms


class Store:
    """One state folder. Nothing is created or opened before it is needed.

    `salvage`: open a damaged file too, to read what is still readable. `served_runs`: written into this server's row,
    so that other processes know which runs it can continue.
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
        """Whether there is a state file."""
        return self.path.exists()

    @cached_property
    def reader(self) -> SqliteSession:
        """The connection that reads. Opening it creates the folder and migrates the file to the newest version."""
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
        """The connection that writes, opened at the first use."""
        assert self.reader is not None  # migrated before anything writes
        return Writer(self.path, self._durability, connect(self.path, self._durability))

    @cached_property
    def ownership(self) -> Ownership:
        """This server's lock file, created at the first use; those of ended servers are removed."""
        assert self.reader is not None
        owners.remove_dead_locks(self.home)
        return Ownership(self.home, self._served_runs)

    @property
    def is_open(self) -> bool:
        """Whether the file has been opened."""
        return "reader" in self.__dict__

    @property
    def owner_number(self) -> int:
        """This server's id in the table `owner`, or -1 before it has owned a run."""
        return self.ownership.number or -1 if "ownership" in self.__dict__ else -1

    async def register_owner(self, at: int) -> int:
        """Return this server's id as an owner of runs; the first call inserts its row."""
        ownership = self.ownership
        if not ownership.number:
            ownership.number = await self.submit(lambda session: ownership.register(session, self._via, at))
        return ownership.number

    async def read(self, read: Callable[[Session], T], *, one_state: bool = False) -> T:
        """Call a function with a session that reads, and return its value: one call for all that an act reads.

        `one_state`: it reads everything from one state of the store, whatever others write meanwhile. On SQLite it is
        called at once, since a thread costs more than the statements. Where a driver waits for a network, others run
        meanwhile: the function takes values and returns values, and changes nothing.
        """
        if one_state:
            with self.reader.one_state():
                return read(self.reader)
        return read(self.reader)

    async def submit(self, job: Job[T]) -> T:
        """Run the job in a transaction and commit it; see Writer.submit.

        Where the file stays busy because another server was stopped (SIGSTOP) while it wrote, the StoreBusy error names
        that process: calling again would not help.
        """
        try:
            return await self.writer.submit(job)
        except StoreBusy as busy:
            stopped = next((server for server in owners.list_living(self.reader, self.home) if server.stopped), None)
            if stopped is None:
                raise
            raise StoreBusy(
                f"{busy.message} A server that was stopped (process {stopped.pid}) may be what holds it.",
                f"Let it go on (kill -CONT {stopped.pid}), or end it (kill -KILL {stopped.pid}); others take its runs.",
            ) from busy

    def check_writable(self) -> None:
        """Raise the store's error that a write would raise now; write nothing."""
        with translate_errors():
            connection = connect(self.path, self._durability)
            try:
                connection.execute("begin immediate")
                connection.execute("rollback")
            finally:
                connection.close()

    @contextmanager
    def read_session(self) -> Iterator[Session]:
        """Open a connection for a worker thread that reads, and close it at the end."""
        session = connect(self.path, self._durability, read_only=True)
        try:
            yield session
        finally:
            session.close()

    def read_full_text(self, session: Session, n: int, path: str) -> str | None:
        """Return the full text of the result at `path` in run number `n`, or the preview of an approval.

        None where there is no such result. In a run of a single phase, also finds the text that the phase was given,
        and results of the run that produced it.
        """
        if approvals.is_approval_key(path):
            approval = approvals.find_by_key(session, n, path)
            return None if approval is None else approval.preview
        found = session.row(
            "select body from mark join answer on answer.mark = mark.id where run = ? and path = ?",
            (n, path),
        )
        answer = decode_answer(found[0]) if found else None
        match getattr(answer, "kind", None):
            case "result":
                kept: str | None = getattr(answer, "kept", None)
                content: str = getattr(answer, "content", "")
                return texts.read_text(session, kept) if kept else content
            case "completion":
                text: str = getattr(answer, "content", "")
                return text
            case _ if found is None:
                return self._read_given_text(session, n, path)
            case _:
                return None

    def _read_given_text(self, session: Session, n: int, path: str) -> str | None:
        found = session.row(
            f"select json_extract({json_or_null('run.spec')}, '$.given_text'), before.n from run"
            f" left join run before on before.id = json_extract({json_or_null('run.spec')}, '$.given_by')"
            " and before.principal = run.principal where run.n = ?",
            (n,),
        )
        given_hash, giver_run = found or (None, None)
        if path == GIVEN:
            return None if given_hash is None else texts.read_text(session, given_hash)
        return None if giver_run is None else self.read_full_text(session, giver_run, path)

    async def close(self) -> None:
        """Commit what is queued, then close everything that was opened."""
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
    """Create the file readable by its owner alone.

    SQLite would create it with the process's umask; its log and shared memory get the mode of this file.
    """
    with suppress(OSError):  # it exists already, or SQLite reports what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _check_integrity(session: Session, path: Path) -> None:
    if path.stat().st_size > CHECKED_BYTES:
        return
    found = session.row("pragma quick_check(1)")
    if found is None or found[0] != "ok":
        raise StoreCorrupt("The state file is damaged.", "Run `kairos-mcp doctor`; move the file away to start anew.")
