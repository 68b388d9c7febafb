"""Performs one step of one run: says how it is to be marked, then asks the model or calls the tool, as granted."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from kairos_mcp.budget.reservation import Reservation, ReservationRequest
from kairos_mcp.budget.units import FREE, NOTHING, Price, Units, counts_of
from kairos_mcp.core import redact_values
from kairos_mcp.core.errors import KairosError, OutcomeUnknown, Timeout, ToolNotOffered
from kairos_mcp.core.messages import Completion, ToolResult
from kairos_mcp.core.redaction import Redactor
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
from kairos_mcp.execution.accounting import InputEstimator, StepResult, believed, costed
from kairos_mcp.execution.authorization import Allowed, ApprovalContext, Considered, considered
from kairos_mcp.execution.ending import LET_OUT_S, let_out, outcome_of
from kairos_mcp.execution.reach import ToolAccess
from kairos_mcp.gate import Gate
from kairos_mcp.models.model import Model, ModelInput, PrivateParts
from kairos_mcp.store.approvals import ApprovalRequest, Base, ReusedApproval
from kairos_mcp.store.commit import NewStep
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.results import absences, shorten
from kairos_mcp.tools.threads import WorkerThreads
from kairos_mcp.tools.tool import ProbeResult, StopSignal, Tool, ToolContext, ToolMemory, failed, masked_call, probed

COMPLETION_TIMEOUT_MS = 300_000
CONSIDERED_S = 30.0  # the longest a preview may take
HEARD_S = 0.5  # after its deadline, for a call's own word on how it ended: it knows what became of it


@dataclass(frozen=True, slots=True)
class Resources:
    """What a server performs steps with: tools, the gate, threads, how much of a result is shown, and how long a
    person has to decide about a call."""

    registry: ToolRegistry
    gate: Gate
    workers: WorkerThreads
    shown_chars: int
    mask: Redactor
    workspace: str | None = None
    approval_ms: int = 72 * 3_600_000

    @property
    def asked(self) -> ApprovalContext:
        return ApprovalContext(self.workspace, self.mask, self.approval_ms)


@dataclass(frozen=True, slots=True)
class PaidModel:
    """The model that this server pays for, and what a token of it costs at most; None: nobody knows."""

    model: str
    price: Price | None


@dataclass(slots=True)
class StepExecutor:
    """The hands of one run. `models` maps a route to who completes on it; a route without one hands its steps out.

    A script's lines are taken in the order of the marks: `lines` have been, and the paths in `own_lines` take none.
    `paid`: the routes that this server pays for; `dialects`: how those are worded that don't depend on a client.
    `stands`: leave that was given before, if it holds for what would be asked at this path. `came_late`: what
    calls came to that were stopped in the middle of a change.
    """

    run_id: str
    reach: ToolAccess
    means: Resources
    models: Mapping[str, Model]
    model: str | None
    kept: Callable[[str], str | None]
    own_lines: frozenset[str] = frozenset()
    lines: int = 0
    paid: Mapping[str, PaidModel] = field(default_factory=dict)
    dialects: Mapping[str, DialectName] = field(default_factory=dict)
    temperature: float | None = None
    stands: Callable[[str, ApprovalRequest], ReusedApproval | None] = lambda _path, _asking: None
    memory: ToolMemory = field(default_factory=ToolMemory.in_process)
    _privates: dict[str, PrivateParts] = field(default_factory=lambda: defaultdict(PrivateParts))
    came_late: dict[str, StepResult] = field(default_factory=dict)
    _meters: dict[tuple[str, str | None], InputEstimator] = field(default_factory=lambda: defaultdict(InputEstimator))

    def plan(
        self, path: str, step: Step, route: str, at: int, shares: int = 1, said: Considered | None = None
    ) -> NewStep:
        """How the step is to be marked: begun, open, or answered at once because it is known how it ends. `said`: what
        came of a call that had to be considered."""
        match step:
            case RequestCompletion():
                return self._plan_completion(path, step, route, shares)
            case CallTool():
                return self._plan_call(path, step, at, shares, said)
            case Pause():
                return NewStep(path, "pause", step.digest, _PAUSED, Sent())

    def _plan_completion(self, path: str, step: RequestCompletion, route: str, shares: int) -> NewStep:
        if step.purpose == "compact" and route == "caller":
            return NewStep(path, "compact", step.digest, _SHORTENED, Sent(), Mechanical())
        claim = self.claim(path, step, route, counts_of(step.purpose), shares)
        return NewStep(path, step.purpose, step.digest, claim, self.sent(path, route))

    def sent(self, path: str, route: str, tail: str | None = None) -> Sent:
        """What the hands add to a completion on this route; a script's next line is taken."""
        paid, dialect, agent = self.paid.get(route), self.dialects.get(route), self.reach.agent_of(path)
        model = paid.model if paid is not None else self.model
        line = self._next_line(path) if route == "scripted" else None
        unpriced = True if paid is not None and paid.price is None else None
        return Sent(route, model, None, tail, line, self.temperature, dialect, agent, unpriced)

    def claim(self, path: str, step: Step, route: str, counts: Units, shares: int = 1) -> ReservationRequest:
        """What the step asks of its account; `counts` are less at a further attempt."""
        match step:
            case RequestCompletion():
                meter = self._meters[_strand(path), route]
                open_step = route not in self.models
                price = self.paid[route].price if route in self.paid else FREE
                bound, wanted = meter.bound(step), step.max_tokens
                return ReservationRequest(
                    counts, step.purpose, open_step, bound, wanted, COMPLETION_TIMEOUT_MS, shares, price
                )
            case CallTool():
                tool = self.reach.tool(step.call.name)
                timeout_ms = int((tool.timeout_s if tool else 60) * 1000)
                return ReservationRequest(counts, "call", timeout_ms=timeout_ms, shares=shares)
            case Pause():
                return _PAUSED

    async def consider(self, path: str, step: CallTool) -> Considered:
        """Leave to make the call, the result that it has without being made, or what a person is to be asked."""
        tool = self.means.registry.find(step.call.name)
        spec = self.reach.spec(step.call.name)
        tool = None if spec is not None and spec.source == "caller" else tool
        around = ToolContext(self.run_id, time.monotonic() + CONSIDERED_S, self.kept, path, self.memory)
        wanted, gate = self.reach.wanted(path, step), self.means.gate
        try:
            said = await self.means.workers.call(CONSIDERED_S, considered, gate, wanted, tool, around, self.means.asked)
        except TimeoutError:
            return failed(Timeout(f"{step.call.name} could not be previewed in time.", "Ask for less at once."))
        again = self.stands(path, said) if isinstance(said, ApprovalRequest) else None
        return said if again is None else Allowed(again)

    def probes(self, step: CallTool) -> bool:
        """Whether a look can tell if this call was carried out before a crash."""
        tool = self.reach.tool(step.call.name)
        return tool is not None and tool.spec.effect == "checked" and tool.probe is not None

    async def probe(self, path: str, step: CallTool, base: Base | None) -> ProbeResult:
        """Look whether a lost call was carried out; what can't be told is for a person."""
        tool = self.reach.tool(step.call.name)
        assert tool is not None
        around = ToolContext(self.run_id, time.monotonic() + CONSIDERED_S, self.kept, path, self.memory, base or {})
        try:
            found = await self.means.workers.call(CONSIDERED_S, probed, tool, step.call.arguments, around)
        except TimeoutError:
            return ProbeResult("unclear")
        if found.result is None:
            return found
        return ProbeResult(
            found.state,
            shorten(redact_values.redact_result(found.result, self.means.mask), self.means.shown_chars, path)[0],
        )

    def _plan_call(self, path: str, step: CallTool, at: int, shares: int, said: Considered | None) -> NewStep:
        spec = self.reach.spec(step.call.name)
        refusal = self.reach.refusal(step.call, spec, at)
        if refusal is not None or spec is None:
            answer = failed(refusal) if refusal is not None else None
            return NewStep(path, "call", step.digest, _HANDED_OUT, _BY_NOBODY, answer)
        if said is None:
            said = self.reach.known(path, step, spec)
        sent = _BY_CALLER if spec.source == "caller" else _BY_HOUSE
        match said:
            case ToolResult():
                return NewStep(path, "call", step.digest, _HANDED_OUT, _BY_NOBODY, said)
            case ApprovalRequest():
                self.reach.made(spec, at)
                return NewStep(path, "call", step.digest, _HANDED_OUT, sent, asking=said)
            case _:
                self.reach.made(spec, at)
        if spec.source == "caller":
            return NewStep(path, "call", step.digest, _HANDED_OUT, sent)
        again = said.again if isinstance(said, Allowed) else None
        claim = self.claim(path, step, "house", counts_of("call"), shares)
        return NewStep(path, "call", step.digest, claim, sent, again=again)

    def _next_line(self, path: str) -> int | None:
        if path in self.own_lines:
            return None
        self.lines += 1
        return self.lines - 1

    def forget(self) -> None:
        """Know nothing of the run, as before it is folded."""
        self.lines = 0
        self._meters.clear()
        self._privates.clear()
        self.reach.forget()

    def give_back(self, line: int | None) -> None:
        """A step was refused, so nobody reads the line that it would have taken; the next one takes it."""
        if line is not None and line == self.lines - 1:
            self.lines = line

    def recall(self, step: Step, sent: Sent, at: int) -> None:
        """Take note of a step in the record: the script's line that it took, the call that was made."""
        if sent.line is not None:
            self.lines = max(self.lines, sent.line + 1)
        if isinstance(step, CallTool) and sent.route is not None:  # else it was answered without being made
            self.reach.made(self.reach.spec(step.call.name), at)

    def learn(self, path: str, step: Step, answer: Answer, route: str | None) -> None:
        """Take note of what a completion reported, of what its provider wants back, and of tools that were found,
        however it came."""
        if isinstance(step, CallTool):
            self.reach.learn(step.call.name, answer)
        if isinstance(step, RequestCompletion) and isinstance(answer, Completion):
            strand = _strand(path)
            self._meters[strand, route].learn(step, answer)
            if answer.private is not None:
                self._privates[strand].keep(step.name, answer)

    async def perform(
        self, path: str, step: Step, sent: Sent, grant: Reservation, base: Base | None = None
    ) -> StepResult:
        """Carry the step out. Never raises but for cancellation: every failure is an answer.

        `base`: the files that a person's leave stands on, as they were when it was asked for.
        """
        began = time.monotonic()
        match step:
            case RequestCompletion():
                answer = await self._complete(ModelInput(path, step, sent, self._privates[_strand(path)].of), grant)
                doubts: tuple[str, ...] = ()
                if isinstance(answer, Completion):
                    answer, doubts = believed(path, answer)
                self.learn(path, step, answer, sent.route)
                took, paid = _took(began, grant), sent.route in self.paid
                return costed(path, step, answer, took, grant.held, paid=paid, doubts=doubts)
            case CallTool():
                result = await self._call(path, step, grant, began, base)
                return self._called(path, step, result, _took(began, grant))
            case Pause():
                raise AssertionError("a pause is never performed")

    async def _complete(self, asked: ModelInput, grant: Reservation) -> Completion | Failure:
        model = self.models[asked.sent.route or ""]
        try:
            async with asyncio.timeout(grant.timeout_ms / 1000):
                return await model(asked)
        except TimeoutError:
            seconds = grant.timeout_ms / 1000
            return Failure("timeout", f"The model did not answer within {seconds:g} s.", True, unknown_end=True)

    async def _call(self, path: str, step: CallTool, grant: Reservation, began: float, base: Base | None) -> ToolResult:
        """The tool's result. What changes files is let out of a change when its time is over or its run is cancelled,
        so that the record says of each file what became of it."""
        tool = self.reach.tool(step.call.name)
        if tool is None:  # it went after leave was given: nothing was done
            return failed(ToolNotOffered(f"{step.call.name} is not there any more.", "Go on without it."))
        seconds, stop = grant.timeout_ms / 1000, StopSignal()
        shut = self.reach.shut(path, step)
        wanted, gate = self.reach.wanted(path, step), self.means.gate
        still = partial(gate.recheck, wanted, base) if gate.reads_file_system(tool.spec) else None
        around = ToolContext(self.run_id, began + seconds, self.kept, path, self.memory, base or {}, stop, shut, still)
        longer = LET_OUT_S if tool.spec.effect == "checked" else 0.0
        given = (self.means.mask, tool, step.call.arguments, around)
        calling = self.means.workers.call(seconds + (longer or HEARD_S), masked_call, *given)
        try:
            return await (let_out(calling, seconds, stop) if longer else calling)
        except TimeoutError:
            stop.now()
            return failed(_given_up(tool, seconds))
        except asyncio.CancelledError:
            stop.now()
            if longer and (came := await outcome_of(calling)) is not None:
                self.came_late[path] = self._called(path, step, came, _took(began, grant))
            raise

    def _called(self, path: str, step: CallTool, result: ToolResult, took_ms: int) -> StepResult:
        """What a call has come to: its result as it is shown, with its whole text where that must be kept."""
        shown, whole = shorten(result, self.means.shown_chars, path)
        self.learn(path, step, shown, "house")
        kept = (shown.kept, whole) if shown.kept is not None and whole is not None else None
        notes = absences(self.reach.spec(step.call.name), shown)
        return StepResult(shown, Units(tool_calls=1, milliseconds=took_ms), text=kept, notes=notes)


