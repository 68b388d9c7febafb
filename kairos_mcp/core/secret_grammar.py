"""The grammar of secrets: in which forms a value in a text is a secret, by its name, its place or its shape.

    secret      = shape | header | address | command | call | assignment | pair | key block | what a file's name tells
    shape       = a key of a known service, as `sk-…`, `ghp_…`, `AKIA…`, a JSON Web Token, an address of a webhook
    header      = `Authorization: Bearer …`, `Cookie: …`
    address     = `scheme://user:VALUE@host`, `https://VALUE@host`
    command     = options, logins, directives, statements of SQL (secret_commands.py)
    call        = `setPassword("VALUE")`, `check_password("VALUE", x)`, `login("anna", "VALUE")` (secret_calls.py)
    assignment  = [`export` | `ENV` | `ARG` …] NAME separator VALUE (secret_assignments.py)
    pair        = NAME and VALUE in two members, attributes, arguments or elements (secret_pairs.py)
    NAME        = anything that ends in password, passwd, passphrase, pwd, pass, secret, token, api_key, credential …,
                  in any case, joined in any way (`DB_PASSWORD`, `dbPassword`, `db-password`, `db.password2`, `PGPASS`),
                  also with letters written as numbers (`pa\\u0073sword`)
    separator   = `=`, `:`, `=>`, `:=`, `?=`, `+=`, those of full width, and in a Dockerfile a blank
    VALUE       = a quoted text (also over several lines), an indented YAML block, what stands until the line ends or on
                  deeper lines below; in a connection string what stands until the next `;`
    key block   = `-----BEGIN … PRIVATE KEY-----` to its end, or as far as key material follows; or lines of base64
                  that decode to the beginning of a private key, or that end in `-----END … PRIVATE KEY-----`
    file's name = secret_files.py; files like `.env` are in env_files.py

No VALUE is: nothing, a reference (`${X}`, `{{ x }}`, `env:X`), a placeholder (`<password>`, `***`), a word like `true`,
or the path of a file, by a closed grammar (secret_placeholders.py). A default within a reference is a VALUE
(`${X:-VALUE}`), and so is what only begins like a reference, a comment or what is masked, or ends like the name of a
secret (`hunter2secret9`).

Settings and sources are judged apart. In settings (`is_source` says which files are none) every VALUE is a secret. In
sources and in prose names like `token` stand beside code: there a VALUE has to be what a variable in capitals is set
to, to be quoted beside a name for a password, or to look like a key: letters mixed with digits.

The patterns are RE2's, so the time is linear in the length of the text. What is found lies within single lines, so that
a text keeps its lines when it is masked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from heapq import heappop, heappush
from typing import Any

from kairos_mcp.core.secret_assignments import (
    ASSIGNMENT,
    ESCAPED,
    EXPLICIT,
    judge_assignment,
    judge_escaped,
    judge_explicit,
)
from kairos_mcp.core.secret_calls import CALL, LOGIN_CALL, judge_call
from kairos_mcp.core.secret_commands import (
    COMMANDS,
    DIRECTIVE,
    DOCKER,
    LOGIN,
    OPTION,
    STATEMENT,
    USER,
    judge_command,
    judge_directive,
    judge_docker,
    judge_login,
    judge_option,
    judge_statement,
    judge_user,
)
from kairos_mcp.core.secret_forms import MIN_SECRET_CHARS
from kairos_mcp.core.secret_keys import (
    BASE64_LINE,
    BASIC,
    ENCODED_PEM,
    PEM,
    PEM_END,
    find_key_blocks,
    judge_base64,
    judge_basic,
    judge_encoded_pem,
    judge_pem_end,
)
from kairos_mcp.core.secret_pairs import (
    ARGUMENTS,
    BLOCK,
    DATA,
    DATA_IN_BRACES,
    ELEMENT,
    ELEMENTS,
    PAIR,
    TABLE,
    TAG,
    judge_arguments,
    judge_block,
    judge_data,
    judge_data_in_braces,
    judge_element,
    judge_elements,
    judge_pair,
    judge_table,
    judge_tag,
)
from kairos_mcp.core.secret_placeholders import is_cased, is_label, is_mixed, is_none
from kairos_mcp.core.secret_spans import Span, is_masked, join_lines, join_spans, split_lines, whole_line_end
from kairos_mcp.core.secret_values import (
    HEADERS,
    STRONG,
    WEAK,
    looks_like_key,
)

MAX_JUDGED = 20_000  # matches of a form in one text, and their values; then the rest of their lines is masked unseen
_MAX_MEM = 64 << 20
_SOURCE_ENDINGS = re.compile(  # of code and prose; what has none of these, or no ending, counts as settings
    r"pyi?|pyx|[cm]?jsx?|[cm]?tsx?|c|cc|cpp|cxx|hpp|hh?|cs|go|rs|java|kts?|scala|rb|php|p[lm]|lua|swift|mm?|r|jl|sql|"
    r"dart|exs?|erl|hs|ml|cljs?|el|vim|mdx?|rst|adoc|html?|css|scss|sass|less|vue|svelte|tex|ipynb|pot?|csv|tsv|log|"
    r"diff|patch|proto|graphql|svg|map"
)
_SLACK, _DISCORD, _SIGNATURE = r"hooks\.slack\.com/", "/api/webhooks/", "[?&]sig="
_SHAPES = (
    r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic, Stripe and those who follow
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
    rf"\b{_SLACK}(?:services|workflows|triggers)/[A-Za-z0-9_/-]{{20,}}",  # an address that is a key itself
    rf"\bdiscord(?:app)?\.com{_DISCORD}[0-9]{{6,}}/[A-Za-z0-9_-]{{20,}}",
    rf"{_SIGNATURE}[A-Za-z0-9%+/_-]{{20,}}=*",  # of a shared address of Azure
)
_HEADER = (  # on a line or in a command: all that follows the scheme
    rf"\b(?i:{HEADERS})\\?[\"']?\s{{0,3}}:\s{{0,3}}\\?[\"']?(?:(?i:bearer|basic|token|apikey|digest)\s+)?"
    r"([^\s\"'\\][^\r\n\"'\\]{0,}[^\s\"'\\])"
)
_BEARER = r"\b(?i:bearer|basic)\s+([A-Za-z0-9._~+/=-]{16,})"
_ADDRESS = (  # up to the last `@` before a slash; else, with slashes, up to the first one
    r"\b[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/:@\"'<>]{0,80}:(?:([^\s/\"']{1,200})|([^\s@\"']{1,200}))@"
)
_LOGIN_ALONE = r"\bhttps?://([A-Za-z0-9_.~-]{8,200})@"  # a token in the place of a user
_NO_LOGIN = re.compile(rb"(?:oci|docker|pkg|npm)://|[a-z0-9+.-]+://[^:]*:[0-9]{1,5}/", re.IGNORECASE)
_BEGINNINGS = (
    *(
        "-----BEGIN",
        "-----END",
        "://",
        r"(?i:bearer|basic)\s",
        r"\\(?:u00|x)[2-7]",
        r"(?i:identified\s)",
        r"[\s\"'\[,(]-(?:-[a-z-]*|[a-zA-Z]{0,8})(?:[uUaw]|user|auth)\b",
        r"(?i:\bauth\b)",
        rf"(?i:{LOGIN_CALL})",
        r"(?i:securestring|chpasswd|--from-literal|masterauth|jdbc:oracle)",
        r"\b(?:curl|twine|ncftp|rdesktop|x?freerdp|ssh-keygen|openssl|snmp|vault[ \t]login|add-generic-|user-secrets)",
        r"(?i:\bnet[ \t]+user\b)|<<<|--with-token|--password-stdin",
        r"\b(?:mongo|cqlsh|clickhouse-|mosquitto_|sqlcmd|bcp|ipmitool|7za?|lftp|sqlplus|rabbitmqctl|(?:un)?zip[ \t])",
        r"\bmysql|mariadb|docker|podman|helm|nerdctl|skopeo|buildah",
        "LS0tLS1CRUdJTi",
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
    *(_SLACK, _DISCORD, _SIGNATURE),
    *(r"kairos\.", "MII", "MIG", "M[A-F][A-Za-z0-9]CA[QT]", "MH[A-Za-z0-9]CA[QT]", "b3BlbnNzaC1rZXktdjE"),
)


def is_source(path: str) -> bool:
    """Whether a file holds code or prose by its name, and not settings."""
    name, _, ending = path.rpartition("/")[2].rpartition(".")
    return bool(name) and _SOURCE_ENDINGS.fullmatch(ending.casefold()) is not None


def find_secrets(text: bytes, *, settings: bool = False) -> list[Span]:
    """Return where secrets stand in a text, in order, apart from each other and each within one line.

    `settings`: it is a file of settings, in which every value beside the name of a secret is one.
    """
    found = SecretSearch(text, settings=settings).find_until(len(text))
    lines = (line for start, end in join_spans(found) for line in split_lines(text, start, end))
    return [line for line in lines if not is_masked(text, *line)]


class SecretSearch:
    """Searches a text for secrets as far as asked, and later goes on from there.

    Each form is matched and judged on the whole text. So a secret is found to its end, however far that is, and no
    border between two steps of the search changes what is found.
    """

    def __init__(self, text: bytes, *, settings: bool) -> None:
        self._searches: list[Iterator[tuple[int, list[Span]]]] = []
        if _trigger().search(text) is not None:
            self._searches += (_search_form(text, pattern, judge, settings) for pattern, judge in _forms())
            blocks = find_key_blocks(text, _pem().finditer(text))
            self._searches.append((block[0], [block]) for block in blocks)

    def find_until(self, limit: int) -> list[Span]:
        """Return the spans of all matches that begin before a place and were not returned yet, and perhaps of later
        ones. A span may reach over several lines, and spans may meet."""
        found: list[Span] = []
        for search in self._searches:
            for begins, spans in search:
                found += spans
                if begins >= limit:
                    break
        return found


def _search_form(
    text: bytes, pattern: Any, judge: Callable[[bytes, Any, bool], Iterable[Span]], settings: bool
) -> Iterator[tuple[int, list[Span]]]:
    """Yield where each match of a form begins, and the secrets in it. A match within a secret doesn't count."""
    ahead, count = list[Span](), 0
    for match in pattern.finditer(text):
        if _lies_within(match.start(), ahead):
            continue
        count += 1
        unseen = count > MAX_JUDGED
        found = [(match.end(), whole_line_end(text, match.end()))] if unseen else judge(text, match, settings)
        spans = join_lines(text, found)
        count += len(spans[1:])  # what a list or a record holds
        for span in spans:
            heappush(ahead, span)
        yield match.start(), spans


