"""Says what a call touches: the one place where the gate learns which files and folders the arguments of a call name.

For the author of a tool:

- A tool of ours (`source` "builtin") names its files in `path` and in `edits[].path`, relative to the workspace. They
  are judged as text alone, since its opener follows no link and leaves the workspace by no way. A new built-in tool
  that takes files has to take them there.
- Any other tool (of a downstream server, of an installed package, a request over HTTP, one of the caller's) needs to
  do nothing. Every text of its arguments is looked at, at any depth, in lists and in the keys of objects. A text that
  may name a file is resolved against the workspace, links followed, and the gate judges the real path.

What may name a file (`_is_pathlike`): a value whose property is named for one (`path`, `files`, `sourceFile`,
`destination`, `uri` ...); a `file:` URL; a text without white space that begins like a path, names something that is
there or would lie in a folder that is there, or bears the name of a file that agents take orders from. An http(s) URL
never does.

One text can be read in several ways: percent-encoded, with a backslash for a slash, with `..` taken before or after a
link. All ways count: a deny or ask rule holds if it fits one of them, an allow rule only if it covers all. What no way
resolves (a home folder, a variable, a wildcard, a loop of links, what /proc shows) is `unresolved`.

The look reads the file system, so it is made in a worker thread: when the gate judges, and again right before the call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.messages import JsonObject, ToolSpec
from kairos_mcp.core.paths import PATH_BYTES, plain_path
from kairos_mcp.core.scopes import Scopes, plain_path_or_none
from kairos_mcp.core.text import has_hidden_characters
from kairos_mcp.settings.settings import ServerSetting
from kairos_mcp.tools.skills import READ_SKILL

TEXTS = 2_000  # of one call that may name files; of one with more nobody knows what it touches
FOLDER_ENTRIES = 2_000  # looked at for instructions in a folder that a call names; one with more may hold some
ONE_WORD_CHARS = 1_024  # a longer text is a path only where its property is named for one
JOINED = 64  # pairs of a folder and a relative path that are also read as one path

_ENDINGS = ("path", "paths", "file", "files", "dir", "dirs", "folder", "folders", "directory", "directories")
_NAMES = frozenset(("pathname", "filename", "filenames", "fname", "cwd", "workdir", "uri", "uris"))
_NAMES_TOO = frozenset(  # they name files in some tools, and texts of any length in others
    ("source", "sources", "src", "destination", "destinations", "dest", "dst", "target", "targets", "output", "root")
)
_NO_FILES = frozenset(("profile", "profiles"))
_ABOUT_FILES = frozenset(  # a property whose last word is one of these says something about files and names none
    ("type", "types", "format", "mode", "kind", "encoding", "size", "count", "limit", "id", "ids", "extension", "style")
)
_PARTS = frozenset(("name", "from", "to"))  # name a file where they stand in an object under a property of files
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_BEGINS = re.compile(r"[./~\\]|[A-Za-z]:[\\/]|file:|\$\{?\w+\}?/|%[A-Za-z_]\w*%", re.IGNORECASE)
_WEB = re.compile(r"https?://", re.IGNORECASE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_UNKNOWN = re.compile(r"~|\$\{?\w+\}?/|%[A-Za-z_]\w*%|[A-Za-z]:[\\/]|.*[*?]", re.DOTALL)  # read by each in its own way
_ANOTHERS = ("/proc/", "/dev/fd/", "/dev/std")  # at these each process sees something else
_SPACE = re.compile(r"\s")
_JOINS = re.compile(r"[^\w./\\~%+-]+")  # what may stand between the parts of a text that joins several
_LISTS = re.compile(r"[,;\s]+")  # and between several paths under one name


@dataclass(frozen=True, slots=True)
class TouchedSet:
    """What a call touches. `inside`: plain paths of the workspace; `outside`: real paths that lie elsewhere;
    `unresolved`: texts that may name a file, nobody knows which. `own`: among them is a file of the server itself.
    `folders`: those of `inside` that are folders now. `instructs`: one of these may hold what agents take orders from,
    or a file of the server itself. `hides`: a text of the call holds characters that nobody sees."""

    inside: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    own: bool = False
    folders: tuple[str, ...] = ()
    instructs: bool = False
    hides: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All of it, as a person is shown it and an approval holds on to it."""
        return (*self.inside, *self.outside, *self.unresolved)


