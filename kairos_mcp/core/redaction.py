"""Take secrets out of a text before it becomes a row, a log line or an error: by known value, by name, by shape.

Every pattern is RE2's, so that the time is linear in the length of the text, whatever it holds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.secret_forms import (
    MASK,
    MAX_TAIL_CHARS,
    MIN_SECRET_CHARS,
    encoded_beginnings,
    encoded_patterns,
)

ONE_CLASS_CHARS = 16  # a shorter value of letters alone, or of digits alone, is an ordinary word or number

_NAMES = (
    r"api[_-]?key|apikey|access[_-]?key|secret[_-]?key|private[_-]?key|account[_-]?key|auth[_-]?key|signing[_-]?key|"
    r"encryption[_-]?key|client[_-]?secret|secret|access[_-]?key[_-]?id|"
    r"(?:access|refresh|auth|id|session|bearer|bot|api|security|github|gitlab|slack|npm|hf)[_-]?token|token|"
    r"password|passwd|passphrase|credentials?"
)
_HEADERS = (
    "authorization|proxy-authorization|cookie|set-cookie|"
    "x-api-key|x-auth-token|x-goog-api-key|x-amz-security-token|api-key"
)
_SHAPES = (
    r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,400}",  # OpenAI, Anthropic, Stripe and those who follow
    r"\bgh[opsur]_[A-Za-z0-9]{30,}",
    r"\bgithub_pat_[A-Za-z0-9_]{22,}",
    r"\bglpat-[A-Za-z0-9_-]{20,}",
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    r"\bAIza[0-9A-Za-z_-]{35}",
    r"\bya29\.[0-9A-Za-z_-]{20,}",
    r"\bxox[abeoprs]-[0-9A-Za-z-]{10,}",
    r"\b(?:hf|gsk|npm|dop_v1|nvapi|xai|pplx|r8)[-_][A-Za-z0-9_-]{20,}",
    r"\bpypi-[A-Za-z0-9_-]{16,}",
    r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"\bkairos\.[a-z0-9-]{1,40}\.[A-Za-z0-9_-]{40,}",  # a token of this server
    r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",  # a JSON Web Token
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [A-Z0-9 ]{0,40}-----|\z)",
)
_NAMED_SECRETS = (
    # a header, on a line or in a command: all that follows the scheme
    rf"\b(?i:{_HEADERS})\\?[\"']?\s{{0,3}}:\s{{0,3}}\\?[\"']?(?:(?i:bearer|basic|token|apikey|digest)\s+)?"
    r"([^\s\"'\\][^\r\n\"'\\]{6,900}[^\s\"'\\])",
    r"\b(?i:bearer|basic)\s+([A-Za-z0-9._~+/=-]{16,900})",
    # a setting: NAME=value, "name": "value", name: value
    rf"(?i:{_NAMES})\\?[\"']?\s{{0,3}}(?:=>|[:=])\s{{0,3}}(\\?[\"']?)([^\s\"'\\`,;&<>(){{}}\[\]|$*]{{8,800}})",
    # the password in the address of a service
    r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@\"']{0,80}:([^\s/@\"']{3,200})@",
)
_SECRET_VARIABLE = (  # an environment variable, as DB_PASSWORD; what it is set to is hidden whatever it looks like
    r"(?:[A-Z][A-Z0-9]*_+)*(?:PASSWORD|PASSWD|PASSPHRASE|PASS|SECRET|SECRETS|COOKIE|COOKIES|"
    r"(?:API|ACCESS|SECRET|PRIVATE|AUTH|SIGNING|ENCRYPTION|MASTER|SESSION)_KEY)(?:_?\d+)?|[A-Z][A-Z0-9_]*_PWD"
)
_ASSIGNED = rf"(?:^|[^A-Za-z0-9_$])(?:{_SECRET_VARIABLE})\\?[\"']?[ \t]{{0,3}}(?:=>|[:=])[ \t]{{0,3}}"
_ASSIGNMENTS = (  # each with one group: the value
    rf"{_ASSIGNED}\\?\"([^\"\r\n\\]{{1,800}})\\?\"",
    rf"{_ASSIGNED}'([^'\r\n]{{1,800}})'",
    rf"(?:^|[^A-Za-z0-9_$])(?:{_SECRET_VARIABLE})=([^\s\"'`]{{1,800}})",
    rf"(?m:^[ \t]*(?:-[ \t]*)?(?:{_SECRET_VARIABLE}):[ \t]+([^\s\"'`#]{{1,800}})[ \t]*(?:#.*)?\r?$)",
    rf"(?m:^[ \t]*(?:ENV|ARG)[ \t]+(?:{_SECRET_VARIABLE})[ \t]+([^\s=\"'`]{{1,800}}))",
)
_NO_VALUE = re.compile(  # a reference, code, a type, nothing
    r"\$[A-Za-z_{(].*|[<{\[(].*|%[A-Za-z(].*|[A-Za-z_][\w.]*(?:[(\[{].*|[),;]+)|_*[a-z]+(?:_[a-z]+)+|[*.x?_-]+|"
    r"none|null|nil|true|false|undefined|required|optional|str|string|bytes|any|secretstr|secret|\.\.\.",
    re.IGNORECASE | re.DOTALL,
)
_COOKIE = re.compile(r"(?:set-)?cookies?", re.IGNORECASE)
_HEADER, _BEARER, _QUOTE, _VALUE, _PASSWORD = range(1, 6)  # the groups of _NAMED_SECRETS
_VARIABLE = re.compile(
    r"(?:.*_)?(?:KEY|APIKEY|TOKEN|SECRET|SECRETS|PASSWORD|PASSWD|PASS|PASSPHRASE|CREDENTIALS?|PAT|COOKIE|DSN)(?:_\d+)?",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?:~|\.{0,2})/[^:\n]*|[A-Za-z]:\\.*")
_IDENTIFIERS = re.compile(r"[A-Za-z_]\w*(?:(?:\.|::|->)[A-Za-z_]\w*)+")
_WORDS = re.compile(r"[A-Za-z]+\d{0,3}(?:[-_/. ]+[A-Za-z]*\d{0,3})*")  # as "round-3/call-2", "next-page"
_MAX_MEM = 64 << 20


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
        self._known = {value for value in known if is_maskable(value)}

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
        """Replace every secret in a text by `[secret]`."""
        known = self.redact_known(text)
        if _any_pattern().search(_encode(known.text)) is None:
            return known  # as most do: one search has shown it
        found = _redact_matches((_shape_patterns(), _assignment_patterns(), _named_patterns()), known.text)
        return Redacted(found.text, known.count + found.count)

    def redact_known(self, text: str) -> Redacted:
        """Replace known values alone.

        For what a model writes: a name or a shape may be meant, as an example of a key in a file.
        """
        return _redact_matches((self._forms,), text) if self._known else Redacted(text, 0)

    def open_stream(self) -> RedactedStream:
        """Return a redactor of a text that comes in pieces; it replaces what `redact_known` does."""
        return RedactedStream(self, {form for value in self._known for form in encoded_beginnings(value)})

    def find_known(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where known values stand in a text, each as (start, end)."""
        if self._known:
            encoded = _encode(text)
            for found in self._forms.finditer(encoded):
                start, end = found.span()
                at = len(encoded[:start].decode("utf-8", "surrogatepass"))
                yield at, at + len(encoded[start:end].decode("utf-8", "surrogatepass"))

    def redact_json(self, value: Any) -> tuple[Any, int]:
        """Return a JSON value without secrets in its texts or under key names, and how many there were."""
        match value:
            case str():
                masked = self.redact_text(value)
                return masked.text, masked.count
            case dict():
                pairs = [
                    (self.redact_text(str(name)), *self._redact_member(str(name), item)) for name, item in value.items()
                ]
                count = sum(name.count + in_item for name, _, in_item in pairs)
                return {name.text: item for name, item, _ in pairs}, count
            case list() | tuple():
                items = [self.redact_json(item) for item in value]
                return [item for item, _ in items], sum(count for _, count in items)
            case _:
                return value, 0

    def _redact_member(self, name: str, value: Any) -> tuple[Any, int]:
        is_key = len(name) <= 80 and _key_name_pattern().fullmatch(name) is not None
        if isinstance(value, str) and value and not value.startswith(MASK):
            if is_key and _looks_secret(value, quoted=True):
                return MASK, 1
            if len(name) <= 80 and _variable().fullmatch(name) and _is_secret_value(value):
                return MASK, 1
            if _COOKIE.fullmatch(name) and _is_secret_value(value) and "=" in value:
                return MASK, 1
        return self.redact_json(value)

    @cached_property
    def _forms(self) -> Any:
        """A pattern for the known values in each of their usual encodings, the longest first."""
        forms = {form for value in self._known for form in encoded_patterns(value)}
        return _compile(sorted(forms, key=len, reverse=True))


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


