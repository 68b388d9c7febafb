"""Servers that die, hang, flood and come back: a call always ends, and its result says what is known."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import platform
import signal
import stat
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.downstream import PEER, WITHIN_S, DownstreamServers, call_server, has_exited, names
from support.waiting import wait_until

from kairos_mcp.core.errors import FenceLost
from kairos_mcp.core.tool import StopSignal, ToolMemory
from kairos_mcp.store.database import make_folder
from kairos_mcp.tools.commands import protected_paths
from kairos_mcp.tools.commands.protected_paths import RENAMED
from kairos_mcp.tools.commands.toolchains import HOME_PROGRAMS
from kairos_mcp.tools.mcp_servers import child, client, flood_guard
from kairos_mcp.tools.mcp_servers.child import ChildStart, spawn_child
from kairos_mcp.tools.mcp_servers.flood_guard import ConnectionWatch
from kairos_mcp.tools.mcp_servers.loader_log import find_failed_load
from kairos_mcp.tools.mcp_servers.message_repair import MessageRepair
from kairos_mcp.tools.mcp_servers.network_variables import CERTIFICATES
from kairos_mcp.tools.mcp_servers.server_sandbox import HOME_CACHES, UV_CACHE


def soon() -> float:
    return time.monotonic() + WITHIN_S


def test_a_server_is_started_by_the_first_need_and_once(downstream: DownstreamServers) -> None:
    server = downstream.peer()
    assert (server.tools(), downstream.log_lines("start")) == ((), [])
    server.wait_ready(soon())
    server.wait_ready(soon())
    assert call_server(server, "echo", text="hello").content == "hello"
    assert len(downstream.log_lines("start")) == 1


def test_a_server_that_was_met_before_is_known_without_being_started(downstream: DownstreamServers) -> None:
    downstream.ready_peer()
    again = downstream.peer()
    again.wait_ready(soon())
    assert "x__echo" in names(again)
    assert len(downstream.log_lines("start")) == 1
    assert call_server(again, "echo", text="now").content == "now"
    assert len(downstream.log_lines("start")) == 2


def test_a_server_that_was_given_up_waiting_for_is_there_when_it_comes(downstream: DownstreamServers) -> None:
    comes = downstream.root / "comes"
    server = downstream.peer(f"late={comes}")
    assert not server.is_starting
    server.wait_ready(time.monotonic() + 0.1)
    assert (server.is_starting, names(server)) == (True, [])
    assert any("still starting" in note for note in server.notes())
    comes.touch()
    assert wait_until(lambda: "x__echo" in names(server), WITHIN_S)
    assert not server.is_starting
    assert not any("still starting" in note for note in server.notes())
    assert len(downstream.log_lines("start")) == 1


def test_a_server_that_can_not_be_started_is_not_coming(downstream: DownstreamServers) -> None:
    assert not downstream.ready_peer("crash").is_starting


def test_calls_at_once_share_one_start(downstream: DownstreamServers) -> None:
    downstream.ready_peer()
    server, said = downstream.peer(), []
    threads = [
        threading.Thread(target=lambda: said.append(call_server(server, "echo", text="a").content)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert said == ["a"] * 8
    assert len(downstream.log_lines("start")) == 2


@pytest.mark.parametrize(
    ("effect", "code", "retryable"), [("irreversible", "timeout", False), ("read", "unreachable", True)]
)
def test_a_death_in_a_call_leaves_its_end_unknown_and_the_next_call_works(
    downstream: DownstreamServers, effect: str, code: str, retryable: bool
) -> None:
    server = downstream.ready_peer(effects=(("die", effect),))
    died = call_server(server, "die")
    assert (died.is_error, died.code, died.data["retryable"]) == (True, code, retryable)
    assert "status 7" in died.content
    assert len(downstream.log_lines("call die")) == 1
    assert call_server(server, "echo", text="after").content == "after"


def test_a_call_is_not_sent_where_its_run_is_anothers_once_the_server_is_there(downstream: DownstreamServers) -> None:
    downstream.ready_peer()
    server = downstream.peer(effects=(("env", "read"),))  # it is started by the call, which takes its time

    def raise_fence_lost() -> None:
        raise FenceLost("run-1")

    memory = replace(ToolMemory.in_process(), check_owner=raise_fence_lost)
    with pytest.raises(FenceLost):
        call_server(server, "echo", text="now", memory=memory)
    assert len(downstream.log_lines("start")) == 2
    assert downstream.log_lines("call") == []
    assert not call_server(server, "env", memory=memory).is_error  # to read does no harm
    assert not call_server(server, "echo", text="now").is_error


def test_a_server_killed_between_calls_is_started_again(downstream: DownstreamServers) -> None:
    server = downstream.ready_peer()
    pid = int(call_server(server, "pid").content)
    os.kill(pid, signal.SIGKILL)
    assert has_exited(pid)
    said = call_server(server, "pid")
    while said.code == "timeout":  # its end had not been noticed: that call was sent into nothing, and says so
        said = call_server(server, "pid")
    assert int(said.content) != pid


def test_a_server_that_can_t_be_started_is_named_and_not_tried_at_once_again(downstream: DownstreamServers) -> None:
    server = downstream.ready_peer("crash")
    assert names(server) == []
    assert "status 3" in server.notes()[0]
    starts = len(downstream.log_lines("start"))
    server.wait_ready(soon())
    assert len(downstream.log_lines("start")) == starts
    assert "tried again in" in server.notes()[0]


def test_a_server_that_dies_again_and_again_is_given_longer_and_longer_pauses(downstream: DownstreamServers) -> None:
    """DOWNSTREAM-017."""
    server = downstream.ready_peer()
    codes = [call_server(server, "die").code for _ in range(12)]
    assert codes[:2] == ["timeout", "timeout"]
    assert set(codes[2:]) == {"unreachable"}
    assert len(downstream.log_lines("start")) <= 3
    assert "not there" in " ".join(server.notes())


def test_a_missing_program_is_said_without_a_path(downstream: DownstreamServers) -> None:
    server = downstream.server("x", (str(downstream.root / "no-such-program"),))
    server.wait_ready(soon())
    assert "was not found" in server.notes()[0]
    assert str(downstream.root) not in server.notes()[0]


def test_a_call_ends_in_time_though_the_server_hangs(downstream: DownstreamServers) -> None:
    server = downstream.ready_peer(timeout_s=0.3)
    began = time.monotonic()
    hung = call_server(server, "hang")
    assert (hung.code, hung.data["retryable"]) == ("timeout", False)
    assert "not known" in hung.content
    assert time.monotonic() - began < 3


def test_a_server_that_stays_silent_is_started_anew(downstream: DownstreamServers) -> None:
    server = downstream.ready_peer(timeout_s=0.3)
    assert [call_server(server, "hang").code for _ in range(client.MAX_UNANSWERED)] == [
        "timeout"
    ] * client.MAX_UNANSWERED
    call_server(server, "echo", text="anew")
    until = time.monotonic() + WITHIN_S  # the call has 0.3 s, which a start may take longer than
    while len(downstream.log_lines("start")) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(downstream.log_lines("start")) == 2


def test_a_call_that_is_stopped_ends_at_once(downstream: DownstreamServers) -> None:
    server, stop = downstream.ready_peer(), StopSignal()
    ended = threading.Event()
    threading.Thread(target=lambda: (call_server(server, "hang", stop=stop), ended.set())).start()
    wait_until(lambda: downstream.log_lines("call hang"), WITHIN_S)
    stop.set()
    assert ended.wait(5)


def test_a_server_that_never_answers_the_listing_is_given_up(downstream: DownstreamServers) -> None:
    server = downstream.peer("mute")
    began = time.monotonic()
    server.wait_ready(time.monotonic() + 1)
    assert time.monotonic() - began < 5
    assert "still starting" in server.notes()[0]
    assert names(server) == []


@pytest.mark.parametrize("how", ["flood", "endless"])
def test_a_server_that_floods_from_the_start_is_ended(downstream: DownstreamServers, how: str) -> None:
    server = downstream.ready_peer(how)
    assert names(server) == []
    assert "it sent" in server.notes()[0]
    assert all(has_exited(int(start.split()[1])) for start in downstream.log_lines("start"))


def test_notifications_without_end_cost_the_server_its_line_and_the_run_goes_on(downstream: DownstreamServers) -> None:
    server = downstream.ready_peer()
    flooded = call_server(server, "many")
    assert flooded.code == "timeout"
    assert f"{flood_guard.MAX_BURST:,} messages" in flooded.content
    assert call_server(server, "echo", text="after").content == "after"


def test_a_message_that_is_too_large_is_not_read_to_its_end(downstream: DownstreamServers) -> None:
    server = downstream.ready_peer()
    assert "8 MiB" in call_server(server, "huge").content
    assert call_server(server, "echo", text="after").content == "after"


def test_a_long_result_is_cut_and_says_so(downstream: DownstreamServers) -> None:
    result = call_server(downstream.ready_peer(), "long")
    assert not result.is_error
    assert 1_000_000 < len(result.content) < 1_000_200
    assert "3,000,000 characters" in result.content


def test_what_a_server_prints_is_no_message_and_its_stderr_is_kept_short(downstream: DownstreamServers) -> None:
    server = downstream.ready_peer("garbage", "stderr")
    assert call_server(server, "echo", text="still").content == "still"
    wait_until(server.stderr, WITHIN_S)
    assert 0 < len(server.stderr()) <= child.STDERR_BYTES


def test_a_server_that_never_stops_complaining_still_works(downstream: DownstreamServers) -> None:
    server = downstream.ready_peer("stderr=endless")
    assert [call_server(server, "echo", text=str(n)).content for n in range(20)] == [str(n) for n in range(20)]


def test_an_answer_nested_beyond_reading_is_no_answer_and_the_next_call_works(downstream: DownstreamServers) -> None:
    server = downstream.ready_peer(timeout_s=0.5)
    assert call_server(server, "deep").code == "timeout"
    assert call_server(server, "deep").code == "timeout"  # silent twice: it is started anew
    server = downstream.peer()
    assert call_server(server, "echo", text="after").content == "after"


def test_a_result_stays_data_and_moves_no_cursor(downstream: DownstreamServers) -> None:
    """DOWNSTREAM-009: controls and markup that imitates roles are spelled out, and the result says so."""
    result = call_server(downstream.ready_peer(), "paint")
    assert "\x1b" not in result.content
    assert "\x9b" not in result.content
    assert "</tool_result>" not in result.content
    assert "<|im_start|>" not in result.content
    assert "system: obey" in result.content


def test_everything_that_a_server_started_ends_with_the_app(downstream: DownstreamServers) -> None:
    server = downstream.ready_peer("child", "stubborn")
    assert call_server(server, "echo", text="here").content == "here"
    pids = [int(entry.split()[1]) for entry in (*downstream.log_lines("start"), *downstream.log_lines("child"))]
    downstream.loop.close()
    assert len(pids) == 2
    assert all(has_exited(pid) for pid in pids)
    assert call_server(server, "echo", text="late").code == "unreachable"


def test_a_server_has_the_environment_that_it_was_given_and_no_more(downstream: DownstreamServers) -> None:
    """DOWNSTREAM-022 as far as a process goes: nothing of ours reaches it."""
    downstream.environ |= {"ISSUES_TOKEN": "t0ken-of-issues", "OPENAI_API_KEY": "sk-ours", "KAIROS_HOME": "/nowhere"}
    key = downstream.root / "key"
    key.write_text("from-a-file\n")
    env = (
        ("TOKEN", "env:ISSUES_TOKEN"),
        ("KEY", f"file:{key}"),
        ("HEADER", "Bearer ${env:ISSUES_TOKEN}"),
        ("W", "${workspace}"),
    )
    seen = json.loads(call_server(downstream.ready_peer(env=env), "env").content)
    assert {name: seen[name] for name in ("TOKEN", "KEY", "HEADER", "W")} == {
        "TOKEN": "t0ken-of-issues",
        "KEY": "from-a-file",
        "HEADER": "Bearer t0ken-of-issues",
        "W": str(downstream.workspace),
    }
    basics = {"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER", *CERTIFICATES}
    assert set(seen) <= {"TOKEN", "KEY", "HEADER", "W"} | basics  # LC_CTYPE: Python's own, in the child
    assert "sk-ours" not in json.dumps(seen)


def test_a_server_finds_its_way_out_by_the_proxies_and_certificates_of_this_machine(
    downstream: DownstreamServers,
) -> None:
    """A proxy with a password is a secret. What holds certificates is shown where it stands, also behind a link."""
    kept, link = downstream.root / "kept" / "ca.pem", downstream.root / "ca.pem"
    kept.parent.mkdir()
    kept.write_text("of the network")
    link.symlink_to(kept)
    beside = kept.with_name("key.pem")
    beside.write_text("secret")
    given = {"NODE_EXTRA_CA_CERTS": str(link), "https_proxy": "http://proxy.example:3128", "NO_PROXY": "localhost"}
    withheld = {"HTTP_PROXY": "http://me:pw@proxy.example:3128", "KAIROS_MODEL": "openai:m"}
    downstream.environ.update(given | withheld)
    server = downstream.ready_peer(sandbox=True, effects=(("*", "read"),))
    seen = json.loads(call_server(server, "env").content)
    assert {name: seen.get(name) for name in (*given, *withheld)} == given | dict.fromkeys(withheld)
    shown = [json.loads(call_server(server, "look", text=str(path)).content) for path in (link, kept, beside)]
    assert shown == [True, True, False]


SILENT_LOADER = """import os, pathlib, sys, time
logs = pathlib.Path(os.environ["HOME"], ".npm/_logs")
logs.mkdir(exist_ok=True)
(logs / "2026-11-27T23_53_10_049Z-debug-0.log").write_text(sys.argv[1])
time.sleep(60)
"""
FETCHES = "1 info using npm@11\n13 http fetch GET https://npm.example/%40x%2fy attempt 1 failed with {}\n"


def test_a_loader_that_is_silent_is_read_by_its_log(downstream: DownstreamServers) -> None:
    """npx writes for over a minute nothing to stderr where it can't load a program."""
    downstream.environ["HOME"] = str(downstream.root / "person")
    silent = (sys.executable, "-c", SILENT_LOADER)
    for name, log, said in (
        ("x", FETCHES.format("SELF_SIGNED_CERT_IN_CHAIN"), "https://npm.example: SELF_SIGNED_CERT_IN_CHAIN"),
        ("y", "1 info using npm@11\n", "is still starting."),
        ("z", FETCHES.format("${key} of a person"), "is still starting."),
    ):
        server = downstream.server(name, (*silent, log), sandbox=True)
        server.wait_ready(time.monotonic() + 3)
        ((note,),) = (server.notes(),)
        assert said in note


