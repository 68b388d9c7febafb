"""Decide whether a call may be made, and what a person is asked where the gate says so.

`authorize` reads files for a preview, so it runs in a worker thread, before the call gets its row.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from kairos_mcp.core.errors import Denied, StaleFile
from kairos_mcp.core.flow import Finding
from kairos_mcp.core.hidden_text import make_visible
from kairos_mcp.core.messages import (
    JsonObject,
    ToolResult,
    ToolSet,
    ToolSpec,
    canonical_json,
)
from kairos_mcp.core.paths import plain_path, printable_name, shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.secret_forms import MASK
from kairos_mcp.core.text import count_of
from kairos_mcp.core.tool import Preview, Tool, ToolContext, error_result
from kairos_mcp.execution.flow_view import FlowView, describe_finding
from kairos_mcp.execution.tool_calls import Allowed, Authorization
from kairos_mcp.gate import Gate, GateRuling
from kairos_mcp.gate_calls import GatedCall, is_command
from kairos_mcp.store import mandates, rules
from kairos_mcp.store.approvals import KEY_SUFFIX, ApprovalRequest, ReusedApproval
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session
from kairos_mcp.store.rules import CalledCommand, CallShape
from kairos_mcp.tools.files.safe_open import folder_identity
from kairos_mcp.tools.tool import format_call, preview_call
from kairos_mcp.tools.touched_paths import TouchedSet

if TYPE_CHECKING:  # most runs have none
    from kairos_mcp.tools.stage.staged_tools import StagedTools

LISTED_PATHS = 20  # as many of the paths that a call touches are listed for the reviewer
EXACT_CHARS = 20_000  # of arguments that a remembered approval may hold


@dataclass(frozen=True, slots=True)
class ApprovalContext:
    """What an approval request needs: the workspace of the call, what must not be shown, how long it stays open, and
    whether programs run in a sandbox."""

    workspace: str | None
    redactor: Redactor
    lifetime_ms: int
    has_sandbox: bool = True


ALLOWED = Allowed()


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
            return ALLOWED
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


def tool_pin(tool: ToolSpec) -> str:
    """Return what binds an approval to this tool: a hash of its name, description, schema, effect, source and
    labels."""
    labels = canonical_json([tool.source, tool.reaches, tool.trusted, tool.private, *(tool.texts or ())])
    return sha256(ToolSet([tool]).digest + labels.encode()).hexdigest()


def approval_digest(
    tool: ToolSpec, arguments: JsonObject, workspace: str | None, preview: str, base: Mapping[str, str | None]
) -> str:
    """Return the SHA-256 in hex of exactly what approval is asked for: another value is another request.

    It covers the tool and its pin, the arguments, the workspace, the preview, and the files that the call depends on.
    """
    request = [tool.name, tool_pin(tool), arguments, workspace, preview, dict(base)]
    return sha256(canonical_json(request).encode()).hexdigest()


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
        reads = tuple(call.arguments.get("reads") or ())
        return replace(shape, command=CalledCommand(program, tuple(arguments), cwd, reads))
    if spec.source == "builtin" and spec.effect == "checked":
        paths = {*preview.base_hashes, *(call.touched.inside if call.touched is not None else ())}
        return replace(shape, path=paths.pop()) if len(paths) == 1 else None
    exact = canonical_json(call.arguments)
    return replace(shape, arguments=exact) if len(exact) <= EXACT_CHARS else None


def find_earlier_approval(
    session: Session, run: RunRow, mandate_text: str | None, path: str, request: ApprovalRequest
) -> ReusedApproval | None:
    """Return the approval that was given before and lets this call through: of the same check of the mandate, or one
    that a person had remembered.

    A remembered one holds for no particular content of files: nobody was shown any; what another program's call touches
    stays what was judged.
    """
    if mandate_text is not None and mandates.is_check_step(path):
        found = mandates.find_check_approval(session, run, mandate_text, request)
        if found is not None:
            return found
    shapes = request.covered_by or (() if request.shape is None else (request.shape,))
    found_rules = [rules.find_rule(session, run, shape) for shape in shapes]
    rule = found_rules[0] if found_rules and all(found_rules) else None
    if rule is None:
        return None
    paths = [path for path, content in request.base_hashes.items() if content is None]
    base = {} if request.shape is not None and request.shape.path is not None else dict.fromkeys(paths)
    return ReusedApproval(replace(request, base_hashes=base), rule.by, rule.name, "rule")


def _existing(touched: TouchedSet | None, workspace: str | None) -> list[str]:
    """Return the files and folders that there are among the texts which a call may mean as paths."""
    inside = () if touched is None or workspace is None else touched.inside
    return [path for path in inside if path != "." and os.path.lexists(os.path.join(workspace or "", path))]


def flow_denial(spec: ToolSpec, warnings: Sequence[str]) -> ToolResult:
    """The result of a call that is not made for what it takes along, where nobody is asked."""
    hint = "Use a link exactly as it was given, or words that are not private; or go on without it."
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
