"""Call tools in worker threads, where they may block: preview a call, make it, see what became of one after a crash."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import field, replace
from functools import partial

from kairos_mcp.budget.reservation import Reservation
from kairos_mcp.core import redact_values
from kairos_mcp.core.effects import REPEATABLE_EFFECTS, Effect
from kairos_mcp.core.errors import KairosError, OutcomeUnknown, Timeout, ToolNotOffered
from kairos_mcp.core.file_changes import changed_files, mark_foreign
from kairos_mcp.core.limits import Units
from kairos_mcp.core.messages import JsonObject, ToolCall, ToolResult
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.steps import Answer, CallTool, task_of
from kairos_mcp.core.tool import NO_MEMORY, Drafts, ProbeResult, StopSignal, Tool, ToolContext, ToolMemory, error_result
from kairos_mcp.execution.accounting import elapsed_ms
from kairos_mcp.execution.authorization import ApprovalContext, authorize
from kairos_mcp.execution.flow_view import FlowView
from kairos_mcp.execution.sibling_changes import SiblingChanges
from kairos_mcp.execution.tool_access import ToolAccess
from kairos_mcp.execution.tool_calls import CHANGE_GRACE_S, Allowed, Authorization
from kairos_mcp.execution.worker_threads import WorkerThreads
from kairos_mcp.gate import Gate
from kairos_mcp.store.approvals import ApprovalRequest, BaseHashes, ReusedApproval
from kairos_mcp.store.commit import StepResult
from kairos_mcp.store.queries import StepRow
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.results import server_failures, shorten
from kairos_mcp.tools.tool import call_redacted, call_redacted_at_once, probe_call

PREVIEW_TIMEOUT_S = 30.0  # the longest a preview may take
RESULT_GRACE_S = 0.5  # how long after its deadline a call may still say itself how it ended


@dataclass(frozen=True, slots=True)
class Resources:
    """What a server uses to call tools.

    `shown_chars`: how much of a result a model is shown. `approval_ms`: how long a person has to decide about a call.
    `has_sandbox`: programs run in one. `read_key`: returns the store's key.
    """

    registry: ToolRegistry
    gate: Gate
    workers: WorkerThreads
    shown_chars: int
    redactor: Redactor
    workspace: str | None = None
    approval_ms: int = 72 * 3_600_000
    has_sandbox: bool = True
    read_key: Callable[[], bytes] = bytes


ShortenedResult = tuple[ToolResult, str | None]  # as `shorten` returns it


def _call_shortened(
    redactor: Redactor, tool: Tool, arguments: JsonObject, ctx: ToolContext, shown_chars: int, flow: FlowView | None
) -> ShortenedResult:
    """Call the tool, and shorten its result in the same thread, since a long one takes time to look through."""
    return shorten(_mark_foreign(call_redacted(redactor, tool, arguments, ctx), ctx, flow), shown_chars, ctx.path)


def _mark_foreign(result: ToolResult, ctx: ToolContext, flow: FlowView | None) -> ToolResult:
    """Say of the files that a call wrote which hold texts of others."""
    return mark_foreign(result, flow.find_sources(ctx.path, ctx.written)) if ctx.written and flow else result


@dataclass(slots=True)
class ToolCaller:
    """Calls the tools of one run.

    `read_text` reads a stored text by its reference. `find_approval` finds an earlier approval that covers a question
    at this path. `flow_view`: what is in view of each call. `memory`: the run's, while a worker drives the run.
    `late_results`: results, by path, of calls that were cancelled while they changed files.
    """

    run_id: str
    tool_access: ToolAccess
    resources: Resources
    read_text: Callable[[str], str | None]
    find_approval: Callable[[str, ApprovalRequest], Awaitable[ReusedApproval | None]] | None = None
    flow_view: FlowView | None = None
    memory: ToolMemory = NO_MEMORY
    sibling_changes: SiblingChanges = field(default_factory=SiblingChanges)
    late_results: dict[str, StepResult] = field(default_factory=dict)

    @property
    def redactor(self) -> Redactor:
        return self.resources.redactor

    @property
    def _watching_view(self) -> FlowView | None:
        """What is in view of each call; None where the settings look at no flow."""
        return None if self.tool_access.flow.mode == "off" else self.flow_view

    def _local_step(self, step: CallTool) -> CallTool:
        call = self.tool_access.local_call(step.call)
        return step if call is step.call else replace(step, call=call)

    async def authorize(
        self, path: str, step: CallTool, behind: Sequence[tuple[str, CallTool]]
    ) -> dict[str, Authorization]:
        """Decide whether the call may be made: allowed, its result without being made, or what to ask a person.

        Where a person is asked, they are asked about the calls `behind` it too, each as those before it would leave the
        files. What can't be asked now is judged in its turn.
        """
        drafts: Drafts = {}
        found = {path: await self._authorize(path, step, drafts)}
        for later, call in behind if isinstance(found[path], ApprovalRequest) else ():
            if isinstance(asked := await self._authorize(later, call, drafts), ApprovalRequest):
                found[later] = asked
        return found

    async def _authorize(self, path: str, step: CallTool, drafts: Drafts) -> Authorization:
        """`drafts`: what files hold once the calls before this one were made; what it changes is added."""
        step = self._local_step(step)
        tool = self.tool_access.find_tool(step.call.name)
        spec = self.tool_access.find_offered(path, step.call.name)
        tool = None if spec is not None and spec.is_caller_tool else tool
        ctx = ToolContext(
            *(self.run_id, time.monotonic() + PREVIEW_TIMEOUT_S, self.read_text, path, self.memory), drafts=dict(drafts)
        )
        call, made = self.tool_access.gate_call(path, step), self.resources
        approval = ApprovalContext(made.workspace, made.redactor, made.approval_ms, made.has_sandbox)
        try:
            stale = self.sibling_changes.refusal(path, step.call)
            flow = self._watching_view
            judge = partial(authorize, stage=self.tool_access.stage, find_spec=self.tool_access.find_spec)
            found = await self.resources.workers.call(
                PREVIEW_TIMEOUT_S, judge, made.gate, call, tool, ctx, approval, stale, flow
            )
        except TimeoutError:
            return error_result(Timeout(f"{step.call.name} could not be previewed in time.", "Ask for less at once."))
        if not isinstance(found, ToolResult):
            drafts.update(ctx.drafts)
        if not isinstance(found, ApprovalRequest) or self.find_approval is None:
            return found
        reused = await self.find_approval(path, found)
        return found if reused is None else Allowed(reused)

    def take_judgement(self, path: str) -> str | None:
        """Return how the call at this path was judged by what it takes along, to be stored; None: it was not."""
        return None if self.flow_view is None else self.flow_view.take_judgement(path)

    def restore_changes(self, calls: Iterable[tuple[StepRow, CallTool]]) -> None:
        """Take over what the calls of a team's tasks did to files, from the record."""
        self.sibling_changes.rebuild((row, self._local_step(step)) for row, step in calls)

    def record_change(self, path: str, call: ToolCall, answer: Answer) -> None:
        """Remember what a call of a team's task did to files."""
        self.sibling_changes.end(path, self.tool_access.local_call(call), answer)

    def can_probe(self, step: CallTool) -> bool:
        """Whether the tool can find out what became of this call in a crash, and end it or clean up after it."""
        tool = self.tool_access.find_tool(step.call.name)
        return tool is not None and (tool.probe is not None or self._effect_of(step) in ("keyed", "irreversible"))

    def _effect_of(self, step: CallTool) -> Effect | None:
        """The effect with which this run calls the tool, whatever is configured by now."""
        spec = self.tool_access.find_spec(step.call.name)
        return None if spec is None else spec.effect

    def _key_of(self, path: str) -> str:
        """The key of the call at this path: the same for each attempt at it, and for no other call."""
        return hmac.digest(self.resources.read_key(), f"call {self.run_id} {path}".encode(), "sha256").hex()

    async def probe(self, path: str, step: CallTool, base: BaseHashes | None, begun_ms_ago: int) -> ProbeResult:
        """Have the tool find out whether a call of unknown outcome was carried out, and finish or undo its change.

        `unclear`: a person has to decide.
        """
        step = self._local_step(step)
        tool, effect = self.tool_access.find_tool(step.call.name), self._effect_of(step)
        assert tool is not None
        deadline = time.monotonic() + PREVIEW_TIMEOUT_S
        ctx = ToolContext(
            *(self.run_id, deadline, self.read_text, path, self.memory, base or {}), begun_s_ago=begun_ms_ago / 1000
        )
        probe = partial(probe_call, tool, step.call.arguments, ctx, effect)
        try:
            found = await self.resources.workers.call(PREVIEW_TIMEOUT_S, probe)
        except TimeoutError:
            return ProbeResult("unclear")
        if found.result is None:
            return found
        flow = self._watching_view
        found_result = await self.resources.workers.call(PREVIEW_TIMEOUT_S, _mark_foreign, found.result, ctx, flow)
        redacted = redact_values.redact_result(found_result, self.resources.redactor)
        return ProbeResult(found.state, shorten(redacted, self.resources.shown_chars, path)[0])

    def call(
        self, path: str, step: CallTool, reservation: Reservation, base: BaseHashes | None, is_alone: bool
    ) -> StepResult | Awaitable[StepResult]:
        """Make the call: return its result, or what has to be awaited for it. Every failure is a result.

        `base`: the files as they were when a person was asked for the approval. `is_alone`: no other run moves, and no
        other step of this one.
        """
        began, step = time.monotonic(), self._local_step(step)
        if task_of(path):
            if self.sibling_changes.may_change(path, step.call):
                return self._call_beside_others(path, step, reservation, began, base, is_alone)
            self.sibling_changes.begin(path, step.call)
        return self._call(path, step, reservation, began, base, is_alone)

    async def _call_beside_others(
        self,
        path: str,
        step: CallTool,
        reservation: Reservation,
        began: float,
        base: BaseHashes | None,
        is_alone: bool,
    ) -> StepResult:
        """Call the tool for a task, once no other task is changing the same files.

        The call is refused if another task has changed them and this one has not seen that: it may have happened while
        the call waited for a person.
        """
        self.sibling_changes.begin(path, step.call)
        async with self.sibling_changes.changing(path, step.call):
            if (refused := self.sibling_changes.refusal(path, step.call)) is not None:
                return self._call_result(path, step, refused, elapsed_ms(began, reservation))
            called = self._call(path, step, reservation, began, base, is_alone)
            return called if isinstance(called, StepResult) else await called

    def _call(
        self,
        path: str,
        step: CallTool,
        reservation: Reservation,
        began: float,
        base: BaseHashes | None,
        is_alone: bool,
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
            *(self.run_id, began + seconds, self.read_text, path, self.memory, base or {}, stop, hidden, check),
            self.resources.redactor.find_parted,
            key="" if tool.spec.effect == "read" else self._key_of(path),
            is_marked=self._effect_of(step) == "irreversible",
        )
        if (result := call_redacted_at_once(self.resources.redactor, tool, step.call.arguments, ctx)) is not None:
            return self._call_result(path, step, result, elapsed_ms(began, reservation))
        workers, shown_chars = self.resources.workers, self.resources.shown_chars
        flow = self._watching_view
        work = partial(_call_shortened, self.resources.redactor, tool, step.call.arguments, ctx, shown_chars, flow)
        if tool.spec.effect != "read":  # it may wait for this loop, to keep what it changes
            grace_s = CHANGE_GRACE_S if tool.spec.effect == "checked" else RESULT_GRACE_S
            calling = workers.call(seconds + grace_s, work)
        elif is_alone:
            calling = workers.call_in_place(seconds + RESULT_GRACE_S, work)
        else:
            calling = workers.call_together(seconds + RESULT_GRACE_S, work)
        if calling.done():
            return self._shown_result(step, calling.result(), elapsed_ms(began, reservation))
        return self._await_call(path, step, tool, calling, reservation, began, stop)

    async def _await_call(
        self,
        path: str,
        step: CallTool,
        tool: Tool,
        calling: asyncio.Future[ShortenedResult],
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
            timeout = error_result(_timeout_error(tool, seconds))
            return self._call_result(path, step, timeout, elapsed_ms(began, reservation))
        except asyncio.CancelledError:
            stop.set()
            if changes_files and (late := await _result_after_stop(calling)) is not None:
                self.late_results[path] = self._shown_result(step, late, elapsed_ms(began, reservation))
            raise
        return self._shown_result(step, result, elapsed_ms(began, reservation))

    def _call_result(self, path: str, step: CallTool, result: ToolResult, took_ms: int) -> StepResult:
        """A call's result as the model is shown it, of a call that no thread made."""
        return self._shown_result(step, shorten(result, self.resources.shown_chars, path), took_ms)

    def _shown_result(self, step: CallTool, shortened: ShortenedResult, took_ms: int) -> StepResult:
        """A call's result as the model is shown it, with the full text where that must be stored."""
        shown, full_text = shortened
        stored = (shown.kept, full_text) if shown.kept is not None and full_text is not None else None
        notes = server_failures(self.tool_access.find_spec(step.call.name), shown)
        spent, foreign = Units(tool_calls=1, milliseconds=took_ms), self.foreign_files(step, shown)
        return StepResult(shown, spent, text=stored, notes=notes, foreign_files=foreign)

    def foreign_files(self, step: CallTool, result: ToolResult) -> tuple[str, ...]:
        """Return the files of the workspace that one of our own tools wrote from texts of others."""
        spec = self.tool_access.find_spec(step.call.name)
        if spec is None or spec.source != "builtin" or spec.effect == "read":
            return ()
        return tuple(each.path for each in changed_files(result) if each.foreign is not None)


async def _stop_after(calling: asyncio.Future[ShortenedResult], seconds: float, stop: StopSignal) -> ShortenedResult:
    """Wait for a call in a thread, and ask it to stop after `seconds`: a thread can't be stopped otherwise.

    A change of files stops between two files and undoes what it did; within one file it soon finishes. Cancelling this
    leaves the call running: see `_result_after_stop`.
    """
    alarm = asyncio.get_running_loop().call_later(seconds, stop.set)
    try:
        return await asyncio.shield(calling)
    finally:
        alarm.cancel()


async def _result_after_stop(calling: asyncio.Future[ShortenedResult]) -> ShortenedResult | None:
    """The result of a call that was asked to stop; None where it has not ended within the grace time."""
    await asyncio.wait([calling], timeout=CHANGE_GRACE_S)
    return calling.result() if calling.done() and calling.exception() is None else None


def _timeout_error(tool: Tool, seconds: float) -> KairosError:
    """The error of a call that gave no result by its deadline."""
    late = f"{tool.spec.name} took longer than {seconds:g} s"
    if tool.spec.effect in REPEATABLE_EFFECTS:
        return Timeout(f"{late}.", "Ask for less at once.")
    return OutcomeUnknown(
        f"{late} and was given up: whether it was carried out is not known.",
        "Don't repeat it before you have looked whether it took effect.",
    )
