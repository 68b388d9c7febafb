"""The real process: what is on its stdout, how long it lives, how much it holds."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from support.app import Place
from support.forked_program import start
from support.line_client import SECONDS, SERVE, Peer
from support.script_lines import says
from support.waiting import wait_until

from kairos_mcp.server.stdio import PARENT_GONE
from kairos_mcp.server.tools import TOOLS

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and waits on a pidfd")
MEBIBYTE = 2**20
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "p", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}

NOISY = """
import ctypes, os, subprocess, sys, threading
def noise():
    wire = os.fstat(1)
    while os.path.sameopenfile(1, 2) is False and os.fstat(1).st_ino != os.fstat(2).st_ino:
        pass
    libc = ctypes.CDLL(None)
    while True:
        print("print"); sys.stdout.flush()
        os.write(1, b"write\\n")
        libc.puts(b"puts"); libc.fflush(None)
        subprocess.run(["sh", "-c", "echo child; cat"], check=True)
        said.set()
        threading.Event().wait(0.05)
said = threading.Event()
threading.Thread(target=noise, daemon=True).start()
"""


@pytest.fixture
def start_peer(tmp_path: Path) -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def start(*args: str, **environ: str) -> Peer:
        peers.append(Peer.start(tmp_path / "home", *args, **environ))
        return peers[-1]

    yield start
    for peer in peers:
        peer.stop()


def test_a_session_over_real_pipes(start_peer):
    peer = start_peer()
    peer.greet()
    run = peer.call("planner_run", goal="say hello")["structuredContent"]
    key = run["waiting"][0]["key"]
    ended = peer.call("run_continue", run_id=run["run_id"], answers={key: {"content": "a\u2028b\x85c\rd\0e"}})
    assert ended["structuredContent"]["summary"] == "a\u2028b\x85c\rd\0e"
    assert all(len(line.decode().splitlines()) == 1 for line in peer.lines)


def test_a_modern_client_needs_no_handshake(start_peer):
    peer = start_peer()
    assert len(peer.result("tools/list", {"_meta": MODERN})["tools"]) == len(TOOLS)
    called = peer.result("tools/call", {"name": "run_status", "arguments": {}, "_meta": MODERN})
    assert called["structuredContent"]["runs"] == []


@pytest.mark.parametrize(("client", "answered"), [("copilot-cli", "initialize"), ("claude-code", "probe")])
def test_a_handshake_behind_a_probe_that_nobody_answered_in_time(tmp_path, client, answered):
    """Both were there before the server could read: a slow start. Claude Code probes again, others never do."""
    said = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": client, "version": "1"}}
    probe = {"jsonrpc": "2.0", "id": "probe", "method": "server/discover", "params": {"_meta": MODERN}}
    handshake = {"jsonrpc": "2.0", "id": "initialize", "method": "initialize", "params": said}
    lines = "".join(json.dumps(line) + "\n" for line in (probe, handshake))
    server = start(["serve", "--home", str(tmp_path / "home")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    server.stdin.write(lines.encode())
    server.stdin.flush()
    answer = json.loads(server.stdout.readline())
    server.stdin.close()
    server.wait(20)
    server.stdout.close()
    assert (answer["id"], "result" in answer) == (answered, True)


def test_an_unknown_version_is_refused(start_peer):  # ARGS-022
    peer = start_peer()
    meta = {
        "io.modelcontextprotocol/protocolVersion": "1900-01-01",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    assert peer.answer(peer.ask("tools/list", {"_meta": meta}))["error"]["code"] == -32022
    meta["io.modelcontextprotocol/protocolVersion"] = "2026-07-28"
    assert "tools" in peer.result("tools/list", {"_meta": meta})


RAW = {
    "ARGS-007 NaN": (b'{"goal": "x", "wait_s": NaN}', "wait_s"),
    "ARGS-007 1e999": (b'{"goal": "x", "limits": {"usd": 1e999}}', "limits.usd"),
    "ARGS-008 twice": (b'{"goal": "x", "wait_s": 0, "wait_s": 900}', "wait_s"),
    "ARGS-012 ten megabytes": (b'{"goal": "' + b"z" * 10_000_000 + b'"}', "goal"),
}


@pytest.mark.parametrize(("given", "place"), RAW.values(), ids=RAW)
def test_raw_arguments_are_refused_by_name(start_peer, given, place):
    peer = start_peer()
    peer.greet()
    peer.write(
        b'{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{"name":"planner_run","arguments":' + given + b"}}\n"
    )
    error = peer.answer(77)["result"]["structuredContent"]
    assert (error["code"], place in error["message"]) == ("bad_arguments", True)
    peer.still_answers()


UNPARSABLE = {
    "ARGS-009 a list": b"[1]",
    "half a surrogate pair": b'{"goal": "\\ud800"}',
    "nested 5,000 deep": b'{"goal": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "a number of 5,000 digits": b'{"wait_s": ' + b"9" * 5_000 + b"}",
}


@pytest.mark.parametrize("given", UNPARSABLE.values(), ids=UNPARSABLE)
def test_a_request_that_is_none_is_answered_all_the_same(start_peer, given):
    peer = start_peer()
    peer.greet()
    peer.write(
        b'{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{"name":"planner_run","arguments":' + given + b"}}\n"
    )
    assert peer.answer(77)["error"]["code"] in {-32700, -32600, -32602}
    peer.still_answers()


UNKNOWN = {
    "a method that nobody has": ("foo/bar", {}),
    "one of the protocol that clients have": ("roots/list", {}),
    "a tool that is not there": ("tools/call", {"name": "planner_runs", "arguments": {}}),
    "a resource that is not there": ("resources/read", {"uri": "kairos://schema/plan"}),
    "no name of a tool": ("tools/call", {"arguments": {}}),
}


@pytest.mark.parametrize(("method", "params"), UNKNOWN.values(), ids=UNKNOWN)
def test_a_request_for_what_is_not_there_is_answered_with_an_error(start_peer, method, params):
    peer = start_peer()
    peer.greet()
    assert peer.answer(peer.ask(method, params))["error"]["code"] in {-32601, -32602}
    peer.still_answers()


KEY = "kq-4711-zX9+pLm=c0ffee"
REPEATED = {
    "a method": (KEY, {}),
    "a resource": ("resources/read", {"uri": f"kairos://{KEY}"}),
    "a resource, cut": ("resources/read", {"uri": f"kairos://{'x' * 101}{KEY}{'x' * 300}"}),
    "a subscription": ("resources/subscribe", {"uri": f"kairos://{KEY}"}),
    "a prompt": ("prompts/get", {"name": KEY}),
    "a prompt, cut": ("prompts/get", {"name": "x" * 50 + KEY}),
    "an argument of a prompt": ("prompts/get", {"name": "observe", "arguments": {KEY: KEY}}),
    "a completion": (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": KEY}, "argument": {"name": "x", "value": KEY}},
    ),
    "a tool": ("tools/call", {"name": KEY, "arguments": {}}),
    "a cursor": ("resources/list", {"cursor": KEY}),
    "a level": ("logging/setLevel", {"level": KEY}),
}
INITIALIZE = {"protocolVersion": KEY, "capabilities": {}, "clientInfo": {"name": "p", "version": "1"}}
HANDSHAKES = {"2025-11-25": {}, "2026-07-28": {"a handshake": ("initialize", INITIALIZE)}}


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
def test_an_error_repeats_no_secret_that_the_request_held(start_peer, era):
    peer = start_peer(PLACED_TOKEN=KEY)
    meta = {}
    if era == "2025-11-25":
        peer.greet()
    else:
        client = {"clientInfo": {"name": "p", "version": "1"}, "clientCapabilities": {}, "protocolVersion": era}
        meta = {"_meta": {f"io.modelcontextprotocol/{name}": value for name, value in client.items()}}
        assert "result" in peer.answer(peer.ask("tools/list", meta))  # a handshake can't begin any more
    for what, (method, params) in (REPEATED | HANDSHAKES[era]).items():
        answered = peer.answer(peer.ask(method, params | meta))
        assert answered["error"]["code"] < 0, (what, answered)
        assert KEY[:6] not in json.dumps(answered["error"]), what


@linux
def test_a_line_of_100_megabytes_is_refused_in_bounded_memory(start_peer):  # STDIO-003
    peer = start_peer()
    peer.greet()
    before = peer.peak_bytes()
    peer.write(b'{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{"a":"')
    for _ in range(100):
        peer.write(b"z" * MEBIBYTE)
    peer.write(b'"}}\n')
    assert peer.answer(77)["error"]["code"] == -32600
    assert peer.peak_bytes() - before < 64 * MEBIBYTE
    peer.still_answers()


def test_nothing_but_messages_is_on_stdout(start_peer):  # STDIO-004, STDIO-005
    peer = start_peer(NOISY + SERVE)
    Thread(target=peer.server.stderr.read, daemon=True).start()
    peer.greet()
    for _ in range(30):
        peer.still_answers()
    peer.server.stdin.close()
    peer.ends(SECONDS)
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in peer.server.stdout.read().splitlines())


def test_it_ends_with_its_stdin(start_peer):
    peer = start_peer()
    peer.greet()
    peer.server.stdin.close()
    assert peer.ends(2) == 0


def test_it_ends_with_its_stdin_while_a_run_is_under_way(start_peer, tmp_path):
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps(says("late", delay_s=60)) + "\n")
    peer = start_peer(KAIROS_SCRIPT=str(script))
    peer.greet()
    peer.ask("tools/call", {"name": "planner_run", "arguments": {"goal": "go"}})
    peer.still_answers()
    peer.server.stdin.close()
    assert peer.ends(2) == 0


def test_a_signal_ends_it_in_order(start_peer):
    peer = start_peer()
    peer.greet()
    peer.server.send_signal(signal.SIGTERM)
    assert peer.ends(2) == 0


def test_a_signal_ends_it_though_nobody_reads(start_peer):
    peer = start_peer()
    peer.greet()
    for _ in range(60):
        peer.ask("tools/list")
    peer.server.send_signal(signal.SIGTERM)
    assert peer.ends(3) == 0


def test_it_serves_with_its_stderr_closed(start_peer):
    peer = start_peer("import os\nos.close(2)\n" + SERVE)
    peer.greet()
    assert peer.call("run_status")["structuredContent"]["runs"] == []


def test_a_hangup_ends_it_though_its_stdin_stays_open(start_peer):
    """As when the terminal is closed, or its session ends."""
    peer = start_peer()
    peer.greet()
    peer.server.send_signal(signal.SIGHUP)
    assert peer.ends(3) == 0


@linux
def test_a_message_that_the_parent_is_gone_does_not_end_it_while_the_parent_lives(start_peer):
    """The kernel sends it when the thread ends that has started us."""
    peer = start_peer()
    peer.greet()
    peer.server.send_signal(PARENT_GONE)
    peer.still_answers()
    assert peer.server.poll() is None


PARENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
sys.stdin.close()
import signal; signal.pause()
"""


