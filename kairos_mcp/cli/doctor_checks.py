"""What `doctor` looks at, one function a matter: what works here, and the cure for what does not."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kairos_mcp.core.errors import BadArguments, KairosError
from kairos_mcp.settings.file_ownership import readable_secrets
from kairos_mcp.settings.settings import Settings, skill_folders, unknown_variables

_SHARED = (
    "nfs",
    "cifs",
    "smb",
    "9p",
    "fuse.sshfs",
    "fuse.s3",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
    "vboxsf",
    "prl_fs",
)
_SAFE_SQLITE = (3, 51, 3)  # before it a WAL database can be damaged by two connections that checkpoint at once
_SYSTEM_FOLDERS = tuple(Path(name) for name in ("/etc", "/opt", "/srv", "/mnt", "/media", "/var", "/var/lib"))
_NAMED = 5
_LITTLE_SPACE = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """`ok` works, `note` works with less, `bad` does not work; `cure` says what to do."""

    matter: str
    state: Literal["ok", "note", "bad"]
    text: str
    cure: str = ""


def findings(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Everything that can be known without opening the store."""
    yield _python()
    yield _sqlite()
    yield _re2()
    yield _state_folder(settings.home)
    yield from _shared_folders(settings)
    for text in readable_secrets(settings, environ):
        yield Finding("settings", "note", *text.split(": ", 1))
    yield from _workspaces(settings)
    yield _opener()
    yield _exchange()
    yield _sandbox(settings)
    yield from readable_by_root(os.geteuid())
    yield from _servers(settings)
    yield from _script(settings.script)
    yield from _provider(settings, environ)
    yield _route(settings)
    yield from _prompts(settings)
    yield from _skills(settings)
    for name, meant in unknown_variables(environ):
        cure = f"Is {meant} meant? Else unset it." if meant else "Look for a slip, or unset it."
        yield Finding("environment", "note", f"{name} is no setting and is ignored", cure)


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Finding("python", "ok", f"{version} at {sys.executable}")


def _sqlite() -> Finding:
    try:
        import apsw
    except ImportError as error:
        return Finding("sqlite", "bad", f"apsw can't be loaded: {error}", "Install kairos-mcp again.")
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")) < _SAFE_SQLITE:
        return Finding("sqlite", "bad", f"{version} is too old for several servers", "pip install -U apsw")
    return Finding("sqlite", "ok", f"{version} (apsw {apsw.apsw_version()})")


def _re2() -> Finding:
    try:
        import re2
    except ImportError as error:
        return Finding("search", "bad", f"RE2 can't be loaded: {error}", "Install kairos-mcp again.")
    return Finding("search", "ok", f"RE2 {'matches' if re2.search('a+', 'aa') else 'fails'}")


def _state_folder(home: Path) -> Finding:
    standing = next(folder for folder in (home, *home.parents) if folder.exists())
    if not standing.is_dir():
        return Finding("state folder", "bad", f"{standing} is no folder", "Name another by --home DIR.")
    if not os.access(standing, os.W_OK | os.X_OK):
        return Finding("state folder", "bad", f"{standing} can't be written", "Name another by --home DIR.")
    free = shutil.disk_usage(standing).free
    if free < _LITTLE_SPACE:
        return Finding("state folder", "note", f"{home}: {free >> 20} MB are free", "Make room.")
    made = "" if standing == home else "; it is made at the first run"
    return Finding("state folder", "ok", f"{home}{made}")


def _shared_folders(settings: Settings) -> Iterator[Finding]:
    """SQLite's WAL needs shared memory and real locks; over a network both may fail in silence."""
    kind = file_system_of(settings.home)
    if kind is not None and kind.startswith(_SHARED):
        cure = "Name a folder on a disk of this machine by --home DIR."
        yield Finding("state folder", "note", f"it lies on {kind}, where locks can't be trusted", cure)


