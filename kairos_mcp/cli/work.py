"""`work`: drive the runs that others start and leave, and start mandates that are due, by itself."""

from __future__ import annotations

import logging
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AllFlags, Check
from kairos_mcp.cli.serve import spare_loaded_modules
from kairos_mcp.cli.settings import settings_for_server
from kairos_mcp.cli.terminal import print_line
from kairos_mcp.core.text import count_of
from kairos_mcp.settings.settings import Settings

if TYPE_CHECKING:
    from kairos_mcp.app.app import App

HEARTBEAT_S = 5.0
TELL_S = 5.0  # between two lines about what is left at the end

log = logging.getLogger(__name__)


def work(
    *,
    slots: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many runs to drive at a time.")] = 64,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, max=3_600, help="At the end, for steps that are under way.")
    ] = 25.0,
    place: Annotated[
        str | None, typer.Option(metavar="NAME", help="Where its workspaces are: only runs of this place use them.")
    ] = None,
    heartbeat: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Touch this file while it can act, for a probe: the worker listens nowhere."),
    ] = None,
    check: Check = False,
    flags: AllFlags,
) -> int:
    """Drive the runs that servers have left, and start due mandates, until a signal ends it."""
    settings = settings_for_server(replace(flags, place=place))
    if check:
        print_line("The settings are right; `kairos-mcp doctor` also tries what they name.")
        return COMPLETED
    import anyio

    anyio.run(_work, settings, slots, grace, heartbeat)
    return COMPLETED


async def _work(settings: Settings, slots: int, grace_s: float, heartbeat: Path | None) -> None:
    import anyio

    from kairos_mcp.app.app import App
    from kairos_mcp.app.drive_mode import DriveMode
    from kairos_mcp.telemetry import start_telemetry

    if settings.telemetry:
        start_telemetry(with_content=settings.telemetry_content).serve_prometheus()
    spare_loaded_modules()
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as beside:
            async with App.open(settings, via="work", mode=DriveMode(slots=slots, finish_s=grace_s)) as app:
                await app.begin_work()
                if heartbeat is not None:
                    beside.start_soon(_beat, app, heartbeat)
                log.info("working, up to %d runs at a time", slots)
                async for _ in signals:
                    break
                log.info("ending: %s here, and steps under way have %g s", count_of(app.count_moving(), "run"), grace_s)
                beside.start_soon(_tell_left, app)
            beside.cancel_scope.cancel()
    log.info("ended; what had not ended goes on elsewhere")


async def _beat(app: App, heartbeat: Path) -> None:
    """Touch the file every few seconds, while no other worker can have taken this one's runs."""
    import anyio

    file = anyio.Path(heartbeat)
    while True:
        if app.may_act:
            await file.touch()
        await anyio.sleep(HEARTBEAT_S)


async def _tell_left(app: App) -> None:
    """Log every few seconds how many runs are still at a step."""
    import anyio

    while True:
        await anyio.sleep(TELL_S)
        log.info("ending: %s still at a step", count_of(app.count_moving(), "run"))
