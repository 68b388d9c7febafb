"""What a program hides from the search after it: behind much else, in folders that can't be listed, in deep ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_command import CommandRunner
from test_instructions_protected import files, run_and_record

import kairos_mcp
from kairos_mcp.core.errors import CommandDenied
from kairos_mcp.core.paths import Scopes
from kairos_mcp.tools.commands import protected_paths
from kairos_mcp.tools.commands.held_paths import HeldPaths, remove_mount_points
from kairos_mcp.tools.commands.protected_paths import (
    MAX_PATH_CHARS,
    ProtectionRules,
    survey_again,
    survey_protected_paths,
)
from kairos_mcp.tools.commands.undo_writes import WriteWatch

pytestmark = pytest.mark.sandbox


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "W").mkdir()
    return tmp_path / "W"


@pytest.fixture
def runner(workspace: Path) -> CommandRunner:
    return CommandRunner(workspace)


def test_nothing_hides_behind_how_much_a_program_made(runner: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protected_paths, "MAX_FOLDERS", 50)  # of the search before, which a person's workspace may need
    made, _ = run_and_record(
        runner,
        "seq -f a%03g 60 | xargs mkdir; for i in $(seq 100 139); do git init -q b$i; echo obey > b$i/AGENTS.md; done; "
        "mkdir zz zz/.vscode; echo {} > zz/.vscode/tasks.json; git init -q zz",
    )
    assert made.code == "path_denied"
    left = {path.rpartition("/")[2] for path in files(runner.workspace)}
    assert not left & {".git", "AGENTS.md", "tasks.json"}
    assert not [name for name in left if name.startswith(".kairos-aside-")]


def test_instructions_inside_a_repository_of_any_name_are_found_too(runner: CommandRunner) -> None:
    made, record = run_and_record(runner, "git init -q --bare data; echo obey > data/objects/AGENTS.md")
    assert (made.code, [each["path"] for each in record]) == ("path_denied", ["data/objects/AGENTS.md"])


def test_what_was_put_aside_since_no_record_takes_it_is_searched_as_well(runner: CommandRunner) -> None:
    large = "mkdir -p .vscode/x .git/modules/y; head -c 400000 /dev/zero > .vscode/large; cp .vscode/large .git/large"
    made, _ = run_and_record(
        runner,
        f"{large}; echo obey > .vscode/x/AGENTS.md; git init -q --bare .git/modules/y; chmod -R 555 .vscode .git",
    )
    assert made.code == "path_denied"
    assert not list(runner.workspace.rglob("AGENTS.md"))
    assert not list(runner.workspace.rglob("y/hooks/evil"))


_AS_PLAIN_USER = """
import ctypes, json, os, pathspec, re2, subprocess, sys
from kairos_mcp.core.paths import Scopes
from kairos_mcp.tools.commands.held_paths import HeldPaths
from kairos_mcp.tools.commands.protected_paths import ProtectionRules, survey_protected_paths
from kairos_mcp.tools.commands.undo_repositories import is_build_place
from kairos_mcp.tools.commands.undo_writes import WriteWatch
root, rules, record = os.open(".", os.O_RDONLY), ProtectionRules.from_scopes(Scopes((), ("AGENTS.md",))), []
is_build_place(root, "d/.git")  # imports what this user may have no right to read
if os.geteuid() == 0:
    os.fchown(root, 65534, 65534)
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: else /proc/self stays root's
watch = WriteWatch.start(root, rules, HeldPaths(survey_protected_paths(root, rules)))
subprocess.run(["sh", "-c", sys.argv[1]], check=True)
undone = watch.undo(lambda _, path, texts: record.append(path) or texts, "taken-out")
print(json.dumps([undone.changes, undone.remarks, record]))
"""


def _undo_as_plain_user(folder: Path, script: str) -> tuple[list[str], list[str], list[str]]:
    """Watch a script in a process that is not root, which may list any folder; returns changes, remarks, paths kept."""
    folder.mkdir()
    package = str(Path(kairos_mcp.__file__).parent.parent)
    environ = {"PYTHONPATH": package, "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", _AS_PLAIN_USER, script],
        cwd=folder,
        env=environ,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    changes, remarks, record = json.loads(ended.stdout)
    return changes, remarks, record


@pytest.mark.parametrize("mode", ["311", "000", "400", "555"])
def test_a_folder_that_a_program_made_unreadable_is_searched_and_named(tmp_path: Path, mode: str) -> None:
    made = "mkdir -p d/e/.git; echo x > d/e/.git/config; echo obey > d/AGENTS.md; echo obey > d/e/AGENTS.md"
    script = f"{made}; chmod {mode} d/e d"
    changes, remarks, record = _undo_as_plain_user(tmp_path / "place", script)
    assert sorted(record) == ["d/AGENTS.md", "d/e/.git", "d/e/AGENTS.md"]
    assert len(changes) == 3
    assert ("d/" in str(remarks)) == (mode != "555")
    assert not (tmp_path / "place/d/AGENTS.md").exists()
    assert not (tmp_path / "place/d/e/.git").exists()


def test_what_lies_beyond_the_longest_path_is_found(tmp_path: Path) -> None:
    deep = "for i in $(seq 25); do mkdir $(printf %0200d 0) && cd -P $(printf %0200d 0); done"
    changes, _, record = _undo_as_plain_user(tmp_path / "place", f"{deep}; echo obey > AGENTS.md")
    assert (len(changes), len(record)) == (1, 1)
    assert record[0].count("/") == 25
    shutil.rmtree(tmp_path / "place")


@pytest.mark.parametrize("how", ["no record takes it", "its target is no text"])
def test_a_link_that_is_put_aside_leads_to_no_repository_of_the_user(tmp_path: Path, how: str) -> None:
    theirs, inside = tmp_path / "theirs/.git", tmp_path / "W"
    for folder in ("objects", "refs"):
        (theirs / folder).mkdir(parents=True)
    (theirs / "HEAD").write_text("ref: refs/heads/main")
    inside.mkdir()
    root, rules = os.open(inside, os.O_RDONLY), ProtectionRules.from_scopes(Scopes())
    watch = WriteWatch.start(root, rules, HeldPaths(survey_protected_paths(root, rules)))
    os.symlink("/", os.fsencode(inside) + b"/\xff")
    os.symlink(b"\xff" + os.fsencode(theirs), os.fsencode(inside / ".git"))
    undone = watch.undo(None if how == "no record takes it" else lambda _, path, texts: dict(texts), "taken-out")
    os.close(root)
    assert len(undone.changes) == 1
    assert not (inside / ".git").is_symlink()
    assert (theirs / "HEAD").exists()


def test_no_empty_file_goes_through_a_link_in_the_place_of_a_folder(tmp_path: Path) -> None:
    inside, theirs = tmp_path / "W", tmp_path / "theirs"
    (inside / "conf").mkdir(parents=True)
    theirs.mkdir()
    for folder in (inside / "conf", theirs):
        (folder / ".env").touch()
    root, rules = os.open(inside, os.O_RDONLY), ProtectionRules()
    held = HeldPaths(survey_protected_paths(root, rules, is_unreadable=lambda path: path.endswith(".env")))
    assert held.survey.unreadable.keys() == {"conf/.env"}
    (inside / "conf").rename(inside / "moved")  # as a program may, though the file in it is covered
    (inside / "conf").symlink_to(theirs)
    remove_mount_points(root, held)
    os.close(root)
    assert (theirs / ".env").exists()


def test_no_file_is_renamed_where_a_link_leads_that_came_during_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server in a sandbox runs on while what it made is searched."""
    inside, theirs = tmp_path / "W", tmp_path / "theirs"
    inside.mkdir()
    theirs.mkdir()
    (theirs / ".env").touch()
    root, rules = os.open(inside, os.O_RDONLY), ProtectionRules()
    before, open_folder = survey_protected_paths(root, rules), protected_paths.open_long_path

    def open_swapped(folder_fd: int, path: str) -> int:
        if path == "d/":
            (inside / "d").rmdir()
            (inside / "d").symlink_to(theirs)
            monkeypatch.setattr(protected_paths, "_FOLDER_FLAGS", os.O_RDONLY)  # as if the link came a folder above
        return open_folder(folder_fd, path)

    (inside / "d").mkdir()
    monkeypatch.setattr(protected_paths, "open_long_path", open_swapped)
    monkeypatch.setattr(protected_paths, "MAX_UNREADABLE", 0)
    after = survey_again(root, rules, before, (), ".aside", lambda path: path.endswith(".env"))
    os.close(root)
    assert (after.renamed, list(theirs.iterdir())) == (0, [theirs / ".env"])


