"""`kill -9` of the real server at its journal points: another process goes on at once, nothing is asked twice."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.stdio_server import Gone, Kept, StdioClient, go_through, kept_in, reference_place

pytestmark = [  # no user has to have strace, so the default run needs none; it has kills of other kinds beside this
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="the points are found by strace, which is missing here"),
]

CALLS = ("fdatasync", "pwrite64")
SAMPLE = {"fdatasync": 6, "pwrite64": 4}


def traced(out: Path, *more: str) -> list[str]:
    return ["strace", "-f", "-qq", "-o", str(out), "-e", f"trace={','.join(CALLS)}", *more]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Kept, dict[str, int]]:
    """The run undisturbed, and how often its server's main thread makes each system call; strace counts by thread."""
    root = tmp_path_factory.mktemp("reference")
    place = reference_place(root / "place")
    with StdioClient.start(place, under=traced(root / "trace")) as client:
        pid = client.pid
        assert go_through(client)["status"] == "completed"
        client.server.stdin.close()
        client.ends()
    counts = {call: made(root / "trace", pid, call) for call in CALLS}
    return kept_in(place, root / "aside"), counts


def made(trace: Path, pid: int, call: str) -> int:
    """How often a thread made the system call."""
    return len(re.findall(rf"^{pid}\s+{call}\(", trace.read_text(), re.MULTILINE))


def assert_kill_survived(root: Path, call: str, nth: int, reference: Kept) -> None:
    place = reference_place(root / "place")
    ended = False
    kill = ["-e", f"inject={call}:signal=KILL:when={nth}"]
    client = StdioClient.start(place, under=traced(root / "trace", *kill))
    pid = 0
    try:
        pid = client.pid
        go_through(client)
        ended = True  # the point lies in the closing of the server
        client.server.stdin.close()
        client.ends()
    except (Gone, json.JSONDecodeError):
        client.ends()
    finally:
        client.close()
    if client.server.returncode != -signal.SIGKILL:  # strace ends as what it traces did
        assert ended
        assert made(root / "trace", pid, call) < nth  # how often the log is written at the close differs by a few
    before = kept_in(place, root / "before")
    assert before.integrity == "ok"

    with StdioClient.start(place) as second:
        report = go_through(second)
    after = kept_in(place, root / "after")
    assert (report["status"], report["summary"], report["rounds"]) == ("completed", "done", 3)
    assert (after.runs, after.outcome, after.asked, after.integrity) == (1, reference.outcome, reference.asked, "ok")
    assert before.answers.items() <= after.answers.items()
    assert {path: body for path, (_, body) in after.answers.items()} == {
        path: body for path, (_, body) in reference.answers.items()
    }
    assert after.attempts <= 3
    assert not ended or before.outcome == reference.outcome


def assert_each_kill_survived(points: Iterable[int], root: Path, call: str, reference: Kept) -> None:
    """Two points at a time: a server under strace mostly waits."""

    def killed(nth: int) -> None:
        (root / str(nth)).mkdir()
        assert_kill_survived(root / str(nth), call, nth, reference)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(killed, points))


@pytest.mark.parametrize("call", CALLS)
def test_the_server_killed_at_a_sample_of_its_points(
    tmp_path: Path, call: str, reference: tuple[Kept, dict[str, int]]
) -> None:
    kept, counts = reference
    points = sorted({1 + nth * (counts[call] - 1) // (SAMPLE[call] - 1) for nth in range(SAMPLE[call])})
    assert_each_kill_survived(points, tmp_path, call, kept)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_the_server_killed_at_every_one_of_its_points(
    tmp_path: Path, call: str, reference: tuple[Kept, dict[str, int]]
) -> None:
    kept, counts = reference
    assert counts[call] >= 10
    print(f"{call}: {counts[call]} points")
    assert_each_kill_survived(range(1, counts[call] + 1), tmp_path, call, kept)
