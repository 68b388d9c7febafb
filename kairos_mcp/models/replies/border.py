"""The one pass over each request to a provider and its reply: hooks of the HTTP client, so no library is before them.

A request is asked for in pieces where somebody listens, and without the fields that its server has refused. A reply
comes out whole and well-formed, however it came: a library sees neither events nor what a server made up.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.chat import repair_chat, take_usage
from kairos_mcp.models.replies.chat_fold import ChatFold
from kairos_mcp.models.replies.errors import read_error
from kairos_mcp.models.replies.events import DONE, EventDecoder
from kairos_mcp.models.replies.exchange import (
    BadProviderReply,
    Exchange,
    UnexpectedRedirect,
    current_exchange,
    mend_surrogates,
    refuse_many_values,
)
from kairos_mcp.models.replies.fold import Fold
from kairos_mcp.models.replies.message import repair_message
from kairos_mcp.models.replies.message_fold import MessageFold
from kairos_mcp.models.replies.response import repair_response, response_text
from kairos_mcp.models.replies.response_fold import ResponseFold
from kairos_mcp.models.replies.variations import find_possible, vary

MAX_REPLY_BYTES = 16 * 1024 * 1024  # of a whole reply; a completion is a few hundred kilobytes at most
MAX_PAGE_BYTES = 20_000  # of a page in which its title is looked for
END_WAIT_S = 1.0  # behind the last event: the end of the reply usually comes along with it
MAX_START_BYTES = 4_096  # enough to tell events from a whole reply
_BOM = b"\xef\xbb\xbf"
_EVENTS = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:data|event|error|id|retry)?:")
_EVENTS_OR_WHOLE = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:[{\[<:]|\w+:|[^\s\xef].{20})", re.DOTALL)  # enough to tell

Hook = Callable[[Any], Awaitable[None]]


class Form(NamedTuple):
    """A form of replies: how its events are put together, how it is repaired, and where its text is."""

    name: str
    fold: Callable[[Exchange], Fold]
    repair: Callable[[JsonObject, Exchange], JsonObject]
    text_of: Callable[[JsonObject], str]


CHAT = Form("chat", ChatFold, repair_chat, lambda reply: reply["choices"][0]["message"]["content"] or "")
MESSAGE = Form(
    "message", MessageFold, repair_message, lambda reply: "".join(b.get("text", "") for b in reply["content"])
)
RESPONSE = Form("response", ResponseFold, repair_response, response_text)
_FORMS = {"/chat/completions": CHAT, "/messages": MESSAGE, "/responses": RESPONSE}


def request_hook(streams: type) -> Hook:
    """Return a hook that an HTTP client calls with each request; `streams` is its library's AsyncByteStream."""
    in_memory = _in_memory(streams)

    async def prepare_request(request: Any) -> None:
        form, exchange = _form_of(request), current_exchange()
        if form is None:
            return
        try:
            body = json.loads(request.content)
        except (ValueError, RecursionError):  # none that we wrote
            return
        changed = _rewrite(body, form, exchange)
        exchange.possible = find_possible(changed, form.name, exchange.refused)
        if changed != body:
            content = json.dumps(changed).encode()
            request.stream = in_memory(content)
            request.headers["Content-Length"] = str(len(content))

    return prepare_request


def _rewrite(body: JsonObject, form: Form, exchange: Exchange) -> JsonObject:
    """Return the request as this server takes it."""
    changed = dict(body)
    if exchange.on_text is not None:
        changed["stream"] = True
        if form is CHAT:
            changed["stream_options"] = {"include_usage": True}
    if form is CHAT and exchange.details:
        changed["messages"] = [_with_details(message, exchange.details) for message in body["messages"]]
    return vary(changed, form.name, exchange.refused)


def _with_details(message: JsonObject, details: dict[str, list[Any]]) -> JsonObject:
    calls: list[JsonObject] = message.get("tool_calls") or [{}]
    found = details.get(calls[0].get("id", ""))
    return message if found is None else message | {"reasoning_details": found}


def reply_hook(streams: type) -> Hook:
    """Return a hook that an HTTP client calls with each response; `streams` is its library's AsyncByteStream."""
    in_memory = _in_memory(streams)

    async def repair_reply(response: Any) -> None:
        """Put a whole, well-formed reply in place of a reply of status 200. Raises BadProviderReply."""
        if 300 <= response.status_code < 400:
            raise UnexpectedRedirect(response.status_code, _host(response.headers.get("location", "")))
        form, exchange, original = _form_of(response.request), current_exchange(), response.stream
        parts = _read_bounded(original, response.headers.get("content-encoding", ""))
        try:
            if response.is_success:
                kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                content = encode_reply(await read_reply(parts, kind, form, exchange))
            else:
                content = b"".join([part async for part in parts])
        finally:
            await original.aclose()
        for name in ("content-encoding", "content-length", "transfer-encoding"):
            if name in response.headers:
                del response.headers[name]
        if response.is_success:
            response.headers["content-type"] = "application/json"
        response.stream = in_memory(content)

    return repair_reply


def encode_reply(reply: JsonObject) -> bytes:
    """Return the reply as JSON that every library reads. Raises BadProviderReply."""
    try:
        text = json.dumps(reply, ensure_ascii=False)
    except RecursionError:
        raise BadProviderReply("it is nested too deeply") from None
    return mend_surrogates(text).encode()


