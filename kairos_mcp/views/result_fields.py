"""What a field of a run's result is beside its value: its schema, its line in the text, how it is cut, where it stands.

`RunReport` has one of these at each field; schema, text, cuts and rows of lists are made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, get_args

from kairos_mcp.core.limits import UNITS
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcomes import TaskStatus


class FieldCut(NamedTuple):
    """A way to make a field shorter in a result that is too long."""

    turn: int
    """Cuts are made in this order until the result fits: what is easiest to get again goes first."""
    shorten: Callable[[Any, int, JsonObject], Any]
    """One of `views/cuts.py`."""
    note: str
    """What `degraded` says of it; `{}` stands for the length that the value had."""
    least: int = 0
    """The characters that the field keeps of a result of usual length, however long the others are."""
    measure: Callable[[Any], int] = len


class Field(NamedTuple):
    schema: JsonObject
    words: Callable[[Any], str | None] | None = None
    """What stands behind the field's name on a line of the text; None: no line. Not asked for null."""
    cuts: tuple[FieldCut, ...] = ()
    in_row: bool = False
    """A row in a list of runs has it."""
    in_delta: bool = False
    """What a caller is shown who answered has it, where it is not empty."""
    is_required: bool = False
    """The schema requires it."""


TEXT: JsonObject = {"type": "string"}
TEXT_OR_NULL: JsonObject = {"type": ["string", "null"]}
COUNT: JsonObject = {"type": "integer", "minimum": 0}
AMOUNT: JsonObject = {"type": "number", "minimum": 0}


def object_of(required: tuple[str, ...], **properties: JsonObject) -> JsonObject:
    """Return the schema of an object that may have further members: results grow."""
    return {"type": "object", "properties": properties, "required": list(required)}


def list_of(items: JsonObject) -> JsonObject:
    return {"type": "array", "items": items}


USAGE = object_of(
    (),
    **{unit.name: COUNT if unit.scale == 1 else AMOUNT for unit in UNITS.values() if unit.in_usage},
    attempts=COUNT,
    cached_tokens=COUNT,
    exactness={"enum": ["exact", "reported", "estimated", "bounded"]},
)
REMAINING = object_of((), **{unit.name: {"type": ["number", "null"]} for unit in UNITS.values()})
CALLS = list_of(
    object_of(
        ("name", "ok", "ref"),
        round=COUNT,
        name=TEXT,
        ok={"type": "boolean"},
        ms=COUNT,
        preview=TEXT,
        ref={**TEXT, "description": "For run_trace: all of it"},
    )
)
PLAN = list_of(
    object_of(
        ("id", "path", "agent", "description", "status", "depends_on"),
        id=TEXT,
        path={**TEXT, "description": "The keys of what waits in it begin with it"},
        agent=TEXT,
        description=TEXT,
        status={"enum": [*get_args(TaskStatus), "cancelled"]},
        depends_on=list_of(TEXT),
        rounds=COUNT,
        usd=AMOUNT,
        tries=list_of(object_of(("agent", "status"), agent=TEXT, status=TEXT, rounds=COUNT)),
    )
)
WAITING = list_of(
    object_of(
        ("key", "kind"),
        key={**TEXT, "description": "For the answers of run_continue"},
        kind={"enum": ["completion", "tool_call", "approval", "settle"]},
        after={**TEXT, "description": "The item before: only what is new since then is here"},
        unchanged={**list_of(TEXT), "description": "What is as it was in that item"},
        system_id={**TEXT, "description": "Names `system`; without that, another item has it, or `known` did"},
        tools_id={**TEXT, "description": "Names `tools` likewise"},
    )
)
NEXT: JsonObject = {
    "anyOf": [
        {"type": "null"},
        object_of(("tool", "arguments", "why"), tool=TEXT, arguments={"type": "object"}, why=TEXT),
    ],
    "description": "The one call that makes sense now",
}
