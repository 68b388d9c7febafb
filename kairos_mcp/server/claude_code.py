"""What Claude Code reads in the `_meta` of a listed tool, and other clients are not sent.

It loads the schemas of most tools only once a search has found them. So the tools by which a run is started and
answered are loaded from the first request on, and all carry words of users for that search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mcp_types as wire

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

CLIENT_NAME = "claude-code"
MAX_RESULT_CHARS = 500_000
"""A result is bounded here already (truncation.py); Claude Code would put a long one into a file."""


def claude_code_meta(search_hint: str, *, is_always_loaded: bool) -> dict[str, Any]:
    """Return the `_meta` of a tool in the list for Claude Code."""
    always: dict[str, Any] = {"anthropic/alwaysLoad": True} if is_always_loaded else {}
    return always | {"anthropic/searchHint": search_hint, "anthropic/maxResultSizeChars": MAX_RESULT_CHARS}


def is_claude_code(ctx: ServerRequestContext[Any]) -> bool:
    """Whether the client says that it is Claude Code."""
    params = ctx.session.client_params
    return params is not None and params.client_info.name == CLIENT_NAME


def without_meta(listing: wire.ListToolsResult) -> wire.ListToolsResult:
    """Return the list of tools for any other client."""
    return wire.ListToolsResult(tools=[tool.model_copy(update={"meta": None}) for tool in listing.tools])