def file_system_of(path: Path) -> str | None:
    """The kind of file system that a path lies on, as Linux names it; None where that can't be known."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    best: tuple[int, str] | None = None
    for line in lines:
        left, _, right = line.partition(" - ")
        point = Path(left.split()[4].replace("\\040", " "))
        if path.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), right.split()[0])
    return best[1] if best else None


def _workspaces(settings: Settings) -> Iterator[Finding]:
    if not settings.workspaces:
        cure = "Start it with --workspace DIR; `run` and `demo` use the folder they stand in."
        yield Finding("workspace", "note", "none, so `serve` has no file tools", cure)
    for folder in settings.workspaces:
        if not os.access(folder, os.R_OK | os.X_OK):
            yield Finding("workspace", "bad", f"{folder} can't be read", "Give yourself the right to, or leave it out.")
        elif (inside := settings.home.resolve()).is_relative_to(folder):
            text = f"{folder} holds the state folder, which no tool sees"
            if inside.parent == folder:
                yield Finding("workspace", "ok", text)
            else:
                cure = "Name another --home: a sandbox hides it only at the top of a workspace or outside."
                yield Finding("workspace", "note", f"{text}; programs can't be run there", cure)
        else:
            yield Finding("workspace", "ok", str(folder))


def _opener() -> Finding:
    from kairos_mcp.tools.files.safe_open import kernel_opener

    handle = os.open(os.sep, os.O_RDONLY)
    try:
        found = kernel_opener(handle)
    except OSError as error:
        said = f"openat2 is there and fails ({error.strerror}): files can't be opened"
        return Finding("containment", "bad", said, "Tell whoever maintains this program.")
    finally:
        os.close(handle)
    if found is not None:
        return Finding("containment", "ok", "openat2 keeps file tools inside the workspace")
    return Finding("containment", "ok", "no openat2 here: paths are walked folder by folder, which is slower")


def _exchange() -> Finding:
    """Whether a file that is written can be compared as it is replaced, or only right before."""
    from kairos_mcp.tools.files.safe_open import find_renameat2

    if find_renameat2() is not None:
        return Finding("writing", "ok", "renameat2 exchanges a file with its successor and shows what was replaced")
    text = "no renameat2 here: what another program writes between the comparison and the rename is lost"
    return Finding("writing", "note", text, "Let no other program write into a workspace while runs change files.")


def _sandbox(settings: Settings) -> Finding:
    """It is tried, around a program that does nothing."""
    from kairos_mcp.tools.commands.bubblewrap import find_bubblewrap, read_version
    from kairos_mcp.tools.commands.sandbox import Sandbox

    needed = settings.commands == "sandboxed" or any(server.command and server.sandbox for server in settings.servers)
    if settings.commands == "bare":
        cure = 'Set commands = "sandboxed", or "off".'
        return Finding("sandbox", "note", 'UNSAFE: commands = "bare", so run_command does whatever you may do', cure)
    why = Sandbox(None).find_problem()
    if why is None:
        found = find_bubblewrap()
        return Finding("sandbox", "ok", f"{read_version(found)} works ({found.path}, {found.origin})")
    if not needed:
        return Finding("sandbox", "note", f"{why.message} Nothing that is configured needs it")
    text = f"{why.message} run_command and servers with a sandbox are refused"
    return Finding("sandbox", "note", text, why.hint)


def readable_by_root(user: int) -> Iterator[Finding]:
    """Names what a sandbox doesn't hide from the programs of a server that is root: files that root alone may read."""
    if user != 0:
        return
    from kairos_mcp.tools.commands.sandbox import Sandbox

    sandbox = Sandbox(None)
    closed = [path for path in _for_root_alone() if sandbox.can_read(path)]
    if closed:
        more = f" and {len(closed) - _NAMED} more" if len(closed) > _NAMED else ""
        named = ", ".join(str(path) for path in closed[:_NAMED])
        text = f"this is root, so programs and servers in a sandbox read what only root may: {named}{more}"
        yield Finding("sandbox", "note", text, "Start it as a plain user, who owns the workspace.")


def _for_root_alone() -> Iterator[Path]:
    """Files and folders two levels deep in the usual places that no plain user may read."""
    for top in _SYSTEM_FOLDERS:
        for folder in (top, *sorted(each for each in top.glob("*") if each.is_dir() and not each.is_symlink())):
            for path in sorted(folder.glob("*")):
                kind = path.lstat()
                if not path.is_symlink() and kind.st_mode & 0o004 == 0 and kind.st_size:
                    yield path


