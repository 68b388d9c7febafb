"""Call tools in worker threads, where they may block: preview a call, make it, see what became of one after a crash.

The event loop does all bookkeeping; a thread only runs what it is given. Each thread has its own queue, and the one
that became idle last gets the next call, since its caches are warm. With that, and with asyncio's futures alone, a call
costs half of what it costs in a standard thread pool.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar, TypeVarTuple

from kairos_mcp.budget.reservation import Reservation
from kairos_mcp.core import redact_values
from kairos_mcp.core.errors import KairosError, OutcomeUnknown, Timeout, ToolNotOffered
from kairos_mcp.core.limits import Units
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.steps import CallTool, task_of
from kairos_mcp.execution.authorization import Allowed, ApprovalContext, Authorization, ToolAccess, authorize
from kairos_mcp.execution.sibling_changes import SiblingChanges
from kairos_mcp.gate import Gate
from kairos_mcp.store.approvals import ApprovalRequest, BaseHashes, ReusedApproval
from kairos_mcp.store.commit import StepResult
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.results import server_failures, shorten
from kairos_mcp.tools.tool import (
    ProbeResult,
    StopSignal,
    Tool,
    ToolContext,
    ToolMemory,
    call_redacted,
    error_result,
    probe_call,
)

A = TypeVarTuple("A")
T = TypeVar("T")


@dataclass(slots=True)
class _ThreadJob:
    """A call to run in a thread, the future of its result, and the timer of its timeout.

    `ended` is held until the function has ended, where the caller waits for that in place; None once it does not.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]
    timer: asyncio.TimerHandle | None = None
    ended: threading.Lock | None = None
    value: Any = None
    error: BaseException | None = None
    is_finished: bool = False


