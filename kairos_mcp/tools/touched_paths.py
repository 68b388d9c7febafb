"""Finds which files and folders a call touches, by its arguments. The gate's rules on paths see what is found here.

For the author of a tool:

- A built-in tool (`source` "builtin") is protected by the names of its arguments: only `path` and `edits[].path` count
  (of a program its `cwd`), relative to the workspace. They are judged as text, since a Workspace follows no link and
  opens nothing outside. A path in any other argument is not found here. The gate judges the call a second time by the
  files that its preview names (`GatedCall.preview_paths`): so the files of a plan are judged, of which the call has
  only the id.
- For any other tool (of a downstream server, of an installed package, a request over HTTP, one of the caller's) there
  is nothing to declare, but names help: every text in the arguments is searched, at any depth, in lists and in keys
  of objects. A text that may name a file is resolved against the workspace, links are followed, and the gate judges
  the real path. Name the argument `path` or `file`: then its value always counts as a path, whatever it looks like.

These texts may name a file (`_is_pathlike`): a value whose property is named for files (`path`, `files`, `sourceFile`,
`destination`, `uri` ...); a `file:` URL; a text without white space that begins like a path, that names something
existing or something in an existing folder, or that is the name of a file from which agents take instructions. An
http(s) URL never does.

One text can be read in several ways: percent-encoded, with a backslash for a slash, with `..` taken before or after a
link. All readings count: a deny or ask rule applies if it matches one of them, an allow rule only if it covers all.
What can't be resolved (a home folder, a variable, a wildcard, a loop of links, what /proc shows) is `unresolved`.

The search reads the file system, so it runs in a worker thread: when the gate judges, and again right before the call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from kairos_mcp.core.builtin_tools import READ_SKILL, RUN_COMMAND
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.hidden_text import has_hidden_characters
from kairos_mcp.core.messages import JsonObject, ToolSpec
from kairos_mcp.core.paths import PATH_BYTES, Scopes, plain_path, plain_path_or_none
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.settings.table_values import ServerSetting
from kairos_mcp.tools.commands.git_programs import REPOSITORY_NAMES, is_repository

MAX_TEXTS = 2_000  # of one call that may name files; a call with more counts as unresolved
# Searched for instructions below a folder that a call names; one with more counts as holding some.
MAX_FOLDER_ENTRIES = 2_000
ONE_WORD_CHARS = 1_024  # a longer text is a path only where its property is named for one
MAX_JOINED = 64  # pairs of a folder and a relative path that are also tried as one path

_PATH_ENDINGS = ("path", "paths", "file", "files", "dir", "dirs", "folder", "folders", "directory", "directories")
_PATH_WORDS = frozenset(("pathname", "filename", "filenames", "fname", "cwd", "workdir", "uri", "uris"))
# They name files in some tools and other texts in others: only a value of one line counts.
_MAYBE_PATH_WORDS = frozenset(
    ("source", "sources", "src", "destination", "destinations", "dest", "dst", "target", "targets", "output", "root")
)
_NO_PATH_WORDS = frozenset(("profile", "profiles"))
# A property whose last word is one of these describes files but names none.
_ATTRIBUTE_WORDS = frozenset(
    ("type", "types", "format", "mode", "kind", "encoding", "size", "count", "limit", "id", "ids", "extension", "style")
)
_PATH_MEMBERS = frozenset(("name", "from", "to"))  # they name a file inside an object under a property that names files
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_PATH_START = re.compile(r"[./~\\]|[A-Za-z]:[\\/]|file:|\$\{?\w+\}?/|%[A-Za-z_]\w*%", re.IGNORECASE)
_WEB = re.compile(r"https?://", re.IGNORECASE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# Every program expands these in its own way.
_UNRESOLVABLE = re.compile(r"~|\$\{?\w+\}?/|%[A-Za-z_]\w*%|[A-Za-z]:[\\/]|.*[*?]", re.DOTALL)
_PER_PROCESS = ("/proc/", "/dev/fd/", "/dev/std")  # every process sees something else at these
_SPACE = re.compile(r"\s")
_PART_SEPARATORS = re.compile(r"[^\w./\\~%+-]+")  # what may stand between the parts of a text that joins several
_LIST_SEPARATORS = re.compile(r"[,;\s]+")  # and between several paths under one name


@dataclass(frozen=True, slots=True)
class TouchedSet:
    """What a call touches.

    `inside`: plain paths in the workspace; `outside`: real paths elsewhere; `unresolved`: texts that may name a file,
    but can't be resolved. `has_own_files`: a path is one of the server's own. `folders`: those of `inside` that are
    folders now. `has_instructions`: one of these folders may hold files from which agents take instructions, or the
    server's own. `has_hidden_text`: a text of the call has invisible characters.
    """

    inside: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    has_own_files: bool = False
    folders: tuple[str, ...] = ()
    has_instructions: bool = False
    has_hidden_text: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All of it, as a person is shown it; an approval counts for exactly these."""
        return (*self.inside, *self.outside, *self.unresolved)


