"""Interpreters in a home folder: those of known toolchains run, all others are named with the line that lets them."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.tool import Preview
from tests.tools.test_command import CommandRunner, body

pytestmark = pytest.mark.sandbox


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder in /tmp, which is as empty for programs as the real one."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def runner_in(workspace: Path, home: Path, **more: Any) -> CommandRunner:
    environ = {"PATH": f"{home}/bin:{os.environ['PATH']}", "HOME": str(home)}
    return CommandRunner(workspace, environ=environ, **{"reads": (), **more})


def preview(runner: CommandRunner, *argv: str) -> str:
    found = runner.preview(*argv)
    assert isinstance(found, Preview), found
    return found.text


def shown_reads(text: str) -> list[str]:
    """What of the home folder a preview names; this machine's user may have toolchains as well."""
    return [path for path in text.partition("\nreads also ")[2].split(", ") if path.startswith("~/")]


def test_an_environment_whose_python_is_a_toolchain_s_runs_and_says_what_it_reads(workspace: Path, home: Path) -> None:
    python = script(home / ".pyenv/versions/3.12/bin/python3.12", "#!/bin/sh\necho from pyenv, root $PYENV_ROOT\n")
    (workspace / ".venv/bin").mkdir(parents=True)
    (workspace / ".venv/bin/python").symlink_to(python)
    script(workspace / ".venv/bin/tool", f"#!{workspace}/.venv/bin/python\n")
    here = runner_in(workspace, home)
    for program in (".venv/bin/python", ".venv/bin/tool"):
        assert shown_reads(preview(here, program)) == ["~/.pyenv"]
        assert body(here.run(program)) == f"from pyenv, root {home}/.pyenv"
    assert shown_reads(preview(runner_in(workspace, home / "none"), "true")) == []


def test_a_toolchain_that_links_to_the_whole_home_folder_is_none(workspace: Path, home: Path) -> None:
    (home / "key").write_text("secret")
    (home / ".nvm").symlink_to(home)
    (home / ".pyenv").symlink_to(home.parent)
    here = runner_in(workspace, home)
    assert shown_reads(preview(here, "true")) == []
    assert here.run("cat", str(home / "key")).is_error


@pytest.mark.parametrize("how", ["named", "on PATH", "linked", "linked through", "first line", "by env"])
def test_what_lies_elsewhere_is_named_with_the_line_before_anybody_is_asked(
    workspace: Path, home: Path, how: str
) -> None:
    """The line, pasted, lets it run."""
    python = script(home / "conda/bin/python", "#!/bin/sh\necho conda\n")
    (workspace / "bin").mkdir()
    (home / "bin").mkdir()
    match how:
        case "named":
            program = str(python)
        case "on PATH":
            (home / "bin/mine").symlink_to(python)
            program = "mine"
        case "linked":
            (workspace / "bin/python").symlink_to(python)
            program = "bin/python"
        case "linked through":
            (home / "bin/sh").symlink_to("/bin/true")
            (workspace / "bin/python").symlink_to(home / "bin/sh")
            program = "bin/python"
        case "first line":
            script(workspace / "bin/tool", f"#!{python} -u\n")
            program = "bin/tool"
        case _:
            (home / "bin/mine").symlink_to(python)
            script(workspace / "bin/tool", "#!/usr/bin/env -S mine -u\n")
            program = "bin/tool"
    reads: tuple[Path, ...] = ()
    while isinstance(refused := runner_in(workspace, home, reads=reads).preview(program), ToolResult):
        assert refused.code == "command_denied"
        assert "is there, but a run's programs can't look at ~/" in refused.content
        line = refused.content.partition("server: ")[2].partition(" in kairos.toml.")[0]
        named = tuple(Path(text.replace("~", str(home))) for text in tomllib.loads(line)["command_reads"])
        assert set(named) > set(reads), "one more at a time: a link on PATH, then what it leads to"
        assert home not in named
        reads = named
    assert reads
    assert body(runner_in(workspace, home, reads=reads).run(program)) == ("" if how == "linked through" else "conda")


@pytest.mark.parametrize(
    ("first", "named"),
    [
        ("#!/opt/none/python", "/opt/none/python"),
        ("#!/usr/bin/env nonesuch", "nonesuch"),
        ("#!/bin/sh\r", "/bin/sh\\r"),
    ],
)
def test_an_interpreter_that_is_not_there_is_named_and_not_the_script(workspace: Path, first: str, named: str) -> None:
    script(workspace / "tool", f"{first}\nexit 0\n")
    refused = CommandRunner(workspace).run("./tool")
    assert refused.code == "not_found"
    assert named in refused.content
    assert "which is not there" in refused.content


def test_a_link_that_leads_nowhere_is_named_as_that(workspace: Path) -> None:
    (workspace / "python").symlink_to("/opt/none/python")
    refused = CommandRunner(workspace).run("./python")
    assert refused.code == "not_found"
    assert "is a link to /opt/none/python, which is not there" in refused.content
