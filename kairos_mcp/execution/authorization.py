"""Whether a call may be made, and what a person is asked where the gate says so.

Reads files for a preview, so it is called in a worker thread, before the turn that marks the call.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from kairos_mcp.core.counting import count_of
from kairos_mcp.core.decision_rights import decision_way
from kairos_mcp.core.errors import Denied
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.secret_forms import MASK
from kairos_mcp.core.text import make_visible
from kairos_mcp.gate import Gate, ToolCallRequest, approval_digest
from kairos_mcp.store.approvals import SUFFIX, ApprovalRequest, ApprovalRow, ReusedApproval
from kairos_mcp.store.settlements import SettlementRequest
from kairos_mcp.tools.tool import Preview, Tool, ToolContext, as_arguments, failed, previewed
from kairos_mcp.tools.touched_paths import TouchedSet

LISTED = 20  # of the paths that a call touches


@dataclass(frozen=True, slots=True)
class Allowed:
    """The call may be made. `again`: because a person gave leave for exactly this before."""

    again: ReusedApproval | None = None


@dataclass(frozen=True, slots=True)
class ApprovalContext:
    """Where a person is asked: the workspace that the call is made in, what must not be shown, how long they have."""

    workspace: str | None
    mask: Redactor
    lasts_ms: int


Considered = Allowed | ToolResult | ApprovalRequest
"""Leave to make a call, the result that it has without being made, or what a person is to be asked."""


def goes_at_once(gate: Gate, wanted: ToolCallRequest, tool: Tool | None) -> Allowed | ToolResult | None:
    """What can be said of a call without a look at any file: leave, a refusal; None where `considered` has to tell.

    A call that changes something and can be previewed is always looked at: what it touches may stand nowhere in its
    arguments. So is one of a tool that is not ours, where its paths make a difference: links may lead them elsewhere.
    """
    if wanted.tool is not None and gate.reads_file_system(wanted.tool):
        return None
    verdict = gate.verdict(wanted)
    match verdict.decision:
        case "deny":
            return refusal(wanted, verdict.reason)
        case "allow" if wanted.tool is not None and (wanted.tool.effect == "read" or tool is None or not tool.preview):
            return Allowed()
        case _:
            return None


def considered(
    gate: Gate, wanted: ToolCallRequest, tool: Tool | None, around: ToolContext, asked: ApprovalContext
) -> Considered:
    """Leave to make the call, the result that it has without being made, or what a person is to be asked.

    `tool` None: one of the caller's. Never raises; blocks while files are read.
    """
    spec, wanted = wanted.tool, gate.with_touched_paths(wanted)
    if spec is None or (first := gate.verdict(wanted)).decision == "deny":
        return refusal(wanted, "nobody knows this tool" if spec is None else first.reason)
    preview = (
        Preview(as_arguments(spec, wanted.arguments)) if tool is None else previewed(tool, wanted.arguments, around)
    )
    if isinstance(preview, ToolResult):
        return preview
    verdict = gate.verdict(replace(wanted, found=tuple(preview.base), brings_hidden=preview.brings_hidden))
    match verdict.decision:
        case "allow":
            return Allowed()
        case "deny":
            return refusal(wanted, verdict.reason)
        case "ask":
            base = preview.base
            text = preview.text
            if gate.reads_file_system(spec) and wanted.touched is not None and wanted.touched.names:
                base = {**base, **dict.fromkeys(wanted.touched.names)}  # what the call must touch, no more and no less
                text = f"{text}\ntouches {_listed(wanted.touched)}"
            shown = as_shown(text, asked.mask)
            return ApprovalRequest(
                key=around.path + SUFFIX,
                tool=spec.name,
                effect=spec.effect,
                digest=approval_digest(spec, wanted.arguments, asked.workspace, shown, base),
                preview=shown,
                base=base,
                lasts_ms=asked.lasts_ms,
            )


def _listed(touched: TouchedSet) -> str:
    """What a call touches, as a person reads it before the call is made."""
    parts = [*touched.inside, *(f"{path} (outside the workspace)" for path in touched.outside)]
    parts += [f"{json.dumps(text, ensure_ascii=False)} (can't be resolved)" for text in touched.unresolved]
    more = f" and {len(parts) - LISTED} more" if len(parts) > LISTED else ""
    return ", ".join(parts[:LISTED]) + more


def refusal(wanted: ToolCallRequest, because: str) -> ToolResult:
    """The result of a call that the gate denies."""
    name = wanted.tool.name if wanted.tool is not None else "The tool"
    return failed(Denied(f"{name} was not run: {because}.", "Go on without it, or say what you would do."))


def told(row: ApprovalRow) -> ToolResult:
    """The result of a call that a person denied; what they said reaches the model."""
    said = f" They say: {row.feedback}" if row.feedback else ""
    return failed(
        Denied(f"A person denied {row.tool}; nothing was changed.{said}", "Do it otherwise, or go on without.")
    )


def remark_of(row: ApprovalRow) -> str | None:
    """What a person said when they approved a call, as a model is told it beside the result."""
    if row.verdict != "approve" or not row.feedback:
        return None
    return f"A person approved {row.tool}. They say: {row.feedback}"


def as_shown(text: str, mask: Redactor) -> str:
    """The preview as it is stored, shown and approved: what is remarkable about it goes before it."""
    masked = mask.text(text)
    visible, remarks = make_visible(masked.text)
    count = visible.count(MASK)
    secrets = (f"{count_of(count, 'secret')} {'is' if count == 1 else 'are'} not shown",) if count else ()
    if any(line[:1] in ("+", "-") and MASK in line for line in visible.split("\n")):
        secrets = (*secrets, "a value that is not shown changes, comes or goes: look at the lines with " + MASK)
    return "".join(f"! {remark}\n" for remark in (*secrets, *remarks)) + visible


def settled_result(said: SettlementRequest, through: str) -> ToolResult:
    """The result of a call that somebody says was made before a crash: nobody knows what it gave. `through`: what they
    said it through, as the record has it."""
    who = "Whoever called this server says" if decision_way(through) == "argument" else "A person looked"
    noted = f" They say: {said.note}" if said.note else ""
    return ToolResult(f"The server ended during this call. {who}: it was carried out.{noted}")
