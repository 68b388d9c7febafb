"""Finds what makes git start programs in a repository, and takes it out: hooks, and settings such as core.fsmonitor.

Git reads them wherever a person works next, so no program may leave any. Of a repository's settings only those stay
that are known to start nothing: git has dozens that do, and each version brings more.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterator, Mapping

from kairos_mcp.tools.files.safe_open import open_without_links

FileTexts = Mapping[str, bytes]  # by the path below the git folder

MAX_FILES = 500  # that may start programs, of one repository
MAX_FILE_BYTES = 256 * 1024
_MAX_FOLDERS = 2_000
_DATA_FOLDERS = frozenset(("objects", "refs", "logs", "lfs", "reftable"))  # git runs nothing that lies there
_SETTINGS_FILES = frozenset(("config", "config.worktree"))
_POINTERS = frozenset(("commondir",))  # where git finds the settings of a linked worktree
_OWN_POINTER = b"../.."  # of a linked worktree to the repository that it lies in
_REPOSITORY_ENTRIES = ({"HEAD", "objects", "refs"}, {"HEAD", "commondir"})
REPOSITORY_NAMES = frozenset(name for entries in _REPOSITORY_ENTRIES for name in entries)
_SAFE_SETTINGS: Mapping[str, Collection[str]] = {
    "branch": ("merge", "rebase", "remote"),
    "core": (
        *("autocrlf", "bare", "eol", "filemode", "ignorecase", "logallrefupdates", "precomposeunicode"),
        *("repositoryformatversion", "symlinks"),
    ),
    "extensions": ("compatobjectformat", "objectformat", "partialclone", "refstorage"),
    "remote": ("fetch", "promisor", "partialclonefilter", "tagopt", "url"),
    "submodule": ("active", "url"),
    "user": ("email", "name"),
}
_SECTION = re.compile(r'\[([A-Za-z0-9.-]+)(?: "[\w./@+ -]*")?\]')
_SETTING = re.compile(r"([A-Za-z][A-Za-z0-9-]*)(?:\s*=\s*([^\\\"]*))?")
_ADDRESS = re.compile(r"(?:https?|ssh|git|file)://[^\s:][^\s]*|[\w.-]+@[\w.-]+:[\w./~-]+|[./][\w./ -]*")


def is_repository(names: Collection[str]) -> bool:
    """Whether git takes a folder with these entries for a repository, whatever the folder is called."""
    return any(entries.issubset(names) for entries in _REPOSITORY_ENTRIES)


def read_program_files(git_fd: int) -> dict[str, bytes] | None:
    """Return what may make git start programs in the git folder that is open as `git_fd`; of a link its target.

    None for a folder with more, or with larger ones, than any repository has.
    """
    found: dict[str, bytes] = {}
    try:
        for path, above, name in _list_program_files(git_fd):
            content = _read_file(above, name)
            if content is None or len(found) == MAX_FILES:
                return None
            found[path] = content
    except OverflowError:
        return None
    return found


def without_programs(found: FileTexts) -> dict[str, bytes]:
    """Return these files without what could start programs."""
    parts = ((path, _keep_harmless_part(path, content)) for path, content in found.items())
    return {path: part for path, part in parts if part is not None}


def write_program_files(git_fd: int, found: FileTexts, wanted: FileTexts) -> None:
    """Make these files, which `read_program_files` has `found`, what they should be. Raises OSError."""
    for path in sorted({*found, *wanted}):
        if found.get(path) != wanted.get(path):
            _replace_file(git_fd, path, wanted.get(path))


def _list_program_files(git_fd: int) -> Iterator[tuple[str, int, str]]:
    """Yield (path, folder's descriptor, name) of what may start programs. Raises OverflowError for too many folders."""
    folders = [""]
    for number, folder in enumerate(folders):
        if number == _MAX_FOLDERS:
            raise OverflowError
        with contextlib.suppress(OSError):  # it is gone
            folder_fd = open_without_links(git_fd, filter(None, folder.split("/")))
            try:
                with os.scandir(folder_fd) as entries:
                    listed = sorted(entries, key=lambda entry: entry.name)
                for entry in listed:
                    path = folder + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        folders += [] if entry.name in _DATA_FOLDERS else [f"{path}/"]
                    elif _may_start_programs(entry, folder):
                        yield path, folder_fd, entry.name
            finally:
                os.close(folder_fd)


def _may_start_programs(entry: os.DirEntry[str], folder: str) -> bool:
    if folder.endswith("hooks/") or entry.name in _SETTINGS_FILES | _POINTERS:
        return not entry.name.endswith(".sample")
    return entry.is_symlink() and entry.name != "HEAD"  # it may stand for a folder of hooks


def _read_file(above: int, name: str) -> bytes | None:
    """Return a file's content, of a link its target; None if it is too large, b"" if it is neither."""
    kind = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
    if stat.S_ISLNK(kind):
        return b"[a link to] " + os.fsencode(os.readlink(name, dir_fd=above))
    if not stat.S_ISREG(kind):
        return b""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
    with os.fdopen(fd, "rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    return None if len(content) > MAX_FILE_BYTES else content


def _replace_file(git_fd: int, path: str, content: bytes | None) -> None:
    """Put a new file at the path, or none: what stood there may be a link, or be open elsewhere. Raises OSError."""
    folder, _, name = path.rpartition("/")
    folder_fd = open_without_links(git_fd, filter(None, folder.split("/")))
    try:
        if content is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder_fd)
            return
        beside = f".{name}-{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        mode = 0o755 if "hooks" in folder.split("/") else 0o644
        with os.fdopen(os.open(beside, flags, mode, dir_fd=folder_fd), "wb") as file:
            file.write(content)
        os.rename(beside, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    finally:
        os.close(folder_fd)


def _keep_harmless_part(path: str, content: bytes) -> bytes | None:
    """Return what may stay of a file; None if nothing of it may."""
    name = path.rpartition("/")[2]
    if name in _SETTINGS_FILES and not content.startswith(b"[a link to] "):
        return _keep_harmless_settings(content)
    if name in _POINTERS and content.strip() == _OWN_POINTER:
        return content
    return None


def _keep_harmless_settings(content: bytes) -> bytes:
    """Keep the lines of a settings file that are known to start nothing; the file itself, if all of them are."""
    lines = content.decode("utf-8", "replace").split("\n")
    kept: list[str] = []
    section, heading = None, ""
    is_whole = True
    for line in lines:
        plain = line.strip()
        if (found := _SECTION.fullmatch(plain)) is not None:
            section, heading = found[1].lower(), plain
        elif plain and _is_harmless_setting(section, plain):
            kept += [heading] if heading else []
            kept.append(f"\t{plain}")
            heading = ""
        elif plain and plain[0] not in "#;":
            is_whole = False
            # What follows a line that we can't read may not belong to the section that we think.
            section = section if _SETTING.fullmatch(plain) else None
    return content if is_whole else "".join(f"{line}\n" for line in kept).encode()


def _is_harmless_setting(section: str | None, line: str) -> bool:
    found = _SETTING.fullmatch(line)
    if section is None or found is None or found[1].lower() not in _SAFE_SETTINGS.get(section, ()):
        return False
    return found[1].lower() != "url" or _ADDRESS.fullmatch((found[2] or "").strip()) is not None
