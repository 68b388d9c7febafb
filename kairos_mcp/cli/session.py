"""Work on the app from a command: open it, begin something, follow the run until it rests, print how it ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from kairos_mcp.cli.exit_codes import exit_code_of
from kairos_mcp.cli.output import call_line, ending_lines
from kairos_mcp.cli.settings import read_settings
from kairos_mcp.cli.terminal import emit, escape_control, print_note
from kairos_mcp.core.errors import UnknownRun
from kairos_mcp.core.identity import Caller
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.settings import Flags, Settings

if TYPE_CHECKING:
    from rich.status import Status

    from kairos_mcp.app.app import App
    from kairos_mcp.store.ownership import ServedRuns
    from kairos_mcp.views.run_report import Heartbeat, RunReport

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
            return await act(app)

    try:
        return anyio.run(open_and_act)
    except BaseExceptionGroup as group:
        inner: BaseException = group
        while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
            inner = inner.exceptions[0]
        raise inner from group


def settings_for_run(flags: Flags, run_id: str) -> Settings:
    """The settings with which a command goes on with a run that no living server has: those of the settings file that
    its server was started with, unless the command names another. What still differs is noted on stderr."""
    from kairos_mcp.store.database import FILE

    settings = read_settings(flags)
    if not (settings.home / FILE).exists():
        return settings

    async def find_server(app: App) -> tuple[ServedRuns | None, bool]:
        return await app.control.find_server(run_id)

    try:
        server, is_alive = with_app(settings, find_server)
    except UnknownRun:
        return settings  # the command itself says so
    if server is None or is_alive:
        return settings
    is_named = flags.config or os.environ.get("KAIROS_CONFIG")
    if not is_named and server.config is not None and Path(server.config).is_file():
        settings = read_settings(replace(flags, config=server.config))

    from kairos_mcp.app.control import differing_settings  # loaded with the App

    if changed := differing_settings(settings, server):
        print_note(f"note: set otherwise here than for the server that had this run: {', '.join(changed)}")
    return settings


def follow_run(
    settings: Settings, begin: Callable[[App], Awaitable[str]], *, quiet: bool = False, caller: Caller = PERSON
) -> RunReport:
    """Follow a run until it rests, showing its progress on stderr unless `quiet`. `begin` starts, answers or resumes
    the run and returns its id. Ctrl-C cancels the run, a second Ctrl-C leaves it as it is."""
    import anyio

    async def begin_and_wait(app: App) -> RunReport:
        run_id = await begin(app)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_on_interrupt, app, run_id, screen, caller)
            report = await _wait_until_rest(app, run_id, screen, caller)
            tasks.cancel_scope.cancel()
        return report

    with ProgressScreen(quiet=quiet) as screen:
        return with_app(settings, begin_and_wait)


def print_ending(report: RunReport, flags: Flags, *, as_json: bool = False) -> int:
    """Print how a run came to rest, and return its exit code."""
    emit(report.as_json(), ending_lines(report, flags), as_json=as_json)
    return exit_code_of(report)


async def _wait_until_rest(app: App, run_id: str, screen: ProgressScreen, caller: Caller) -> RunReport:
    async def on_beat(beat: Heartbeat) -> None:
        screen.show_beat(beat)
        screen.print_calls((await app.runs.report(run_id, caller, full=False)).calls)

    while True:
        await app.runs.wait([run_id], until="rest", wait_s=600, caller=caller, on_heartbeat=on_beat)
        report = await app.runs.report(run_id, caller)
        screen.print_calls(report.calls)
        if report.status != "working":
            return report


async def _cancel_on_interrupt(app: App, run_id: str, screen: ProgressScreen, caller: Caller) -> None:
    import anyio

    if os.name == "nt":  # no receiver of signals there: Ctrl-C ends the program, the run can be cancelled later
        return
    with anyio.open_signal_receiver(signal.SIGINT) as signals:
        async for _ in signals:
            screen.print("cancelling; once more to leave at once")
            await app.control.request(run_id, "cancel", caller)
            break
        async for _ in signals:
            raise KeyboardInterrupt


class ProgressScreen:
    """Progress of a run on stderr: a line for each call that is done, and on a terminal a moving one for what is under
    way. `quiet` shows nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, quiet=quiet, markup=False, highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self._printed: set[str] = set()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def print(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(escape_control(text))

    def print_calls(self, calls: Iterable[JsonObject]) -> None:
        """Print the calls that were not printed yet."""
        for call in calls:
            if call["ref"] not in self._printed:
                self._printed.add(call["ref"])
                self.print(call_line(call))

    def show_beat(self, beat: Heartbeat) -> None:
        """Show in the moving line what the run is doing."""
        if self._status is not None:
            from rich.markup import escape

            of = "" if beat.rounds is None else f"/{beat.rounds}"
            price = f"${beat.nano_usd / 1e9:.4f}" if beat.nano_usd else ""
            parts = (f"round {beat.round}{of}", beat.text, price)
            self._status.update(escape(escape_control(" · ".join(part for part in parts if part))))
