"""The tools of this server, in the order in which they are listed.

The listing is made ahead of time, into listing.json, and this module is imported at the first call: many starts of a
server only ask for the list.
"""

from __future__ import annotations

import mcp_types as wire

from kairos_mcp.server.arguments import ooda, planner, runs, team

TOOLS = (*planner.TOOLS, *team.TOOLS, *ooda.TOOLS, *runs.TOOLS)


def as_listed() -> str:
    """Return the text of listing.json: what clients are sent. It is made ahead of time, not at each start."""
    listing = wire.ListToolsResult(tools=[tool.as_tool() for tool in TOOLS])
    return listing.model_dump_json(by_alias=True, exclude_none=True, include={"tools"}) + "\n"
