"""Decide which tools a run may use and whether a call may be made, and what a person is asked where the gate says so.

`authorize` reads files for a preview, so it runs in a worker thread, before the call gets its row.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from kairos_mcp.core.builtin_tools import REQUEST_MORE_ROUNDS
from kairos_mcp.core.errors import BadArguments, Denied, KairosError, StaleFile, ToolNotOffered
from kairos_mcp.core.flow import Finding
from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import (
    SEARCH,
    ToolCall,
    ToolResult,
    ToolSet,
    ToolSpec,
    add_discovered_tools,
    canonical_json,
)
from kairos_mcp.core.paths import plain_path, printable_name, shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.secret_forms import MASK
from kairos_mcp.core.steps import Answer, CallTool
from kairos_mcp.core.text import count_of, make_visible, nearest_names
from kairos_mcp.core.tool import Preview, Tool, ToolContext, error_result
from kairos_mcp.execution.flow_view import FlowPolicy, FlowView, describe_finding
from kairos_mcp.execution.tool_calls import Allowed, Authorization
from kairos_mcp.gate import Gate, GatedCall, GateRuling, approval_digest, is_command, tool_pin
from kairos_mcp.store.approvals import KEY_SUFFIX, ApprovalRequest, ReusedApproval
from kairos_mcp.store.rules import CalledCommand, CallShape, RuleRow
from kairos_mcp.tools.files.safe_open import folder_identity
from kairos_mcp.tools.registry import DEFAULT_WAIT_S, MAX_NOTES, ToolRegistry
from kairos_mcp.tools.selection import LateTools, find_wordless_texts, search_tool
from kairos_mcp.tools.tool import format_call, preview_call
from kairos_mcp.tools.touched_paths import TouchedSet, read_named_paths, with_relative_paths

if TYPE_CHECKING:  # most runs have none
    from kairos_mcp.tools.stage.staged_tools import StagedTools

LISTED_PATHS = 20  # as many of the paths that a call touches are listed for the reviewer
EXACT_CHARS = 20_000  # of arguments that a remembered approval may hold
CALLS_PER_MINUTE = 30  # of one tool that does more than read


@dataclass(frozen=True, slots=True)
class ApprovalContext:
    """What an approval request needs: the workspace of the call, what must not be shown, how long it stays open, and
    whether programs run in a sandbox."""

    workspace: str | None
    redactor: Redactor
    lifetime_ms: int
    has_sandbox: bool = True


_ALLOWED = Allowed()


def authorize_at_once(gate: Gate, call: GatedCall, tool: Tool | None) -> Allowed | ToolResult | None:
    """Decide without looking at files: allowed or denied. None: `authorize` has to decide.

    A call that changes something and can be previewed always needs a look: its arguments may not name all that it
    touches. So does a call of another server's tool where paths make a difference: links may lead elsewhere.
    """
    if call.tool is not None and gate.reads_file_system(call.tool):
        return None
    verdict = gate.judge(call)
    match verdict.decision:
        case "deny":
            return gate_denial(call, verdict.reason)
        case "allow" if call.tool is not None and (call.tool.effect == "read" or tool is None or not tool.preview):
            return _ALLOWED
        case _:
            return None


def authorize(
    gate: Gate,
    call: GatedCall,
    tool: Tool | None,
    ctx: ToolContext,
    approval: ApprovalContext,
    stale: ToolResult | None = None,
    flow: FlowView | None = None,
    *,
    stage: StagedTools | None = None,
    find_spec: Callable[[str], ToolSpec | None] = lambda _name: None,
) -> Authorization:
    """Decide whether the call may be made, with a look at the files that it touches.

    `tool` is None for one of the caller's. `stale`: the answer where no rule denies the call, because others have
    changed its files unseen. `flow`: what is in view of the call; None where nothing leaves with it. `stage`: of the
    run. `find_spec`: of the run's tools. Never raises; blocks while files are read.
    """
    judge = gate.judge_contained if stage is not None and stage.contains(call.tool) else gate.judge
    spec, call = call.tool, gate.with_touched_paths(call)
    if spec is None or (first := judge(call)).decision == "deny":
        return gate_denial(call, "there is no tool of this name" if spec is None else first.reason)
    if (stale := stale or _refuse_unseen(stage, call, ctx)) is not None:
        return stale
    preview = Preview(format_call(spec, call.arguments)) if tool is None else preview_call(tool, call.arguments, ctx)
    if isinstance(preview, ToolResult):
        return preview
    is_private = not is_command(spec) and not all(
        gate.may_read_unasked(path, agent=call.agent, mandate=call.mandate) for path in preview.base_hashes
    )
    if preview.failure is not None and not is_private:
        return error_result(preview.failure)
    verdict = judge(replace(call, preview_paths=tuple(preview.base_hashes), brings_hidden=preview.brings_hidden))
    uncovered = _list_uncovered(gate, call, preview, find_spec)
    match verdict.decision:
        case "deny":
            return gate_denial(call, verdict.reason)
        case _ if is_private:
            return _ask_privately(spec, call, ctx, preview, approval)
        case _:
            seen = _look_at_flow(flow, verdict, call, ctx, approval)
    match verdict.decision:
        case _ if seen.found and flow is not None and flow.policy.mode == "deny":
            return flow_denial(spec, seen.warnings)
        case decision if not seen.warnings and (decision == "allow" or uncovered == ()):
            return Allowed()
        case decision:
            may_remember = verdict.may_remember and uncovered is None
            if decision == "allow":
                may_remember = not seen.paths and gate.may_remember(call)
            names_paths = gate.reads_file_system(spec)
            request = _ask(call, ctx, preview, approval, seen, names_paths=names_paths)
            shape = _shape_of(call, preview, approval) if may_remember and not seen.foreign_files else None
            covered = () if seen.foreign_files else _shapes_of(uncovered or (), approval)
            return replace(request, shape=shape, covered_by=covered)


def _ask(
    call: GatedCall,
    ctx: ToolContext,
    preview: Preview,
    approval: ApprovalContext,
    seen: _SeenFlow,
    *,
    names_paths: bool,
) -> ApprovalRequest:
    """Ask about a call. `names_paths`: what it must touch, no more and no less, are the paths that it names now."""
    spec, base = call.tool, preview.base_hashes
    assert spec is not None, "a person is asked about tools that exist"
    text = "".join(f"! {line}\n" for line in seen.warnings) + preview.text
    if names_paths and call.touched is not None and call.touched.names:
        base = {**base, **dict.fromkeys(call.touched.names)}
        text = f"{text}\ntouches {_format_touched_paths(call.touched)}"
    shown = format_preview(text, approval.redactor)
    return ApprovalRequest(
        key=ctx.path + KEY_SUFFIX,
        tool=spec.name,
        effect=spec.effect,
        digest=approval_digest(spec, call.arguments, approval.workspace, shown, base),
        preview=shown,
        base_hashes=base,
        valid_for_ms=approval.lifetime_ms,
        flow=seen.found,
    )


class _SeenFlow(NamedTuple):
    """What was seen of a call that others may have had a hand in: what it takes along, by its arguments and by `paths`,
    and the files that would get texts of others. `warnings`: for the person who is asked."""

    found: tuple[Finding, ...] = ()
    paths: Sequence[str] = ()
    foreign_files: Mapping[str, str] = MappingProxyType({})
    warnings: Sequence[str] = ()


def _look_at_flow(
    flow: FlowView | None, verdict: GateRuling, call: GatedCall, ctx: ToolContext, approval: ApprovalContext
) -> _SeenFlow:
    spec, found, paths = call.tool, tuple[Finding, ...](), list[str]()
    if flow is None or spec is None:
        return _SeenFlow()
    if flow.policy.judges(spec) and verdict.flow != "unwatched":
        paths = _existing(call.touched, approval.workspace)
        found = flow.judge(ctx.path, spec, call.arguments, paths, wish=verdict.flow == "clean")
    sources = flow.find_sources(ctx.path, ctx.written) if ctx.written else {}
    warnings = [describe_finding(each, spec.name) for each in found]
    warnings += [f"{printable_name(path)} holds words of others ({step})" for path, step in sources.items()]
    return _SeenFlow(found, paths, sources, warnings)


def sees_workspace(spec: ToolSpec) -> bool:
    """Whether a tool sees the workspace as it is, also in a run that works in a stage."""
    return spec.source != "builtin"


def _refuse_unseen(stage: StagedTools | None, call: GatedCall, ctx: ToolContext) -> ToolResult | None:
    """Return the answer of a call that names what the workspace does not hold yet; None for any other."""
    spec, paths = call.tool, () if call.touched is None else call.touched.inside
    if stage is None or spec is None or not sees_workspace(spec) or not (changed := stage.find_changed(paths, ctx)):
        return None
    names = ", ".join(map(shorten_path, changed[:LISTED_PATHS]))
    what = f"{names}: changed in this run's stage alone, and {spec.name} sees the workspace as it is."
    return error_result(StaleFile(what, "Call it once these changes have been submitted and applied."))


def _list_uncovered(
    gate: Gate, call: GatedCall, preview: Preview, find_spec: Callable[[str], ToolSpec | None]
) -> tuple[GatedCall, ...] | None:
    """Return those of the calls that this one implies which no rule lets be made unasked; None: it implies none, one of
    a tool that is gone, or a rule asks about this call itself."""
    if preview.implies is None or gate.asks_by_rule(call):
        return None
    uncovered = []
    for each in preview.implies:
        if (spec := find_spec(each.tool)) is None:
            return None
        paths = () if is_command(spec) else (each.path,)
        made = gate.with_touched_paths(GatedCall(spec, each.arguments, call.agent, call.mandate, paths))
        if gate.judge(made).decision != "allow":
            uncovered.append(made)
    return tuple(uncovered)


def _shapes_of(calls: Sequence[GatedCall], approval: ApprovalContext) -> tuple[CallShape, ...]:
    """Return what rules for these calls would be about; none if one of them can't have a rule."""
    shapes = [_shape_of(each, Preview("", dict.fromkeys(each.preview_paths)), approval) for each in calls]
    return tuple(shape for shape in shapes if shape is not None) if all(shapes) else ()