_PAUSED = ReservationRequest(NOTHING, "pause", external=True)
_SHORTENED = ReservationRequest(NOTHING, "compact", external=True)
_HANDED_OUT = ReservationRequest(counts_of("call"), "call", external=True)
_BY_NOBODY, _BY_CALLER, _BY_HOUSE = Sent(), Sent("caller"), Sent("house")


def _given_up(tool: Tool, seconds: float) -> KairosError:
    """Why a call ended of which nothing was heard by its deadline."""
    late = f"{tool.spec.name} took longer than {seconds:g} s"
    if tool.spec.effect in ("read", "idempotent"):
        return Timeout(f"{late}.", "Ask for less at once.")
    return OutcomeUnknown(
        f"{late} and was given up: whether it was carried out is not known.",
        "Don't repeat it before you have looked whether it took effect.",
    )


def _took(began: float, grant: Reservation) -> int:
    """Milliseconds since then; never more than was granted."""
    return min(int((time.monotonic() - began) * 1000), grant.timeout_ms)


def _strand(path: str) -> str:
    """The part of a path that names the flow a step belongs to: `task-1/round-2/compact` is of `task-1`."""
    if not path.startswith(_BRANCHES):
        return ""
    return "/".join(part for part in path.split("/") if part.startswith(_BRANCHES))


_BRANCHES = ("task-", "try-", "cycle-")
