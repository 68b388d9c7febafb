"""A server that ends while its program runs: the user's folder is what it was, and the next server undoes the rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.app import Place, place_in
from support.stdio_server import StdioClient
from support.waiting import wait_until
from test_command import CommandRunner, alive, assert_none_left, token

from kairos_mcp.core.tool import ToolContext, ToolMemory
from kairos_mcp.store.tool_intents import intent_name
from kairos_mcp.tools.tool import probe_call

pytestmark = pytest.mark.sandbox
WITHIN_S = 20.0
ALLOW = '[[gate]]\ntools = "run_command"\neffect = "irreversible"\nverdict = "allow"\n'
ENDS: dict[str, Callable[[StdioClient], None]] = {
    "stdin": lambda server: server.server.stdin.close(),
    "TERM": lambda server: os.kill(server.pid, signal.SIGTERM),
    "INT": lambda server: os.kill(server.pid, signal.SIGINT),
    "KILL": lambda server: os.kill(server.pid, signal.SIGKILL),
}
# What versions before this one left where they were killed: empty folders with the sticky bit.
LEFTOVERS = (".git", ".kairos", "AGENTS.md", "CLAUDE.md", ".mcp.json", ".envrc", ".vscode")


def content_of(folder: Path) -> dict[str, tuple[int, object]]:
    """Every entry with its mode, and its text or target."""
    found: dict[str, tuple[int, object]] = {}
    for path in sorted(folder.rglob("*")):
        text = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[path.relative_to(folder).as_posix()] = path.lstat().st_mode, text
    return found


def place_at(root: Path) -> Place:
    place = place_in(root)
    place.home.mkdir(exist_ok=True)
    (place.home / "kairos.toml").write_text(ALLOW)
    return place


def begin_command(server: StdioClient, *argv: str) -> None:
    call = {"name": "run_command", "arguments": {"argv": list(argv), "timeout_s": 60}}
    server.begin("tools/call", {"name": "registry_call", "arguments": call})


def look(server: StdioClient) -> Any:
    call = {"name": "list_files", "arguments": {}}
    return server.ask("tools/call", {"name": "registry_call", "arguments": call})


@pytest.mark.parametrize("with_git", [True, False])
@pytest.mark.parametrize("how", ENDS)
def test_a_server_that_ends_while_a_program_runs_leaves_the_folder_as_it_was(
    tmp_path: Path, how: str, with_git: bool
) -> None:
    place = place_at(tmp_path)
    if with_git:
        subprocess.run(["git", "init", "-q", str(place.workspace)], check=True)
    (place.workspace / "AGENTS.md").write_text("ours")
    before, mark = content_of(place.workspace), token(71)
    server = StdioClient.start(place, script=False)
    begin_command(server, "sleep", mark)
    wait_until(lambda: any(b"sleep" in Path(f"/proc/{pid}/comm").read_bytes() for pid in alive(mark)), WITHIN_S)
    assert content_of(place.workspace) == before, "while the program runs"
    ENDS[how](server)
    server.ends()
    server.close()
    assert_none_left(mark)
    assert content_of(place.workspace) == before


def test_what_earlier_versions_left_goes_with_the_first_call_and_nothing_else_does(tmp_path: Path) -> None:
    place = place_at(tmp_path)
    inside = place.workspace
    (inside / "sub").mkdir()
    kept = ["notes", "sub/AGENTS.md", ".github"]
    for name in (*LEFTOVERS, *kept):
        (inside / name).mkdir()
        (inside / name).chmod(0o1755)
    (inside / ".github" / "somebody's").write_text("text")
    (inside / "GEMINI.md").mkdir(mode=0o755)  # without the mark: somebody's own
    (inside / ".cursor").mkdir()
    (inside / ".cursor").chmod(0o1777)  # where others may write: no folder of ours
    with StdioClient.start(place, script=False) as server:
        look(server)
        assert not [name for name in LEFTOVERS if (inside / name).exists()]
    assert all((inside / name).is_dir() for name in (*kept, "GEMINI.md", ".cursor"))


@pytest.mark.parametrize("is_usual", [False, True])
def test_what_a_killed_server_s_program_wrote_is_undone_by_the_next_server(tmp_path: Path, is_usual: bool) -> None:
    """`is_usual`: in a repository with protected files of its own, as most workspaces are."""
    place, mark = place_at(tmp_path), token(72)
    inside = place.workspace
    if is_usual:
        subprocess.run(["git", "init", "-q", str(inside)], check=True)
        (inside / "CLAUDE.md").write_text("ours")
    server = StdioClient.start(place, script=False)
    script = f"echo obey > AGENTS.md; mkdir -p sub/.git/hooks; touch code sub/x; exec sleep {mark}"
    begin_command(server, "sh", "-c", script)
    wait_until((inside / "sub/x").exists, WITHIN_S)
    server.close()
    assert_none_left(mark)
    assert (inside / "AGENTS.md").exists()
    with StdioClient.start(place, script=False) as second:
        look(second)
        wait_until(lambda: not (inside / "AGENTS.md").exists() and not (inside / "sub/.git").exists(), WITHIN_S)
    assert (inside / "code").exists()
    assert not is_usual or ((inside / "CLAUDE.md").read_text() == "ours" and (inside / ".git/HEAD").exists())


class _Record:
    """A run's memory that outlives a server."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.refuses: str | None = None  # a part of what it does not take

    def context(self, path: str = "round-1/call-1") -> ToolContext:
        memory = ToolMemory(self._keep_text, self.texts.get)
        return ToolContext("run-1", time.monotonic() + 60, lambda _: None, path, memory)

    def _keep_text(self, name: str, text: str) -> None:
        if self.refuses is not None and self.refuses in text:
            raise ValueError(name)
        self.texts[name] = text

    def keep(self, **survey: Any) -> None:
        self.texts[intent_name("round-1/call-1")] = json.dumps(
            {"begun": 0, "skipped": [], "entries": {}, "unvisited": [], "programs": {}} | survey
        )


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "W").mkdir()
    return tmp_path / "W"


