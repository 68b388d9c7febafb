"""The sandbox of a downstream server: the machine read-only, the workspace to be written, the network open.

Of the home folder it sees the programs and caches of the usual launchers, so that `npx` and `uvx` work, and what its
own command names, read-only. Keys stay hidden.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kairos_mcp.core.errors import CommandDenied, ConfigError
from kairos_mcp.tools.commands.name_holders import NAMES
from kairos_mcp.tools.commands.protected_paths import ProtectionRules, protected
from kairos_mcp.tools.commands.sandbox import PRIVATE, Sandbox
from kairos_mcp.tools.mcp_servers.launcher import LEASH_FD

PROGRAMS = (
    *(".asdf", ".bun", ".cargo/bin", ".deno", ".local/bin", ".local/share/mise", ".local/share/pnpm"),
    *(".local/share/uv", ".nvm", ".pyenv", ".rustup", ".volta"),
)
CACHES = (".npm", ".cache/uv", ".cache/pip", ".cache/deno", ".cache/pnpm", ".bun/install/cache")


@dataclass(frozen=True, slots=True)
class ServerSandbox:
    """A sandbox for one start of `argv`. `covered` holds, once it was built, what of the workspace can't be written in
    it: inodes by plain path."""

    argv: tuple[str, ...]
    sandbox: Sandbox
    cwd: Path | None
    rules: ProtectionRules
    covered: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def built(self) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
        """The whole argument list, and the descriptors that it is started with, open inside the block."""
        if self.sandbox.workspace is None:
            yield tuple(self.sandbox.wrap(self.argv, cwd=self.cwd, leash_fd=LEASH_FD)), ()
            return
        root = os.open(self.sandbox.workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with protected(root, self.rules, {*NAMES, *self.sandbox.tops()}) as found:
                self.covered.update({h.path: os.fstat(h.descriptor).st_ino for h in found.held if h.sealed})
                argv = self.sandbox.wrap(self.argv, cwd=self.cwd, leash_fd=LEASH_FD, protected=found.held)
                yield tuple(argv), tuple(each.descriptor for each in found.held)
        finally:
            os.close(root)


def enclosed(
    server: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    workspace: Path | None,
    hidden: Sequence[Path],
    rules: ProtectionRules,
) -> ServerSandbox:
    """The sandbox that runs `argv`. Raises ConfigError where there is none on this machine."""
    home = Path(env.get("HOME", "/nonexistent"))
    sandbox = Sandbox(
        workspace,
        network=True,
        hidden=tuple(hidden),
        reads=(
            *(home / name for name in PROGRAMS),
            *_program(argv[0], env, home),
            *_named((*argv[1:], str(cwd)), home),
        ),
        writes=tuple(home / name for name in CACHES),
        lasting=True,
    )
    try:
        why = sandbox.why_not()
        if why is None:
            return ServerSandbox(tuple(argv), sandbox, cwd if sandbox.sees(cwd) else None, rules)
    except CommandDenied as denied:
        why = denied
    raise ConfigError(
        f"The server {server} can't be started in a sandbox: {why.message}",
        f"{why.hint} For this server alone: sandbox = false under [servers.{server}]: it may then do what you may do.",
    )


def _named(arguments: Sequence[str], home: Path) -> list[Path]:
    """What a person named in full: a folder; a script with the folder that it lies in, or the one that holds its
    packages. Never the home folder itself, nor one above it."""
    found = []
    for path in (Path(argument) for argument in arguments if argument.startswith("/")):
        real = Path(os.path.realpath(path))
        if not real.exists():
            continue
        whole = real if real.is_dir() else real.parent
        if "node_modules" in real.parts:
            whole = Path(*real.parts[: real.parts.index("node_modules")])
        found.append(real if real.is_file() and home.is_relative_to(whole) else whole)
    return [path for path in found if not home.is_relative_to(path)]


def _program(name: str, env: Mapping[str, str], home: Path) -> list[Path]:
    """Where the program is installed, if a place that is hidden holds it: as a virtual environment with its Python."""
    found = shutil.which(name, path=env.get("PATH"))
    shut = (Path(os.path.realpath(home)), *PRIVATE)
    places = []
    for path in {Path(found), Path(os.path.realpath(found))} if found is not None else set():
        prefix = path.parent.parent if path.parent.name == "bin" else path.parent
        if any(path.is_relative_to(folder) for folder in shut):
            places.append(path if prefix in shut else prefix)
    return sorted(places)