class WorkerThreads:
    """At most so many threads, started as they are needed. Used from one event loop."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._queues: list[SimpleQueue[_ThreadJob | None]] = []
        self._idle: list[SimpleQueue[_ThreadJob | None]] = []  # the last one is the warmest
        self._backlog: deque[_ThreadJob] = deque()

    def call(
        self, timeout_s: float, function: Callable[[*A], T], *arguments: *A, in_place_s: float = 0
    ) -> asyncio.Future[T]:
        """Run a function in a thread. The future has its result, or TimeoutError after `timeout_s` seconds, which
        include waiting for a thread.

        `in_place_s`: wait so long for the result before returning. A short call then costs a third, since the event
        loop need not be woken. The thread itself can't be stopped: a function that should end early has to be told by
        other means.
        """
        loop = asyncio.get_running_loop()
        job = _ThreadJob(function, arguments, loop, loop.create_future())
        if in_place_s and self._idle:
            queue = self._idle.pop()
            if self._ends_in_place(queue, job, in_place_s):
                self._finish_job(queue, job)
                return job.done
        elif self._idle:
            self._idle.pop().put(job)
        elif len(self._queues) < self._max_threads:
            self._start_thread().put(job)
        else:
            self._backlog.append(job)
        job.timer = loop.call_later(timeout_s, _set_timeout, job.done)
        return job.done

    def close(self) -> None:
        """Start nothing more. What is running ends by itself; its daemon thread does not keep the process alive."""
        for job in self._backlog:
            job.done.cancel()
        self._backlog.clear()
        for queue in self._queues:
            queue.put(None)

    def _start_thread(self) -> SimpleQueue[_ThreadJob | None]:
        queue: SimpleQueue[_ThreadJob | None] = SimpleQueue()
        self._queues.append(queue)
        name = f"{self._name}-{len(self._queues)}"
        threading.Thread(target=self._run_jobs, args=(queue,), name=name, daemon=True).start()
        return queue

    def _ends_in_place(self, queue: SimpleQueue[_ThreadJob | None], job: _ThreadJob, within_s: float) -> bool:
        """Give the thread of this queue the job and wait for it; return whether it ended within the time."""
        ended = job.ended = threading.Lock()
        ended.acquire()
        queue.put(job)
        if ended.acquire(timeout=within_s):
            return True
        job.ended = None  # from here on the thread reports to the event loop, if it has not ended just now
        return ended.acquire(blocking=False)

    def _run_jobs(self, queue: SimpleQueue[_ThreadJob | None]) -> None:
        """Run one job after another, in a worker thread, until it is told to end."""
        while (job := queue.get()) is not None:
            try:
                job.value = job.function(*job.arguments)
            except BaseException as raised:  # every failure has to reach the waiting caller
                job.error = raised
            ended = job.ended
            if ended is not None:
                ended.release()
            if job.ended is None:
                try:
                    job.loop.call_soon_threadsafe(self._finish_job, queue, job)
                except RuntimeError:
                    return  # the loop is closed: nobody waits any more
            del job, ended  # an idle thread keeps nothing alive

    def _finish_job(self, queue: SimpleQueue[_ThreadJob | None], job: _ThreadJob) -> None:
        """Hand over the result, once: the thread and the caller who waits in place may both have found the end."""
        if job.is_finished:
            return
        job.is_finished = True
        if job.timer is not None:
            job.timer.cancel()
        if not job.done.done():
            if job.error is None:
                job.done.set_result(job.value)
            else:
                job.done.set_exception(job.error)
        while self._backlog:
            waiting = self._backlog.popleft()
            if not waiting.done.done():  # else its time is over, or nobody wants it any more
                queue.put(waiting)
                return
        self._idle.append(queue)


def _set_timeout(done: asyncio.Future[Any]) -> None:
    if not done.done():
        done.set_exception(TimeoutError())


PREVIEW_TIMEOUT_S = 30.0  # the longest a preview may take
RESULT_GRACE_S = 0.5  # after its deadline, a call is waited for so long: it knows best how it ended
CHANGE_GRACE_S = 5.0  # for a call that changes files: one is written and synced within it, also on a slow disk


@dataclass(frozen=True, slots=True)
class Resources:
    """What a server performs steps with.

    `shown_chars`: how much of a result a model is shown. `approval_ms`: how long a person has to decide about a call.
    `has_sandbox`: programs run in one.
    """

    registry: ToolRegistry
    gate: Gate
    workers: WorkerThreads
    shown_chars: int
    redactor: Redactor
    workspace: str | None = None
    approval_ms: int = 72 * 3_600_000
    has_sandbox: bool = True

    @property
    def approval_context(self) -> ApprovalContext:
        return ApprovalContext(self.workspace, self.redactor, self.approval_ms, self.has_sandbox)


def _refuse_note(*_given: str) -> NoReturn:
    raise RuntimeError("no tool is called of a run at rest")


NO_MEMORY = ToolMemory(_refuse_note, _refuse_note, _refuse_note)


@dataclass(slots=True)
class ToolCaller:
    """Calls the tools of one run.

    `read_text` reads a stored text by its reference. `find_approval`: an approval that was given before, if it holds
    for what would be asked at this path. `memory`: that of the run while it moves. `late_results`: of calls that were
    cancelled in the middle of a change of files.
    """

    run_id: str
    tool_access: ToolAccess
    resources: Resources
    read_text: Callable[[str], str | None]
    find_approval: Callable[[str, ApprovalRequest], Awaitable[ReusedApproval | None]] | None = None
    memory: ToolMemory = NO_MEMORY
    sibling_changes: SiblingChanges = field(default_factory=SiblingChanges)
    late_results: dict[str, StepResult] = field(default_factory=dict)

    async def authorize(self, path: str, step: CallTool) -> Authorization:
        """Decide whether the call may be made: allowed, its result without being made, or what to ask a person."""
        tool = self.resources.registry.find(step.call.name)
        spec = self.tool_access.find_offered(path, step.call.name)
        tool = None if spec is not None and spec.source == "caller" else tool
        ctx = ToolContext(self.run_id, time.monotonic() + PREVIEW_TIMEOUT_S, self.read_text, path, self.memory)
        call, gate, approval = (
            self.tool_access.gate_call(path, step),
            self.resources.gate,
            self.resources.approval_context,
        )
        try:
            stale = self.sibling_changes.refusal(path, step.call)
            found = await self.resources.workers.call(
                PREVIEW_TIMEOUT_S, authorize, gate, call, tool, ctx, approval, stale
            )
        except TimeoutError:
            return error_result(Timeout(f"{step.call.name} could not be previewed in time.", "Ask for less at once."))
        if not isinstance(found, ApprovalRequest) or self.find_approval is None:
            return found
        reused = await self.find_approval(path, found)
        return found if reused is None else Allowed(reused)

    def can_probe(self, step: CallTool) -> bool:
        """Whether the tool can find out what became of this call in a crash, and end it."""
        tool = self.tool_access.find_tool(step.call.name)
        return tool is not None and tool.spec.effect == "checked" and tool.probe is not None

    async def probe(self, path: str, step: CallTool, base: BaseHashes | None) -> ProbeResult:
        """Have the tool find out whether a call of unknown outcome was carried out; it finishes what was half done, or
        undoes it. `unclear` is for a person."""
        tool = self.tool_access.find_tool(step.call.name)
        assert tool is not None
        deadline = time.monotonic() + PREVIEW_TIMEOUT_S
        ctx = ToolContext(self.run_id, deadline, self.read_text, path, self.memory, base or {})
        try:
            found = await self.resources.workers.call(PREVIEW_TIMEOUT_S, probe_call, tool, step.call.arguments, ctx)
        except TimeoutError:
            return ProbeResult("unclear")
        if found.result is None:
            return found
        redacted = redact_values.redact_result(found.result, self.resources.redactor)
        return ProbeResult(found.state, shorten(redacted, self.resources.shown_chars, path)[0])

    def call(
        self, path: str, step: CallTool, reservation: Reservation, base: BaseHashes | None, in_place_s: float
    ) -> StepResult | Awaitable[StepResult]:
        """Make the call: return its result, or what has to be awaited for it. Every failure is a result.

        `base`: the files as they were when a person was asked for the approval. `in_place_s`: so many seconds a tool
        that only reads may take before others have the event loop.
        """
        began = time.monotonic()
        if task_of(path):
            if self.sibling_changes.may_change(path, step.call):
                return self._call_beside_others(path, step, reservation, began, base, in_place_s)
            self.sibling_changes.begin(path, step.call)
        return self._call(path, step, reservation, began, base, in_place_s)

    async def _call_beside_others(
        self,
        path: str,
        step: CallTool,
        reservation: Reservation,
        began: float,
        base: BaseHashes | None,
        in_place_s: float,
    ) -> StepResult:
        """Call the tool for a task: once other tasks have ended what they change in the same files, and not if this
        one has not seen it. They may have changed them while the call waited for a person."""
        self.sibling_changes.begin(path, step.call)
        async with self.sibling_changes.changing(path, step.call):
            if (refused := self.sibling_changes.refusal(path, step.call)) is not None:
                return self._call_result(path, step, refused, elapsed_ms(began, reservation))
            called = self._call(path, step, reservation, began, base, in_place_s)
            return called if isinstance(called, StepResult) else await called

    def _call(
        self,
        path: str,
        step: CallTool,
        reservation: Reservation,
        began: float,
        base: BaseHashes | None,
        in_place_s: float,
    ) -> StepResult | Awaitable[StepResult]:
        tool = self.tool_access.find_tool(step.call.name)
        if tool is None:  # it was removed after the call was authorized: nothing was done
            gone = ToolNotOffered(f"{step.call.name} is not there any more.", "Go on without it.")
            return self._call_result(path, step, error_result(gone), elapsed_ms(began, reservation))
        seconds, stop = reservation.timeout_ms / 1000, StopSignal()
        hidden, gate, check = self.tool_access.hidden_filter(path, step), self.resources.gate, None
        if gate.reads_file_system(tool.spec):
            check = partial(gate.recheck, self.tool_access.gate_call(path, step), base)
        ctx = ToolContext(
            self.run_id, began + seconds, self.read_text, path, self.memory, base or {}, stop, hidden, check
        )
        if tool.in_memory:
            result = call_redacted(self.resources.redactor, tool, step.call.arguments, ctx)
            return self._call_result(path, step, result, elapsed_ms(began, reservation))
        calling = self.resources.workers.call(
            seconds + (CHANGE_GRACE_S if tool.spec.effect == "checked" else RESULT_GRACE_S),
            call_redacted,
            self.resources.redactor,
            tool,
            step.call.arguments,
            ctx,
            # Tools that change something may wait for this loop, to keep what they change.
            in_place_s=in_place_s if tool.spec.effect == "read" else 0,
        )
        if calling.done():
            return self._call_result(path, step, calling.result(), elapsed_ms(began, reservation))
        return self._await_call(path, step, tool, calling, reservation, began, stop)

    async def _await_call(
        self,
        path: str,
        step: CallTool,
        tool: Tool,
        calling: asyncio.Future[ToolResult],
        reservation: Reservation,
        began: float,
        stop: StopSignal,
    ) -> StepResult:
        """Wait for a call in a thread, as long as it may take.

        A tool that changes files is not cut short within a change, neither by its deadline nor by a cancellation, so
        that the record says of each file what became of it.
        """
        seconds, changes_files = reservation.timeout_ms / 1000, tool.spec.effect == "checked"
        try:
            result = await (_stop_after(calling, seconds, stop) if changes_files else calling)
        except TimeoutError:
            stop.set()
            result = error_result(_timeout_error(tool, seconds))
        except asyncio.CancelledError:
            stop.set()
            if changes_files and (late := await _result_after_stop(calling)) is not None:
                self.late_results[path] = self._call_result(path, step, late, elapsed_ms(began, reservation))
            raise
        return self._call_result(path, step, result, elapsed_ms(began, reservation))

    def _call_result(self, path: str, step: CallTool, result: ToolResult, took_ms: int) -> StepResult:
        """A call's result as the model is shown it, with the full text where that must be stored."""
        shown, full_text = shorten(result, self.resources.shown_chars, path)
        stored = (shown.kept, full_text) if shown.kept is not None and full_text is not None else None
        notes = server_failures(self.tool_access.find_spec(step.call.name), shown)
        return StepResult(shown, Units(tool_calls=1, milliseconds=took_ms), text=stored, notes=notes)


