"""Plan one step of a run for its row, then perform it: ask the model, or call the tool, within its reservation."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from kairos_mcp.budget.reservation import Reservation, ReservationRequest
from kairos_mcp.budget.units import FREE, NOTHING, Price, Units, counts_of
from kairos_mcp.core import redact_values
from kairos_mcp.core.errors import KairosError, OutcomeUnknown, Timeout, ToolNotOffered
from kairos_mcp.core.limits import BranchShare
from kairos_mcp.core.messages import Completion, ToolResult
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.routes import SERVER_ROUTE
from kairos_mcp.core.step_path import task_of
from kairos_mcp.core.steps import (
    Answer,
    CallTool,
    DialectName,
    Failure,
    Mechanical,
    Pause,
    RequestCompletion,
    Sent,
    Step,
)
from kairos_mcp.execution.accounting import InputEstimator, completion_result, drop_impossible_usage
from kairos_mcp.execution.authorization import Allowed, ApprovalContext, Authorization, ToolAccess, authorize
from kairos_mcp.execution.sibling_changes import SiblingChanges
from kairos_mcp.gate import Gate
from kairos_mcp.models.model import Model, ModelInput, PrivateParts
from kairos_mcp.store.approvals import ApprovalRequest, BaseHashes, ReusedApproval
from kairos_mcp.store.commit import NewStep, StepResult
from kairos_mcp.store.more_rounds import RoundsRequest
from kairos_mcp.tools.more_rounds import asks_more_rounds
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.results import server_failures, shorten
from kairos_mcp.tools.threads import WorkerThreads
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

COMPLETION_TIMEOUT_MS = 300_000
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


@dataclass(frozen=True, slots=True)
class PaidModel:
    """The model that this server pays for, and what a token of it costs at most; None: nobody knows."""

    model: str
    price: Price | None


@dataclass(frozen=True, slots=True)
class AgentModel:
    """An agent's own model: its name, and, where this server's provider completes with it, how and at what price."""

    name: str
    complete: Model | None = None
    paid: PaidModel | None = None


@dataclass(slots=True)
class StepExecutor:
    """Performs the steps of one run.

    `models` maps a route to its model; a completion on a route without one is handed out. `read_text` reads a stored
    text by its reference. `paid_models`: the routes that this server pays for. `dialects`: the routes whose dialect
    does not depend on a client. `agent_models`: of agents with a model of their own. `grants_rounds`: a loop that asks
    for more rounds may get some, the run itself up to `most_rounds` in all (None: any number). `find_approval`: an
    approval that was given before, if it holds for what would be asked at this path. `late_results`: of calls that were
    cancelled in the middle of a change of files.

    A script's lines are taken in the order in which steps get their rows: `lines_used` are taken, and the steps in
    `unscripted_paths` take none.
    """

    run_id: str
    tool_access: ToolAccess
    resources: Resources
    models: Mapping[str, Model]
    model: str | None
    read_text: Callable[[str], str | None]
    unscripted_paths: frozenset[str] = frozenset()
    lines_used: int = 0
    paid_models: Mapping[str, PaidModel] = field(default_factory=dict)
    dialects: Mapping[str, DialectName] = field(default_factory=dict)
    agent_models: Mapping[str, AgentModel] = field(default_factory=dict)
    temperature: float | None = None
    grants_rounds: bool = False
    most_rounds: int | None = None
    find_approval: Callable[[str, ApprovalRequest], Awaitable[ReusedApproval | None]] | None = None
    memory: ToolMemory = field(default_factory=ToolMemory.in_process)
    sibling_changes: SiblingChanges = field(default_factory=SiblingChanges)
    _private_parts: dict[str, PrivateParts] = field(default_factory=lambda: defaultdict(PrivateParts))
    late_results: dict[str, StepResult] = field(default_factory=dict)
    _estimators: dict[tuple[str, str | None], InputEstimator] = field(
        default_factory=lambda: defaultdict(InputEstimator)
    )

    def plan(
        self, path: str, step: Step, route: str, at: int, shares: int = 1, authorization: Authorization | None = None
    ) -> NewStep:
        """Plan the step's row: begun, open, or answered at once because its result is known.

        `authorization`: of a call that had to be looked at first. `shares`: among how many steps what is left of the
        account is divided.
        """
        match step:
            case RequestCompletion():
                return self._plan_completion(path, step, route, shares)
            case CallTool():
                return self._plan_call(path, step, at, shares, authorization)
            case Pause():
                return NewStep(path, "pause", step.digest, _PAUSE_REQUEST, Sent())

    def _plan_completion(self, path: str, step: RequestCompletion, route: str, shares: int) -> NewStep:
        if step.purpose == "compact" and route == "caller":
            return NewStep(path, "compact", step.digest, _COMPACT_REQUEST, Sent(), Mechanical())
        request = self.reservation_request(path, step, route, counts_of(step.purpose), shares)
        return NewStep(path, step.purpose, step.digest, request, self.completion_sent(path, route))

    def completion_sent(self, path: str, route: str, tail: str | None = None, max_tokens: int | None = None) -> Sent:
        """What this server adds to a completion on this route; takes a script's next line."""
        agent = self.tool_access.agent_of(path)
        paid, dialect = self._paid_model(route, agent), self.dialects.get(route)
        own = self.agent_models.get(agent or "")
        hint = self.model if own is None else own.name
        model = hint if paid is None else paid.model
        line = self._next_line(path) if route == "scripted" else None
        unpriced = True if paid is not None and paid.price is None else None
        return Sent(route, model, max_tokens, tail, line, self.temperature, dialect, agent, unpriced)

    def reservation_request(
        self, path: str, step: Step, route: str, counts: Units, shares: int = 1
    ) -> ReservationRequest:
        """What to reserve for the step. `counts`: rounds and calls, which a further attempt does not count again."""
        match step:
            case RequestCompletion():
                estimator = self._estimators[_conversation_of(path), route]
                open_step = route not in self.models
                paid = self._paid_model(route, self.tool_access.agent_of(path))
                price = paid.price if paid is not None else FREE
                bound, max_tokens = estimator.bound(step), step.max_tokens
                return ReservationRequest(
                    counts, step.purpose, open_step, bound, max_tokens, COMPLETION_TIMEOUT_MS, shares, price
                )
            case CallTool():
                tool = self.tool_access.find_tool(step.call.name)
                timeout_ms = int((tool.timeout_s if tool else 60) * 1000)
                return ReservationRequest(counts, "call", timeout_ms=timeout_ms, shares=shares)
            case Pause():
                return _PAUSE_REQUEST

    def _paid_model(self, route: str, agent: str | None) -> PaidModel | None:
        """The model that this server pays for on this route, for this agent; None where it pays for none."""
        whole_run = self.paid_models.get(route)
        own = self.agent_models.get(agent or "")
        return own.paid if whole_run is not None and own is not None and own.paid is not None else whole_run

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

    def rounds_request(
        self, step: Step, share: BranchShare | None, open_branches: Iterable[str]
    ) -> RoundsRequest | None:
        """Return what a loop asks for that wants more rounds; None for any other step.

        `share`: what the branch around the loop gets, if one has limits of its own. `open_branches`: the paths of all
        such branches.
        """
        if not isinstance(step, CallTool) or not asks_more_rounds(self.tool_access.find_spec(step.call.name)):
            return None
        refusal = None if self.grants_rounds else "whoever started this run limited its rounds"
        asked = step.call.arguments.get("additional", 0)
        return RoundsRequest(asked, refusal, self.most_rounds, share, tuple(open_branches))

    def can_probe(self, step: CallTool) -> bool:
        """Whether the tool can tell if this call was carried out before a crash."""
        tool = self.tool_access.find_tool(step.call.name)
        return tool is not None and tool.spec.effect == "checked" and tool.probe is not None

    async def probe(self, path: str, step: CallTool, base: BaseHashes | None) -> ProbeResult:
        """Have the tool look whether a call of unknown outcome was carried out; `unclear` is for a person."""
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

    def _plan_call(
        self, path: str, step: CallTool, at: int, shares: int, authorization: Authorization | None
    ) -> NewStep:
        spec = self.tool_access.find_offered(path, step.call.name)
        error = self.tool_access.check_call(path, step.call, spec, at)
        if error is not None or spec is None:
            answer = error_result(error) if error is not None else None
            return NewStep(path, "call", step.digest, _OPEN_CALL_REQUEST, _SENT_NOWHERE, answer)
        if authorization is None:
            authorization = self.tool_access.authorize_planned(path, step, spec)
        sent = _SENT_TO_CALLER if spec.source == "caller" else SENT_TO_SERVER
        match authorization:
            case ToolResult():
                return NewStep(path, "call", step.digest, _OPEN_CALL_REQUEST, _SENT_NOWHERE, authorization)
            case ApprovalRequest():
                self.tool_access.record_call(spec, at)
                return NewStep(path, "call", step.digest, _OPEN_CALL_REQUEST, sent, approval_request=authorization)
            case _:
                self.tool_access.record_call(spec, at)
        reused = authorization.reused if isinstance(authorization, Allowed) else None
        if spec.source == "caller":
            return NewStep(path, "call", step.digest, _OPEN_CALL_REQUEST, sent, reused_approval=reused)
        request = self.reservation_request(path, step, SERVER_ROUTE, counts_of("call"), shares)
        return NewStep(path, "call", step.digest, request, sent, reused_approval=reused)

    def _next_line(self, path: str) -> int | None:
        if path in self.unscripted_paths:
            return None
        self.lines_used += 1
        return self.lines_used - 1

    def reset(self) -> None:
        """Forget the run, before its record is read again."""
        self.lines_used = 0
        self._estimators.clear()
        self._private_parts.clear()
        self.tool_access.reset()

    def return_line(self, line: int | None) -> None:
        """Return a script's line of a step that was refused: the next step takes it."""
        if line is not None and line == self.lines_used - 1:
            self.lines_used = line

    def restore_step(self, step: Step, sent: Sent, at: int) -> None:
        """Take over a step of the record: the script's line that it took, the call that it made."""
        if sent.line is not None:
            self.lines_used = max(self.lines_used, sent.line + 1)
        if isinstance(step, CallTool) and sent.route is not None:  # else it was answered without being made
            self.tool_access.record_call(self.tool_access.find_spec(step.call.name), at)

    def record_answer(self, path: str, step: Step, answer: Answer, route: str | None) -> None:
        """Remember what an answer tells for later steps: the usage that was reported, what the provider wants back,
        tools that were found. Applies to answers of every origin."""
        if isinstance(step, CallTool):
            self.tool_access.record_search(step.call.name, answer)
        if isinstance(step, RequestCompletion) and isinstance(answer, Completion):
            conversation = _conversation_of(path)
            self._estimators[conversation, route].learn(step, answer)
            if answer.private is not None:
                self._private_parts[conversation].keep(step.name, answer)

    def perform(
        self,
        path: str,
        step: Step,
        sent: Sent,
        grant: Reservation,
        base: BaseHashes | None = None,
        *,
        in_place_s: float = 0,
    ) -> StepResult | Awaitable[StepResult]:
        """Perform the step: return its result, or what has to be awaited for it. Every failure is an answer.

        `base`: the files as they were when a person was asked for the approval of this call. `in_place_s`: so many
        seconds a tool that only reads may take before others have the event loop.
        """
        began = time.monotonic()
        match step:
            case RequestCompletion():
                answer = self._ask_model(ModelInput(path, step, sent, self._private_parts[_conversation_of(path)].find))
                if isinstance(answer, Completion | Failure):
                    return self._completion_result(path, step, answer, sent.route, grant, began)
                return self._await_completion(path, step, answer, sent.route, grant, began)
            case CallTool() if task_of(path):
                return self._call_beside_others(path, step, grant, began, base, in_place_s)
            case CallTool():
                return self._call(path, step, grant, began, base, in_place_s)
            case Pause():
                raise AssertionError("a pause is never performed")

    def _ask_model(self, model_input: ModelInput) -> Awaitable[Completion | Failure] | Completion | Failure:
        route, own = model_input.sent.route or "", self.agent_models.get(model_input.sent.agent or "")
        complete = own.complete if route in self.paid_models and own is not None else None
        return (complete or self.models[route])(model_input)

    async def _await_completion(
        self,
        path: str,
        step: RequestCompletion,
        answering: Awaitable[Completion | Failure],
        route: str | None,
        grant: Reservation,
        began: float,
    ) -> StepResult:
        seconds = grant.timeout_ms / 1000
        try:
            async with asyncio.timeout(seconds):
                answer = await answering
        except TimeoutError:
            answer = Failure("timeout", f"The model did not answer within {seconds:g} s.", True, unknown_end=True)
        return self._completion_result(path, step, answer, route, grant, began)

    def _completion_result(
        self,
        path: str,
        step: RequestCompletion,
        answer: Completion | Failure,
        route: str | None,
        grant: Reservation,
        began: float,
    ) -> StepResult:
        notes: tuple[str, ...] = ()
        if isinstance(answer, Completion):
            answer, notes = drop_impossible_usage(path, answer)
        self.record_answer(path, step, answer, route)
        took_ms, paid = _elapsed_ms(began, grant), route in self.paid_models
        return completion_result(path, step, answer, took_ms, grant.held, paid=paid, notes=notes)

    async def _call_beside_others(
        self, path: str, step: CallTool, grant: Reservation, began: float, base: BaseHashes | None, in_place_s: float
    ) -> StepResult:
        """Call the tool for a task: once other tasks have ended what they change in the same files, and not if this
        one has not seen it. They may have changed them while the call waited for a person."""
        self.sibling_changes.begin(path, step.call)
        async with self.sibling_changes.changing(path, step.call):
            if (refused := self.sibling_changes.refusal(path, step.call)) is not None:
                return self._call_result(path, step, refused, _elapsed_ms(began, grant))
            called = self._call(path, step, grant, began, base, in_place_s)
            return called if isinstance(called, StepResult) else await called

    def _call(
        self, path: str, step: CallTool, grant: Reservation, began: float, base: BaseHashes | None, in_place_s: float
    ) -> StepResult | Awaitable[StepResult]:
        tool = self.tool_access.find_tool(step.call.name)
        if tool is None:  # it was removed after the call was authorized: nothing was done
            gone = ToolNotOffered(f"{step.call.name} is not there any more.", "Go on without it.")
            return self._call_result(path, step, error_result(gone), _elapsed_ms(began, grant))
        seconds, stop = grant.timeout_ms / 1000, StopSignal()
        hidden, gate, check = self.tool_access.hidden_filter(path, step), self.resources.gate, None
        if gate.reads_file_system(tool.spec):
            check = partial(gate.recheck, self.tool_access.gate_call(path, step), base)
        ctx = ToolContext(
            self.run_id, began + seconds, self.read_text, path, self.memory, base or {}, stop, hidden, check
        )
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
            return self._call_result(path, step, calling.result(), _elapsed_ms(began, grant))
        return self._await_call(path, step, tool, calling, grant, began, stop)

    async def _await_call(
        self,
        path: str,
        step: CallTool,
        tool: Tool,
        calling: asyncio.Future[ToolResult],
        grant: Reservation,
        began: float,
        stop: StopSignal,
    ) -> StepResult:
        """Wait for a call in a thread, as long as it may take.

        A tool that changes files is not cut short within a change, neither by its deadline nor by a cancellation, so
        that the record says of each file what became of it.
        """
        seconds, changes_files = grant.timeout_ms / 1000, tool.spec.effect == "checked"
        try:
            result = await (_stop_after(calling, seconds, stop) if changes_files else calling)
        except TimeoutError:
            stop.set()
            result = error_result(_timeout_error(tool, seconds))
        except asyncio.CancelledError:
            stop.set()
            if changes_files and (late := await _result_after_stop(calling)) is not None:
                self.late_results[path] = self._call_result(path, step, late, _elapsed_ms(began, grant))
            raise
        return self._call_result(path, step, result, _elapsed_ms(began, grant))

    def _call_result(self, path: str, step: CallTool, result: ToolResult, took_ms: int) -> StepResult:
        """A call's result as the model is shown it, with the full text where that must be stored."""
        shown, full_text = shorten(result, self.resources.shown_chars, path)
        self.record_answer(path, step, shown, SERVER_ROUTE)
        stored = (shown.kept, full_text) if shown.kept is not None and full_text is not None else None
        notes = server_failures(self.tool_access.find_spec(step.call.name), shown)
        return StepResult(shown, Units(tool_calls=1, milliseconds=took_ms), text=stored, notes=notes)


_PAUSE_REQUEST = ReservationRequest(NOTHING, "pause", external=True)
_COMPACT_REQUEST = ReservationRequest(NOTHING, "compact", external=True)
_OPEN_CALL_REQUEST = ReservationRequest(counts_of("call"), "call", external=True)
_SENT_NOWHERE, _SENT_TO_CALLER, SENT_TO_SERVER = Sent(), Sent("caller"), Sent(SERVER_ROUTE)


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


def _elapsed_ms(began: float, grant: Reservation) -> int:
    """Milliseconds since `began`, at most what was granted."""
    return min(int((time.monotonic() - began) * 1000), grant.timeout_ms)


def _conversation_of(path: str) -> str:
    """The part of a path that names the flow a step belongs to: `task-1/round-2/compact` is of `task-1`."""
    if not path.startswith(_BRANCH_PREFIXES):
        return ""
    return "/".join(part for part in path.split("/") if part.startswith(_BRANCH_PREFIXES))


_BRANCH_PREFIXES = ("task-", "try-", "cycle-")
