"""Reflect: judge what the act came to, and what it teaches.

The verdict is the worst of what the model says, what the act measurably did, and what the acceptance checks found.
The checks are fixed before the first cycle, and judged by what a call finds, never by what a model says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from kairos_mcp.core.builtin_tools import CHECK_FILE, RUN_COMMAND
from kairos_mcp.core.input_checks import Undecodable
from kairos_mcp.core.json_schema import compile_schema, object_schema
from kairos_mcp.core.mandate import Check, CommandCheck, FileCheck
from kairos_mcp.core.messages import Conversation, JsonObject, Message, ToolCall, ToolResult
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import CallTool, Flow, Refused
from kairos_mcp.flows.ooda.act import ActResult, ActStatus, parse_act_result, without_ref
from kairos_mcp.flows.ooda.context import CarryOver, CycleContext
from kairos_mcp.flows.ooda.orient import describe_check
from kairos_mcp.flows.ooda.phase_flow import PhaseFlow
from kairos_mcp.flows.ooda.prompts import (
    MAX_ACT_CHARS,
    MAX_REASON_CHARS,
    format_json,
    format_list,
    truncate_fields,
    truncate_text,
)
from kairos_mcp.flows.planner_input import render_sections
from kairos_mcp.flows.structured_answer import (
    AnswerForm,
    PhaseFailure,
    phase_failure,
    request_answer,
    text_list_schema,
)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Whether a check holds. One that could not be judged does not hold, and `reason` says why.

    `remark`: the comment of the reviewer who approved the check's command.
    """

    check: Check
    holds: bool
    reason: str | None = None
    remark: str | None = None

    def as_json(self) -> JsonObject:
        json_fields = {"holds": self.holds, "why": self.reason, "remark": self.remark}
        return self.check.as_json() | {name: value for name, value in json_fields.items() if value is not None}


def run_checks(context: CycleContext, name: str) -> Flow[tuple[CheckResult, ...] | PhaseFailure]:
    """Run the mandate's acceptance checks, one after another: a command may change what the next one finds.

    Steps: `NAME/check-N`.
    """
    results: list[CheckResult] = []
    for number, check in enumerate(context.mandate.acceptance, 1):
        path = f"{name}/check-{number}"
        match (yield from CallTool(path, _check_call(check, path))):
            case Refused() as stop:
                return phase_failure(stop)
            case result:
                remark = result.remark
                if remark is not None:
                    remark = truncate_text(remark, MAX_REASON_CHARS, context.phase_prompts.left_out, path)
                results.append(replace(_judge_check(context, check, path, result), remark=remark))
    return tuple(results)


def _check_call(check: Check, path: str) -> ToolCall:
    match check:
        case FileCheck(path=file, text=None):
            return ToolCall(path, CHECK_FILE.name, {"path": file})
        case FileCheck(path=file, text=text):
            return ToolCall(path, CHECK_FILE.name, {"path": file, "text": text})
        case CommandCheck(argv=argv, cwd=cwd):
            return ToolCall(path, RUN_COMMAND.name, {"argv": list(argv)} | ({} if cwd is None else {"cwd": cwd}))


def _judge_check(context: CycleContext, check: Check, path: str, result: ToolResult) -> CheckResult:
    match check, result:
        case _, ToolResult(is_error=True, content=content):
            reason = truncate_text(content, MAX_REASON_CHARS, context.phase_prompts.left_out, path)
            return CheckResult(check, False, reason)
        case CommandCheck(), _:
            return CheckResult(check, True)  # a command that ends with anything but 0 is an error result
        case FileCheck(text=None), ToolResult(data={"exists": True}):
            return CheckResult(check, True)
        case FileCheck(text=str()), ToolResult(data={"contains": True}):
            return CheckResult(check, True)
        case _:
            return CheckResult(check, False, f"It is not so that {describe_check(check)}.")


ReflectionVerdict = Literal["failure", "partial", "success"]

MAX_TOKENS = 512
SURE_CONFIDENCE = 0.9
VERDICTS: tuple[ReflectionVerdict, ...] = ("failure", "partial", "success")
_BEST_VERDICT: dict[ActStatus, ReflectionVerdict] = {
    "applied": "success",
    "staged": "success",
    "noop": "success",
    "denied": "partial",
    "failed": "failure",
    "unsupported": "failure",
}


@dataclass(frozen=True, slots=True)
class Assessment:
    """A model's own view of an act."""

    assessment: ReflectionVerdict
    lessons: tuple[str, ...]
    confidence: float
    remaining: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reflection:
    """The judgement of an act. `verdict` is what counts; `capped` says why it is worse than `model_assessment`."""

    model_assessment: Assessment
    verdict: ReflectionVerdict
    checks: tuple[CheckResult, ...] = ()
    capped: tuple[str, ...] = ()

    def as_json(self) -> JsonObject:
        """Return it under the names that callers know: `assessment` is the verdict, `said` what the model gave."""
        json_fields: JsonObject = {
            "assessment": self.verdict,
            "lessons": list(self.model_assessment.lessons),
            "confidence": self.model_assessment.confidence,
            "remaining": list(self.model_assessment.remaining),
            "checks": [check.as_json() for check in self.checks],
        }
        if self.capped:
            json_fields |= {"said": self.model_assessment.assessment, "capped": list(self.capped)}
        return json_fields

    @property
    def is_surely_done(self) -> bool:
        """Whether the model is sure that nothing is left to do.

        The verdict is only a success if the act took place, or none was needed, and no acceptance check fails.
        """
        return (
            self.verdict == "success"
            and self.model_assessment.confidence >= SURE_CONFIDENCE
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
    """Parse a model's assessment. Raises Undecodable with all that is wrong."""
    if problems := compile_schema(ASSESSMENT_SCHEMA).problems(given):
        raise Undecodable("; ".join(problems))
    return Assessment(
        given["assessment"], tuple(given["lessons"]), float(given["confidence"]), tuple(given.get("remaining", ()))
    )


def reflect(
    context: CycleContext, name: str, act_result: ActResult, carry_over: CarryOver
) -> Flow[Reflection | PhaseFailure]:
    """Judge an act. Steps: `NAME/check-N`, then `NAME`, and up to two repairs."""
    checks = yield from run_checks(context, name)
    if isinstance(checks, PhaseFailure):
        return checks
    act = truncate_fields(act_result.as_json(), MAX_ACT_CHARS, context.phase_prompts.left_out, act_result.ref or name)
    user_prompt = render_sections(
        context.phase_prompts.reflect_user,
        goal=context.mandate.goal,
        act=format_json({key: value for key, value in act.items() if key != "effect"}),
        checks=format_json([check.as_json() for check in checks]) if checks else "",
        lessons=context.quote(format_list(carry_over.lessons)),
    )
    conversation = Conversation((Message("system", context.phase_prompts.reflect), Message("user", user_prompt)))
    form = AnswerForm(ASSESSMENT_SCHEMA, MAX_TOKENS, parse_assessment)
    answer = yield from request_answer(name, conversation, form, context.phase_prompts, context.prompts)
    return answer if isinstance(answer, PhaseFailure) else _cap_verdict(answer.value, act_result, checks)


def _cap_verdict(model_assessment: Assessment, act_result: ActResult, checks: tuple[CheckResult, ...]) -> Reflection:
    verdict = model_assessment.assessment
    capped: list[str] = []
    caps: list[tuple[ReflectionVerdict, str]] = [(_BEST_VERDICT[act_result.status], f"the act was {act_result.status}")]
    if any(not check.holds for check in checks):
        caps.append(("partial", "an acceptance check does not hold"))
    for best, reason in caps:
        if VERDICTS.index(best) < VERDICTS.index(verdict):
            verdict = best
            capped.append(reason)
    return Reflection(model_assessment, verdict, checks, tuple(capped))


PHASE = PhaseFlow(
    lambda context, name, act_result: reflect(context, name, act_result, context.carry_over),
    lambda reflection: f"Judged: {reflection.verdict}.",
    parse_act_result,
    without_ref,
)
