"""Work on the app from a command: who acts, which run they mean, and the app opened for one action."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kairos_mcp.cli.settings import read_settings, settings_for_list
from kairos_mcp.cli.terminal import print_note
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.settings.settings import Flags, Settings

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.store.find_runs import Decided, FoundRun
    from kairos_mcp.store.ownership import ServedRuns

PERSON = Caller(principal="local", via="command", client="kairos-mcp")

R = TypeVar("R")


def person_for(principal: str) -> Caller:
    """The person at the terminal, acting on runs of this principal: whoever owns the state folder owns all in it."""
    return replace(PERSON, principal=principal)


def with_app(settings: Settings, act: Callable[[App], Awaitable[R]], *, salvage: bool = False) -> R:
    """Open the app for one action and return its result. `salvage`: open a damaged state file too. An exception is
    raised as itself, not in a group."""
    import anyio

    from kairos_mcp.app.app import App

    async def open_and_act() -> R:
        async with App.open(settings, via="command", salvage=salvage) as app:
            app.wait_for_slow_starts(_show_slow_start)
            return await act(app)

    try:
        return anyio.run(open_and_act)
    except BaseExceptionGroup as group:
        inner: BaseException = group
        while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
            inner = inner.exceptions[0]
        raise inner from group


def _show_slow_start(names: tuple[str, ...]) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        print_note(f"Starting {', '.join(names)}; a first start may download its program.")


@dataclass(frozen=True, slots=True)
class TargetRun:
    """The run that a command is about: its id, the caller who acts on it, and the settings to open the app with.

    `is_exact`: its whole id was given. Without that a decision needs more: the person may mean another run.
    """

    run_id: str
    caller: Caller
    settings: Settings
    is_exact: bool


def find_target(
    flags: Flags,
    name: str,
    principal: str | None = None,
    *,
    salvage: bool = False,
    waits_for: Decided | None = None,
) -> TargetRun:
    """Find the run that a person means: by its id, a unique beginning of one, or `last`, the newest of the workspaces
    at hand, with `waits_for` of those that wait for such a decision. `principal`: whose it has to be. Raises
    UnknownRun, NotWaiting, BadArguments."""
    from kairos_mcp.app.overview import LAST

    async def find(app: App) -> tuple[FoundRun, bool]:
        return await app.overview.find_run(name, principal, waits_for)

    settings = read_settings(flags)
    run, is_exact = with_app(settings_for_list(flags) if name == LAST else settings, find, salvage=salvage)
    return TargetRun(run.run_id, person_for(run.principal), settings, is_exact)


def find_target_to_drive(
    flags: Flags, name: str, principal: str | None = None, *, waits_for: Decided | None = None
) -> TargetRun:
    """Find the run that a person means, with the settings to go on with it.

    If no living server has it, those are of the settings file that its server was started with, unless the command
    names another. What still differs is noted on stderr.
    """
    target = find_target(flags, name, principal, waits_for=waits_for)

    async def find_server(app: App) -> tuple[ServedRuns | None, bool]:
        return await app.control.find_server(target.run_id)

    server, is_alive = with_app(target.settings, find_server)
    if server is None or is_alive:
        return target
    settings = target.settings
    is_named = flags.config or os.environ.get("KAIROS_CONFIG")
    if not is_named and server.config is not None and Path(server.config).is_file():
        settings = read_settings(replace(flags, config=server.config))

    from kairos_mcp.app.served_runs import differing_settings  # loaded with the App

    if changed := differing_settings(settings, server):
        print_note(f"note: set otherwise here than for the server that had this run: {', '.join(changed)}")
    return replace(target, settings=settings)
