"""Check that no other user can write the state folder or the settings file.

Whoever can write there decides which programs run. Nothing is changed here; a refusal names the command that helps.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.settings.names import TRUST_VARIABLE
from kairos_mcp.settings.settings import Settings

SERVER_CACHES = "server-caches"  # in the state folder: what servers in sandboxes download, and run again there
MAX_CHECKED_ENTRIES = 5_000  # entries of the state folder, which normally has some dozens
ROOT = 0


def check_state_folder(home: Path, environ: Mapping[str, str]) -> None:
    """Raise ConfigError where the folder, something in it or a folder above it belongs to another user or is writable.

    Of a folder that doesn't exist yet, those above it are checked.
    """
    if _is_trusted(environ):
        return
    for path in dict.fromkeys((*home.parents, *Path(os.path.realpath(home)).parents)):
        _check_path(path, home, is_parent=True)
    if not os.path.lexists(home) or (os.path.exists(home) and not os.path.isdir(home)):
        return  # a file in its place is named by whoever opens it; nothing can be written there that a server obeys
    _check_path(home, home, is_parent=home.is_symlink())
    real = Path(os.path.realpath(home))
    _check_path(real, home)
    for path in islice(_walk_folder(real, without=real / SERVER_CACHES), MAX_CHECKED_ENTRIES):
        _check_path(path, home)


def check_settings_file(file: Path, environ: Mapping[str, str]) -> None:
    """Raise ConfigError where another user can write the file, or owns it; root may."""
    if not _is_trusted(environ):
        _check_path(Path(os.path.realpath(file)), file, other_owner=ROOT)


def list_readable_secrets(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """List the secrets that stand in the settings file while other users can read it, a sentence each."""
    file = settings.config_file
    if file is None or _is_trusted(environ):
        return []
    try:
        found = os.stat(file)
    except OSError:
        return []
    readers = stat.S_IROTH | (0 if _is_private(found.st_gid) else stat.S_IRGRP)
    if not found.st_mode & readers:
        return []
    return [
        f"{file} can be read by other users, and {place} holds a secret: `chmod 600 {shlex.quote(str(file))}`, or "
        "write env:NAME there and set that variable."
        for place in _list_plain_secrets(settings)
    ]


def _list_plain_secrets(settings: Settings) -> Iterator[str]:
    from kairos_mcp.core.redaction import Redactor, is_key_name
    from kairos_mcp.settings.http_definition import find_references  # at first use, as what follows

    redactor = Redactor.from_environ({})
    places = (
        *((f"servers.{definition.name}.headers", definition.headers) for definition in settings.servers),
        *((f"servers.{definition.name}.env", definition.env) for definition in settings.servers),
        *((f"http_tools.{definition.name}.headers", definition.headers) for definition in settings.http_tools),
    )
    for place, pairs in places:
        for name, value in pairs:
            if find_references(value):
                continue
            line = f"{name}: {value}"
            if is_key_name(name) or redactor.redact_text(line).text != line:
                yield f"{place}.{name}"


def _is_trusted(environ: Mapping[str, str]) -> bool:
    return not hasattr(os, "geteuid") or environ.get(TRUST_VARIABLE, "") not in ("", "0")


def _walk_folder(folder: Path, without: Path) -> Iterator[Path]:
    """Yield everything below a folder, but what is in the folder `without`: only its owner can enter that, and uv
    makes files there that every user may write. Links are yielded, but not followed."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield (path := Path(entry.path))
                if entry.is_dir(follow_symlinks=False) and path != without:
                    yield from _walk_folder(path, without)
    except OSError:  # whoever needs the folder will report it
        return


def _check_path(path: Path, home: Path, *, is_parent: bool = False, other_owner: int | None = None) -> None:
    """Raise ConfigError where another user owns the path or can write it.

    `is_parent`: a folder that root may own, and whose sticky bit protects names from other users. `other_owner`: a
    further user who may own the path.
    """
    try:
        found = path.lstat()
    except OSError:
        return
    owners = {os.geteuid(), other_owner, *((ROOT, _overflow_user()) if is_parent else ())}
    else_named = f"or name another folder by --home. Where the file system has no owners and modes: {TRUST_VARIABLE}=1."
    if found.st_uid not in owners:
        raise ConfigError(
            f"{path} belongs to another user ({_user_name(found.st_uid)}), so it is not used.",
            f"Make it yours (`sudo chown -R {os.geteuid()} {shlex.quote(str(home))}`), {else_named}",
        )
    if stat.S_ISLNK(found.st_mode) or (is_parent and found.st_mode & stat.S_ISVTX):
        return
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid)):
        who = "every user" if found.st_mode & stat.S_IWOTH else f"the group {_group_name(found.st_gid)}"
        cure = f"chmod go-w {shlex.quote(str(path))}" if is_parent else f"chmod -R go-w {shlex.quote(str(home))}"
        raise ConfigError(
            f"{path} can be written by {who}, so it is not used.",
            f"`{cure}`, {else_named}",
        )


def _is_private(group: int) -> bool:
    """Whether a group is the user's private one: their primary group, of the same name, without other members."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


def _overflow_user() -> int | None:
    """Return the user id that a user namespace shows for files of users outside it, as the machine's root."""
    try:
        rows = [line.split() for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()]
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    is_mapped = any(int(first) <= overflow < int(first) + int(count) for first, _, count in rows)
    return None if is_mapped else overflow


def _user_name(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _group_name(group: int) -> str:
    import grp

    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)
