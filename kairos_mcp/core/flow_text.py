"""The forms of text that the rules of information flow compare: plain, squashed, taken apart, in disguise.

Two texts are alike if they differ in case, spaces, Unicode forms or invisible characters alone (`plain`); `squash` also
drops what is neither letter nor digit. No meaning is read here: what a word says, or in which language, is not known.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote_plus

from kairos_mcp.core.json_bounds import MAX_VALUES, has_more_values


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


NAME_CHARS, NAME_WORDS = 64, 7  # up to here a value is a name; what is longer is running text
TEXT_ARGUMENTS = word_set(
    "body content text message description summary comment note notes html markdown prompt subject title location"
    " label category"
)
"""Names of arguments whose values are texts that go along, however short."""
_COMMON = word_set(
    "this that with from have there their them then than what when where which will would could should about please"
    " also into your make made some each other only more most very just file files email emails send message messages"
    " channel event events list name date time user users http https www com org net"
)
"""Words that pick nothing out."""
_TOKEN = re.compile(r"[^\s,;<>\"'`()\[\]{}|]+")
_EDGES = ".,:;!?*_-="
_ADDRESS = re.compile(
    r"(?i)(?:[a-z][a-z0-9+.-]*://\S+"
    r"|(?:https?|wss?|ftp):[/\\]*\S+|[/\\]{2}[^\s/\\]+\.\S+"  # as browsers read them
    r"|[^\s@]+@[\w-]+(?:\.[\w-]+)+"
    r"|(?:[\w-]+\.)+[a-z]{2,}(?:[:/?#]\S*)?"
    r"|[A-Z]{2}\d{2}[A-Z0-9]{8,30}"
    r"|\+?\d[\d -]{8,}\d"
    r"|@[\w.-]{3,})"
)
_FILE = re.compile(r"(?i)[\w ./-]+\.(?:txt|md|docx?|xlsx?|pdf|csv|json|py|js|toml|ya?ml|html?|png|jpe?g)")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}(?::\d{2})?)?")
_LINK = re.compile(r"[a-z][a-z0-9+.-]*://|(?:https?|wss?|ftp):[/\\]*|[/\\]{2,}")
_SCHEME = re.compile(rf"^(?:{_LINK.pattern})?(?:www\.)?")
_DOTS = str.maketrans("\u3002", ".")  # a host's dot, as a browser reads it
_NUMBERED_NAME = re.compile(r"(?:^|_)(?:id|number|no)_?$")
_NUMBERED_LINE = re.compile(r"(?im)^[^\w\n]*(?:\w+[ _-])?(?:id|number|no)_?[^\w\n]{1,5}\d{1,3}[^\w\n]*$")


def plain(text: str) -> str:
    """Return the text in one case and one Unicode form, with single spaces and without invisible characters."""
    normal = text if text.isascii() else unicodedata.normalize("NFKC", text)
    if not normal.isascii():
        normal = "".join(each for each in normal if unicodedata.category(each) != "Cf")
    return " ".join(normal.split()).casefold()


def squash(text: str) -> str:
    """Return the letters and digits of a plain text alone."""
    return re.sub(r"[\W_]+", "", text)


def tokens(text: str) -> Iterator[str]:
    """Yield what stands between spaces, quotes and brackets in a plain text, without the punctuation around it."""
    return (token for part in _TOKEN.findall(text) if (token := part.strip(_EDGES)))


def words(text: str) -> Iterator[str]:
    """Yield the words that can pick something out, and amounts."""
    yield from (word for word in re.findall(r"[^\W_]{4,}", plain(text)) if word not in _COMMON)
    yield from (f"{float(number):g}." for number in re.findall(r"(?<![\w.-])\d{1,9}\.\d+(?![\w-])", text))


def verbs_of(tool: str) -> list[str]:
    """Return the beginnings of the words in a tool's own name."""
    own = re.findall(r"[A-Za-z][a-z]{3,}", tool.rpartition("__")[2])
    return [word[:5].casefold() for word in own if word.casefold() not in _COMMON]


def contains(text: str, part: str) -> bool:
    """Whether the part stands in the text as words of its own."""
    return part in text and re.search(rf"(?<![\w@]){re.escape(part)}(?![\w@])", text) is not None


def telling_tokens(text: str) -> dict[str, str]:
    """Return names, numbers and addresses by their letters and digits: one of them is enough to tell something."""
    raw = (token.strip(_EDGES) for token in _TOKEN.findall(text))
    telling = (plain(token) for token in raw if len(token) >= 4 and (not token.islower() or "@" in token))
    return {bare: token for token in telling if len(bare := squash(token)) >= 3}


def links_in(found: frozenset[str]) -> frozenset[str]:
    """Return the links and paths among the tokens of a text, without their scheme."""
    parts = (part for token in found if "/" in token or "." in token for part in re.split(r"[()\[\]<>=\"']", token))
    return frozenset(strip_scheme(part) for part in parts if "/" in part or "." in part)