def test_what_a_person_made_after_the_program_s_time_stays(workspace: Path) -> None:
    runner, record = CommandRunner(workspace), _Record()
    (workspace / "AGENTS.md").write_text("a person's")
    written = (workspace / "AGENTS.md").stat().st_ctime_ns // 1_000_000
    record.keep(until=written - 1)
    probe_call(runner.tool, {"argv": ["true"]}, record.context())
    assert (workspace / "AGENTS.md").read_text() == "a person's"
    record.keep(until=written + 1)
    assert probe_call(runner.tool, {"argv": ["true"]}, record.context()).state == "unclear"
    assert not (workspace / "AGENTS.md").exists()


def test_a_call_that_never_began_undoes_nothing(workspace: Path) -> None:
    runner = CommandRunner(workspace)
    (workspace / "AGENTS.md").write_text("a person's")
    assert probe_call(runner.tool, {"argv": ["true"]}, _Record().context()).state == "not_done"
    assert (workspace / "AGENTS.md").exists()


def test_what_every_single_call_wrote_is_undone(tmp_path: Path) -> None:
    place = place_at(tmp_path)
    with StdioClient.start(place, script=False) as server:
        for words in ("one", "two"):
            call = {"argv": ["sh", "-c", f"echo {words} > AGENTS.md; mkdir .vscode; echo {words} > .vscode/tasks.json"]}
            made = server.call("registry_call", name="run_command", arguments=call)
            assert made["output"]["is_error"], made
            assert not [*place.workspace.glob("AGENTS.md"), *place.workspace.glob(".*")]


def test_what_an_undo_had_put_aside_when_it_was_killed_is_undone_by_the_next_server(workspace: Path) -> None:
    runner, record = CommandRunner(workspace), _Record()
    (workspace / "sub").mkdir()
    (workspace / "sub" / ".kairos-aside-ab12-cd34").write_text("obey")
    (workspace / "sub" / ".kairos-aside-ff-00").write_text("of an earlier call")
    record.keep(until=time.time_ns(), aside=".kairos-aside-ab12")
    assert probe_call(runner.tool, {"argv": ["true"]}, record.context()).state == "unclear"
    assert [path.name for path in (workspace / "sub").iterdir()] == [".kairos-aside-ff-00"]
    assert any("obey" in text for text in record.texts.values())


def test_what_the_record_refuses_is_put_aside_and_the_rest_is_undone_all_the_same(workspace: Path) -> None:
    runner, record = CommandRunner(workspace), _Record()
    (workspace / "sub").mkdir()
    (workspace / "AGENTS.md").write_text("first")
    (workspace / "sub" / "AGENTS.md").write_text("second")
    record.keep(until=time.time_ns())
    record.refuses = "first"
    probe_call(runner.tool, {"argv": ["true"]}, record.context())
    assert not list(workspace.rglob("AGENTS.md"))
    (aside,) = workspace.glob(".kairos-aside-*")
    assert aside.read_text() == "first"