async def read_reply(parts: AsyncIterator[bytes], kind: str, form: Form | None, exchange: Exchange) -> JsonObject:
    """Return the reply, whole and repaired, whether it comes whole or in events."""
    start = b""
    async for part in parts:
        start += part
        if len(start) > MAX_START_BYTES or _EVENTS_OR_WHOLE.match(start):
            break
    if form is not None and _EVENTS.match(start):
        return form.repair(await _fold_events(start, parts, form.fold(exchange)), exchange)
    content = b"".join([start, *[part async for part in parts]])
    if form is not None and _is_lines(content):
        return form.repair(await _fold_events(content, parts, form.fold(exchange)), exchange)
    reply = _parse_whole(content, kind)
    if form is None:
        return _check_other(reply, exchange)
    repaired = form.repair(reply, exchange)
    exchange.hear(form.text_of(repaired))
    return repaired


def _is_lines(content: bytes) -> bool:
    """Whether each line is an object, as in Ollama's own streams: they are read as events."""
    first, _, rest = content.strip().partition(b"\n")
    return first.rstrip().endswith(b"}") and rest.lstrip().startswith(b"{")


async def _fold_events(start: bytes, parts: AsyncIterator[bytes], fold: Fold) -> JsonObject:
    """Return what the events add up to. Some servers keep a connection open behind the last one."""
    decoder, is_done = EventDecoder(), False

    def take(events: Iterable[str | JsonObject]) -> bool:
        nonlocal is_done
        for event in events:
            if event == DONE:
                is_done = True
            elif not is_done and isinstance(event, dict):
                fold.take(event)
        return is_done or fold.has_ended

    has_ended = take(decoder.feed(start))
    try:
        async with asyncio.timeout(END_WAIT_S if has_ended else None) as deadline:
            async for part in parts:
                if take(decoder.feed(part)) and not has_ended:
                    has_ended = True
                    deadline.reschedule(asyncio.get_running_loop().time() + END_WAIT_S)
    except TimeoutError:
        if not deadline.expired():
            raise
    take(decoder.end())
    return fold.reply(is_done=is_done)


def _parse_whole(content: bytes, kind: str) -> JsonObject:
    refuse_many_values(content)
    try:
        reply = json.loads(content.removeprefix(_BOM))
    except (ValueError, RecursionError):
        if kind and not kind.endswith("json"):
            said = read_error(content[:MAX_PAGE_BYTES].decode("utf-8", "replace"))
            title = f" ({said.words[:100]})" if said.is_page else ""
            raise BadProviderReply(f"it is {kind[:60]}, not JSON{title}") from None
        raise BadProviderReply("it is cut off or no JSON", retryable=True) from None
    if isinstance(reply, list) and len(reply) == 1:  # Gemini's door puts an error into a list
        reply = reply[0]
    if not isinstance(reply, dict):
        raise BadProviderReply("it is no JSON object")
    return reply


def _check_other(reply: JsonObject, exchange: Exchange) -> JsonObject:
    """Take out a usage that can't be read, of a form that its own library reads; it is charged as if none was there."""
    for name in ("usage", "usageMetadata"):
        if reply.get(name) is not None:
            if not take_usage(exchange, iter((reply[name],))):
                reply = {key: value for key, value in reply.items() if key != name}
            exchange.has_usage = False  # the library knows which of its counts include others
    return reply


async def _read_bounded(stream: Any, encoding: str) -> AsyncIterator[bytes]:
    """Yield the bytes of a reply, unpacked where the server packed them unasked. Raises BadProviderReply beyond the
    bound."""
    unpack = _unpacker(encoding)
    size = 0
    async for packed in stream:
        part = packed if unpack is None else unpack(packed, MAX_REPLY_BYTES + 1 - size)
        size += len(part)
        if size > MAX_REPLY_BYTES:
            raise BadProviderReply(f"it is larger than {MAX_REPLY_BYTES} bytes")
        yield part


def _unpacker(encoding: str) -> Callable[[bytes, int], bytes] | None:
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "deflate" | "x-gzip" as name:
            unpacking = zlib.decompressobj(zlib.MAX_WBITS | (0 if name == "deflate" else 16))
        case name:
            raise BadProviderReply(f"it is packed as {name[:20]}, which was not asked for")

    def unpack(packed: bytes, most: int) -> bytes:
        try:
            return unpacking.decompress(packed, most)
        except zlib.error:
            raise BadProviderReply("it can't be unpacked", retryable=True) from None

    return unpack


def _in_memory(streams: type) -> Callable[[bytes], Any]:
    class InMemory(streams):  # type: ignore[misc]  # httpx's or httpx2's
        def __init__(self, content: bytes) -> None:
            self._content = content

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield self._content

    return InMemory


def _form_of(request: Any) -> Form | None:
    path = str(request.url.path).rstrip("/")
    return next((form for ending, form in _FORMS.items() if path.endswith(ending)), None)


def _host(location: str) -> str | None:
    """Return in words where a redirect leads, without the path, which may hold a secret; None where that is unknown."""
    try:
        found = urlsplit(location)
        name, port = found.hostname, found.port
    except ValueError:
        return None
    if not name:
        return "another of its paths" if found.path else None
    return (f"{name}:{port}" if port else name)[:200]
