"""Reflect: what the act came to and what it teaches.

The verdict is the worse of what a model says, what the act measurably did, and what the checks found (O16, O20).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import Conversation, JsonObject, Message
from kairos_mcp.core.steps import Flow
from kairos_mcp.core.strict_json import Undecodable
from kairos_mcp.flows.ooda.act import ActResult
from kairos_mcp.flows.ooda.checks import CheckResult, checked
from kairos_mcp.flows.ooda.context import CarryOver, CycleContext
from kairos_mcp.flows.ooda.effects import ActStatus
from kairos_mcp.flows.ooda.prompts import listed, sections
from kairos_mcp.flows.ooda.shown import ACT_CHARS, as_text, cut_fields
from kairos_mcp.flows.ooda.structured_answer import AnswerForm, PhaseFailure, keyed, settled, texts

Verdict = Literal["failure", "partial", "success"]

TOKENS = 512
SURE = 0.9
VERDICTS: tuple[Verdict, ...] = ("failure", "partial", "success")
_CAP: dict[ActStatus, Verdict] = {
    "applied": "success",
    "noop": "success",
    "denied": "partial",
    "failed": "failure",
    "unsupported": "failure",
}


@dataclass(frozen=True, slots=True)
class Assessment:
    """A model's own view of an act."""

    assessment: Verdict
    lessons: tuple[str, ...]
    confidence: float
    remaining: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reflection:
    """`verdict` is what counts; `capped` says why it is worse than what the model said."""

    said: Assessment
    verdict: Verdict
    checks: tuple[CheckResult, ...] = ()
    capped: tuple[str, ...] = ()

    def as_json(self) -> JsonObject:
        told: JsonObject = {
            "assessment": self.verdict,
            "lessons": list(self.said.lessons),
            "confidence": self.said.confidence,
            "remaining": list(self.said.remaining),
            "checks": [each.as_json() for each in self.checks],
        }
        if self.capped:
            told |= {"said": self.said.assessment, "capped": list(self.capped)}
        return told

    @property
    def all_hold(self) -> bool:
        """Whether there are acceptance checks, and each of them holds."""
        return bool(self.checks) and all(each.holds for each in self.checks)

    @property
    def sure(self) -> bool:
        """Whether nothing is left to do, and surely so (O17). The verdict sees to it that the act took place, or none
        was needed, and that no acceptance check fails."""
        return self.verdict == "success" and self.said.confidence >= SURE and not self.said.remaining


ASSESSMENT_SCHEMA = keyed(
    ("assessment", "lessons", "confidence"),
    assessment={"enum": ["success", "partial", "failure"]},
    lessons=texts(10, 1_000),
    confidence={"type": "number", "minimum": 0, "maximum": 1},
    remaining=texts(10, 1_000),
)


def assessment_of(given: JsonObject) -> Assessment:
    """Raises Undecodable with all that is wrong."""
    if problems := compile_schema(ASSESSMENT_SCHEMA).problems(given):
        raise Undecodable("; ".join(problems))
    return Assessment(
        given["assessment"], tuple(given["lessons"]), float(given["confidence"]), tuple(given.get("remaining", ()))
    )


def reflect(order: CycleContext, name: str, acted: ActResult, carried: CarryOver) -> Flow[Reflection | PhaseFailure]:
    """Steps: `NAME/check-N`, then `NAME`, and up to two repairs."""
    checks = yield from checked(order, name)
    if isinstance(checks, PhaseFailure):
        return checks
    act = cut_fields(acted.as_json(), ACT_CHARS, order.says.left_out, acted.ref or name)
    asked = sections(
        order.says.reflect_user,
        goal=order.mandate.goal,
        act=as_text({key: value for key, value in act.items() if key != "effect"}),
        checks=as_text([each.as_json() for each in checks]) if checks else "",
        lessons=order.quoted(listed(carried.lessons)),
    )
    talk = Conversation((Message("system", order.says.reflect), Message("user", asked)))
    form = AnswerForm(ASSESSMENT_SCHEMA, TOKENS, assessment_of)
    said = yield from settled(name, talk, form, order.says, order.prompts)
    return said if isinstance(said, PhaseFailure) else _capped(said.value, acted, checks)


def _capped(said: Assessment, acted: ActResult, checks: tuple[CheckResult, ...]) -> Reflection:
    verdict = said.assessment
    why: list[str] = []
    caps: list[tuple[Verdict, str]] = [(_CAP[acted.status], f"the act was {acted.status}")]
    if any(not each.holds for each in checks):
        caps.append(("partial", "an acceptance check does not hold"))
    for most, because in caps:
        if VERDICTS.index(most) < VERDICTS.index(verdict):
            verdict = most
            why.append(because)
    return Reflection(said, verdict, checks, tuple(why))
