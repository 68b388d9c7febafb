"""Take secrets out of a text before it becomes a row, a log line or an error.

A secret is a known value, or what the grammar of secrets finds (secret_grammar.py). Every pattern is RE2's, so that the
time is linear in the length of the text, whatever it holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from heapq import merge
from typing import Any, Literal

from kairos_mcp.core.env_files import find_env_values, is_env_file
from kairos_mcp.core.masked_file import MaskedFile, mask_in_pieces
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.secret_files import find_by_file_name, telling_name
from kairos_mcp.core.secret_forms import (
    MASK,
    MAX_TAIL_CHARS,
    MIN_SECRET_CHARS,
    encoded_beginnings,
    encoded_patterns,
)
from kairos_mcp.core.secret_grammar import SecretSearch, compile_patterns, find_secrets, is_source
from kairos_mcp.core.secret_spans import Span
from kairos_mcp.core.secret_values import ONE_CLASS_CHARS, is_set_secret, is_variable, looks_like_key, names_key

BESIDE_CUT_CHARS = 16 * 1024  # on each side of a cut, searched for a secret that it would part
CACHED_FILES = 8  # masked files that are remembered
CACHED_BYTES = 16 << 20  # of all of them, with the spans of their secrets; a larger one is masked anew each time
_FileKind = Literal["env", "settings", "source"]

_LIKELY = "q7Rz-2mXw_9LpT4v"  # beside any name of a secret it is one
_COOKIE = re.compile(r"(?:set-)?cookies?", re.IGNORECASE)
_VARIABLE = re.compile(
    r"(?:(?:.*_)?(?:KEY|APIKEY|TOKEN|SECRETS?|PASS|CREDENTIALS?|PAT|COOKIE|DSN)|.*(?:PASSWORD|PASSWD|PASSPHRASE))"
    r"(?:_\d+)?",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?:~|\.{0,2})/[^:\n]*|[A-Za-z]:\\.*")


def find_secret_values(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of variables whose name is a key's, as `OPENAI_API_KEY`; the path of a key file is no secret."""
    for name, value in environ.items():
        if _VARIABLE.fullmatch(name) and is_maskable(value.strip()) and not _PATH.fullmatch(value.strip()):
            yield value.strip()


def is_key_name(name: str) -> bool:
    """Whether a header, variable, option or parameter of this name holds a key, as `X-Api-Key`."""
    return len(name) <= 200 and _VARIABLE.fullmatch(re.sub(r"[-. ]", "_", name)) is not None


def is_maskable(value: str) -> bool:
    """Whether a value is long and mixed enough to be redacted wherever it occurs."""
    return len(value) >= (ONE_CLASS_CHARS if value.isalpha() or value.isdigit() else MIN_SECRET_CHARS)


@dataclass(frozen=True, slots=True)
class Redacted:
    """A text without its secrets, and how many there were."""

    text: str
    count: int


