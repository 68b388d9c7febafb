"""MCP tasks: calls whose result their client fetches later, perhaps from another server on the same state folder."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import replace

from kairos_mcp.app.context import AppContext, Operations, read_run
from kairos_mcp.core.already_read import AlreadyRead
from kairos_mcp.core.calendar import DAY_MS
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import UnknownRun
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store import tasks
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session, decode
from kairos_mcp.store.tasks import TaskEnding, TaskRow

MAX_LOOKS = 4_096  # runs and sessions whose last look at a task is remembered
TASK_INFIX = "/task-"  # between the id of the run and the number of the task


@dataclass(frozen=True, slots=True)
class Task:
    """A task with its run, as both were read. `updated_at`: when it last changed, in milliseconds since 1970."""

    run: RunRow
    row: TaskRow
    updated_at: int

    @property
    def id(self) -> str:
        """What its client calls it by."""
        return f"{self.run.id}{TASK_INFIX}{self.row.n}"

    @property
    def has_ended(self) -> bool:
        """Whether it has a result, which stays."""
        return self.row.ending is not None

    @property
    def was_cancelled(self) -> bool:
        """Whether its client cancelled it, and the run ended by that."""
        if self.row.cancelled_at is None or self.run.outcome is None:
            return False
        outcome: Outcome = decode(Outcome, self.run.outcome)
        return outcome.status == "cancelled"


class Tasks(Operations):
    """Create tasks, find them, and end them."""

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._looked_at: OrderedDict[tuple[int, str], float] = OrderedDict()  # by run and session; monotonic seconds

    async def create(self, run_id: str, read: AlreadyRead, caller: Caller, *, attached: bool) -> Task:
        """Create a task of a run for this caller's client. Raises UnknownRun."""
        at = self._clock()

        def write(session: Session) -> Task:
            run = read_run(session, run_id, caller)
            row = tasks.create_task(session, run, caller.client, read, at, attached=attached)
            return _read_task(session, run, row)

        return await self._store.submit(write)

    async def find(self, task_id: str, caller: Caller) -> Task:
        """Return a task of this principal. Raises UnknownRun."""
        run_id, _, number = task_id.rpartition(TASK_INFIX)

        def find(session: Session) -> Task | None:
            try:
                run = read_run(session, run_id, caller)
            except UnknownRun:
                return None
            row = tasks.find_task(session, run, int(number)) if number.isdecimal() and len(number) < 10 else None
            return None if row is None else _read_task(session, run, row)

        found = await self._store.read(find)
        if found is None:
            raise UnknownRun("There is no such task.", "run_status lists the runs with their results.")
        return found

    async def note_look(self, task: Task, caller: Caller) -> None:
        """Note that the task's client asks for its status, and record it the first time."""
        key = task.run.n, caller.session
        self._looked_at[key] = time.monotonic()
        self._looked_at.move_to_end(key)
        while len(self._looked_at) > MAX_LOOKS:
            self._looked_at.popitem(last=False)
        if task.row.fetched_at is None:
            at = self._clock()
            await self._store.submit(lambda session: tasks.mark_fetched(session, task.row, at), of_run=task.run.n)

    def is_looked_at(self, run: RunRow, caller: Caller, within_s: float) -> bool:
        """Whether this client looks after a task of the run here: then it has not refused what the task asks."""
        looked_at = self._looked_at.get((run.n, caller.session))
        return looked_at is not None and time.monotonic() - looked_at <= within_s

    async def mark_cancelled(self, task: Task) -> bool:
        """Record that the task's client wants its end; False where it has ended already."""
        at = self._clock()
        return await self._store.submit(lambda session: tasks.mark_cancelled(session, task.row, at), of_run=task.run.n)

    async def skip(self, task: Task, keys: Collection[str], on_page: Collection[str] = ()) -> None:
        """Ask the task's client about these keys no more; its user decides about those `on_page` there."""
        new = set(keys).difference(task.row.skipped)
        if new:
            await self._store.submit(
                lambda session: tasks.skip_keys(session, task.row, new, on_page), of_run=task.run.n
            )

    async def end(self, task: Task, ending: TaskEnding, result: str | None = None) -> Task:
        """End a task, and return it as it is then: of two that end it, the first one's result stays."""
        at = self._clock()
        row = await self._store.submit(
            lambda session: tasks.end_task(session, task.run, task.row, ending, result, at), of_run=task.run.n
        )
        return replace(task, row=row, updated_at=max(task.updated_at, row.ended_at or 0))

    async def keep_state(self, run: RunRow, nonce: str, state: str) -> None:
        """Keep the state that a request of a task is answered with."""
        if not await self._store.read(lambda session: tasks.has_state(session, run, nonce)):
            await self._store.submit(lambda session: tasks.keep_state(session, run, nonce, state), of_run=run.n)

    async def open_asks(self, task: Task, keys: Collection[str]) -> list[tuple[str, str]]:
        """Return those requests under these keys that the task's client has not answered yet, as (key, state)."""
        run, client = task.run, task.row.client
        return await self._store.read(lambda session: tasks.list_open_asks(session, run, client, keys))

    def check_served(self, task: Task, caller: Caller) -> None:
        """Raise PathDenied if this server does not serve the folder of the task's run, so that it can't go on here."""
        self._context.check_served(task.run, caller)

    def ttl_ms(self, task: Task) -> int | None:
        """Return how long after its creation the task is kept, in milliseconds; None: for ever, or nobody knows yet."""
        days, ended_at = self._settings.keep_days, task.run.ended_at
        if days is None or ended_at is None or not task.has_ended:
            return None
        return int(ended_at + days * DAY_MS - task.row.created_at)


def _read_task(session: Session, run: RunRow, row: TaskRow) -> Task:
    newest = tasks.newest_step_at(session, run) if row.ended_at is None else row.ended_at
    return Task(run, row, max(row.created_at, newest or 0))
