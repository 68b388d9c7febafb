"""Repositories that programs make: gone after the call, or, where builds fetch them, without what starts programs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from test_command import CommandRunner, body
from test_instructions_protected import files, run_and_record

from kairos_mcp.tools.commands.git_programs import read_program_files, without_programs

pytestmark = pytest.mark.sandbox
EVIL = "git -C {0} config core.fsmonitor 'touch {1}'; git -C {0} config filter.x.clean 'touch {1}'; " + (
    "printf '#!/bin/sh\\ntouch {1}\\n' > {0}/{2}hooks/post-index-change; chmod +x {0}/{2}hooks/post-index-change"
)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "W" / "sub").mkdir(parents=True)
    return tmp_path / "W"


@pytest.fixture
def runner(workspace: Path) -> CommandRunner:
    return CommandRunner(workspace)


def git(folder: Path, *words: str) -> str:
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    environ |= {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return subprocess.run(["git", *words], cwd=folder, env=environ, check=True, capture_output=True, text=True).stdout


def assert_starts_nothing(folder: Path, mark: Path) -> None:
    """What a person does next, in that very folder."""
    (folder / "x").write_text("x")
    for words in (["status"], ["add", "x"], ["diff"]):
        subprocess.run(["git", *words], cwd=folder, capture_output=True, check=False)
    assert not mark.exists()


@pytest.mark.parametrize("place", [".", "sub", "sub/deep"])
def test_a_new_repository_is_moved_into_the_record_and_the_call_has_failed(
    runner: CommandRunner, tmp_path: Path, place: str
) -> None:
    mark = tmp_path / "mark"
    made, record = run_and_record(
        runner, f"git init -q {place}; {EVIL.format(place, mark, '.git/')}; touch {place}/code"
    )
    assert (made.code, made.is_error) == ("path_denied", True)
    assert "hooks/applypatch-msg.sample" not in made.content
    assert "fsmonitor" in made.content
    assert "fsmonitor" in str([text for each in record for text in each["texts"].values()])  # type: ignore[attr-defined]
    assert not (runner.workspace / place / ".git").exists()
    assert (runner.workspace / place / "code").exists()
    assert_starts_nothing(runner.workspace / place, mark)


def test_a_new_repository_that_no_record_takes_is_put_aside_where_git_finds_none(
    runner: CommandRunner, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    commit = "touch a; git add a; git -c user.name=a -c user.email=b commit -qm a"
    itself = "git config core.worktree ."  # else git finds no files there, and looks at none
    made, _ = run_and_record(runner, f"cd sub; git init -q; {commit}; {EVIL.format('.', mark, '.git/')}; {itself}")
    assert made.code == "path_denied"
    (aside,) = (runner.workspace / "sub").glob(".kairos-aside-*")
    assert_starts_nothing(aside, mark)
    assert_starts_nothing(runner.workspace / "sub", mark)


@pytest.mark.parametrize("place", ["build/_deps/lib", "node_modules/lib", "mine/lib"])
def test_one_below_a_build_folder_or_an_ignored_one_stays_without_what_starts_programs(
    runner: CommandRunner, tmp_path: Path, place: str
) -> None:
    (runner.workspace / ".gitignore").write_text("/mine/\n")
    mark, inner = tmp_path / "mark", runner.workspace / place
    commit = "touch a; git add a; git -c user.name=a -c user.email=b commit -qm a"
    script = f"mkdir -p {place}; git init -q {place}; cd {place}; {commit}; git remote add origin https://x.test/a"
    plain, _ = run_and_record(runner, script)
    assert (plain.is_error, "new repository" in plain.content) == (False, False), plain.content
    (inner / ".git" / "config").unlink()
    subprocess.run(["rm", "-rf", str(inner)], check=True)
    made, record = run_and_record(runner, f"({script}); {EVIL.format(place, mark, '.git/')}")
    assert not made.is_error, made.content
    assert ".git is a new repository" in made.content
    assert [each["path"] for each in record] == [f"{place}/.git"]
    assert git(inner, "log", "--format=%s").strip() == "a"
    assert git(inner, "remote", "get-url", "origin").strip() == "https://x.test/a"
    assert "fsmonitor" not in (inner / ".git/config").read_text()
    assert_starts_nothing(inner, mark)


@pytest.mark.parametrize("name", ["data", "."])
def test_a_folder_that_git_takes_for_a_repository_whatever_its_name_loses_what_starts_programs(
    runner: CommandRunner, tmp_path: Path, name: str
) -> None:
    mark = tmp_path / "mark"
    script = f"git init -q --bare {name}; git -C {name} config core.bare false; git -C {name} config core.worktree ."
    made, _ = run_and_record(runner, f"{script}; git -C {name} config core.fsmonitor 'touch {mark}'")
    assert made.code == "path_denied"
    assert_starts_nothing(runner.workspace / name, mark)


@pytest.mark.parametrize("how", ["gitdir: ../../data", "a link"])
def test_a_git_that_leads_elsewhere_is_taken_away_also_below_a_build_folder(runner: CommandRunner, how: str) -> None:
    make = "ln -s ../../data .git" if how == "a link" else f"echo '{how}' > .git"
    made, _ = run_and_record(runner, f"git init -q --bare data; mkdir -p build/x; cd build/x; {make}")
    assert made.code == "path_denied"
    assert not os.path.lexists(runner.workspace / "build/x/.git")


def test_a_bare_repository_that_was_there_takes_pushes_and_gets_its_hooks_and_settings_back(
    runner: CommandRunner,
) -> None:
    git(runner.workspace, "init", "-q", "--bare", "store")
    before = (runner.workspace / "store/config").read_bytes()
    commit = "git init -q /tmp/w; cd /tmp/w; touch a; git add a; git -c user.name=a -c user.email=b commit -qm a"
    pushed, _ = run_and_record(runner, f"here=$PWD; {commit}; git push -q $here/store HEAD:main")
    assert not pushed.is_error, pushed.content
    assert git(runner.workspace / "store", "log", "--format=%s", "main").strip() == "a"
    changed, record = run_and_record(
        runner, "git -C store config core.fsmonitor evil; echo x > store/hooks/post-receive; mkdir -p sub/hooks"
    )
    assert (changed.code, [each["path"] for each in record]) == ("path_denied", ["store"])
    assert (runner.workspace / "store/config").read_bytes() == before
    assert not (runner.workspace / "store/hooks/post-receive").exists()


def test_git_reads_what_is_there_and_writes_nothing(runner: CommandRunner) -> None:
    (runner.workspace / "a").write_text("one\n")
    git(runner.workspace, "init", "-q")
    git(runner.workspace, "add", "a")
    git(runner.workspace, "commit", "-qm", "first")
    (runner.workspace / "a").write_text("two\n")
    before = {path for path in files(runner.workspace) if path.startswith(".git/")}
    assert body(runner.run("git", "status", "--short")).strip() == "M a"
    assert "+two" in body(runner.run("git", "diff"))
    assert "first" in body(runner.run("git", "log", "--oneline"))
    assert "+one" in body(runner.run("git", "show"))
    assert {path for path in files(runner.workspace) if path.startswith(".git/")} == before


@pytest.mark.parametrize(
    "line",
    [
        "[core]\n\tfsmonitor = evil",
        "[Core] fsmonitor = evil",
        "[core]\n\tbare = false \\\n\tfsmonitor = evil",
        "[core]\n\tbare = false\n\tFSMonitor=evil",
        "[core]\n\thooksPath = evil",
        "[include]\n\tpath = evil",
        '[includeIf "gitdir:/"]\n\tpath = evil',
        '[filter "x"]\n\tclean = evil',
        '[diff "x"]\n\ttextconv = evil',
        "[alias]\n\tst = !evil",
        "[core]\n\tsshCommand = evil",
        '[remote "o"]\n\turl = ext::evil',
        '[remote "o"]\n\turl = https://x.test/a\n\tuploadpack = evil',
        '[url "ext::evil"]\n\tinsteadOf = https://',
        '[credential]\n\thelper = "!evil"',
        "[core]\n\tpager = evil",
        "[gpg]\n\tprogram = evil",
        "[extensions]\n\tworktreeConfig = evil",
    ],
)
def test_of_its_settings_only_what_starts_nothing_stays(line: str) -> None:
    safe = b'[core]\n\tbare = false\n[remote "o"]\n\tfetch = +refs/heads/*:refs/remotes/o/*\n'
    assert without_programs({"config": safe}) == {"config": safe}
    left = without_programs({"config": safe + line.encode() + b"\n"})["config"]
    assert b"evil" not in left
    assert b"bare = false" in left


def test_hooks_links_and_submodules_settings_are_found_at_any_depth(tmp_path: Path) -> None:
    for path in ("hooks/pre-commit", "modules/a/hooks/x", "modules/a/config", "worktrees/b/config.worktree"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("[core]\n\tfsmonitor = evil\n")
    (tmp_path / "hooks/pre-push.sample").write_text("#!/bin/sh\n")
    (tmp_path / "modules/b").symlink_to("/nowhere")
    (tmp_path / "worktrees/b/commondir").write_text("../..\n")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        found = read_program_files(fd)
    finally:
        os.close(fd)
    assert found is not None
    kept = without_programs(found)
    assert set(found) - set(kept) == {"hooks/pre-commit", "modules/a/hooks/x", "modules/b"}
    assert b"evil" not in b"".join(kept.values())
