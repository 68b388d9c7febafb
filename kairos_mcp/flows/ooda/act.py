"""Act: the decision carried out by one call, if the mandate's limits and its risk budget leave it; never another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import JsonObject, Risk, ToolCall, ToolResult
from kairos_mcp.core.steps import CallTool, Flow, Pause, Refused, Unknown
from kairos_mcp.core.strict_json import Undecodable
from kairos_mcp.flows.ooda.context import CycleContext, Effect
from kairos_mcp.flows.ooda.decision import Decision, as_json, taken
from kairos_mcp.flows.ooda.effects import ActStatus, ChangedFile, call_for, effect_of, status_of, touched
from kairos_mcp.flows.ooda.risk import problems_of, risk_of, too_risky
from kairos_mcp.flows.ooda.shown import RESULT_CHARS, cut
from kairos_mcp.flows.ooda.structured_answer import PhaseFailure, broken_by, keyed, text

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
        told: JsonObject = {
            "status": self.status,
            "decision": as_json(self.decision),
            "risk": self.risk,
            "files": [each.as_json() for each in self.files],
            "code": self.code,
            "reason": self.reason,
            "result": self.result,
            "ref": self.ref,
            "remark": self.remark,
            "effect": self.effect.as_json(),
        }
        return {name: value for name, value in told.items() if value is not None}


_TEXTS = ("code", "reason", "result", "ref", "remark")
_HASH: JsonObject = {"type": ["string", "null"], "maxLength": 64}
ACTED_SCHEMA = keyed(
    ("status", "decision", "risk", "files", "effect"),
    status={"enum": list(get_args(ActStatus))},
    decision={"type": "object"},
    risk={"enum": ["low", "medium", "high"]},
    files={"type": "array", "items": keyed(("path", "before", "after"), path=text(4_096), before=_HASH, after=_HASH)},
    code=text(64),
    reason=text(8_000, 0),
    result=text(8_000, 0),
    ref=text(512),
    remark=text(8_000),
    effect=keyed(("digest", "said"), digest=text(64), said=text(8_000)),
)


def acted_of(given: JsonObject) -> ActResult:
    """An act as `as_json` gave it. Raises Undecodable."""
    if problems := compile_schema(ACTED_SCHEMA).problems(given):
        raise Undecodable("; ".join(problems))
    rest: dict[str, Any] = {name: given[name] for name in _TEXTS if name in given}
    files = tuple(ChangedFile(**each) for each in given["files"])
    effect = Effect(**given["effect"])
    return ActResult(given["status"], taken(given["decision"]), given["risk"], effect, files, **rest)


def act(
    order: CycleContext, name: str, decision: Decision, at_pause: Callable[[ActResult], JsonObject] | None = None
) -> Flow[ActResult | PhaseFailure]:
    """Steps: `NAME/call-1`, or, where the risk is above the budget and the flow pauses, `NAME/risk`, after which the
    act is recorded as denied: it is never made. `at_pause` tells what is said of it meanwhile; None: no pause."""
    risk = risk_of(order, decision)
    if problems := problems_of(order, decision):
        return _undone(decision, "unsupported", risk, "bad_arguments", f"{'; '.join(problems)}.")
    if too_risky(order, risk):
        budget = order.mandate.risk_budget
        denied = _undone(decision, "denied", risk, "risk", f"Its risk is {risk}; the mandate's budget is {budget}.")
        if at_pause is not None:
            yield from Pause(f"{name}/risk", RISK, at_pause(denied))
        return denied
    call = call_for(decision, f"{name}/call-1")
    if call is None:
        return ActResult("noop", decision, risk, effect_of(decision, "noop", None))
    match (yield from CallTool(call.id, call, decision.risk or "low")):
        case Refused() | Unknown() as stop:
            return broken_by(stop)
        case result:
            return _done(order, decision, risk, call, result)


def _undone(decision: Decision, status: ActStatus, risk: Risk, code: str, reason: str) -> ActResult:
    result = ToolResult(reason, is_error=True, code=code)
    return ActResult(status, decision, risk, effect_of(decision, status, result), code=code, reason=reason)


def _done(order: CycleContext, decision: Decision, risk: Risk, call: ToolCall, result: ToolResult) -> ActResult:
    status = status_of(result)
    shown = cut(result.content, RESULT_CHARS, order.says.left_out, call.id, result.chars)
    return ActResult(
        status,
        decision,
        risk,
        effect_of(decision, status, result),
        files=touched(call.name, result) if status == "applied" else (),
        code=result.code,
        reason=shown if result.is_error else None,
        result=None if result.is_error else shown,
        ref=call.id,
        remark=None if result.remark is None else cut(result.remark, RESULT_CHARS, order.says.left_out, call.id),
    )