class Redactor:
    """Takes secrets out of texts: known values, and whatever has the name or the shape of a key."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = frozenset(value for value in known if is_maskable(value))
        self._masked: tuple[_CachedFile, ...] = ()  # the last one first; replaced as a whole, since threads share it

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Redactor:
        """Return a redactor that knows the keys in this environment."""
        return cls(find_secret_values(environ))

    def learn(self, value: str) -> None:
        """Add a known secret, as one that was read from a file. One that is too short is ignored (is_maskable)."""
        if is_maskable(value.strip()) and value.strip() not in self._known:
            self._known = self._known | {value.strip()}  # a new set, since worker threads may be reading the old one
            self.__dict__.pop("_forms", None)

    def redact_text(self, text: str) -> Redacted:
        """Replace every secret in a text by `[secret]`; what is masked already stays as it is."""
        masked = _mask_content(_encode(text), "source", "", self._known_forms)
        if not masked.spans:
            return Redacted(text, 0)
        return Redacted(masked.masked_content.decode("utf-8", "surrogatepass"), len(masked.spans))

    def find_parted(self, text: str, at: int) -> tuple[int, int]:
        """Return where the secret stands in a text that a cut at character `at` would part; (at, at) if it parts none.

        Half a secret is found by no later search, so no text is cut within one.
        """
        start = max(0, at - BESIDE_CUT_CHARS)
        content, cut = _encode(text[start : at + BESIDE_CUT_CHARS]), len(_encode(text[start:at]))
        for begins, ends in _join_lines(content, _mask_content(content, "source", "", self._known_forms).spans):
            if begins < cut < ends:
                return start + _count_chars(content[:begins]), start + _count_chars(content[:ends])
        return at, at

    def redact_known(self, text: str) -> Redacted:
        """Replace known values alone, each by a mark of its own: a text that comes in pieces is then shown the same.

        For what a model writes: a name or a shape may be meant, as an example of a key in a file.
        """
        if not self._known:
            return Redacted(text, 0)
        shown, count = self._forms.subn(MASK.encode(), _encode(text))
        return Redacted(shown.decode("utf-8", "surrogatepass"), count) if count else Redacted(text, 0)

    def mask_file(self, path: str, content: bytes, is_over: Callable[[], bool] = lambda: False) -> MaskedFile:
        """Return what a file, or a window of it, holds, with where its secrets stand. The last ones are remembered.

        Once `is_over`, what was masked by then is returned: the beginning of the content.
        """
        kind: _FileKind = "env" if is_env_file(path) else "source" if is_source(path) else "settings"
        known, name = self._known_forms, telling_name(path)
        for cached in self._masked:
            if (
                (cached.kind, cached.name) == (kind, name)
                and cached.known is known
                and cached.masked.content == content
            ):
                return cached.masked
        masked = _mask_content(content, kind, name, known, is_over)
        if len(masked.content) == len(content):
            self._masked = _keep_last(_CachedFile(masked, kind, name, known), self._masked)
        return masked

    @property
    def _known_forms(self) -> Any:
        return self._forms if self._known else None

    def open_stream(self) -> RedactedStream:
        """Return a redactor of a text that comes in pieces; it replaces what `redact_known` does."""
        return RedactedStream(self, {form for value in self._known for form in encoded_beginnings(value)})

    def find_known(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where known values stand in a text, each as (start, end)."""
        content = _encode(text)
        for start, end in _find_known(content, self._known_forms):
            at = _count_chars(content[:start])
            yield at, at + _count_chars(content[start:end])

    def redact_json(self, value: Any) -> tuple[Any, int]:
        """Return a JSON value without secrets in its texts or under key names, and how many there were."""
        return self._redact_json(value, self._redact_member)

    def redact_data(self, value: Any) -> tuple[Any, int]:
        """Return what `redact_json` does of what a tool returns, which a text may repeat: without what is masked there.

        A text is judged by more names, as `password`: arguments keep these, since a tool may need them.
        """
        return self._redact_json(value, self._redact_shown_member)

    def _redact_json(self, value: Any, redact_member: Callable[[str, Any], tuple[Any, int]]) -> tuple[Any, int]:
        match value:
            case str():
                masked = self.redact_text(value)
                return masked.text, masked.count
            case dict():
                pairs = [(self.redact_text(str(name)), *redact_member(str(name), item)) for name, item in value.items()]
                count = sum(name.count + in_item for name, _, in_item in pairs)
                return {name.text: item for name, item, _ in pairs}, count
            case list() | tuple():
                items = [self._redact_json(item, redact_member) for item in value]
                return [item for item, _ in items], sum(count for _, count in items)
            case _:
                return value, 0

    def _redact_member(self, name: str, value: Any) -> tuple[Any, int]:
        return (MASK, 1) if _is_secret_member(name, value) else self.redact_json(value)

    def _redact_shown_member(self, name: str, value: Any) -> tuple[Any, int]:
        is_secret = _is_secret_member(name, value) or _is_secret_in_text(name, value)
        return (MASK, 1) if is_secret else self.redact_data(value)

    @cached_property
    def _forms(self) -> Any:
        """A pattern for the known values in each of their usual encodings, the longest first."""
        forms = {form for value in self._known for form in encoded_patterns(value)}
        return compile_patterns(sorted(forms, key=len, reverse=True))