def _servers(settings: Settings) -> Iterator[Finding]:
    for server in settings.servers:
        if server.command and not server.sandbox:
            text = f"UNSAFE: {server.name} runs without a sandbox, so it does whatever you may do"
            yield Finding("servers", "note", text, f"Take sandbox = false out of [servers.{server.name}].")


def _script(script: Path | None) -> Iterator[Finding]:
    if script is None:
        return
    from kairos_mcp.models.scripted import Script

    try:
        Script.parse(script.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        yield Finding("script", "bad", f"{script} can't be read: {error}", "Name another, or unset KAIROS_SCRIPT.")
    except KairosError as error:
        yield Finding("script", "bad", f"{script}: {error.message}", error.hint)
    else:
        yield Finding("script", "ok", str(script))


def _provider(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Nothing is asked of the provider: that would cost something, and doctor is free."""
    if settings.model is None:
        return
    from kairos_mcp.models.pricing import Tariff
    from kairos_mcp.models.provider_errors import key_variable

    if settings.model_key is not None:
        yield _check_key(settings.model_key)
    variable = key_variable(settings.model.partition(":")[0])
    where = f"{settings.model} at {settings.base_url}" if settings.base_url else settings.model
    if settings.model_key is not None:
        yield Finding("provider", "ok", where)
    elif not environ.get(variable) and settings.base_url is None:
        yield Finding("provider", "note", f"{where}; {variable} is not set", f"Set {variable}, or your provider's own.")
    else:
        yield Finding("provider", "ok", f"{where}, {'with' if environ.get(variable) else 'without'} a key")
    if Tariff.configured(settings, settings.model).dearest() is None:
        cure = "Set price_input and price_output, if runs are to be limited in dollars."
        yield Finding("provider", "note", "its price is not known", cure)


def _check_key(reference: str) -> Finding:
    from kairos_mcp.settings.secret_refs import secret

    try:
        secret(reference)
    except KairosError as error:
        return Finding("key", "bad", error.message, error.hint)
    return Finding("key", "ok", f"there is one at {reference}")


def _route(settings: Settings) -> Finding:
    """What a run gets here that asks for no route. A client that offers its model is known only when it calls."""
    from kairos_mcp.core.routes import choose_route
    from kairos_mcp.specs.build import available_routes

    try:
        route, why = choose_route(settings.route, available_routes(settings, settings.script is not None, False))
    except BadArguments as error:
        return Finding("route", "bad", error.message, error.hint)
    said = why if settings.route == "auto" else (f"{route}, as the {settings.origins['route']} says",)
    return Finding("route", "ok", " ".join(said))


def _prompts(settings: Settings) -> Iterator[Finding]:
    """A replaced prompt is said; one that replaces nothing is a slip."""
    ours, users = (folder / "prompts" for folder in settings.config_dirs)
    known = {file.name for file in ours.glob("*.md")}
    if not known:
        yield Finding("prompts", "bad", f"none at {ours}", "Install kairos-mcp again.")
    for file in sorted(users.glob("*")):
        if file.name in known:
            yield Finding("prompts", "ok", f"{file.stem} is replaced by {file}")
        else:
            yield Finding("prompts", "note", f"{file} replaces nothing", f"Ours are: {', '.join(sorted(known))}.")


def _skills(settings: Settings) -> Iterator[Finding]:
    """How many a run may read; what can't be read of them, or is named and not there."""
    from kairos_mcp.tools.skills import SkillFolders

    for folder in settings.skills:
        if not folder.is_dir():
            yield Finding("skills", "note", f"{folder} is no folder", "Name a folder that holds folders of skills.")
    with closing(SkillFolders(skill_folders(settings))) as shelves:
        listing = shelves.listing()
    yield Finding("skills", "ok" if listing.skills else "note", f"{len(listing.skills)} to be read by read_skill")
    for why in listing.left_out:
        yield Finding("skills", "note", f"left out: {why}", "Repair its SKILL.md, or remove it.")
