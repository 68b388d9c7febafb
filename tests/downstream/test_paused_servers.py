"""A sandboxed server is paused between its calls: it writes nothing at protected names while nobody watches."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import sandboxed
from support.downstream import WITHIN_S, DownstreamServers, call_server, open_downstream
from support.waiting import wait_until

from kairos_mcp.core.tool import StopSignal, ToolMemory
from kairos_mcp.tools.mcp_servers import server_processes
from kairos_mcp.tools.mcp_servers.source import McpServerSource

ALL = (("*", "read"),)


def list_states(mark: Path) -> dict[int, set[str]]:
    """The states of all threads of the servers that log to this file, and of what they started, by process."""
    found = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            if f"log={mark}".encode() in words and b"--die-with-parent" not in words and not is_bubblewrap(process):
                stats = [Path(f"/proc/{process}/task/{each}/stat") for each in os.listdir(f"/proc/{process}/task")]
                found[int(process)] = {stat.read_text().rpartition(")")[2].split()[0] for stat in stats}
        except OSError:  # it ended meanwhile
            continue
    return found


def is_bubblewrap(process: str) -> bool:
    return read_name(int(process)) == "bwrap"


def read_folder(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if not path.name.endswith(".wrote")
    }


def is_paused(downstream: DownstreamServers) -> bool:
    states = list_states(downstream.log)
    return bool(states) and all(each == {"T"} for each in states.values())


def begin(downstream: DownstreamServers, *how: str) -> McpServerSource:
    for name in ("deep/thread", "deep/child", "thread-new", "child-new"):
        (downstream.workspace / name).mkdir(parents=True)
    (downstream.workspace / "code.py").write_text("pass\n")
    return downstream.ready_peer(*how, sandbox=True, effects=ALL)


def test_what_a_server_writes_after_its_answer_is_undone_and_nothing_follows(downstream: DownstreamServers) -> None:
    server = begin(downstream)
    assert is_paused(downstream)
    before = read_folder(downstream.workspace)
    kept: dict[str, str] = {}
    memory = ToolMemory(kept.__setitem__, kept.get)
    wrote = downstream.workspace / "thread.wrote"  # made anew after each round of writes
    for tool, text in (("linger", downstream.workspace), ("await", wrote), ("await", wrote)):
        wrote.unlink(missing_ok=True)
        made = call_server(server, tool, memory=memory, text=str(text))
        assert is_paused(downstream)
        assert read_folder(downstream.workspace) == before
    assert (made.is_error, made.code) == (True, "path_denied")
    assert {json.loads(text)["path"] for text in kept.values()} >= {"CLAUDE.md", "deep/thread/.mcp.json"}


def test_a_paused_server_goes_on_with_the_next_call(downstream: DownstreamServers) -> None:
    server = begin(downstream)
    call_server(server, "linger", text=str(downstream.workspace))
    wrote = [downstream.workspace / f"{who}.wrote" for who in ("thread", "child")]
    for path in wrote:
        path.unlink(missing_ok=True)
    seen = [call_server(server, "await", text=str(path)).content.split("\n")[0] for path in wrote]
    assert seen == ["it came", "it came"]


def test_what_a_person_makes_between_calls_stays_whatever_the_server_wrote_before(
    downstream: DownstreamServers,
) -> None:
    server = begin(downstream)
    call_server(server, "linger", text=str(downstream.workspace / "deep"))
    (downstream.workspace / "CLAUDE.md").write_text("ours")
    (downstream.workspace / ".git/hooks").mkdir(parents=True)
    call_server(server, "echo", text="x")
    call_server(server, "echo", text="x")
    assert (downstream.workspace / "CLAUDE.md").read_text() == "ours"
    assert (downstream.workspace / ".git/hooks").is_dir()


def test_calls_side_by_side_are_watched_until_the_last_has_ended(downstream: DownstreamServers) -> None:
    server = begin(downstream, "threads")
    before = read_folder(downstream.workspace)
    awaited = downstream.workspace / "thread.wrote"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(call_server, server, "await", text=str(awaited))
        wait_until(lambda: not is_paused(downstream), WITHIN_S)
        call_server(server, "linger", text=str(downstream.workspace))
        first.result(WITHIN_S)
    assert is_paused(downstream)
    assert read_folder(downstream.workspace) == before


def test_an_alarm_does_not_wake_a_paused_server(downstream: DownstreamServers) -> None:
    server = begin(downstream)
    call_server(server, "linger", text=str(downstream.workspace))
    for _ in range(20):
        assert is_paused(downstream)
    assert call_server(server, "rouse", text="data").content.split("\n")[0] == os.strerror(errno.ENOSYS)


def test_processes_that_start_another_and_end_are_paused_all_the_same(
    downstream: DownstreamServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine they may outrun whoever pauses them for seconds, after which the server would be ended."""
    monkeypatch.setattr(server_processes, "PAUSE_S", WITHIN_S)
    server = begin(downstream)
    for _ in range(3):
        assert not call_server(server, "chase", text="x").is_error
        assert is_paused(downstream)
        assert is_paused(downstream)