def is_address(text: str) -> bool:
    """Whether it is one URL, host, mail address, account, telephone number or @name."""
    text = text.strip().translate(_DOTS)
    return _ADDRESS.fullmatch(text) is not None and not _FILE.fullmatch(text) and not is_date(text)


def strip_scheme(text: str) -> str:
    return _SCHEME.sub("", text).rstrip("/.")


def host_of(text: str) -> str:
    """Return the host of a URL; a mail address stays whole."""
    first = re.split(r"[/\\?#]", strip_scheme(text))[0].translate(_DOTS)
    return first.rpartition("@")[2] if _LINK.match(text) else first


def hosts_in(arguments: Any) -> list[str]:
    """Return the hosts of the addresses in arguments."""
    return [host_of(plain(text)) for _, text in texts_of(arguments) if is_address(text)]


def is_date(text: str) -> bool:
    return _DATE.fullmatch(text) is not None


def is_short(text: str) -> bool:
    return len(text) <= NAME_CHARS and len(text.split()) <= NAME_WORDS


def texts_of(value: Any, name: str = "", *, every: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the texts of arguments with the names that they stand under; keys of objects within them, which whoever
    makes a call chooses as well, stand under none.

    Dates, truth values and numbers aim at nothing, except a number under a name like id. With `every` all but truth
    values are yielded.
    """
    match value:
        case str():
            if every or not is_date(value):
                yield name, value
        case Mapping():
            yield from (("", str(key)) for key in value if name)
            for key, each in value.items():
                yield from texts_of(each, str(key), every=every)
        case list() | tuple():
            for each in value:
                yield from texts_of(each, name, every=every)
        case int() | float() if not isinstance(value, bool) and (every or _NUMBERED_NAME.search(name)):
            yield name, str(value)


def read_records(data: Any, text: str) -> tuple[list[list[str]], str]:
    """Return the groups of short values that stand together in structured data, and the running text in it.

    A text without structure has no groups: it is not taken apart by lines, since whoever writes one can write "to: me"
    into it. Only a line that is nothing but a short number after the word id is no running text.
    """
    prose: list[str] = []
    with suppress(ValueError, RecursionError):  # no JSON, or nested too deep
        if data is None and text[:1] in ("[", "{") and not has_more_values(text, MAX_VALUES):
            data = json.loads(text)
        if isinstance(data, Mapping | list):
            return [group for group in _records(data, prose) if group], plain("\n".join(prose))
    return [], plain(_NUMBERED_LINE.sub("", text))


def _records(value: Any, prose: list[str]) -> Iterator[list[str]]:
    match value:
        case Mapping():
            group: list[str] = []
            for key, each in value.items():
                inner = each.values() if isinstance(each, Mapping) else each if isinstance(each, list) else [each]
                is_deep = any(isinstance(one, Mapping | list) for one in inner)
                short = [] if is_deep else [text for one in inner for text in _short_values(one, prose)]
                group += short
                if is_deep:
                    yield from _records(each, prose)
                if not str(key).isidentifier() or not str(key).islower():
                    yield [str(key), *short]  # {"Good Night": …}: the key is a value too
            yield group
        case list():
            for each in value:
                yield from _records(each, prose)
        case _:
            yield _short_values(value, prose)


def _short_values(value: Any, prose: list[str]) -> list[str]:
    if value is None or isinstance(value, bool):
        return []
    if isinstance(value, str) and not is_short(value):
        prose.append(value)
        return []
    return [str(value)]


def disguises(values: Sequence[str]) -> Iterator[str]:
    """Yield the text as it is and as the usual disguises hide it: percent, base64, base32, hex, in pieces, reversed,
    rot13."""
    seen = [" ".join(values)]
    seen.append(unquote_plus(unquote_plus(seen[0])))
    seen.append(re.sub(r"[.\-_/&=+]", "", seen[1]))
    coded = (r"[A-Za-z0-9+_-]{6,}", r"[A-Za-z0-9+/]{16,}")
    for token in dict.fromkeys(token for text in seen for form in coded for token in re.findall(form, text)):
        for decode in (_decode_base64, _decode_base32, binascii.unhexlify):
            with suppress(ValueError):
                seen.append(decode(token).decode())
    yield from dict.fromkeys([*seen, *(text[::-1] for text in seen), *(codecs.encode(text, "rot13") for text in seen)])


def _decode_base64(token: str) -> bytes:
    return base64.urlsafe_b64decode(token.replace("+", "-").replace("/", "_") + "=" * (-len(token) % 4))


def _decode_base32(token: str) -> bytes:
    return base64.b32decode(token.upper() + "=" * (-len(token) % 8))
