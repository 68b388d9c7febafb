"""The grammar of secrets: in which forms a value in a text is a secret, by its name, its place or its shape.

    secret      = shape | header | address | option | assignment | key block
    shape       = a key of a known service, as `sk-…`, `ghp_…`, `AKIA…`, a JSON Web Token
    header      = `Authorization: Bearer …`, `Cookie: …`
    address     = `scheme://user:VALUE@host`
    option      = `--NAME VALUE`, `--NAME=VALUE`, `login USER password VALUE`
    assignment  = [`export` | `ENV` | `ARG` …] NAME separator VALUE, or `<NAME>VALUE</NAME>`
    NAME        = anything that ends in password, passwd, passphrase, pwd, pass, secret, token, api_key, credential …,
                  in any case, joined in any way (`DB_PASSWORD`, `dbPassword`, `db-password`, `db.password2`)
    separator   = `=`, `:`, `=>`, `:=`, and in a Dockerfile a blank
    VALUE       = a quoted text (also over several lines), an indented YAML block, or what stands until the line ends
    key block   = `-----BEGIN … PRIVATE KEY-----` to its end, or as far as key material follows; or lines of base64
                  that decode to the beginning of a private key, or that end in `-----END … PRIVATE KEY-----`

No VALUE is: nothing, a reference (`${X}`, `{{ x }}`, `env:X`), a placeholder (`<password>`, `***`), a word like `true`,
the path of a file, or a label: words of which one names a secret (`your-password`).

Settings and sources are judged apart. In settings (`is_source` says which files are none) every VALUE is a secret. In
sources and in prose names like `token` stand beside code: there a VALUE has to be what a variable in capitals is set
to, to be quoted beside a name for a password, or to look like a key: letters mixed with digits.

The patterns are RE2's, so the time is linear in the length of the text. What is found lies within single lines, so that
a text keeps its lines when it is masked.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from kairos_mcp.core.secret_forms import MASK, MIN_SECRET_CHARS

Span = tuple[int, int]  # in bytes: from, to (excluded)

ONE_CLASS_CHARS = 16  # a shorter value of letters alone, or of digits alone, is an ordinary word or number
MAX_VALUE_LINES = 60  # of a value that is quoted over several lines, or an indented block
MAX_SECRET_BYTES = 16 << 10  # a private key with its lines is shorter; of a longer line, so much is looked at
MAX_VALUE_CHARS = 800  # a longer value is no word, reference or label
MAX_LABEL_CHARS = 64
MAX_JUDGED = 50_000  # matches of a form in one text; from there on what follows on their lines is masked unseen
_MAX_MEM = 64 << 20

_SOURCE_ENDINGS = re.compile(  # of code and prose; what has none of these, or no ending, counts as settings
    r"pyi?|pyx|[cm]?jsx?|[cm]?tsx?|c|cc|cpp|cxx|hpp|hh?|cs|go|rs|java|kts?|scala|rb|php|p[lm]|lua|swift|mm?|r|jl|sql|"
    r"dart|exs?|erl|hs|ml|cljs?|el|vim|mdx?|rst|adoc|html?|css|scss|sass|less|vue|svelte|tex|ipynb|pot?|csv|tsv|log|"
    r"diff|patch|proto|graphql|svg|map"
)
_STRONG = r"passwords?|passwd|passphrase|passcode|pwd|pass|client[_-]?secret|secrets?|credentials?"
_WEAK = (
    r"api[_-]?key|apikey|access[_-]?key(?:[_-]?id)?|secret[_-]?key|private[_-]?key|account[_-]?key|auth[_-]?key|"
    r"signing[_-]?key|encryption[_-]?key|master[_-]?key|session[_-]?key|token|cookies?|_auth"
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
)
_HEADER = (  # on a line or in a command: all that follows the scheme
    rf"\b(?i:{_HEADERS})\\?[\"']?\s{{0,3}}:\s{{0,3}}\\?[\"']?(?:(?i:bearer|basic|token|apikey|digest)\s+)?"
    r"([^\s\"'\\][^\r\n\"'\\]{6,900}[^\s\"'\\])"
)
_BEARER = r"\b(?i:bearer|basic)\s+([A-Za-z0-9._~+/=-]{16,900})"
_ADDRESS = r"\b[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/:@\"'<>]{0,80}:([^\s/@\"'<>]{1,200})@"
_LOGIN = r"(?i)\b(?:login|user)[ \t]+\S+\s+password[ \t]+(\S+)"
_OPTION = rf"(?i)(?:^|[\s\"'`(])--?[a-z0-9-]{{0,40}}?(?:{_STRONG}|{_WEAK})[\"',]*[ \t]+(.)"
_ELEMENT = rf"(?i)<[a-z0-9_.:-]{{0,60}}?(?:{_STRONG}|{_WEAK})(?:\s[^<>]{{0,200}})?>([^<>\r\n]{{1,800}})</"
_DOCKER = rf"(?mi)^[ \t]*(?:ENV|ARG)[ \t]+[A-Z0-9_.-]{{0,60}}?(?:{_STRONG}|{_WEAK})(?:_?[0-9]{{1,3}})?[ \t]+([^\s=])"
_ASSIGNMENT = (  # up to the place where the value begins
    rf"(?i)(?:{_STRONG}|{_WEAK})(?:[_-]?[0-9]{{1,3}})?\\{{0,2}}[\"'`]?\]?[ \t]{{0,20}}"
    r"(?::[ \t]{0,3}[A-Za-z_][\w.]{0,40}(?:\[[\w., ]{1,40}\])?(?:[ \t]?\|[ \t]?[\w.]{1,40}){0,3}[ \t]{0,3}=|=>|:=|[:=])"
)
_BEGINNINGS = (
    *(
        "-----BEGIN",
        "-----END",
        "://",
        r"(?i:bearer|basic)\s",
        r"\b(?:sk|pk|rk|hf|gsk|npm|dop_v1|nvapi|xai|pplx|r8)[-_]",
    ),
    *(
        "gh[opsur]_",
        "github_pat_",
        "glpat-",
        "AKIA",
        "ASIA",
        "AIza",
        r"ya29\.",
        "xox[abeoprs]-",
        "pypi-",
        r"SG\.",
        "eyJ",
    ),
    *(r"kairos\.", "MII", "MIG", "M[A-F][A-Za-z0-9]CA[QT]", "MH[A-Za-z0-9]CA[QT]", "b3BlbnNzaC1rZXktdjE"),
)
_PEM = rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_PEM_END = rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_BASE64_LINE = r"(?m)^[^A-Za-z0-9+/\r\n]{0,40}([A-Za-z0-9+/]{60,}={0,2})(?:\\n)?[\"',]{0,3}[ \t]*\r?$"

_VARIABLE = re.compile(  # an environment variable; what it is set to is hidden whatever it looks like
    r"(?:[A-Z][A-Z0-9]*_+)*(?:PASSWORD|PASSWD|PASSPHRASE|PASS|SECRET|SECRETS|COOKIE|COOKIES|"
    r"(?:API|ACCESS|SECRET|PRIVATE|AUTH|SIGNING|ENCRYPTION|MASTER|SESSION)_KEY)(?:_?\d+)?|[A-Z][A-Z0-9_]*_PWD"
)
_STRONG_NAME = re.compile(rf"(?:{_STRONG})(?:[_-]?\d{{1,3}})?", re.IGNORECASE)
_SHORT_NAME = re.compile(rb"(?:pass|pwd|_auth)", re.IGNORECASE)
_NAME_CHARS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_LABEL = re.compile(
    r"(?:.*[^a-z])?(?:passwords?|passwd|passphrase|pwd|pass|secrets?|tokens?|keys?|apikey|credentials?|cookies?)"
    r"(?:[^a-z].*)?|change[-_ ]?(?:me|it)|redacted|example|placeholder|value|dummy|todo|x{3,}|your[-_ ].*",
    re.IGNORECASE,
)
_NOTHING = re.compile(
    r"[*.?_•-]+|x{3,}|none|null|nil|~|true|false|yes|no|on|off|undefined|required|optional|string|str|bytes|any|secretstr|"
    r"\.\.\.|!\w+.*|[|>][-+0-9]{0,2}",
    re.IGNORECASE,
)
_REFERENCE = re.compile(
    r"\$\{.*\}|\$\(.*\)?|\$[A-Za-z_]\w*|%[A-Za-z_]\w*%|%\(.*\)s|\{\{.*\}\}|\{.*\}|[{\[(]|\[.*\]|<[^<>]*>|<%.*%>|\(.*\)|"
    r"(?:env|keyring|file|vault|op|secret|ssm|arn|aws|gcp|azure)[:.].*|`.*`|@\w+|"
    r"(?:var|local|data|module|each|self|process\.env|os\.environ|os\.getenv)[.(\[].*",
    re.DOTALL | re.IGNORECASE,
)
_CODE = re.compile(
    r"[<{\[(].*|%[A-Za-z(].*|\$[A-Za-z_{(].*|[A-Za-z_][\w.]*(?:[(\[{].*|[),;]+)|_*[a-z]+(?:_[a-z]+)+",
    re.IGNORECASE | re.DOTALL,
)
_PATH = re.compile(r"(?:~|\.{1,2}|)(?:/[\w.@%+-]+)+/?|(?:~|\.{1,2})/[^:\n]*|[A-Za-z]:\\.*")
_IDENTIFIERS = re.compile(r"[A-Za-z_]\w*(?:(?:\.|::|->)[A-Za-z_]\w*)+")
_WORDS = re.compile(r"[A-Za-z]+\d{0,3}(?:[-_/. ]+[A-Za-z]*\d{0,3})*")  # as "round-3/call-2", "next-page"
_PREFIX = re.compile(rb"(?:[bBrRfFuU$@]{1,2})?(\\{0,2})(\"\"\"|'''|[\"'`])")
_OPENING = {b"}": b"{", b")": b"(", b"]": b"["}
_CODE_VALUE = re.compile(rb"[^\s\"'\\`,;&<>(){}\[\]|$*]{1,800}")
_BARE_VALUE = re.compile(rb"[^\s\"'`]{1,800}")
_PARAMETER = re.compile(rb"[^\s&\"'<>#]{0,800}")
_OPTION_VALUE = re.compile(rb"[^\s\"'`,;|)\]}]{1,800}")
_QUOTED_BELOW = re.compile(rb"\r?\n[ \t]{0,200}(?=[\"'])")
_YAML_BLOCK = re.compile(rb"[|>][-+0-9]{0,2}[ \t]*(?:#[^\n]*)?\r?\n")
_KEY_LINE = re.compile(  # base64, the last line of it, a header of the key, or nothing
    rb"[^A-Za-z0-9+/=\n]{0,40}(?:[A-Za-z0-9+/=\\]{4,}|[A-Z][A-Za-z-]+: [^\n]*|)"
    rb"(?:\\n)?[\"',;+\\]{0,4}[ \t\r]*"
)

_KEY_MATERIAL = re.compile(rb"[A-Za-z0-9+/=]{16,}|^[^A-Za-z0-9+/=\n]{0,40}[A-Za-z0-9+/=]{4,}[ \t\r]*$", re.MULTILINE)


def is_source(path: str) -> bool:
    """Whether a file holds code or prose by its name, and not settings."""
    name, _, ending = path.rpartition("/")[2].rpartition(".")
    return bool(name) and _SOURCE_ENDINGS.fullmatch(ending.casefold()) is not None


def find_secrets(text: bytes, *, settings: bool = False) -> list[Span]:
    """Return where secrets stand in a text, in order, apart from each other and each within one line.

    `settings`: it is a file of settings, in which every value beside the name of a secret is one.
    """
    if _trigger().search(text) is None:
        return []
    found: list[Span] = []
    for pattern, judge in _forms():
        reached = count = 0  # what stands within a secret is none by itself
        for match in pattern.finditer(text):
            if match.start() < reached:
                continue
            count += 1
            new = judge(text, match, settings) if count <= MAX_JUDGED else [(match.end(), _line_end(text, match.end()))]
            for span in new:
                found.append(span)
                reached = max(reached, span[1])
    return merge_spans(text, found) if found else []


def merge_spans(text: bytes, spans: Iterable[Span]) -> list[Span]:
    """Return spans in order, joined where they meet, split at the ends of lines, without blanks around."""
    joined: list[list[int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        elif start < end:
            joined.append([start, end])
    return [line for start, end in joined for line in _split_lines(text, start, end)]


def looks_like_key(value: str, *, quoted: bool) -> bool:
    """Whether a value beside a key's name looks like a key, and not like words, a path, an address or a name."""
    if len(value) < MIN_SECRET_CHARS or len(set(value)) < 4 or "://" in value:
        return False
    if _PATH.fullmatch(value) or _WORDS.fullmatch(value) or _IDENTIFIERS.fullmatch(value):
        return False
    digits = sum(letter.isdigit() for letter in value)
    if quoted:
        return 0 < digits < len(value)
    return _is_mixed(value) or (len(value) >= ONE_CLASS_CHARS and 3 <= digits < len(value))


