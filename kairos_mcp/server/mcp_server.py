"""The MCP server: what it says of itself, what it lists, where a call goes. It knows no transport."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mcp_types as wire
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import Server

from kairos_mcp import __version__
from kairos_mcp.server.annotations import annotate_tool
from kairos_mcp.server.client_sessions import ClientSessions, serve_sessions
from kairos_mcp.server.listing import list_tools
from kairos_mcp.server.patience import PATIENCE, WaitPolicy
from kairos_mcp.server.request_state import RequestStateSealer

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from kairos_mcp.app.app import App
    from kairos_mcp.settings.settings import Settings

_NAME = re.compile(r"[a-z]+(?:_[a-z]+)+")
LISTING_HOLDS_MS = 300_000  # the list changes only with the process; a client may keep it for five minutes


def build_server(
    reach: Callable[[], Awaitable[App]], settings: Settings, patience: WaitPolicy = PATIENCE
) -> Server[ClientSessions]:
    """A server over a host, which is reached at the first call: a client that only looks pays for no house.

    One server may serve many connections, in every protocol era.
    """
    chosen = list_tools(settings.tools)
    listing = wire.ListToolsResult(tools=[annotate_tool(tool, settings) for tool in chosen.tools])
    schemas = {tool.name: tool.input_schema for tool in listing.tools}

    async def on_list_tools(_ctx: object, _params: object) -> wire.ListToolsResult:
        return listing

    async def on_call_tool(
        ctx: ServerRequestContext[Any], params: wire.CallToolRequestParams
    ) -> wire.CallToolResult | wire.InputRequiredResult:
        from kairos_mcp.server.dispatch import dispatch

        return await dispatch(ctx, params, reach, patience)

    server = Server(
        "kairos-mcp",
        version=__version__,
        title="Kairos",
        instructions=instructions(settings, listing),
        cache_hints={"tools/list": CacheHint(ttl_ms=LISTING_HOLDS_MS, scope="public")},
        get_tool_input_schema=schemas.get,
        lifespan=serve_sessions,
        on_list_tools=on_list_tools,
        on_call_tool=on_call_tool,
    )
    state_s = settings.approval_hours * 3600.0 if patience.state_s is None else patience.state_s
    server.middleware.append(RequestStateSealer(settings.home, state_s))
    return server


def instructions(settings: Settings, listing: wire.ListToolsResult) -> str:
    """When to use what, for the host's model; and what this server lacks, so that nobody waits for it.

    A line that names a tool which is not listed is left out: a model would look for it, or make it up.
    """
    shown = {tool.name for tool in listing.tools}
    hidden = {tool.name for tool in list_tools("all").tools} - shown
    lines = Path(__file__).with_name("instructions.md").read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if not hidden.intersection(_NAME.findall(line)))
    if settings.workspaces:
        return text
    return f"{text}\nNo workspace is configured, so there are no file tools: `--workspace DIR` adds them.\n"
