"""What a program of somebody else's may see and touch: one value that builds bubblewrap's list of arguments.

The file system is the machine's own, read-only, with holes: the homes and /run are empty, what is hidden is gone, /tmp
is private, the workspace is at its real path. Nothing here starts a program but the one look whether bubblewrap works.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kairos_mcp.core.errors import CommandDenied
from kairos_mcp.tools.commands.bubblewrap import PROBE_S, cannot_work, find_bubblewrap
from kairos_mcp.tools.commands.name_holders import is_placeholder
from kairos_mcp.tools.commands.protected_paths import HeldEntry

Kind = Literal["seen", "empty", "private", "written", "sealed", "hidden"]

SHARED_MEMORY = "/dev/shm"
HOME = f"{SHARED_MEMORY}/home"  # inside the sandbox; /dev is always its own there, where /tmp may be the workspace
PRIVATE = (Path("/tmp"), Path("/var/tmp"))
PRIVATE_BYTES = 1 << 30  # each of them and shared memory: it is memory
_EMPTY = (Path("/home"), Path("/root"), Path("/run"))  # /run holds sockets of daemons, which no namespace closes
_RUN_SEEN = (Path("/run/current-system"),)  # where NixOS has its programs
_RESOLVER = Path("/etc/resolv.conf")  # often a link into /run
_USUAL_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
_RANK: Mapping[Kind, int] = {"seen": 0, "empty": 1, "private": 1, "written": 2, "sealed": 3, "hidden": 4}
_NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
# No shell reads the arguments. It ends that one program, never "all": without a namespace around it, that would be us.
_LEASH = '( (read -r _ <&$FD; kill -9 $$) >/dev/null 2>&1 & ); exec "$@" $FD<&-'


@dataclass(frozen=True, slots=True)
class SandboxPath:
    """A path and what is there inside; the deepest place above a path says what holds for it."""

    path: Path
    kind: Kind


@dataclass(frozen=True, slots=True)
class Sandbox:
    """`workspace` is bound at its real path, to be written or only read; `.git` and `.kairos` in it are never written.

    `hidden` folders and files are never seen (the state folder with its keys, the configuration), whatever else is
    said; `sealed` ones are never written, nor what lies beside them in the same top folder of the workspace. `lasting`:
    it runs on when placeholders in the workspace, which are there for others, are gone: they are left out. `reads`
    and `writes` are let in beside, as a toolchain or a cache in the home folder, which is empty otherwise. Without
    `network` there is a loopback interface of its own and no other.
    """

    workspace: Path | None
    network: bool = False
    writable: bool = True
    hidden: tuple[Path, ...] = ()
    sealed: tuple[Path, ...] = ()
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    lasting: bool = False

    def wrap(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        status_fd: int | None = None,
        leash_fd: int | None = None,
        protected: Sequence[HeldEntry] = (),
    ) -> list[str]:
        """`argv` inside the sandbox: for a process started with a scrubbed environment, in a session of its own.

        bubblewrap writes JSON to `status_fd`, the child's pid first and, where the program was begun, its exit code.
        All that runs inside dies with the *thread* that starts this; but for the milliseconds in which bubblewrap sets
        itself up it would not. `leash_fd` (3 to 9) is the reading end of a pipe that nobody writes to: the program
        ends when its other end is closed, which covers them. `protected` is what of the workspace is not written
        (`sealed`), and what lies above, which can't be moved away. Raises CommandDenied where it can't be built.
        """
        places = self.places()
        built = [str(find_bubblewrap().path), *_NAMESPACES, "--new-session", "--die-with-parent", "--cap-drop", "ALL"]
        built += [] if self.network else ["--unshare-net"]
        built += ["--ro-bind", "/", "/", "--proc", "/proc", *_sealed_kernel(), "--dev", "/dev"]
        built += ["--size", str(PRIVATE_BYTES), "--tmpfs", SHARED_MEMORY, "--dir", HOME]
        for place in places:
            built += _mount(place)
        for held in protected:
            assert self.workspace is not None, "what is protected lies in a workspace"
            bind = "--ro-bind-fd" if held.sealed or not self.writable else "--bind-fd"
            built += [bind, str(held.descriptor), str(self.workspace / held.path)]
        for place in places:
            if place.kind in ("empty", "hidden") and os.path.isdir(place.path):
                built += ["--remount-ro", str(place.path)]
        standing = cwd or self.workspace
        built += ["--chdir", str(standing) if standing is not None else HOME]
        built += [] if status_fd is None else ["--json-status-fd", str(status_fd)]
        leash = [] if leash_fd is None else ["/bin/sh", "-c", _LEASH.replace("$FD", str(leash_fd)), "sh"]
        return [*built, "--", *leash, *argv]

    def places(self) -> list[SandboxPath]:
        """What is where, in the order of mounting: a deeper place after the one that it is in. Raises CommandDenied."""
        found = list(self._places())
        shut = [place.path for place in found if place.kind == "hidden"]
        if self.workspace is not None:
            if _beneath(self.workspace, shut):
                raise CommandDenied("The workspace lies in a folder of the server's own.", "Name another workspace.")
            if any(path.parent != self.workspace and path.is_relative_to(self.workspace) for path in shut):
                raise CommandDenied(
                    "A folder of the server's own lies deep in the workspace, where a sandbox can't hide it.",
                    "A person has to start the server with another --home, outside the workspace.",
                )
        open_to = [place for place in found if place.kind not in ("seen", "written") or not _beneath(place.path, shut)]
        ranked = sorted(open_to, key=lambda place: (len(place.path.parts), _RANK[place.kind]))
        return list({place.path: place for place in ranked}.values())  # of two at one path the stricter one

    def tops(self) -> frozenset[str]:
        """The names at the workspace's top that the program can't write anyway."""
        shut = [place.path for place in self.places() if place.kind in ("sealed", "hidden")]
        return frozenset(path.name for path in shut if path.parent == self.workspace)

    def sees(self, path: Path) -> bool:
        """Whether the program can open what is there now."""
        real = Path(os.path.realpath(path))
        above = [place.kind for place in self.places() if real.is_relative_to(place.path)]
        return not above or above[-1] in ("seen", "written", "sealed")

    def why_not(self) -> CommandDenied | None:
        """Why nothing can run inside this sandbox here, and what helps; None where it works. It is tried, which takes
        10 ms."""
        try:
            tried = subprocess.run(
                replace(self, workspace=None).wrap(["/bin/true"]),
                capture_output=True,
                timeout=PROBE_S,
                check=False,
                stdin=subprocess.DEVNULL,
                env={},
            )
        except CommandDenied as error:
            return error
        except (OSError, subprocess.TimeoutExpired) as error:
            return cannot_work(f"it can't be started, {type(error).__name__}")
        if tried.returncode == 0:
            return None
        last_words = tried.stderr.decode("utf-8", "replace").strip().splitlines()
        return cannot_work((last_words or ["no reason given"])[-1].removeprefix("bwrap: ")[:200])

    def _places(self) -> Iterator[SandboxPath]:
        for folder in dict.fromkeys(Path(os.path.realpath(each)) for each in (*_EMPTY, *_home())):
            if os.path.isdir(folder) and folder != Path("/"):
                yield SandboxPath(folder, "empty")
        for folder in PRIVATE:
            if os.path.isdir(folder) and not folder.is_symlink():
                yield SandboxPath(folder, "private")
        yield from _there("seen", (*self.reads, *_RUN_SEEN, *((_RESOLVER,) if self.network else ())))
        yield from _there("written", self.writes)
        if self.workspace is not None:
            yield SandboxPath(self.workspace, "written" if self.writable else "seen")
            yield from _own(self.workspace, placeholders=not self.lasting)
        # Elsewhere nothing can be written anyway, and a mount in an empty home would show what it is called there.
        writable = [Path(os.path.realpath(each)) for each in (*self.writes, *filter(None, [self.workspace]))]
        for sealed in _there("sealed", (*self.sealed, *find_bubblewrap().installed)):
            if _beneath(sealed.path, writable):
                yield SandboxPath(_topmost(sealed.path, self.workspace), "sealed")
        hidden = list(_there("hidden", self.hidden))  # what lies in another one is gone with it
        yield from (each for each in hidden if not any(other.path in each.path.parents for other in hidden))


def rooted(workspace: Path, root: int) -> Path:
    """The real path of a workspace that is open as `root`. Raises CommandDenied where another folder is there now.

    The path is bound, not the descriptor: one that was lent to a program would lead it out of every sandbox. Nothing
    inside can move the workspace, since the folders above it are read-only there.
    """
    real = Path(os.path.realpath(workspace))
    try:
        same = os.path.samestat(real.stat(), os.fstat(root))
    except OSError:
        same = False
    if not same or real == Path("/"):
        raise CommandDenied("The workspace is not where it was opened, or is the whole machine.", "Start anew, on one.")
    return real


def scrubbed(environ: Mapping[str, str], path: str, home: str = HOME) -> dict[str, str]:
    """What a program is told of its environment: the language, the terminal's kind, PATH and a private home."""
    told = {name: environ[name] for name in sorted(environ) if name in ("LANG", "TERM") or name.startswith("LC_")}
    return {**told, "PATH": path, "HOME": home}


