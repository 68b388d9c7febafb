"""The MCP server itself: the table listed; a call checked, carried out, answered. It knows no transport."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mcp_types as wire
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from kairos_mcp import __version__
from kairos_mcp.errors import KairosError
from kairos_mcp.report import Caller
from kairos_mcp.server import table
from kairos_mcp.server.handlers import Call
from kairos_mcp.server.progress import teller
from kairos_mcp.server.refusals import checked
from kairos_mcp.server.results import error_result

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from kairos_mcp.host import Host
    from kairos_mcp.settings import Settings

log = logging.getLogger(__name__)

LISTING_HOLDS_MS = 300_000  # the table changes only with the process; a client may keep it for five minutes


class InternalError(KairosError):
    """A bug of ours: the client learns that and no more, the log has the rest."""

    code = "internal_error"


def build_server(host: Host, settings: Settings) -> Server[dict[str, Any]]:
    """A server over an open host; one may serve many connections, in every protocol era."""
    listing = wire.ListToolsResult(tools=[tool.as_tool() for tool in table.listed(settings.tools)])
    offered = {tool.name: tool for tool in table.TOOLS}  # a tool not listed may still be called
    schemas = {tool.name: tool.input_schema for tool in listing.tools}

    async def on_list_tools(_ctx: object, _params: object) -> wire.ListToolsResult:
        return listing

    async def on_call_tool(
        ctx: ServerRequestContext[Any], params: wire.CallToolRequestParams
    ) -> wire.CallToolResult:
        tool = offered.get(params.name)
        if tool is None:
            raise MCPError(wire.INVALID_PARAMS, f"Unknown tool. This server has: {', '.join(offered)}.")
        call = Call(host, Caller(client=_client(ctx)), teller(ctx.session.report_progress))
        try:
            return await tool.handle(call, checked(tool.arguments, params.arguments))
        except KairosError as error:
            return error_result(error)
        except MCPError:
            raise
        except Exception:
            log.exception("%s failed", tool.name)
            return error_result(InternalError("Something broke inside the server.", _SEE_LOG))

    return Server(
        "kairos-mcp",
        version=__version__,
        title="Kairos",
        instructions=instructions(settings),
        cache_hints={"tools/list": CacheHint(ttl_ms=LISTING_HOLDS_MS, scope="public")},
        get_tool_input_schema=schemas.get,
        on_list_tools=on_list_tools,
        on_call_tool=on_call_tool,
    )


_SEE_LOG = "Runs are kept: run_status says where they stand. The server's stderr says what broke."


def instructions(settings: Settings) -> str:
    """When to use what, for the host's model; and what this server lacks, so that nobody waits for it."""
    text = Path(__file__).with_name("instructions.md").read_text(encoding="utf-8")
    if settings.workspaces:
        return text
    return f"{text}\nNo workspace is configured, so there are no file tools: `--workspace DIR` adds them.\n"


def _client(ctx: ServerRequestContext[Any]) -> str:
    """The client's own name and version, as far as given: a label for the record, trusted for nothing."""
    given = ctx.session.client_params
    return "" if given is None else f"{given.client_info.name} {given.client_info.version}".strip()[:200]
