"""Serve MCP on this process's stdin and stdout, and end with them, with the parent, or when told to."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from threading import Timer
from typing import TYPE_CHECKING

import anyio

from kairos_mcp.core.errors import KairosError
from kairos_mcp.server.mcp_server import build_server
from kairos_mcp.server.wire import connect_streams

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.settings.settings import Settings

LEAVING_S = 1.0  # from the end of stdin to the end of the process at the latest; a run resumes from its rows
LOOK_S = 0.5
PR_SET_PDEATHSIG = 1


def serve(settings: Settings) -> None:
    """Serve until stdin ends, the parent is gone or SIGTERM comes.

    Descriptors 0 and 1 stay taken away afterwards as well: what is printed at exit must not reach the wire.
    """
    parent = os.getppid()
    source, target = _take_wire()
    anyio.run(_serve, settings, source, target, parent)


async def _serve(settings: Settings, source: int, target: int, parent: int) -> None:
    async with reachable(settings) as reach:
        server = build_server(reach, settings)
        async with _until_signal(parent), connect_streams(source, target, _leave_soon) as streams:
            try:
                await server.run(*streams, server.create_initialization_options())
            finally:
                _leave_soon()  # not only at the end of stdin


@asynccontextmanager
async def reachable(settings: Settings) -> AsyncIterator[Callable[[], Awaitable[App]]]:
    """The host, opened when it is first reached and closed at the end; its import costs more than ours. Where there are
    rules of the gate it is opened at once, and one that fits no tool is named on stderr: no client shows that."""
    house = AsyncExitStack()
    opened: list[App] = []
    first = anyio.Lock()

    async def reach() -> App:
        async with first:
            if not opened:
                from kairos_mcp.app.app import App

                opened.append(await house.enter_async_context(App.open(settings, via="mcp")))
                for text in opened[0].idle_rules():
                    print(f"kairos-mcp: {text}", file=sys.stderr)  # noqa: T201 - to a person
        return opened[0]

    async def named() -> None:
        with suppress(KairosError):  # whoever calls first is told
            await reach()

    async with house:
        at_once = asyncio.create_task(named()) if settings.gate else None
        try:
            yield reach
        finally:
            if at_once is not None:
                await asyncio.wait([at_once])


def _take_wire() -> tuple[int, int]:
    """Private copies of stdin and stdout, which then are nothing and stderr, for us and for every child."""
    while (nothing := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # fills what a host has left closed, lest the wire lands there
    source, target = os.dup(0), os.dup(1)  # not inherited by children
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return source, target


def _leave_soon() -> None:
    """What does not let go in time is cut off: a stuck tool, or a client that does not read its answers."""
    timer = Timer(LEAVING_S, partial(os._exit, 0))
    timer.daemon = True
    timer.start()


@asynccontextmanager
async def _until_signal(parent: int) -> AsyncIterator[None]:
    """Cancels what is inside once a signal says so or the parent has gone: then nobody is there to serve."""
    async with anyio.create_task_group() as watch:
        if os.name == "posix":
            watch.start_soon(_on_signal, parent, watch.cancel_scope)
            watch.start_soon(_watch_parent, parent, watch.cancel_scope)
        yield
        watch.cancel_scope.cancel()


async def _on_signal(parent: int, scope: anyio.CancelScope) -> None:
    """The first signal ends the server in order; then the defaults are back, so that a second kills it."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        _ask_for_a_signal_at_the_parents_death()
        async for number in signals:
            if number != signal.SIGHUP or os.getppid() != parent:
                break
    scope.cancel()


async def _watch_parent(parent: int, scope: anyio.CancelScope) -> None:
    """Another process may hold our stdin open after the parent's death, so that it never ends."""
    while os.getppid() == parent:  # noqa: ASYNC110 - no event tells of it on every system
        await anyio.sleep(LOOK_S)
    scope.cancel()


def _ask_for_a_signal_at_the_parents_death() -> None:
    """Linux alone; elsewhere the look at getppid is all there is.

    The signal comes at the death of the parent's thread that started us, which may not be the parent's own:
    hence SIGHUP, after which the parent is looked for.
    """
    import ctypes

    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGHUP)
    except (OSError, AttributeError):
        return