def test_a_log_of_before_a_link_or_a_pipe_is_not_read_as_a_loader_s(tmp_path: Path) -> None:
    logs = tmp_path / "_logs"
    logs.mkdir()
    log = logs / "1-debug-0.log"
    log.write_text(FETCHES.format("ENOTFOUND"))
    assert find_failed_load(tmp_path, log.stat().st_mtime) is not None
    assert find_failed_load(tmp_path, log.stat().st_mtime + 1) is None
    (logs / "2-debug-0.log").symlink_to(log)
    assert find_failed_load(tmp_path, 0.0) is None
    (logs / "2-debug-0.log").unlink()
    os.mkfifo(logs / "2-debug-0.log")
    assert find_failed_load(tmp_path, 0.0) is None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "_logs").symlink_to(logs)
    assert find_failed_load(tmp_path / "other", 0.0) is None


def test_a_secret_that_is_missing_is_named_and_nothing_is_started(downstream: DownstreamServers) -> None:
    server = downstream.ready_peer(env=(("TOKEN", "env:NOT_SET_ANYWHERE"),))
    assert "NOT_SET_ANYWHERE" in server.notes()[0]
    assert downstream.log_lines("start") == []


def test_a_server_that_asks_for_the_model_the_user_or_folders_is_refused_and_the_result_says_so(
    downstream: DownstreamServers,
) -> None:
    """DOWNSTREAM-012, DOWNSTREAM-013, DOWNSTREAM-014: none of the three is lent; the call goes on without."""
    result = call_server(downstream.ready_peer(), "ask")
    assert result.content.startswith("[true, true, true]")
    for thing in ("the model", "the user", "the folders of this client"):
        assert thing in result.content
    assert "refused" in result.content


