"""Builds the sandbox of a downstream server: it sees what programs see, may write the workspace, and has the network.

Of the home folder it shows the programs and caches of the usual launchers, so that `npx` and `uvx` work, and read-only
what the server's own command names. Keys stay hidden.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from kairos_mcp.core.errors import CommandDenied, ConfigError
from kairos_mcp.tools.commands.keyring_filter import open_filter
from kairos_mcp.tools.commands.missing_files import MissedFile, find_missed_file
from kairos_mcp.tools.commands.program_files import follow_links, list_interpreters
from kairos_mcp.tools.commands.protected_paths import IsUnreadable, ProtectionRules, hold_protected_paths
from kairos_mcp.tools.commands.sandbox import Sandbox
from kairos_mcp.tools.commands.toolchains import find_toolchains, home_folder, reading_folder
from kairos_mcp.tools.mcp_servers.launcher import LEASH_FD

HOME_CACHES = (".npm", ".cache/uv", ".cache/pip", ".cache/deno", ".cache/pnpm", ".bun/install/cache")


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What no server in a sandbox sees (`hidden`) or writes (`rules`), and what a person opens (`reads`).

    `is_unreadable` says which files of the workspace may not be read unasked; None: all may be.
    """

    hidden: tuple[Path, ...] = ()
    rules: ProtectionRules = field(default_factory=ProtectionRules)
    reads: tuple[Path, ...] = ()
    is_unreadable: IsUnreadable | None = None


@dataclass(frozen=True, slots=True)
class ServerSandbox:
    """A sandbox for one start of `argv`.

    `covered_inodes` is filled in when it is built: the protected paths of the workspace that can't be written in it.
    """

    argv: tuple[str, ...]
    sandbox: Sandbox
    cwd: Path | None
    limits: SandboxLimits
    env: Mapping[str, str]
    covered_inodes: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def open_arguments(self) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
        """Yield the whole argument list and the descriptors to start it with, which are open inside the block."""
        with open_filter() as filter_fd:
            if self.sandbox.workspace is None:
                argv = self.sandbox.wrap(self.argv, cwd=self.cwd, leash_fd=LEASH_FD, filter_fd=filter_fd)
                yield tuple(argv), (filter_fd,)
                return
            with self._open_in_workspace(filter_fd) as (argv, descriptors):
                yield tuple(argv), (filter_fd, *descriptors)

    @contextmanager
    def _open_in_workspace(self, filter_fd: int) -> Iterator[tuple[list[str], tuple[int, ...]]]:
        assert self.sandbox.workspace is not None
        root = os.open(self.sandbox.workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            top_names, limits = self.sandbox.protected_top_names(), self.limits
            with hold_protected_paths(root, limits.rules, top_names, limits.is_unreadable) as held:
                self.covered_inodes.update(
                    {entry.path: os.fstat(entry.descriptor).st_ino for entry in held.entries if entry.is_protected}
                )
                argv = self.sandbox.wrap(
                    self.argv,
                    cwd=self.cwd,
                    leash_fd=LEASH_FD,
                    filter_fd=filter_fd,
                    protected=held.entries,
                    unreadable=held.survey.unreadable,
                )
                yield argv, tuple(entry.descriptor for entry in held.entries)
        finally:
            os.close(root)

    def find_missed_file(self, stderr: str) -> MissedFile | None:
        """Return what it missed, by what it wrote before it ended; None: nothing that is known."""
        return find_missed_file(stderr, self.sandbox, self.env, self.limits.reads)


def build_server_sandbox(
    server: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    workspace: Path | None,
    limits: SandboxLimits,
) -> ServerSandbox:
    """Build the sandbox that runs `argv`. Raises ConfigError if this machine can't make one."""
    home = home_folder(env)
    sandbox = Sandbox(
        workspace,
        network=True,
        hidden=limits.hidden,
        reads=(*find_toolchains(env), *limits.reads, *_folders_in_arguments((*argv[1:], str(cwd)), home)),
        writes=tuple(home / name for name in HOME_CACHES),
    )
    sandbox = replace(sandbox, reads=(*sandbox.reads, *_program_folders(argv[0], env, sandbox)))
    try:
        problem = sandbox.find_problem()
        if problem is None:
            return ServerSandbox(tuple(argv), sandbox, cwd if sandbox.can_read(cwd) else None, limits, env)
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


def _program_folders(name: str, env: Mapping[str, str], sandbox: Sandbox) -> list[Path]:
    """Return where the program and its interpreters are installed, if the sandbox would hide it; as a virtual
    environment with its Python."""
    search_path = env.get("PATH", "")
    executable = shutil.which(name, path=env.get("PATH"))
    if executable is None:
        return []
    program = Path(executable)
    files = [program, *(file for _, file in list_interpreters(program, search_path, search_path))]
    links = [link for file in files for link in follow_links(file)]
    hidden = [file for file in links if not sandbox.can_read(file.parent if file.is_symlink() else file)]
    return sorted({reading_folder(file, env) for file in hidden if file.exists()})
