"""The store's part of the PROCESS cases, on the real server; after each fault a call shows that one still answers."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.app import Place
from support.stdio_server import LINES, START, StdioClient, go_through, kept_in, reference_place

from kairos_mcp.store.file_store import CHECKED_BYTES

SLOW = [{"content": "look", "tool_calls": LINES[0]["tool_calls"], "delay_s": 1.2}, *LINES[1:]]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return reference_place(tmp_path / "place")


@contextmanager
def lock_store(place: Place) -> Iterator[None]:
    """Have nobody else write within."""
    with place.session() as other:
        if postgres.is_chosen():
            from kairos_mcp.store.postgres.writer import begin

            other.rows("set idle_in_transaction_session_timeout = 0")  # else the database ends it after 5 s
            begin(other)
        else:
            other.rows("begin immediate")
        yield
        other.rows("rollback")


def write_script(place: Place, lines: list[dict[str, Any]]) -> None:
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))


def goes_on(place: Place, tmp_path: Path, aside: str = "after") -> None:
    """A fresh server takes the run to its end, and what was answered before is as it was."""
    before = kept_in(place, tmp_path / f"{aside}-before")
    with StdioClient.start(place) as fresh:
        assert go_through(fresh)["summary"] == "done"
    after = kept_in(place, tmp_path / aside)
    assert before.integrity == after.integrity == "ok"
    assert before.answers.items() <= after.answers.items()


# -- the disk ----------------------------------------------------------------------------------------------------


@pytest.mark.state_file("it fails the syncs of that file")
@pytest.mark.slow  # no user has to have strace
@pytest.mark.skipif(shutil.which("strace") is None, reason="the fault is made by strace, which is missing here")
def test_003_a_disk_that_fails_to_sync_reports_no_step_as_done(place: Place, tmp_path: Path) -> None:
    under = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"]
    with StdioClient.start(place, under=[*under, "-e", "inject=fdatasync:error=EIO:when=14+"]) as client:
        report = client.call("planner_run", **START)
        assert report.get("code") == "store_unavailable" or report["status"] == "paused"
        assert client.call("run_status")["runs"][0]["status"] == "paused"
    goes_on(place, tmp_path)


@pytest.mark.state_file("it is about that file")
def test_005_a_write_cut_short_loses_nothing_and_is_made_again(place: Place) -> None:
    write_script(place, SLOW)
    with StdioClient.start(place) as client:
        began = client.call("planner_run", **{**START, "wait_s": 0.3})
        wal = place.db.with_name("kairos.db-wal")
        hard = resource.prlimit(client.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(client.pid, resource.RLIMIT_FSIZE, (wal.stat().st_size + 1_000, hard))
        stuck = client.call("run_status", run_ids=[began["run_id"]], until="attention", wait_s=15)["runs"][0]
        assert stuck["status"] == "paused"
        assert place.rows("select count(*) from answer") == [(0,)]
        resource.prlimit(client.pid, resource.RLIMIT_FSIZE, (hard, hard))
        report = go_through(client)
        assert (report["summary"], report["usage"]["attempts"]) == (
            "done",
            3,
        )  # the answer was kept, not asked for again
    assert place.rows("pragma integrity_check") == [("ok",)]


@pytest.mark.state_file("it is about that file")
def test_008_a_store_that_can_not_be_written_is_said_to_be_so(tmp_path: Path) -> None:
    place = reference_place(tmp_path / "place")
    with StdioClient.start(place) as client:
        go_through(client)
    place.db.chmod(0o444)
    place.home.chmod(0o555)
    with StdioClient.start(place, preexec_fn=_bound_by_permissions) as client:
        refused = client.call("planner_run", goal="look", wait_s=1)
        assert refused["code"] == "store_unavailable"
        assert client.ask("tools/list", {})["tools"]
    found = subprocess.run(
        [sys.executable, "-m", "kairos_mcp", "doctor", "--json", "--home", str(place.home)],
        capture_output=True,
        check=False,
        preexec_fn=_bound_by_permissions,
    )
    (store,) = [each for each in json.loads(found.stdout)["findings"] if each["matter"] == "store"]
    assert (found.returncode, store["state"]) == (1, "bad")
    assert store["cure"]
    place.home.chmod(0o700)
    place.db.chmod(0o600)
    with StdioClient.start(place) as client:
        assert client.call("run_status")["runs"][0]["status"] == "completed"


def _bound_by_permissions() -> None:
    """The tests may run as root, for whom permissions are waived; the child does without."""
    if os.geteuid() == 0:
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            ctypes.CDLL(None).prctl(24, capability)  # PR_CAPBSET_DROP


@pytest.mark.state_file("it is about that file")
@pytest.mark.unreplayed
def test_012_a_file_cut_short_is_corrupt(place: Place) -> None:
    with StdioClient.start(place) as client:
        go_through(client)
        client.server.stdin.close()
        client.ends()  # in order, so that the file alone holds everything
    whole = place.db.read_bytes()
    assert len(whole) < CHECKED_BYTES
    place.db.write_bytes(whole[:-2_048])
    with StdioClient.start(place) as client:
        assert client.call("run_status")["code"] == "store_corrupt"
        assert client.call("planner_run", goal="look", wait_s=1)["code"] == "store_corrupt"
        assert place.db.read_bytes() == whole[:-2_048]  # left as it is
        place.db.write_bytes(whole)
        assert client.call("run_status")["runs"][0]["status"] == "completed"


@pytest.mark.state_file("it is about that file")
@pytest.mark.parametrize("kind", ["folder", "link", "fifo"])
@pytest.mark.unreplayed
def test_014_an_odd_file_in_the_store_s_place_is_refused(place: Place, kind: str) -> None:
    place.home.mkdir()
    match kind:
        case "folder":
            place.db.mkdir()
        case "link":
            place.db.symlink_to(place.root / "elsewhere")
        case _:
            os.mkfifo(place.db)
    with StdioClient.start(place) as client:
        assert client.call("planner_run", goal="look", wait_s=1)["code"] == "store_unavailable"
        if kind == "folder":
            place.db.rmdir()
        else:
            place.db.unlink()
        assert go_through(client)["summary"] == "done"
    assert not (place.root / "elsewhere").exists()


@pytest.mark.state_file("it is about that file")
@pytest.mark.unreplayed
def test_015_a_log_removed_under_the_server_is_a_store_error_and_nothing_else(place: Place) -> None:
    with StdioClient.start(place) as client:
        report = client.call("planner_run", **START)
        assert report["status"] == "input_required"
        place.db.with_name("kairos.db-wal").unlink()
        place.db.with_name("kairos.db-shm").unlink()
        answers = {item["key"]: {"content": "because"} for item in report["waiting"]}
        result = client.call("run_continue", run_id=report["run_id"], answers=answers, wait_s=5)
        assert result.get("code") != "internal_error"
        assert client.ask("tools/list", {})["tools"]
        client.server.stdin.close()
        client.ends()
    with StdioClient.start(place) as fresh:
        result = fresh.call("run_status")
        assert "runs" in result or result["code"] in ("store_corrupt", "store_unavailable")


# -- other processes, signals, limits ----------------------------------------------------------------------------


@pytest.mark.slow
def test_009_a_store_locked_for_long_ends_in_store_busy_and_the_server_answers_meanwhile(place: Place) -> None:
    with StdioClient.start(place) as client:
        assert client.call("run_status")["runs"] == []
        with lock_store(place):
            began = time.monotonic()
            asked = client.begin("tools/call", {"name": "planner_run", "arguments": {"goal": "look", "wait_s": 1}})
            listed = client.begin("tools/list", {})
            assert client.read()["id"] == listed
            assert time.monotonic() - began < 2
            refused = client.read()
            assert refused["id"] == asked
            assert refused["result"]["structuredContent"]["code"] == "store_busy"
            assert 4 < time.monotonic() - began < 8
        assert go_through(client)["summary"] == "done"


def test_018_two_servers_on_one_store_do_each_step_once(place: Place) -> None:
    with StdioClient.start(place) as one, StdioClient.start(place) as other:
        for number in range(3):
            goals = [f"goal {number} of {name}" for name in ("one", "other")]
            begun = [
                client.call("planner_run", goal=goal, caller_tools=START["caller_tools"], wait_s=15)
                for client, goal in zip((one, other), goals, strict=True)
            ]
            for client, report in zip((other, one), begun, strict=True):  # each answers the other's run
                answers = {item["key"]: {"content": "because"} for item in report["waiting"]}
                done = client.call("run_continue", run_id=report["run_id"], answers=answers, wait_s=15)
                assert done["summary"] == "done"
    assert place.rows("select count(*) from run") == [(6,)]
    assert place.rows("select count(*) from answer") == [(6 * 7,)]
    assert place.rows("select count(*) from attempt") == [(0,)]


def test_025_a_second_sigterm_forces_the_end_and_the_store_stays_whole(place: Place, tmp_path: Path) -> None:
    write_script(place, [{**LINES[0], "delay_s": 1.0}, *LINES[1:]])
    with StdioClient.start(place) as client:
        client.call("planner_run", **{**START, "wait_s": 0.2})
        began = time.monotonic()
        for _ in range(2):
            os.kill(client.pid, signal.SIGTERM)
        client.ends()
        assert time.monotonic() - began < 3
    goes_on(place, tmp_path)


def test_027_the_end_of_stdin_in_the_middle_ends_the_server_within_two_seconds(place: Place, tmp_path: Path) -> None:
    write_script(place, SLOW)
    with StdioClient.start(place) as client:
        client.call("planner_run", **{**START, "wait_s": 0.1})
        client.begin("tools/call", {"name": "run_status", "arguments": {"until": "done", "wait_s": 30}})
        pid, began = client.pid, time.monotonic()
        client.server.stdin.close()
        client.ends()
        assert time.monotonic() - began < 2.5
        assert not Path(f"/proc/{pid}").exists()
    assert place.rows("select path, held is not null from step") == [("round-1", 1)]
    goes_on(place, tmp_path)


def test_030_too_few_descriptors_is_an_error_that_passes(place: Place) -> None:
    with StdioClient.start(place) as client:
        assert client.call("registry_call", name="read_file", arguments={"path": "a.txt"})["status"] == "completed"
        _, hard = resource.prlimit(client.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(client.pid, resource.RLIMIT_NOFILE, (3, hard))
        result = client.call("registry_call", name="read_file", arguments={"path": "b.txt"})
        assert result.get("code") != "internal_error"
        assert result.get("code") or result["output"]["is_error"]
        resource.prlimit(client.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert go_through(client)["summary"] == "done"


def test_030_a_server_started_with_few_descriptors_says_so_or_works(tmp_path: Path) -> None:
    place = reference_place(tmp_path / "place")
    place.home.mkdir(parents=True, exist_ok=True)
    (place.home / "kairos.toml").write_text('[flow]\nmode = "off"\n')  # it asks where it can't read the run's rows

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    with StdioClient.start(place, preexec_fn=few) as client:
        result = client.call("planner_run", **START)
        assert result.get("code") != "internal_error"
        hard = resource.prlimit(client.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(client.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert go_through(client)["summary"] == "done"


@pytest.mark.unreplayed
def test_035_a_tampered_row_stops_its_run_and_no_other(place: Place) -> None:
    with StdioClient.start(place) as client:
        report = client.call("planner_run", **START)
    place.rows("update answer set body = replace(body, 'look', 'overlook')")
    with StdioClient.start(place) as client:
        answers = {item["key"]: {"content": "because"} for item in report["waiting"]}
        refused = client.call("run_continue", run_id=report["run_id"], answers=answers, wait_s=5)
        assert refused["code"] == "stale"
        shown = client.call("run_status", run_ids=[report["run_id"]])
        assert shown["runs"][0]["status"] == "paused"
        other = client.call("planner_run", goal="another", caller_tools=START["caller_tools"], wait_s=15)
        assert other["status"] == "input_required"
