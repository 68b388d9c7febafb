"""One cycle: observe, orient, decide, act, reflect; whatever came of it is said by its own name, never as ok."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.steps import Flow
from kairos_mcp.flows.ooda.act import ActResult, act
from kairos_mcp.flows.ooda.context import CarryOver, CycleContext
from kairos_mcp.flows.ooda.decide import decide
from kairos_mcp.flows.ooda.decision import as_json
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
    def erred(self) -> bool:
        """Whether the cycle counts towards the error threshold: a denial does not."""
        return self.status in ("parse_error", "failed")

    @property
    def sure(self) -> bool:
        """Whether it found nothing left to do, surely so."""
        return self.reflection is not None and self.reflection.sure

    def as_json(self) -> JsonObject:
        """Short: the texts of an edit are in the record of the act."""
        told: JsonObject = {"cycle": self.number, "status": self.status}
        if self.broken is not None:
            phase, broken = self.broken
            told |= {"broken": {"phase": phase, **broken.as_json()}}
        if self.orientation is not None:
            told |= {"risk_level": self.orientation.risk_level}
        if self.acted is not None:
            decision = {k: v for k, v in as_json(self.acted.decision).items() if k not in _LONG}
            act = {k: v for k, v in self.acted.as_json().items() if k in ("status", "risk", "files", "code", "reason")}
            told |= {"decision": decision, "act": act}
        if self.reflection is not None:
            told |= {"reflection": self.reflection.as_json()}
        return told


def cycle(
    order: CycleContext, number: int, carried: CarryOver, so_far: Callable[[CycleResult], JsonObject]
) -> Flow[CycleResult]:
    """Steps: those of the five phases under `cycle-N/`; an act above the risk budget pauses. `so_far` is what is said
    meanwhile, made of the cycle as it stands."""
    name = f"cycle-{number}"
    observation = yield from observe(order, f"{name}/observe")
    if isinstance(observation, PhaseFailure):
        return CycleResult(number, broken=("observe", observation))
    orientation = yield from orient(order, f"{name}/orient", observation, carried)
    if isinstance(orientation, PhaseFailure):
        return CycleResult(number, broken=("orient", orientation))
    decision = yield from decide(order, f"{name}/decide", orientation, carried)
    if isinstance(decision, PhaseFailure):
        return CycleResult(number, orientation, broken=("decide", decision))
    acted = yield from act(
        order, f"{name}/act", decision, lambda acted: so_far(CycleResult(number, orientation, acted))
    )
    if isinstance(acted, PhaseFailure):
        return CycleResult(number, orientation, broken=("act", acted))
    reflection = yield from reflect(order, f"{name}/reflect", acted, carried)
    if isinstance(reflection, PhaseFailure):
        return CycleResult(number, orientation, acted, broken=("reflect", reflection))
    return CycleResult(number, orientation, acted, reflection)
