"""Says what a foreign program may see and touch: one value that builds bubblewrap's list of arguments.

Inside, the file system holds what `machine_view` lists, read-only, a private /tmp, what is let in by name, and the
workspace at its real path; nothing else. Nothing here starts a program but `find_failure`, which tries whether
bubblewrap works.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from kairos_mcp.core.errors import CommandDenied
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.tools.commands.bubblewrap import PROBE_S, explain_failure, find_bubblewrap
from kairos_mcp.tools.commands.call_filter import open_filter
from kairos_mcp.tools.commands.held_paths import HeldEntry
from kairos_mcp.tools.commands.machine_view import SYSTEM_FOLDERS, list_system_settings
from kairos_mcp.tools.commands.protected_paths import RESERVED_NAMES
from kairos_mcp.tools.commands.toolchains import HomeEntry, home_folders

# What stands at a path inside. readable: what is there, read-only. empty: an empty folder, read-only. private: an empty
# folder in memory. writable: what is there. sealed: read-only, inside something writable. hidden: nothing to be seen.
# At any other path there is nothing.
MountKind = Literal["readable", "empty", "private", "writable", "sealed", "hidden"]

SHARED_MEMORY = "/dev/shm"
HOME = f"{SHARED_MEMORY}/home"  # inside the sandbox: /dev is always private there, while /tmp may be the workspace
PRIVATE_FOLDERS = (Path("/tmp"), Path("/var/tmp"))
PRIVATE_BYTES = 1 << 30  # of each of these and of shared memory; they are kept in memory
_RESOLVER_FILE = Path("/etc/resolv.conf")  # often a link into /run
_USUAL_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
_STRICTNESS: Mapping[MountKind, int] = {
    "readable": 0,
    "empty": 1,
    "private": 1,
    "writable": 2,
    "sealed": 3,
    "hidden": 4,
}
_NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
# Waits for the leash to close, then kills the program ($$) and all that it has started: bubblewrap's process 1 goes on
# until they have ended where the bubblewrap outside died before it. The program is process 2 of a PID namespace of its
# own; anywhere else "all" (kill -9 -1) would be ours. Its arguments are passed on as they are; the shell does not read
# them.
_LEASH = '( (read -r _ <&$FD; [ $$ = 2 ] && kill -9 -1; kill -9 $$) >/dev/null 2>&1 $OUT& ); exec "$@" $FD<&-'


def _leash_script(leash_fd: int, output_fd: int | None) -> str:
    script = _LEASH.replace("$FD", str(leash_fd))
    if output_fd is None:
        return script.replace(" $OUT", " ")
    return f"{script.replace('$OUT', f'{output_fd}>&- ')} >&{output_fd} {output_fd}>&-"


@dataclass(frozen=True, slots=True)
class SandboxMount:
    """A path and what stands there inside the sandbox; for any path, the deepest mount above it decides.

    `source`: what is mounted, if that is not what stands at the path outside.
    """

    path: Path
    kind: MountKind
    source: Path | None = None


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What one sandbox lets in.

    `workspace` stands at its real path, writable or read-only; what must not be written in it is named when the sandbox
    is made. `hidden` paths (the state folder with its keys, the configuration) are never visible, whatever else is set.
    `sealed` paths are never writable, nor is the rest of the workspace's top folder that holds one. `reads` are also
    let in, such as a toolchain in the home folder, which is empty otherwise. `caches` stand at the same place below
    HOME inside, by which programs find them. `stand_ins` hide what stands at their paths outside. Without `network`
    there is only a loopback interface of its own. `layer`: two folders on one file system; what is written in the
    workspace goes into the first of them, and the second is the kernel's. `copy` stands in the workspace's place.
    """

    workspace: Path | None
    network: bool = False
    writable: bool = True
    hidden: tuple[Path, ...] = ()
    sealed: tuple[Path, ...] = ()
    reads: tuple[Path, ...] = ()
    caches: tuple[HomeEntry, ...] = ()
    stand_ins: tuple[SandboxMount, ...] = ()
    layer: tuple[Path, Path] | None = None
    copy: Path | None = None

    def wrap(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        status_fd: int | None = None,
        leash_fd: int | None = None,
        output_fd: int | None = None,
        filter_fd: int | None = None,
        protected: Sequence[HeldEntry] = (),
        unreadable: Iterable[str] = (),
    ) -> list[str]:
        """Return the argument list that runs `argv` in the sandbox.

        It is to be started with a scrubbed environment, in a new session.

        bubblewrap writes JSON to `status_fd`: first the child's pid, later the exit code if the program was begun.
        Everything inside dies with the *thread* that starts this, but not during the milliseconds in which bubblewrap
        sets itself up. `leash_fd` (3 to 9), the reading end of a pipe that nobody writes to, covers these: the program
        is killed when the other end is closed. With a leash, `output_fd` (3 to 9) becomes the program's stdout:
        bubblewrap holds its own open, and this one ends when the program closes it. `filter_fd` is that of
        `open_filter`: without it the program reaches the kernel's keyrings. `protected` are open descriptors of what
        must not be written in the workspace, and of the folders above it, which must not be moved; `unreadable` are
        files of the workspace that must not be read. Raises CommandDenied if it can't be built.
        """
        mounts = self.mounts()
        arguments = [str(find_bubblewrap().path), *_NAMESPACES, "--new-session", "--die-with-parent"]
        arguments += ["--cap-drop", "ALL"]
        arguments += [] if self.network else ["--unshare-net"]
        for folder in SYSTEM_FOLDERS:
            if folder.is_symlink():  # as /bin is to usr/bin
                arguments += ["--symlink", os.readlink(folder), str(folder)]
        arguments += ["--proc", "/proc", *_kernel_setting_arguments(), "--dev", "/dev"]
        arguments += ["--size", str(PRIVATE_BYTES), "--tmpfs", SHARED_MEMORY, "--dir", HOME]
        for mount in mounts:
            arguments += _mount_arguments(mount)
            if self.layer is not None and mount.path == self.workspace:
                arguments[-3:] = ["--overlay-src", str(mount.path), "--overlay", *map(str, self.layer), str(mount.path)]
        for held in protected:
            assert self.workspace is not None, "what is protected is in a workspace"
            bind = "--ro-bind-fd" if held.is_protected or not self.writable else "--bind-fd"
            arguments += [bind, str(held.descriptor), str(self.workspace / held.path)]
        for path in unreadable:
            assert self.workspace is not None, "what is unreadable is in a workspace"
            arguments += ["--ro-bind", os.devnull, str(self.workspace / path)]
        arguments += self._alias_arguments(mounts)
        for mount in mounts:
            if mount.kind in ("empty", "hidden") and os.path.isdir(mount.path):
                arguments += ["--remount-ro", str(mount.path)]
        arguments += ["--remount-ro", "/"]
        start_folder = cwd or self.workspace
        arguments += ["--chdir", str(start_folder) if start_folder is not None else HOME]
        arguments += [] if status_fd is None else ["--json-status-fd", str(status_fd)]
        arguments += [] if filter_fd is None else ["--seccomp", str(filter_fd)]
        leash = [] if leash_fd is None else ["/bin/sh", "-c", _leash_script(leash_fd, output_fd), "sh"]
        return [*arguments, "--", *leash, *argv]

    def mounts(self) -> list[SandboxMount]:
        """Return all mounts in the order of mounting: outer ones before inner ones. Raises CommandDenied."""
        mounts = list(self._list_mounts())
        hidden = [mount.path for mount in mounts if mount.kind == "hidden"]
        if self.workspace is not None:
            if _is_in_any(self.workspace, hidden):
                raise CommandDenied("The workspace is in a folder of the server's own.", "Name another workspace.")
            if any(path.parent != self.workspace and path.is_relative_to(self.workspace) for path in hidden):
                raise CommandDenied(
                    "A folder of the server's own is deep in the workspace, where a sandbox can't hide it.",
                    "A person has to start the server with another --home, outside the workspace.",
                )
        visible = [
            mount
            for mount in mounts
            if mount.kind not in ("readable", "writable") or not _is_in_any(mount.path, hidden)
        ]
        ordered = sorted(visible, key=lambda mount: (len(mount.path.parts), _STRICTNESS[mount.kind]))
        return list({mount.path: mount for mount in ordered}.values())  # of two at one path the stricter wins

    def protected_top_names(self) -> frozenset[str]:
        """Return the names at the top of the workspace that the program can't write anyway."""
        protected = [mount.path for mount in self.mounts() if mount.kind in ("sealed", "hidden")]
        return frozenset(path.name for path in protected if path.parent == self.workspace)

    def can_read(self, path: Path) -> bool:
        """Return whether the program can open what stands at this path now."""
        real = Path(os.path.realpath(path))
        kinds = [mount.kind for mount in self.mounts() if real.is_relative_to(mount.path)]
        return bool(kinds) and kinds[-1] in ("readable", "writable", "sealed")

    def find_problem(self) -> CommandDenied | None:
        """Try the sandbox, which takes 10 ms; return why nothing can run in it and what helps, or None if it works."""
        try:
            reason = replace(self, workspace=None).find_failure()
        except CommandDenied as error:
            return error
        return None if reason is None else explain_failure(reason)

    def find_failure(self) -> str | None:
        """Start a program in the sandbox; return bubblewrap's last words if that fails, else None.

        Raises CommandDenied if there is no bubblewrap that can be used.
        """
        try:
            with open_filter() as filter_fd:
                process = subprocess.run(
                    self.wrap(["/bin/true"], filter_fd=filter_fd),
                    capture_output=True,
                    timeout=PROBE_S,
                    check=False,
                    stdin=subprocess.DEVNULL,
                    env={},
                    pass_fds=(filter_fd,),
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"it can't be started, {type(error).__name__}"
        if process.returncode == 0:
            return None
        last_words = process.stderr.decode("utf-8", "replace").strip().splitlines()
        return (last_words or ["no reason given"])[-1].removeprefix("bwrap: ")[:200]

    def _alias_arguments(self, mounts: Sequence[SandboxMount]) -> Iterator[str]:
        """Yield arguments for links to what is let in: a path may be known by a link that stands outside the view."""
        shown = [mount.path for mount in mounts if mount.kind not in ("empty", "private")]
        for path in dict.fromkeys(self.reads):
            real = os.path.realpath(path)
            if str(path) != real and os.path.exists(real) and not _is_in_any(path, shown):
                yield from ("--symlink", real, str(path))

    def _list_mounts(self) -> Iterator[SandboxMount]:
        system = [folder for folder in SYSTEM_FOLDERS if folder.is_dir()]
        yield from _existing_mounts("readable", system)
        yield from (SandboxMount(path, "readable") for path in list_system_settings())
        if self.network and _RESOLVER_FILE.exists():
            yield SandboxMount(_RESOLVER_FILE, "readable")
        for home in (Path(os.path.realpath(path)) for path in home_folders(os.environ)):
            # The home folder of a service may be /, or the one of the system's programs.
            if home.is_dir() and not any(folder.is_relative_to(home) for folder in SYSTEM_FOLDERS):
                yield SandboxMount(home, "empty")
        for folder in PRIVATE_FOLDERS:
            if os.path.isdir(folder) and not folder.is_symlink():
                yield SandboxMount(folder, "private")
        yield from _existing_mounts("readable", self.reads)
        for cache in self.caches:
            yield SandboxMount(Path(HOME) / cache.name, "readable", cache.path)
        yield from self.stand_ins
        if self.workspace is not None:
            yield SandboxMount(self.workspace, "writable" if self.writable else "readable", self.copy)
            _refuse_links(self.workspace)
        # Elsewhere nothing can be written anyway, and a mount in an emptied home would reveal a name in it.
        writable = [Path(os.path.realpath(self.workspace))] if self.workspace is not None else []
        for sealed in _existing_mounts("sealed", (*self.sealed, *find_bubblewrap().installed)):
            if _is_in_any(sealed.path, writable):
                yield SandboxMount(_top_entry(sealed.path, self.workspace), "sealed")
        hidden = list(_existing_mounts("hidden", self.hidden))  # one inside another is hidden by it
        yield from (mount for mount in hidden if not any(other.path in mount.path.parents for other in hidden))


def check_workspace_path(workspace: Path, root: int) -> Path:
    """Return the real path of a workspace that is open as `root`. Raises CommandDenied if another folder is there now.

    The sandbox binds the path, not the descriptor: a program that inherited it could leave every sandbox by it. Nothing
    inside can move the workspace, since the folders above it are read-only there.
    """
    real = Path(os.path.realpath(workspace))
    try:
        is_same = os.path.samestat(real.stat(), os.fstat(root))
    except OSError:
        is_same = False
    if not is_same or real == Path("/"):
        raise CommandDenied(
            "The workspace is not where it was opened, or is the whole machine.",
            "Start the server again with a folder as its workspace.",
        )
    return real


def scrub_environment(environ: Mapping[str, str], search_path: str, home: str = HOME) -> dict[str, str]:
    """Return the environment for a program: the language, the kind of terminal, PATH and a private home."""
    kept = {name: environ[name] for name in sorted(environ) if name in ("LANG", "TERM") or name.startswith("LC_")}
    return {**kept, "PATH": search_path, "HOME": home}


def build_search_path(environ: Mapping[str, str], excluded: Sequence[Path], sandbox: Sandbox | None) -> str:
    """Return the server's PATH, then the usual folders, without those that are relative, missing, unreadable in the
    sandbox or inside `excluded`. So a program that a run wrote is never found by its bare name."""
    folders = [Path(part) for part in environ.get("PATH", "").split(os.pathsep) if part.startswith("/")]
    usable = [
        str(folder)
        for folder in dict.fromkeys((*folders, *map(Path, _USUAL_PATH)))
        if os.path.isdir(folder)
        and not _is_in_any(Path(os.path.realpath(folder)), excluded)
        and (sandbox is None or sandbox.can_read(folder))
    ]
    return os.pathsep.join(usable)


def _refuse_links(workspace: Path) -> None:
    """Raise CommandDenied if `.git` or `.kairos` of the workspace is a link, which no mount can cover."""
    for path in (workspace / name for name in RESERVED_NAMES):
        if path.is_symlink():
            raise CommandDenied(
                f"{path.name} of the workspace is a symbolic link, which a sandbox can't protect.",
                "A person has to put what it names in its place.",
            )


def _kernel_setting_arguments() -> Iterator[str]:
    """Yield arguments that make the kernel's settings in /proc read-only.

    A program of root could write them even without capabilities, since root owns the files. /sys, a part of /, is
    read-only already.
    """
    for entry in sorted(os.scandir("/proc"), key=lambda entry: entry.name):
        if entry.name.isdigit() or entry.is_symlink():
            continue  # a process, or a link to something of the reader's own process
        if entry.is_dir() or entry.stat().st_mode & 0o222:
            yield from ("--ro-bind-try", entry.path, entry.path)  # try: a kernel module may be unloaded meanwhile


def _top_entry(path: Path, workspace: Path | None) -> Path:
    """Return the workspace's top entry that holds the path, or the path itself if it lies outside.

    A program can't move a mount, but it could move the folders above one, and so put something else at the path for
    the next program.
    """
    if workspace is None or path == workspace or not path.is_relative_to(workspace):
        return path
    return workspace / path.relative_to(workspace).parts[0]


def _existing_mounts(kind: MountKind, paths: Sequence[Path]) -> Iterator[SandboxMount]:
    return (SandboxMount(Path(os.path.realpath(path)), kind) for path in paths if os.path.exists(path))


def _mount_arguments(mount: SandboxMount) -> list[str]:
    path = str(mount.path)
    match mount.kind:
        case "readable":
            return ["--ro-bind-try", str(mount.source or path), path]  # it may be gone by now
        case "sealed":
            return ["--ro-bind", path, path]
        case "writable":
            return ["--bind", str(mount.source or path), path]
        case "private":
            return ["--size", str(PRIVATE_BYTES), "--tmpfs", path]
        case "hidden" if not os.path.isdir(mount.path):
            return ["--ro-bind", os.devnull, path]
        case _:
            return ["--tmpfs", path]


def _is_in_any(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
