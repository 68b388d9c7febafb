"""Which servers on a database are alive: those that hold their session lock and whose lease is not over.

The session lock goes with its connection, at once where a process is killed. The lease, by the database's clock, also
ends for a process that stands still or is cut off. A database that was restarted has let go of all locks at once: then
the lease alone counts, until each server has had the time to lock again.

One session of each server holds the lock, renews the lease and hears of what others commit; a thread of its own keeps
it, so that no work of the event loop delays it.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from threading import Event, Thread

import psycopg

from kairos_mcp.core.errors import KairosError
from kairos_mcp.store.outage_log import OutageLog
from kairos_mcp.store.ownership import Ownership, ServedRuns
from kairos_mcp.store.postgres.connection import Connection, translate_errors
from kairos_mcp.store.postgres.locks import CHANNEL, SERVERS_LOCK
from kairos_mcp.store.rows import Session

LEASE_S = 10.0
BEATS = 4  # renewals in the time of a lease
HOLDS = 0.7  # of its lease after which a server that could not renew it begins nothing more
RECONNECT_S = 0.1

_LIVING = f"""
    select lock from lease where lock = any(?) and seen_at > clock_timestamp() - lease_ms * interval '1 millisecond'
        and (pg_postmaster_start_time() > clock_timestamp() - lease_ms * interval '1 millisecond'
            or key in (select objid::bigint from pg_locks join pg_database on pg_database.oid = pg_locks.database
                where locktype = 'advisory' and granted and objsubid = 2 and classid = {SERVERS_LOCK}
                    and datname = current_database()))
"""
_LOCK = f"select pg_try_advisory_lock({SERVERS_LOCK}, $1::integer)"
_RENEW = """
    insert into lease(lock, key, lease_ms, seen_at) values ($1, $2, $3, clock_timestamp())
        on conflict (lock) do update set seen_at = excluded.seen_at
    returning (extract(epoch from seen_at) * 1000)::bigint
"""
_NUMBERS = re.compile(r"[0-9]{1,18}(?:,[0-9]{1,18})*")
_FORGET_OLD = "delete from lease where seen_at < clock_timestamp() - interval '1 day'"


class SessionLocks:
    """The session locks and leases of a database, as `Owners`."""

    def find_living(self, session: Session, locks: Collection[str]) -> Collection[str]:
        """As in Owners."""
        return {lock for (lock,) in session.rows(_LIVING, (list(locks),))} if locks else ()

    def is_stopped(self, _pid: int) -> bool:
        """Return False: the lease of a server that was stopped ends, and others take its runs."""
        return False


class SessionLock(Ownership):
    """This server's lock and lease.

    `hear` is called in the thread for each group of commits that a session makes known, with that session's process in
    the database and the numbers of the runs; with None where some may have been missed, or it may be any run.
    Raises the store's errors where there is no connection.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        served_runs: ServedRuns | None,
        hear: Callable[[int | None, Collection[int] | None], None],
        lease_s: float = LEASE_S,
        outages: OutageLog | None = None,
    ) -> None:
        super().__init__(served_runs)
        self._connect, self._hear, self._lease_s = connect, hear, lease_s
        self._outages = OutageLog(__name__) if outages is None else outages
        self._key = secrets.randbelow(2**31)
        self.lock = f"{socket.gethostname()}-{os.getpid()}-{self._key}"
        self.ahead_ms = 0.0  # of the monotonic clock of this machine is the database's
        self._held_until = 0.0
        self._has_lock = False
        self._is_closing = Event()
        self._woken, self._wake = os.pipe()
        self._connection = self._open()
        self._thread = Thread(target=self._keep, name="kairos-lease", daemon=True)
        self._thread.start()

    @property
    def is_held(self) -> bool:
        """Whether no other server can have taken this one for dead, by this machine's monotonic clock."""
        return time.monotonic() < self._held_until

    def close(self) -> None:
        """As in Ownership."""
        self._is_closing.set()
        os.write(self._wake, b".")
        self._thread.join()
        with suppress(psycopg.Error):
            self._connection.execute("delete from lease where lock = $1", (self.lock,))
        self._connection.close()
        for descriptor in (self._woken, self._wake):
            os.close(descriptor)

    def _open(self) -> Connection:
        connection = self._connect()
        with translate_errors():
            connection.execute(f"listen {CHANNEL}")
            connection.execute(_FORGET_OLD)
            found = connection.execute("select current_schema()").fetchone()
            self._schema = "" if found is None else str(found[0])
            self._connection, self._has_lock = connection, False
            self._is_pooled = connection.prepare_threshold is None
            self._renew()
        return connection

    def _keep(self) -> None:
        while not self._is_closing.is_set():
            try:
                if self._connection.closed:
                    self._open()
                    self._outages.end()
                    self._hear(None, None)
                self._hear_until(time.monotonic() + self._lease_s / BEATS)
                self._renew()
            except (psycopg.Error, KairosError, OSError) as error:
                self._held_until = 0.0  # the lock has gone with the connection, so others may take the runs
                if not self._is_closing.is_set():
                    self._outages.note(error)
                self._connection.close()
                self._is_closing.wait(RECONNECT_S)

    def _hear_until(self, until: float) -> None:
        while not self._is_closing.is_set() and (left := until - time.monotonic()) > 0:
            if select.select([self._connection.fileno(), self._woken], [], [], left)[0]:
                for notice in self._connection.notifies(timeout=0):
                    schema, _, runs = notice.payload.partition(" ")
                    if schema == self._schema:
                        self._hear(notice.pid, _read_numbers(runs))

    def _renew(self) -> None:
        """Renew the lease, and take the lock where it is not held: the session before this one may have kept it."""
        before = time.monotonic()
        if not self._has_lock or self._is_pooled:  # what a pooler's connection has locked may have gone with it
            found = self._connection.execute(_LOCK, (self._key,)).fetchone()
            self._has_lock = bool(found and found[0])
        found = self._connection.execute(_RENEW, (self.lock, self._key, int(self._lease_s * 1000))).fetchone()
        assert found is not None
        self.ahead_ms = found[0] - (before + time.monotonic()) / 2 * 1000
        self._held_until = before + self._lease_s * HOLDS


def _read_numbers(runs: str) -> list[int] | None:
    """Return the numbers of runs that a notice names; None for what this program would not write.

    Whoever may connect to the database may send one.
    """
    return [int(run) for run in runs.split(",")] if _NUMBERS.fullmatch(runs) else None
