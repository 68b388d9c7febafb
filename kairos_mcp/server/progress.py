"""How far a run is, in words and as the protocol's progress."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kairos_mcp.views.progress import Heartbeat

BEAT_S = 1.0
ReportProgress = Callable[[float, float | None, str | None], Awaitable[None]]


def progress_reporter(report: ReportProgress) -> Callable[[Heartbeat], Awaitable[None]]:
    """A function that takes a run's heartbeats and reports progress to the client.

    A new round is reported at once, further beats at most once a second. Progress in round 3 is 2.5, 2.67, 2.75 and so
    on: the protocol wants each number larger than the last, and none may pass the total.
    """
    newest, beats, reported_at = -1, 0, 0.0

    async def on_beat(beat: Heartbeat) -> None:
        nonlocal newest, beats, reported_at
        now = time.monotonic()
        if beat.round > newest:
            newest, beats = beat.round, 0
        elif now - reported_at < BEAT_S:
            return
        beats, reported_at = beats + 1, now
        await report(newest - 1 / (beats + 1), beat.rounds, progress_message(beat))

    return on_beat


def progress_message(beat: Heartbeat) -> str:
    """`round 3/12 · search_files · $0.04`; without a price if it costs nothing."""
    price = f"${beat.nano_usd / 10**9:.2f}" if beat.nano_usd else ""
    return " · ".join(part for part in (beat.place, beat.text, price) if part)
