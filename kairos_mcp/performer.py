"""Performs one step of one run: says how it is to be marked, then asks the model or calls the tool, as granted."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kairos_mcp.budget import FREE, NOTHING, Claim, Grant, Price, Units, counts_of
from kairos_mcp.driving.consent import Considered, Leave, considered, goes_at_once
from kairos_mcp.driving.costing import Meter, Performed, costed
from kairos_mcp.errors import BadArguments, Denied, KairosError, Timeout, ToolNotOffered
from kairos_mcp.finding import SEARCH, widened
from kairos_mcp.gate import Gate, Wanted
from kairos_mcp.messages import Completion, ToolCall, ToolResult, ToolSet, ToolSpec
from kairos_mcp.models import Asked, Model
from kairos_mcp.models.private import Privates
from kairos_mcp.schemas.schemas import compiled
from kairos_mcp.secrecy import masked
from kairos_mcp.secrecy.masking import Mask
from kairos_mcp.steps import Answer, CallTool, Failure, Mechanical, Pause, RequestCompletion, Sent, Step
from kairos_mcp.store.approvals import Asking, Base
from kairos_mcp.store.turns import NewMark
from kairos_mcp.tools.around import Memory, Probed, Stop, Surroundings
from kairos_mcp.tools.masked import masked_call
from kairos_mcp.tools.offering import search_tool
from kairos_mcp.tools.registry import Registry, Tool, failed, probed
from kairos_mcp.tools.results import shorten
from kairos_mcp.tools.workers import Workers

COMPLETION_TIMEOUT_MS = 300_000
CONSIDERED_S = 30.0  # the longest a preview may take
PER_MINUTE = 30  # calls of one tool that does more than read (SYSTEMS.md P14)


@dataclass(frozen=True, slots=True)
class Means:
    """What a server performs steps with: tools, the gate, threads, and how much of a result is shown."""

    registry: Registry
    gate: Gate
    workers: Workers
    shown_chars: int
    mask: Mask
    workspace: str | None = None


@dataclass(frozen=True, slots=True)
class Paid:
    """The model that this server pays for, and what a token of it costs at most; None: nobody knows."""

    model: str
    price: Price | None


@dataclass(slots=True)
class Performer:
    """The hands of one run. `models` maps a route to who completes on it; a route without one hands its steps out.

    A script's lines are taken in the order of the marks: `lines` have been, and the paths in `own_lines` take none.
    `paid`: the routes that this server pays for. `behind`: what the search among many tools may find, which is offered
    once it was found. `mandate`: the id of the one that the run works on, for rules of the gate. `stands`: whether
    leave that was given before holds for what would be asked at this path.
    """

    run_id: str
    offered: ToolSet
    means: Means
    models: Mapping[str, Model]
    model: str | None
    kept: Callable[[str], str | None]
    own_lines: frozenset[str] = frozenset()
    lines: int = 0
    paid: Mapping[str, Paid] = field(default_factory=dict)
    temperature: float | None = None
    behind: ToolSet = field(default_factory=ToolSet)
    mandate: str | None = None
    stands: Callable[[str, Asking], bool] = lambda _path, _asking: False
    memory: Memory = field(default_factory=Memory.in_process)
    _privates: dict[str, Privates] = field(default_factory=lambda: defaultdict(Privates))
    _meters: dict[str, Meter] = field(default_factory=lambda: defaultdict(Meter))
    _calls: dict[str, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    _free: dict[str, bool] = field(default_factory=dict)

    def plan(
        self, path: str, step: Step, route: str, at: int, shares: int = 1, said: Considered | None = None
    ) -> NewMark:
        """How the step is to be marked: begun, open, or answered at once because it is known how it ends. `said`: what
        came of a call that had to be considered."""
        match step:
            case RequestCompletion():
                return self._plan_completion(path, step, route)
            case CallTool():
                return self._plan_call(path, step, at, shares, said)
            case Pause():
                return NewMark(path, "pause", step.digest, _PAUSED, Sent())

    def _plan_completion(self, path: str, step: RequestCompletion, route: str) -> NewMark:
        if step.purpose == "compact" and route == "caller":
            return NewMark(path, "compact", step.digest, _SHORTENED, Sent(), Mechanical())
        claim = self.claim(path, step, route, counts_of(step.purpose))
        return NewMark(path, step.purpose, step.digest, claim, self.sent(path, route))

    def sent(self, path: str, route: str, tail: str | None = None) -> Sent:
        """What the hands add to a completion on this route; a script's next line is taken."""
        model = self.paid[route].model if route in self.paid else self.model
        line = self._next_line(path) if route == "scripted" else None
        return Sent(route, model, None, tail, line, self.temperature)

    def claim(self, path: str, step: Step, route: str, counts: Units, shares: int = 1) -> Claim:
        """What the step asks of its account; `counts` are less at a further attempt."""
        match step:
            case RequestCompletion():
                meter = self._meters[_strand(path)]
                open_step = route not in self.models
                price = self.paid[route].price if route in self.paid else FREE
                bound, wanted = meter.bound(step), step.max_tokens
                return Claim(counts, step.purpose, open_step, bound, wanted, COMPLETION_TIMEOUT_MS, shares, price)
            case CallTool():
                tool = self._tool(step.call.name)
                timeout_ms = int((tool.timeout_s if tool else 60) * 1000)
                return Claim(counts, "call", timeout_ms=timeout_ms, shares=shares)
            case Pause():
                return _PAUSED

    def must_consider(self, step: CallTool) -> bool:
        """Whether files have to be looked at before it is known if this call may be made (`consider`)."""
        spec = self.offered.find(step.call.name)
        if spec is None or step.call.unreadable is not None or self._is_free(spec):
            return False
        return goes_at_once(self.means.gate, self._wanted(step), self.means.registry.find(spec.name)) is None

    async def consider(self, path: str, step: CallTool) -> Considered:
        """Leave to make the call, the result that it has without being made, or what a person is to be asked."""
        tool = self.means.registry.find(step.call.name)
        spec = self.offered.find(step.call.name)
        tool = None if spec is not None and spec.source == "caller" else tool
        around = Surroundings(self.run_id, time.monotonic() + CONSIDERED_S, self.kept, path, self.memory)
        wanted, gate = self._wanted(step), self.means.gate
        try:
            said = await self.means.workers.call(
                CONSIDERED_S, considered, gate, wanted, tool, around, self.means.workspace, self.means.mask
            )
        except TimeoutError:
            return failed(Timeout(f"{step.call.name} could not be previewed in time.", "Ask for less at once."))
        return Leave() if isinstance(said, Asking) and self.stands(path, said) else said

    def probes(self, step: CallTool) -> bool:
        """Whether a look can tell if this call was carried out before a crash."""
        tool = self._tool(step.call.name)
        return tool is not None and tool.spec.effect == "checked" and tool.probe is not None

    async def probe(self, path: str, step: CallTool, base: Base | None) -> Probed:
        """Look whether a lost call was carried out; what can't be told is for a person."""
        tool = self._tool(step.call.name)
        assert tool is not None
        around = Surroundings(self.run_id, time.monotonic() + CONSIDERED_S, self.kept, path, self.memory, base or {})
        try:
            found = await self.means.workers.call(CONSIDERED_S, probed, tool, step.call.arguments, around)
        except TimeoutError:
            return Probed("unclear")
        if found.result is None:
            return found
        return Probed(
            found.state, shorten(masked.result(found.result, self.means.mask), self.means.shown_chars, path)[0]
        )

    def _wanted(self, step: CallTool) -> Wanted:
        return Wanted(self.offered.find(step.call.name), step.call.arguments, mandate=self.mandate)

    def _is_free(self, spec: ToolSpec) -> bool:
        """Whether every call of this tool may be made: found once a run, since most calls are of such tools."""
        if (known := self._free.get(spec.name)) is None:
            known = self._free[spec.name] = self.means.gate.leave_to_read(spec)
        return known

    def _plan_call(self, path: str, step: CallTool, at: int, shares: int, said: Considered | None) -> NewMark:
        spec = self.offered.find(step.call.name)
        refusal = self._refusal(step.call, spec, at)
        if refusal is not None or spec is None:
            answer = failed(refusal) if refusal is not None else None
            return NewMark(path, "call", step.digest, _HANDED_OUT, _BY_NOBODY, answer)
        if said is None and not self._is_free(spec):
            said = goes_at_once(self.means.gate, self._wanted(step), self.means.registry.find(spec.name))
            assert said is not None, "a call is planned once it was considered"
        sent = _BY_CALLER if spec.source == "caller" else _BY_HOUSE
        match said:
            case ToolResult():
                return NewMark(path, "call", step.digest, _HANDED_OUT, _BY_NOBODY, said)
            case Asking():
                self._made(spec, at)
                return NewMark(path, "call", step.digest, _HANDED_OUT, sent, asking=said)
            case _:
                self._made(spec, at)
        if spec.source == "caller":
            return NewMark(path, "call", step.digest, _HANDED_OUT, sent)
        return NewMark(path, "call", step.digest, self.claim(path, step, "house", counts_of("call"), shares), sent)

    def _refusal(self, wanted: ToolCall, spec: ToolSpec | None, at: int) -> KairosError | None:
        """Why this call is answered without being made, if it is."""
        if spec is None:
            names = ", ".join(each.name for each in self.offered) or "none"
            return ToolNotOffered(f"{wanted.name[:80]!r} was not offered.", f"Tools of this run: {names[:2000]}.")
        if wanted.unreadable is not None:
            return BadArguments(f"{spec.name}: {wanted.unreadable}.", "Send the arguments as one JSON object.")
        if spec.source == "caller":
            problems = compiled(spec.input_schema).problems(wanted.arguments)
            if problems:
                return BadArguments(f"{spec.name}: {'; '.join(problems)}.", "See the tool's schema.")
        elif (gone := self._gone(spec)) is not None:
            return gone
        return self._too_often(spec, at)

    def _gone(self, spec: ToolSpec) -> ToolNotOffered | None:
        """Why the tool that was offered is not called: it is gone, waits for a person, or has become another."""
        if spec.name == SEARCH and self.behind:
            return None
        try:
            self.means.registry.current(spec)
        except ToolNotOffered as gone:
            return gone
        return None

    def _tool(self, name: str) -> Tool | None:
        """The tool that a call is made with; one that is gone still answers what was begun for it."""
        return search_tool(self.behind) if name == SEARCH and self.behind else self.means.registry.find(name)

    def _made(self, spec: ToolSpec | None, at: int) -> None:
        """Take note of a call for the limit a minute, which those that only read do not have."""
        if spec is not None and spec.effect != "read":
            self._calls[spec.name].append(at)

    def _too_often(self, spec: ToolSpec, at: int) -> KairosError | None:
        recent = self._calls.get(spec.name)
        if recent is None:
            return None
        while recent and not 0 <= at - recent[0] < 60_000:  # a clock that was set back counts nothing twice
            recent.popleft()
        if len(recent) < PER_MINUTE:
            return None
        seconds = -(-(60_000 - (at - recent[0])) // 1000)
        return Denied(
            f"{spec.name} was called {PER_MINUTE} times within a minute.",
            f"Call it again in {seconds} seconds.",
        )

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
        self._calls.clear()

    def give_back(self, line: int | None) -> None:
        """A step was refused, so nobody reads the line that it would have taken; the next one takes it."""
        if line is not None and line == self.lines - 1:
            self.lines = line

    def recall(self, step: Step, sent: Sent, at: int) -> None:
        """Take note of a step in the record: the script's line that it took, the call that was made."""
        if sent.line is not None:
            self.lines = max(self.lines, sent.line + 1)
        if isinstance(step, CallTool) and sent.route is not None:  # else it was answered without being made
            self._made(self.offered.find(step.call.name), at)

    def learn(self, path: str, step: Step, answer: Answer) -> None:
        """Take note of what a completion reported, of what its provider wants back, and of tools that were found,
        however it came."""
        if self.behind and isinstance(step, CallTool):
            self.offered = widened(self.offered, [(step.call.name, answer)])
        if isinstance(step, RequestCompletion) and isinstance(answer, Completion):
            strand = _strand(path)
            self._meters[strand].learn(step.conversation, answer.usage)
            if answer.private is not None:
                self._privates[strand].keep(step.name, answer)

    async def perform(self, path: str, step: Step, sent: Sent, grant: Grant, base: Base | None = None) -> Performed:
        """Carry the step out. Never raises but for cancellation: every failure is an answer.

        `base`: the files that a person's leave stands on, as they were when it was asked for.
        """
        began = time.monotonic()
        match step:
            case RequestCompletion():
                answer = await self._complete(Asked(path, step, sent, self._privates[_strand(path)].of), grant)
                self.learn(path, step, answer)
                return costed(path, step, answer, _took(began, grant), grant.held, paid=sent.route in self.paid)
            case CallTool():
                result, whole = await self._call(path, step, grant, began, base or {})
                self.learn(path, step, result)
                kept = (result.kept, whole) if result.kept is not None and whole is not None else None
                spent = Units(tool_calls=1, milliseconds=_took(began, grant))
                return Performed(result, spent, text=kept)
            case Pause():
                raise AssertionError("a pause is never performed")

    async def _complete(self, asked: Asked, grant: Grant) -> Completion | Failure:
        model = self.models[asked.sent.route or ""]
        try:
            async with asyncio.timeout(grant.timeout_ms / 1000):
                return await model(asked)
        except TimeoutError:
            seconds = grant.timeout_ms / 1000
            return Failure("timeout", f"The model did not answer within {seconds:g} s.", True, unknown_end=True)

    async def _call(
        self, path: str, step: CallTool, grant: Grant, began: float, base: Base
    ) -> tuple[ToolResult, str | None]:
        """The result as it is shown, and its whole text where that must be kept."""
        tool = self._tool(step.call.name)
        assert tool is not None, "a call is begun only for a tool that is there"
        seconds, stop = grant.timeout_ms / 1000, Stop()
        around = Surroundings(self.run_id, began + seconds, self.kept, path, self.memory, base, stop)
        try:
            mask = self.means.mask
            result = await self.means.workers.call(seconds, masked_call, mask, tool, step.call.arguments, around)
        except TimeoutError:
            stop.now()
            result = failed(Timeout(f"{tool.spec.name} took longer than {seconds:g} s.", "Ask for less at once."))
        except asyncio.CancelledError:
            stop.now()
            raise
        return shorten(result, self.means.shown_chars, path)


_PAUSED = Claim(NOTHING, "pause", open_step=True)
_SHORTENED = Claim(NOTHING, "compact", open_step=True)
_HANDED_OUT = Claim(counts_of("call"), "call", open_step=True)
_BY_NOBODY, _BY_CALLER, _BY_HOUSE = Sent(), Sent("caller"), Sent("house")


def _took(began: float, grant: Grant) -> int:
    """Milliseconds since then; never more than was granted."""
    return min(int((time.monotonic() - began) * 1000), grant.timeout_ms)


def _strand(path: str) -> str:
    """The part of a path that names the flow a step belongs to: `task-1/round-2/compact` is of `task-1`."""
    if not path.startswith(_BRANCHES):
        return ""
    return "/".join(part for part in path.split("/") if part.startswith(_BRANCHES))


_BRANCHES = ("task-", "try-", "cycle-")
