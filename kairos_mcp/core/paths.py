"""Paths that a model or a caller writes: made plain, inside the workspace; their scopes; how risky it is to touch them.

A scope is L0 for the server's own files, L1 for instructions to agents, L2 for everything else. Text only: nothing here
touches a file. What keeps a run inside its workspace is the workspace that opens files; it follows no link, so that a
plain path is the real one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import Literal, get_args

from kairos_mcp.core.effects import Effect
from kairos_mcp.core.errors import BadArguments, PathDenied
from kairos_mcp.core.instruction_files import INSTRUCTION_GLOBS
from kairos_mcp.core.quick_dataclass import dataclass

PATH_BYTES = 4096  # PATH_MAX of Linux
DEPENDENCIES = frozenset(("node_modules", ".venv", "site-packages", "vendor"))  # folders of others' packages
MAX_PATH_CHARS_SHOWN = 200
HINT = "Paths are relative to the workspace, with / between the parts, as in src/main.py."
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|file:", re.IGNORECASE)
_DRIVE = re.compile(r"[A-Za-z]:")


@lru_cache(maxsize=1_024)  # a call's path is made plain by the gate, by its scopes and by the tool
def plain_path(text: str) -> str:
    """Return the path without `.`, `..` and doubled slashes; "." is the workspace itself.

    Raises BadArguments for a malformed path, PathDenied for one that leaves the workspace. Nothing is
    expanded: ~ and $HOME are names like any other.
    """
    if not text:
        raise BadArguments("The path is empty.", 'The workspace itself is ".".')
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise BadArguments("The path holds a lone surrogate.", HINT) from None
    if size > PATH_BYTES:
        raise BadArguments(f"The path has {size} bytes; {PATH_BYTES} are the most.", HINT)
    if "\0" in text:
        raise BadArguments("The path holds a NUL character.", HINT)
    if "\\" in text:
        raise BadArguments("The path holds a backslash.", HINT)
    if _URL.match(text):
        raise BadArguments("A URL is not a path.", HINT)
    if _DRIVE.match(text):
        raise BadArguments("The path starts with a drive letter.", HINT)
    if text.startswith("/"):
        raise PathDenied("An absolute path outside the workspace is refused.", HINT)
    return _resolve_parts(text)


def fold_path(path: str) -> str:
    """Return a path without case and with accents joined to their letters, as some file systems read it."""
    return unicodedata.normalize("NFC", path.casefold())


def _resolve_parts(text: str) -> str:
    """Resolve `.` and `..` as text, which is what the kernel would do, since no link is ever followed."""
    parts: list[str] = []
    for part in text.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            raise PathDenied("The path leaves the workspace.", HINT)
    return "/".join(parts) or "."


def shorten_path(path: str) -> str:
    """Shorten a path for a message; its end is kept, which tells files apart."""
    return path if len(path) <= MAX_PATH_CHARS_SHOWN else f"…{path[-MAX_PATH_CHARS_SHOWN:]}"


def printable_name(name: str) -> str:
    """Return a name for a listing, with bytes that are not UTF-8 and control characters spelled out."""
    if name.isascii() and name.isprintable():
        return name
    spelled = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in spelled)


Scope = Literal["L0", "L1", "L2"]  # the server's own files, instructions to agents, all else
PATH_CHARS = 1024
OWN_GLOBS = (".git",)
_WILD = re.compile(r"[*?\[/]")
_NOT_RELATIVE = re.compile(r"/|[A-Za-z]:|[A-Za-z][A-Za-z0-9+.-]*://|file:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Scopes:
    """Globs of the paths that are L0 (`own`) and L1 (`instructions`), compared without regard to case; the rest is L2.

    A glob without a slash names a file or folder at any depth, with everything in it; one with a slash is a full path
    from the workspace's root. A `*` matches slashes too.
    """

    own: tuple[str, ...] = OWN_GLOBS
    instructions: tuple[str, ...] = INSTRUCTION_GLOBS

    def scope_of(self, path: str) -> Scope:
        """Return the scope of a path; one that is not plain counts as L0, since it may lead there."""
        plain = plain_path_or_none(path)
        if plain is None or _matches_any(self.own, plain):
            return "L0"
        return "L1" if _matches_any(self.instructions, plain) else "L2"


@dataclass(frozen=True, slots=True)
class Globs:
    """Globs as `Scopes` reads them, compiled for a walk through a workspace, folder by folder from its root.

    `names`: those without a wildcard, which name one file or folder.
    """

    names: tuple[str, ...] = ()
    _literal: frozenset[str] = frozenset()
    _name: re.Pattern[str] | None = None
    _path: re.Pattern[str] | None = None
    _paths: tuple[str, ...] = ()

    @staticmethod
    def compile(globs: Iterable[str]) -> Globs:
        """Compile globs; equal ones count once."""
        return _compile_for_walk(tuple(dict.fromkeys(globs)))

    def matches(self, path: str) -> bool:
        """Whether a plain path matches, given that no folder above it does."""
        folded = path.casefold()
        name = folded.rpartition("/")[2]
        if name in self._literal or (self._name is not None and self._name.match(name)):
            return True
        return self._path is not None and self._path.match(folded) is not None

    def may_match_below(self, folder: str) -> bool:
        """Whether a glob with a slash could match something below this folder."""
        parts = folder.casefold().split("/")
        return any(_may_match_below(glob.split("/"), parts) for glob in self._paths)


@lru_cache(maxsize=64)  # those of a few configurations
def _compile_for_walk(globs: tuple[str, ...]) -> Globs:
    names = tuple(glob for glob in globs if not _WILD.search(glob))
    wild = [glob.casefold() for glob in globs if _WILD.search(glob) and "/" not in glob]
    paths = [glob.casefold() for glob in globs if "/" in glob]
    folders = [glob.removesuffix("/*") for glob in paths]  # `docs/*` means the folder docs too
    return Globs(
        names,
        frozenset(map(str.casefold, names)),
        _compile_globs(wild),
        _compile_globs([*paths, *folders]),
        tuple(paths),
    )


def _may_match_below(glob: list[str], parts: list[str]) -> bool:
    for piece, part in zip(glob, parts, strict=False):
        if "*" in piece:  # which matches slashes too
            return fnmatchcase(part, piece[: piece.index("*") + 1])
        if not fnmatchcase(part, piece):
            return False
    return len(glob) > len(parts)


def _compile_globs(globs: list[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(translate, globs))) if globs else None


def plain_path_or_none(path: str) -> str | None:
    """Return the path relative to the workspace without `.` and doubled slashes; None where it is no such path.

    Stricter than `core.paths.plain_path`: any `..` is refused, so that two texts never name one file.
    """
    if not path or len(path) > PATH_CHARS or _NOT_RELATIVE.match(path) or "\\" in path or not path.isprintable():
        return None
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return "/".join(parts) if parts and ".." not in parts else None


def _matches_any(globs: tuple[str, ...], plain: str) -> bool:
    literal, name, path = _matchers(globs)
    folded = plain.casefold()
    parts = folded.split("/")
    if not literal.isdisjoint(parts) or (path is not None and path.match(folded) is not None):
        return True
    return name is not None and any(map(name.match, parts))


@lru_cache(maxsize=64)  # those of a few configurations
def _matchers(globs: tuple[str, ...]) -> tuple[frozenset[str], re.Pattern[str] | None, re.Pattern[str] | None]:
    """Compile globs: the names that they spell out, a pattern of other names, and one of full paths."""
    folded = [glob.casefold() for glob in globs]
    wild = [glob for glob in folded if _WILD.search(glob) and "/" not in glob]
    paths = [glob for glob in folded if "/" in glob]
    literal = frozenset(glob for glob in folded if not _WILD.search(glob))
    return literal, _compile_globs(wild), _compile_globs(paths)


Risk = Literal["low", "medium", "high"]
RISKS: tuple[Risk, ...] = get_args(Risk)
"""From low to high."""


def table_risk(effect: Effect | None, scopes: Sequence[Scope], *, edits_several: bool) -> Risk:
    """Return the risk of a call; high where it is not known what it changes.

    `effect`: its tool's, None if there is no such tool. `scopes`: one for each path that it touches, none if they are
    not known. `edits_several`: whether its tool may edit several files at once.
    """
    match effect:
        case "read":
            return "low"
        case None | "irreversible":
            return "high"
        case _ if "L0" in scopes:
            return "high"
        case "idempotent" | "keyed":
            return "medium"
        case "checked" if edits_several or "L1" in scopes or len(scopes) > 1:
            return "medium"
        case "checked":
            return "low" if scopes else "high"


def raise_risk(risk: Risk, declared: Risk) -> Risk:
    """Return the higher of a risk and the one that a model declared."""
    return max(risk, declared, key=RISKS.index)
