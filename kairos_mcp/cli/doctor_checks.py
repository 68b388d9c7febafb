"""Check what needs no state file, a function for each matter: what works here, and how to mend what does not."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Literal

from kairos_mcp.cli.host_entries import HostEntry, find_own_entries
from kairos_mcp.cli.hosts import HOSTS
from kairos_mcp.cli.own_start import find_unsafe_start, takes_modules_here
from kairos_mcp.core.errors import BadArguments, KairosError
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.settings.file_ownership import list_readable_secrets
from kairos_mcp.settings.folders import current_folder, run_skill_folders
from kairos_mcp.settings.http_definition import HttpDefinition
from kairos_mcp.settings.names import unknown_variables
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import ServerSetting

_NETWORK_FILE_SYSTEMS = (
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
_SYSTEM_FOLDERS = tuple(Path(name) for name in ("/etc", "/opt", "/usr/local", "/usr/local/etc"))
_MAX_NAMED = 5
_LITTLE_SPACE_BYTES = 256 * 1024 * 1024


FindingState = Literal["ok", "note", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: `ok` works, `note` works with less, `bad` does not work; `cure` says what to do."""

    matter: str
    state: FindingState
    text: str
    cure: str = ""


def check_environment(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Run every check that does not open the state file."""
    entries = list(find_own_entries(environ, list(dict.fromkeys((current_folder(), *settings.workspaces)))))
    yield from check_python(environ)
    yield from _check_hosts(entries)
    yield _check_sqlite()
    yield _check_re2()
    yield _check_state_folder(settings.home)
    # SQLite's WAL needs shared memory and real locks, which may fail in silence over a network.
    kind = file_system_of(settings.home)
    if kind is not None and kind.startswith(_NETWORK_FILE_SYSTEMS):
        cure = "Name a folder on a disk of this machine by --home DIR."
        yield Finding("state folder", "note", f"it is on {kind}, where locks can't be trusted", cure)
    for text in list_readable_secrets(settings, environ):
        yield Finding("settings", "note", *text.split(": ", 1))
    yield from _check_workspaces(settings, entries)
    yield _check_containment()
    yield _check_exchange()
    yield _check_sandbox(settings)
    yield from readable_by_root(os.geteuid())
    yield from check_server_commands(settings)
    yield from _check_http_tools(settings)
    yield from check_flow(settings)
    yield from _check_script(settings.script)
    yield from _check_provider(settings, environ)
    yield _check_route(settings)
    if settings.read_only:
        yield Finding("read_only", "ok", "runs only read; nothing is approved, no mandate is saved or run")
    yield from _check_prompts(settings)
    yield from _check_skills(settings)
    for name, similar in unknown_variables(environ):
        cure = f"Is {similar} meant? Else unset it." if similar else "Check its spelling, or unset it."
        yield Finding("environment", "note", f"{name} is not a setting and is ignored", cure)


def check_python(environ: Mapping[str, str]) -> Iterator[Finding]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield Finding("python", "ok", f"{version} at {sys.executable}")
    named = environ.get("PYTHONPATH", "")
    if named and not all(os.path.isabs(part) for part in named.split(os.pathsep)):
        text = f"PYTHONPATH={named} has an empty or relative part: each Python program, as this one, runs modules of"
        cure = "Take that part out where PYTHONPATH is set, as in a shell's profile."
        yield Finding("python", "note", f"{text} the folder that it is started in", cure)


def _check_hosts(entries: Sequence[HostEntry]) -> Iterator[Finding]:
    """Name the entries in hosts' files that let the folder which a host opens bring Python modules of its own."""
    from kairos_mcp.cli.install import ENTRY

    for host, file, name, is_project, words in entries:
        if find_unsafe_start(words) is None:
            continue
        text = f"the entry {name} in {file} starts `python -m` without -P: a folder that the host opens"
        cure = 'Write "-P" before "-m" there.'
        if name == ENTRY:
            project = " --project" if is_project else ""
            where = f" in the folder of {file}" if is_project else ""
            cure = f"`kairos-mcp install {host} --write{project}`{where} corrects it."
        yield Finding("hosts", "bad", f"{text} can bring modules that run instead of ours", cure)


def _check_sqlite() -> Finding:
    try:
        import apsw
    except ImportError as error:
        return Finding("sqlite", "bad", f"apsw can't be loaded: {error}", "Install kairos-mcp again.")
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")) < _SAFE_SQLITE:
        return Finding("sqlite", "bad", f"{version} is too old for several servers", "pip install -U apsw")
    return Finding("sqlite", "ok", f"{version} (apsw {apsw.apsw_version()})")


def _check_re2() -> Finding:
    try:
        import re2
    except ImportError as error:
        return Finding("search", "bad", f"RE2 can't be loaded: {error}", "Install kairos-mcp again.")
    return Finding("search", "ok", f"RE2 {'matches' if re2.search('a+', 'aa') else 'fails'}")


def _check_state_folder(home: Path) -> Finding:
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    if not existing.is_dir():
        return Finding("state folder", "bad", f"{existing} is not a folder", "Name another by --home DIR.")
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding("state folder", "bad", f"{existing} can't be written", "Name another by --home DIR.")
    free = shutil.disk_usage(existing).free
    if free < _LITTLE_SPACE_BYTES:
        return Finding("state folder", "note", f"{home}: {free >> 20} MB are free", "Make room.")
    made = "" if existing == home else "; it is made at the first run"
    return Finding("state folder", "ok", f"{home}{made}")


def file_system_of(path: Path) -> str | None:
    """The type of the file system that holds a path, as Linux names it; None if that can't be found out."""
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


def _check_workspaces(settings: Settings, entries: Sequence[HostEntry]) -> Iterator[Finding]:
    for entry in entries:
        host, named = HOSTS[entry.host], entry.workspaces
        whose = f"of {host.name}, the entry {entry.name} in {entry.file}"
        if named:
            where = ", ".join("the folder that is open" if each == host.open_folder else each for each in named)
            yield Finding("workspace", "ok", f"{whose}: {where}")
        elif settings.origins["workspaces"] != "file":
            text = f"{whose}: none, so its server has no file tools"
            yield Finding("workspace", "note", text, "Give it --workspace DIR.")
    if not settings.workspaces and not entries:
        text = "none, so `serve` has no file tools; no host's file has an entry that names one"
        cure = "Start it with --workspace DIR, or `kairos-mcp install HOST`; `run` and `demo` use the current folder."
        yield Finding("workspace", "note", text, cure)
    for folder in settings.workspaces:
        if not os.access(folder, os.R_OK | os.X_OK):
            yield Finding("workspace", "bad", f"{folder} can't be read", "Give yourself the right to, or leave it out.")
        elif (home := settings.home.resolve()).is_relative_to(folder):
            text = f"{folder} contains the state folder, which no tool sees"
            if home.parent == folder:
                yield Finding("workspace", "ok", text)
            else:
                cure = "Name another --home: a sandbox hides it only at the top of a workspace or outside."
                yield Finding("workspace", "note", f"{text}; programs can't be run there", cure)
        else:
            yield Finding("workspace", "ok", str(folder))


def _check_containment() -> Finding:
    from kairos_mcp.tools.files.safe_open import kernel_opener

    handle = os.open(os.sep, os.O_RDONLY)
    try:
        found = kernel_opener(handle)
    except OSError as error:
        text = f"openat2 is there and fails ({error.strerror}): files can't be opened"
        return Finding("containment", "bad", text, "Report it to the maintainers of this program.")
    finally:
        os.close(handle)
    if found is not None:
        return Finding("containment", "ok", "openat2 keeps file tools inside the workspace")
    return Finding("containment", "ok", "no openat2 here: paths are walked folder by folder, which is slower")


def _check_exchange() -> Finding:
    """Check whether a file can be compared while it is replaced, or only right before."""
    from kairos_mcp.tools.files.safe_open import find_renameat2

    if find_renameat2() is not None:
        return Finding("writing", "ok", "renameat2 exchanges a file with its successor and shows what was replaced")
    text = "no renameat2 here: what another program writes between the comparison and the rename is lost"
    return Finding("writing", "note", text, "Let no other program write into a workspace while runs change files.")


def _check_sandbox(settings: Settings) -> Finding:
    """Check the sandbox by starting a program in it that does nothing."""
    from kairos_mcp.tools.commands.bubblewrap import find_bubblewrap, read_version
    from kairos_mcp.tools.commands.sandbox import Sandbox

    needed = settings.commands == "sandboxed" or any(server.command and server.sandbox for server in settings.servers)
    if settings.commands == "bare":
        cure = 'Set commands = "sandboxed", or "off".'
        return Finding("sandbox", "note", 'UNSAFE: commands = "bare", so run_command does whatever you may do', cure)
    problem = Sandbox(None).find_problem()
    if problem is None:
        found = find_bubblewrap()
        return Finding("sandbox", "ok", f"{read_version(found)} works ({found.path}, {found.origin})")
    if not needed:
        return Finding("sandbox", "note", f"{problem.message} Nothing that is configured needs it")
    text = f"{problem.message} run_command and servers with a sandbox are refused"
    return Finding("sandbox", "note", text, problem.hint)


def readable_by_root(user: int) -> Iterator[Finding]:
    """Name the files that only root may read and that a sandbox does not hide from the programs of a root's server."""
    if user != 0:
        return
    from kairos_mcp.tools.commands.sandbox import Sandbox

    sandbox = Sandbox(None)
    if sandbox.find_problem() is not None:
        return  # nothing runs in one here, which is a finding of its own
    exposed = [path for path in _paths_for_root_alone() if sandbox.can_read(path)]
    if exposed:
        more = f" and {len(exposed) - _MAX_NAMED} more" if len(exposed) > _MAX_NAMED else ""
        named = ", ".join(str(path) for path in exposed[:_MAX_NAMED])
        text = f"this is root, so programs and servers in a sandbox read what only root may: {named}{more}"
        yield Finding("sandbox", "note", text, "Start it as a plain user, who owns the workspace.")


def _paths_for_root_alone() -> Iterator[Path]:
    """Files and folders two levels deep in the usual places that no plain user may read."""
    for top in _SYSTEM_FOLDERS:
        for folder in (top, *sorted(path for path in top.glob("*") if path.is_dir() and not path.is_symlink())):
            for path in sorted(folder.glob("*")):
                status = path.lstat()
                if not path.is_symlink() and status.st_mode & 0o004 == 0 and status.st_size:
                    yield path


def check_server_commands(settings: Settings) -> Iterator[Finding]:
    for server in settings.servers:
        if server.command and not server.sandbox:
            text = f"UNSAFE: {server.name} runs without a sandbox, so it can do whatever you can"
            yield Finding("servers", "note", text, f"Take sandbox = false out of [servers.{server.name}].")
        if (
            server.command
            and (server.cwd is None or "${workspace}" in server.cwd)
            and takes_modules_here(server.command)
        ):
            text = f"{server.name} starts Python in the workspace, whose modules come before those that are installed"
            yield Finding("servers", "note", text, f'Begin its args with "-P" in [servers.{server.name}].')


def check_flow(settings: Settings) -> Iterator[Finding]:
    """Say what flows through the tools of each server and through each HTTP tool; of a server that may be read unasked,
    what becomes of private words in the arguments of such calls."""
    labelled: tuple[ServerSetting | HttpDefinition, ...] = (*settings.servers, *settings.http_tools)
    for each in labelled:
        yield Finding("labels", "ok", f"{each.name}: {_describe_labels(each)}")
    what = {"ask": "a person is asked", "deny": "such calls are not made", "off": "NOBODY IS ASKED"}[settings.flow.mode]
    for server in settings.servers:
        if not any(effect == "read" for _, effect in server.effects):
            continue
        reaches = {reach for _, reach in server.reaches}
        if not reaches:
            text = f"nothing says how far the arguments of {server.name} get, so they count as reaching outside: {what}"
            cure = f'State it in [servers.{server.name}]: reaches = "service" where only those read it whom you trust.'
            yield Finding("flow", "note", text, cure)
        elif "outside" in reaches:
            text = f"{server.name} reads outside: private words could leave by its arguments; {what}"
            yield Finding("flow", "note" if settings.flow.mode == "off" else "ok", text)


def _describe_labels(stated_by: ServerSetting | HttpDefinition) -> str:
    """Say what flows through tools as the settings state it, and what counts where they don't."""
    words = []
    for name, otherwise in (("reaches", "outside"), ("trusted", False), ("private", True)):
        stated = getattr(stated_by, name)
        by_glob = dict(stated) if isinstance(stated, tuple) else {"*": stated}
        by_glob.setdefault("*", f"{otherwise} (not stated)")
        shown = [f"{value}" if glob == "*" else f"{glob} {value}" for glob, value in by_glob.items()]
        words.append(f"{name} {', '.join(shown)}".lower())
    return "; ".join(words)


def _check_http_tools(settings: Settings) -> Iterator[Finding]:
    """Name the tools of `[[http_tools]]` whose calls would be refused for their host."""
    if not settings.http_tools:
        return
    from kairos_mcp.tools.http.addresses import find_refused_tools

    for text, cure in find_refused_tools(settings):
        yield Finding("http tools", "note", text, cure)


def _check_script(script: Path | None) -> Iterator[Finding]:
    if script is None:
        return
    from kairos_mcp.models.answers import Script

    try:
        Script.parse(script.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        yield Finding("script", "bad", f"{script} can't be read: {error}", "Name another, or unset KAIROS_SCRIPT.")
    except KairosError as error:
        yield Finding("script", "bad", f"{script}: {error.message}", error.hint)
    else:
        yield Finding("script", "ok", str(script))


def _check_provider(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the provider's configuration; nothing is sent to it here."""
    if settings.model is None:
        if settings.script is None:
            text = "none is set: a host uses its own, and `run` asks you in its place"
            cure = "For a model in the terminal set KAIROS_MODEL=openai:gpt-5 and OPENAI_API_KEY."
            yield Finding("model", "note", text, cure)
        return
    from kairos_mcp.models.pricing import Tariff
    from kairos_mcp.models.provider_errors import key_variable

    finding = partial(Finding, "provider")
    if settings.model_key is not None:
        yield _check_key(settings.model_key)
    variable = key_variable(settings.model.partition(":")[0])
    where = f"{settings.model} at {settings.base_url}" if settings.base_url else settings.model
    if settings.model_key is not None:
        yield finding("ok", where)
    elif not environ.get(variable) and settings.base_url is None:
        yield finding("note", f"{where}; {variable} is not set", f"Set {variable}, or your provider's own.")
    else:
        yield finding("ok", f"{where}, {'with' if environ.get(variable) else 'without'} a key")
    if Tariff.from_settings(settings, settings.model).highest_price() is None:
        cure = "Set price_input and price_output, if runs are to be limited in dollars."
        yield finding("note", "its price is not known", cure)


def _check_key(reference: str) -> Finding:
    from kairos_mcp.settings.secret_refs import read_secret

    try:
        read_secret(reference)
    except KairosError as error:
        return Finding("key", "bad", error.message, error.hint)
    return Finding("key", "ok", f"there is one at {reference}")


def _check_route(settings: Settings) -> Finding:
    """Check which route a run gets that asks for none. A client's own model is known only once the client calls."""
    from kairos_mcp.core.routes import AUTO, choose_route
    from kairos_mcp.specs.build import available_routes
    from kairos_mcp.views.command_text import name_commands

    try:
        route, why = choose_route(settings.route, available_routes(settings, samples=False))
    except BadArguments as error:
        return Finding("route", "bad", error.message, error.hint)
    reasons = why if settings.route == AUTO else (f"{route}, as the {settings.origins['route']} says",)
    return Finding("route", "ok", name_commands(" ".join(reasons)))


def _check_prompts(settings: Settings) -> Iterator[Finding]:
    """Name the prompts that the user has replaced; a file that replaces none is misnamed."""
    ours, users = (folder / "prompts" for folder in settings.config_dirs)
    known = {file.name for file in ours.glob("*.md")}
    if not known:
        yield Finding("prompts", "bad", f"none at {ours}", "Install kairos-mcp again.")
    for file in sorted(users.glob("*")):
        if file.name in known:
            yield Finding("prompts", "ok", f"{file.stem} is replaced by {file}")
        else:
            yield Finding("prompts", "note", f"{file} replaces nothing", f"Ours are: {', '.join(sorted(known))}.")


def _check_skills(settings: Settings) -> Iterator[Finding]:
    """Count the skills that a run may read, and name the ones that can't be read or are not there."""
    from kairos_mcp.tools.skills import SkillFolders

    for folder in settings.skills:
        if not folder.is_dir():
            yield Finding(
                "skills", "note", f"{folder} is not a folder", "Name a folder that contains folders of skills."
            )
    with closing(SkillFolders(run_skill_folders(settings))) as folders:
        listing = folders.list_skills()
    yield Finding("skills", "ok", f"{len(listing.skills)} that read_skill reads")
    for reason in listing.left_out:
        yield Finding("skills", "note", f"left out: {reason}", "Repair its SKILL.md, or remove it.")