def test_a_process_that_is_taken_over_above_the_place_that_is_looked_at_is_paused_all_the_same(
    downstream: DownstreamServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill the one above it whenever its children are to be read, and those of the next above were read already."""
    list_children, above = server_processes._list_children, ["climb-0", "climb-1", "climb-2"]

    def kill_and_list(process: int) -> list[int]:
        if above and read_name(process) == above[-1]:
            (lowest,) = (each for each in list_states(downstream.log) if read_name(each) == "climb-3")
            parent = read_parent(lowest)
            above.pop()
            os.kill(process, signal.SIGKILL)
            wait_until(lambda: read_parent(lowest) != parent, WITHIN_S)
        return list_children(process)

    server = begin(downstream)
    monkeypatch.setattr(server_processes, "_list_children", kill_and_list)
    assert not call_server(server, "climb", text="x").is_error
    assert not above
    assert is_paused(downstream)


def read_name(process: int) -> str:
    return Path(f"/proc/{process}/comm").read_text().strip()


def read_parent(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]


def test_a_process_whose_first_thread_has_ended_goes_on_with_the_next_call(downstream: DownstreamServers) -> None:
    server = begin(downstream)
    call_server(server, "outlive", text=str(downstream.workspace))
    wrote = downstream.workspace / "thread.wrote"
    for _ in range(3):
        wrote.unlink(missing_ok=True)
        assert call_server(server, "await", text=str(wrote)).content.split("\n")[0] == "it came"


def test_a_server_that_can_not_be_paused_is_ended_before_its_call_does(
    downstream: DownstreamServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = begin(downstream)
    monkeypatch.setattr("kairos_mcp.tools.mcp_servers.server_processes.ATTEMPT_S", 0)
    monkeypatch.setattr("kairos_mcp.tools.mcp_servers.server_processes.PAUSE_S", 0)
    before = read_folder(downstream.workspace)
    call_server(server, "linger", text=str(downstream.workspace))
    assert not list_states(downstream.log)
    assert read_folder(downstream.workspace) == before


@pytest.mark.parametrize("how", ["given up", "stopped"])
def test_a_server_is_paused_though_its_call_was_given_up(downstream: DownstreamServers, how: str) -> None:
    server = begin(downstream, "threads")
    before = read_folder(downstream.workspace)
    call_server(server, "linger", text=str(downstream.workspace))
    stop = StopSignal()
    if how == "stopped":
        stop.set()
    call_server(server, "hang", seconds=0.3, stop=stop, text="x")
    assert is_paused(downstream)
    assert read_folder(downstream.workspace) == before


def test_what_a_server_writes_as_it_starts_is_put_aside_and_named(downstream: DownstreamServers) -> None:
    (downstream.workspace / "code.py").write_text("pass\n")
    server = downstream.ready_peer(f"at-start={downstream.workspace / 'CLAUDE.md'}", sandbox=True, effects=ALL)
    assert is_paused(downstream)
    assert not (downstream.workspace / "CLAUDE.md").exists()
    (aside,) = downstream.workspace.glob(".kairos-aside-*")
    assert aside.read_text() == "written"
    assert [note for note in server.notes() if aside.name in note]


def test_what_a_server_writes_as_it_ends_is_put_aside(downstream: DownstreamServers) -> None:
    server = begin(downstream, f"at-end={downstream.workspace / 'CLAUDE.md'}")
    assert not call_server(server, "echo", text="x").is_error
    downstream.loop.close()
    assert not list_states(downstream.log)
    assert not (downstream.workspace / "CLAUDE.md").exists()
    assert len(list(downstream.workspace.glob(".kairos-aside-*"))) == 1  # it ended in order, and could write


def test_a_paused_server_that_is_killed_is_started_anew(downstream: DownstreamServers) -> None:
    server = begin(downstream)
    call_server(server, "linger", text=str(downstream.workspace))
    killed = list_states(downstream.log)
    for process in killed:
        os.kill(process, signal.SIGKILL)
    wait_until(lambda: not killed.keys() & list_states(downstream.log).keys(), WITHIN_S)
    made = call_server(server, "echo", text="x")
    assert not made.is_error
    assert made.content.startswith("x\n[x was restarted")


def test_no_paused_server_outlives_a_process_of_ours_that_is_killed(tmp_path: Path) -> None:
    sandboxed.skip_if_missing()
    ours = subprocess.Popen(
        [sys.executable, __file__, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert ours.stdout is not None
    with ours.stdout:
        assert ours.stdout.readline() == "paused\n"
        states = list_states(tmp_path / "log")
        assert len(states) >= 2
        assert all(each == {"T"} for each in states.values())
        ours.kill()
        ours.wait()
    wait_until(lambda: not list_states(tmp_path / "log"), WITHIN_S, lambda: list_states(tmp_path / "log"))


def pause_and_wait(root: Path) -> None:
    with open_downstream(root) as downstream:
        call_server(begin(downstream), "linger", text=str(downstream.workspace))
        print("paused", flush=True)
        time.sleep(600)  # until it is killed


if __name__ == "__main__":
    pause_and_wait(Path(sys.argv[1]))
