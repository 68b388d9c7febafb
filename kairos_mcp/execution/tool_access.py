"""The tools that one run may use: which are offered at a step, and which calls need no look at files."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

from kairos_mcp.core.builtin_tools import REQUEST_MORE_ROUNDS
from kairos_mcp.core.errors import BadArguments, Denied, KairosError, ToolNotOffered
from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import SEARCH, ToolCall, ToolSet, ToolSpec, add_discovered_tools
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import Answer, CallTool
from kairos_mcp.core.text import count_of, nearest_names
from kairos_mcp.core.tool import Tool
from kairos_mcp.execution.authorization import ALLOWED, authorize_at_once, sees_workspace
from kairos_mcp.execution.flow_view import FlowPolicy
from kairos_mcp.execution.tool_calls import Authorization
from kairos_mcp.gate import Gate
from kairos_mcp.gate_calls import GatedCall
from kairos_mcp.tools.registry import DEFAULT_WAIT_S, MAX_NOTES, ToolRegistry
from kairos_mcp.tools.selection import LateTools, find_wordless_texts, search_tool
from kairos_mcp.tools.touched_paths import read_named_paths, with_relative_paths

if TYPE_CHECKING:  # most runs have none
    from kairos_mcp.tools.stage.staged_tools import StagedTools

CALLS_PER_MINUTE = 30  # of one tool that does more than read
NO_TOOLS = ToolSet()


@dataclass(slots=True)
class ToolAccess:
    """The tools that one run may use.

    `offered_tools`: what the model is shown (in a team, those of all agents). `searchable_tools`: what its search may
    find, and is offered from then on. `mandate`: the id of the run's mandate, for rules of the gate. `late_globs`: the
    search may also find tools that came after the start and fit these globs. `agent_of`: the agent that a step's call
    is made for. `by_agent`: the tools of each agent of a team, whose steps are offered those alone. `workspace`: the
    run's folder, in which a call may name files by absolute paths too. `flow`: what is done about what calls take
    along. `has_material`: more than the person's words was in view of the run when it began. `stage`: the tools of the
    run's stage, if it has one.
    """

    offered_tools: ToolSet
    registry: ToolRegistry
    gate: Gate
    searchable_tools: ToolSet = field(default_factory=ToolSet)
    mandate: str | None = None
    late_globs: tuple[str, ...] | None = None
    by_agent: Mapping[str, ToolSet] | None = None
    agent_of: Callable[[str], str | None] = lambda _path: None
    workspace: str | None = None
    flow: FlowPolicy = FlowPolicy()
    has_material: bool = True
    _has_answers: bool = False
    stage: StagedTools | None = None
    _initially_offered: ToolSet = field(init=False)
    _always_allowed: dict[str, bool] = field(default_factory=dict)
    _judged: dict[str, bool] = field(default_factory=dict)
    _secret_file_tests: dict[str, Callable[[str], bool] | None] = field(default_factory=dict)
    _calls: dict[str, deque[int]] = field(default_factory=lambda: defaultdict(deque))

    def __post_init__(self) -> None:
        self._initially_offered = self.offered_tools

    def set_agent_lookup(self, agent_of: Callable[[str], str | None]) -> None:
        self.agent_of = agent_of

    def find_spec(self, name: str) -> ToolSpec | None:
        """The tool as a model was shown it; None if none of this name was offered to any agent."""
        return self.offered_tools.find(name)

    def offered_at(self, path: str) -> ToolSet:
        """The tools that the step which waits at this path may call."""
        return self.offered_tools if self.by_agent is None else self.by_agent.get(self.agent_of(path) or "", NO_TOOLS)

    def find_offered(self, path: str, name: str) -> ToolSpec | None:
        """The tool that a call at this path names; None if it was not offered there."""
        return self.offered_at(path).find(name)

    def find_tool(self, name: str) -> Tool | None:
        """The tool that performs a call. A tool that was removed still answers the calls begun before."""
        if self.stage is not None and (staged := self.stage.find(name)) is not None:
            return staged
        return (
            search_tool(self.searchable_tools, self._late_tools) if self._is_search(name) else self.registry.find(name)
        )

    def is_contained(self, spec: ToolSpec | None) -> bool:
        """Whether calls of this tool write nothing but the run's stage."""
        return self.stage is not None and self.stage.contains(spec)

    def local_call(self, call: ToolCall) -> ToolCall:
        """The call as it is judged and made: its files named relative to the workspace."""
        if self.workspace is None:
            return call
        arguments = with_relative_paths(self.find_spec(call.name), call.arguments, self.workspace)
        return call if arguments is call.arguments else replace(call, arguments=arguments)

    def gate_call(self, path: str, step: CallTool) -> GatedCall:
        """The call in the form that the gate judges."""
        call, agent = self.local_call(step.call), self.agent_of(path)
        return GatedCall(
            self.find_offered(path, call.name), call.arguments, agent, self.mandate, declared_risk=step.declared
        )

    def hidden_filter(self, path: str, step: CallTool) -> Callable[[str], bool] | None:
        """Whether a path must not be shown to this call, by the rules of the gate; None: they hide nothing from it."""
        spec = self.find_offered(path, step.call.name)
        if spec is None or self._is_always_allowed(spec):
            return None
        if (is_secret := self._secret_file_test(spec)) is not None:
            return is_secret
        return self.gate.hidden_path_test(self.gate_call(path, step))

    def authorize_at_once(self, path: str, step: CallTool, spec: ToolSpec | None) -> Authorization | None:
        """Return what is known of permission for a call without a look at files; None: `authorize` has to decide.

        `spec`: of the tool, as it was offered there. A call that can't be made, as `check_call` says, needs none.
        """
        if spec is None or step.call.unreadable is not None:
            return ALLOWED
        if self.judges_flow(spec) and self._may_take_along(spec):
            return None
        if self.stage is not None and (self.is_contained(spec) or sees_workspace(spec)):
            return None
        if self._is_always_allowed(spec):
            return ALLOWED
        is_secret = self._secret_file_test(spec)
        if is_secret is not None and not any(map(is_secret, read_named_paths(spec, step.call.arguments))):
            return ALLOWED
        return authorize_at_once(self.gate, self.gate_call(path, step), self.registry.find(spec.name))

    def check_call(self, path: str, call: ToolCall, spec: ToolSpec | None, at: int) -> KairosError | None:
        """The error of a call that can't be made, or None. `at`: milliseconds since 1970."""
        if spec is None:
            near = ", ".join(nearest_names(call.name, [tool.name for tool in self.offered_at(path)])) or "none"
            whose = "this run" if self.by_agent is None else f"the agent {self.agent_of(path)}"
            return ToolNotOffered(f"{call.name[:80]!r} was not offered.", f"Nearest tools of {whose}: {near}.")
        if call.unreadable is not None:
            return BadArguments(f"{spec.name}: {call.unreadable}.", "Send the arguments as one JSON object.")
        # No code of ours runs these, so none would check their arguments.
        if spec.is_caller_tool or REQUEST_MORE_ROUNDS.is_tool(spec):
            problems = compile_schema(spec.input_schema).problems(call.arguments)
            if problems:
                return BadArguments(f"{spec.name}: {'; '.join(problems)}.", "See the tool's schema.")
            if not spec.is_caller_tool and (lacking := find_wordless_texts(call.arguments)):
                return BadArguments(
                    f"{spec.name}: {'; '.join(lacking)}.",
                    "Say in sentences what is still to be done and why it takes so many rounds, and what was found.",
                )
        if not spec.is_caller_tool and (missing := self._missing_tool(spec)) is not None:
            return missing
        return self._check_rate(spec, at)

    def record_call(self, spec: ToolSpec | None, at: int) -> None:
        """Count a call towards the limit per minute; tools that only read have none."""
        if spec is not None and spec.effect != "read" and not self.is_contained(spec):
            self._calls[spec.name].append(at)

    def record_search(self, name: str, answer: Answer) -> None:
        """Offer from now on what a search found."""
        self._has_answers = True
        if self._is_search(name):
            self.offered_tools = add_discovered_tools(self.offered_tools, [(name, answer)])

    def reset(self) -> None:
        """Forget all calls, before the record is read again."""
        self._calls.clear()
        self._has_answers = False

    def _may_take_along(self, spec: ToolSpec) -> bool:
        """Whether a call of this tool may have a finding: before any answer there is nothing that one which reads, or
        one of a caller's tool of which nothing is stated, could take along."""
        needs_rows = spec.effect == "read" or (spec.is_caller_tool and spec.reaches is None)
        return self.has_material or self._has_answers or not needs_rows

    def judges_flow(self, spec: ToolSpec) -> bool:
        """Whether it matters what a call of this tool takes along. Cached for the run."""
        if (known := self._judged.get(spec.name)) is None:
            known = self._judged[spec.name] = self.flow.judges(spec)
        return known

    def _is_always_allowed(self, spec: ToolSpec) -> bool:
        """Whether every call of this tool may be made. Cached for the run, since most calls are of such tools."""
        if (known := self._always_allowed.get(spec.name)) is None:
            known = self._always_allowed[spec.name] = self.gate.allows_every_read(spec)
        return known

    def _secret_file_test(self, spec: ToolSpec) -> Callable[[str], bool] | None:
        """As `Gate.secret_file_test`. Cached for the run as well."""
        if spec.name not in self._secret_file_tests:
            self._secret_file_tests[spec.name] = self.gate.secret_file_test(spec)
        return self._secret_file_tests[spec.name]

    def _missing_tool(self, spec: ToolSpec) -> ToolNotOffered | None:
        """Why an offered tool can't be called: it was removed, waits for a person's approval, or has changed."""
        if self._is_search(spec.name) or (self.stage is not None and self.stage.find(spec.name) is not None):
            return None
        try:
            self.registry.resolve(spec)
        except ToolNotOffered as missing:
            return missing
        return None

    def _is_search(self, name: str) -> bool:
        """Whether this is the run's own tool search; where it has none, a caller's tool may have this name."""
        return name == SEARCH and (bool(self.searchable_tools) or self.late_globs is not None)

    def _late_tools(self) -> LateTools:
        """The tools that came after the start. Blocks for a moment while a source is still connecting."""
        if self.late_globs is None:
            return LateTools()
        globs = self.late_globs or None
        self.registry.wait_ready(globs, named_s=DEFAULT_WAIT_S)
        coming = self.registry.starting_sources(globs)
        initial = {spec.name for spec in (*self._initially_offered, *self.searchable_tools)}
        return LateTools(
            ToolSet([spec for spec in self.registry.select_available(globs) if spec.name not in initial]),
            coming,
            self.registry.notes(globs)[:MAX_NOTES],
        )

    def _check_rate(self, spec: ToolSpec, at: int) -> KairosError | None:
        recent = self._calls.get(spec.name)
        if recent is None:
            return None
        while recent and not 0 <= at - recent[0] < 60_000:  # a clock that was set back counts nothing twice
            recent.popleft()
        if len(recent) < CALLS_PER_MINUTE:
            return None
        seconds = -(-(60_000 - (at - recent[0])) // 1000)
        return Denied(
            f"{spec.name} was called {CALLS_PER_MINUTE} times within a minute.",
            f"Call it again in {count_of(seconds, 'second')}.",
        )