def is_variable(name: str) -> bool:
    """Whether an environment variable of this name holds a secret whatever it is set to, as `DB_PASSWORD`."""
    return len(name) <= 80 and _VARIABLE.fullmatch(name) is not None


def is_set_secret(value: str) -> bool:
    """Whether what a variable is set to is a secret, and not a reference, code, a type, a path or nothing."""
    return not (_is_nothing(value) or "://" in value or _CODE.fullmatch(value) or _PATH.fullmatch(value))


def names_key(name: str) -> bool:
    """Whether a member of this name holds a key or is a header that does."""
    return len(name) <= 80 and _key_name().fullmatch(name) is not None


def _split_lines(text: bytes, start: int, end: int) -> Iterator[Span]:
    at = start
    while at < end:
        newline = text.find(b"\n", at, end)
        stop = end if newline < 0 else newline
        body = text[at:stop]
        left = at + len(body) - len(body.lstrip(b" \t\r"))
        right = left + len(body.strip(b" \t\r"))
        if left < right:
            yield left, right
        at = stop + 1


# -- what stands beside a name --------------------------------------------------------------------------------


def _judge_assignment(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    start, at = match.span()
    before = text[max(0, start - 80) : start]
    prefix = before[len(before.rstrip(_NAME_CHARS)) :]
    short = _SHORT_NAME.match(text, start)
    if short is not None and not _begins_word(prefix, text[start : start + 1]):
        return ()
    name = _name_in(match.group())
    strong = _STRONG_NAME.fullmatch(name) is not None
    variable = is_variable((prefix + name.encode()).decode("utf-8", "replace").lstrip(".-"))
    separator = text[at - 1 : at]
    if separator == b"=" and text[at : at + 1] in (b"=", b"~"):  # a comparison
        at += 1
    begins = _skip_blanks(text, at)
    if begins > at and text[at:begins].count(b"\n"):
        return _quoted_value(text, begins, name, strong, variable, settings) if settings else ()
    if settings and separator == b":" and (block := _YAML_BLOCK.match(text, begins)) is not None:
        return _block_lines(text, start, block.end())
    opened = _PREFIX.match(text, begins)
    if opened is not None and (settings or opened.group(2) != b"`" or separator == b"="):
        return _quoted_value(text, begins, name, strong, variable, settings)
    is_parameter = text[start - len(prefix) - 1 : start - len(prefix)] in (b"?", b"&")
    if settings:
        return _line_value(text, begins, name, strong, is_parameter)
    return _bare_value(text, start - len(prefix), at, begins, name, strong, variable)


def _quoted_value(text: bytes, begins: int, name: str, strong: bool, variable: bool, settings: bool) -> Iterable[Span]:
    opened = _PREFIX.match(text, begins)
    if opened is None:
        return ()
    start, end = _find_quoted(text, opened, settings)
    value = text[start:end].decode("utf-8", "replace")
    if settings:
        secret = _is_setting(value, strong=strong)
    elif text[end : end + 1] in (b"", b"\r", b"\n") and not variable:
        return ()  # the quote is not closed: it is one of the text around
    elif variable:
        secret = is_set_secret(value) and not _is_label(value)
    else:
        called = text[end + 1 : end + 2] in (b"(", b"[", b"{", b"<", b"$")
        plain = strong and "\n" not in value and _is_plain_password(value)
        secret = not called and (plain or looks_like_key(value, quoted=True))
    return ((start, end),) if secret and start < end else ()


def _line_value(text: bytes, begins: int, name: str, strong: bool, is_parameter: bool) -> Iterable[Span]:
    """Find a value without quotes in settings: what stands until the line ends, and the lines that it goes on in."""
    if is_parameter:
        found = _PARAMETER.match(text, begins)
        return (found.span(),) if found and _is_setting(found.group().decode("utf-8", "replace"), strong=strong) else ()
    end = _line_end(text, begins)
    value = text[begins:end].rstrip()
    value = value.removesuffix(b",").removesuffix(b";")
    while value[-1:] in (b"}", b")", b"]") and value.count(value[-1:]) > value.count(_OPENING[value[-1:]]):
        value = value[:-1].rstrip()
    if value.startswith((b"#", b";", b"//")) or not _is_setting(value.decode("utf-8", "replace"), strong=strong):
        return ()
    spans = [(begins, begins + len(value))]
    while value.endswith(b"\\") and len(spans) < MAX_VALUE_LINES and end < len(text):
        begins, end = end + 1, _line_end(text, end + 1)
        value = text[begins:end].rstrip()
        spans.append((begins, end))
    return spans


def _bare_value(
    text: bytes, name_at: int, after: int, begins: int, name: str, strong: bool, variable: bool
) -> Iterable[Span]:
    """Find a value without quotes in code or prose: it has to look like a key, or be what a variable is set to."""
    if variable and (found := _BARE_VALUE.match(text, begins)) is not None:
        value = found.group().decode("utf-8", "replace")
        alone = text[after - 1 : after] == b":" and begins > after and _is_alone(text, name_at, found.end())
        tight = text[after - 1 : after] == b"=" and begins == after
        if (tight or alone) and is_set_secret(value) and not _is_label_of(value, name):
            return (found.span(),)
    found = _CODE_VALUE.match(text, begins)
    if found is None:
        return ()
    called = text[found.end() : found.end() + 1] in (b"(", b"[", b"{", b"<", b"$")
    value = found.group().decode("utf-8", "replace")
    if called or _is_nothing(value):
        return ()
    plain = strong and _is_alone(text, name_at, found.end()) and _is_plain_password(value)
    return (found.span(),) if plain or looks_like_key(value, quoted=False) else ()


def _block_lines(text: bytes, name_at: int, at: int) -> Iterator[Span]:
    """Yield the lines of an indented YAML block, which are deeper than the line of its name."""
    line = text[_line_start(text, name_at) : name_at]
    depth = len(line) - len(line.lstrip(b" "))
    for _ in range(MAX_VALUE_LINES):
        end = _line_end(text, at)
        line = text[at:end]
        if (line.strip() and len(line) - len(line.lstrip(b" ")) <= depth) or at >= len(text):
            return
        yield at, end
        at = end + 1


def _find_quoted(text: bytes, opened: Any, settings: bool) -> Span:
    """Return where a quoted text stands that begins here; where its quote is not closed, the rest of its line."""
    escape, quote = opened.group(1), opened.group(2)
    start = opened.end()
    limit = ends = _line_end(text, start)
    if len(quote) == 3 or (settings and quote != b"`"):
        for _ in range(MAX_VALUE_LINES):
            limit = _line_end(text, limit + 1)
    closed = _closing(escape + quote, quote != b"'" or not settings).match(
        text, start, min(limit, start + MAX_SECRET_BYTES)
    )
    return (start, ends) if closed is None else (start, closed.start(1))


@cache
def _closing(quote: bytes, escapes: bool) -> re.Pattern[bytes]:
    """A pattern of what stands up to a closing quote, the one group."""
    skipped = rb"(?:\\.|(?!\\).)*?" if escapes and not quote.startswith(b"\\") else rb".*?"
    return re.compile(skipped + rb"(" + re.escape(quote) + rb")", re.DOTALL)


def _is_setting(value: str, *, strong: bool = True) -> bool:
    """Whether a value beside a secret's name in settings is a secret."""
    plain = value.strip().strip("\"'")
    if len(plain) > MAX_VALUE_CHARS:
        return True
    if not plain or _is_nothing(plain) or _REFERENCE.fullmatch(plain) or _is_path(plain):
        return False
    if " " not in plain and _is_label(plain):
        return False
    if "://" in plain:  # its password is found by itself
        return False
    return strong or not (plain.isdigit() and len(plain) < ONE_CLASS_CHARS)


def _is_plain_password(value: str) -> bool:
    """Whether a quoted text beside a name for a password is one, in code: no sentence, no label, no code."""
    if len(value) > 200 or not value.strip() or _is_nothing(value) or _is_label(value) or _REFERENCE.fullmatch(value):
        return False
    if "://" in value or _is_path(value) or _CODE.fullmatch(value) or _IDENTIFIERS.fullmatch(value):
        return False
    return bool(re.search(r"[^\W\d_]", value)) and not re.search(r"[{}<>]|%[(\w]", value)


def _is_nothing(value: str) -> bool:
    return value.startswith(MASK) or _NOTHING.fullmatch(value) is not None


def _is_path(value: str) -> bool:
    return _PATH.fullmatch(value) is not None and not any(map(_is_mixed, value.split("/")))


def _is_label(value: str) -> bool:
    return len(value) <= MAX_LABEL_CHARS and _LABEL.fullmatch(value) is not None


def _is_label_of(value: str, name: str) -> bool:
    return value.casefold() in ("password", "passwd", "pass", "secret", "cookie", "cookies")


def _is_alone(text: bytes, name_at: int, end: int) -> bool:
    """Whether nothing but this setting stands in its line."""
    before = text[_line_start(text, name_at) : name_at]
    behind = text[end : _line_end(text, end)].strip()
    return before.strip() in (b"", b"-") and (not behind or behind.startswith(b"#"))


def _begins_word(prefix: bytes, first: bytes) -> bool:
    """Whether a short name, as `pass`, begins a word: `compass` and `bypass` name no secret."""
    return not prefix or not prefix[-1:].isalpha() or (first.isupper() and prefix[-1:].islower())


def _name_in(matched: bytes) -> str:
    found = re.match(rb"[A-Za-z0-9_-]*", matched)
    return (found.group() if found else b"").decode()


def _skip_blanks(text: bytes, at: int) -> int:
    """Skip blanks, and the end of a line where a quoted text begins in the next."""
    while text[at : at + 1] in (b" ", b"\t"):
        at += 1
    found = _QUOTED_BELOW.match(text, at)
    return found.end() if found is not None else at


def _line_end(text: bytes, at: int) -> int:
    """Return where the line ends, or of a long one where it is looked at no further."""
    end = text.find(b"\n", at, at + MAX_SECRET_BYTES)
    return min(len(text), at + MAX_SECRET_BYTES) if end < 0 else end


def _line_start(text: bytes, at: int) -> int:
    first = max(0, at - MAX_SECRET_BYTES)
    return max(first, text.rfind(b"\n", first, at) + 1)


# -- headers, addresses, options, elements, shapes ------------------------------------------------------------


def _judge_shape(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Take the whole match, but not a word that only begins like a key, as sk-learn does."""
    start, end = match.span()
    return ((start, end),) if re.search(rb"\d", text[start:end]) else ()


def _judge_header(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    start, end = match.span(1)
    value = text[start:end].decode("utf-8", "replace")
    if value.startswith(MASK) or value[0] in "{<$%":
        return ()
    digit = any(letter.isdigit() for letter in value)
    cookie = b"cookie" in match.group().lower() and re.search(r"[^\s=]=[^\s=<{$;]", value) is not None
    return ((start, end),) if digit or _is_cased(value) or cookie else ()


def _judge_bearer(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    return (match.span(1),) if _is_mixed(match.group(1).decode("utf-8", "replace")) else ()


def _judge_address(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    value = match.group(1).decode("utf-8", "replace")
    if value[0] in "{<$[%" or _is_nothing(value) or _is_label(value):
        return ()
    return (match.span(1),) if settings or len(value) >= 3 else ()


def _judge_login(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    value = match.group(1).decode("utf-8", "replace")
    return (match.span(1),) if settings and _is_setting(value) else ()


def _judge_option(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    begins = match.start(1)
    if (opened := _PREFIX.match(text, begins)) is not None:
        start, end = _find_quoted(text, opened, False)
    else:
        found = _OPTION_VALUE.match(text, begins)
        if found is None:
            return ()
        start, end = found.span()
    value = text[start:end].decode("utf-8", "replace")
    if value.startswith("-") or not _is_setting(value):
        return ()
    return ((start, end),) if settings or looks_like_key(value, quoted=False) or opened is not None else ()


def _judge_element(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    value = match.group(1).decode("utf-8", "replace")
    secret = _is_setting(value) if settings else looks_like_key(value, quoted=True)
    return (match.span(1),) if secret else ()


def _judge_docker(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """The value of `ENV NAME VALUE`, which may have blanks."""
    start = match.start(1)
    end = _line_end(text, start)
    value = text[start:end].decode("utf-8", "replace").strip()
    return ((start, end),) if _is_setting(value) and (settings or is_set_secret(value)) else ()


# -- private keys ---------------------------------------------------------------------------------------------


def _judge_pem(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """From the BEGIN line to its END, if key material stands between; else as far as that follows."""
    start, at = match.span()
    closes = text.find(b"-----END ", at, at + MAX_SECRET_BYTES)
    if closes >= 0:
        end = closes + len(b"-----END ")
        ends = text.find(b"-----", end, end + 60)
        is_key = _KEY_MATERIAL.search(text, at, closes) is not None
        return ((start, _line_end(text, end) if ends < 0 else ends + 5),) if is_key else ()
    end = at
    rest = _line_end(text, at)
    if not _KEY_LINE.fullmatch(text, at, rest):
        return ()
    while rest < len(text) and rest - start < MAX_SECRET_BYTES:
        following = _line_end(text, rest + 1)
        if not _KEY_LINE.fullmatch(text, rest + 1, following):
            break
        if text[rest + 1 : following].strip():
            end = following
        rest = following
    return ((start, end),) if end > at or rest > at else ()


def _judge_pem_end(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """The lines of base64 before an END line whose BEGIN is missing."""
    end = match.end()
    begins = _line_start(text, match.start())
    start = begins
    while start > 0 and end - start < MAX_SECRET_BYTES:
        line_start = _line_start(text, start - 1)
        line = text[line_start : start - 1]
        if not line.strip() or not _KEY_LINE.fullmatch(line):
            break
        start = line_start
    return ((start, end),) if start < begins else ()


def _judge_base64(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Lines of base64 that decode to the beginning of a private key."""
    if not _begins_key(match.group(1)):
        return ()
    start, end = match.span(1)
    at = _line_end(text, end)
    while at < len(text) and at - start < MAX_SECRET_BYTES:
        following = _line_end(text, at + 1)
        line = text[at + 1 : following]
        if not line.strip() or not _KEY_LINE.fullmatch(line):
            break
        end, at = following, following
    return ((start, end),)


def _begins_key(line: bytes) -> bool:
    """Whether base64 begins as a private key does: PKCS #1 and #8, SEC 1, OpenSSH, an encrypted one."""
    try:
        raw = base64.b64decode(line[:60])
    except (binascii.Error, ValueError):
        return False
    if raw.startswith(b"openssh-key-v1\0"):
        return True
    if raw[:1] != b"\x30" or raw[1] < 0x20:
        return False
    body = raw[2 + (raw[1] & 0x7F) :] if raw[1] >= 0x80 else raw[2:]
    return body.startswith((b"\x02\x01\x00\x02", b"\x02\x01\x00\x30", b"\x02\x01\x01\x04", b"\x02\x01\x01\x30")) or (
        body[:1] == b"\x30" and b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x05" in body[:16]
    )


def _is_mixed(value: str) -> bool:
    """Whether it has lower case, upper case and digits, as keys do; or many digits among letters."""
    digits = sum(letter.isdigit() for letter in value)
    return 0 < digits < len(value) and (_is_cased(value) or digits >= 4)


def _is_cased(value: str) -> bool:
    """Whether it is one word with letters of both cases."""
    return (
        " " not in value and any(letter.islower() for letter in value) and any(letter.isupper() for letter in value[1:])
    )


# -- compiled -------------------------------------------------------------------------------------------------


@cache
def _forms() -> tuple[tuple[Any, Callable[[bytes, Any, bool], Iterable[Span]]], ...]:
    """Each form as a pattern, and the function that finds the secret in what it matches."""
    return (
        (compile_patterns(_SHAPES), _judge_shape),
        (compile_patterns([_HEADER]), _judge_header),
        (compile_patterns([_BEARER]), _judge_bearer),
        (compile_patterns([_ADDRESS]), _judge_address),
        (compile_patterns([_LOGIN]), _judge_login),
        (compile_patterns([_OPTION]), _judge_option),
        (compile_patterns([_ELEMENT]), _judge_element),
        (compile_patterns([_DOCKER]), _judge_docker),
        (compile_patterns([_ASSIGNMENT]), _judge_assignment),
        (compile_patterns([_PEM.decode()]), _judge_pem),
        (compile_patterns([_PEM_END.decode()]), _judge_pem_end),
        (compile_patterns([_BASE64_LINE]), _judge_base64),
    )


@cache
def _trigger() -> Any:
    """The one quick search that decides whether a text is looked at: short beginnings of whatever a form matches.

    It counts nothing, so that its automaton stays small, whatever the text is.
    """
    return compile_patterns((f"(?i:{_STRONG}|{_WEAK}|{_HEADERS})", *_BEGINNINGS))


@cache
def _key_name() -> re.Pattern[str]:
    names = (
        r"api[_-]?key|apikey|access[_-]?key|secret[_-]?key|private[_-]?key|account[_-]?key|auth[_-]?key|"
        r"signing[_-]?key|encryption[_-]?key|client[_-]?secret|secret|access[_-]?key[_-]?id|token|"
        r"password|passwd|passphrase|credentials?"
    )
    return re.compile(rf"(?:.*[^a-z]|.*[a-z](?=[A-Z])|.*)?(?:{names}|{_HEADERS})", re.IGNORECASE)


def compile_patterns(patterns: Iterable[str]) -> Any:
    """Return an RE2 pattern over bytes that matches whatever one of these does."""
    import re2  # at first use: many starts redact nothing

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEM
    return re2.compile("|".join(f"(?:{pattern})" for pattern in patterns).encode(), options)
