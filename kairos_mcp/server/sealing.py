"""What a client carries between two calls is sealed: a pointer to the run, never its content.

The SDK's boundary does it, under a key of this state folder, so that any process on it takes the next call. It is
made at the first call: its import costs more than a start may.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mcp_types as wire
from mcp.shared.exceptions import MCPError

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

KEY_FILE = "request-state.key"
KEY_BYTES = 32
LIVES_S = 8 * 3600  # as long as an approval
REFUSED = (
    "Invalid or expired requestState: it was changed, is not for this call, or is older than 8 hours. The run is kept:"
    " run_status shows where it stands, run_continue goes on with it."
)


class Sealing:
    """Middleware: seals what goes out, opens what comes in; what can't be opened is -32602 with a text that helps."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._boundary: Callable[[ServerRequestContext[Any, Any], CallNext], Any] | None = None

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        if self._boundary is None:
            self._boundary = self._made()
        refused = [True]

        async def opened(inner: ServerRequestContext[Any, Any]) -> HandlerResult:
            refused[0] = False
            return await call_next(inner)

        try:
            result: HandlerResult = await self._boundary(ctx, opened)
        except MCPError:
            if refused[0]:
                raise MCPError(wire.INVALID_PARAMS, REFUSED) from None
            raise
        return result

    def _made(self) -> Callable[[ServerRequestContext[Any, Any], CallNext], Any]:
        from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

        security = RequestStateSecurity(keys=[state_key(self._home)], ttl=LIVES_S)
        return RequestStateBoundary(security, default_audience="kairos-mcp")


def state_key(home: Path) -> bytes:
    """The key of this state folder, made once: of several processes that make it, one is first."""
    path = home / KEY_FILE
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        fresh = home / f".{KEY_FILE}-{os.getpid()}"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, os.urandom(KEY_BYTES))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return path.read_bytes()