def _lies_within(at: int, ahead: list[Span]) -> bool:
    """Whether a place lies in one of the spans of a heap. Those that end before it are dropped."""
    while ahead and ahead[0][1] <= at:
        heappop(ahead)
    return bool(ahead) and ahead[0][0] <= at


def _judge_shape(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Take the whole match, but not a word that only begins like a key, as sk-learn does."""
    start, end = match.span()
    return ((start, end),) if re.search(rb"\d", text[start:end]) else ()


def _judge_header(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    start, end = match.span(1)
    value = text[start:end].decode("utf-8", "replace")
    if is_none(value):
        return ()
    if settings and " " not in value and b"\n" not in text[match.start() : start]:
        return ((start, end),)
    cookie = b"cookie" in match.group().lower() and re.search(r"[^\s=]=[^\s=<{$;]", value) is not None
    telling = any(letter.isdigit() for letter in value) or is_cased(value) or cookie
    return ((start, end),) if telling and len(value) >= MIN_SECRET_CHARS else ()


def _judge_bearer(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    return (match.span(1),) if is_mixed(match.group(1).decode("utf-8", "replace")) else ()


def _judge_address(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    span = match.span(match.lastindex)
    value = text[slice(*span)].decode("utf-8", "replace")
    if match.lastindex == 2 and (not settings or _NO_LOGIN.match(text, match.start())):
        return ()
    return () if is_none(value) or (not settings and (len(value) < 3 or is_label(value))) else (span,)


def _judge_login_alone(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    value = match.group(1).decode("utf-8", "replace")
    return (match.span(1),) if looks_like_key(value, quoted=settings) else ()


@cache
def _forms() -> tuple[tuple[Any, Callable[[bytes, Any, bool], Iterable[Span]]], ...]:
    """Each form as a pattern, and the function that finds the secret in what it matches."""
    return (
        (compile_patterns(_SHAPES), _judge_shape),
        (compile_patterns([_HEADER]), _judge_header),
        (compile_patterns([_BEARER]), _judge_bearer),
        (compile_patterns([_ADDRESS]), _judge_address),
        (compile_patterns([_LOGIN_ALONE]), _judge_login_alone),
        (compile_patterns([LOGIN]), judge_login),
        (compile_patterns([OPTION]), judge_option),
        (compile_patterns([USER]), judge_user),
        (compile_patterns(COMMANDS), judge_command),
        (compile_patterns([DIRECTIVE]), judge_directive),
        (compile_patterns(STATEMENT), judge_statement),
        (compile_patterns([BASIC]), judge_basic),
        (compile_patterns([ENCODED_PEM]), judge_encoded_pem),
        (compile_patterns([ELEMENT]), judge_element),
        (compile_patterns([DOCKER]), judge_docker),
        (compile_patterns([ASSIGNMENT]), judge_assignment),
        (compile_patterns([ESCAPED]), judge_escaped),
        (compile_patterns([CALL]), judge_call),
        (compile_patterns([EXPLICIT]), judge_explicit),
        (compile_patterns([TABLE]), judge_table),
        (compile_patterns([PAIR]), judge_pair),
        (compile_patterns([TAG]), judge_tag),
        (compile_patterns([ELEMENTS]), judge_elements),
        (compile_patterns([ARGUMENTS]), judge_arguments),
        (compile_patterns([BLOCK]), judge_block),
        (compile_patterns([DATA]), judge_data),
        (compile_patterns([DATA_IN_BRACES]), judge_data_in_braces),
        (compile_patterns([PEM_END.decode()]), judge_pem_end),
        (compile_patterns([BASE64_LINE]), judge_base64),
    )


@cache
def _pem() -> Any:
    return compile_patterns([PEM.decode()])


@cache
def _trigger() -> Any:
    """The one quick search that decides whether a text is looked at: short beginnings of whatever a form matches.

    It counts nothing, so that its automaton stays small, whatever the text is.
    """
    return compile_patterns((f"(?i:{STRONG}|{WEAK}|{HEADERS})", *_BEGINNINGS))


def compile_patterns(patterns: Iterable[str]) -> Any:
    """Return an RE2 pattern over bytes that matches whatever one of these does."""
    import re2  # at first use: many starts redact nothing

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEM
    return re2.compile("|".join(f"(?:{pattern})" for pattern in patterns).encode(), options)
