"""Read what a provider says in an error body: its own words, its status, how long to wait, what exactly is wrong.

Identifiers decide: a status, a code, a type. Only an overflow of the context and a wait are also known by their
wording, since most servers state them in no other way; the answer to each is harmless where the wording misleads: a
shorter conversation, a wait of at most 30 s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.models.replies.waits import find_wait, read_wait

MAX_BODY_CHARS = 20_000  # of a body that is searched: a page of a gateway may be long
MAX_PARTS = 40  # of a body in which words are looked for

Kind = Literal["overflow", "quota", "bad call"]
_BAD_CALL = "toolusefailed"  # Groq's code, with a status of 400

_STATUSES: Mapping[int, str] = {
    400: "invalidrequesterror invalidrequest invalidargument badrequest badrequesterror failedprecondition outofrange",
    401: "authenticationerror unauthenticated unauthorized invalidapikey",
    402: "insufficientquota billinghardlimitreached creditbalanceexhausted paymentrequired billingerror",
    403: "permissionerror permissiondenied forbidden",
    404: "notfound notfounderror modelnotfound",
    413: "requesttoolarge payloadtoolarge",
    429: "ratelimitexceeded ratelimiterror ratelimit toomanyrequests resourceexhausted tokens requests",
    500: "servererror internalservererror internalerror internal apierror",
    503: "serviceunavailable serviceunavailableerror unavailable engineoverloaded serverisoverloaded modeloverloaded",
    504: "timeout timeouterror deadlineexceeded gatewaytimeout",
    529: "overloaded overloadederror",
}
_STATUS_OF: Mapping[str, int] = {name: status for status, names in _STATUSES.items() for name in names.split()}
_OVERFLOW_CODES = frozenset(
    {"contextlengthexceeded", "exceedcontextsizeerror", "contextwindowexceeded", "modelcontextwindowexceeded"}
)
_OVERFLOW_STATUSES = (None, 400, 413, 422, 500)  # llama.cpp of before, Ollama and LM Studio answer with 500
_OVERFLOW_WORDS = re.compile(
    r"""(?: maximum\ (?:context|prompt)\ length
    | (?:context|prompt)[ _-]?(?:length|size|window)(?:\ of)?\ (?:exceed(?:s|ed)|overflow) | context\ overflow
    | exceed\w*\ (?:\w+\S?s?\ ){0,4}(?:(?:context|prompt)[ _-]?(?:length|size|window|limit)|token\ limit)
    | contextwindowexceeded | longer\ than\ the\ (?:model\Ss\ |maximum\ )?(?:context|model\ length)
    | (?:prompt|input)(?:\ \([^)]{0,60}\))?\ is\ too\ long | too\ large\ for\ model\ with
    | (?:input|prompt)\ (?:token\ count|length)\b.{0,80}exceed | prompt\ exceeds\ max | context\ the\ overflows
    | token\ count\ is\ \d+\ but\ model\ only\ supports | greater\ than\ the\ context\ length
    | reduce\ the\ length\ of\ (?:the\ messages|your\ prompt|the\ input) | max_new_tokens`?\ must\ be\ <=
    | inputs`?\ must\ have\ less\ than\ \d+\ tokens | input\ tokens\ exceed | tokens\ in\ the\ prompt\ cannot\ exceed
    | range\ of\ input\ length | maximum\ supported\ sequence\ length
    | (?:request|request\ body)\ too\ large\ for\ .{0,120}\b(?:tokens\ per\ minute|\d+\ tokens) )""",
    re.VERBOSE | re.IGNORECASE,
)
_WAIT_FIELDS: Mapping[str, float] = {  # each with the unit of a bare number, in seconds
    "retryafter": 1.0,
    "retryafters": 1.0,
    "retryafterseconds": 1.0,
    "retryafterms": 0.001,
    "xmsretryafterms": 0.001,
    "retrydelay": 1.0,
    "retryin": 1.0,
    "resetsinseconds": 1.0,
    "resetsat": 1.0,
    "xratelimitreset": 1.0,
}
_WORD_FIELDS = (
    *("message", "msg", "detail", "error", "error_message", "error_msg", "error_description", "description"),
    *("status_msg", "reason", "raw", "title"),
)
_MORE_FIELDS = ("metadata", "errors", "details", "innererror", "headers", "base_resp")  # in which more may lie


@dataclass(frozen=True, slots=True)
class ErrorWords:
    """What an error body says, uncut: `words` may hold a key, and are redacted before they are cut.

    `status`: the reply's, else that of its code or type. `is_page`: it is a page for a browser, as gateways and
    firewalls send, and not the provider's.
    """

    words: str = ""
    status: int | None = None
    kind: Kind | None = None
    wait_s: float | None = None
    is_page: bool = False


def read_error(body: object, status: int | None = None) -> ErrorWords:
    """Read an error body: an object, a list of one, JSON in a text, a page, or a plain text. `status`: the reply's."""
    body = _decode(body)
    if isinstance(body, str):
        page = _page_words(body)
        words = _collapse(body if page is None else page)
        return ErrorWords(words, status, _find_kind(status, (), words), find_wait(words), page is not None)
    parts = list(_walk(body))
    words = _collapse("; ".join(dict.fromkeys(_words_of(parts))))
    wanted = ("code", "status", "status_code", "type")  # the type is the widest of them
    stated_names = (value for each in wanted for name, value in parts if name == each and isinstance(value, str | int))
    names = [_letters_of(name) for name in stated_names]
    stated = status if status is not None and status != 200 else _find_status(names)
    wait = next(_waits_of(parts), None)
    return ErrorWords(words, stated, _find_kind(stated, names, words), find_wait(words) if wait is None else wait)