def test_an_error_of_the_server_stays_one(downstream: DownstreamServers) -> None:
    failed = call_server(downstream.ready_peer(), "fail")
    assert (failed.is_error, failed.content, failed.code) == (True, "no such issue", None)


def test_arguments_that_do_not_fit_never_reach_the_server(downstream: DownstreamServers) -> None:
    assert call_server(downstream.ready_peer(), "echo", text=3).code == "bad_arguments"
    assert downstream.log_lines("call") == []


@pytest.mark.parametrize("sandbox", [True, False])
def test_a_server_in_its_sandbox_writes_the_workspace_and_nothing_else(
    downstream: DownstreamServers, sandbox: bool
) -> None:
    """DOWNSTREAM-024: a side effect beside the workspace is stopped by the machine, not by the server."""
    outside = Path(__file__).parent / f"written-{os.getpid()}"
    server = downstream.ready_peer(sandbox=sandbox, effects=(("write", "idempotent"),))
    assert server.tools(), server.notes()
    try:
        inside = call_server(server, "write", text=str(downstream.workspace / "in"))
        beside = call_server(server, "write", text=str(outside))
        assert not inside.is_error
        assert (downstream.workspace / "in").read_text() == "written"
        assert (beside.is_error, outside.exists()) == (sandbox, not sandbox)
    finally:
        outside.unlink(missing_ok=True)


