"""How a decision becomes a call, and what its result means: the one place that names the tools which change files.

A call states what was read: `base` maps each path to the SHA-256 in hex of what it held, null where there was no
file. The tools compare it with what they find, before a person is asked and again before they write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kairos_mcp.core.messages import JsonObject, ToolCall, ToolResult, canonical_json, digest_of
from kairos_mcp.flows.ooda.context import EDITING, Effect
from kairos_mcp.flows.ooda.decision import CodeEdit, CreateFile, Decision, EditPlan, Noop, RunTool

ActStatus = Literal["applied", "noop", "denied", "unsupported", "failed"]

_DENIED = frozenset(
    {"denied", "approval_expired", "approvals_full", "command_denied", "egress_denied", "path_denied"}
)  # fmt: skip
_UNSUPPORTED = frozenset({"tool_not_offered", "unknown_tool"})
_SAID_CHARS = 300


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file with the SHA-256 in hex of what it held before and after, None: no file."""

    path: str
    before: str | None
    after: str | None

    def as_json(self) -> JsonObject:
        return {"path": self.path, "before": self.before, "after": self.after}


def call_for(decision: Decision, path: str) -> ToolCall | None:
    """The call that carries the decision out, as step `path`; None for a noop."""
    match decision:
        case CodeEdit(edit=edit, base=base):
            return ToolCall(path, "edit_file", {**edit.as_json(), "base": dict(base)})
        case EditPlan(edits=edits, base=base):
            return ToolCall(path, "apply_edits", {"edits": [edit.as_json() for edit in edits], "base": dict(base)})
        case CreateFile(target=target, content=content):
            return ToolCall(path, "write_file", {"path": target, "content": content, "base": {target: None}})
        case RunTool(tool=tool, arguments=arguments):
            return ToolCall(path, tool, arguments)
        case Noop():
            return None


def status_of(result: ToolResult) -> ActStatus:
    """What the call came to, by its code alone."""
    if not result.is_error:
        return "applied"
    if result.code in _DENIED:
        return "denied"
    return "unsupported" if result.code in _UNSUPPORTED else "failed"


def changed_files(name: str, result: ToolResult) -> tuple[ChangedFile, ...]:
    """The files that a call of ours changed, from its data; what another tool says of files is a claim."""
    match result.data:
        case {"files": list(files)} if name in EDITING:
            return tuple(ChangedFile(each["path"], each["before"], each["after"]) for each in files)
        case _:
            return ()


def effect_of(decision: Decision, status: ActStatus, result: ToolResult | None) -> Effect:
    """The effect as loops are found by it: tool, canonical arguments, and what was there afterwards. What was not
    applied counts by its arguments; what was read before does not count."""
    call = call_for(decision, "")
    name, arguments = (call.name, call.arguments) if call is not None else ("noop", {})
    asked = canonical_json(
        {key: value for key, value in arguments.items() if key != "base"} if name in EDITING else arguments
    )
    after = _state_after(name, result) if status == "applied" and result is not None else status.encode()
    return Effect(digest_of(name.encode(), asked.encode(), after).hex(), _describe_effect(decision, status, result))


def _state_after(name: str, result: ToolResult) -> bytes:
    if files := changed_files(name, result):
        return canonical_json([[each.path, each.after] for each in files]).encode()
    return result.digest


def _describe_effect(decision: Decision, status: ActStatus, result: ToolResult | None) -> str:
    match decision:
        case Noop(reason=reason):
            return f"noop: {_shorten(reason)}"
        case CodeEdit(edit=edit, intent=intent):
            what = f"code_edit of {edit.path}"
        case EditPlan(edits=edits, intent=intent):
            what = f"edit_plan of {', '.join(dict.fromkeys(edit.path for edit in edits))}"
        case CreateFile(target=target, intent=intent):
            what = f"create_file {target}"
        case RunTool(tool=tool, arguments=arguments, intent=intent):
            what = f"run_tool {tool} {_shorten(canonical_json(arguments))}"
    why = f": {_shorten(result.content)}" if result is not None and result.is_error else ""
    also = f". {_shorten(result.remark)}" if result is not None and result.remark is not None else ""
    return f"{what} ({_shorten(intent)}): {status}{why}{also}"


def _shorten(text: str) -> str:
    """The beginning, on one line; the whole is in the record of the act."""
    line = " ".join(text.split())
    return line if len(line) <= _SAID_CHARS else f"{line[:_SAID_CHARS]}…"
