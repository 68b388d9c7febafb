"""What every store does, whichever driver keeps its rows: it reads in sessions, and writes in groups of jobs.

A job is a function of a session, run inside a transaction; how a group is committed is the driver's. It refuses
(KairosError, NotForCallers) before its first write, so that jobs of many runs share a transaction without savepoints.
The event loop never waits for a lock.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kairos_mcp.core.errors import KairosError, NoSpace, NotForCallers, StoreUnavailable
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import GIVEN
from kairos_mcp.store import approvals, rows
from kairos_mcp.store.outage_log import OutageLog
from kairos_mcp.store.ownership import Owners, Ownership, ServedRuns
from kairos_mcp.store.rows import Session, decode_answer, json_or_null

T = TypeVar("T")
Job = Callable[[Session], T]

GATHER_S = 0.001  # after a commit, wait so long for the next jobs of those it served; a sync takes longer anyway


@dataclass(slots=True, eq=False)
class QueuedJob:
    """A job and its result. `of_run`: the number of the run whose rows alone it writes; None: any rows. `done`: set
    while somebody awaits it; a commit in the event loop needs none. `awaits_results`: it waits for the result of
    each statement, since it was told one beforehand that was wrong, or may be."""

    job: Job[Any]
    of_run: int | None = None
    done: asyncio.Future[Any] | None = None
    value: Any = None
    error: BaseException | None = None
    awaits_results: bool = False

    def run(self, session: Session) -> None:
        """Run the job within a transaction; what it refuses is its own result, and ends nothing."""
        self.error, before = None, session.changed_rows()
        try:
            self.value = self.job(session)
        except (KairosError, NotForCallers) as refusal:
            if session.changed_rows() != before:
                raise  # a job that refuses after a write ends its transaction: no half of it is committed
            self.error = refusal

    def report(self) -> None:
        """Hand the result to whoever awaits it."""
        if self.done is None or self.done.cancelled():
            return
        if self.error is not None:
            self.done.set_exception(self.error)
        else:
            self.done.set_result(self.value)


class GroupWriter(ABC):
    """The one connection of a process that writes. `commits`: how many there were."""

    def __init__(self) -> None:
        self.commits = 0
        self._queue: list[QueuedJob] = []
        self._active_runs = 0
        self._is_flush_scheduled = False
        self._is_committing = False  # in the thread

    @contextmanager
    def active_run(self) -> Iterator[None]:
        """Count a run as active within; commits are grouped while two or more are."""
        self._active_runs += 1
        try:
            yield
        finally:
            self._active_runs -= 1

    @property
    def has_one_run(self) -> bool:
        """Whether no more than one run is active."""
        return self._active_runs <= 1

    @abstractmethod
    def commit_at_once(self, job: Job[T]) -> tuple[T] | None:
        """Run the job in a transaction of its own, and return its result. None, and nothing is done, where that would
        make the event loop wait: then it is to be submitted.

        Raises what the job raises, or the store's errors.
        """

    async def submit(self, job: Job[T], of_run: int | None = None) -> T:
        """Run the job in a transaction and return its result once it is durable. `of_run`: as in QueuedJob.

        Raises what the job raises, or the store's errors. A job may be run again where its transaction was undone.
        """
        if (done := self.commit_at_once(job)) is not None:
            return done[0]
        queued = QueuedJob(job, of_run)
        queued.done = asyncio.get_running_loop().create_future()
        self._queue.append(queued)
        self._schedule_flush()
        value: T = await queued.done
        return value

    async def close(self) -> None:
        """Commit what is queued, and close the connection."""
        while self._queue or self._is_committing or self._is_flush_scheduled:
            await asyncio.sleep(0)
            if self._is_committing:
                await asyncio.sleep(0.001)
        if "_commit_thread" in self.__dict__:
            self._commit_thread.shutdown(wait=True)
        self._disconnect()

    @abstractmethod
    def _transact(self, group: list[QueuedJob]) -> None:
        """Run the jobs in one transaction and commit it. Raises what undid it."""

    @abstractmethod
    def _translate(self, error: BaseException) -> BaseException:
        """Return the store's error for one of the driver's; any other error is returned unchanged."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the connection."""

    def _count_commit(self) -> None:
        self.commits += 1

    def _schedule_flush(self, within_s: float = 0) -> None:
        if not self._is_flush_scheduled and not self._is_committing:
            self._is_flush_scheduled = True
            loop = asyncio.get_running_loop()
            if within_s:
                loop.call_later(within_s, self._flush)
            else:
                loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if not self._queue or self._is_committing:
            return
        group, self._queue = self._queue, []
        self._commit_queued(group)

    def _commit_queued(self, group: list[QueuedJob]) -> None:
        """Commit a group in the thread, and tell everybody who waits for it."""
        self._is_committing = True
        loop = asyncio.get_running_loop()

        def finish_commit() -> None:
            self._is_committing = False
            self._count_commit()
            for queued in group:
                queued.report()
            if self._queue:
                self._schedule_flush(GATHER_S)

        def work() -> None:
            try:
                self._commit(group)
            except BaseException as error:  # whatever it was, everyone who waits has to be told
                for queued in group:
                    queued.error = queued.error or self._translate(error)
            loop.call_soon_threadsafe(finish_commit)

        self._commit_thread.submit(work)

    def _commit(self, group: list[QueuedJob]) -> None:
        """Run all jobs in one transaction; where that fails, each in its own."""
        try:
            self._transact(group)
        except Exception as error:  # also a bug in one job: the others are not affected, and nobody waits for ever
            self._commit_each(group, error)

    def _commit_each(self, group: list[QueuedJob], error: Exception) -> None:
        """Run each job in a transaction of its own, since that of all was undone by this error."""
        if len(group) == 1:
            group[0].error = self._translate(error)
            return
        for queued in group:
            queued.error = None
            try:
                self._transact([queued])
            except Exception as alone:
                queued.error = self._translate(alone)

    @cached_property
    def _commit_thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "kairos-writer")


