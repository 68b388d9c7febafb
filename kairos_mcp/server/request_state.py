"""What a client carries between two calls is sealed: a pointer to the run, never its content.

The SDK's boundary does it, under a key of this state folder, so that any process on it takes the next call. It is
made at the first call: its import costs more than a start may.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from kairos_mcp.server.who import principal

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

KEY_FILE = "request-state.key"
KEY_BYTES = 32
Boundary = Callable[["ServerRequestContext[Any, Any]", "CallNext"], Any]
REFUSED = (
    "Invalid or expired requestState: it was changed, is not for this call, or is older than 8 hours. The run is kept:"
    " run_status shows where it stands, run_continue goes on with it."
)


class RequestStateSealer:
    """Middleware: seals what goes out, opens what comes in; what can't be opened is -32602 with a text that helps.

    `lives_s`: how long a state is good.
    """

    def __init__(self, home: Path, lives_s: float) -> None:
        self._home = home
        self._lives_s = lives_s
        self._boundary: Boundary | None = None

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        refused = [True]

        async def opened(inner: ServerRequestContext[Any, Any]) -> HandlerResult:
            refused[0] = False
            return await call_next(inner)

        try:
            result: HandlerResult = await self._make_boundary()(ctx, opened)
        except MCPError:
            if refused[0]:
                raise MCPError(wire.INVALID_PARAMS, REFUSED) from None
            raise
        return result

    def _make_boundary(self) -> Boundary:
        """The boundary of this folder's key. Without a folder there is no run to point to: a key of the moment will
        do, and the call says what is wrong with the folder."""
        if self._boundary is not None:
            return self._boundary
        try:
            boundary = self._boundary = boundary_of(state_key(self._home), self._lives_s)
        except OSError:
            boundary = boundary_of(os.urandom(KEY_BYTES), self._lives_s)
        return boundary


def boundary_of(key: bytes, lives_s: float) -> Boundary:
    """What it seals is bound to the tool, its arguments and the principal, and good for `lives_s` seconds."""
    from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

    security = RequestStateSecurity(keys=[key], ttl=lives_s, bind_principal=lambda _: principal())
    return RequestStateBoundary(security, default_audience="kairos-mcp")


def state_key(home: Path) -> bytes:
    """The key of this state folder, made once: of several processes that make it, one is first. Raises OSError.

    A damaged one is made anew: what was sealed under it is refused, with the text that says how to go on.
    """
    path = home / KEY_FILE
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    damaged = path.exists()
    if damaged and len(key := path.read_bytes()) == KEY_BYTES:
        return key
    fresh = home / f".{KEY_FILE}-{secrets.token_hex(8)}"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, os.urandom(KEY_BYTES))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        (os.replace if damaged else os.link)(fresh, path)
    except FileExistsError:
        pass  # another process was first
    finally:
        fresh.unlink(missing_ok=True)
    return path.read_bytes()