async def _stop_after(calling: asyncio.Future[ToolResult], seconds: float, stop: StopSignal) -> ToolResult:
    """Wait for a call in a thread, which can only be asked to stop: it is, after so many seconds.

    Between two files it heeds that and undoes what it did; within one it has soon finished. A cancellation here leaves
    the call running: see `_result_after_stop`.
    """
    alarm = asyncio.get_running_loop().call_later(seconds, stop.set)
    try:
        return await asyncio.shield(calling)
    finally:
        alarm.cancel()


async def _result_after_stop(calling: asyncio.Future[ToolResult]) -> ToolResult | None:
    """The result of a call that was asked to stop; None where it has not ended within the grace time."""
    await asyncio.wait([calling], timeout=CHANGE_GRACE_S)
    return calling.result() if calling.done() and calling.exception() is None else None


def _timeout_error(tool: Tool, seconds: float) -> KairosError:
    """The error of a call that gave no result by its deadline."""
    late = f"{tool.spec.name} took longer than {seconds:g} s"
    if tool.spec.effect in ("read", "idempotent"):
        return Timeout(f"{late}.", "Ask for less at once.")
    return OutcomeUnknown(
        f"{late} and was given up: whether it was carried out is not known.",
        "Don't repeat it before you have looked whether it took effect.",
    )


def elapsed_ms(began: float, reservation: Reservation) -> int:
    """Milliseconds since `began`, at most what was reserved."""
    return min(int((time.monotonic() - began) * 1000), reservation.timeout_ms)
