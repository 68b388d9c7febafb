"""What a run may call: the tools within its reach, and whether a call is refused, made at once, or looked at first."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kairos_mcp.core.counting import count_of
from kairos_mcp.core.errors import BadArguments, Denied, KairosError, ToolNotOffered
from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import ToolCall, ToolSet, ToolSpec
from kairos_mcp.core.steps import Answer, CallTool
from kairos_mcp.core.tool_discovery import SEARCH, add_discovered_tools
from kairos_mcp.execution.authorization import Considered, goes_at_once
from kairos_mcp.gate import Gate, ToolCallRequest
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.selection import LateTools, search_tool
from kairos_mcp.tools.tool import Tool

PER_MINUTE = 30  # calls of one tool that does more than read (SYSTEMS.md P14)


@dataclass(slots=True)
class ToolAccess:
    """The tools of one run. `behind`: what the search among many may find, which is offered once it was found.
    `mandate`: the id of the one that the run works on, for rules of the gate; `joining`: by which globs the search may
    find what was not there at the start, as in Spec; `agent_of`: whose call a step is."""

    offered: ToolSet
    registry: ToolRegistry
    gate: Gate
    behind: ToolSet = field(default_factory=ToolSet)
    mandate: str | None = None
    joining: tuple[str, ...] | None = None
    agent_of: Callable[[str], str | None] = lambda _path: None
    _own: frozenset[str] = field(init=False)  # the names of what it was given at its start
    _free: dict[str, bool] = field(default_factory=dict)
    _calls: dict[str, deque[int]] = field(default_factory=lambda: defaultdict(deque))

    def __post_init__(self) -> None:
        self._own = frozenset(spec.name for spec in (*self.offered, *self.behind))

    def spec(self, name: str) -> ToolSpec | None:
        """The tool as the model was shown it; None: it was offered none of this name."""
        return self.offered.find(name)

    def tool(self, name: str) -> Tool | None:
        """The tool that a call is made with; one that is gone still answers what was begun for it."""
        return search_tool(self.behind, self._late) if self._is_search(name) else self.registry.find(name)

    def wanted(self, path: str, step: CallTool) -> ToolCallRequest:
        """The call as the gate is asked about it."""
        call, agent = step.call, self.agent_of(path)
        return ToolCallRequest(self.spec(call.name), call.arguments, agent, self.mandate, declared=step.declared)

    def shut(self, path: str, step: CallTool) -> Callable[[str], bool] | None:
        """What the call must not show of what it finds, by the rules of the gate; None: they keep nothing from it."""
        spec = self.spec(step.call.name)
        return None if spec is None or self._is_free(spec) else self.gate.hidden_paths(self.wanted(path, step))

    def must_consider(self, path: str, step: CallTool) -> bool:
        """Whether files have to be looked at before it is known if this call may be made."""
        spec = self.spec(step.call.name)
        if spec is None or step.call.unreadable is not None or self._is_free(spec):
            return False
        return self._at_once(path, step, spec) is None

    def known(self, path: str, step: CallTool, spec: ToolSpec) -> Considered | None:
        """What is known of leave for this call without a look; None: it may be made."""
        if self._is_free(spec):
            return None
        said = self._at_once(path, step, spec)
        assert said is not None, "a call is planned once it was considered"
        return said

    def refusal(self, wanted: ToolCall, spec: ToolSpec | None, at: int) -> KairosError | None:
        """Why this call is answered without being made, if it is. `at`: in milliseconds."""
        if spec is None:
            names = ", ".join(each.name for each in self.offered) or "none"
            return ToolNotOffered(f"{wanted.name[:80]!r} was not offered.", f"Tools of this run: {names[:2000]}.")
        if wanted.unreadable is not None:
            return BadArguments(f"{spec.name}: {wanted.unreadable}.", "Send the arguments as one JSON object.")
        if spec.source == "caller":
            problems = compile_schema(spec.input_schema).problems(wanted.arguments)
            if problems:
                return BadArguments(f"{spec.name}: {'; '.join(problems)}.", "See the tool's schema.")
        elif (gone := self._gone(spec)) is not None:
            return gone
        return self._too_often(spec, at)

    def made(self, spec: ToolSpec | None, at: int) -> None:
        """Take note of a call for the limit a minute, which those that only read do not have."""
        if spec is not None and spec.effect != "read":
            self._calls[spec.name].append(at)

    def learn(self, name: str, answer: Answer) -> None:
        """Take note of what a search found: it is offered from now on."""
        if self._is_search(name):
            self.offered = add_discovered_tools(self.offered, [(name, answer)])

    def forget(self) -> None:
        """Know of no call, as before the run is folded."""
        self._calls.clear()

    def _at_once(self, path: str, step: CallTool, spec: ToolSpec) -> Considered | None:
        return goes_at_once(self.gate, self.wanted(path, step), self.registry.find(spec.name))

    def _is_free(self, spec: ToolSpec) -> bool:
        """Whether every call of this tool may be made: found once a run, since most calls are of such tools."""
        if (known := self._free.get(spec.name)) is None:
            known = self._free[spec.name] = self.gate.allows_every_read(spec)
        return known

    def _gone(self, spec: ToolSpec) -> ToolNotOffered | None:
        """Why the tool that was offered is not called: it is gone, waits for a person, or has become another."""
        if self._is_search(spec.name):
            return None
        try:
            self.registry.current(spec)
        except ToolNotOffered as gone:
            return gone
        return None

    def _is_search(self, name: str) -> bool:
        """Whether this is the search of ours; where a run has none, a caller's tool may be called so."""
        return name == SEARCH and (bool(self.behind) or self.joining is not None)

    def _late(self) -> LateTools:
        """What has come since the start; it blocks for a moment where it is still on its way."""
        if self.joining is None:
            return LateTools()
        globs = self.joining or None
        self.registry.ready(globs)
        coming = self.registry.coming(globs)
        return LateTools(ToolSet([spec for spec in self.registry.there(globs) if spec.name not in self._own]), coming)

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
            f"Call it again in {count_of(seconds, 'second')}.",
        )
