"""Perform the steps of a run whose rows are committed: in tasks side by side, or in the worker's own task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import TimeoutError as StillWaiting
from dataclasses import field

from kairos_mcp.core.errors import FenceLost, NotMarked, StoreBusy
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import SERVER_ROUTE
from kairos_mcp.core.steps import Failure
from kairos_mcp.core.tool import ToolMemory
from kairos_mcp.execution.pending_step import PendingStep, is_outage, outage_ms, retry_delay_s
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.execution.tool_calls import CHANGE_GRACE_S
from kairos_mcp.store import tool_intents
from kairos_mcp.store.commit import StepResult
from kairos_mcp.store.database import Store

MEMORY_TIMEOUT_S = 30  # a note takes milliseconds to commit; so no tool waits for ever for a loop that has ended


@dataclass(slots=True)
class RunningSteps:
    """The steps of one run that are performed now; their answers go to `state`.

    `nudge` is set whenever there may be something new for the run's worker. `on_change` is called when a step is to
    wait for its next attempt.
    """

    store: Store
    state: RunState
    clock: Callable[[], int]
    on_change: Callable[[], None]
    nudge: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # by path
    _group: asyncio.TaskGroup = field(init=False)
    _worker: asyncio.Task[object] | None = None
    _is_inline: bool = False  # a step is performed in the worker's task itself
    _is_interrupted: bool = False

    def open(self, group: asyncio.TaskGroup) -> None:
        """Perform steps in tasks of this group, or in the current task, from now on."""
        self._group, self._worker = group, asyncio.current_task()
        self.tasks.clear()  # a bug may have ended the group before; its tasks have ended with it

    def begin(self) -> Awaitable[None] | None:
        """Begin the steps that may begin, beside those under way. Return what is to be awaited; None where an answer is
        there already.

        Raises FenceLost.
        """
        # A step is a task beside one that waits for somebody, or where an answer came while the commit was written. So
        # other branches go on meanwhile.
        steps, self.state.startable = self.state.startable, []
        is_alone = len(steps) == 1 and not self.tasks and len(self.state.pending) == 1 and not self.state.finished
        for path, step in steps:
            performed = self._begin(path, step)
            if isinstance(performed, StepResult) and not isinstance(performed.answer, Failure):
                self.state.finish_step(path, performed, step.sent.route or SERVER_ROUTE)
            elif is_alone:
                return self._await_inline(path, step, performed)
            else:
                self.tasks[path] = self._group.create_task(self._perform_in_task(path, step, performed))
        return None if self.state.finished else self._await_nudge()

    def interrupt(self) -> None:
        """Stop the step that is performed in the worker's task."""
        if self._is_inline and self._worker is not None and not self._is_interrupted:
            # Only once: a tool that finishes a change of files after the first interrupt must not be cut short.
            self._is_interrupted = True
            self._worker.cancel()

    async def finish(self) -> None:
        """Wait for the steps under way: they are paid for, and their answers are committed later."""
        if self.tasks:
            await asyncio.wait(self.tasks.values())

    async def cancel(self) -> None:
        """Cancel the steps under way, and wait until a tool that is changing files has ended the change."""
        self.cancel_soon()
        if self.tasks:
            await asyncio.wait(list(self.tasks.values()), timeout=CHANGE_GRACE_S)

    def cancel_soon(self) -> None:
        """Cancel the steps under way without waiting for their end."""
        for task in self.tasks.values():
            task.cancel()

    def _begin(self, path: str, step: PendingStep) -> StepResult | Awaitable[StepResult]:
        if not self.store.may_act:
            raise FenceLost(self.state.run.id)  # another server may have taken the run, and begun this step again
        executor, reservation = self.state.executor, step.take_reservation()
        is_alone = self.store.writer.has_one_run and len(self.state.pending) == 1
        return executor.perform(path, step.step, step.sent, reservation, step.approved_base, is_alone=is_alone)

    async def _await_nudge(self) -> None:
        await self.nudge.wait()
        self.nudge.clear()

    async def _await_inline(self, path: str, step: PendingStep, performed: StepResult | Awaitable[StepResult]) -> None:
        """Await the only step there is in the worker's own task: another task costs more than a commit."""
        self._is_inline = True
        try:
            await self._perform(path, step, performed)
        except asyncio.CancelledError:
            if not self._is_interrupted or self._worker is None:
                raise
            self._is_interrupted = False
            self._worker.uncancel()
        finally:
            self._is_inline = False

    async def _perform_in_task(
        self, path: str, step: PendingStep, performed: StepResult | Awaitable[StepResult]
    ) -> None:
        await self._perform(path, step, performed)
        self.nudge.set()

    async def _perform(self, path: str, step: PendingStep, performed: StepResult | Awaitable[StepResult]) -> None:
        """Await one attempt, and the pause after it where another one follows."""
        try:
            result = performed if isinstance(performed, StepResult) else await performed
        except NotMarked:  # the rows say that it never left: once they can be written, it is begun again
            self.tasks.pop(path, None)
            self.state.fits_rows = False
            return
        backs_off = is_outage(step, result, self.state.executor.paid_models)
        delay_s = None if backs_off else retry_delay_s(step, result)
        if delay_s is not None or backs_off:
            step.failed_result = result  # a cancel during the pause charges what this attempt cost
        if backs_off:
            step.retry_at = self.clock() + outage_ms(step, result)
        if delay_s:
            step.retry_at = self.clock() + int(delay_s * 1000)
            self.on_change()  # who waits for the run is shown when the next attempt begins
            await asyncio.sleep(delay_s)
        self.tasks.pop(path, None)
        route = step.sent.route or SERVER_ROUTE
        if delay_s is not None or backs_off:
            self.state.record_failure(path, step, result, backs_off=backs_off)
        elif not self.state.fits_rows:
            # The state was given up while the step ran. Its answer is paid for: the next rebuild feeds it to the flow.
            self.state.finished.append(step.with_result(path, result, route))
        else:
            self.state.finish_step(path, result, route)


def memory_in_rows(store: Store, state: RunState, owner: int, fence: int) -> ToolMemory:
    """Return the memory of a run's tools, which is kept in rows. A change of files stores there what a recovery needs.

    Tools use it from their threads, through the event loop that owns the writer. Once this server does not own the run,
    `keep` and `check_owner` raise FenceLost.
    """
    loop, run, run_id = asyncio.get_running_loop(), state.run.n, state.run.id

    def keep(name: str, text: str) -> None:
        state.has_notes_of_tools = True

        async def commit() -> None:
            await store.submit(
                lambda session: tool_intents.keep_text(session, run, run_id, owner, fence, name, text), of_run=run
            )

        waiting = asyncio.run_coroutine_threadsafe(commit(), loop)
        try:
            waiting.result(MEMORY_TIMEOUT_S)
        except StillWaiting:
            waiting.cancel()
            raise StoreBusy("The store did not take a tool's note in time.", "Try again.") from None

    def recall(name: str) -> str | None:
        with store.read_session() as session:
            return tool_intents.recall(session, run, name)

    def check() -> None:
        with store.read_session() as session:
            tool_intents.check_owner(session, run, run_id, owner, fence)

    return ToolMemory(keep, recall, check, state.executor.tool_caller.redactor)