def test_however_deep_a_program_nests_folders_a_search_takes_few_calls_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nested = [os.open(tmp_path, os.O_RDONLY)]
    rules, name = ProtectionRules.from_scopes(Scopes()), "n" * 99
    before = survey_protected_paths(nested[0], rules)
    for _ in range(MAX_PATH_CHARS // 100 + 5):
        os.mkdir(name, dir_fd=nested[-1])
        nested.append(os.open(name, os.O_RDONLY, dir_fd=nested[-1]))
    opened, open_file = [], os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: opened.append(path) or open_file(path, *rest, **more))
    try:
        after = survey_again(nested[0], rules, before, (), ".aside")
        (left,) = after.unvisited
        assert len(after.unvisited) == 1  # is named, and the call has failed by it
        assert MAX_PATH_CHARS < len(left) <= MAX_PATH_CHARS + 100
        assert len(opened) < len(nested) * MAX_PATH_CHARS / 1_000
        with pytest.raises(CommandDenied, match="nested too deep"):
            survey_protected_paths(nested[0], rules, is_unreadable=lambda path: False)
    finally:
        shutil.rmtree(name, dir_fd=nested[0])
        for fd in nested:
            os.close(fd)


@pytest.fixture
def old(runner: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace whose folders count as unchanged for long."""
    monkeypatch.setattr(protected_paths, "_CLOCK_NS", -(10**15))
    for number in range(20):
        (runner.workspace / f"d{number}/e/f").mkdir(parents=True)
        (runner.workspace / f"d{number}/e/a.txt").touch()
    return runner.workspace


def test_what_appears_in_old_folders_is_found_whatever_became_of_them(runner: CommandRunner, old: Path) -> None:
    for _ in range(2):  # the second search knows what the first has seen
        made, record = run_and_record(
            runner,
            "echo obey > d0/e/f/AGENTS.md; mkdir d1/e/f/g; git init -q d1/e/f/g; mv d2 z; echo obey > z/e/CLAUDE.md; "
            "mv d3/e d3/o; mkdir -p d3/e; mv d3/o/f d3/e/f; echo obey > d3/e/f/AGENTS.md; chmod 555 d3/e/f; mv z d2",
        )
        assert made.code == "path_denied"
        paths = {str(each["path"]) for each in record}
        assert paths == {"d0/e/f/AGENTS.md", "d1/e/f/g/.git", "d2/e/CLAUDE.md", "d3/e/f/AGENTS.md"}
        assert not {path.rpartition("/")[2] for path in files(old)} & {".git", "AGENTS.md", "CLAUDE.md"}
        shutil.rmtree(old / "d1/e/f/g")
        shutil.rmtree(old / "d3/o")
        (old / "d3/e/f").chmod(0o755)


def test_folders_that_are_unchanged_are_not_listed_again(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, rules = os.open(old, os.O_RDONLY), ProtectionRules()
    before = survey_protected_paths(root, rules)
    (old / "d5/e/new").mkdir()
    listed: list[str] = []
    open_folder = protected_paths.open_long_path
    monkeypatch.setattr(
        protected_paths, "open_long_path", lambda fd, path: listed.append(path) or open_folder(fd, path)
    )
    survey_again(root, rules, before, (), ".kairos-aside-x")
    assert sorted(listed) == ["", "d5/e/", "d5/e/new/"]
    listed.clear()
    survey_protected_paths(root, rules, known=before.seen)
    assert sorted(listed) == ["", "d5/e/", "d5/e/new/"]
    os.close(root)


def test_a_folder_that_was_just_changed_is_listed_again(runner: CommandRunner) -> None:
    """Within one tick of the clock it may be changed again, and its time stays."""
    (runner.workspace / "fresh").mkdir()
    root = os.open(runner.workspace, os.O_RDONLY)
    assert survey_protected_paths(root, ProtectionRules()).seen == {}
    os.close(root)
