"""Two real servers on one workspace without a repository: none that their programs make outlives its call."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from support import postgres
from test_bubblewrap import touch_by_command, without_the_package

from kairos_mcp.core.tool import ToolContext
from kairos_mcp.tools.commands import workspace_lock
from kairos_mcp.tools.commands.bubblewrap import find_bubblewrap
from kairos_mcp.tools.commands.run_command import CommandSettings, command_tools
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.tool import call_tool

pytestmark = pytest.mark.sandbox
WITHIN_S = 600
ALLOW = '[[gate]]\ntools = "run_command"\neffect = "irreversible"\nverdict = "allow"\n'
# Some end at once and some linger, so that one server's program begins and ends within the other's.
ATTACK = "mkdir -p .git/hooks; echo x > .git/config; for each in $(seq $0); do :; done"
HOLD = (
    "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); print(flush=True); input()"
)


async def results_of_two(root: Path, rounds: int) -> Counter[str]:
    """What programs of both servers, which try to make a `.git` all the time, got told; how often."""
    workspace = root / "workspace"
    workspace.mkdir()
    found: Counter[str] = Counter()

    async def keep_trying(server: int) -> None:
        home = root / f"home-{server}"
        home.mkdir()
        (home / "kairos.toml").write_text(ALLOW)
        words = ["-m", "kairos_mcp", "serve", "--home", str(home), "--workspace", str(workspace)]
        environ = {"PATH": os.environ["PATH"], **postgres.environ_of(home)}
        async with Client(
            stdio_client(StdioServerParameters(command=sys.executable, args=words, env=environ))
        ) as client:
            for n in range(rounds):
                argv = ["sh", "-c", ATTACK, str((n * 7_919 + server * 104_729) % 60_000)]
                arguments = {"name": "run_command", "arguments": {"argv": argv}}
                result: Any = (await client.call_tool("registry_call", arguments)).structured_content
                found[how(result["output"]["content"])] += 1

    with anyio.fail_after(WITHIN_S):
        async with anyio.create_task_group() as tasks:
            for server in range(2):
                tasks.start_soon(keep_trying, server)
    assert list(workspace.iterdir()) == []
    return found


def how(content: str) -> str:
    return "begun" if "exit code" in content else content


async def test_no_repository_of_two_servers_programs_stays_and_each_begins(tmp_path: Path) -> None:
    assert await results_of_two(tmp_path, 8) == {"begun": 16}


@pytest.mark.slow
async def test_no_repository_of_two_servers_programs_stays_in_200_rounds(tmp_path: Path) -> None:
    assert await results_of_two(tmp_path, 200) == {"begun": 400}


def run_command(workspace: Path, *argv: str, **environ: str) -> Any:
    with Workspace(workspace) as open_workspace:
        (tool,) = command_tools(open_workspace, CommandSettings(environ={**os.environ, **environ}))
        return call_tool(tool, {"argv": list(argv)}, ToolContext("run-1", time.monotonic() + 60, lambda _: None))


def test_nothing_is_cleaned_up_while_a_program_runs(tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").mkdir()
    (tmp_path / ".mcp.json").chmod(0o1755)
    root = os.open(tmp_path, os.O_RDONLY)
    try:
        with workspace_lock.share_workspace(root):
            assert workspace_lock.remove_leftovers(root, [".mcp.json"]) == []
        assert workspace_lock.remove_leftovers(root, [".mcp.json"]) == [".mcp.json"]
    finally:
        os.close(root)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_somebody_else_has_locked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_lock, "_LOCK_TIMEOUT_S", 0.3)
    argv = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        refused = run_command(tmp_path, "true")
        holder.communicate(b"\n", timeout=WITHIN_S)
    assert refused.code == "command_denied"
    assert "lock" in refused.content
    assert list(tmp_path.iterdir()) == []


FAILING = """#!/bin/sh
for last; do :; done
[ "$1" = --help ] || [ "$last" = /bin/true ] && exec {bwrap} "$@"
echo tried >> {log}
for times in {fail}; do
    [ -e {log}-$times ] && continue
    : > {log}-$times
    echo "bwrap: Can't find source path /gone: No such file or directory" >&2
    exit 1
done
exec {bwrap} "$@"
"""


@pytest.mark.parametrize(("fail", "begun"), [("1", True), ("1 2", False)])
def test_a_sandbox_that_could_not_be_made_is_tried_once_more_and_named_as_that(
    tmp_path: Path, fail: str, begun: bool
) -> None:
    log, workspace = tmp_path / "log", tmp_path / "W"
    workspace.mkdir()
    environ = without_the_package(tmp_path, FAILING.format(bwrap=find_bubblewrap().path, log=log, fail=fail))
    found = touch_by_command(workspace, **environ)
    assert log.exists(), found
    assert log.read_text().splitlines() == ["tried"] * 2
    assert (workspace / "x").exists() == begun == (not found["is_error"])
    assert not (workspace / ".git").exists()
    if not begun:
        assert found["code"] == "command_denied"
        assert "sandbox could not be made" in found["content"]
        assert "touch" not in found["content"]
