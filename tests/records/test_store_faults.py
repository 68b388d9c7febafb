"""Faults of the disk at any write or sync of a real server: never a wrong answer, never a lost row, and it goes on."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.app import Place
from support.stdio_server import START, Gone, Kept, StdioClient, go_through, kept_in, reference_place

pytestmark = [  # no user has to have strace, so the default run needs none; it has kills of other kinds beside this
    pytest.mark.slow,
    pytest.mark.state_file("the faults are those of that file's disk"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="the faults are made by strace, which is missing here"),
]

FAULTS = [("pwrite64", "EIO"), ("pwrite64", "ENOSPC"), ("fdatasync", "EIO"), ("fdatasync", "ENOSPC")]
SAID = {"store_unavailable", "no_space", "store_busy", "store_corrupt"}
TRIES = 12  # calls after which a server whose disk works again has gone on
TRIES_IN_VAIN = 3  # of a server whose disk does not


@dataclass(frozen=True)
class Reference:
    """The run undisturbed, and how often its server's main thread makes each system call; strace counts by thread."""

    kept: Kept
    counts: dict[str, int]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    root = tmp_path_factory.mktemp("reference")
    place = reference_place(root / "place")
    with StdioClient.start(place, under=_under(root)) as client:
        pid = client.pid
        assert go_through(client)["status"] == "completed"
    trace = (root / "trace").read_text()
    counts = {call: len(re.findall(rf"^{pid}\s+{call}\(", trace, re.MULTILINE)) for call in ("pwrite64", "fdatasync")}
    return Reference(kept_in(place, root / "aside"), counts)


def _under(root: Path, *more: str) -> list[str]:
    return ["strace", "-f", "-qq", "-o", str(root / "trace"), "-e", "trace=pwrite64,fdatasync", *more]


def call_until_ended(client: StdioClient, tries: int = TRIES) -> tuple[dict[str, Any] | None, list[str]]:
    """Call until the run has ended, as a client would that is told to call again; its report, and the codes met."""
    codes: list[str] = []
    report = client.call("planner_run", **START)
    for _ in range(tries):
        if "code" in report:
            codes.append(report["code"])
            assert report["code"] in SAID, report
            assert report["hint"], report
            report = client.call("planner_run", **{**START, "wait_s": 2})
            continue
        if report["status"] in ("completed", "stopped", "failed", "cancelled"):
            return report, codes
        answers = {item["key"]: {"content": "because"} for item in report["waiting"]}
        report = client.call("run_continue", run_id=report["run_id"], answers=answers, wait_s=2)
    assert client.ask("tools/list", {})["tools"]  # whatever the disk does, it answers
    return None, codes


def assert_fault_survived(root: Path, fault: tuple[str, str], when: str, reference: Reference) -> bool:
    """A server whose disk fails so: what it says and what it leaves is what another one confirms and goes on with.

    False where it ended before it made that call: a few more or less are made from run to run.
    """
    root.mkdir()
    call, error = fault
    place = reference_place(root / "place")
    report, for_good = None, when.endswith("+")
    client = StdioClient.start(place, under=_under(root, "-e", f"inject={call}:error={error}:when={when}"))
    try:
        report, codes = call_until_ended(client, TRIES_IN_VAIN if for_good else TRIES)
        assert report is not None or for_good, f"it never went on: {codes}"
    except Gone:
        raise AssertionError("the server has died of it") from None
    finally:
        client.close()
    reached = "INJECTED" in (root / "trace").read_text()
    before = kept_in(place, root / "before")
    assert before.integrity == "ok"
    if report is not None:
        assert (report["status"], report["summary"]) == ("completed", "done")
        assert before.outcome == reference.kept.outcome  # what was said to have ended has ended in the rows
    assert_confirmed(place, root, before, reference)
    return reached


def assert_confirmed(place: Place, root: Path, before: Kept, reference: Reference) -> None:
    """A server with a working disk brings the run to the end that it has undisturbed; no row is lost or changed."""
    with StdioClient.start(place) as second:
        report = go_through(second)
    after = kept_in(place, root / "after")
    assert (report["status"], report["summary"], report["rounds"]) == ("completed", "done", 3)
    assert (after.runs, after.integrity) == (1, "ok")
    assert (after.outcome, after.asked) == (reference.kept.outcome, reference.kept.asked)
    assert before.answers.items() <= after.answers.items()
    bodies = {path: body for path, (_, body) in after.answers.items()}
    assert bodies == {path: body for path, (_, body) in reference.kept.answers.items()}


def assert_each_fault_survived(points: Iterable[tuple[tuple[str, str], str]], root: Path, reference: Reference) -> None:
    """Two at a time: a server under strace mostly waits."""

    def at(point: tuple[tuple[str, str], str]) -> bool:
        fault, when = point
        try:
            return assert_fault_survived(root / f"{fault[0]}-{fault[1]}-{when}", fault, when, reference)
        except AssertionError as failed:
            failed.add_note(f"{fault[1]} at {fault[0]} number {when}")
            raise

    with ThreadPoolExecutor(2) as pool:
        reached = list(pool.map(at, points))
    assert sum(reached) >= 0.95 * len(reached)


def test_003_004_a_sample_of_faults(tmp_path: Path, reference: Reference) -> None:
    """One in the middle for each, once or for good."""
    points = [
        (("pwrite64", "EIO"), f"{reference.counts['pwrite64'] // 2}"),
        (("pwrite64", "ENOSPC"), f"{reference.counts['pwrite64'] // 3}+"),
        (("fdatasync", "EIO"), f"{reference.counts['fdatasync'] // 2}"),
        (("fdatasync", "ENOSPC"), f"{reference.counts['fdatasync'] - 2}+"),
    ]
    assert_each_fault_survived(points, tmp_path, reference)


@pytest.mark.slow
@pytest.mark.parametrize("lasting", ["once", "for good"])
@pytest.mark.parametrize("fault", FAULTS, ids="-".join)
def test_a_fault_at_every_point(tmp_path: Path, reference: Reference, fault: tuple[str, str], lasting: str) -> None:
    count = reference.counts[fault[0]]
    assert count >= 10
    print(f"{fault[1]} at {fault[0]}, {lasting}: {count} points")
    plus = "+" if lasting == "for good" else ""
    points = [(fault, f"{nth}{plus}") for nth in range(1, count)]
    assert_each_fault_survived(points, tmp_path, reference)


def test_a_server_whose_disk_fills_and_is_freed_goes_on(tmp_path: Path, reference: Reference) -> None:
    """From the nth write on for a while: calls are told, then the same server brings the run to its end."""
    place = reference_place(tmp_path / "place")
    nth = reference.counts["pwrite64"] // 2
    inject = f"inject=pwrite64:error=ENOSPC:when={nth}..{nth + 3}"
    with StdioClient.start(place, under=_under(tmp_path, "-e", inject)) as client:
        report, _ = call_until_ended(client)
        assert report is not None
        assert (report["status"], report["summary"]) == ("completed", "done")
    with suppress(FileNotFoundError):
        assert (tmp_path / "trace").read_text().count("INJECTED") >= 1
    assert kept_in(place, tmp_path / "aside").outcome == reference.kept.outcome
