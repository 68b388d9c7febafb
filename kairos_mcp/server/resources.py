"""The resources of this server: the schemas that are too long for the listing of the tools, and the agents.

Imported at the first read: many starts of a server only ask for the lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.limits import LIMITED_UNITS
from kairos_mcp.core.mandate import MANDATE_SCHEMA
from kairos_mcp.core.messages import JsonObject, canonical_json

if TYPE_CHECKING:
    from kairos_mcp.app.app import App

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
    status={"enum": ["working", "input_required", "paused", "completed", "failed", "cancelled"]},
    stop_reason={**_TEXT_OR_NULL, "description": "Why its loop ended; null for a call or a phase alone"},
    summary=_TEXT_OR_NULL,
    output={"description": "By output_schema, of a phase or a call; else null"},
    rounds=_COUNT,
    route={"enum": ["scripted", "provider", "sampling", "caller", "server"]},
    model=_TEXT_OR_NULL,
    resume_at={**_TEXT_OR_NULL, "description": "When a paused run goes on by itself"},
    usage=_object(
        (),
        model_calls=_COUNT,
        attempts=_COUNT,
        input_tokens=_COUNT,
        output_tokens=_COUNT,
        cached_tokens=_COUNT,
        usd=_AMOUNT,
        tool_calls=_COUNT,
        seconds=_AMOUNT,
        exactness={"enum": ["exact", "reported", "estimated", "bounded"]},
    ),
    remaining=_object((), **{unit.name: {"type": ["number", "null"]} for unit in LIMITED_UNITS}),
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
            status={"enum": ["waiting", "working", "done", "partial", "failed", "skipped", "cancelled"]},
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

_SCHEMAS: dict[str, tuple[str, JsonObject]] = {
    "kairos://schema/mandate": ("A mandate, as mandate_save and ooda_run take it", MANDATE_SCHEMA),
    "kairos://schema/result": ("The result of every tool that touches a run", RESULT_SCHEMA),
}


def list_resources() -> wire.ListResourcesResult:
    """The resources, always in the same order."""
    return wire.ListResourcesResult(
        resources=[
            wire.Resource(uri=uri, name=uri.rpartition("/")[2], description=text, mime_type="application/schema+json")
            for uri, (text, _) in _SCHEMAS.items()
        ]
    )


AGENT_URI = "kairos://agents/"


def list_templates() -> wire.ListResourceTemplatesResult:
    """The resources of which there is one for each name."""
    agent = wire.ResourceTemplate(
        uri_template=AGENT_URI + "{name}",
        name="agent",
        description="An agent: its tools, model, rounds and prompt, or what is wrong with its file",
        mime_type="application/json",
    )
    return wire.ListResourceTemplatesResult(resource_templates=[agent])


async def read_agent(uri: str, app: App) -> wire.ReadResourceResult:
    """The text of an agent's resource. Raises MCPError for one that does not exist."""
    try:
        text = canonical_json(await app.agents.describe(unquote(uri.removeprefix(AGENT_URI))))
    except KairosError as error:
        raise MCPError(wire.INVALID_PARAMS, str(error)) from error
    contents = wire.TextResourceContents(uri=uri, mime_type="application/json", text=text)
    return wire.ReadResourceResult(contents=[contents], ttl_ms=0, cache_scope="private")  # its file may change


def read_resource(uri: str) -> wire.ReadResourceResult:
    """The text of a resource. Raises MCPError for one that does not exist."""
    if uri not in _SCHEMAS:
        raise MCPError(wire.INVALID_PARAMS, f"Unknown resource. This server has: {', '.join(_SCHEMAS)}.")
    text = canonical_json(_SCHEMAS[uri][1])
    contents = wire.TextResourceContents(uri=uri, mime_type="application/schema+json", text=text)
    return wire.ReadResourceResult(contents=[contents])
