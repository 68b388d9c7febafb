"""Mandates that start on what a server streams: once for each event, over streams that end and processes that die."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support import forked_program, postgres
from support.app import ME, Place, place_in, rests, says, start_run
from support.cycles import MANDATE, cycle, noop
from support.postgres import both_stores
from support.waiting import wait_until

from kairos_mcp.app import schedules
from kairos_mcp.app.app import App
from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.settings.table_values import ServerSetting
from kairos_mcp.tools.mcp_servers import connection, event_stream

AFTER = {**MANDATE, "id": "after", "starts_on": [{"event": "build.finished", "server": "builds"}], "max_cycles": 1}
RUNS = "select case when outcome is null then 0 else 1 end from run order by n"
PROGRAM = str(Path(__file__).parent / "event_server.py")


class Builds:
    """The server of others, by its files."""

    def __init__(self, folder: Path) -> None:
        self.events, self.asked = folder / "events", folder / "asked"

    def setting(self, *offers: str) -> ServerSetting:
        command = (sys.executable, PROGRAM, str(self.events), str(self.asked), *(offers or ("poll", "stream")))
        return ServerSetting("builds", command, sandbox=False)

    def add(self, *lines: str) -> None:
        with self.events.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.requests())

    def requests(self) -> list[tuple[str, dict[str, Any]]]:
        return [json.loads(line) for line in self.asked.read_text().splitlines()]


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    return Builds(tmp_path)


@asynccontextmanager
async def opened(place: Place, server: ServerSetting, *mandates: str) -> AsyncIterator[App]:
    """An app as of a worker, which looks when it is told to. `mandates`: the ids of those that are saved."""
    settings = place.settings(*cycle(noop("all well")) * 4, servers=(server,))
    async with App.open(settings, via="work", mode=DriveMode(slots=0)) as app:
        for named in mandates:
            await app.mandates.save({**AFTER, "id": named}, ME)
        yield app


async def until(seen: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, seen)


async def look(app: App) -> None:
    await app.schedules.start_due()


async def listening(app: App) -> None:
    """Look until every mandate takes events from the stream, and has nothing left to take."""
    await look(app)
    await heard(app)
    await look(app)


async def heard(app: App) -> None:
    events = app.schedules._triggers.server_events
    await until(events.heard.is_set)
    events.heard.clear()


def keys(place: Place) -> list[str]:
    return [key for (key,) in place.rows("select key from run order by n")]


def key_of(event: str, mandate: str = "after") -> str:
    return f"event:{mandate}:builds:{sha256(event.encode()).hexdigest()[:40]}"


async def end_run(app: App, place: Place) -> None:
    for (run_id,) in place.rows("select id from run where outcome is null"):
        await app.control.drive(run_id)
        await rests(app, run_id)


async def test_what_a_server_streams_starts_a_run_at_once_and_is_polled_no_more(
    place: Place, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "LOOK_S", 1_000.0)
    builds.add("before")
    async with opened(place, builds.setting(), "after") as app:
        app.schedules.begin()
        await until(lambda: builds.asked.exists() and builds.count("events/poll") == 2)  # before the stream, and after
        builds.add("build-1", "build-1")
        await until(lambda: keys(place) == [key_of("build-1")])
        await end_run(app, place)
        builds.add("build-2")
        await until(lambda: keys(place) == [key_of("build-1"), key_of("build-2")])
        assert (builds.count("events/poll"), builds.count("events/stream")) == (2, 1)


@pytest.mark.parametrize("line", ["!end", "!die"])
async def test_what_happens_while_a_stream_is_broken_is_polled_and_it_is_taken_up_again(
    place: Place, builds: Builds, line: str
) -> None:
    async with opened(place, builds.setting(), "after") as app:
        await listening(app)
        held = app.schedules._triggers.server_events._held
        ((source, before),) = held.items()
        builds.add(line, "build-1")
        await until(lambda: before.stream.has_ended)
        builds.events.write_text(builds.events.read_text().replace(line, "!over"))  # for the server that comes next
        held[source] = before._replace(again_at=0.0)
        await look(app)
        assert keys(place) == [key_of("build-1")]
        await end_run(app, place)
        await listening(app)
        builds.add("build-2")
        await heard(app)
        polled = builds.count("events/poll")
        await look(app)
        assert keys(place) == [key_of("build-1"), key_of("build-2")]
        assert (builds.count("events/stream"), builds.count("events/poll")) == (2, polled)


async def test_a_server_that_can_only_be_listened_to_goes_on_from_the_cursor(place: Place, builds: Builds) -> None:
    builds.add("before")
    async with opened(place, builds.setting("stream"), "after") as app:
        await listening(app)
        builds.add("build-1")
        await heard(app)
        await look(app)
        await end_run(app, place)
        await look(app)
    builds.add("build-2")
    async with opened(place, builds.setting("stream")) as app:
        await look(app)
        (source,) = app.schedules._triggers.server_events._held
        await until(lambda: app.schedules._triggers.server_events._held[source].stream.event_count == 1)
        await look(app)
        assert keys(place) == [key_of("build-1"), key_of("build-2")]


async def test_two_mandates_share_a_stream_which_ends_with_them(place: Place, builds: Builds) -> None:
    async with opened(place, builds.setting(), "after", "too") as app:
        await listening(app)
        builds.add("build-1")
        await heard(app)
        await look(app)
        assert set(keys(place)) == {key_of("build-1"), key_of("build-1", "too")}
        assert len(keys(place)) == 2
        assert builds.count("events/stream") == 1
        for named in ("after", "too"):
            await app.mandates.save({**AFTER, "id": named, "starts_on": None}, ME)
        await look(app)
        await until(lambda: builds.count("notifications/cancelled") == 1)


async def test_a_server_that_does_not_stream_is_polled_and_asked_again_ever_more_seldom(
    place: Place, builds: Builds
) -> None:
    async with opened(place, builds.setting("poll"), "after") as app:
        held = app.schedules._triggers.server_events._held
        for failures in range(3):
            before = time.monotonic()
            await look(app)
            ((source, newest),) = held.items()
            await until(lambda newest=newest: newest.stream.has_ended)
            assert 2**failures <= newest.again_at - before < 2**failures + 1
            await look(app)  # too early
            assert builds.count("events/stream") == failures + 1
            held[source] = newest._replace(again_at=0.0)
        builds.add("build-1")
        await look(app)
        assert keys(place) == [key_of("build-1")]


async def test_a_stream_that_is_silent_is_ended(place: Place, builds: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENT_S", 0.1)
    async with opened(place, builds.setting(), "after") as app:
        await look(app)
        (held,) = app.schedules._triggers.server_events._held.values()
        await until(lambda: held.stream.has_ended)
        assert held.stream.was_live
        await until(lambda: builds.count("notifications/cancelled") == 1)


async def test_a_stream_that_tells_more_than_is_kept_is_ended_and_the_rest_is_polled(
    place: Place, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "MAX_STREAM_EVENTS", 2)
    async with opened(place, builds.setting(), "after") as app:
        await listening(app)
        (held,) = app.schedules._triggers.server_events._held.values()
        builds.add("build-1", "build-2", "build-3")
        await until(lambda: held.stream.has_ended)
        assert held.stream.event_count == 2
        for _ in range(3):
            await look(app)
            await end_run(app, place)
        assert keys(place) == [key_of(f"build-{n}") for n in (1, 2, 3)]


@pytest.mark.slow
async def test_another_kairos_streams_what_starts_a_run(place: Place, tmp_path: Path) -> None:
    other = place_in(tmp_path / "other")
    command = (sys.executable, "-m", "kairos_mcp", "serve", "--home", str(other.home))
    async with (
        App.open(other.settings(says("done"), says("done")), via="mcp") as elsewhere,
        opened(place, ServerSetting("builds", command, sandbox=False)) as app,
    ):
        on_runs = {**AFTER, "starts_on": [{"event": "run.ended", "server": "builds"}]}
        await app.mandates.save(on_runs, ME)
        await listening(app)
        for count in (1, 2):
            await start_run(elsewhere, f"look {count}")
            await heard(app)
            await look(app)
            assert len(keys(place)) == count
            await end_run(app, place)
            await look(app)


EVENTS = 40


@both_stores
@pytest.mark.slow
@pytest.mark.unreplayed
async def test_over_kills_of_worker_and_server_each_event_starts_one_run(place: Place, builds: Builds) -> None:
    """A worker is killed soon after every other event, at a random moment, and the server with every fifth."""
    place.home.mkdir(exist_ok=True)
    program, *args = builds.setting().command
    (place.home / "kairos.toml").write_text(
        f"[servers.builds]\ncommand = {json.dumps(program)}\nargs = {json.dumps(args)}\nsandbox = false\n"
    )
    async with App.open(place.settings(*cycle(noop("all well"))), via="mcp", mode=DriveMode(drives=False)) as app:
        await app.mandates.save(AFTER, ME)
    words = ["work", "--home", str(place.home), "--workspace", str(place.workspace)]
    environ = {**os.environ, "KAIROS_SCRIPT": str(place.script), "KAIROS_DAY_MODEL_CALLS": "1000000"}
    if (database := postgres.database_of(place.root)) is not None:
        environ["KAIROS_STORE"] = database
    builds.add("before")
    killed = await asyncio.to_thread(kill_and_look, place, builds, words, environ)
    assert keys(place) == [key_of(f"build-{n}") for n in range(EVENTS)]
    streams, polls = builds.count("events/stream"), builds.count("events/poll")
    print(f"{EVENTS} events over {killed} kills of the worker: {streams} streams, {polls} polls")
    assert streams > EVENTS / 4


def kill_and_look(place: Place, builds: Builds, words: list[str], environ: dict[str, str]) -> int:
    """Have workers see each event, and kill some of them; return how many."""
    chance, killed = random.Random(45), 0

    def start() -> Any:
        return forked_program.start(words, env=environ, stderr=subprocess.DEVNULL)

    worker = start()
    wait_until(lambda: builds.asked.exists() and builds.count("events/stream"))
    for n in range(EVENTS):
        builds.add(f"build-{n}", *(["!die"] if n % 5 == 4 else []))
        if n % 2:
            time.sleep(chance.uniform(0.0, 0.5))
            worker.kill()
            worker.wait()
            worker, killed = start(), killed + 1
        wait_until(lambda n=n: place.rows(RUNS) == [(1,)] * (n + 1), 60.0, lambda: place.rows(RUNS))
        if n % 4 == 3:  # let the next one be told by a stream
            streams = builds.count("events/stream")
            wait_until(lambda streams=streams: builds.count("events/stream") > streams, 60.0)
    worker.kill()
    worker.wait()
    return killed
