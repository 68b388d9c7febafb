"""Reflect: what the act came to and what it teaches.

The verdict is the worse of what a model says, what the act measurably did, and what the checks found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import Conversation, JsonObject, Message
from kairos_mcp.core.steps import Flow
from kairos_mcp.core.strict_json import Undecodable
from kairos_mcp.flows.ooda.act import ActResult
from kairos_mcp.flows.ooda.checks import CheckResult, run_checks
from kairos_mcp.flows.ooda.context import CarryOver, CycleContext
from kairos_mcp.flows.ooda.effects import ActStatus
from kairos_mcp.flows.ooda.prompts import format_list, render_sections
from kairos_mcp.flows.ooda.shown import ACT_CHARS, format_json, truncate_fields
from kairos_mcp.flows.ooda.structured_answer import (
    AnswerForm,
    PhaseFailure,
    object_schema,
    request_answer,
    text_list_schema,
)

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
    """`verdict` is what counts; `capped` says why it is worse than `model_assessment`."""

    model_assessment: Assessment
    verdict: Verdict
    checks: tuple[CheckResult, ...] = ()
    capped: tuple[str, ...] = ()

    def as_json(self) -> JsonObject:
        json_fields: JsonObject = {
            "assessment": self.verdict,
            "lessons": list(self.model_assessment.lessons),
            "confidence": self.model_assessment.confidence,
            "remaining": list(self.model_assessment.remaining),
            "checks": [each.as_json() for each in self.checks],
        }
        if self.capped:
            json_fields |= {"said": self.model_assessment.assessment, "capped": list(self.capped)}
        return json_fields

    @property
    def all_hold(self) -> bool:
        """Whether there are acceptance checks, and each of them holds."""
        return bool(self.checks) and all(each.holds for each in self.checks)

    @property
    def is_surely_done(self) -> bool:
        """Whether nothing is left to do, and surely so. The verdict sees to it that the act took place, or none
        was needed, and that no acceptance check fails."""
        return (
            self.verdict == "success"
            and self.model_assessment.confidence >= SURE
            and not self.model_assessment.remaining
        )


ASSESSMENT_SCHEMA = object_schema(
    ("assessment", "lessons", "confidence"),
    assessment={"enum": ["success", "partial", "failure"]},
    lessons=text_list_schema(10, 1_000),
    confidence={"type": "number", "minimum": 0, "maximum": 1},
    remaining=text_list_schema(10, 1_000),
)


def parse_assessment(given: JsonObject) -> Assessment:
    """Raises Undecodable with all that is wrong."""
    if problems := compile_schema(ASSESSMENT_SCHEMA).problems(given):
        raise Undecodable("; ".join(problems))
    return Assessment(
        given["assessment"], tuple(given["lessons"]), float(given["confidence"]), tuple(given.get("remaining", ()))
    )


def reflect(context: CycleContext, name: str, acted: ActResult, carried: CarryOver) -> Flow[Reflection | PhaseFailure]:
    """Steps: `NAME/check-N`, then `NAME`, and up to two repairs."""
    checks = yield from run_checks(context, name)
    if isinstance(checks, PhaseFailure):
        return checks
    act = truncate_fields(acted.as_json(), ACT_CHARS, context.phase_prompts.left_out, acted.ref or name)
    asked = render_sections(
        context.phase_prompts.reflect_user,
        goal=context.mandate.goal,
        act=format_json({key: value for key, value in act.items() if key != "effect"}),
        checks=format_json([each.as_json() for each in checks]) if checks else "",
        lessons=context.quote(format_list(carried.lessons)),
    )
    conversation = Conversation((Message("system", context.phase_prompts.reflect), Message("user", asked)))
    form = AnswerForm(ASSESSMENT_SCHEMA, TOKENS, parse_assessment)
    answer = yield from request_answer(name, conversation, form, context.phase_prompts, context.prompts)
    return answer if isinstance(answer, PhaseFailure) else _cap_verdict(answer.value, acted, checks)


def _cap_verdict(model_assessment: Assessment, acted: ActResult, checks: tuple[CheckResult, ...]) -> Reflection:
    verdict = model_assessment.assessment
    why: list[str] = []
    caps: list[tuple[Verdict, str]] = [(_CAP[acted.status], f"the act was {acted.status}")]
    if any(not each.holds for each in checks):
        caps.append(("partial", "an acceptance check does not hold"))
    for cap, because in caps:
        if VERDICTS.index(cap) < VERDICTS.index(verdict):
            verdict = cap
            why.append(because)
    return Reflection(model_assessment, verdict, checks, tuple(why))
