"""Seal what a client carries between two calls: a pointer to the run, never its content.

The SDK's boundary does it, with a key of the store, so that any server on it can take the next call. It is imported at
the first call, since that takes longer than a start may.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from kairos_mcp.server.call import current_principal
from kairos_mcp.store.key_file import KEY_BYTES

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

Boundary = Callable[["ServerRequestContext[Any, Any]", "CallNext"], Any]
REFUSED_TEXT = (
    "Invalid or expired requestState: it was changed, is not for this call, or is older than 8 hours. The run is kept:"
    " run_status shows its status, run_continue goes on with it."
)


class RequestStateSealer:
    """Middleware: seals each outgoing requestState and opens each incoming one. One that can't be opened is refused
    with -32602 and a text that says how to go on. `read_key`: reads the store's key. `lives_s`: how long a state is
    valid."""

    def __init__(self, read_key: Callable[[], Awaitable[bytes]], lives_s: float) -> None:
        self._read_key = read_key
        self._lives_s = lives_s
        self._boundary: Boundary | None = None

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        was_opened = False

        async def call_opened(inner: ServerRequestContext[Any, Any]) -> HandlerResult:
            nonlocal was_opened
            was_opened = True
            return await call_next(inner)

        try:
            result: HandlerResult = await (await self._get_boundary())(ctx, call_opened)
        except MCPError:
            if not was_opened:
                raise MCPError(wire.INVALID_PARAMS, REFUSED_TEXT) from None
            raise
        return result

    async def _get_boundary(self) -> Boundary:
        """The boundary with the store's key. If it can't be read there is no run to point to: a random one will do."""
        if self._boundary is not None:
            return self._boundary
        try:
            boundary = self._boundary = make_boundary(await self._read_key(), self._lives_s)
        except Exception:  # whatever it is, the call meets it too, and reports it
            boundary = make_boundary(os.urandom(KEY_BYTES), self._lives_s)
        return boundary


def make_boundary(key: bytes, lives_s: float) -> Boundary:
    """Make a boundary: what it seals is bound to the tool, its arguments and the principal, and valid for `lives_s`."""
    from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

    security = RequestStateSecurity(keys=[key], ttl=lives_s, bind_principal=lambda _: current_principal())
    return RequestStateBoundary(security, default_audience="kairos-mcp")
