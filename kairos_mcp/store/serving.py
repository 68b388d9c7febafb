"""Which servers and workers live, what they serve, and how many more runs they could drive."""

from __future__ import annotations

from typing import NamedTuple

from kairos_mcp.store.ownership import Owners, ServedRuns, machine_of
from kairos_mcp.store.rows import Session, decode


class ServingServer(NamedTuple):
    """A living server: its number, its process, its machine where several share the store, what it is, when it was
    first used (ms since 1970), what it serves, and how many unfinished runs it owns."""

    number: int
    pid: int
    machine: str | None
    via: str
    started_at: int
    serves: ServedRuns
    moving: int

    @property
    def free_slots(self) -> int:
        """How many more runs it could drive; 0 where it has no slots."""
        return 0 if self.serves.slots is None else max(0, self.serves.slots - self.moving)


def list_serving(session: Session, owners: Owners) -> list[ServingServer]:
    """List the living servers and workers; commands are none."""
    found = session.rows(
        "select lock, id, pid, via, started_at, serves,"
        " (select count(*) from run where owner = owner.id and outcome is null)"
        " from owner where serves is not null order by id"
    )
    living = owners.find_living(session, [lock for lock, *_ in found])
    return [
        ServingServer(number, pid, machine_of(lock), via, at, decode(ServedRuns, text), moving)
        for lock, number, pid, via, at, text, moving in found
        if lock in living
    ]


def list_driving(session: Session, owners: Owners) -> list[ServingServer]:
    """List the living servers and workers that drive runs and were not stopped by a signal."""
    return [each for each in list_serving(session, owners) if each.serves.drives and not owners.is_stopped(each.pid)]


def find_serving(
    session: Session, owners: Owners, workspace: str | None, place: str | None
) -> tuple[ServedRuns | None, bool]:
    """Return what the server that drives runs of this folder, at this place, serves, and whether that server is alive.

    It is one that is alive and not stopped, else the newest. Commands don't count as servers.
    """
    found = session.rows("select lock, pid, serves from owner where serves is not null order by id desc")
    living = owners.find_living(session, [lock for lock, *_ in found])
    newest: ServedRuns | None = None
    for lock, pid, text in found:
        served: ServedRuns = decode(ServedRuns, text)
        if not served.drives or not served.has_folder(workspace, place):
            continue
        if lock in living and not owners.is_stopped(pid):
            return served, True
        newest = newest or served
    return newest, False
