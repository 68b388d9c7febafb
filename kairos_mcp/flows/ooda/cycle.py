"""One cycle: observe, orient, decide, act, reflect. Its status names what it came to; there is no plain "ok"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.steps import Flow
from kairos_mcp.flows.ooda.act import ActResult, act
from kairos_mcp.flows.ooda.context import CarryOver, CycleContext
from kairos_mcp.flows.ooda.decide import decide
from kairos_mcp.flows.ooda.decision import decision_json
from kairos_mcp.flows.ooda.effects import ActStatus
from kairos_mcp.flows.ooda.observe import observe
from kairos_mcp.flows.ooda.orient import Orientation, orient
from kairos_mcp.flows.ooda.reflect import Reflection, reflect
from kairos_mcp.flows.ooda.structured_answer import PhaseFailure

CycleStatus = ActStatus | Literal["parse_error", "interrupted"]
_LONG = ("old_string", "new_string", "content", "arguments", "edits", "base")


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What a cycle came to, as far as it went. `broken`: the phase, by name, that gave nothing, and why."""

    number: int
    orientation: Orientation | None = None
    acted: ActResult | None = None
    reflection: Reflection | None = None
    broken: tuple[str, PhaseFailure] | None = None

    @property
    def status(self) -> CycleStatus:
        """What the act came to; `parse_error` or `interrupted` where a phase gave nothing."""
        match self.broken, self.acted:
            case (_, PhaseFailure(status="parse_error")), _:
                return "parse_error"
            case None, ActResult(status=status):
                return status
            case _:
                return "interrupted"

    @property
    def is_error(self) -> bool:
        """Whether the cycle counts towards the error threshold: a denial does not."""
        return self.status in ("parse_error", "failed")

    @property
    def is_surely_done(self) -> bool:
        """Whether the model is sure that nothing is left to do."""
        return self.reflection is not None and self.reflection.is_surely_done

    def as_json(self) -> JsonObject:
        """Return the cycle without long texts: those of an edit are in the record of the act."""
        json_fields: JsonObject = {"cycle": self.number, "status": self.status}
        if self.broken is not None:
            phase, broken = self.broken
            json_fields |= {"broken": {"phase": phase, **broken.as_json()}}
        if self.orientation is not None:
            json_fields |= {"risk_level": self.orientation.risk_level}
        if self.acted is not None:
            decision = {k: v for k, v in decision_json(self.acted.decision).items() if k not in _LONG}
            act = {k: v for k, v in self.acted.as_json().items() if k in ("status", "risk", "files", "code", "reason")}
            json_fields |= {"decision": decision, "act": act}
        if self.reflection is not None:
            json_fields |= {"reflection": self.reflection.as_json()}
        return json_fields


def run_cycle(
    context: CycleContext, number: int, carried: CarryOver, so_far: Callable[[CycleResult], JsonObject]
) -> Flow[CycleResult]:
    """Steps: those of the five phases under `cycle-N/`; an act above the risk budget pauses. `so_far` is what is said
    meanwhile, made of the cycle as it stands."""
    name = f"cycle-{number}"
    observation = yield from observe(context, f"{name}/observe")
    if isinstance(observation, PhaseFailure):
        return CycleResult(number, broken=("observe", observation))
    orientation = yield from orient(context, f"{name}/orient", observation, carried)
    if isinstance(orientation, PhaseFailure):
        return CycleResult(number, broken=("orient", orientation))
    decision = yield from decide(context, f"{name}/decide", orientation, carried)
    if isinstance(decision, PhaseFailure):
        return CycleResult(number, orientation, broken=("decide", decision))
    acted = yield from act(
        context, f"{name}/act", decision, lambda acted: so_far(CycleResult(number, orientation, acted))
    )
    if isinstance(acted, PhaseFailure):
        return CycleResult(number, orientation, broken=("act", acted))
    reflection = yield from reflect(context, f"{name}/reflect", acted, carried)
    if isinstance(reflection, PhaseFailure):
        return CycleResult(number, orientation, acted, broken=("reflect", reflection))
    return CycleResult(number, orientation, acted, reflection)
