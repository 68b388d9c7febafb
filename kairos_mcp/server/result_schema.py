"""The full schemas, which are too long for the listing of the tools: of a run's result and of a mandate."""

from __future__ import annotations

from typing import get_args

from kairos_mcp.core.limits import UNITS
from kairos_mcp.core.mandate import MANDATE_SCHEMA
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcomes import RUN_STATUSES
from kairos_mcp.core.routes import ROUTES, SERVER_ROUTE
from kairos_mcp.flows.team import TaskStatus

_TEXT: JsonObject = {"type": "string"}
_TEXT_OR_NULL: JsonObject = {"type": ["string", "null"]}
_COUNT: JsonObject = {"type": "integer", "minimum": 0}
_AMOUNT: JsonObject = {"type": "number", "minimum": 0}


def _object(required: tuple[str, ...], **properties: JsonObject) -> JsonObject:
    """An object that may have further members: results grow."""
    return {"type": "object", "properties": properties, "required": list(required)}


def _list_of(items: JsonObject) -> JsonObject:
    return {"type": "array", "items": items}


RESULT_SCHEMA: JsonObject = _object(
    ("run_id", "status"),
    run_id=_TEXT,
    seq={**_COUNT, "description": "Rises with each change; `since` for run_status until=news"},
    flow=_TEXT,
    goal={**_TEXT, "description": "Its first 80 characters"},
    workspace=_TEXT_OR_NULL,
    created_at=_TEXT,
    status={"enum": list(RUN_STATUSES)},
    stop_reason={**_TEXT_OR_NULL, "description": "Why its loop ended; null for a call or a phase alone"},
    summary={**_TEXT_OR_NULL, "description": "A model's last words; null where it said none"},
    record={**_TEXT_OR_NULL, "description": "What was done, where there is no summary"},
    output={"description": "By output_schema, of a phase or a call; else null"},
    rounds=_COUNT,
    route={"enum": [*ROUTES, SERVER_ROUTE]},
    model=_TEXT_OR_NULL,
    resume_at={**_TEXT_OR_NULL, "description": "When a paused run goes on by itself"},
    usage=_object(
        (),
        **{unit.name: _COUNT if unit.scale == 1 else _AMOUNT for unit in UNITS.values() if unit.in_usage},
        attempts=_COUNT,
        cached_tokens=_COUNT,
        exactness={"enum": ["exact", "reported", "estimated", "bounded"]},
    ),
    remaining=_object((), **{unit.name: {"type": ["number", "null"]} for unit in UNITS.values()}),
    calls=_list_of(
        _object(
            ("name", "ok", "ref"),
            round=_COUNT,
            name=_TEXT,
            ok={"type": "boolean"},
            ms=_COUNT,
            preview=_TEXT,
            ref={**_TEXT, "description": "For run_trace: all of it"},
        )
    ),
    plan=_list_of(
        _object(
            ("id", "path", "agent", "description", "status", "depends_on"),
            id=_TEXT,
            path={**_TEXT, "description": "The keys of what waits in it begin with it"},
            agent=_TEXT,
            description=_TEXT,
            status={"enum": [*get_args(TaskStatus), "cancelled"]},
            depends_on=_list_of(_TEXT),
            rounds=_COUNT,
            usd=_AMOUNT,
            tries=_list_of(_object(("agent", "status"), agent=_TEXT, status=_TEXT, rounds=_COUNT)),
        )
    ),
    phase={"enum": ["planning", "tasks", "replanning", "answer"], "description": "Of a team that has not ended"},
    waiting=_list_of(
        _object(
            ("key", "kind"),
            key={**_TEXT, "description": "For the answers of run_continue"},
            kind={"enum": ["completion", "tool_call", "approval", "settle"]},
            after={**_TEXT, "description": "The item before: only what is new since then is here"},
            unchanged={**_list_of(_TEXT), "description": "What is as it was in that item"},
        )
    ),
    degraded={**_list_of(_TEXT), "description": "What was cut, defaulted, skipped or done otherwise than asked"},
    next={
        "anyOf": [
            {"type": "null"},
            _object(("tool", "arguments", "why"), tool=_TEXT, arguments={"type": "object"}, why=_TEXT),
        ],
        "description": "The one call that makes sense now",
    },
)

SCHEMAS: dict[str, tuple[str, JsonObject]] = {
    "mandate": ("A mandate, as mandate_save and ooda_run take it", MANDATE_SCHEMA),
    "result": ("The result of every tool that touches a run", RESULT_SCHEMA),
}
"""By name: what a schema is of, and the schema."""
