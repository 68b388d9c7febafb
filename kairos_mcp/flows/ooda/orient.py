"""Orient: weigh what was observed against the goal: where things stand, what comes first, what to read."""

from __future__ import annotations

from dataclasses import replace

from kairos_mcp.core.input_checks import Undecodable
from kairos_mcp.core.json_schema import compile_schema, object_schema, text_schema
from kairos_mcp.core.mandate import Check, CommandCheck, FileCheck
from kairos_mcp.core.messages import Conversation, JsonObject, Message
from kairos_mcp.core.paths import PATH_CHARS, RISKS, Risk, plain_path_or_none
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import GIVEN
from kairos_mcp.core.steps import Flow
from kairos_mcp.flows.ooda.context import CarryOver, CycleContext
from kairos_mcp.flows.ooda.observe import Observation, parse_observation, without_refs
from kairos_mcp.flows.ooda.phase_flow import PhaseFlow
from kairos_mcp.flows.ooda.prompts import MAX_REASON_CHARS, format_json, format_list, truncate_text
from kairos_mcp.flows.planner_input import render_prompt, render_sections
from kairos_mcp.flows.structured_answer import (
    AnswerForm,
    PhaseFailure,
    request_answer,
    text_list_schema,
)

MAX_TOKENS = 1_024
MAX_FILES = 8


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file that decide reads first, or a range of its lines, both ends included."""

    path: str
    start_line: int | None = None
    end_line: int | None = None

    def as_json(self) -> JsonObject:
        json_fields: JsonObject = {"path": self.path, "start_line": self.start_line, "end_line": self.end_line}
        return {name: value for name, value in json_fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Orientation:
    """A model's view of where things stand. `risk_level` is shown, and decides nothing.

    `ref` leads to the whole text: the step that wrote it, or the input of a phase that runs alone.
    """

    summary: str
    priorities: tuple[str, ...]
    risk_level: Risk
    files: tuple[FilePart, ...] = ()
    ref: str = GIVEN

    def as_json(self) -> JsonObject:
        json_fields: JsonObject = {
            "summary": self.summary,
            "priorities": list(self.priorities),
            "risk_level": self.risk_level,
        }
        return json_fields | ({"files": [part.as_json() for part in self.files]} if self.files else {})


_LINE: JsonObject = {"type": "integer", "minimum": 1, "maximum": 2**31}
ORIENTATION_SCHEMA = object_schema(
    ("summary", "priorities", "risk_level"),
    summary=text_schema(4_000),
    priorities=text_list_schema(10, 1_000),
    risk_level={"enum": list(RISKS)},
    files={
        "type": "array",
        "maxItems": MAX_FILES,
        "items": object_schema(("path",), path=text_schema(PATH_CHARS), start_line=_LINE, end_line=_LINE),
    },
)


def parse_orientation(given: JsonObject) -> Orientation:
    """Parse an orientation. Raises Undecodable with all that is wrong."""
    if problems := compile_schema(ORIENTATION_SCHEMA).problems(given):
        raise Undecodable("; ".join(problems))
    files = tuple(_parse_part(n, part) for n, part in enumerate(given.get("files", ())))
    return Orientation(given["summary"], tuple(given["priorities"]), given["risk_level"], files)


def orient(
    context: CycleContext, name: str, observation: Observation, carry_over: CarryOver
) -> Flow[Orientation | PhaseFailure]:
    """Ask the model for an orientation. Steps: `NAME`, and up to two repairs."""
    user_prompt = render_sections(
        context.phase_prompts.orient_user,
        goal=context.mandate.goal,
        acceptance=format_list(tuple(describe_check(check) for check in context.mandate.acceptance)),
        lessons=context.quote(format_list(carry_over.lessons)),
        acts=context.quote(list_newest_acts(carry_over)),
        observations=format_json(observation.as_json()["observations"]),
    )
    conversation = Conversation((Message("system", context.phase_prompts.orient), Message("user", user_prompt)))
    form = AnswerForm(ORIENTATION_SCHEMA, MAX_TOKENS, parse_orientation)
    answer = yield from request_answer(name, conversation, form, context.phase_prompts, context.prompts)
    return answer if isinstance(answer, PhaseFailure) else replace(answer.value, ref=answer.step)


def orientation_for_decide(context: CycleContext, orientation: Orientation) -> JsonObject:
    """Return the orientation as decide is shown it: its texts cut, with a marker at each cut.

    The priorities share one limit, so that the first of them are kept longest.
    """
    full = orientation.as_json()
    marker, ref = context.phase_prompts.left_out_read, orientation.ref
    kept: list[str] = []
    left = MAX_REASON_CHARS
    for priority in orientation.priorities:
        if left <= 0:
            break
        kept.append(truncate_text(priority, left, marker, ref))
        left -= len(priority)
    if dropped := orientation.priorities[len(kept) :]:
        chars = sum(map(len, dropped))
        kept.append(render_prompt(marker, left=chars, whole=sum(map(len, orientation.priorities)), ref=ref))
    return full | {"summary": truncate_text(orientation.summary, MAX_REASON_CHARS, marker, ref), "priorities": kept}


def list_newest_acts(carry_over: CarryOver) -> str:
    """Return the effects of the newest two acts as a list, as a model is shown them."""
    return format_list(tuple(effect.said for effect in carry_over.effects[-2:]))


def describe_check(check: Check) -> str:
    """Describe an acceptance check in words."""
    match check:
        case FileCheck(path=path, text=None):
            return f"there is a file {path}"
        case FileCheck(path=path, text=text):
            return f"the file {path} contains: {text}"
        case CommandCheck(argv=argv):
            return f"this command succeeds: {format_json(list(argv))}"


def _parse_part(number: int, given: JsonObject) -> FilePart:
    plain = plain_path_or_none(given["path"])
    if plain is None:
        raise Undecodable(f"at /files/{number}/path: must be a path of the workspace, as docs/index.md")
    first, last = given.get("start_line"), given.get("end_line")
    if first is not None and last is not None and first > last:
        raise Undecodable(f"at /files/{number}: start_line is after end_line")
    return FilePart(plain, first, last)


PHASE = PhaseFlow(
    lambda context, name, observation: orient(context, name, observation, context.carry_over),
    lambda orientation: orientation.summary,
    parse_observation,
    without_refs,
)