@linux
def test_it_ends_with_its_parent_though_its_stdin_stays_open(tmp_path):
    home = str(tmp_path / "home")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, SERVE, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    peer = Peer(parent)
    try:
        peer.greet()
        (child,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        alive = os.pidfd_open(int(child))
        parent.kill()
        ended, _, _ = select.select([alive], [], [], SECONDS)
        assert ended
    finally:
        parent.kill()
        parent.wait(SECONDS)
        parent.stdin.close()
        parent.stdout.close()


@linux
def test_a_client_that_does_not_read_holds_up_nobody_but_itself(start_peer):  # STDIO-007
    peer = start_peer()
    peer.greet()
    before = peer.peak_bytes()
    asked, padded = 300, {"_meta": {"padding": 1_000 * "x"}}  # more than the pipe holds
    writer = Thread(target=lambda: [peer.ask("tools/list", padded) for _ in range(asked)], daemon=True)
    first = peer.numbers + 1
    writer.start()
    writer.join(1)
    assert writer.is_alive()  # the server has stopped reading
    assert peer.peak_bytes() - before < 64 * MEBIBYTE
    answered = {peer.read()["id"] for _ in range(asked)}
    assert answered == set(range(first, first + asked))
    peer.still_answers()


def test_a_call_is_cancelled_while_nobody_reads(start_peer, tmp_path):  # STDIO-007
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps(says("late", delay_s=60)) + "\n")
    peer = start_peer(KAIROS_SCRIPT=str(script))
    peer.greet()
    call = peer.ask("tools/call", {"name": "planner_run", "arguments": {"goal": "go", "wait_s": 600}})
    place = Place(tmp_path)
    wait_until(lambda: place.has_tables() and place.rows("select 1 from run"), SECONDS)
    asked = [peer.ask("tools/list") for _ in range(60)]
    peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}})
    assert [peer.read()["id"] for _ in asked] == asked
    (run,) = peer.call("run_status")["structuredContent"]["runs"]
    assert run["status"] == "working"
    assert call not in {json.loads(line).get("id") for line in peer.lines}
