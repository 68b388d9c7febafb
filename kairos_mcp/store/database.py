"""What every store does, whichever driver keeps its rows: it reads in sessions and writes in jobs."""

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kairos_mcp.core.errors import StoreUnavailable
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.run_spec import GIVEN
from kairos_mcp.store import approvals, texts
from kairos_mcp.store.codec import decode_answer
from kairos_mcp.store.group_writer import GroupWriter, Job
from kairos_mcp.store.ownership import Owners, Ownership, ServedRuns
from kairos_mcp.store.session import Session, json_or_null

T = TypeVar("T")


class News(NamedTuple):
    """Of which runs something was committed, by their numbers; `of_any`: perhaps of any run."""

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
        """Open the store, which creates it where there is none. Raises the store's errors."""

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
        """Return of which runs something was committed since the last call, perhaps by others."""

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
        """Return the key with which is sealed what clients carry between two calls, made at the first use.

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

    @abstractmethod
    async def close(self) -> None:
        """Commit what is queued, then close everything that was opened."""


def make_folder(home: Path) -> None:
    """Make the state folder, and see that it can be written. Raises StoreUnavailable."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(
            f"The state folder can't be made: {error.strerror}.",
            "Name another one with --home or KAIROS_HOME.",
        ) from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise StoreUnavailable("The state folder can't be written.", "Check its permissions, or --home.")
