"""What a program in a sandbox may change of the kernel it runs on: nothing, as root or not, with network or without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kairos_mcp.cli.doctor_checks import readable_by_root
from kairos_mcp.tools.commands.sandbox import Sandbox

pytestmark = pytest.mark.sandbox
PYTHON = os.path.realpath(sys.executable)
NOBODY = 65534
WITHIN_S = 60
# What the program could open for writing, without doing it; what belongs to processes is its own.
WRITABLE = ("find", "/proc", "/sys", "-path", "/proc/[0-9]*", "-prune", "-o", "-type", "f", "-writable", "-print")

IN_ITS_OWN_NAMESPACES = """
import ctypes, os, subprocess, sys
libc, again = ctypes.CDLL(None), b"/dev/shm/again"
assert libc.unshare(0x10000000 | 0x20000 | 0x20000000) == 0  # NEWUSER, NEWNS, NEWPID
os.mkdir(again)
if os.fork() == 0:  # the first process of the new namespaces, with every capability there
    bind = 4096
    match sys.argv[1]:
        case "a new proc": libc.mount(b"proc", again, b"proc", 0, None)
        case "a new sysfs": libc.mount(b"sysfs", again, b"sysfs", 0, None)
        case "another place": libc.mount(b"/proc", again, None, bind, None)
        case "another place for settings": libc.mount(b"/proc/sys", again, None, bind, None)
        case "unmounted": libc.umount2(b"/proc/sys", 2)
        case "remounted": libc.mount(None, b"/proc/sys", None, bind | 32, None)
    os._exit(subprocess.call(["find", "/proc/sys", again.decode(), "-type", "f", "-writable", "-print"]))
os.wait()
"""


def output_inside(sandbox: Sandbox, *argv: str, plain: bool = False) -> list[str]:
    """The lines that a program writes to standard output. `plain`: as a user who isn't root."""
    user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if plain and os.getuid() == 0 else {}
    wrapped = sandbox.wrap(argv)
    if user and subprocess.run(["test", "-x", wrapped[0]], check=False, **user).returncode != 0:
        pytest.skip("another user can't reach bubblewrap where it is installed")
    found = subprocess.run(
        wrapped, capture_output=True, text=True, timeout=WITHIN_S, check=False, env={"PATH": "/usr/bin:/bin"}, **user
    )
    assert not found.stderr.startswith("bwrap:"), found.stderr
    return found.stdout.splitlines()


@pytest.mark.parametrize("plain", [False, True], ids=["this user", "a plain user"])
@pytest.mark.parametrize("network", [False, True], ids=["programs", "servers"])
def test_no_setting_of_the_kernel_can_be_written(network: bool, plain: bool) -> None:
    sandbox = Sandbox(None, network=network)
    assert output_inside(sandbox, *WRITABLE, plain=plain) == []
    assert output_inside(sandbox, "cat", "/proc/sys/kernel/core_pattern", plain=plain) != []


def test_a_program_still_writes_what_is_of_its_own_process() -> None:
    assert output_inside(Sandbox(None), "sh", "-c", "echo 1000 > /proc/self/oom_score_adj && echo done") == ["done"]


@pytest.mark.parametrize(
    "way",
    [
        *("a new proc", "a new sysfs", "another place", "another place for settings"),
        *("unmounted", "remounted"),
    ],
)
def test_namespaces_of_its_own_give_a_program_no_other_way_to_the_kernel(way: str) -> None:
    sandbox = Sandbox(None, reads=(Path(sys.base_prefix),))
    assert output_inside(sandbox, PYTHON, "-I", "-c", IN_ITS_OWN_NAMESPACES, way) == []


def test_a_root_server_s_programs_don_t_read_the_passwords() -> None:
    assert not Sandbox(None).can_read(Path("/etc/shadow"))
    assert not [found for found in readable_by_root(0) if "/etc/shadow" in found.text]


def test_of_a_plain_user_s_programs_nothing_of_the_kind_is_said() -> None:
    assert list(readable_by_root(1000)) == []
