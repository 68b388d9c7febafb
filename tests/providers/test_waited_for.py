"""What a run says while its provider is slow, or has failed and is asked again: for whom it waits, and until when."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path

from support.app import ME, Place, place_in
from support.provider_server import Standin, chat, refuses, sends, silent

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import PlannerRequest

MOMENT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def waits(degraded: tuple[str, ...]) -> list[str]:
    return [text for text in degraded if text.startswith("Waiting: ")]


async def waiting_note(app: App, run_id: str) -> str:
    """The one thing that the run says that it waits for, once it says so."""
    async with asyncio.timeout(20):
        while not (found := waits((await app.runs.report(run_id, ME)).degraded)):
            await app.runs.wait([run_id], until="done", wait_s=0.2, caller=ME)
    assert (await app.runs.report(run_id, ME)).status == "working"
    (text,) = found
    return text


def place_of(folder: Path, server: Standin) -> tuple[Place, object]:
    place = place_in(folder)
    return place, place.settings(model="openai:small", base_url=server.openai)


async def test_of_a_provider_that_hangs_it_says_since_when_and_until_when(tmp_path: Path, server: Standin) -> None:
    server.will(silent)
    place, settings = place_of(tmp_path / "place", server)
    async with App.open(settings, via="mcp") as app:
        run_id = (await app.runs.start(PlannerRequest("go", key="one"), ME)).run_id
        text = await waiting_note(app, run_id)
        since, until = (
            datetime.strptime(each, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) for each in re.findall(MOMENT, text)
        )
        assert "the provider's model openai:small" in text
        assert 295 <= (until - since).total_seconds() <= 305
        ((held,),) = place.rows("select held from step where path = 'round-1'")
        assert held.endswith(",300000]")
        await app.control.cancel(run_id, ME)
        assert waits((await app.runs.report(run_id, ME)).degraded) == []


async def test_of_a_provider_that_is_asked_again_it_says_why_and_when(tmp_path: Path, server: Standin) -> None:
    server.will(refuses(429, "later", retry_after="3"), sends(chat("Done.")))
    _, settings = place_of(tmp_path / "place", server)
    async with App.open(settings, via="mcp") as app:
        run_id = (await app.runs.start(PlannerRequest("go"), ME)).run_id
        text = await waiting_note(app, run_id)
        assert re.search(rf"failed \(provider_busy\); it is asked again at {MOMENT} \(attempt 2 of 4\)", text), text
        await app.runs.wait([run_id], until="done", wait_s=20, caller=ME)
        report = await app.runs.report(run_id, ME)
        assert (report.status, report.summary, waits(report.degraded)) == ("completed", "Done.", [])