def with_relative_paths(tool: ToolSpec | None, arguments: JsonObject, workspace: str) -> JsonObject:
    """Return the arguments of a call with the paths relative that are absolute and lie in the workspace, where a
    built-in tool names files; the same object if it names none."""
    if tool is None or tool.source != "builtin" or READ_SKILL.is_tool(tool):
        return arguments
    found: JsonObject = {name: _relative(arguments[name], workspace) for name in ("path", "cwd") if name in arguments}
    match arguments.get("edits"):
        case list() as edits:
            found["edits"] = [_relative_edit(edit, workspace) for edit in edits]
        case _:
            pass
    changed = {name: value for name, value in found.items() if value != arguments[name]}
    return {**arguments, **changed} if changed else arguments


def _relative_edit(edit: Any, workspace: str) -> Any:
    return {**edit, "path": _relative(edit["path"], workspace)} if isinstance(edit, dict) and "path" in edit else edit


def _relative(path: Any, workspace: str) -> Any:
    if not isinstance(path, str) or not f"{path}/".startswith(f"{workspace}/"):
        return path
    return path.removeprefix(workspace).lstrip("/") or "."


def read_named_paths(tool: ToolSpec | None, arguments: JsonObject) -> tuple[str, ...]:
    """Return the paths that a call of a built-in tool names in `path` and `edits[].path`, made plain if possible.

    A program is judged by the folder that it is started in (`cwd`). A reading tool without a `path` reads the workspace
    itself. The paths of read_skill lie in no workspace.
    """
    if READ_SKILL.is_tool(tool):
        return ()
    is_program = RUN_COMMAND.is_tool(tool)
    paths: list[Any] = [arguments.get("cwd" if is_program else "path")]
    reads_at_path = tool is not None and tool.effect == "read" and "path" in tool.input_schema.get("properties", {})
    if paths == [None] and reads_at_path:
        paths = ["."]
    match arguments.get("edits"):
        case list() as edits:
            paths += [edit.get("path") for edit in edits if isinstance(edit, dict)]
        case _:
            pass
    return tuple(dict.fromkeys(_normalize(path) for path in paths if isinstance(path, str)))


