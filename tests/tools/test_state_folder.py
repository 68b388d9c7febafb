"""The state folder is in the workspace: no tool, no program and no walk reads or writes it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import postgres, sandboxed
from support.commands import Said, command
from support.environment import plain_environ

from kairos_mcp.core.errors import ConfigError, KairosError, PathDenied
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
from kairos_mcp.store.connection import connect
from kairos_mcp.tools.files.safe_open import FOLDER
from kairos_mcp.tools.files.workspace import Workspace

CANARY = "canary-4711-in-the-state-folder"
RULE = '[[gate]]\ntools = "*"\nverdict = "allow"\n'


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.txt").write_text("alpha")
    return folder


def plant_state_folder(home: Path) -> Path:
    home.mkdir(parents=True, mode=0o700)
    (home / "key").write_text(CANARY)
    (home / "kairos.toml").write_text(RULE)
    return home


def ran(workspace: Path, home: Path, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What each call of a run came to, as the model is shown it."""
    wanted = [{"id": str(n), "name": name, "arguments": given} for n, (name, given) in enumerate(calls)]
    script = workspace.parent / "script.jsonl"
    script.write_text("".join(json.dumps(line) + "\n" for line in ({"tool_calls": wanted}, {"content": "done"})))
    run = kairos(workspace, home, "run", "Look.", "--json", "--tools", "*", KAIROS_SCRIPT=str(script))
    if run.code == 3:  # a rule allows no call that names a file of the server's own
        run = kairos(workspace, home, "approve", run.json["run_id"], run.json["waiting"][0]["key"], "--json")
    assert run.code == 0, (run.out, run.err)
    exported = kairos(workspace, home, "export", run.json["run_id"])
    assert CANARY not in exported.out
    return [dict(call) for call in run.json["calls"]]


def kairos(workspace: Path, home: Path, *words: str, **more: str) -> Said:
    environ = {**plain_environ(), **postgres.environ_of(workspace.parent), "KAIROS_HOME": str(home), **more}
    return command(*words, folder=workspace, environ=environ)


@pytest.mark.parametrize("where", ["state", "deep/down/state"])
def test_no_tool_of_a_run_reads_or_writes_the_state_folder(workspace: Path, where: str) -> None:
    home = plant_state_folder(workspace / where)
    before = (home / "key").read_bytes()
    edit = {"path": f"{where}/key", "old_string": "canary", "new_string": "mine"}
    calls = ran(
        workspace,
        home,
        ("list_files", {"path": where}),
        ("read_file", {"path": f"{where}/key"}),
        ("search_files", {"pattern": "can.ry-[0-9]+-in", "path": f"{where}/key"}),
        ("edit_file", edit),
        ("write_file", {"path": f"{where}/new/file", "content": "x"}),
    )
    assert [call["ok"] for call in calls] == [False] * 5, calls
    calls = ran(workspace, home, ("search_files", {"pattern": "can.ry-[0-9]+-in|alph."}), ("file_tree", {"depth": 9}))
    assert [call["ok"] for call in calls] == [True, True]
    assert (home / "key").read_bytes() == before
    assert not (home / "new").exists()


@pytest.mark.parametrize("where", ["state", "deep/down/state"])
def test_no_program_sees_the_state_folder(workspace: Path, where: str) -> None:
    sandboxed.skip_if_missing()
    home = plant_state_folder(workspace / where)
    look = "find . -type f -exec cat {} + && ls state"
    (call,) = ran(workspace, home, ("run_command", {"argv": ["sh", "-c", look.replace("state", where)]}))
    assert CANARY not in json.dumps(call)
    assert call["ok"] is (where == "state"), call  # deeper it can't be hidden, so nothing is begun


@pytest.mark.parametrize("walk", [False, True])
def test_the_opener_knows_the_folder_by_its_identity(workspace: Path, walk: bool) -> None:
    home = plant_state_folder(workspace / "src" / "state")
    alias = workspace.parent / "alias"
    alias.symlink_to(home)
    with Workspace(workspace, private=alias, walk=walk) as open_workspace:
        for path in ("src/state", "src/state/key", "src/../src/state/key", "src//state/./key"):
            with pytest.raises(PathDenied, match="own folder"):
                open_workspace.is_folder(path)
        src = open_workspace.open_fd("src", FOLDER)
        try:
            with pytest.raises(PermissionError):
                open_workspace.open_fd("state", FOLDER, src)
        finally:
            os.close(src)
        home.rename(workspace / "moved")
        alias.unlink()
        alias.symlink_to(workspace / "moved")
        with pytest.raises(KairosError):
            open_workspace.is_folder("moved/key")
        with open_workspace.open_file("src/a.txt") as opened:
            assert opened.read(5) == b"alpha"


def test_a_workspace_is_neither_the_state_folder_nor_in_it(tmp_path: Path) -> None:
    home = plant_state_folder(tmp_path / "state")
    (home / "config" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(home / "config")
    for folder in (home, home / "config" / "deep", tmp_path / "link"):
        with pytest.raises(ConfigError, match="state folder"):
            load_settings(Flags(home=str(home), workspaces=(str(folder),)), {})
    load_settings(Flags(home=str(home), workspaces=(str(tmp_path),)), {})


def test_a_state_folder_may_lie_behind_a_link_and_its_file_may_be_none(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    path = tmp_path / "link" / "state.db"
    connect(path, "process").close()
    assert (tmp_path / "real" / "state.db").is_file()
    (tmp_path / "real" / "state.db").rename(tmp_path / "moved.db")
    path.symlink_to(tmp_path / "moved.db")
    with pytest.raises(KairosError):
        connect(path, "process")
