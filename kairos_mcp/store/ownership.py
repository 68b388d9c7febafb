"""Which server owns a run, and which servers are alive. Each kind of store finds that out in its own way (`Owners`)."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Protocol

from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store.rows import Row, Session, encode, json_or_null

ANY_SERVER = 0  # the owner of a run that was changed while there was no server to continue it


@dataclass(frozen=True, slots=True)
class ServedRuns:
    """What decides which runs a server can continue: its folders, the routes that it performs itself, its settings.

    `settings`: a digest of each setting's value, by name. `config`: the settings file. `place`: where its folders are.
    `slots`: how many runs it drives at most of those that others left; None: all. `drives`: whether it drives any.
    """

    workspaces: tuple[str, ...]
    routes: tuple[str, ...]
    version: str
    settings: dict[str, str]
    config: str | None = None
    place: str | None = None
    slots: int | None = None
    drives: bool = True

    def has_folder(self, workspace: str | None, place: str | None) -> bool:
        """Whether the server can work in this folder at this place (None: any place). All servers can work in none."""
        return not workspace or (workspace in self.workspaces and place in (None, self.place))


class Ownership(ABC):
    """This server as an owner of runs: what tells the others that it is alive, and its id in the table `owner`."""

    lock: str  # its name in the table `owner`, by which it is known to be alive

    def __init__(self, served_runs: ServedRuns | None) -> None:
        self._served_runs = served_runs
        self.number = 0  # this server's row, inserted with the first run that it takes

    def register(self, session: Session, via: str, at: int) -> int:
        """Insert this server's row if it is not there yet, and return its id. Part of a transaction."""
        new = "insert into owner(lock, pid, via, started_at, serves) values (?, ?, ?, ?, ?) on conflict do nothing"
        serves = None if self._served_runs is None else encode(self._served_runs)
        session.rows(new, (self.lock, os.getpid(), via, at, serves))
        found = session.row("select id from owner where lock = ?", (self.lock,))
        assert found is not None
        return int(found[0])

    @abstractmethod
    def close(self) -> None:
        """Stop being alive, so that other servers take this server's runs."""


class Owners(Protocol):
    """Tells which of the servers in the table `owner` are alive."""

    def find_living(self, session: Session, locks: Collection[str]) -> Collection[str]:
        """Return those of these names whose servers are alive."""
        ...

    def is_stopped(self, pid: int) -> bool:
        """Whether a living server was stopped by a signal; it keeps its runs."""
        ...


def is_owner_alive(session: Session, owners: Owners, number: int) -> bool:
    """Whether the server with this id as an owner still runs."""
    found = session.row("select lock from owner where id = ?", (number,))
    return found is not None and bool(owners.find_living(session, [found[0]]))


def dead_owners(session: Session, owners: Owners, own_number: int) -> list[int]:
    """Return the owners of unfinished runs whose servers have ended, including ANY_SERVER."""
    found = session.rows(
        "select distinct run.owner, owner.lock from run left join owner on owner.id = run.owner"
        " where run.outcome is null and run.owner is not null and run.owner <> ?",
        (own_number,),
    )
    living = owners.find_living(session, [lock for _, lock in found if lock is not None])
    return [number for number, lock in found if lock is None or lock not in living]


@dataclass(frozen=True, slots=True)
class LivingServer:
    """A living server, as views/health.py reports it: the fields are keys of that JSON.

    `number`: its id as an owner. `machine`: where several share the store. `via`: what it is (`serve`, `command`).
    `stopped`: by SIGSTOP. `runs`: how many unfinished runs it owns. `place`: where its folders are, if that was said.
    `version`: of Kairos, once it was used. `drives`: whether it drives runs; None of a command.
    """

    number: int
    pid: int
    machine: str | None
    via: str
    stopped: bool
    runs: int
    place: str | None
    version: str | None
    drives: bool | None


_SERVED = json_or_null("serves")
_SERVERS = (
    "select id, lock, pid, via, (select count(*) from run where owner = owner.id and outcome is null),"
    f" json_extract({_SERVED}, '$.place'), json_extract({_SERVED}, '$.version'), json_extract({_SERVED}, '$.drives')"
    " from owner"
)


def list_living(session: Session, owners: Owners) -> list[LivingServer]:
    """List the living servers that own runs now, or did before."""
    return _only_living(session, owners, session.rows(f"{_SERVERS} order by id"))


def stopped_owner(session: Session, owners: Owners, number: int) -> LivingServer | None:
    """Return the owner with this id if it is alive but stopped: it keeps its runs until a person releases them."""
    found = _only_living(session, owners, session.rows(f"{_SERVERS} where id = ?", (number,)))
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


def read_owner_state(session: Session, owners: Owners, number: int | None, own_number: int) -> OwnerState:
    """Return the state of the owner with this id. `own_number`: of the server that asks, which lives."""
    if number is None or number == own_number:
        return OwnerState(number, lives=number is not None)
    found = session.row("select lock, pid from owner where id = ?", (number,))
    lives = found is not None and bool(owners.find_living(session, [found[0]]))
    is_stopped = found is not None and lives and owners.is_stopped(found[1])
    return OwnerState(number, lives, stopped_owner(session, owners, number) if is_stopped else None)


def _only_living(session: Session, owners: Owners, found: Sequence[Row]) -> list[LivingServer]:
    living = owners.find_living(session, [lock for _, lock, *_ in found])
    return [
        LivingServer(
            *(n, pid, machine_of(lock), via, owners.is_stopped(pid), runs, place, version),
            None if drives is None else drives in (1, "true"),
        )
        for n, lock, pid, via, runs, place, version, drives in found
        if lock in living
    ]


def machine_of(lock: str) -> str | None:
    """Return the machine that a lock names, as those of a database do; None for a file's."""
    machine, *_, _ = lock.rsplit("-", 2)
    return machine if lock.count("-") > 1 else None


def release_runs(session: Session, number: int) -> int:
    """Take all unfinished runs from an owner, for any other server to continue; return how many.

    Their fencing numbers rise, so that whatever that owner still commits is refused.
    """
    taken = "update run set owner = ?, fence = fence + 1 where owner = ? and outcome is null"
    return session.change(taken, (ANY_SERVER, number))
