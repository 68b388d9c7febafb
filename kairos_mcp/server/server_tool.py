"""What a tool of this server is: the record that stands below the class of its arguments.

`tools.py` has all of them, and the listing with its schemas and hints is made of them.
"""

from __future__ import annotations

import mcp_types as wire

from kairos_mcp.core.effects import Effect
from kairos_mcp.core.limits import CAPS
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.server.annotations import hints
from kairos_mcp.server.arguments.base import Arguments
from kairos_mcp.server.claude_code import claude_code_meta
from kairos_mcp.server.validation import listed_schema

TEXT: JsonObject = {"type": "string"}
TEXTS: JsonObject = {"type": "array", "items": TEXT}

OBJECT: JsonObject = {"type": "object"}
"""The schema of a result. It is open, and errors fit it too: some clients check those as well. Without a `type` at its
root the listing would break legacy clients. What the keys of a run's result hold is said by kairos://schema/result: the
listing's room is for what models read."""


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool of this server.

    `effect`: its effect class, from which its hints follow; those of tools that move runs also depend on the settings
    (`annotate_tool` in annotations.py).

    `search_hint`: words of users that the description has no room for. `is_always_loaded`: its schema is worth the room
    from a session's first request on. Both are for Claude Code (claude_code.py).

    `names_limits`: its listing names limits and routes, for which others have no room. `briefs`: what its listing says
    of arguments that other tools explain, where that is not what others say of them in brief.
    """

    name: str
    title: str
    description: str
    effect: Effect
    arguments: type[Arguments]
    output_schema: JsonObject
    search_hint: str
    is_always_loaded: bool = False
    names_limits: bool = False
    briefs: JsonObject | None = None

    def as_tool(self) -> wire.Tool:
        return wire.Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=self._input_schema(),
            output_schema=self.output_schema,
            annotations=hints(self.effect),
            _meta=claude_code_meta(self.search_hint, is_always_loaded=self.is_always_loaded),
        )

    def _input_schema(self) -> JsonObject:
        """Return the listed schema of the arguments. It is sent in every session."""
        schema = listed_schema(self.arguments)
        properties = schema["properties"]
        if "limits" not in properties:
            return schema
        return {**schema, "properties": {**properties, **(self.briefs or self._brief_arguments(properties))}}

    def _brief_arguments(self, properties: JsonObject) -> JsonObject:
        about = properties["limits"].get("description")
        if self.names_limits:
            return {"limits": {"type": "object", "description": f"{about}: {', '.join(CAPS)}"}}
        route = {name: properties["route"][name] for name in ("type", "description") if name in properties["route"]}
        limits = {"type": "object"} | ({"description": about} if about else {})
        return {"limits": limits, "route": route} | {name: TEXTS for name in ("after", "known") if name in properties}