def search_path(environ: Mapping[str, str], shut_out: Sequence[Path], sandbox: Sandbox | None) -> str:
    """The server's own PATH without folders that are relative, missing, not seen, or inside `shut_out`: a program that
    a run wrote is never found by its bare name."""
    named = [Path(part) for part in environ.get("PATH", "").split(os.pathsep) if part.startswith("/")]
    fit = [
        str(folder)
        for folder in dict.fromkeys((*named, *map(Path, _USUAL_PATH)))
        if os.path.isdir(folder)
        and not _beneath(Path(os.path.realpath(folder)), shut_out)
        and (sandbox is None or sandbox.sees(folder))
    ]
    return os.pathsep.join(fit)


def _own(workspace: Path, *, placeholders: bool) -> Iterator[SandboxPath]:
    """What no run writes, where it is there: `.git`, a folder or the file of a linked worktree, and `.kairos`. Raises
    CommandDenied for a link, which nothing can cover."""
    for found in (workspace / ".kairos", workspace / ".git"):
        try:
            kind = found.lstat()
        except OSError:
            continue
        if is_placeholder(kind) and not placeholders:
            continue
        if stat.S_ISLNK(kind.st_mode):
            raise CommandDenied(
                f"{found.name} of the workspace is a symbolic link, which a sandbox can't protect.",
                "A person has to put what it names in its place.",
            )
        yield SandboxPath(found, "sealed")


