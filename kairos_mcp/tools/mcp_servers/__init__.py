"""Downstream MCP servers by configuration: their tools, pinned, called over a line that may die, and bounded.

definition  what a server says of its tools, as values: names, pins, effect classes
source      one server as a source of tools, for the registry; blocking, in worker threads
resources   what all servers share
event_loop  the one background thread with an event loop, for all servers
client      one server across restarts: opened when needed, reopened with growing pauses
connection  one live connection; with child, flood_guard and answers the border to the protocol library
launch      what is started, with which environment, or which address; enclosure is its sandbox
"""

from __future__ import annotations

from kairos_mcp.tools.mcp_servers.event_loop import BackgroundLoop
from kairos_mcp.tools.mcp_servers.resources import ServerResources
from kairos_mcp.tools.mcp_servers.source import McpServerSource, offered_as, settled_source, source_of

__all__ = ["BackgroundLoop", "McpServerSource", "ServerResources", "offered_as", "settled_source", "source_of"]
