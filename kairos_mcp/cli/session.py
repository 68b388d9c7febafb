"""A command that stays with a run until it rests; a person's Ctrl-C is a wish to cancel it."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import anyio

from kairos_mcp.app.app import App
from kairos_mcp.app.server_facts import differences
from kairos_mcp.cli.exit_codes import CANCELLED, COMPLETED, FAILED, WAITING
from kairos_mcp.cli.output import ending_of, say_paused, say_waiting
from kairos_mcp.cli.screen import ProgressScreen
from kairos_mcp.cli.speech import say, say_json, tell
from kairos_mcp.core.errors import UnknownRun
from kairos_mcp.core.identity import Caller
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags, Settings
from kairos_mcp.store.database import FILE as STATE_FILE
from kairos_mcp.store.ownership import ServedRuns
from kairos_mcp.views.run_report import Heartbeat, RunReport

PERSON = Caller(principal="local", via="command", client="kairos-mcp")


def person(principal: str) -> Caller:
    """The person at the terminal, for runs of this principal: who owns the state folder owns all that is in it."""
    return replace(PERSON, principal=principal)


Begin = Callable[[App], Awaitable[str]]  # starts, answers or picks up a run and gives its id
R = TypeVar("R")


def with_host(settings: Settings, act: Callable[[App], Awaitable[R]], *, salvage: bool = False) -> R:
    """Open the house for one act; `salvage`: also over a damaged state file. A failure comes out as itself, not as a
    group of one."""

    async def acting() -> R:
        async with App.open(settings, via="command", salvage=salvage) as host:
            return await act(host)

    try:
        return anyio.run(acting)
    except BaseExceptionGroup as group:
        inner: BaseException = group
        while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
            inner = inner.exceptions[0]
        raise inner from group


def settings_for(flags: Flags, run_id: str) -> Settings:
    """The settings by which a command acts on a run that no living server goes on with: the file is the one that its
    server was started with, unless another is named here. What differs all the same is said on stderr."""
    settings = load_settings(flags, os.environ)
    if not (settings.home / STATE_FILE).exists():
        return settings

    async def look(host: App) -> tuple[ServedRuns | None, bool]:
        return host.server_of(run_id)

    try:
        serves, lives = with_host(settings, look)
    except UnknownRun:
        return settings  # the command itself says so
    if serves is None or lives:
        return settings
    named = flags.config or os.environ.get("KAIROS_CONFIG")
    if not named and serves.config is not None and Path(serves.config).is_file():
        settings = load_settings(replace(flags, config=serves.config), os.environ)
    if otherwise := differences(settings, serves):
        tell(f"note: set otherwise here than for the server that had this run: {', '.join(otherwise)}")
    return settings


def stay(settings: Settings, begin: Begin, *, quiet: bool = False, who: Caller = PERSON) -> RunReport:
    """Begin, then wait until the run rests. Ctrl-C cancels the run, a second one leaves it where it is."""

    async def staying(host: App) -> RunReport:
        run_id = await begin(host)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_by_hand, host, run_id, screen, who)
            report = await _until_rest(host, run_id, screen, who)
            tasks.cancel_scope.cancel()
        return report

    with ProgressScreen(quiet=quiet) as screen:
        return with_host(settings, staying)


def speak(report: RunReport, flags: Flags, *, as_json: bool = False) -> int:
    """Say how a run came to rest; gives the exit code that this means."""
    if as_json:
        say_json(report.as_json())
    else:
        for line in ending_of(report):
            say(line)
        for item in report.waiting:
            say_waiting(report.run_id, item, flags)
        say_paused(report, flags)
    return code_of(report)


def code_of(report: RunReport) -> int:
    """The exit code that a run's rest means."""
    match report.status:
        case "completed":
            return COMPLETED
        case "failed":
            return FAILED
        case "cancelled":
            return CANCELLED
        case _:
            return WAITING


async def _until_rest(host: App, run_id: str, screen: ProgressScreen, who: Caller) -> RunReport:
    async def on_beat(beat: Heartbeat) -> None:
        screen.beat(beat)
        screen.calls(host.report(run_id, who, full=False).calls)

    while True:
        await host.wait([run_id], until="rest", wait_s=600, caller=who, on_beat=on_beat)
        report = host.report(run_id, who)
        screen.calls(report.calls)
        if report.status != "working":
            return report


async def _cancel_by_hand(host: App, run_id: str, screen: ProgressScreen, who: Caller) -> None:
    if os.name == "nt":  # no receiver of signals there: Ctrl-C ends the program, the run can be cancelled later
        return
    with anyio.open_signal_receiver(signal.SIGINT) as signals:
        async for _ in signals:
            screen.line("cancelling; once more to leave at once")
            await host.control(run_id, "cancel", who)
            break
        async for _ in signals:
            raise KeyboardInterrupt