class TouchedPaths:
    """Finds what calls touch, for one workspace; without one, paths are relative to the root of the file system.

    `own_paths`: the server's own files and folders, wherever they lie. `bases`: by source of tools (`mcp:NAME`), more
    folders against which its tools may resolve a relative path.
    """

    def __init__(
        self,
        workspace: Path | None,
        scopes: Scopes,
        own_paths: Iterable[Path] = (),
        bases: Mapping[str, tuple[Path, ...]] | None = None,
    ) -> None:
        self._root = os.path.realpath(workspace) if workspace is not None else "/"
        self._scopes = scopes
        self._own_paths = tuple(os.path.realpath(path) for path in own_paths)
        self._bases = bases or {}

    def find(self, tool: ToolSpec | None, arguments: JsonObject) -> TouchedSet:
        """Return what this call touches now."""
        if tool is None or tool.source == "builtin":
            return TouchedSet(read_named_paths(tool, arguments))
        walk = _ArgumentWalk(self._root, self._scopes, self._own_paths, self._bases_of(tool))
        walk.visit(arguments)
        if not walk.real_paths and not walk.unresolved and tool.effect == "read" and _takes_paths(tool):
            walk.add_path(self._root, ".")  # without a path it reads the workspace itself
        return walk.build_result(writes=tool.effect != "read" and not tool.is_caller_tool)

    def writes_repository(self, paths: Iterable[str]) -> bool:
        """Return whether a folder above one of these paths is a repository for git, or is one with what they add."""
        added: dict[str, set[str]] = {}
        for path in paths:
            parts = path.split("/")
            for depth, part in enumerate(parts):
                added.setdefault("/".join(parts[:depth]), set()).add(part.casefold())
        return any(
            is_repository(
                {
                    name
                    for name in REPOSITORY_NAMES
                    if name.casefold() in names or os.path.lexists(f"{self._root}/{folder}/{name}")
                }
            )
            for folder, names in added.items()
        )

    def _bases_of(self, tool: ToolSpec) -> tuple[str, ...]:
        if tool.source.startswith("python:"):
            return (self._root, os.getcwd())
        bases = self._bases.get(tool.source.partition("#")[0], ())
        return tuple(dict.fromkeys((self._root, *(os.path.realpath(path) for path in bases))))


def base_folders(server: ServerSetting, workspace: Path | None) -> tuple[Path, ...]:
    """Return the folders against which a downstream server may resolve relative paths: its working folder, and those
    that its command names."""
    root = str(workspace or "/")
    folders = [text.replace("${workspace}", root) for text in (*((server.cwd,) if server.cwd else ()), *server.command)]
    return tuple(Path(text) for text in folders if os.path.isabs(text) and os.path.isdir(text))


