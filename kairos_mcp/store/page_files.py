"""Where the page for people is served, and the codes by which a browser enters it: files that their owner alone reads.

A page is alive while its process holds the lock on the file with its address, as a server is (ownership.py). A code is
kept as a hash, in a file of that name: whoever removes the file has used it, so no code is used twice.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

FOLDER = "page"
CODE_S = 120  # how long a code is good for
_CODE_BYTES = 24
_CODE_CHARS = 64  # no code is as long


@contextmanager
def published_page(home: Path, url: str) -> Iterator[None]:
    """Let other processes know that the page is served at this URL, while the block lasts."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = home / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.address"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, url.encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def find_pages(home: Path) -> list[str]:
    """Return the URLs at which pages of this state folder are served now."""
    return [url for path in (home / FOLDER).glob("*.address") if (url := _read_living(path)) is not None]


def find_page_ports(home: Path) -> frozenset[int]:
    """Return the ports on which pages of this state folder are served now."""
    return frozenset(port for url in find_pages(home) if (port := urlsplit(url).port) is not None)


def _read_living(path: Path) -> str | None:
    """Return the address in a file whose process lives; remove the file of one that has ended."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(descriptor, 1_000).decode() or None
    finally:
        os.close(descriptor)
    path.unlink(missing_ok=True)
    return None


def make_code(home: Path) -> str:
    """Make a code by which a browser enters the page once, within CODE_S seconds; remove those that nobody used."""
    for path in (home / FOLDER).iterdir():
        with suppress(FileNotFoundError):
            if path.suffix in (".code", ".html") and _age_s(path) > CODE_S:
                path.unlink()
    code = secrets.token_urlsafe(_CODE_BYTES)
    os.close(os.open(_code_path(home, code), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    return code


def write_redirect(home: Path, link: str) -> Path:
    """Write a file that leads a browser to this link, and return its path: programs' arguments are seen by all."""
    path = home / FOLDER / f"{secrets.token_hex(8)}.html"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(link)}"><title>Kairos</title>')
    return path


def use_code(home: Path, code: str) -> bool:
    """Use a code up. False where it was used before, is older than CODE_S seconds, or never was one."""
    if len(code) > _CODE_CHARS:
        return False
    path = _code_path(home, code)
    try:
        age_s = _age_s(path)
        path.unlink()
    except FileNotFoundError:
        return False
    return 0 <= age_s <= CODE_S


def _code_path(home: Path, code: str) -> Path:
    return home / FOLDER / f"{sha256(code.encode()).hexdigest()}.code"


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime
