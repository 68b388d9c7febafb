"""Observe: call every tool that the mandate names and that only reads, and report the result of each."""

from __future__ import annotations

import re
from typing import Literal

from kairos_mcp.core.builtin_tools import NAME_LISTING_TOOLS
from kairos_mcp.core.env_files import is_env_file
from kairos_mcp.core.input_checks import Undecodable
from kairos_mcp.core.json_schema import compile_schema, object_schema, text_schema
from kairos_mcp.core.mandate import Observable
from kairos_mcp.core.messages import JsonObject, ToolCall, ToolResult
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import CallAnswer, CallTool, Failed, Flow, Refused, call_path, gather_calls
from kairos_mcp.flows.ooda.context import CycleContext
from kairos_mcp.flows.ooda.phase_flow import PhaseFlow
from kairos_mcp.flows.ooda.prompts import MAX_REASON_CHARS, MAX_RESULT_CHARS, truncate_text
from kairos_mcp.flows.structured_answer import PhaseFailure, phase_failure

MAX_PARALLEL_READS = 10
_WORD = re.compile(r"\w{3,}")


@dataclass(frozen=True, slots=True)
class ToolObservation:
    """What one tool has shown. `content` is the result's; `reason` says why there is an error or nothing.

    `relevance`: the share of the goal's words (of three letters and more) that occur in it, 0 to 1; shown, and used
    for nothing else. `ref` leads to the whole result; `left_out` counts the characters missing here; `remark` is the
    comment of the reviewer who approved the call.
    """

    tool: str
    arguments: JsonObject
    status: Literal["result", "error", "skipped"]
    content: str | None = None
    reason: str | None = None
    relevance: float | None = None
    ref: str | None = None
    left_out: int | None = None
    remark: str | None = None

    def as_json(self) -> JsonObject:
        json_fields: JsonObject = {
            "tool": self.tool,
            "arguments": self.arguments,
            "status": self.status,
            "relevance": self.relevance,
            "content": self.content,
            "reason": self.reason,
            "left_out": self.left_out,
            "ref": self.ref,
            "remark": self.remark,
        }
        return {name: value for name, value in json_fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Observation:
    items: tuple[ToolObservation, ...]

    def as_json(self) -> JsonObject:
        return {"observations": [item.as_json() for item in self.items]}


OBSERVATION_SCHEMA = object_schema(
    ("observations",),
    observations={
        "type": "array",
        "maxItems": 16,
        "items": object_schema(
            ("tool", "arguments", "status"),
            tool=text_schema(64),
            arguments={"type": "object"},
            status={"enum": ["result", "error", "skipped"]},
            relevance={"type": "number", "minimum": 0, "maximum": 1},
            content=text_schema(4_000, 0),
            reason=text_schema(4_000, 0),
            left_out={"type": "integer", "minimum": 0},
            ref=text_schema(512),
            remark=text_schema(4_000),
        ),
    },
)


def parse_observation(given: JsonObject) -> Observation:
    """Parse what `Observation.as_json` returned. Raises Undecodable."""
    if problems := compile_schema(OBSERVATION_SCHEMA).problems(given):
        raise Undecodable("; ".join(problems))
    return Observation(tuple(ToolObservation(**item) for item in given["observations"]))


def observe(context: CycleContext, name: str) -> Flow[Observation | PhaseFailure]:
    """Make the mandate's observations, in parallel, since they only read.

    Steps: `NAME/call-N`, where N is the position in the mandate's list.
    """
    observables = list(enumerate(context.mandate.observe, 1))
    skipped = {n: reason for n, observable in observables if (reason := _skip_reason(context, observable)) is not None}
    steps = {
        n: CallTool(path := call_path(name, n), ToolCall(path, observable.tool, observable.arguments))
        for n, observable in observables
        if n not in skipped
    }
    answers = yield from gather_calls(steps.values(), MAX_PARALLEL_READS)
    items: list[ToolObservation] = []
    for n, observable in observables:
        if n in skipped:
            items.append(ToolObservation(observable.tool, observable.arguments, "skipped", reason=skipped[n]))
            continue
        match answers[steps[n].name]:
            case Refused() as stop:
                return phase_failure(stop)
            case answer:
                items.append(_to_tool_observation(context, observable, steps[n].name, answer))
    return Observation(tuple(items))


def _skip_reason(context: CycleContext, observable: Observable) -> str | None:
    """Return why a tool is not called here, whatever the mandate says, or None.

    Only what reads may run, and nobody is there to be asked about a file like .env.
    """
    if (spec := context.reads.find(observable.tool)) is not None and spec.effect == "read":
        path = observable.arguments.get("path")
        is_secret = isinstance(path, str) and is_env_file(path) and observable.tool not in NAME_LISTING_TOOLS
        return f"{path} holds secrets by its name: it is not observed." if is_secret else None
    if spec is not None or context.runnable.find(observable.tool) is not None:
        return "It does more than read."
    return "There is no tool of this name that only reads."


def _to_tool_observation(
    context: CycleContext, observable: Observable, path: str, answer: CallAnswer | Failed
) -> ToolObservation:
    tool, arguments = observable.tool, observable.arguments
    match answer:
        case ToolResult(content=content, is_error=False, chars=chars, remark=remark):
            length = chars if chars is not None else len(content)
            goal_words = set(_WORD.findall(context.mandate.goal.casefold()))
            content_words = set(_WORD.findall(content.casefold()))
            return ToolObservation(
                tool,
                arguments,
                "result",
                content=truncate_text(content, MAX_RESULT_CHARS, context.phase_prompts.left_out, path, length),
                relevance=round(len(goal_words & content_words) / len(goal_words), 2) if goal_words else 0.0,
                ref=path,
                left_out=length - MAX_RESULT_CHARS if len(content) > MAX_RESULT_CHARS else None,
                remark=_truncate_remark(context, path, remark),
            )
        case ToolResult(content=content, remark=remark):
            reason = truncate_text(content, MAX_REASON_CHARS, context.phase_prompts.left_out, path)
            shown_remark = _truncate_remark(context, path, remark)
            return ToolObservation(tool, arguments, "error", reason=reason, ref=path, remark=shown_remark)
        case _:  # no branch of these gives up; the type of every Gather has it
            return ToolObservation(tool, arguments, "error", reason="The call was given up.", ref=path)


def _truncate_remark(context: CycleContext, path: str, remark: str | None) -> str | None:
    return None if remark is None else truncate_text(remark, MAX_REASON_CHARS, context.phase_prompts.left_out, path)


def without_refs(given: JsonObject) -> JsonObject:
    """Return an observation as JSON without refs to results; the same object where it has none."""
    items: list[JsonObject] = given["observations"]
    if not any("ref" in item for item in items):
        return given
    return given | {"observations": [{key: item[key] for key in item if key != "ref"} for item in items]}


def _summarize(observation: Observation) -> str:
    results = sum(item.status == "result" for item in observation.items)
    return f"Observed: {results} of {len(observation.items)} gave a result."


PHASE = PhaseFlow(lambda context, name, _given: observe(context, name), _summarize)