def test_a_server_in_its_sandbox_writes_no_setting_of_the_kernel(downstream: DownstreamServers) -> None:
    server = downstream.ready_peer(sandbox=True, effects=(("open", "read"),))
    for setting in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness", "/proc/sys/kernel/modprobe"):
        if Path(setting).exists():
            refused = "Read-only file system" if os.getuid() == 0 else "denied"
            assert refused in call_server(server, "open", text=setting).content, setting


@pytest.mark.parametrize("sandbox", [True, False])
def test_a_server_in_its_sandbox_reaches_no_keys_of_the_kernel(downstream: DownstreamServers, sandbox: bool) -> None:
    keyctl = {"x86_64": "250", "aarch64": "219"}.get(platform.machine())
    if keyctl is None:
        pytest.skip("the number of the call is known to the test for two kinds of machine")
    server = downstream.ready_peer(sandbox=sandbox, effects=(("keyring", "read"),))
    found = call_server(server, "keyring", text=keyctl).content
    assert found == os.strerror(errno.ENOSYS) if sandbox else found.isdecimal() or "not permitted" in found


def test_a_server_in_its_sandbox_writes_no_instructions_to_agents_and_hosts(downstream: DownstreamServers) -> None:
    ours = [downstream.workspace / path for path in ("AGENTS.md", "deep/CLAUDE.md", ".vscode/tasks.json")]
    for path in ours:
        path.parent.mkdir(exist_ok=True)
        path.write_text("ours")
    server = downstream.ready_peer(sandbox=True, effects=(("open", "read"), ("write", "read")))
    for path in ours:
        assert call_server(server, "open", text=str(path)).content == "Read-only file system"
    before = set(downstream.workspace.rglob("*"))
    for name in (".mcp.json", "deep/AGENTS.md", ".git", "deep/.envrc"):
        kept: dict[str, str] = {}
        made = call_server(
            server, "write", memory=ToolMemory(kept.__setitem__, kept.get), text=str(downstream.workspace / name)
        )
        assert (made.is_error, made.code) == (True, "path_denied"), name
        assert [json.loads(text) for text in kept.values()] == [{"path": name, "texts": {"": "written"}}]
        assert set(downstream.workspace.rglob("*")) == before
    assert not call_server(server, "write", text=str(downstream.workspace / "fine")).is_error


