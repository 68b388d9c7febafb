"""Check each reply of a provider before any library parses it: its size, its content type, its token counts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from kairos_mcp.models.provider_errors import BadProviderReply, InvalidProviderUsage, NoStream, UnexpectedRedirect

MAX_REPLY_BYTES = 16 * 1024 * 1024  # of a whole reply; a completion is a few hundred kilobytes at most
MAX_COUNT = 2**53 - 1

EVENTS = "text/event-stream"
_LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete", "response.failed", "error")

ResponseHook = Callable[[Any], Awaitable[None]]


def reply_check_hook(streams: type) -> ResponseHook:
    """Return a hook that an HTTP client calls with each response; `streams` is its library's AsyncByteStream."""

    class BoundedStream(streams):  # type: ignore[misc]  # httpx's or httpx2's
        """A reply's bytes, up to MAX_REPLY_BYTES. Raises BadProviderReply for more."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for part in self._stream:
                size += len(part)
                if size > MAX_REPLY_BYTES:
                    raise BadProviderReply(f"it is larger than {MAX_REPLY_BYTES} bytes")
                yield part

        async def aclose(self) -> None:
            await self._stream.aclose()

    class CheckedEvents(BoundedStream):
        """The bytes of a reply that comes in events. Raises InvalidProviderUsage at an event with such usage, and
        BadProviderReply at an end that the provider did not state: the libraries take it for a good one."""

        has_ended = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            line = b""
            async for part in super().__aiter__():
                *lines, line = (line + part).split(b"\n")
                for each in lines:
                    self.has_ended = _check_event(each) or self.has_ended
                yield part
            if not (_check_event(line) or self.has_ended):
                raise BadProviderReply("it is cut off", retryable=True)

    async def check_reply(response: Any) -> None:
        """Raise BadProviderReply for a redirect, and for a reply that is too large, no JSON, or has invalid usage.

        Where events were asked for, each is checked as it comes.
        """
        if 300 <= response.status_code < 400:
            raise UnexpectedRedirect(response.status_code, _host(response.headers.get("location", "")))
        if not response.is_success:
            return
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if _asks_for_events(response.request):
            if kind != EVENTS:
                raise NoStream
            response.stream = CheckedEvents(response.stream)
            return
        if kind and not kind.endswith("json"):
            raise BadProviderReply(f"it is {kind[:60]}, not JSON")
        response.stream = BoundedStream(response.stream)
        try:
            reply = json.loads(await response.aread())
        except (ValueError, RecursionError):
            raise BadProviderReply("it is cut off or no JSON", retryable=True) from None
        if not isinstance(reply, dict):
            raise BadProviderReply("it is no JSON object")
        for name in ("usage", "usageMetadata"):
            _refuse_bad_usage(reply.get(name))

    return check_reply


def _asks_for_events(request: Any) -> bool:
    """Whether a request asked for a reply in events, as OpenAI's and Anthropic's are."""
    try:
        return json.loads(request.content).get("stream") is True
    except (ValueError, AttributeError, RecursionError, RuntimeError):  # no JSON object, or not in memory
        return False


def _check_event(line: bytes) -> bool:
    """Check the usage in a line of events; return whether it states the end of the reply. Raises BadProviderReply."""
    if not line.startswith(b"data:"):
        return False
    data = line[len(b"data:") :].strip()
    if data == b"[DONE]":
        return True
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise BadProviderReply("an event of it is no JSON", retryable=True) from None
    if not isinstance(event, dict):
        return False
    for holder in (event, event.get("message"), event.get("response")):
        if isinstance(holder, dict):
            _refuse_bad_usage(holder.get("usage"))
    choices = event.get("choices")
    return event.get("type") in _LAST_EVENTS or (
        isinstance(choices, list) and any(isinstance(each, dict) and each.get("finish_reason") for each in choices)
    )


def _host(location: str) -> str | None:
    """Return the host that a redirect leads to, without its path, which may hold a secret."""
    try:
        found = urlsplit(location)
        name, port = found.hostname, found.port
    except ValueError:
        return None
    return name and (f"{name}:{port}" if port else name)[:200]


def _refuse_bad_usage(usage: object) -> None:
    if usage is None:
        return
    if not isinstance(usage, dict):
        raise InvalidProviderUsage("its usage is no object")
    for name, count in usage.items():
        if name.endswith(("tokens", "TokenCount")) and not isinstance(count, dict) and not _is_count(count):
            raise InvalidProviderUsage(f"its {name[:60]} is no count of tokens")


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT)
