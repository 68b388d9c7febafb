"""How a call that waits tells its client that something moves: a rising figure, at most one beat a second."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kairos_mcp.views.run_report import Heartbeat

BEAT_S = 1.0

Report = Callable[[float, float | None, str | None], Awaitable[None]]


def teller(report: Report) -> Callable[[Heartbeat], Awaitable[None]]:
    """A function that takes a run's beats and passes on what a client should see.

    Each new round is told at once, then at most one beat a second. Round 3 is told as 2.5, 2.67, 2.75 and
    so on: the protocol wants each figure larger than the last, and none should pass the total.
    """
    newest, beats, told_at = -1, 0, 0.0

    async def tell(beat: Heartbeat) -> None:
        nonlocal newest, beats, told_at
        now = time.monotonic()
        if beat.round > newest:
            newest, beats = beat.round, 0
        elif now - told_at < BEAT_S:
            return
        beats, told_at = beats + 1, now
        await report(newest - 1 / (beats + 1), beat.rounds, progress_message(beat))

    return tell


def progress_message(beat: Heartbeat) -> str:
    """`round 3/12 · search_files · $0.04`; what costs nothing names no price."""
    of = f"/{beat.rounds}" if beat.rounds is not None else ""
    price = f"${beat.nano_usd / 10**9:.2f}" if beat.nano_usd else ""
    return " · ".join(part for part in (f"round {beat.round}{of}", beat.text, price) if part)
