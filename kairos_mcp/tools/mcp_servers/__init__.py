"""Downstream MCP servers by configuration: their tools, pinned, called over a line that may die, and bounded.

definition  what a server says of its tools, as values: names, pins, effect classes
source      one server as a source of tools, for the registry; blocking, in worker threads
shared      what all servers of a house have in common
backstage   the one background thread with an event loop, for all servers
line        the connection of one server over its deaths
link        one living connection; with child, watch and answers the border to the protocol library
way         what is started, with which environment, or which address; enclosure its sandbox
"""

from __future__ import annotations

from kairos_mcp.tools.mcp_servers.event_loop import BackgroundLoop
from kairos_mcp.tools.mcp_servers.resources import ServerResources
from kairos_mcp.tools.mcp_servers.source import McpServerSource, offered_as, settled_source, source_of

__all__ = ["BackgroundLoop", "McpServerSource", "ServerResources", "offered_as", "settled_source", "source_of"]
