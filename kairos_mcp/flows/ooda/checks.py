"""Acceptance checks: fixed before the first cycle, judged by what a call finds, never by what a model says."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kairos_mcp.core.mandate import Check, CommandCheck, FileCheck
from kairos_mcp.core.messages import JsonObject, ToolCall, ToolResult
from kairos_mcp.core.steps import CallTool, Flow, Refused, Unknown
from kairos_mcp.flows.ooda.context import CycleContext
from kairos_mcp.flows.ooda.orient import describe_check
from kairos_mcp.flows.ooda.shown import REASON_CHARS, truncate_text
from kairos_mcp.flows.ooda.structured_answer import PhaseFailure, phase_failure

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
        json_fields = {"holds": self.holds, "why": self.why, "remark": self.remark}
        return self.check.as_json() | {name: value for name, value in json_fields.items() if value is not None}


def run_checks(context: CycleContext, name: str) -> Flow[tuple[CheckResult, ...] | PhaseFailure]:
    """Steps: `NAME/check-N`, one after another, since a command may change what the next one finds."""
    found: list[CheckResult] = []
    for number, check in enumerate(context.mandate.acceptance, 1):
        path = f"{name}/check-{number}"
        match (yield from CallTool(path, _check_call(check, path))):
            case Refused() | Unknown() as stop:
                return phase_failure(stop)
            case result:
                judged = _judge_check(context, check, path, result)
                remark = (
                    None
                    if result.remark is None
                    else truncate_text(result.remark, REASON_CHARS, context.phase_prompts.left_out, path)
                )
                found.append(replace(judged, remark=remark))
    return tuple(found)


def _check_call(check: Check, path: str) -> ToolCall:
    match check:
        case FileCheck(path=file, text=None):
            return ToolCall(path, CHECK_FILE, {"path": file})
        case FileCheck(path=file, text=wanted):
            return ToolCall(path, CHECK_FILE, {"path": file, "text": wanted})
        case CommandCheck(argv=argv, cwd=cwd):
            return ToolCall(path, RUN_COMMAND, {"argv": list(argv)} | ({} if cwd is None else {"cwd": cwd}))


def _judge_check(context: CycleContext, check: Check, path: str, result: ToolResult) -> CheckResult:
    match check, result:
        case _, ToolResult(is_error=True, content=content):
            return CheckResult(check, False, truncate_text(content, REASON_CHARS, context.phase_prompts.left_out, path))
        case CommandCheck(), _:
            return CheckResult(check, True)  # a command that ends with anything but 0 is an error result
        case FileCheck(text=None), ToolResult(data={"exists": True}):
            return CheckResult(check, True)
        case FileCheck(text=str()), ToolResult(data={"contains": True}):
            return CheckResult(check, True)
        case _:
            return CheckResult(check, False, f"It is not so that {describe_check(check)}.")
