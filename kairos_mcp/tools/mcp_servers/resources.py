"""What all downstream servers share: one background thread with an event loop, the pins, and the way to secrets.

The connections live in that loop, since they outlive a call; a tool's `run` only waits for what happens there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kairos_mcp.core.env_files import is_env_file
from kairos_mcp.core.errors import Unreachable
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store.tool_pins import DefinitionTable
from kairos_mcp.tools.commands.protected_paths import ProtectionRules
from kairos_mcp.tools.files.workspace_scopes import build_scopes
from kairos_mcp.tools.mcp_servers.server_sandbox import SandboxLimits

if TYPE_CHECKING:
    from opentelemetry.context import Context

T = TypeVar("T")

CLOSING_S = 8  # a child takes up to four times GRACE_S to end; all end at the same time


class BackgroundLoop:
    """An event loop in a thread, made at the first use. `submit` may be called from any thread but that one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping: asyncio.Event | None = None
        self._closed = False
        self._closers: list[Callable[[], Coroutine[Any, Any, None]]] = []

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start a coroutine in the loop. Raises Unreachable once the server is closing."""
        with self._lock:
            if self._closed:
                raise Unreachable("The server is closing.", "Call again once it is back.")
            if self._loop is None:
                started: Future[None] = Future()
                self._thread = threading.Thread(target=self._run, args=(started,), name="kairos-servers", daemon=True)
                self._thread.start()
                started.result()
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def add_closer(self, closer: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have `closer` awaited in the loop before it ends."""
        self._closers.append(closer)

    def close(self) -> None:
        """End all connections and the thread; blocks for little more than CLOSING_S at most."""
        with self._lock:
            self._closed = True
            loop, thread, stopping = self._loop, self._thread, self._stopping
        if loop is None or thread is None or stopping is None or not thread.is_alive():
            return
        loop.call_soon_threadsafe(stopping.set)
        thread.join(CLOSING_S + 2)

    def _run(self, started: Future[None]) -> None:
        async def until_stopped() -> None:
            self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
            started.set_result(None)
            await self._stopping.wait()
            closing = [asyncio.create_task(closer()) for closer in self._closers]
            if closing:
                await asyncio.wait(closing, timeout=CLOSING_S)

        asyncio.run(until_stopped())


def default_limits(workspace: Path | None) -> SandboxLimits:
    """Return what holds where nothing is configured."""
    if workspace is None:
        return SandboxLimits()
    return SandboxLimits(rules=ProtectionRules.from_scopes(build_scopes(workspace)), is_unreadable=is_env_file)


@dataclass(frozen=True, slots=True)
class ServerResources:
    """What all downstream servers share.

    `resolve_secret` takes `env:NAME` or `file:PATH` and raises ConfigError. `clock` gives milliseconds since 1970.
    `environ` is this process's environment. `limits` says what a server in a sandbox may not see or write, in a
    workspace or without one. `redact` takes the secrets
    out of what a server lists. `trace_of` gives the trace's context of a call, by the id of its run and its path; None
    without telemetry.
    """

    loop: BackgroundLoop
    definitions: DefinitionTable
    resolve_secret: Callable[[str], str]
    environ: Mapping[str, str]
    clock: Callable[[], int]
    limits: Callable[[Path | None], SandboxLimits] = default_limits
    redact: Callable[[JsonObject], JsonObject] = lambda listed: listed
    trace_of: Callable[[str, str], Context | None] | None = None
