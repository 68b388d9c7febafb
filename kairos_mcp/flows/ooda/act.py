"""Act: carry out the decision by exactly one call, if the mandate's limits and its risk budget allow it.

The one place that names the tools which change files. A call states what was read: `base` maps each path to the
SHA-256 in hex of what it held, null where there was no file. The tools compare it with what they find, before a person
is asked and again before they write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from kairos_mcp.core.builtin_tools import APPLY_EDITS, CONTAINED_TOOLS, EDIT_FILE, EDIT_TOOLS, WRITE_FILE
from kairos_mcp.core.input_checks import Undecodable
from kairos_mcp.core.json_schema import compile_schema, object_schema, text_schema
from kairos_mcp.core.mandate import RISK_PAUSE
from kairos_mcp.core.messages import JsonObject, ToolCall, ToolResult, canonical_json, digest_of
from kairos_mcp.core.paths import RISKS, Risk
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import CallTool, Flow, Pause, Refused
from kairos_mcp.core.text import truncate
from kairos_mcp.flows.ooda.context import ActEffect, CycleContext
from kairos_mcp.flows.ooda.decision import (
    CodeEdit,
    CreateFile,
    Decision,
    EditPlan,
    Noop,
    RunTool,
    decision_json,
    parse_decision,
)
from kairos_mcp.flows.ooda.decision_checks import assess_risk, find_problems
from kairos_mcp.flows.ooda.phase_flow import PhaseFlow
from kairos_mcp.flows.ooda.prompts import MAX_RESULT_CHARS, truncate_text
from kairos_mcp.flows.structured_answer import PhaseFailure, phase_failure

ActStatus = Literal["applied", "staged", "noop", "denied", "unsupported", "failed"]

CARRIED_OUT = ("applied", "staged")
_DENIED = frozenset(
    {"denied", "approval_expired", "approvals_full", "command_denied", "egress_denied", "path_denied"}
)  # fmt: skip
_UNSUPPORTED = frozenset({"tool_not_offered", "unknown_tool"})
_EFFECT_CHARS = 300  # of each text in the description of an effect


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file with the SHA-256 in hex of its content before and after; None where there was no file."""

    path: str
    before: str | None
    after: str | None

    def as_json(self) -> JsonObject:
        return {"path": self.path, "before": self.before, "after": self.after}


def make_call(decision: Decision, path: str) -> ToolCall | None:
    """Make the call that carries the decision out, as the step `path`; None for a noop."""
    match decision:
        case CodeEdit(edit=edit, base=base):
            return ToolCall(path, EDIT_FILE.name, {**edit.as_json(), "base": dict(base)})
        case EditPlan(edits=edits, base=base):
            return ToolCall(path, APPLY_EDITS.name, {"edits": [edit.as_json() for edit in edits], "base": dict(base)})
        case CreateFile(target=target, content=content):
            return ToolCall(path, WRITE_FILE.name, {"path": target, "content": content, "base": {target: None}})
        case RunTool(tool=tool, arguments=arguments):
            return ToolCall(path, tool, arguments)
        case Noop():
            return None


def act_status(result: ToolResult, *, is_contained: bool = False) -> ActStatus:
    """Return the status of an act from the code of its call's result. `is_contained`: it wrote in the stage alone."""
    if not result.is_error:
        return "staged" if is_contained else "applied"
    if result.code in _DENIED:
        return "denied"
    return "unsupported" if result.code in _UNSUPPORTED else "failed"


def changed_files(name: str, result: ToolResult) -> tuple[ChangedFile, ...]:
    """Return the files that a call changed, from its data. Only our own editing tools are believed."""
    match result.data:
        case {"files": list(files)} | {"staged": list(files)} if name in EDIT_TOOLS:
            return tuple(ChangedFile(each["path"], each["before"], each["after"]) for each in files)
        case _:
            return ()


def make_effect(decision: Decision, status: ActStatus, result: ToolResult | None) -> ActEffect:
    """Make the effect by which loops are found, from tool, canonical arguments and the state afterwards.

    Where nothing was applied, the status stands in place of the state. The hashes of what was read don't count.
    """
    call = make_call(decision, "")
    name, arguments = (call.name, call.arguments) if call is not None else ("noop", {})
    if name in EDIT_TOOLS:
        arguments = {key: value for key, value in arguments.items() if key != "base"}
    after = _state_after(name, result) if status in CARRIED_OUT and result is not None else status.encode()
    digest = digest_of(name.encode(), canonical_json(arguments).encode(), after)
    return ActEffect(digest.hex(), _describe_effect(decision, status, result))


def _state_after(name: str, result: ToolResult) -> bytes:
    if files := changed_files(name, result):
        return canonical_json([[file.path, file.after] for file in files]).encode()
    return result.digest


def _describe_effect(decision: Decision, status: ActStatus, result: ToolResult | None) -> str:
    match decision:
        case Noop(reason=reason):
            return f"noop: {_shorten(reason)}"
        case CodeEdit(edit=edit, intent=intent):
            action = f"code_edit of {edit.path}"
        case EditPlan(edits=edits, intent=intent):
            action = f"edit_plan of {', '.join(dict.fromkeys(edit.path for edit in edits))}"
        case CreateFile(target=target, intent=intent):
            action = f"create_file {target}"
        case RunTool(tool=tool, arguments=arguments, intent=intent):
            action = f"run_tool {tool} {_shorten(canonical_json(arguments))}"
    reason = f": {_shorten(result.content)}" if result is not None and result.is_error else ""
    remark = f". {_shorten(result.remark)}" if result is not None and result.remark is not None else ""
    return f"{action} ({_shorten(intent)}): {status}{reason}{remark}"