@dataclass(slots=True)
class _ArgumentWalk:
    """One search through the arguments of one call, and what it has found so far."""

    root: str
    scopes: Scopes
    own_paths: tuple[str, ...]
    bases: tuple[str, ...]
    real_paths: dict[str, None] = field(default_factory=dict)  # real absolute paths
    unresolved: dict[str, None] = field(default_factory=dict)
    text_count: int = 0
    has_hidden_text: bool = False

    def visit(self, arguments: JsonObject) -> None:
        """Search every text, at any depth. The items of a list have the name of its property; keys are searched too."""
        pending: list[tuple[str, Any]] = [("", arguments)]
        path_texts: list[str] = []
        while pending:
            name, value = pending.pop()
            match value:
                case str():
                    self.has_hidden_text = self.has_hidden_text or has_hidden_characters(value)
                    if self._is_pathlike(name, value):
                        self._add_text(value)
                        path_texts.append(value)
                        pieces = _LIST_SEPARATORS.split(value)
                    else:
                        pieces = _PART_SEPARATORS.split(value) if _is_one_word(value) else []
                    for piece in pieces if len(pieces) > 1 else ():
                        if piece and (self._may_exist(piece) or self._is_protected_name(piece)):
                            self._add_text(piece)
                case dict():
                    for key, item in value.items():
                        self.has_hidden_text = self.has_hidden_text or has_hidden_characters(str(key))
                        if self._is_pathlike_key(name, str(key)):
                            self._add_text(str(key))
                        pending.append(("path" if key in _PATH_MEMBERS and _names_paths(name) else str(key), item))
                case list() | tuple():
                    pending += [(name, item) for item in value]
                case _:
                    pass
        self._add_joined_paths(path_texts)

    def build_result(self, *, writes: bool) -> TouchedSet:
        inside, outside, folders = dict[str, None](), dict[str, None](), dict[str, None]()
        for real in self.real_paths:
            if _is_in_folder(real, self.root):
                plain = real[len(self.root.rstrip("/")) + 1 :] or "."
            else:
                outside[real] = None
                if not _is_in_folder(self.root, real):
                    continue
                plain = "."  # a folder that holds the workspace
            inside[plain] = None
            if os.path.isdir(real):
                folders[plain] = None
        has_own_files = any(_is_in_folder(path, folder) for path in self.real_paths for folder in self.own_paths)
        has_instructions = writes and any(self._holds_instructions(folder) for folder in folders)
        paths = (tuple(inside), tuple(outside), tuple(self.unresolved))
        return TouchedSet(
            *paths, has_own_files, tuple(folders), has_instructions, writes and any(paths) and self.has_hidden_text
        )

    def add_path(self, path: str, text: str) -> None:
        """Record an absolute path that a text stands for: as it is written, and where its links lead."""
        normalized = "/" + os.path.normpath(path).lstrip("/")
        if normalized.startswith(_PER_PROCESS):
            self.unresolved[text] = None
        if _is_in_folder(normalized, self.root):
            self.real_paths[normalized] = None
        for form in dict.fromkeys((path, normalized)):
            real = _resolve_links(form)
            if real is None:
                self.unresolved[text] = None
            else:
                self.real_paths[self._map_to_root(real)] = None

    def _add_text(self, text: str) -> None:
        self.text_count += 1
        if self.text_count > MAX_TEXTS:
            self.unresolved["more texts than are looked at"] = None
            return
        if len(text) > PATH_BYTES or "\0" in text:
            self.unresolved[text[:80]] = None
            return
        for reading, certain in _possible_readings(text):
            if not reading.isprintable():
                self.unresolved[text] = None  # another program may drop the invisible characters
                continue
            if _UNRESOLVABLE.match(reading) and not self._may_exist(reading):
                self.unresolved[text] = None
            if reading == "~" or reading.startswith("~/"):
                self.add_path(os.path.expanduser(reading), text)
            if reading.startswith("/"):
                if certain or self._may_exist(reading):
                    self.add_path(reading, text)
                continue
            for base in self.bases:
                self._add_relative_path(base, reading, text)

    def _add_relative_path(self, base: str, reading: str, text: str) -> None:
        """Record a relative path. One that leaves the workspace is also unresolved: the tool may run in another folder,
        from which the path leads back into it."""
        path = f"{base}/{reading}"
        self.add_path(path, text)
        if ".." in reading.split("/"):
            real = _resolve_links(path)
            if real is None or not _is_in_folder(self._map_to_root(real), self.root):
                self.unresolved[text] = None

    def _add_joined_paths(self, texts: list[str]) -> None:
        """Record each pair of a folder and a relative path as one path too: they may be given apart, as `directory` and
        `name`."""
        folders = [path for path in self.real_paths if os.path.isdir(path) and path != self.root]
        usable = [text for text in texts if len(text) <= PATH_BYTES and "\0" not in text and not _SCHEME.match(text)]
        relative = [text for text in usable if not text.startswith(("/", "~"))]
        pairs = [
            (folder, text) for folder in folders for text in relative if not folder.endswith(f"/{text.strip('./')}")
        ]
        if len(pairs) > MAX_JOINED:
            self.unresolved["more folders and names than are joined"] = None
        for folder, text in pairs[:MAX_JOINED]:
            self.add_path(f"{folder}/{text}", text)

    def _map_to_root(self, real: str) -> str:
        """Return the path by way of the workspace, if one of the folders above it is the workspace under another name:
        another mount of it, or another case on a file system that ignores case."""
        if _is_in_folder(real, self.root):
            return real
        folder, names = real, list[str]()
        while folder not in ("/", ""):
            if _is_same(folder, self.root):
                return "/".join((self.root, *reversed(names)))
            folder, _, name = folder.rpartition("/")
            names.append(name)
        return real

    def _is_pathlike(self, name: str, text: str) -> bool:
        stripped = text.strip()
        if not stripped or _WEB.match(stripped):
            return False
        if stripped[:5].lower() == "file:" or _names_paths(name):
            return True
        if name in ("from", "to") or any(word in _MAYBE_PATH_WORDS for word in _property_words(name)):
            return "\n" not in stripped and len(stripped) <= PATH_BYTES
        if not _is_one_word(stripped):
            return len(stripped) <= ONE_WORD_CHARS and "\n" not in stripped and self._may_exist(stripped)
        return any(
            _PATH_START.match(reading) or self._may_exist(reading) or self._is_protected_name(reading)
            for reading, _ in _possible_readings(stripped)
        )

    def _is_pathlike_key(self, name: str, key: str) -> bool:
        if _names_paths(name) and key.strip():
            return not key.isidentifier() or any(os.path.isfile(f"{base}/{key}") for base in self.bases)
        return any(sign in key for sign in "./\\%~") and self._is_pathlike("", key)

    def _may_exist(self, text: str) -> bool:
        """Return whether the text names something that exists, or something new in an existing folder."""
        if text.startswith("/"):
            return (self.root != "/" and _is_in_folder(os.path.normpath(text), self.root)) or _exists(text)
        for form in {text, os.path.normpath(text)}:
            first, slash, _ = form.partition("/")
            for base in self.bases:
                if _exists(f"{base}/{form}") or (slash and first and os.path.isdir(f"{base}/{first}")):
                    return True
        return False

    def _is_protected_name(self, text: str) -> bool:
        """Return whether a file of this name would instruct agents or be the server's own."""
        plain = plain_path_or_none(os.path.normpath(text))
        return plain is not None and self.scopes.scope_of(plain) != "L2"

    def _holds_instructions(self, folder: str) -> bool:
        """Return whether a folder of the workspace holds such a file, or has too many entries to tell."""
        pending, count = [folder], 0
        while pending:
            current = pending.pop()
            try:
                with os.scandir(f"{self.root}/{current}") as entries:
                    for entry in entries:
                        path = entry.name if current == "." else f"{current}/{entry.name}"
                        count += 1
                        if count > MAX_FOLDER_ENTRIES or self._is_protected_name(path):
                            return True
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(path)
            except OSError:
                continue  # a folder that can't be listed can't be written into by this path either
        return False