class RedactedStream:
    """Redacts known values in a text that comes in pieces: what may be the beginning of one is held back."""

    def __init__(self, redactor: Redactor, beginnings: Collection[str]) -> None:
        self._redactor = redactor
        self._by_first: dict[str, list[str]] = {}
        for text in beginnings:
            self._by_first.setdefault(text[0], []).append(text)
        self._longest = max(map(len, beginnings), default=0)
        self._held = ""

    def add(self, piece: str) -> str:
        """Return what can be shown once this piece has come."""
        text = self._held + piece
        at = self._safe_length(text)
        self._held = text[at:]
        return self._redactor.redact_known(text[:at]).text

    def end(self) -> str:
        """Return the rest, when no piece comes any more."""
        rest, self._held = self._held, ""
        return self._redactor.redact_known(rest).text

    def _safe_length(self, text: str) -> int:
        """Return how much of a text is not touched by what comes next."""
        at = max(0, len(text) - self._longest + 1)
        while at < len(text) and not self._begins_secret(text[at:]):
            at += 1
        for start, end in self._redactor.find_known(text):
            if end > at or end > len(text) - MAX_TAIL_CHARS:  # a longer form may follow, or its last group
                return min(at, start)
        return at

    def _begins_secret(self, rest: str) -> bool:
        return any(form.startswith(rest) for form in self._by_first.get(rest[0], ()))


def _join_lines(content: bytes, spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the spans with those joined that only a line break parts: a private key is one span for each line."""
    joined: Span | None = None
    for begins, ends in spans:
        if joined is not None and content[joined[1] : begins].strip(b"\r\n"):
            yield joined
            joined = None
        joined = (joined[0] if joined is not None else begins, ends)
    if joined is not None:
        yield joined


def _count_chars(content: bytes) -> int:
    return len(content.decode("utf-8", "surrogatepass"))


def _is_secret_member(name: str, value: Any) -> bool:
    if not isinstance(value, str) or not value or value == MASK:
        return False
    if names_key(name) and looks_like_key(value, quoted=True):
        return True
    if is_variable(name) and is_set_secret(value):
        return True
    return bool(_COOKIE.fullmatch(name) and is_set_secret(value) and "=" in value)


def _is_secret_in_text(name: str, value: Any) -> bool:
    """Whether the value is a secret by the name beside it where both stand in a text, as they do beside data."""
    if not isinstance(value, str) or not value or value == MASK or not may_name_secret(name):
        return False
    return _is_masked_beside(name, value) and not find_secrets(_encode(value))


@lru_cache(1_000)
def may_name_secret(name: str) -> bool:
    """Whether any value beside this name would be taken for a secret in a text."""
    return _is_masked_beside(name, _LIKELY)


def _is_masked_beside(name: str, value: str) -> bool:
    beside = _encode(json.dumps({name: value}, ensure_ascii=False))
    begins = len(beside) - len(_encode(json.dumps(value, ensure_ascii=False))) - 1
    return any(end > begins for _, end in find_secrets(beside))


@dataclass(frozen=True, slots=True)
class _CachedFile:
    """A masked file, with what its secrets depend on besides its content."""

    masked: MaskedFile
    kind: _FileKind
    name: str
    known: Any


def _keep_last(newest: _CachedFile, others: Iterable[_CachedFile]) -> tuple[_CachedFile, ...]:
    """Return the newest masked file and those before it, as many as the bounds of the cache allow."""
    kept, size = list[_CachedFile](), 0
    for cached in (newest, *others):
        size += cached.masked.size
        if size > CACHED_BYTES or len(kept) == CACHED_FILES:
            break
        kept.append(cached)
    return tuple(kept)


def _mask_content(
    content: bytes, kind: _FileKind, name: str, known: Any, is_over: Callable[[], bool] = lambda: False
) -> MaskedFile:
    """Mask a content. `name`: that of the file, if it tells what is secret in it. `known`: a pattern of the values that
    are known, or None."""
    search, values = SecretSearch(content, settings=kind != "source"), _find_known(content, known)
    if name:
        values = merge(values, find_by_file_name(name, content))
    if kind == "env":
        values = merge(values, find_env_values(content))

    def find(limit: int) -> list[Span]:
        found = search.find_until(limit)
        for span in values:  # drawn no further than they are needed, so that the time is heeded
            found.append(span)
            if span[0] >= limit:
                break
        return found

    return mask_in_pieces(content, find, is_over)


def _find_known(content: bytes, known: Any) -> Iterator[Span]:
    return iter(()) if known is None else (match.span() for match in known.finditer(content))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
