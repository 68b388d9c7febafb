"""Orient: what was observed, weighed against the goal: where things stand, what comes first, what to read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.mandate import Check, CommandCheck, FileCheck
from kairos_mcp.core.messages import Conversation, JsonObject, Message, Risk
from kairos_mcp.core.run_spec import GIVEN
from kairos_mcp.core.scopes import PATH_CHARS, plain_or_none
from kairos_mcp.core.steps import Flow
from kairos_mcp.core.strict_json import Undecodable
from kairos_mcp.flows.ooda.context import CarryOver, CycleContext
from kairos_mcp.flows.ooda.observe import Observation
from kairos_mcp.flows.ooda.prompts import listed, sections
from kairos_mcp.flows.ooda.shown import REASON_CHARS, as_text, cut
from kairos_mcp.flows.ooda.structured_answer import AnswerForm, PhaseFailure, keyed, settled, text, texts
from kairos_mcp.flows.planner_input import render_prompt

TOKENS = 1_024
FILES = 8


@dataclass(frozen=True, slots=True)
class Part:
    """A file that decide reads first, or lines of it; both ends are included."""

    path: str
    start_line: int | None = None
    end_line: int | None = None

    def as_json(self) -> JsonObject:
        told: JsonObject = {"path": self.path, "start_line": self.start_line, "end_line": self.end_line}
        return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Orientation:
    """`risk_level` is the model's own view: it is shown, and compared with nothing. `ref`: under which it is kept
    whole; a phase alone keeps what it was given."""

    summary: str
    priorities: tuple[str, ...]
    risk_level: Risk
    files: tuple[Part, ...] = ()
    ref: str = GIVEN

    def as_json(self) -> JsonObject:
        told: JsonObject = {
            "summary": self.summary,
            "priorities": list(self.priorities),
            "risk_level": self.risk_level,
        }
        return told | ({"files": [part.as_json() for part in self.files]} if self.files else {})


_LINE: JsonObject = {"type": "integer", "minimum": 1, "maximum": 2**31}
ORIENTATION_SCHEMA = keyed(
    ("summary", "priorities", "risk_level"),
    summary=text(4_000),
    priorities=texts(10, 1_000),
    risk_level={"enum": ["low", "medium", "high"]},
    files={
        "type": "array",
        "maxItems": FILES,
        "items": keyed(("path",), path=text(PATH_CHARS), start_line=_LINE, end_line=_LINE),
    },
)


def orientation_of(given: JsonObject) -> Orientation:
    """Raises Undecodable with all that is wrong."""
    if problems := compile_schema(ORIENTATION_SCHEMA).problems(given):
        raise Undecodable("; ".join(problems))
    files = tuple(_part(n, each) for n, each in enumerate(given.get("files", ())))
    return Orientation(given["summary"], tuple(given["priorities"]), given["risk_level"], files)


def orient(
    order: CycleContext, name: str, observation: Observation, carried: CarryOver
) -> Flow[Orientation | PhaseFailure]:
    """Steps: `NAME`, and up to two repairs."""
    asked = sections(
        order.says.orient_user,
        goal=order.mandate.goal,
        acceptance=listed(tuple(said(check) for check in order.mandate.acceptance)),
        lessons=order.quoted(listed(carried.lessons)),
        acts=order.quoted(acts(carried)),
        observations=as_text(observation.as_json()["observations"]),
    )
    talk = Conversation((Message("system", order.says.orient), Message("user", asked)))
    form = AnswerForm(ORIENTATION_SCHEMA, TOKENS, orientation_of)
    oriented = yield from settled(name, talk, form, order.says, order.prompts)
    return oriented if isinstance(oriented, PhaseFailure) else replace(oriented.value, ref=oriented.step)


def told(order: CycleContext, orientation: Orientation) -> JsonObject:
    """The orientation as decide is told it: its texts cut, the first priorities kept longest, and each cut named; whole
    in runs of before."""
    whole = orientation.as_json()
    if not order.prompts.quoted:
        return whole
    mark, ref = order.says.left_out, orientation.ref
    kept: list[str] = []
    left = REASON_CHARS
    for priority in orientation.priorities:
        if left <= 0:
            break
        kept.append(cut(priority, left, mark, ref))
        left -= len(priority)
    if dropped := orientation.priorities[len(kept) :]:
        chars = sum(map(len, dropped))
        kept.append(render_prompt(mark, left=chars, whole=sum(map(len, orientation.priorities)), ref=ref))
    return whole | {"summary": cut(orientation.summary, REASON_CHARS, mark, ref), "priorities": kept}


def acts(carried: CarryOver) -> str:
    """The newest two acts, as the thinking phases are told them."""
    return listed(tuple(effect.said for effect in carried.effects[-2:]))


def said(check: Check) -> str:
    """An acceptance check in words."""
    match check:
        case FileCheck(path=path, text=None):
            return f"there is a file {path}"
        case FileCheck(path=path, text=wanted):
            return f"the file {path} contains: {wanted}"
        case CommandCheck(argv=argv):
            return f"this command succeeds: {as_text(list(argv))}"


def _part(number: int, given: JsonObject) -> Part:
    plain = plain_or_none(given["path"])
    if plain is None:
        raise Undecodable(f"at /files/{number}/path: must be a path of the workspace, as docs/index.md")
    first, last = given.get("start_line"), given.get("end_line")
    if first is not None and last is not None and first > last:
        raise Undecodable(f"at /files/{number}: start_line is after end_line")
    return Part(plain, first, last)
