"""What changes is told to every open page as it is committed, whatever was missed; nobody looks for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from support.app import ME, Place, reads, says
from support.page import Visitor, read_events, served_page
from support.page_runs import ask_to_write

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import UnknownRun
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.page import live as live_module
from kairos_mcp.page.live import UNREAD_FRAMES, Live


@asynccontextmanager
async def open_live(place: Place, *lines: dict[str, Any]) -> AsyncIterator[tuple[App, Live]]:
    async with App.open(place.settings(*lines), via="mcp") as app:

        async def get_app() -> App:
            return app

        yield app, Live(get_app)


async def take(line: AsyncIterator[bytes], count: int = 1) -> list[tuple[str, Any, str | None]]:
    """The events of the next chunks that a line sends."""
    async with asyncio.timeout(20):
        text = "".join([(await anext(line)).decode() for _ in range(count)])
    return list(read_events(iter(text.split("\n"))))


def laid_over(known: dict[str, Any], steps: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return known | {step["path"]: step for step in steps}


def two_rounds() -> tuple[dict[str, Any], ...]:
    return reads("a.txt"), reads("b.txt", "a.txt"), says("done")


async def run_whole(app: App, goal: str = "look") -> str:
    run_id = (await app.runs.start(PlannerRequest(goal), ME)).run_id
    await app.runs.wait([run_id], until="done", wait_s=20, caller=ME)
    return run_id


async def test_a_line_begins_with_all_and_goes_on_with_what_changes(place: Place) -> None:
    async with open_live(place, *two_rounds(), *two_rounds()) as (app, live):
        run_id = await run_whole(app)
        async with aclosing(await live.open_line(run_id, None, compress=False)) as line:
            first = {event: (data, number) for event, data, number in await take(line)}
            assert first["runs"][0]["all"]
            assert [row["run_id"] for row in first["runs"][0]["rows"]] == [run_id]
            assert first["run"][0]["status"] == "completed"
            steps, number = first["steps"]
            assert number == str(first["run"][0]["seq"])
            assert [step["path"] for step in steps][:2] == ["round-1", "round-1/call-1"]
            other = await run_whole(app, "look again")
            while True:
                ((event, data, _),) = await take(line)
                if event == "runs" and any(row["status"] == "completed" for row in data["rows"]):
                    break
            assert (data["all"], [row["run_id"] for row in data["rows"]]) == (False, [other])


async def test_nobody_looks_for_nobody(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_live(place, *two_rounds()) as (app, live):
        run_id = await run_whole(app)
        looks = 0

        async def count_looks(self: Live, app: App) -> None:
            nonlocal looks
            looks += 1

        monkeypatch.setattr(Live, "_look", count_looks)
        monkeypatch.setattr(live_module, "LOOK_S", 0.001)
        lines = [await live.open_line(each, None, compress=False) for each in (run_id, None, run_id)]
        assert not live.is_looking
        for line in lines:
            await take(line)
        assert live.is_looking
        async with asyncio.timeout(20):
            while looks < 3:  # noqa: ASYNC110 - a count has no event
                await asyncio.sleep(0.001)
        for line in lines:
            await line.aclose()
        assert not live.is_looking
        before = looks
        await asyncio.sleep(0.01)
        assert looks == before


async def test_a_viewer_that_comes_again_is_told_what_it_lacks(place: Place) -> None:
    """From any number of the run on, what is sent and what was known give the whole; of a number that is none, all."""
    async with open_live(place, *two_rounds()) as (app, live):
        run_id = (await app.runs.start(PlannerRequest("look"), ME)).run_id
        told: dict[int, dict[str, Any]] = {}
        known: dict[str, Any] = {}
        async with aclosing(await live.open_line(run_id, None, compress=False)) as line:
            while True:
                found = await take(line)
                for event, data, number in found:
                    if event == "steps":
                        assert number is not None
                        known = laid_over(known, data)
                        told[int(number)] = known
                if any(event == "run" and data["status"] == "completed" for event, data, _ in found):
                    break
            await app.runs.wait([run_id], until="done", wait_s=20, caller=ME)
            whole = {step["path"]: step for step in (await read_whole(app, run_id))}
            for seq, seen in told.items():
                async with aclosing(await live.open_line(run_id, seq, compress=False)) as again:
                    sent = next(data for event, data, _ in await take(again) if event == "steps")
                    assert laid_over(seen, sent) == whole
                    assert seq != max(told) or len(sent) < len(whole)
            async with aclosing(await live.open_line(run_id, 10**9, compress=False)) as again:
                assert laid_over({}, next(data for event, data, _ in await take(again) if event == "steps")) == whole


async def read_whole(app: App, run_id: str) -> list[dict[str, Any]]:
    shown = await app.overview.watch_steps(run_id)
    await app.overview.read_steps(shown)
    return [step for _, step in shown.since()]


async def test_a_viewer_that_reads_nothing_is_dropped_and_the_others_are_not(place: Place) -> None:
    async with open_live(place, *two_rounds()) as (app, live):
        await run_whole(app)
        slow, quick = [await live.open_line(None, None, compress=False) for _ in range(2)]
        for line in (slow, quick):
            await take(line)
        for n in range(UNREAD_FRAMES + 1):
            live._tell(live._viewers, live_module.make_frame("runs", {"n": n}))
            live._wake_viewers()
            assert (await take(quick))[0][1] == {"n": n}
        async with asyncio.timeout(10):
            assert len([chunk async for chunk in slow]) <= UNREAD_FRAMES
        await quick.aclose()


async def test_a_run_that_there_is_not_has_no_line(place: Place) -> None:
    async with open_live(place) as (_, live):
        with pytest.raises(UnknownRun):
            await live.open_line("run-000000000000", None, compress=False)
        assert not live.is_looking


def test_what_another_process_commits_is_told_compressed_or_not(place: Place) -> None:
    run_id = asyncio.run(ask_to_write(place))
    with served_page(place.home, "--workspace", str(place.workspace)) as visitor:
        assert visitor.http.headers["accept-encoding"].startswith("gzip")
        for headers in ({}, {"Accept-Encoding": "identity"}):
            with visitor.line(run_id, **headers) as line:
                assert [next(line)[0] for _ in range(4)] == ["me", "runs", "run", "steps"]
                asyncio.run(comment(place, run_id))
                assert next(event for event in line if event[0] == "run")[1]["seq"] > 0


async def comment(place: Place, run_id: str) -> None:
    """Commit something about the run from this process."""
    async with App.open(place.settings(), via="mcp") as app:
        await app.control.pause(run_id, ME)


def test_a_server_that_was_killed_is_found_again_under_its_old_id(place: Place) -> None:
    run_id = asyncio.run(ask_to_write(place))
    with served_page(place.home) as first, first.line(run_id) as line:
        *_, (_, steps, number) = [next(line) for _ in range(4)]
    with served_page(place.home) as second:
        with second.line(run_id, **{"Last-Event-ID": str(number)}) as line:
            again = [next(line) for _ in range(4)][-1]
        assert (len(steps), again) == (2, ("steps", [], number))
        stranger = Visitor(second.url, second.home)
        stranger.secret = first.secret
        assert stranger.get("api/events").status_code == 401
