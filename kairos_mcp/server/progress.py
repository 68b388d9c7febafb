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

    A new round is reported at once, further beats at most once a second."""
    newest, beats, reported_at = -1, 0, 0.0

    async def on_heartbeat(beat: Heartbeat) -> None:
        nonlocal newest, beats, reported_at
        now = time.monotonic()
        if beat.round > newest:
            newest, beats = beat.round, 0
        elif now - reported_at < BEAT_S:
            return
        beats, reported_at = beats + 1, now
        await report(progress_at(newest, beats), beat.rounds, progress_message(beat))

    return on_heartbeat


def progress_at(round_number: int, beats: int) -> float:
    """The progress of a run at a beat of a round, both counted from 1: in round 3 it is 2.5, 2.67, 2.75 and so on, and
    before the first 0, 0.25, 0.33. The protocol wants each number larger than the last, and none may pass the total."""
    return round_number - 1 / (beats + 1) if round_number else (1 - 1 / beats) / 2


def progress_message(beat: Heartbeat) -> str:
    """`round 3/12 · search_files · $0.04`; without a price if it costs nothing."""
    price = f"${beat.nano_usd / 10**9:.2f}" if beat.nano_usd else ""
    return " · ".join(part for part in (beat.place, beat.text, price) if part)