def _redact_matches(patterns: Iterable[Any], text: str) -> Redacted:
    count, encoded = 0, _encode(text)
    for pattern in patterns:
        parts: list[bytes] = []
        at = 0
        for found in pattern.finditer(encoded):
            start, end = _span_finder(pattern)(found, encoded)
            if start < end:
                parts += [encoded[at:start], MASK.encode()]
                at, count = end, count + 1
        if parts:
            encoded = b"".join((*parts, encoded[at:]))
    return Redacted(encoded.decode("utf-8", "surrogatepass"), count) if count else Redacted(text, 0)


def _span_finder(pattern: Any) -> Any:
    """Return the function that finds the secret's (start, end) within a match of this pattern."""
    if pattern is _assignment_patterns():
        return _find_value
    return _find_named_secret if pattern.groups else _find_shape


def _find_value(found: Any, text: bytes) -> tuple[int, int]:
    """Find the value of an assignment; an empty span for a reference, code, or nothing."""
    start, end = next(span for span in (found.span(group) for group in range(1, len(_ASSIGNMENTS) + 1)) if span[0] >= 0)
    value = text[start:end].decode("utf-8", "replace")
    name = text[slice(*found.span())].decode("utf-8", "replace").casefold()
    labelled = (
        value.casefold() in ("password", "passwd", "pass", "secret", "cookie", "cookies") and value.casefold() in name
    )
    return (start, end) if _is_secret_value(value) and not labelled else (start, start)