class News(NamedTuple):
    """The numbers of the runs with new commits; `of_any`: perhaps of any run."""

    runs: frozenset[int] = frozenset()
    of_any: bool = False

    def concerns(self, run: int) -> bool:
        """Whether something may have been committed of the run with this number."""
        return self.of_any or run in self.runs


class Store(ABC):
    """The rows of one state folder, in its file or in a database. Nothing is created or opened before it is needed.

    `served_runs`: written into this server's row, so that other processes know which runs it can continue.
    """

    def __init__(self, home: Path, via: str, served_runs: ServedRuns | None) -> None:
        self.home = home
        self._served_runs = served_runs
        self._via = via
        self.outages = OutageLog("kairos_mcp.store")

    @abstractmethod
    def describe(self) -> JsonObject:
        """Return where the store is, by which library it is read, and whether there is one."""

    @property
    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a store to read."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether the store has been opened."""

    @abstractmethod
    def open(self) -> None:
        """Open the store, and create it if absent. Raises the store's errors."""

    @property
    @abstractmethod
    def writer(self) -> GroupWriter:
        """What makes this process's commits, opened at the first use."""

    @property
    @abstractmethod
    def owners(self) -> Owners:
        """What tells which servers are alive."""

    @cached_property
    def ownership(self) -> Ownership:
        """What tells others that this server is alive, from the first use on."""
        self.open()
        return self._make_ownership()

    @abstractmethod
    def _make_ownership(self) -> Ownership: ...

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

    @abstractmethod
    async def read(self, read: Callable[[Session], T], *, one_state: bool = False) -> T:
        """Call a function with a session that reads, and return its value: one call for all that an act reads.

        `one_state`: it reads everything from one state of the store, whatever others write meanwhile. Where a driver
        waits for a network, others run meanwhile: the function takes values and returns values, and changes nothing.
        """

    @abstractmethod
    async def submit(self, job: Job[T], *, of_run: int | None = None) -> T:
        """Run the job in a transaction and return its result once it is durable.

        `of_run`: the number of the run whose rows alone it writes, beside accounts that runs share and texts; so other
        servers may write those of other runs meanwhile. None: nobody else writes.
        Raises what the job raises, or the store's errors.
        """

    @abstractmethod
    async def take_news(self) -> News:
        """Return the runs with commits since the last call, perhaps by others."""

    async def wait_for_news(self, within_s: float) -> None:
        """Return when it is worth asking `take_news` again, after about `within_s` seconds."""
        await asyncio.sleep(within_s)

    @property
    def may_act(self) -> bool:
        """Whether this server may still begin what its runs ask for; False once others may take it for dead."""
        return True

    def now(self) -> int:
        """Return the time by the store's clock, in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    @abstractmethod
    async def sealing_key(self) -> bytes:
        """Return the key that seals `requestState`, made at the first use.

        All servers on the store have the same. Raises OSError, the store's errors.
        """

    @abstractmethod
    async def measure(self) -> int:
        """Return how many bytes the store takes."""

    @abstractmethod
    async def read_figures(self) -> JsonObject:
        """Return the bytes within it that are free for what comes, and the version of its tables."""

    @abstractmethod
    async def check_quickly(self) -> str:
        """Return what a quick look for damage finds; `ok` where it finds none."""

    @abstractmethod
    def find_damage(self, outcome: Any) -> list[str]:
        """List all damage, a sentence each. `outcome`: the type of a run's outcome, which flows define."""

    @abstractmethod
    async def shrink(self) -> bool:
        """Give free space back to the disk, if nobody else uses the store; return whether it was given."""

    @abstractmethod
    def check_writable(self) -> None:
        """Raise the store's error that a write would raise now; write nothing."""

    @abstractmethod
    def read_session(self) -> AbstractContextManager[Session]:
        """Open a connection for a worker thread that reads, and close it at the end."""

    @abstractmethod
    def write_session(self) -> AbstractContextManager[Session]:
        """Open a connection for one short transaction of a worker thread or a command: committed at the end, durable
        whatever the settings say, undone where an error leaves the block."""

    def read_full_text(self, session: Session, n: int, path: str) -> str | None:
        """Return the full text of the result at `path` in run number `n`, or the preview of an approval.

        None where there is no such result. In a run of a single phase, also finds the text that the phase was given,
        and results of the run that produced it.
        """
        if approvals.is_approval_key(path):
            approval = approvals.find_by_key(session, n, path)
            return None if approval is None else approval.preview
        found = session.row(
            "select body from step join answer on answer.step = step.id where run = ? and path = ?",
            (n, path),
        )
        answer = decode_answer(found[0]) if found else None
        match getattr(answer, "kind", None):
            case "result":
                kept: str | None = getattr(answer, "kept", None)
                content: str = getattr(answer, "content", "")
                return rows.read_text(session, kept) if kept else content
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
            return None if given_hash is None else rows.read_text(session, given_hash)
        return None if giver_run is None else self.read_full_text(session, giver_run, path)

    @abstractmethod
    async def close(self) -> None:
        """Commit what is queued, then close everything that was opened."""


def make_folder(home: Path) -> None:
    """Make the state folder, and see that it can be written. Raises StoreUnavailable."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise as_folder_error(error) from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise StoreUnavailable("The state folder can't be written.", "Check its permissions, or --home.")


NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # a full disk, a used-up quota


OPENED_FILES = 3  # that SQLite makes; when it fails it has removed those again


def as_folder_error(error: OSError) -> KairosError:
    """Return the store's error for one of making the state folder, or a file in it."""
    if error.errno in NO_ROOM:
        return disk_is_full()
    return StoreUnavailable(
        f"The state folder can't be made: {error.strerror}.", "Name another one with --home or KAIROS_HOME."
    )


def disk_is_full() -> NoSpace:
    """Return the error of a state folder on a full disk."""
    return NoSpace("The disk of the state folder is full.", "Free some space and call again.")


def has_no_room(folder: Path) -> bool:
    """Whether the disk of a folder is too full to open a state file there: no byte is free, or too few files."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return False
    return room.f_bavail == 0 or (room.f_files > 0 and room.f_favail < OPENED_FILES)
