"""Servers on one database that are killed, cut off and restarted with it, at any time: nothing is lost, nothing is done
twice, and the books hold."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from typing import Any

import pytest
from support import postgres
from support.app import Place
from support.postgres import restart_server
from support.replayed import differences_in_database
from support.stdio_server import StdioClient

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.outcomes import Outcome

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.unreplayed]  # it is, within the test
RUNS = 300
SERVERS = 4
ROUNDS = 5
WITHIN_S = 150.0
EVERY_S = 0.5  # between two disturbances
LINES = [
    *(
        {"content": "look", "delay_s": 3.0, "tool_calls": [{"name": "read_file", "arguments": {"path": "a.txt"}}]}
        for _ in range(ROUNDS - 1)
    ),
    {"content": "done", "finish": "stop", "delay_s": 3.0},
]


class Fleet:
    """Servers that start runs, and the ways in which they are disturbed."""

    def __init__(self, place: Place, database: str, chance: random.Random) -> None:
        self.place, self._database, self._chance = place, database, chance
        self.clients = [StdioClient.start(place) for _ in range(SERVERS)]
        self.did: Counter[str] = Counter()

    def start_runs(self) -> None:
        for n in range(RUNS):
            client = self.clients[n % SERVERS]
            assert "run_id" in client.call("planner_run", goal=f"look {n}", limits={"rounds": ROUNDS + 1}, wait_s=0)

    def kill(self) -> None:
        at = self._chance.randrange(SERVERS)
        os.kill(self.clients[at].pid, signal.SIGKILL)
        self.clients[at].close()
        self.clients[at] = StdioClient.start(self.place)
        self.clients[at].call("budget_status")

    def stop_for_a_while(self) -> None:
        pid = self._chance.choice(self.clients).pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._chance.uniform(0.1, 1.0))
        os.kill(pid, signal.SIGCONT)

    def cut(self) -> None:
        cut = (
            "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
            " and application_name = 'kairos-mcp' order by random() limit 3"
        )
        with postgres.open_session(self._database) as session:
            session.rows(cut)

    def disturb(self) -> None:
        act = self._chance.choice((self.kill, self.cut, self.cut, self.stop_for_a_while))
        act()
        self.did[act.__name__] += 1

    def close(self) -> None:
        for client in self.clients:
            client.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_runs_end_once_whatever_befalls_their_servers_and_the_database(
    place: Place, own_server: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:

    server = own_server.get_uri()
    database = postgres.make_schema(server)
    monkeypatch.setenv("KAIROS_TEST_STORE", server)
    monkeypatch.setenv("KAIROS_STORE", database)
    (place.root / postgres.NAMED_IN).write_text(database)
    place.settings(*LINES)
    fleet = Fleet(place, database, random.Random(seed))
    try:
        fleet.start_runs()
        began, is_restarted = time.monotonic(), False
        while (ended := count_ended(place)) < RUNS:
            assert time.monotonic() - began < WITHIN_S, (ended, fleet.did)
            if not is_restarted and ended > RUNS // 3:
                restart_server(own_server)
                is_restarted = True
            elif ended < RUNS * 5 // 6:
                fleet.disturb()
            time.sleep(EVERY_S)
    finally:
        fleet.close()
    assert is_restarted
    statuses = "select json_extract(outcome, '$.status'), count(*) from run group by 1"
    assert place.rows(statuses) == [("completed", RUNS)]
    steps = 2 * ROUNDS - 1
    assert place.rows("select count(*) from step") == place.rows("select count(*) from answer") == [(RUNS * steps,)]
    assert place.store().find_damage(Outcome) == []
    assert differences_in_database(database) == []
    print(seed, dict(fleet.did), place.rows("select count(*) from attempt"), f"{time.monotonic() - began:.1f} s")


def count_ended(place: Place) -> int:
    try:
        ((ended,),) = place.rows("select count(*) from run where outcome is not null")
    except KairosError:
        return 0
    return int(ended)