def named_paths(tool: ToolSpec | None, arguments: JsonObject) -> tuple[str, ...]:
    """The paths that a call of a built-in tool names, plain where they are paths at all: `path`, and `edits[].path`. A
    tool that reads at a path and is given none reads the workspace itself; the paths of a skill are not the
    workspace's."""
    if tool is not None and (tool.name, tool.source) == (READ_SKILL, "builtin"):
        return ()
    named: list[Any] = [arguments.get("path")]
    reads = tool is not None and tool.effect == "read" and "path" in tool.input_schema.get("properties", {})
    if named == [None] and reads:
        named = ["."]
    match arguments.get("edits"):
        case list() as edits:
            named += [edit.get("path") for edit in edits if isinstance(edit, dict)]
        case _:
            pass
    return tuple(dict.fromkeys(_plain(path) for path in named if isinstance(path, str)))


class TouchedPaths:
    """What calls touch in one workspace; without one, all paths are seen from the root of the file system. `own`: the
    server's own files and folders, wherever they lie. `bases`: by the source of tools (`mcp:NAME`), the folders against
    which they may resolve a relative path, beside the workspace."""

    def __init__(
        self,
        workspace: Path | None,
        scopes: Scopes,
        own: Iterable[Path] = (),
        bases: Mapping[str, tuple[Path, ...]] | None = None,
    ) -> None:
        self._root = os.path.realpath(workspace) if workspace is not None else "/"
        self._scopes = scopes
        self._own = tuple(os.path.realpath(path) for path in own)
        self._bases = bases or {}

    def of(self, tool: ToolSpec | None, arguments: JsonObject) -> TouchedSet:
        """What this call touches, as it is now."""
        if tool is None or tool.source == "builtin":
            return TouchedSet(named_paths(tool, arguments))
        look = _ArgumentWalk(self._root, self._scopes, self._own, self._bases_of(tool))
        look.through(arguments)
        if not look.found and not look.unresolved and tool.effect == "read" and _takes_paths(tool):
            look.place(self._root, ".")  # given none, it reads the workspace itself
        return look.touched(writes=tool.effect != "read" and tool.source != "caller")

    def _bases_of(self, tool: ToolSpec) -> tuple[str, ...]:
        if tool.source.startswith("python:"):
            return (self._root, os.getcwd())
        stated = self._bases.get(tool.source.partition("#")[0], ())
        return tuple(dict.fromkeys((self._root, *(os.path.realpath(path) for path in stated))))


def stands_in(server: ServerSetting, workspace: Path | None) -> tuple[Path, ...]:
    """The folders against which a downstream server may resolve a relative path: where it is started, and those that
    its command names."""
    root = str(workspace or "/")
    named = [text.replace("${workspace}", root) for text in (*((server.cwd,) if server.cwd else ()), *server.command)]
    return tuple(Path(text) for text in named if os.path.isabs(text) and os.path.isdir(text))