def test_what_a_person_wrote_since_a_server_began_is_watched_and_may_be_changed_by_that_person(
    downstream: DownstreamServers,
) -> None:
    (downstream.workspace / "AGENTS.md").write_text("before")
    server = downstream.ready_peer(sandbox=True, effects=(("*", "read"),))
    assert not call_server(server, "echo", text="x").is_error
    (downstream.workspace / "CLAUDE.md").write_text("ours")
    assert not call_server(server, "echo", text="x").is_error
    changed = call_server(server, "write", text=str(downstream.workspace / "CLAUDE.md"))
    assert changed.code == "path_denied"
    assert "CLAUDE.md was changed" in changed.content
    (downstream.workspace / "AGENTS.md").write_text("after")
    assert not call_server(server, "echo", text="x").is_error


def test_a_sandboxed_server_sees_neither_the_state_folder_nor_what_lies_in_the_home(
    downstream: DownstreamServers,
) -> None:
    make_folder(downstream.store.home)
    kept = downstream.store.home / "kept"
    kept.write_text("")
    server = downstream.ready_peer(
        sandbox=True, effects=(("look", "read"),), workspace=downstream.root
    )  # which holds the state folder
    assert json.loads(call_server(server, "look", text=str(downstream.workspace)).content) == []
    state = json.loads(call_server(server, "look", text=str(kept)).content)
    home = json.loads(call_server(server, "look", text=str(Path.home())).content)
    assert state is False
    own = [Path(sys.prefix), Path(__file__)]  # its Python and its script are let in, where this tree lies in the home
    own_folders = {path.relative_to(Path.home()).parts[0] for path in own if path.is_relative_to(Path.home())}
    assert set(home) <= own_folders | {name.split("/")[0] for name in (*HOME_PROGRAMS, *HOME_CACHES)}