def _sealed_kernel() -> Iterator[str]:
    """Arguments that make read-only what of /proc belongs to no process: settings of the kernel, which a root's program
    could write although it has no capability, since it owns the files. /sys is read-only already, as a part of /."""
    for entry in sorted(os.scandir("/proc"), key=lambda each: each.name):
        if entry.name.isdigit() or entry.is_symlink():
            continue  # of processes, or a name for something of the reader's own process
        if entry.is_dir() or entry.stat().st_mode & 0o222:
            yield from ("--ro-bind-try", entry.path, entry.path)  # try: a kernel's module may go meanwhile


def _topmost(path: Path, workspace: Path | None) -> Path:
    """Of a path inside the workspace the part right below it: what is mounted over can't be moved away by a program,
    but the folders above it could, and the next program would find something else at that path."""
    if workspace is None or path == workspace or not path.is_relative_to(workspace):
        return path
    return workspace / path.relative_to(workspace).parts[0]


def _there(kind: Kind, paths: Sequence[Path]) -> Iterator[SandboxPath]:
    return (SandboxPath(Path(os.path.realpath(path)), kind) for path in paths if os.path.exists(path))


def _mount(place: SandboxPath) -> list[str]:
    path = str(place.path)
    match place.kind:
        case "seen" | "sealed":
            return ["--ro-bind", path, path]
        case "written":
            return ["--bind", path, path]
        case "private":
            return ["--size", str(PRIVATE_BYTES), "--tmpfs", path]
        case "hidden" if not os.path.isdir(place.path):
            return ["--ro-bind", os.devnull, path]
        case _:
            return ["--tmpfs", path]


def _beneath(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _home() -> Iterator[Path]:
    try:
        yield Path.home()
    except RuntimeError:  # a user without a home has nothing to hide there
        return
