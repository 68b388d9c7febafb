"""Acceptance checks: fixed before the first cycle, judged by what a call finds, never by what a model says (O20)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kairos_mcp.core.mandate import Check, CommandCheck, FileCheck
from kairos_mcp.core.messages import JsonObject, ToolCall, ToolResult
from kairos_mcp.core.steps import CallTool, Flow, Refused, Unknown
from kairos_mcp.flows.ooda.context import CycleContext
from kairos_mcp.flows.ooda.orient import said
from kairos_mcp.flows.ooda.shown import REASON_CHARS, cut
from kairos_mcp.flows.ooda.structured_answer import PhaseFailure, broken_by

CHECK_FILE = "check_file"
RUN_COMMAND = "run_command"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check with its verdict; one that could not be judged does not hold, and `why` says so. `remark`: what a person
    said who approved the command that judged."""

    check: Check
    holds: bool
    why: str | None = None
    remark: str | None = None

    def as_json(self) -> JsonObject:
        told = {"holds": self.holds, "why": self.why, "remark": self.remark}
        return self.check.as_json() | {name: value for name, value in told.items() if value is not None}


def checked(order: CycleContext, name: str) -> Flow[tuple[CheckResult, ...] | PhaseFailure]:
    """Steps: `NAME/check-N`, one after another, since a command may change what the next one finds."""
    found: list[CheckResult] = []
    for number, check in enumerate(order.mandate.acceptance, 1):
        path = f"{name}/check-{number}"
        match (yield from CallTool(path, _call(check, path))):
            case Refused() | Unknown() as stop:
                return broken_by(stop)
            case result:
                judged = _judged(order, check, path, result)
                remark = None if result.remark is None else cut(result.remark, REASON_CHARS, order.says.left_out, path)
                found.append(replace(judged, remark=remark))
    return tuple(found)


def _call(check: Check, path: str) -> ToolCall:
    match check:
        case FileCheck(path=file, text=None):
            return ToolCall(path, CHECK_FILE, {"path": file})
        case FileCheck(path=file, text=wanted):
            return ToolCall(path, CHECK_FILE, {"path": file, "text": wanted})
        case CommandCheck(argv=argv, cwd=cwd):
            return ToolCall(path, RUN_COMMAND, {"argv": list(argv)} | ({} if cwd is None else {"cwd": cwd}))


def _judged(order: CycleContext, check: Check, path: str, result: ToolResult) -> CheckResult:
    match check, result:
        case _, ToolResult(is_error=True, content=content):
            return CheckResult(check, False, cut(content, REASON_CHARS, order.says.left_out, path))
        case CommandCheck(), _:
            return CheckResult(check, True)  # a command that ends with anything but 0 is an error result
        case FileCheck(text=None), ToolResult(data={"exists": True}):
            return CheckResult(check, True)
        case FileCheck(text=str()), ToolResult(data={"contains": True}):
            return CheckResult(check, True)
        case _:
            return CheckResult(check, False, f"It is not so that {said(check)}.")