def _shorten(text: str) -> str:
    """Return the beginning of a text, on one line; all of it is in the record of the act."""
    return truncate(" ".join(text.split()), _EFFECT_CHARS)


@dataclass(frozen=True, slots=True)
class ActResult:
    """The record of an act.

    `code` and `reason` say why it was not applied, with a reviewer's feedback. `result` is the beginning of the call's
    result; `ref` leads to all of it. `remark` is the reviewer's comment on an approved call. Acts with an equal
    `effect` count as repeated.
    """

    status: ActStatus
    decision: Decision
    risk: Risk
    effect: ActEffect
    files: tuple[ChangedFile, ...] = ()
    code: str | None = None
    reason: str | None = None
    result: str | None = None
    ref: str | None = None
    remark: str | None = None

    def as_json(self) -> JsonObject:
        json_fields: JsonObject = {
            "status": self.status,
            "decision": decision_json(self.decision),
            "risk": self.risk,
            "files": [file.as_json() for file in self.files],
            "code": self.code,
            "reason": self.reason,
            "result": self.result,
            "ref": self.ref,
            "remark": self.remark,
            "effect": self.effect.as_json(),
        }
        return {name: value for name, value in json_fields.items() if value is not None}


_TEXT_KEYS = ("code", "reason", "result", "ref", "remark")
_HASH: JsonObject = {"type": ["string", "null"], "maxLength": 64}
ACT_RESULT_SCHEMA = object_schema(
    ("status", "decision", "risk", "files", "effect"),
    status={"enum": list(get_args(ActStatus))},
    decision={"type": "object"},
    risk={"enum": list(RISKS)},
    files={
        "type": "array",
        "items": object_schema(("path", "before", "after"), path=text_schema(4_096), before=_HASH, after=_HASH),
    },
    code=text_schema(64),
    reason=text_schema(8_000, 0),
    result=text_schema(8_000, 0),
    ref=text_schema(512),
    remark=text_schema(8_000),
    effect=object_schema(("digest", "said"), digest=text_schema(64), said=text_schema(8_000)),
)


def parse_act_result(given: JsonObject) -> ActResult:
    """Parse what `ActResult.as_json` returned. Raises Undecodable."""
    if problems := compile_schema(ACT_RESULT_SCHEMA).problems(given):
        raise Undecodable("; ".join(problems))
    rest: dict[str, Any] = {name: given[name] for name in _TEXT_KEYS if name in given}
    files = tuple(ChangedFile(**file) for file in given["files"])
    effect = ActEffect(**given["effect"])
    return ActResult(given["status"], parse_decision(given["decision"]), given["risk"], effect, files, **rest)


def act(
    context: CycleContext, name: str, decision: Decision, at_pause: Callable[[ActResult], JsonObject] | None = None
) -> Flow[ActResult | PhaseFailure]:
    """Carry out the decision. Steps: `NAME/call-1`, or the pause `NAME/risk`.

    A decision whose risk is above the budget is never carried out: it is recorded as denied. Where `at_pause` is
    given, the flow pauses first, and `at_pause` makes what is reported meanwhile.
    """
    risk = assess_risk(context, decision)
    if problems := find_problems(context, decision):
        return _not_applied(decision, "unsupported", risk, "bad_arguments", f"{'; '.join(problems)}.")
    if RISKS.index(risk) > RISKS.index(context.mandate.risk_budget):
        budget = context.mandate.risk_budget
        denied = _not_applied(
            decision, "denied", risk, "risk", f"Its risk is {risk}; the mandate's budget is {budget}."
        )
        if at_pause is not None:
            yield from Pause(f"{name}/risk", RISK_PAUSE, at_pause(denied))
        return denied
    call = make_call(decision, f"{name}/call-1")
    if call is None:
        return ActResult("noop", decision, risk, make_effect(decision, "noop", None))
    match (yield from CallTool(call.id, call, decision.risk or "low")):
        case Refused() as stop:
            return phase_failure(stop)
        case result:
            return _act_result(context, decision, risk, call, result)


def _not_applied(decision: Decision, status: ActStatus, risk: Risk, code: str, reason: str) -> ActResult:
    result = ToolResult(reason, is_error=True, code=code)
    return ActResult(status, decision, risk, make_effect(decision, status, result), code=code, reason=reason)


def _act_result(context: CycleContext, decision: Decision, risk: Risk, call: ToolCall, result: ToolResult) -> ActResult:
    status = act_status(result, is_contained=context.submits and call.name in CONTAINED_TOOLS)
    shown = truncate_text(result.content, MAX_RESULT_CHARS, context.phase_prompts.left_out, call.id, result.chars)
    return ActResult(
        status,
        decision,
        risk,
        make_effect(decision, status, result),
        files=changed_files(call.name, result) if status in CARRIED_OUT else (),
        code=result.code,
        reason=shown if result.is_error else None,
        result=None if result.is_error else shown,
        ref=call.id,
        remark=None
        if result.remark is None
        else truncate_text(result.remark, MAX_RESULT_CHARS, context.phase_prompts.left_out, call.id),
    )


def without_ref(given: JsonObject) -> JsonObject:
    """Return the record of an act as JSON without the ref to its result; the same object where it has none."""
    return {key: given[key] for key in given if key != "ref"} if "ref" in given else given


def _summarize(result: ActResult) -> str:
    return f"The act: {result.status}." + (f" {result.reason}" if result.reason else "")


PHASE = PhaseFlow(act, _summarize, parse_decision)
