"""`kill -9` of the real server at its journal points: another process goes on at once, nothing is asked twice."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.stdio_server import Gone, Kept, StdioClient, go_through, kept_in, reference_place

pytestmark = [  # no user has to have strace, so the default run needs none; it has kills of other kinds beside this
    pytest.mark.slow,
    pytest.mark.state_file("the points are writes of that file; on a database, those of tests/postgres"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="the points are found by strace, which is missing here"),
]

CALLS = ("fdatasync", "pwrite64")
SAMPLE = {"fdatasync": 6, "pwrite64": 4}


def strace_command(out: Path, *more: str) -> list[str]:
    return ["strace", "-f", "-qq", "-o", str(out), "-e", f"trace={','.join(CALLS)}", *more]


class Reference(NamedTuple):
    """A run undisturbed, what its report says, and how often its server's main thread makes each system call (strace
    counts by thread). `team`: of a team, with tasks side by side."""

    kept: Kept
    report: dict[str, Any]
    counts: dict[str, int]
    team: bool

    @property
    def most_attempts(self) -> int:
        """As many steps are under way at once."""
        return 4 if self.team else 3


@pytest.fixture(scope="module", params=["planner", "team"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    root, team = tmp_path_factory.mktemp("reference"), request.param == "team"
    place = reference_place(root / "place")
    with StdioClient.start(place, under=strace_command(root / "trace")) as client:
        pid = client.pid
        report = go_through(client, team=team)
        assert (report["status"], report["summary"]) == ("completed", "done")
        client.server.stdin.close()
        client.ends()
    counts = {call: count_calls(root / "trace", pid, call) for call in CALLS}
    return Reference(kept_in(place, root / "aside"), report, counts, team)


def count_calls(trace: Path, pid: int, call: str) -> int:
    """How often a thread made the system call."""
    return len(re.findall(rf"^{pid}\s+{call}\(", trace.read_text(), re.MULTILINE))


def assert_kill_survived(root: Path, call: str, nth: int, reference: Reference) -> None:
    place = reference_place(root / "place")
    ended = False
    kill = ["-e", f"inject={call}:signal=KILL:when={nth}"]
    client = StdioClient.start(place, under=strace_command(root / "trace", *kill))
    pid = 0
    try:
        pid = client.pid
        go_through(client, team=reference.team)
        ended = True  # the point lies in the closing of the server
        client.server.stdin.close()
        client.ends()
    except (Gone, json.JSONDecodeError):
        client.ends()
    finally:
        client.close()
    if client.server.returncode != -signal.SIGKILL:  # strace ends as what it traces did
        assert ended
        assert (
            count_calls(root / "trace", pid, call) < nth
        )  # how often the log is written at the close differs by a few
    before = kept_in(place, root / "before")
    assert before.integrity == "ok"

    with StdioClient.start(place) as second:
        report = go_through(second, team=reference.team)
    after = kept_in(place, root / "after")
    known, kept = reference.report, reference.kept
    assert [report[name] for name in ("status", "summary", "rounds")] == ["completed", "done", known["rounds"]]
    assert (after.runs, after.outcome, after.asked, after.integrity) == (1, kept.outcome, kept.asked, "ok")
    assert before.answers.items() <= after.answers.items()
    assert {path: body for path, (_, body) in after.answers.items()} == {
        path: body for path, (_, body) in kept.answers.items()
    }
    assert after.attempts <= reference.most_attempts
    assert not ended or before.outcome == kept.outcome


def assert_each_kill_survived(points: Iterable[int], root: Path, call: str, reference: Reference) -> None:
    """Two points at a time: a server under strace mostly waits."""

    def kill_at(nth: int) -> None:
        (root / str(nth)).mkdir()
        assert_kill_survived(root / str(nth), call, nth, reference)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(kill_at, points))


@pytest.mark.parametrize("call", CALLS)
def test_the_server_killed_at_a_sample_of_its_points(tmp_path: Path, call: str, reference: Reference) -> None:
    count = reference.counts[call]
    points = sorted({1 + nth * (count - 1) // (SAMPLE[call] - 1) for nth in range(SAMPLE[call])})
    assert_each_kill_survived(points, tmp_path, call, reference)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_the_server_killed_at_every_one_of_its_points(tmp_path: Path, call: str, reference: Reference) -> None:
    count = reference.counts[call]
    assert count >= 10
    print(f"{call}: {count} points")
    assert_each_kill_survived(range(1, count + 1), tmp_path, call, reference)
