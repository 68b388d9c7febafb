"""`work`: drive the runs that others start and leave, and start mandates that are due, by itself."""

from __future__ import annotations

import logging
import signal
from dataclasses import replace
from typing import Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AllFlags
from kairos_mcp.cli.serve import spare_loaded_modules
from kairos_mcp.cli.settings import settings_for_server
from kairos_mcp.settings.settings import Settings

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
    flags: AllFlags,
) -> int:
    """Drive the runs that servers have left, and start due mandates, until a signal ends it."""
    settings = settings_for_server(replace(flags, place=place))
    import anyio

    anyio.run(_work, settings, slots, grace)
    return COMPLETED


async def _work(settings: Settings, slots: int, grace_s: float) -> None:
    import anyio

    from kairos_mcp.app.app import App
    from kairos_mcp.app.run_pool import DriveMode
    from kairos_mcp.telemetry import start_telemetry

    if settings.telemetry:
        start_telemetry(with_content=settings.telemetry_content)
    spare_loaded_modules()
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with App.open(settings, via="work", mode=DriveMode(slots=slots, finish_s=grace_s)) as app:
            await app.begin_work()
            log.info("working, up to %d runs at a time", slots)
            async for _ in signals:
                break
            log.info("ending: steps under way have %g s", grace_s)
