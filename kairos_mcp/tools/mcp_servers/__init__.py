"""Offers the tools of configured downstream MCP servers: pinned, approved by a person, and called within bounds.

definition  what a server says of its tools, as values: names, pins, effect classes
source      one server as a source of tools for the registry; blocks in worker threads
resources   what all servers share, with the event loop in which their connections live
client      one server across its restarts: connects when needed, and again with growing pauses
connection  one open connection; with child, bounded_http, flood_guard, message_repair and tool_results, the border to
            the protocol library: it sees envelopes, repaired, and what a server lists and answers is read part by part
launch      what is started with which environment, or which address; server_sandbox is its sandbox
"""

from __future__ import annotations

from kairos_mcp.tools.mcp_servers.definition import suggested_effect
from kairos_mcp.tools.mcp_servers.resources import BackgroundLoop, ServerResources
from kairos_mcp.tools.mcp_servers.source import McpServerSource, offered_name_of, pin_source

__all__ = [
    "BackgroundLoop",
    "McpServerSource",
    "ServerResources",
    "offered_name_of",
    "pin_source",
    "suggested_effect",
]
