"""The spans of requests, which MCP's SDK makes, with the names that this server knows: a client may make up any others.

The SDK puts the method, the name of a tool or prompt and the request's id into its span as the client sent them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mcp_types.methods import SPEC_CLIENT_METHODS, SPEC_CLIENT_NOTIFICATION_METHODS

from kairos_mcp.server.prompts import PROMPTS
from kairos_mcp.telemetry.names import MAX_NAME_CHARS, OTHER

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
    from mcp.server.lowlevel import Server

_METHODS = SPEC_CLIENT_METHODS | SPEC_CLIENT_NOTIFICATION_METHODS
_DIGITS = 20  # of a request's id that is sent; a client that counts needs no more


class KnownNames:
    """The SDK's middleware for spans, shown `other` in place of each name that the server does not know."""

    def __init__(self, server: Server[Any], traced: ServerMiddleware[Any], tools: Collection[str]) -> None:
        self._server, self._traced = server, traced
        self._names = frozenset(tools) | {prompt.name for prompt in PROMPTS}

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        async def go_on(_: ServerRequestContext[Any, Any]) -> HandlerResult:
            return await call_next(ctx)

        name = (ctx.params or {}).get("name")
        params = {"name": name if name in self._names else OTHER} if isinstance(name, str) else {}
        is_ours = self._server.get_request_handler(ctx.method) or self._server.get_notification_handler(ctx.method)
        number = str(ctx.request_id)
        is_count = number.isascii() and number.isdigit() and len(number) <= _DIGITS
        shown = replace(
            ctx,
            method=ctx.method if is_ours or ctx.method in _METHODS else OTHER,
            params=params,
            request_id=ctx.request_id if is_count else None,
            protocol_version=ctx.protocol_version[:MAX_NAME_CHARS],
        )
        return await self._traced(shown, go_on)
