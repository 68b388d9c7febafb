"""Who owns runs. A server is alive while it holds the lock on its lock file: no heartbeat, and no clock is read."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kairos_mcp.store.codec import decode, encode
from kairos_mcp.store.session import Row, Session

LOCK_FOLDER = "owners"
ANY_SERVER = 0  # the owner of a run that was changed while there was no server to continue it


@dataclass(frozen=True, slots=True)
class ServedRuns:
    """What decides which runs a server can continue: its folders, the routes that it performs itself, its settings.

    `settings`: a digest of each setting's value, by name. `config`: the settings file.
    """

    workspaces: tuple[str, ...]
    routes: tuple[str, ...]
    version: str
    settings: dict[str, str]
    config: str | None = None


class Ownership:
    """This server's lock file, locked until the process ends, and its id in the table `owner`."""

    def __init__(self, home: Path, served_runs: ServedRuns | None = None) -> None:
        self._served_runs = served_runs
        folder = home / LOCK_FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        self.number = 0  # this server's row, inserted with the first run that it takes
        while True:
            self.lock = f"{os.getpid()}-{secrets.token_hex(4)}"
            self._path = folder / self.lock
            self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            if os.fstat(self._descriptor).st_nlink:
                return
            os.close(self._descriptor)  # another server removed the file between the two calls

    def register(self, session: Session, via: str, at: int) -> int:
        """Insert this server's row if it is not there yet, and return its id. Part of a transaction."""
        new = "insert into owner(lock, pid, via, started_at, serves) values (?, ?, ?, ?, ?) on conflict do nothing"
        serves = None if self._served_runs is None else encode(self._served_runs)
        session.rows(new, (self.lock, os.getpid(), via, at, serves))
        found = session.row("select id from owner where lock = ?", (self.lock,))
        assert found is not None
        return int(found[0])

    def close(self) -> None:
        """Remove the lock file and release the lock: a server without a file is not alive."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def is_alive(home: Path, lock: str) -> bool:
    """Whether the server with this lock file still runs."""
    try:
        descriptor = os.open(home / LOCK_FOLDER / lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def is_owner_alive(session: Session, home: Path, number: int) -> bool:
    """Whether the server with this id as an owner still runs."""
    found = session.row("select lock from owner where id = ?", (number,))
    return found is not None and is_alive(home, found[0])


def dead_owners(session: Session, home: Path, own_number: int) -> list[int]:
    """Return the owners of unfinished runs whose servers have ended, including NOBODY."""
    owners = session.rows(
        "select distinct run.owner, owner.lock from run left join owner on owner.id = run.owner"
        " where run.outcome is null and run.owner is not null and run.owner <> ?",
        (own_number,),
    )
    return [number for number, lock in list(owners) if lock is None or not is_alive(home, lock)]


@dataclass(frozen=True, slots=True)
class LivingServer:
    """A living server, as views/health.py reports it: the fields are keys of that JSON.

    `number`: its id as an owner. `via`: what it is (`serve`, `command`). `stopped`: by SIGSTOP. `runs`: how many
    unfinished runs it owns.
    """

    number: int
    pid: int
    via: str
    stopped: bool
    runs: int


_SERVERS = "select id, lock, pid, via, (select count(*) from run where owner = owner.id and outcome is null) from owner"


def list_living(session: Session, home: Path) -> list[LivingServer]:
    """List the living servers that own runs, or owned some."""
    return _only_living(home, session.rows(f"{_SERVERS} order by id"))


def list_serving(session: Session, home: Path) -> list[tuple[int, int, ServedRuns]]:
    """Return process, time of its first call (ms since 1970) and what it serves of each living server."""
    found = session.rows("select lock, pid, started_at, serves from owner where serves is not null order by id")
    return [(pid, at, decode(ServedRuns, text)) for lock, pid, at, text in list(found) if is_alive(home, lock)]


def find_serving(session: Session, home: Path, workspace: str | None) -> tuple[ServedRuns | None, bool]:
    """Return what the server of this folder serves, and whether that server is alive.

    One that is alive and not stopped, else the newest that there was. A command is no server.
    """
    found = session.rows("select lock, pid, serves from owner where serves is not null order by id desc")
    newest: ServedRuns | None = None
    for lock, pid, text in found:
        served: ServedRuns = decode(ServedRuns, text)
        if workspace and workspace not in served.workspaces:
            continue
        if is_alive(home, lock) and not is_stopped(pid):
            return served, True
        newest = newest or served
    return newest, False


def stopped_owner(session: Session, home: Path, number: int) -> LivingServer | None:
    """Return the owner with this id if it is alive but stopped: it keeps its runs until a person releases them."""
    found = _only_living(home, session.rows(f"{_SERVERS} where id = ?", (number,)))
    return next((server for server in found if server.stopped), None)


@dataclass(frozen=True, slots=True)
class OwnerState:
    """The owner of a run: its number, whether its process lives, and that process if it was stopped (SIGSTOP)."""

    number: int | None
    lives: bool
    stopped: LivingServer | None = None

    @property
    def dead(self) -> list[int]:
        """The owner if its server has ended, so that somebody else may take the run over; else nothing."""
        return [] if self.number is None or self.lives else [self.number]


NO_OWNER = OwnerState(None, lives=False)


def read_owner_state(session: Session, home: Path, number: int | None, own_number: int) -> OwnerState:
    """Return the state of the owner with this id. `own_number`: of the server that asks, which lives."""
    if number is None or number == own_number:
        return OwnerState(number, lives=number is not None)
    lives = is_owner_alive(session, home, number)
    return OwnerState(number, lives, stopped_owner(session, home, number) if lives else None)


def _only_living(home: Path, found: Iterable[Row]) -> list[LivingServer]:
    return [
        LivingServer(n, pid, via, is_stopped(pid), runs) for n, lock, pid, via, runs in found if is_alive(home, lock)
    ]


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal; False where the system doesn't say."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")


def release_runs(session: Session, number: int) -> int:
    """Take all unfinished runs from an owner, for any other server to continue; return how many.

    Their fencing numbers rise, so that whatever that owner still commits is refused.
    """
    taken = "update run set owner = ?, fence = fence + 1 where owner = ? and outcome is null"
    return session.change(taken, (ANY_SERVER, number))


def remove_dead_locks(home: Path, keep: Iterable[str] = ()) -> None:
    """Remove the lock files of servers that have ended."""
    kept = set(keep)
    for path in (home / LOCK_FOLDER).glob("*"):
        if path.name not in kept and not is_alive(home, path.name):
            path.unlink(missing_ok=True)
