"""Too little memory in the middle of a run: an error that passes, and a store that stays whole."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from support.app import Place
from support.stdio_server import START, StdioClient, go_through, kept_in, reference_place


@pytest.mark.state_file("it takes memory from SQLite")
def test_006_too_little_memory_is_an_error_that_passes(tmp_path: Path) -> None:
    place = reference_place(tmp_path / "place")
    (place.workspace / "large.txt").write_text("line\n" * 300_000)
    with StdioClient.start(place) as client:
        assert client.call("registry_call", name="read_file", arguments={"path": "a.txt"})["status"] == "completed"
        _, hard = resource.prlimit(client.pid, resource.RLIMIT_AS)
        resource.prlimit(client.pid, resource.RLIMIT_AS, (_address_space(client.pid) + (1 << 20), hard))
        for _ in range(3):
            result = client.call("registry_call", name="read_file", arguments={"path": "large.txt"}, wait_s=5)
            assert "code" in result or result["status"] in ("completed", "stopped", "failed", "paused", "working")
        started = client.call("planner_run", **START)
        assert started.get("code") or started["status"]
        resource.prlimit(client.pid, resource.RLIMIT_AS, (hard, hard))
        assert go_through(client)["summary"] == "done"
    assert _integrity(place, tmp_path) == "ok"


def _address_space(pid: int) -> int:
    """The process's address space in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def _integrity(place: Place, root: Path) -> str:
    return kept_in(place, root / "aside").integrity