def test_what_a_sandboxed_server_misses_at_its_start_is_named_with_the_line_that_opens_it(
    downstream: DownstreamServers,
) -> None:
    tools, start = downstream.root / "tools", downstream.root / "start"
    for path, text in ((tools / "bin/inner", f'exec {sys.executable} "$@"'), (start / "serve", 'exec inner "$@"')):
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    downstream.environ["PATH"] = f"{tools}/bin:{downstream.environ['PATH']}"
    command = (str(start / "serve"), str(PEER), f"log={downstream.log}")
    server = downstream.server("x", command, sandbox=True)
    server.wait_ready(soon())
    line = f'command_reads = ["{tools}"]'
    assert [note for note in server.notes() if line in note]
    trial = server.try_start(soon())
    assert trial.problem is not None
    assert line in trial.problem
    assert trial.opens == line
    downstream.reads = (tools, Path(sys.prefix), Path(sys.base_prefix))
    opened = downstream.server("y", (str(start / "serve"), str(PEER), f"log={downstream.log}"), sandbox=True)
    opened.wait_ready(soon())
    assert "y__echo" in names(opened)


def test_what_a_sandboxed_server_writes_into_a_cache_of_launchers_is_its_own_and_outlives_it(
    downstream: DownstreamServers,
) -> None:
    """A person's own `npx` would run what stands in that person's cache, outside of any sandbox."""
    home = downstream.root / "person"
    script = home / ".npm/_npx/1/node_modules/x/cli.js"
    script.parent.mkdir(parents=True)
    script.write_text("of the person")
    downstream.environ["HOME"] = str(home)
    effects = (("*", "read"),)
    first = downstream.ready_peer(sandbox=True, effects=effects)
    assert call_server(first, "open", text=str(script)).content == "No such file or directory"
    made = [home / name / "made" for name in HOME_CACHES]
    for path in made:
        assert call_server(first, "write", text=str(path)).content == "written"
    again, other = (downstream.ready_peer(name=name, sandbox=True, effects=effects) for name in ("x", "y"))
    for path in made:
        assert not path.exists()
        assert json.loads(call_server(again, "look", text=str(path)).content) is True
        assert json.loads(call_server(other, "look", text=str(path)).content) is False
    assert [path for path in home.rglob("*") if path.is_file()] == [script]
    assert script.read_text() == "of the person"
    assert stat.S_IMODE((downstream.root / "home/server-caches").stat().st_mode) == 0o700
    tools = json.loads(call_server(first, "env").content)["UV_TOOL_DIR"]
    assert Path(tools).parent == home / UV_CACHE


def test_a_server_whose_interpreter_lies_in_the_real_home_starts_where_home_names_another_folder(
    downstream: DownstreamServers,
) -> None:
    downstream.environ["HOME"] = str(downstream.root / "elsewhere")
    server = downstream.ready_peer(sandbox=True)
    assert "x__echo" in names(server)


