"""Observe: look with every tool that the mandate names and that only reads; say for each what came of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kairos_mcp.core.env_files import is_env_file
from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.mandate import Observable
from kairos_mcp.core.messages import JsonObject, ToolCall, ToolResult
from kairos_mcp.core.steps import CallAnswer, CallTool, Failed, Flow, Refused, Unknown, gather_calls
from kairos_mcp.core.strict_json import Undecodable
from kairos_mcp.flows.ooda.context import CycleContext
from kairos_mcp.flows.ooda.shown import REASON_CHARS, RESULT_CHARS, truncate_text
from kairos_mcp.flows.ooda.structured_answer import PhaseFailure, object_schema, phase_failure, text_schema

AT_ONCE = 10
NAMES_ALONE = ("list_files", "file_tree")  # they show names and no text
_WORD = re.compile(r"\w{3,}")


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of one look. `content` is that of a result; `reason` says why there is an error or nothing.

    `relevance`: the share of the goal's words (of three letters and more) that occur in it, 0 to 1; shown, and used
    for nothing else. `ref` names the step, under which the whole is kept; `left_out` counts the characters missing;
    `remark` is what a person said who approved the look.
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
    seen: tuple[Seen, ...]

    def as_json(self) -> JsonObject:
        return {"observations": [each.as_json() for each in self.seen]}


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
    """An observation as `as_json` gave it. Raises Undecodable."""
    if problems := compile_schema(OBSERVATION_SCHEMA).problems(given):
        raise Undecodable("; ".join(problems))
    return Observation(tuple(Seen(**each) for each in given["observations"]))


def observe(context: CycleContext, name: str) -> Flow[Observation | PhaseFailure]:
    """Steps: `NAME/call-N`, where N is the position in the mandate's list; all side by side, since all only read."""
    looks = list(enumerate(context.mandate.observe, 1))
    skipped = {n: reason for n, look in looks if (reason := _skip_reason(context, look)) is not None}
    steps = {n: _step(f"{name}/call-{n}", look) for n, look in looks if n not in skipped}
    answers = yield from gather_calls(steps.values(), AT_ONCE)
    seen: list[Seen] = []
    for n, look in looks:
        if n in skipped:
            seen.append(Seen(look.tool, look.arguments, "skipped", reason=skipped[n]))
            continue
        match answers[steps[n].name]:
            case Refused() | Unknown() as stop:
                return phase_failure(stop)
            case answer:
                seen.append(_make_look(context, look, steps[n].name, answer))
    return Observation(tuple(seen))


def _skip_reason(context: CycleContext, look: Observable) -> str | None:
    """Why a look is not made, whatever the mandate says: only what reads may run here, and nobody is there to be asked
    about a file like .env."""
    if (spec := context.reads.find(look.tool)) is not None and spec.effect == "read":
        named = look.arguments.get("path")
        held = isinstance(named, str) and is_env_file(named) and look.tool not in NAMES_ALONE
        return f"{named} holds secrets by its name: it is not observed." if held else None
    if spec is not None or context.may.find(look.tool) is not None:
        return "It does more than read."
    return "There is no tool of this name that only reads."


def _step(path: str, look: Observable) -> CallTool:
    return CallTool(path, ToolCall(path, look.tool, look.arguments))


def _make_look(context: CycleContext, look: Observable, path: str, answer: CallAnswer | Failed) -> Seen:
    match answer:
        case ToolResult(content=content, is_error=False, chars=chars, remark=remark):
            length = chars if chars is not None else len(content)
            return Seen(
                look.tool,
                look.arguments,
                "result",
                content=truncate_text(content, RESULT_CHARS, context.phase_prompts.left_out, path, length),
                relevance=relevance(context.mandate.goal, content),
                ref=path,
                left_out=length - RESULT_CHARS if len(content) > RESULT_CHARS else None,
                remark=_truncate_remark(context, path, remark),
            )
        case ToolResult(content=content, remark=remark):
            reason = truncate_text(content, REASON_CHARS, context.phase_prompts.left_out, path)
            shown_remark = _truncate_remark(context, path, remark)
            return Seen(look.tool, look.arguments, "error", reason=reason, ref=path, remark=shown_remark)
        case _:  # no branch of these gives up; the type of every Gather has it
            return Seen(look.tool, look.arguments, "error", reason="The call was given up.", ref=path)


def _truncate_remark(context: CycleContext, path: str, remark: str | None) -> str | None:
    return None if remark is None else truncate_text(remark, REASON_CHARS, context.phase_prompts.left_out, path)


def relevance(goal: str, content: str) -> float:
    """The share of the goal's different words that the content has, to two places."""
    words = set(_WORD.findall(goal.casefold()))
    there = set(_WORD.findall(content.casefold()))
    return round(len(words & there) / len(words), 2) if words else 0.0
