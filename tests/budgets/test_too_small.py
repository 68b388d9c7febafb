"""A limit with too little for the first model call says what one needs; with just that, the round runs."""

from __future__ import annotations

import re

import pytest
from support.app import ME, Place, reads, rests, says, start_run

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits

LINES = (
    reads("a.txt", usage={"input_tokens": 900, "output_tokens": 50}),
    says("done", usage={"input_tokens": 950, "output_tokens": 50}),
)


@pytest.mark.parametrize("unit", ["input_tokens", "output_tokens", "total_tokens"])
async def test_a_limit_below_one_round_says_what_a_round_needs_and_with_that_the_round_runs(
    place: Place, unit: str
) -> None:
    async with App.open(place.settings(*LINES), via="test") as app:
        small = await app.runs.report(await start_run(app, "small", limits=Limits(**{unit: 100})), ME)
        assert (small.status, small.stop_reason, small.rounds) == ("stopped", "budget", 0)
        (text,) = [note for note in small.degraded if note.startswith("round-1 was not started")]
        assert f"limits.{unit} is 100." in text
        needed = int(re.findall(r"up to ([\d]+), and", text)[0])
        enough = await app.runs.report(await start_run(app, "large", limits=Limits(**{unit: needed})), ME)
        assert enough.rounds >= 1
        assert not any("was not started" in note for note in enough.degraded)
        short = await app.runs.report(await start_run(app, "short", limits=Limits(**{unit: needed - 1})), ME)
        assert short.rounds == 0


@pytest.mark.parametrize("total", [3_000, 5_000, 8_000])
async def test_no_run_of_no_rounds_is_without_a_word_why(place: Place, total: int) -> None:
    async with App.open(place.settings(*LINES), via="test") as app:
        report = await app.runs.report(await start_run(app, limits=Limits(total_tokens=total)), ME)
    assert report.rounds or any("limits.total_tokens" in note for note in report.degraded)


async def test_a_day_without_room_for_one_call_says_what_it_needs(place: Place) -> None:
    async with App.open(place.settings(*LINES, day=Limits(total_tokens=2_000)), via="test") as app:
        report = await rests(app, await start_run(app))
    text = next(note for note in report.degraded if note.startswith("day.total_tokens"))
    assert re.search(r"needs up to \d{4,}, more than that", text)
