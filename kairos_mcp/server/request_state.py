"""What a client carries between two calls: a pointer to the run, never its content.

It is sealed by the SDK's boundary with a key of the store, so that any server on it can take the next call.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.server.sender import current_principal
from kairos_mcp.store.approvals import DialogView
from kairos_mcp.store.key_file import KEY_BYTES

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

    from kairos_mcp.core.steps import DialectName


@dataclass(frozen=True, slots=True)
class ResumedRequest:
    """The content of a sealed requestState: the run, the nonces of the requests that are answered, how many rounds this
    call has had, the dialect and time (milliseconds since 1970) of asking, the keys of approvals that are not asked
    about again, and under each key the digest of what it asks and how much of that the user was shown."""

    run_id: str
    nonces: tuple[str, ...]
    rounds: int
    dialect: DialectName
    at: int
    skipped: tuple[str, ...] = ()
    dialogs: tuple[tuple[str, str, DialogView], ...] = ()

    def as_sealed(self) -> str:
        when = self.rounds, self.dialect, self.at
        return json.dumps((self.run_id, self.nonces, *when, self.skipped, self.dialogs))

    @staticmethod
    def from_sealed(state: str | None) -> ResumedRequest | None:
        if state is None:
            return None
        run_id, nonces, rounds, dialect, at, skipped, dialogs = json.loads(state)
        read = tuple((key, digest, DialogView(*shown)) for key, digest, shown in dialogs)
        return ResumedRequest(run_id, tuple(nonces), rounds, dialect, at, tuple(skipped), read)


Boundary = Callable[["ServerRequestContext[Any, Any]", "CallNext"], Any]
STATE_REFUSED = (
    "Invalid or expired requestState: it was changed, is not for this call, or is older than {hours:g} hours. The run"
    " is kept: run_status shows its status, run_continue goes on with it."
)


class RequestStateSealer:
    """Middleware: seals each outgoing requestState and opens each incoming one. One that can't be opened is refused
    with -32602 and a text that says how to go on. `read_key`: reads the store's key. `ttl_s`: how long a state is
    valid."""

    def __init__(self, read_key: Callable[[], Awaitable[bytes]], ttl_s: float) -> None:
        self._read_key = read_key
        self._ttl_s = ttl_s
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
                text = STATE_REFUSED.format(hours=self._ttl_s / 3600)
                raise MCPError(wire.INVALID_PARAMS, text) from None
            raise
        return result

    async def _get_boundary(self) -> Boundary:
        """The boundary with the store's key. If it can't be read there is no run to point to: a random one will do."""
        if self._boundary is not None:
            return self._boundary
        try:
            boundary = self._boundary = make_boundary(await self._read_key(), self._ttl_s)
        except Exception:  # whatever it is, the call meets it too, and reports it
            boundary = make_boundary(os.urandom(KEY_BYTES), self._ttl_s)
        return boundary


def make_boundary(key: bytes, ttl_s: float) -> Boundary:
    """Make a boundary: what it seals is bound to the tool, its arguments and the principal, and valid for `ttl_s`."""
    from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

    security = RequestStateSecurity(keys=[key], ttl=ttl_s, bind_principal=lambda _: current_principal())
    return RequestStateBoundary(security, default_audience="kairos-mcp")
