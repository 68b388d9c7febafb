"""Builds the sandbox of a downstream server: the machine is read-only, the workspace writable, the network open.

Of the home folder it shows the programs and caches of the usual launchers, so that `npx` and `uvx` work, and read-only
what the server's own command names. Keys stay hidden.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kairos_mcp.core.errors import CommandDenied, ConfigError
from kairos_mcp.tools.commands.protected_paths import ProtectionRules, hold_protected_paths
from kairos_mcp.tools.commands.sandbox import PRIVATE_FOLDERS, Sandbox
from kairos_mcp.tools.commands.toolchains import HOME_PROGRAMS
from kairos_mcp.tools.mcp_servers.launcher import LEASH_FD

HOME_CACHES = (".npm", ".cache/uv", ".cache/pip", ".cache/deno", ".cache/pnpm", ".bun/install/cache")


@dataclass(frozen=True, slots=True)
class ServerSandbox:
    """A sandbox for one start of `argv`.

    `covered_inodes` is filled in when it is built: the protected paths of the workspace that can't be written in it.
    """

    argv: tuple[str, ...]
    sandbox: Sandbox
    cwd: Path | None
    rules: ProtectionRules
    covered_inodes: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def open_arguments(self) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
        """Yield the whole argument list and the descriptors to start it with, which are open inside the block."""
        if self.sandbox.workspace is None:
            yield tuple(self.sandbox.wrap(self.argv, cwd=self.cwd, leash_fd=LEASH_FD)), ()
            return
        root = os.open(self.sandbox.workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with hold_protected_paths(root, self.rules, self.sandbox.protected_top_names()) as held:
                self.covered_inodes.update(
                    {entry.path: os.fstat(entry.descriptor).st_ino for entry in held.entries if entry.is_protected}
                )
                argv = self.sandbox.wrap(self.argv, cwd=self.cwd, leash_fd=LEASH_FD, protected=held.entries)
                yield tuple(argv), tuple(entry.descriptor for entry in held.entries)
        finally:
            os.close(root)


def build_server_sandbox(
    server: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    workspace: Path | None,
    hidden: Sequence[Path],
    rules: ProtectionRules,
) -> ServerSandbox:
    """Build the sandbox that runs `argv`. Raises ConfigError if this machine can't make one."""
    home = Path(env.get("HOME", "/nonexistent"))
    sandbox = Sandbox(
        workspace,
        network=True,
        hidden=tuple(hidden),
        reads=(
            *(home / name for name in HOME_PROGRAMS),
            *_program_folders(argv[0], env, home),
            *_folders_in_arguments((*argv[1:], str(cwd)), home),
        ),
        writes=tuple(home / name for name in HOME_CACHES),
    )
    try:
        problem = sandbox.find_problem()
        if problem is None:
            return ServerSandbox(tuple(argv), sandbox, cwd if sandbox.can_read(cwd) else None, rules)
    except CommandDenied as denied:
        problem = denied
    raise ConfigError(
        f"The server {server} can't be started in a sandbox: {problem.message}",
        f"{problem.hint} For this server alone: sandbox = false under [servers.{server}]; "
        "it may then do what you may do.",
    )


def _folders_in_arguments(arguments: Sequence[str], home: Path) -> list[Path]:
    """Return the folders to show because the command names them or a file in them by an absolute path.

    For a file in `node_modules` it is the folder that holds all packages. The home folder itself, or one above it, is
    never shown: of a file right there, only the file.
    """
    readable = []
    for path in (Path(argument) for argument in arguments if argument.startswith("/")):
        real = Path(os.path.realpath(path))
        if not real.exists():
            continue
        folder = real if real.is_dir() else real.parent
        if "node_modules" in real.parts:
            folder = Path(*real.parts[: real.parts.index("node_modules")])
        readable.append(real if real.is_file() and home.is_relative_to(folder) else folder)
    return [path for path in readable if not home.is_relative_to(path)]


def _program_folders(name: str, env: Mapping[str, str], home: Path) -> list[Path]:
    """Return where the program is installed, if the sandbox would hide it; as a virtual environment with its Python."""
    executable = shutil.which(name, path=env.get("PATH"))
    hidden_folders = (Path(os.path.realpath(home)), *PRIVATE_FOLDERS)
    readable = []
    for path in {Path(executable), Path(os.path.realpath(executable))} if executable is not None else set():
        prefix = path.parent.parent if path.parent.name == "bin" else path.parent
        if any(path.is_relative_to(folder) for folder in hidden_folders):
            readable.append(path if prefix in hidden_folders else prefix)
    return sorted(readable)
