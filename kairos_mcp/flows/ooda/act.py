"""Act: carry out the decision by exactly one call, if the mandate's limits and its risk budget allow it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import JsonObject, Risk, ToolCall, ToolResult
from kairos_mcp.core.steps import CallTool, Flow, Pause, Refused, Unknown
from kairos_mcp.core.strict_json import Undecodable
from kairos_mcp.flows.ooda.context import CycleContext, Effect
from kairos_mcp.flows.ooda.decision import Decision, decision_json, parse_decision
from kairos_mcp.flows.ooda.effects import ActStatus, ChangedFile, call_for, changed_files, effect_of, status_of
from kairos_mcp.flows.ooda.risk import exceeds_risk_budget, problems_of, risk_of
from kairos_mcp.flows.ooda.shown import RESULT_CHARS, truncate_text
from kairos_mcp.flows.ooda.structured_answer import PhaseFailure, object_schema, phase_failure, text_schema

RISK = "paused_risk_exceeded"


@dataclass(frozen=True, slots=True)
class ActResult:
    """What an act did. `code` and `reason` say why it was not applied, a person's feedback included; `result` is what
    the call gave, of which `ref` has the whole; `remark` what a person said who approved it; `effect` tells equal acts
    from others."""

    status: ActStatus
    decision: Decision
    risk: Risk
    effect: Effect
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
            "files": [each.as_json() for each in self.files],
            "code": self.code,
            "reason": self.reason,
            "result": self.result,
            "ref": self.ref,
            "remark": self.remark,
            "effect": self.effect.as_json(),
        }
        return {name: value for name, value in json_fields.items() if value is not None}


_TEXTS = ("code", "reason", "result", "ref", "remark")
_HASH: JsonObject = {"type": ["string", "null"], "maxLength": 64}
ACTED_SCHEMA = object_schema(
    ("status", "decision", "risk", "files", "effect"),
    status={"enum": list(get_args(ActStatus))},
    decision={"type": "object"},
    risk={"enum": ["low", "medium", "high"]},
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
    """An act as `as_json` gave it. Raises Undecodable."""
    if problems := compile_schema(ACTED_SCHEMA).problems(given):
        raise Undecodable("; ".join(problems))
    rest: dict[str, Any] = {name: given[name] for name in _TEXTS if name in given}
    files = tuple(ChangedFile(**each) for each in given["files"])
    effect = Effect(**given["effect"])
    return ActResult(given["status"], parse_decision(given["decision"]), given["risk"], effect, files, **rest)


def act(
    context: CycleContext, name: str, decision: Decision, at_pause: Callable[[ActResult], JsonObject] | None = None
) -> Flow[ActResult | PhaseFailure]:
    """Steps: `NAME/call-1`, or, where the risk is above the budget and the flow pauses, `NAME/risk`, after which the
    act is recorded as denied: it is never made. `at_pause` gives what is reported meanwhile; None: no pause."""
    risk = risk_of(context, decision)
    if problems := problems_of(context, decision):
        return _not_applied(decision, "unsupported", risk, "bad_arguments", f"{'; '.join(problems)}.")
    if exceeds_risk_budget(context, risk):
        budget = context.mandate.risk_budget
        denied = _not_applied(
            decision, "denied", risk, "risk", f"Its risk is {risk}; the mandate's budget is {budget}."
        )
        if at_pause is not None:
            yield from Pause(f"{name}/risk", RISK, at_pause(denied))
        return denied
    call = call_for(decision, f"{name}/call-1")
    if call is None:
        return ActResult("noop", decision, risk, effect_of(decision, "noop", None))
    match (yield from CallTool(call.id, call, decision.risk or "low")):
        case Refused() | Unknown() as stop:
            return phase_failure(stop)
        case result:
            return _act_result(context, decision, risk, call, result)


def _not_applied(decision: Decision, status: ActStatus, risk: Risk, code: str, reason: str) -> ActResult:
    result = ToolResult(reason, is_error=True, code=code)
    return ActResult(status, decision, risk, effect_of(decision, status, result), code=code, reason=reason)


def _act_result(context: CycleContext, decision: Decision, risk: Risk, call: ToolCall, result: ToolResult) -> ActResult:
    status = status_of(result)
    shown = truncate_text(result.content, RESULT_CHARS, context.phase_prompts.left_out, call.id, result.chars)
    return ActResult(
        status,
        decision,
        risk,
        effect_of(decision, status, result),
        files=changed_files(call.name, result) if status == "applied" else (),
        code=result.code,
        reason=shown if result.is_error else None,
        result=None if result.is_error else shown,
        ref=call.id,
        remark=None
        if result.remark is None
        else truncate_text(result.remark, RESULT_CHARS, context.phase_prompts.left_out, call.id),
    )
