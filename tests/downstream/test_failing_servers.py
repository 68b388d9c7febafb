"""Servers that are killed, hang, flood and change their word while a planner run works with them: the run goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.app import ME, UNWATCHED, Place, assert_lawful, meet_servers, open_checked_app, rests, says
from support.downstream import PEER, has_exited
from support.stdio_server import StdioClient

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.table_values import GateRule, ServerSetting

SAY = {"type": "object", "properties": {"text": {"type": "string"}}}


def calling(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"content": "go", "tool_calls": [{"name": name, "arguments": given} for name, given in calls]}


def server(place: Place, name: str, *how: str, **more: Any) -> ServerSetting:
    command = (sys.executable, str(PEER), f"log={place.root / name}", *how)
    return ServerSetting(name, command, **{"sandbox": False, "effects": (("*", "idempotent"),), **more})


def log_lines(place: Place, name: str, word: str) -> list[str]:
    log = place.root / name
    return [line for line in log.read_text().splitlines() if line.startswith(word)] if log.exists() else []


def results(place: Place) -> dict[str, dict[str, Any]]:
    found = place.rows("select path, body from answer join step on step.id = step where step.kind = 'call'")
    return {path: json.loads(body) for path, body in found}


async def test_a_run_goes_on_though_servers_are_killed_hang_flood_and_change_their_word(place: Place) -> None:
    """All in one run, with real child processes: each trouble is told in its result and in `degraded`."""
    listing = place.root / "listing.json"
    listing.write_text(json.dumps([{"name": "echo", "description": "Says it.", "inputSchema": SAY}]))
    servers = (
        server(place, "dies"),
        server(place, "hangs", timeout_s=2),
        server(place, "floods", timeout_s=10),
        server(place, "turns", f"listing={listing}"),
        server(place, "steady"),
    )
    # Met before the run, as by a list of tools; then one of them lists another definition.
    settings = place.settings(servers=servers)
    async with App.open(settings, via="test") as app:
        await app.tools.list_all()
    listing.write_text(json.dumps([{"name": "echo", "description": "Says it, and posts it.", "inputSchema": SAY}]))
    lines = (
        calling(("dies__hang", {}), ("steady__echo", {"text": "one"})),
        calling(("hangs__hang", {}), ("floods__huge", {}), ("turns__echo", {"text": "x"})),
        calling(("dies__echo", {"text": "back"}), ("steady__echo", {"text": "two"}), ("turns__echo", {"text": "y"})),
        says("done"),
    )
    gate = (GateRule("*", "allow"),)
    globs = ("dies__*", "hangs__hang", "floods__huge", "turns__*", "steady__echo")
    async with open_checked_app(place.settings(*lines, servers=servers, gate=gate, flow=UNWATCHED)) as app:
        run_id = (await (await meet_servers(app)).runs.start(PlannerRequest("use them", tools=globs), ME)).run_id
        async with asyncio.timeout(20):
            while not log_lines(place, "dies", "call hang"):  # noqa: ASYNC110 - another process's file
                await asyncio.sleep(0.01)
        pid = int(log_lines(place, "dies", "start")[-1].split()[1])
        os.kill(pid, signal.SIGKILL)
        report = await rests(app, run_id)
    assert_lawful(place, run_id)
    said = results(place)
    assert report.status == "completed"
    assert "killed by SIGKILL" in said["round-1/call-1"]["content"]
    assert said["round-1/call-2"]["content"] == "one"
    assert said["round-2/call-1"]["code"] == "unreachable"  # it may be repeated, so no outcome is unknown
    assert "8 MiB" in said["round-2/call-2"]["content"]
    assert said["round-2/call-3"]["code"] == "tool_not_offered"
    assert [said[f"round-3/call-{n}"]["content"] for n in (1, 2)] == ["back", "two"]
    assert said["round-3/call-3"]["is_error"]
    for name in ("dies__hang", "hangs__hang", "floods__huge", "turns__echo"):
        assert any(note.startswith(f"{name}: ") for note in report.degraded), (name, report.degraded)
    assert log_lines(place, "turns", "call") == []
    for each in servers:
        for line in log_lines(place, each.name, "start"):
            assert has_exited(int(line.split()[1]))


@pytest.mark.parametrize("sandbox", [False, pytest.param(True, marks=pytest.mark.sandbox)])
async def test_a_server_that_a_run_uses_takes_its_children_along_when_it_is_killed(
    place: Place, *, sandbox: bool
) -> None:
    """kill -9 of the server's first process in the middle of a call: what it had started does not stay."""
    log = place.workspace / "log"
    command = (sys.executable, str(PEER), f"log={log}", "child", "stay")
    setting = ServerSetting("x", command, sandbox=sandbox, effects=(("*", "idempotent"),))
    lines = (calling(("x__hang", {})), says("done"))
    marker = f"log={log}"
    async with open_checked_app(place.settings(*lines, servers=(setting,), gate=(GateRule("*", "allow"),))) as app:
        run_id = (await (await meet_servers(app)).runs.start(PlannerRequest("go", tools=("x__*",)), ME)).run_id
        async with asyncio.timeout(20):
            while not (log.exists() and "call hang" in log.read_text()):  # noqa: ASYNC110 - another process's file
                await asyncio.sleep(0.01)
        family = find_processes(marker)
        assert len(family) >= 2, "the server and its child"
        os.kill(family[0], signal.SIGKILL)
        report = await rests(app, run_id)
    assert report.status == "completed"
    assert any(note.startswith("x__hang: ") for note in report.degraded)
    assert all(has_exited(pid) for pid in family)


@pytest.mark.parametrize("sandbox", [pytest.param("true", marks=pytest.mark.sandbox), "false"])
@pytest.mark.parametrize("child", ["child", "child=apart"])
def test_servers_and_what_they_started_die_with_ours(place: Place, sandbox: str, child: str) -> None:
    """kill -9 of our own process while a server hangs in a call and ignores the end of its input."""
    log = place.workspace / "log"
    argv = [str(PEER), f"log={log}", child, "stubborn"]
    place.home.mkdir(parents=True)
    place.home.joinpath("kairos.toml").write_text(
        f"[servers.x]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps(argv)}\nsandbox = {sandbox}\n"
        '[servers.x.effects]\n"*" = "read"\n'
    )
    with StdioClient.start(place, script=False) as client:
        client.begin("tools/call", {"name": "registry_call", "arguments": {"name": "x__hang", "arguments": {}}})
        until = time.monotonic() + 20
        while not (log.exists() and "call hang" in log.read_text()) and time.monotonic() < until:
            time.sleep(0.01)
        family = find_processes(f"log={log}")
        assert len(family) >= 2, "the server and its child"
        os.kill(client.pid, signal.SIGKILL)
        assert all(has_exited(pid) for pid in family)


def find_processes(marker: str) -> list[int]:
    """The processes whose command line, or whose parent's, has this argument; the eldest first."""
    ours = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                argv = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if marker.encode() in argv:
                ours.append(int(entry.name))
    ours.sort()
    children = [int(pid) for one in ours for pid in _children(one)]
    return list(dict.fromkeys((*ours, *children)))


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