@dataclass(slots=True)
class _ArgumentWalk:
    """One look at the arguments of one call."""

    root: str
    scopes: Scopes
    own: tuple[str, ...]
    bases: tuple[str, ...]
    found: dict[str, None] = field(default_factory=dict)  # real absolute paths
    unresolved: dict[str, None] = field(default_factory=dict)
    texts: int = 0
    hides: bool = False

    def through(self, arguments: JsonObject) -> None:
        """Look at every text, at any depth. A list has the name of its property; a key that names a file counts."""
        rest: list[tuple[str, Any]] = [("", arguments)]
        whole: list[str] = []
        while rest:
            name, value = rest.pop()
            match value:
                case str():
                    self.hides = self.hides or has_hidden_characters(value)
                    if self._is_pathlike(name, value):
                        self._take(value)
                        whole.append(value)
                        pieces = _LISTS.split(value)
                    else:
                        pieces = _JOINS.split(value) if _is_one_word(value) else []
                    for piece in pieces if len(pieces) > 1 else ():
                        if piece and (self._is_there(piece) or self._is_known(piece)):
                            self._take(piece)
                case dict():
                    for key, item in value.items():
                        self.hides = self.hides or has_hidden_characters(str(key))
                        if self._is_key_of_file(name, str(key)):
                            self._take(str(key))
                        rest.append(("path" if key in _PARTS and _is_named(name) else str(key), item))
                case list() | tuple():
                    rest += [(name, item) for item in value]
                case _:
                    pass
        self._join(whole)

    def touched(self, *, writes: bool) -> TouchedSet:
        inside, outside, folders = dict[str, None](), dict[str, None](), dict[str, None]()
        for real in self.found:
            plain = _within(self.root, real)
            if plain is None:
                outside[real] = None
                if _is_beneath(self.root, real):
                    plain = "."  # a folder that holds the workspace
            if plain is not None:
                inside[plain] = None
                if os.path.isdir(real):
                    folders[plain] = None
        own = any(_is_beneath(path, mine) for path in self.found for mine in self.own)
        instructs = writes and any(self._instructs(folder) for folder in folders)
        paths = (tuple(inside), tuple(outside), tuple(self.unresolved))
        return TouchedSet(*paths, own, tuple(folders), instructs, writes and any(paths) and self.hides)

    def place(self, path: str, text: str) -> None:
        """Take note of an absolute path that a text stands for: as it is written, and where its links lead."""
        plainly = "/" + os.path.normpath(path).lstrip("/")
        if plainly.startswith(_ANOTHERS):
            self.unresolved[text] = None
        if _is_beneath(plainly, self.root):
            self.found[plainly] = None
        for form in dict.fromkeys((path, plainly)):
            real = _real(form)
            if real is None:
                self.unresolved[text] = None
            else:
                self.found[self._seen_from_root(real)] = None

    def _take(self, text: str) -> None:
        self.texts += 1
        if self.texts > TEXTS:
            self.unresolved["more texts than are looked at"] = None
            return
        if len(text) > PATH_BYTES or "\0" in text:
            self.unresolved[text[:80]] = None
            return
        for reading, certain in _readings(text):
            if not reading.isprintable():
                self.unresolved[text] = None  # what is invisible may be dropped by whoever reads it
                continue
            if _UNKNOWN.match(reading) and not self._is_there(reading):
                self.unresolved[text] = None
            if reading == "~" or reading.startswith("~/"):
                self.place(os.path.expanduser(reading), text)
            if reading.startswith("/"):
                if certain or self._is_there(reading):
                    self.place(reading, text)
                continue
            for base in self.bases:
                self._place_relative(base, reading, text)

    def _place_relative(self, base: str, reading: str, text: str) -> None:
        """A relative path that leaves the workspace may lie in it for a tool that stands in another folder."""
        path = f"{base}/{reading}"
        self.place(path, text)
        if ".." in reading.split("/"):
            real = _real(path)
            if real is None or not _is_beneath(self._seen_from_root(real), self.root):
                self.unresolved[text] = None

    def _join(self, texts: list[str]) -> None:
        """A folder and a file may be given apart, as `directory` and `name`: each pair is also read as one path."""
        folders = [path for path in self.found if os.path.isdir(path) and path != self.root]
        short = [text for text in texts if len(text) <= PATH_BYTES and "\0" not in text and not _SCHEME.match(text)]
        parts = [text for text in short if not text.startswith(("/", "~"))]
        pairs = [(at, text) for at in folders for text in parts if not at.endswith(f"/{text.strip('./')}")]
        if len(pairs) > JOINED:
            self.unresolved["more folders and names than are joined"] = None
        for folder, text in pairs[:JOINED]:
            self.place(f"{folder}/{text}", text)

    def _seen_from_root(self, real: str) -> str:
        """The path by way of the workspace where one of its folders is the workspace under another name: another
        mount of it, or another case on a file system that has none."""
        if _is_beneath(real, self.root):
            return real
        above, rest = real, list[str]()
        while above not in ("/", ""):
            if _is_same(above, self.root):
                return "/".join((self.root, *reversed(rest)))
            above, _, name = above.rpartition("/")
            rest.append(name)
        return real

    def _is_pathlike(self, name: str, text: str) -> bool:
        given = text.strip()
        if not given or _WEB.match(given):
            return False
        if given[:5].lower() == "file:" or _is_named(name):
            return True
        if _is_named_too(name):
            return "\n" not in given and len(given) <= PATH_BYTES
        if not _is_one_word(given):
            return len(given) <= ONE_WORD_CHARS and "\n" not in given and self._is_there(given)
        return any(
            _BEGINS.match(reading) or self._is_there(reading) or self._is_known(reading)
            for reading, _ in _readings(given)
        )

    def _is_key_of_file(self, name: str, key: str) -> bool:
        if _is_named(name) and key.strip():
            return not key.isidentifier() or any(os.path.isfile(f"{base}/{key}") for base in self.bases)
        return any(mark in key for mark in "./\\%~") and self._is_pathlike("", key)

    def _is_there(self, text: str) -> bool:
        """Whether the text names something that is there, or something new in a folder that is there."""
        if text.startswith("/"):
            return (self.root != "/" and _is_beneath(os.path.normpath(text), self.root)) or _exists(text)
        for form in {text, os.path.normpath(text)}:
            first, slash, _ = form.partition("/")
            for base in self.bases:
                if _exists(f"{base}/{form}") or (slash and first and os.path.isdir(f"{base}/{first}")):
                    return True
        return False

    def _is_known(self, text: str) -> bool:
        """Whether a file of this name would be one that agents take orders from, or the server's own."""
        plain = plain_path_or_none(os.path.normpath(text))
        return plain is not None and self.scopes.scope_of(plain) != "L2"

    def _instructs(self, folder: str) -> bool:
        """Whether a folder of the workspace holds such a file, as far as it is looked at."""
        waiting, looked = [folder], 0
        while waiting:
            at = waiting.pop()
            try:
                with os.scandir(f"{self.root}/{at}") as entries:
                    for entry in entries:
                        path = entry.name if at == "." else f"{at}/{entry.name}"
                        looked += 1
                        if looked > FOLDER_ENTRIES or self._is_known(path):
                            return True
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(path)
            except OSError:
                continue  # what can't be listed here is not written through here either
        return False


