"""Events with programs of others: polled and streamed by fastmcp, sent to the webhooks of the AI SDK, and polled by us
from a server that the TypeScript SDK makes."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
from support import forked_program
from support.app import ME, place_in
from support.app import Place as OwnPlace
from support.cycles import MANDATE, cycle, noop
from support.waiting import wait_until

from kairos_mcp.app.app import App
from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.app.schedules import LOOK_S
from kairos_mcp.store.events import EVENT_KINDS
from tests.foreign.cells import TYPESCRIPT_1, Client
from tests.foreign.driving import CLIENTS, drive
from tests.foreign.environs import Environ, NodeEnv, PythonEnv
from tests.foreign.served import Place

pytestmark = pytest.mark.foreign

# The newest of both. What fastmcp's documentation says of events, `fastmcp.experimental.events`, is in none up to this.
FASTMCP = Client("fastmcp", "fastmcp_events.py", PythonEnv("fastmcp-events", ("fastmcp==4.2.3",)))
AI_SDK = Client(
    "AI SDK", "ai_sdk_events.mjs", NodeEnv("ai-sdk", ("@ai-sdk/mcp@2.0.99", "standardwebhooks@1.1.1"), "22.23.3")
)


def test_fastmcp_polls_and_streams(environment: Callable[[Environ], Path], tmp_path: Path) -> None:
    place = Place(tmp_path / "place").lay()
    result = drive(FASTMCP, environment(FASTMCP.environ), place, "http")
    assert tuple(result["listed"]) == EVENT_KINDS
    (polled,), ((first, _), (second, streamed)) = result["polled"], result["told"]
    assert (first, second) == ("active", "event")
    assert [polled["data"]["run_id"], streamed["data"]["run_id"]] == result["runs"]


def test_the_webhook_of_the_ai_sdk_takes_what_is_sent_and_no_forgery(
    environment: Callable[[Environ], Path], tmp_path: Path
) -> None:
    place = Place(tmp_path / "place").lay()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    place.home.mkdir()
    (place.home / "kairos.toml").write_text(f'private_hosts = ["127.0.0.1:{port}"]\n')
    result = drive(AI_SDK, environment(AI_SDK.environ), place, "http", port=port)
    assert tuple(result["listed"]) == EVENT_KINDS
    (event,) = result["events"]
    assert (event["name"], event["data"]["run_id"]) == ("run.ended", result["run"])
    assert result["verified"] == event
    assert (result["forged"], set(result["answered"])) == (401, {200, 204})
    first, again = result["ids"]
    assert first == again
    assert place.rows("select count(*) from listener") == [(0,)]


EVENTS, KILLS = 6, 20
RUNS = "select key, outcome is not null from run where mandate = 'after' order by n"


async def lay_builds(environment: Callable[[Environ], Path], tmp_path: Path) -> tuple[OwnPlace, Path]:
    """A place whose settings name the server, and a mandate that starts on its events; return also the events' file."""
    place, happened = place_in(tmp_path / "place"), tmp_path / "events"
    program, *args = TYPESCRIPT_1.environ.command(environment(TYPESCRIPT_1.environ), CLIENTS / "ts_1_event_server.mjs")
    place.home.mkdir()
    (place.home / "kairos.toml").write_text(
        f"[servers.builds]\ncommand = {json.dumps(program)}\n"
        f"args = {json.dumps([*args, str(happened)])}\nsandbox = false\n"
    )
    starts_on = [{"event": "build.finished", "server": "builds"}]
    async with App.open(place.settings(*cycle(noop("all well"))), via="mcp", mode=DriveMode(drives=False)) as app:
        await app.mandates.save({**MANDATE, "id": "after", "starts_on": starts_on, "max_cycles": 1}, ME)
    happened.write_text("before\n")
    return place, happened


async def test_what_a_server_of_others_streams_starts_a_run_before_the_next_look(
    environment: Callable[[Environ], Path], tmp_path: Path
) -> None:
    place, happened = await lay_builds(environment, tmp_path)
    words = ["work", "--home", str(place.home), "--workspace", str(place.workspace)]
    worker = forked_program.start(words, env={**os.environ, "KAIROS_SCRIPT": str(place.script)})

    def asked() -> list[str]:
        file = Path(f"{happened}.asked")
        return file.read_text().split() if file.exists() else []

    try:
        # Polled, listened to, and polled once more for what happened meanwhile.
        wait_until(lambda: asked() == ["events/poll", "events/stream", "events/poll"])
        for n in range(EVENTS):
            with happened.open("a") as file:
                file.write(f"build-{n}\n")
            wait_until(lambda n=n: len(place.rows(RUNS)) == n + 1, LOOK_S / 2, asked)
            wait_until(lambda: all(ended for _, ended in place.rows(RUNS)))
        assert asked().count("events/stream") == 1
    finally:
        worker.kill()
        worker.wait()


async def test_an_event_of_a_server_of_others_starts_one_run_over_kills_of_the_worker(
    environment: Callable[[Environ], Path], tmp_path: Path
) -> None:
    place, happened = await lay_builds(environment, tmp_path)
    words = ["work", "--home", str(place.home), "--workspace", str(place.workspace)]
    chance, killed = random.Random(45), 0

    def work_until(seen: Callable[[], bool]) -> None:
        """Have workers work until something is seen, and kill most of them before."""
        nonlocal killed
        ends = time.monotonic() + 120
        while not seen():
            assert time.monotonic() < ends, place.rows(RUNS)
            worker = forked_program.start(words, env={**os.environ, "KAIROS_SCRIPT": str(place.script)})
            lives_s = chance.uniform(0.3, 3.0) if killed < KILLS else 60
            with suppress(AssertionError):
                wait_until(seen, lives_s)
            worker.kill()
            worker.wait()
            killed += 1

    work_until(lambda: place.rows("select count(*) from listener where state like '%cursor%'") == [(1,)])
    for n in range(EVENTS):
        with happened.open("a") as file:
            file.write(f"build-{n}\n")
        work_until(lambda n=n: [bool(ended) for _, ended in place.rows(RUNS)] == [True] * (n + 1))
    assert killed > EVENTS
    wanted = [f"event:after:builds:{sha256(f'build-{n}'.encode()).hexdigest()[:40]}" for n in range(EVENTS)]
    assert [key for key, _ in place.rows(RUNS)] == wanted
    print(f"{EVENTS} events over {killed} kills")