def error_of(reply: Mapping[str, Any]) -> object:
    """Return the error that a reply holds where a completion should be; None if it holds none."""
    if "error" in (reply.get("type"), reply.get("object")):
        return reply
    for name in ("error", "errors"):
        if (held := reply.get(name)) and not (
            isinstance(held, dict) and not any(held.values())
        ):  # one that says nothing
            return {name: held}
    match reply.get("base_resp"):  # MiniMax's, which is in each reply
        case {"status_code": int(code)} as state if code:
            return {"base_resp": state}
    return None


def _decode(body: object) -> object:
    """Return what a body holds: the object of a list, the JSON in a text."""
    if isinstance(body, str) and body[:1].strip() in ("{", "[") and len(body) <= MAX_BODY_CHARS:
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return body
    if isinstance(body, list):
        return next((part for part in body if isinstance(part, dict)), body)
    return "" if body is None else body


def _walk(body: object) -> Iterator[tuple[str, Any]]:
    """Yield the fields in which an error says something, from the outermost in, each with its name."""
    level: list[object] = [body]
    left = MAX_PARTS
    while level and left > 0:
        inner: list[object] = []
        for part in level:
            if isinstance(part, list):
                inner += part[:MAX_PARTS]
            if not isinstance(part, dict):
                continue
            for name, value in list(part.items())[:MAX_PARTS]:
                left -= 1
                yield str(name), _name_place(part, value) if name == "msg" else value
                deeper = _decode(value) if name == "raw" else value
                if isinstance(deeper, dict | list) and name in (*_WORD_FIELDS, *_MORE_FIELDS):
                    inner.append(deeper)
        level = inner


def _name_place(part: Mapping[str, Any], message: object) -> object:
    """Put the place that a finding is about before its words: `body.max_tokens: Extra inputs are not permitted`."""
    match part.get("loc"):
        case list(places) if isinstance(message, str):
            return f"{'.'.join(str(place)[:60] for place in places[:6])}: {message}"
        case _:
            return message


def _words_of(parts: list[tuple[str, Any]]) -> Iterator[str]:
    for name, value in parts:
        if name in _WORD_FIELDS and isinstance(value, str) and value.strip() and value[:1] not in "{[":
            yield " ".join(value[:MAX_BODY_CHARS].split())


def _find_status(names: list[str]) -> int | None:
    """Return the first status among these names: one as a number, or that which the name stands for."""
    for name in names:
        if name.isdigit() and 400 <= int(name[:4]) < 600:
            return int(name)
    return next((_STATUS_OF[name] for name in names if name in _STATUS_OF), None)


def _find_kind(status: int | None, names: list[str] | tuple[()], words: str) -> Kind | None:
    if any(_STATUS_OF.get(name) == 402 for name in names):
        return "quota"
    if _BAD_CALL in names:
        return "bad call"
    if any(name in _OVERFLOW_CODES for name in names):
        return "overflow"
    return "overflow" if status in _OVERFLOW_STATUSES and _OVERFLOW_WORDS.search(words) else None


def _waits_of(parts: list[tuple[str, Any]]) -> Iterator[float]:
    for name, value in parts:
        unit_s = _WAIT_FIELDS.get(_letters_of(name))
        wait = None if unit_s is None else read_wait(value, unit_s)
        if wait is not None:
            yield wait


def _letters_of(name: object) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name)[:60].lower())


def _page_words(text: str) -> str | None:
    """Return the title of a page for a browser; None for any other text."""
    start = text[:MAX_BODY_CHARS]
    if not re.match(r"\s*<(?:!doctype|html|head|body|\?xml)", start, re.IGNORECASE):
        return None
    title = re.search(r"<(title|h1)[^>]{0,200}>([^<]{1,300})<", start, re.IGNORECASE)
    return title[2].strip() if title else "a page for a browser"


def _collapse(words: str) -> str:
    return " ".join(words[:MAX_BODY_CHARS].split())
