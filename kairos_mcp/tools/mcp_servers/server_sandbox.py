"""Builds the sandbox of a downstream server: it sees what programs see, may write the workspace, and has the network.

Of the home folder it shows, read-only, the programs of the usual launchers, what the server's own command names, and
the certificates that its environment names. The caches of `npx` and `uvx` are its own: what it wrote into a person's,
that person's next `npx` would run outside of any sandbox. Keys stay hidden.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from pathlib import Path

from kairos_mcp.core.errors import CommandDenied, ConfigError
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.commands.call_filter import open_filter
from kairos_mcp.tools.commands.held_paths import hold_protected_paths
from kairos_mcp.tools.commands.missing_files import MissedFile, find_missed_file
from kairos_mcp.tools.commands.program_files import follow_links, list_interpreters
from kairos_mcp.tools.commands.protected_paths import IsUnreadable, ProtectionRules, SeenFolder, survey_protected_paths
from kairos_mcp.tools.commands.sandbox import Sandbox, SandboxMount
from kairos_mcp.tools.commands.toolchains import find_toolchains, home_folder, reading_folder
from kairos_mcp.tools.mcp_servers.launcher import LEASH_FD, OUTPUT_FD
from kairos_mcp.tools.mcp_servers.loader_log import NPM_CACHE, find_failed_load
from kairos_mcp.tools.mcp_servers.network_variables import list_certificates

UV_CACHE = ".cache/uv"
HOME_CACHES = (NPM_CACHE, UV_CACHE, ".cache/pip", ".cache/deno", ".cache/pnpm", ".bun/install/cache")


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What no server in a sandbox sees (`hidden`) or writes (`rules`), and what a person opens (`reads`).

    `caches` is the folder for the caches of all servers; None: they are kept in memory, and lost with the server.
    `is_unreadable` says which files of the workspace may not be read unasked; None: all may be.
    """

    hidden: tuple[Path, ...] = ()
    rules: ProtectionRules = field(default_factory=ProtectionRules)
    reads: tuple[Path, ...] = ()
    is_unreadable: IsUnreadable | None = None
    caches: Path | None = None


@dataclass(frozen=True, slots=True)
class ServerSandbox:
    """A sandbox for one start of `argv`.

    Filled in when it is built: `covered_inodes`, the protected paths of the workspace that can't be written in it, and
    `unreadable_inodes`, the files there that can't be read; `seen`, folders that hold nothing of either kind.
    """

    argv: tuple[str, ...]
    sandbox: Sandbox
    cwd: Path | None
    limits: SandboxLimits
    env: Mapping[str, str]
    covered_inodes: dict[str, int] = field(default_factory=dict)
    unreadable_inodes: dict[str, int] = field(default_factory=dict)
    seen: dict[str, SeenFolder] = field(default_factory=dict)

    @contextmanager
    def open_arguments(self) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
        """Yield the whole argument list and the descriptors to start it with, which are open inside the block."""
        with open_filter(is_paused=self.sandbox.workspace is not None) as filter_fd:
            if self.sandbox.workspace is None:
                argv = self.sandbox.wrap(
                    self.argv, cwd=self.cwd, leash_fd=LEASH_FD, output_fd=OUTPUT_FD, filter_fd=filter_fd
                )
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
                self.unreadable_inodes.update(held.survey.unreadable)
                self.seen.update(held.survey.seen)
                argv = self.sandbox.wrap(
                    self.argv,
                    cwd=self.cwd,
                    leash_fd=LEASH_FD,
                    output_fd=OUTPUT_FD,
                    filter_fd=filter_fd,
                    protected=held.entries,
                    unreadable=held.survey.unreadable,
                )
                yield argv, tuple(entry.descriptor for entry in held.entries)
        finally:
            os.close(root)

    def has_lost_covers(self) -> bool:
        """Return whether a file stands open that the sandbox should cover.

        A cover goes with its file where that is replaced, as editors do, and a file made later has none. Raises
        CommandDenied if there are more files than a sandbox can cover.
        """
        if self.sandbox.workspace is None:
            return False
        root = os.open(self.sandbox.workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for path, inode in self.covered_inodes.items():
                with suppress(OSError):  # what was removed needs no cover, and is undone if the server makes it
                    if os.stat(path, dir_fd=root, follow_symlinks=False).st_ino != inode:
                        return True
            if self.limits.is_unreadable is None:
                return False
            top_names, limits = self.sandbox.protected_top_names(), self.limits
            found = survey_protected_paths(root, limits.rules, top_names, limits.is_unreadable, self.seen)
            return any(self.unreadable_inodes.get(path) != inode for path, inode in found.unreadable.items())
        finally:
            os.close(root)

    def find_missed_file(self, stderr: str) -> MissedFile | None:
        """Return what it missed, by what it wrote before it ended; None: nothing that is known."""
        return find_missed_file(stderr, self.sandbox, self.env, self.limits.reads)

    def find_failed_load(self, since_s: float) -> str | None:
        """Return why npx could not load it since a moment; None: nothing that is known."""
        caches = (mount.source for mount in self.sandbox.stand_ins if mount.path.name == NPM_CACHE)
        return next((find_failed_load(cache, since_s) for cache in caches if cache is not None), None)


def build_server_sandbox(
    server: str,
    cache_name: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    workspace: Path | None,
    limits: SandboxLimits,
) -> ServerSandbox:
    """Build the sandbox that runs `argv`. `cache_name` names the folder of this server's caches.

    Raises ConfigError if this machine can't make one.
    """
    home = home_folder(env)
    named = _folders_in_arguments((*argv[1:], str(cwd)), home)
    sandbox = Sandbox(
        workspace,
        network=True,
        hidden=limits.hidden,
        reads=(*find_toolchains(env), *limits.reads, *named, *list_certificates(env)),
    )
    sandbox = replace(sandbox, reads=(*sandbox.reads, *_program_folders(argv[0], env, sandbox)))
    try:
        sandbox = replace(sandbox, stand_ins=tuple(_make_caches(cache_name, home, sandbox, limits.caches)))
        problem = sandbox.find_problem()
        if problem is None:
            return ServerSandbox(tuple(argv), sandbox, cwd if sandbox.can_read(cwd) else None, limits, env)
    except CommandDenied as denied:
        problem = denied
    except OSError as error:
        problem = CommandDenied(
            f"the folder for its caches can't be made ({os.strerror(error.errno or 0)}).",
            "See that the state folder can be written, and has space.",
        )
    raise ConfigError(
        f"The server {server} can't be started in a sandbox: {problem.message}",
        f"{problem.hint} For this server alone: sandbox = false under [servers.{server}]; "
        "it may then do what you may do.",
    )


def _make_caches(cache_name: str, home: Path, sandbox: Sandbox, folder: Path | None) -> Iterator[SandboxMount]:
    """Make the server's caches if they are absent, and yield where they stand inside. Raises CommandDenied, OSError."""
    real_home = Path(os.path.realpath(home))
    if folder is not None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # launchers make files there that every user may write
    for name in HOME_CACHES:
        place = real_home / name
        if sandbox.can_read(place) and not place.is_dir():
            continue  # nothing can be mounted there without making a folder in what is shown
        if folder is None:
            yield SandboxMount(place, "private")
            continue
        cache = folder / cache_name / name
        cache.mkdir(parents=True, exist_ok=True)
        yield SandboxMount(place, "writable", cache)


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