def _is_secret_value(value: str) -> bool:
    return not (value.startswith(MASK) or "://" in value or _PATH.fullmatch(value) or _NO_VALUE.fullmatch(value))


def _find_shape(found: Any, text: bytes) -> tuple[int, int]:
    """Find the whole match; an empty span for a word that only begins like a key, as sk-learn does."""
    start, end = found.span()
    word = text[start : start + 5] != b"-----" and not re.search(rb"\d", text[start:end])
    return (start, start) if word else (start, end)


def _find_named_secret(found: Any, text: bytes) -> tuple[int, int]:
    """Find the secret beside its name; an empty span for a value that is not one."""
    for group in (_HEADER, _PASSWORD, _BEARER, _VALUE):
        start, end = found.span(group)
        if start >= 0:
            break
    value = text[start:end].decode("utf-8", "replace")
    if value.startswith(MASK):
        return start, start
    if group == _HEADER:
        digit = any(letter.isdigit() for letter in value)
        cookie = b"cookie" in text[slice(*found.span())].lower() and re.search(r"=[^\s<{$;]", value) is not None
        return (start, end) if value[0] not in "{<$%" and (digit or _is_cased(value) or cookie) else (start, start)
    if group == _PASSWORD:
        word = len(value) < 2 * MIN_SECRET_CHARS and value.isalpha() and value.islower()
        return (start, start) if word or value[0] in "{<$[" else (start, end)
    if group == _BEARER:
        return (start, end) if _is_mixed(value) else (start, start)
    if group == _VALUE:
        mark = text[slice(*found.span(_QUOTE))]
        closed = text[end : end + len(mark)] == mark
        called = text[end : end + 1] in (b"(", b"[", b"{", b"<", b"$")
        return (start, end) if closed and not called and _looks_secret(value, quoted=bool(mark)) else (start, start)
    return start, end


def _looks_secret(value: str, *, quoted: bool) -> bool:
    """Whether a value beside a key's name looks like a key, and not like words, a path, an address or a name."""
    if len(value) < MIN_SECRET_CHARS or len(set(value)) < 4 or "://" in value:
        return False
    if _PATH.fullmatch(value) or _WORDS.fullmatch(value) or _IDENTIFIERS.fullmatch(value):
        return False
    digits = sum(letter.isdigit() for letter in value)
    if quoted:
        return 0 < digits < len(value)
    return _is_mixed(value) or (len(value) >= ONE_CLASS_CHARS and 3 <= digits < len(value))


def _is_mixed(value: str) -> bool:
    """Whether it has lower case, upper case and digits, as keys do; or many digits among letters."""
    digits = sum(letter.isdigit() for letter in value)
    return 0 < digits < len(value) and (_is_cased(value) or digits >= 4)


def _is_cased(value: str) -> bool:
    """Whether it is one word with letters of both cases."""
    return (
        " " not in value and any(letter.islower() for letter in value) and any(letter.isupper() for letter in value[1:])
    )


@cache
def _key_name_pattern() -> re.Pattern[str]:
    return re.compile(rf"(?:.*[^a-z]|.*[a-z](?=[A-Z]))?(?:{_NAMES}|{_HEADERS})", re.IGNORECASE)


@cache
def _variable() -> re.Pattern[str]:
    return re.compile(_SECRET_VARIABLE)


@cache
def _assignment_patterns() -> Any:
    return _compile(_ASSIGNMENTS)


@cache
def _shape_patterns() -> Any:
    return _compile(_SHAPES)


@cache
def _named_patterns() -> Any:
    return _compile(_NAMED_SECRETS)


@cache
def _any_pattern() -> Any:
    return _compile((*_SHAPES, *_ASSIGNMENTS, *_NAMED_SECRETS))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _compile(patterns: Iterable[str]) -> Any:
    import re2  # at first use: many starts redact nothing

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEM
    return re2.compile("|".join(f"(?:{pattern})" for pattern in patterns).encode(), options)