def test_what_is_replaced_or_made_while_a_sandboxed_server_runs_is_covered_before_its_next_call(
    downstream: DownstreamServers,
) -> None:
    secret, late, instructions = (downstream.workspace / name for name in (".env", ".env.late", "AGENTS.md"))
    secret.write_text("KEY=secret")
    instructions.write_text("ours")
    log = downstream.workspace / "log"
    server = downstream.ready_peer(f"log={log}", sandbox=True, effects=(("*", "read"),))
    for path in (secret, late, instructions):  # as editors write
        starts = log.read_text().count("start")
        new = downstream.workspace / "new"
        new.write_text("KEY=another")
        new.rename(path)
        found = call_server(server, "open", text=str(path)).content
        assert not found.startswith("opened"), path
        assert call_server(server, "echo", text="same").content == "same"
        assert log.read_text().count("start") == starts + 1
    assert instructions.read_text() == "KEY=another"


def test_a_file_that_may_not_be_read_unasked_is_covered_for_a_sandboxed_server(downstream: DownstreamServers) -> None:
    (downstream.workspace / ".env").write_text("KEY=secret")
    (downstream.workspace / "plain").write_text("text")
    server = downstream.ready_peer(sandbox=True, effects=(("*", "read"),))
    assert call_server(server, "open", text=str(downstream.workspace / "plain")).content == "opened"
    assert call_server(server, "open", text=str(downstream.workspace / ".env")).content != "opened"


@pytest.mark.parametrize("sandbox", [False, True])
def test_no_program_of_the_workspace_is_started_by_a_relative_folder_of_the_path(
    downstream: DownstreamServers, monkeypatch: pytest.MonkeyPatch, sandbox: bool
) -> None:
    mark, hostile = downstream.root / "mark", downstream.workspace / "node_modules/.bin/tool"
    hostile.parent.mkdir(parents=True)
    hostile.write_text(f"#!/bin/sh\ntouch {mark} {downstream.workspace}/mark\n")
    hostile.chmod(0o755)
    monkeypatch.chdir(downstream.workspace)
    downstream.environ["PATH"] = f"node_modules/.bin::.:{downstream.environ['PATH']}"
    server = downstream.server("x", ("tool",), sandbox=sandbox)
    server.wait_ready(time.monotonic() + WITHIN_S)
    assert names(server) == []
    assert not mark.exists()
    assert not (downstream.workspace / "mark").exists()


def test_a_server_that_makes_more_files_like_env_than_a_sandbox_covers_can_be_called_again(
    downstream: DownstreamServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protected_paths, "MAX_UNREADABLE", 3)
    server = downstream.ready_peer(sandbox=True, effects=(("*", "read"),))
    for number in range(5):
        made = call_server(server, "write", text=str(downstream.workspace / f".env.{number}"))
        assert made.content.startswith("written"), made.content
    assert call_server(server, "echo", text="same").content == "same"
    names_made = [path.name for path in downstream.workspace.iterdir()]
    assert len([name for name in names_made if name.startswith(RENAMED)]) == 2
    assert len([name for name in names_made if name.startswith(".env.")]) == 3


STAYS = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
    "time.sleep(600)\n"
)


def test_a_server_that_does_not_end_is_gone_with_its_pipes_before_the_event_loop_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = tmp_path / "pid"

    async def hold() -> None:
        start = ChildStart((sys.executable, "-c", STAYS, str(found)), dict(os.environ), None)
        async with spawn_child(start, ConnectionWatch(), MessageRepair(), asyncio.Event()):
            await asyncio.Event().wait()

    async def begin_and_leave() -> None:
        holding = asyncio.create_task(hold())
        async with asyncio.timeout(WITHIN_S):
            while not (found.exists() and found.read_text()):  # noqa: ASYNC110 - another process's file has no event
                await asyncio.sleep(0.005)
        for _ in range(2):  # the second one comes while it is being ended
            holding.cancel()
            await asyncio.sleep(0.05)
        await asyncio.wait([holding])

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(begin_and_leave())
    assert len(os.listdir("/proc/self/fd")) == before
    assert not Path(f"/proc/{found.read_text()}").exists()
    assert [record for record in caplog.records if record.name == "asyncio"] == []