def _names_paths(name: str) -> bool:
    """Return whether a property of this name holds paths: by one of its words, like `file` in `sourceFile`."""
    words = _property_words(name)
    ends = any(word.endswith(_PATH_ENDINGS) and word not in _NO_PATH_WORDS for word in words)
    return ends or any(word in _PATH_WORDS for word in words)


def _property_words(name: str) -> list[str]:
    words = [word.lower() for word in _WORD.findall(name)]
    return [] if words and words[-1] in _ATTRIBUTE_WORDS else words


def _takes_paths(tool: ToolSpec) -> bool:
    properties = tool.input_schema.get("properties", {})
    return isinstance(properties, dict) and any(_names_paths(str(name)) for name in properties)


def _is_one_word(text: str) -> bool:
    return len(text) <= ONE_WORD_CHARS and not _SPACE.search(text)


def _possible_readings(text: str) -> list[tuple[str, bool]]:
    """Return each path that a tool might read the text as; with False if it counts only if such a thing exists."""
    forms = [text, text.strip()]
    for form in list(forms):
        decoded = unquote(form)
        forms += [decoded, unquote(decoded)]  # some decode twice
    readings: dict[str, bool] = {}
    for text_form in dict.fromkeys(forms):
        for form, certain in _strip_scheme(text_form):
            for reading in (form, form.replace("\\", "/")):
                if reading:
                    readings[reading] = readings.get(reading, False) or certain
    return list(readings.items())


def _strip_scheme(text: str) -> Iterator[tuple[str, bool]]:
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


def _resolve_links(path: str) -> str | None:
    """Return where the links of a path lead, even if its end does not exist; None if they can't be followed."""
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


def _is_in_folder(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _normalize(path: str) -> str:
    try:
        return plain_path(path)
    except KairosError:
        return path  # the tool refuses it, and says why
