"""Events over kills of the processes that make, send and receive them: none lost, each accepted once."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import forked_program, postgres
from support.app import ME, Place, says
from support.forked_program import Forked
from support.postgres import both_stores
from support.waiting import wait_until

from events.receivers import SECRET, free_port
from kairos_mcp.app.app import App
from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.app.notifier import Notifier
from kairos_mcp.app.subscriptions import WantedEvents
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.core.urls import HostRule

WITHIN_S = 60.0
PARTS = ("receiver", "worker", "server")
TESTS = Path(__file__).parents[1]
RECEIVES = "from pathlib import Path; from events.receivers import receive; receive({port}, Path({file!r}))"


class Parts:
    """A worker that makes and sends events, a server that sends them, and who receives them: each a process."""

    def __init__(self, place: Place) -> None:
        self.place, self.port, self.file = place, free_port(), place.root / "taken.jsonl"
        self.processes: dict[str, Forked | subprocess.Popen[bytes]] = {}

    def start(self, part: str) -> None:
        options = ["--home", str(self.place.home), "--workspace", str(self.place.workspace)]
        words = {"worker": ["work"], "server": ["serve", "--transport", "http", "--port", "0"]}
        environ = {**os.environ, "KAIROS_SCRIPT": str(self.place.script), "KAIROS_DAY_MODEL_CALLS": "1000000"}
        if (database := postgres.database_of(self.place.root)) is not None:
            environ["KAIROS_STORE"] = database
        how: dict[str, Any] = {"env": environ, "stderr": subprocess.DEVNULL, "cwd": self.place.root}
        if part == "receiver":
            code = RECEIVES.format(port=self.port, file=str(self.file))
            self.processes[part] = forked_program.start([], code=code, **{**how, "cwd": TESTS})
        else:
            self.processes[part] = forked_program.start([*words[part], *options], **how)

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *_: object) -> None:
        for part in self.processes:
            self.kill(part)

    def kill(self, part: str) -> None:
        self.processes[part].kill()
        self.processes[part].wait()

    def taken(self) -> list[dict[str, Any]]:
        """What was received, in its order; each was written at once."""
        return [json.loads(line) for line in self.file.read_text().splitlines()]


async def subscribe_and_start(place: Place, port: int, runs: int) -> None:
    """As a server that does not drive: the worker makes the events."""
    settings = place.settings(says("done"), private_hosts=(HostRule("127.0.0.1", port=port),))
    async with App.open(settings, via="mcp", mode=DriveMode(drives=False)) as app:
        await app.subscriptions.subscribe(
            f"http://127.0.0.1:{port}/hook", SECRET, WantedEvents("run.ended", {}), None, None, ME
        )
        for n in range(runs):
            await app.runs.start(PlannerRequest(f"look {n}"), ME)


def over_kills(place: Place, runs: int, kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Notifier, "begin", lambda self: None)  # of this process
    chance = random.Random(45)
    place.home.mkdir(exist_ok=True)
    with Parts(place) as parts:
        (place.home / "kairos.toml").write_text(f'private_hosts = ["127.0.0.1:{parts.port}"]\n')
        parts.start("receiver")
        wait_until(parts.file.exists)
        asyncio.run(subscribe_and_start(place, parts.port, runs))
        parts.start("worker")
        parts.start("server")
        began, killed = time.monotonic(), Counter[str]()
        for n in range(kills):
            wanted = (n + 1) * runs // (kills + 2)
            wait_until(lambda wanted=wanted: len(parts.taken()) >= wanted, WITHIN_S, lambda: killed)
            time.sleep(chance.random() * 0.03)
            part = PARTS[n] if n < len(PARTS) else chance.choice(PARTS)
            parts.kill(part)
            parts.start(part)
            killed[part] += 1
        wait_until(lambda: len({body["eventId"] for body in parts.taken()}) == runs, WITHIN_S + runs)
        taken = parts.taken()
    made = place.rows("select id, run from event where kind = 'run.ended' order by tx, id")
    first = list(dict.fromkeys(body["data"]["run_id"] for body in taken))
    repeats = len(taken) - runs
    print(f"{runs} events over {killed}: {repeats} repeats in {time.monotonic() - began:.0f} s")
    assert first == [run for _, run in made]  # none is lost, in the order in which they happened
    assert len({body["eventId"] for body in taken}) == len(made) == runs  # by its id each is accepted once
    assert repeats <= kills


@pytest.mark.unreplayed
def test_over_three_kills_each_event_is_accepted_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    over_kills(place, 8, len(PARTS), monkeypatch)


@both_stores
@pytest.mark.slow
@pytest.mark.unreplayed
def test_over_two_hundred_kills_each_of_a_thousand_events_is_accepted_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    over_kills(place, 1_000, 200, monkeypatch)