def _is_named(name: str) -> bool:
    """Whether a property of this name holds paths: by one of its words, as `file` of `sourceFile`."""
    words = _words(name)
    ends = any(word.endswith(_ENDINGS) and word not in _NO_FILES for word in words)
    return ends or any(word in _NAMES for word in words)


def _is_named_too(name: str) -> bool:
    return name in ("from", "to") or any(word in _NAMES_TOO for word in _words(name))


def _words(name: str) -> list[str]:
    words = [word.lower() for word in _WORDS.findall(name)]
    return [] if words and words[-1] in _ABOUT_FILES else words


def _takes_paths(tool: ToolSpec) -> bool:
    properties = tool.input_schema.get("properties", {})
    return isinstance(properties, dict) and any(_is_named(str(name)) for name in properties)


def _is_one_word(text: str) -> bool:
    return len(text) <= ONE_WORD_CHARS and not _SPACE.search(text)


def _readings(text: str) -> list[tuple[str, bool]]:
    """Each path that somebody might read the text as; False: only if there is such a thing."""
    raw = [text, text.strip()]
    for each in list(raw):
        once = unquote(each)
        raw += [once, unquote(once)]  # some decode twice
    found: dict[str, bool] = {}
    for each in dict.fromkeys(raw):
        for form, certain in _without_scheme(each):
            for reading in (form, form.replace("\\", "/")):
                if reading:
                    found[reading] = found.get(reading, False) or certain
    return list(found.items())


def _without_scheme(text: str) -> Iterator[tuple[str, bool]]:
    if text[:5].lower() == "file:":
        rest = text[5:]
        yield rest, True
        if rest.startswith("//"):
            host, slash, path = rest[2:].partition("/")
            yield rest[2:], True
            yield slash + path, True
            if host not in ("", "localhost"):
                yield f"/{host}{slash}{path}", False
        return
    scheme = _SCHEME.match(text)
    if scheme is None:
        yield text, True
        return
    rest = re.split("[?#]", text[scheme.end() :], maxsplit=1)[0]
    yield rest, not rest.startswith("/")
    if path := rest.partition("/")[2].strip("/"):
        yield path, True
        yield f"/{path}", False


def _real(path: str) -> str | None:
    """Where the links of a path lead, be it that its end is not there; None for what can't be followed."""
    try:
        return os.path.realpath(path, strict=True)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError):
        return None
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return None


def _exists(path: str) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:
        return False


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _is_beneath(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _within(root: str, path: str) -> str | None:
    """The path relative to the root, "." for the root itself; None for one that lies elsewhere."""
    if not _is_beneath(path, root):
        return None
    return path[len(root.rstrip("/")) + 1 :] or "."


def _plain(path: str) -> str:
    try:
        return plain_path(path)
    except KairosError:
        return path  # the tool refuses it, and says why