def _ask_privately(
    spec: ToolSpec, call: GatedCall, ctx: ToolContext, preview: Preview, approval: ApprovalContext
) -> ApprovalRequest:
    """Ask about a call on a file that may not be read unasked. Whoever called is shown its own arguments and a random
    digest; the diff, or why the call does not fit, is for the person alone. No rule is made of it: it would let others
    ask what the file holds."""
    found = preview.text if preview.failure is None else f"It does not fit: {preview.failure}"
    return ApprovalRequest(
        key=ctx.path + KEY_SUFFIX,
        tool=spec.name,
        effect=spec.effect,
        digest=secrets.token_hex(32),
        preview=format_preview(format_call(spec, call.arguments), approval.redactor),
        base_hashes=preview.base_hashes,
        valid_for_ms=approval.lifetime_ms,
        private_preview=format_preview(found, approval.redactor),
    )


def _shape_of(call: GatedCall, preview: Preview, approval: ApprovalContext) -> CallShape | None:
    """Return what a rule for such calls would be about; None where each is to be asked about: several files, a program
    without a sandbox or one that can't be told from another, arguments that nobody would look through."""
    spec = call.tool
    assert spec is not None, "a person is asked about tools that exist"
    pin = spec.name if spec.source == "builtin" else tool_pin(spec)
    folder = folder_identity(approval.workspace) if approval.workspace is not None else None
    shape = CallShape(spec.name, pin, folder)
    if is_command(spec):
        program = call.program.safe if call.program is not None else ()
        if not (program and approval.has_sandbox):
            return None
        arguments, cwd = call.arguments["argv"][1:], plain_path(call.arguments.get("cwd") or ".")
        return replace(shape, command=CalledCommand(program, tuple(arguments), cwd))
    if spec.source == "builtin" and spec.effect == "checked":
        paths = {*preview.base_hashes, *(call.touched.inside if call.touched is not None else ())}
        return replace(shape, path=paths.pop()) if len(paths) == 1 else None
    exact = canonical_json(call.arguments)
    return replace(shape, arguments=exact) if len(exact) <= EXACT_CHARS else None


def with_rule(request: ApprovalRequest, rule: RuleRow) -> ReusedApproval:
    """Return the approval that a remembered one gives to this call. It holds for no particular content of files: nobody
    was shown any; what another program's call touches stays what was judged."""
    paths = [path for path, content in request.base_hashes.items() if content is None]
    base = {} if request.shape is not None and request.shape.path is not None else dict.fromkeys(paths)
    return ReusedApproval(replace(request, base_hashes=base), rule.by, rule.name, "rule")


def _existing(touched: TouchedSet | None, workspace: str | None) -> list[str]:
    """Return the files and folders that there are among the texts which a call may mean as paths."""
    inside = () if touched is None or workspace is None else touched.inside
    return [path for path in inside if path != "." and os.path.lexists(os.path.join(workspace or "", path))]


def flow_denial(spec: ToolSpec, warnings: Sequence[str]) -> ToolResult:
    """The result of a call that is not made for what it takes along, where nobody is asked."""
    hint = "Ask for a link as it stands, or for open words alone; or go on without it."
    return error_result(Denied(f"{spec.name} was not run: this call {'; '.join(warnings)}.", hint))


def _format_touched_paths(touched: TouchedSet) -> str:
    """List what a call touches, for the person who is asked about it."""
    parts = [*touched.inside, *(f"{path} (outside the workspace)" for path in touched.outside)]
    parts += [f"{json.dumps(text, ensure_ascii=False)} (can't be resolved)" for text in touched.unresolved]
    more = f" and {len(parts) - LISTED_PATHS} more" if len(parts) > LISTED_PATHS else ""
    return ", ".join(parts[:LISTED_PATHS]) + more


def gate_denial(call: GatedCall, because: str) -> ToolResult:
    """The result of a call that the gate denies."""
    name = call.tool.name if call.tool is not None else "The tool"
    return error_result(Denied(f"{name} was not run: {because}.", "Go on without it, or say what you would do."))


def format_preview(text: str, redactor: Redactor) -> str:
    """Format the preview as it is stored, shown and approved: redacted, with warnings before it."""
    visible, warnings = make_visible(redactor.redact_text(text).text)
    count = visible.count(MASK)
    hidden = (f"{count_of(count, 'secret')} {'is' if count == 1 else 'are'} not shown",) if count else ()
    if any(line[:1] in ("+", "-") and MASK in line for line in visible.split("\n")):
        hidden = (*hidden, "a value that is not shown changes, comes or goes: look at the lines with " + MASK)
    return "".join(f"! {warning}\n" for warning in (*hidden, *warnings)) + visible


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
            return _ALLOWED
        if self.judges_flow(spec) and self._may_take_along(spec):
            return None
        if self.stage is not None and (self.is_contained(spec) or sees_workspace(spec)):
            return None
        if self._is_always_allowed(spec):
            return _ALLOWED
        is_secret = self._secret_file_test(spec)
        if is_secret is not None and not any(map(is_secret, read_named_paths(spec, step.call.arguments))):
            return _ALLOWED
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
