"""The session of a group of jobs: of jobs of single runs while other servers write those of other runs, or of any.

Beside others a group holds the rows of its runs, taken in the order of their numbers, and the lock of all writers
together with others: whoever has to be alone waits for it, and it for them. Rows that runs share are written last, in
one order.

Statements that only write are sent without waiting for their results, which the jobs are given beforehand: that one row
was changed, or that none was found. The group is committed only if the database says the same: then each job has read
what it would have read by waiting. So a group of commits that are decided from memory takes three trips to the
database, whatever its size. A job with a wrong number, or whose account had no room for its group, waits for its
results (`awaits_results`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import NamedTuple

import psycopg

from kairos_mcp.store.database import QueuedJob
from kairos_mcp.store.postgres.connection import Connection
from kairos_mcp.store.postgres.locks import WRITERS_LOCK
from kairos_mcp.store.postgres.session import PostgresSession
from kairos_mcp.store.postgres.statements import number_places, only_writes, order_bindings
from kairos_mcp.store.rows import Bindings, LastWrites, NotAlone, Row

_BEGIN = "begin"
_LOCK_ALONE = "select pg_current_xact_id()::text, pg_advisory_xact_lock($1)"
_LOCK_SHARED = "select pg_current_xact_id()::text, pg_advisory_xact_lock_shared($1)"
_LOCK_RUNS = "select n from run where n = any($1) order by n for no key update"
_NEW_IDS = "select nextval(pg_get_serial_sequence('step', 'id')) from generate_series(1, $1)"
_STEPS_A_JOB = 4  # rows of steps that a job inserts at most, as a rule; for more their ids take a trip each
_INTO_STEP = "insert into step("


class _Expected(NamedTuple):
    """The number of rows that a job was given beforehand for a statement."""

    cursor: psycopg.Cursor[Row]
    rows: int
    job: QueuedJob


class Undone(Exception):
    """A group has to be undone, since these of its jobs have to be alone. `is_synced`: the database has executed all
    that was sent."""

    def __init__(self, jobs: list[QueuedJob], *, is_synced: bool) -> None:
        super().__init__()
        self.jobs, self.is_synced = jobs, is_synced


class GroupSession(PostgresSession):
    """A session within a pipeline of its connection; `begin` comes first, then the jobs, `require_told_right`,
    `write_last`, and the commit."""

    last_writes: LastWrites | None

    def __init__(self, connection: Connection, *, is_alone: bool) -> None:
        super().__init__(connection)
        self._is_alone, self._is_last = is_alone, False
        self._collected = LastWrites()
        self.last_writes = None if is_alone else self._collected
        self._step_ids: deque[int] = deque()
        self._expected: list[_Expected] = []
        self._job: QueuedJob | None = None

    def begin(self, group: Sequence[QueuedJob]) -> str:
        """Begin the transaction of these jobs, under the locks of their runs, and return its number: one trip."""
        self.connection.execute(_BEGIN, prepare=False)
        locked = self.connection.execute(_LOCK_ALONE if self._is_alone else _LOCK_SHARED, (WRITERS_LOCK,))
        if not self._is_alone:
            self.connection.execute(_LOCK_RUNS, (list({queued.of_run for queued in group}),))
        # Taken under the locks, so that the steps of a run have ids in the order of its commits.
        ids = self.connection.execute(_NEW_IDS, (_STEPS_A_JOB * len(group),))
        self._step_ids.extend(number for (number,) in ids.fetchall())
        row = locked.fetchone()
        assert row is not None
        return str(row[0])

    def run_jobs(self, group: Sequence[QueuedJob]) -> list[QueuedJob]:
        """Run the jobs, and return those that have to be alone and have written nothing. Raises what undoes the
        transaction: Undone where one of these had written."""
        left: list[QueuedJob] = []
        for queued in group:
            self._job, before = queued, self.changed_rows()
            try:
                queued.run(self)
            except NotAlone:
                left.append(queued)
                if self.changed_rows() != before:
                    raise Undone(left, is_synced=False) from None
        return left

    def require_told_right(self, pipeline: psycopg.Pipeline, left: list[QueuedJob]) -> None:
        """Wait for all that was sent: one trip. Raises Undone, with the jobs that were `left` too, where jobs were told
        otherwise than the database says."""
        pipeline.sync()
        wrong = [expected.job for expected in self._expected if expected.cursor.rowcount != expected.rows]
        for queued in wrong:
            queued.awaits_results = True
        if wrong:
            raise Undone([*left, *wrong], is_synced=True)

    def write_last(self) -> None:
        """Send what the jobs left to be written last. What has no room fails, and with it the commit that follows."""
        self.last_writes, self._is_last = None, True
        self._collected.write(self)

    def rows(self, statement: str, bindings: Bindings = ()) -> list[Row]:
        sent = self._send(statement, bindings)
        if only_writes(statement):
            self._changed_rows += 1
            return []
        found = sent.fetchall()
        self._count_changes(sent)
        return found

    def row(self, statement: str, bindings: Bindings = ()) -> Row | None:
        found = self.rows(statement, bindings)
        return found[0] if found else None

    def finds(self, statement: str, bindings: Bindings = ()) -> bool:
        if self._awaits_results:
            return bool(self.rows(statement, bindings))
        self._expect(self._send(statement, bindings), 0)
        return False

    def insert(self, statement: str, bindings: Bindings = ()) -> int:
        if not statement.startswith(_INTO_STEP) or not self._step_ids:
            return super().insert(statement, bindings)
        number = self._step_ids.popleft()
        self.rows(_with_id(statement), (number, *bindings))
        return number

    def change(self, statement: str, bindings: Bindings = ()) -> int:
        if self._is_last:
            self._send(_fail_unless_changed(statement), bindings)
            return 1
        if self._awaits_results:
            changed = len(self._send(_returning(statement), bindings).fetchall())
            self._changed_rows += changed
            return changed
        self._changed_rows += 1
        self._expect(self._send(statement, bindings), 1)
        return 1

    def changed_rows(self) -> int:
        return self._changed_rows + self._collected.count

    def require_alone(self) -> None:
        if not self._is_alone:
            raise NotAlone

    @property
    def _awaits_results(self) -> bool:
        return self._job is not None and self._job.awaits_results

    def _pipeline(self) -> AbstractContextManager[object]:
        return nullcontext()  # it is within one

    def _send(self, statement: str, bindings: Bindings) -> psycopg.Cursor[Row]:
        numbered, names = number_places(statement)
        return self.connection.execute(numbered, order_bindings(names, bindings))

    def _expect(self, sent: psycopg.Cursor[Row], rows: int) -> None:
        assert self._job is not None
        self._expected.append(_Expected(sent, rows, self._job))


@lru_cache(maxsize=16)
def _with_id(statement: str) -> str:
    """Return a statement that inserts a step with an id that comes before its other bindings."""
    return statement.replace(_INTO_STEP, f"{_INTO_STEP}id, ", 1).replace(" values (", " values (?, ", 1)


@lru_cache(maxsize=64)
def _returning(statement: str) -> str:
    """Return a statement that also returns a row for each that it changes."""
    return f"{statement} returning 1"


@lru_cache(maxsize=16)
def _fail_unless_changed(statement: str) -> str:
    """Return a statement that divides by zero where this one changes no row."""
    return f"with changed as ({statement} returning 1) select 1 / count(*) from changed"
