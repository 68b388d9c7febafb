"""Check each reply of a provider before any library parses it: its size, its content type, its token counts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from kairos_mcp.models.provider_errors import BadProviderReply, InvalidProviderUsage, UnexpectedRedirect

MAX_REPLY_BYTES = 16 * 1024 * 1024  # of a whole reply; a completion is a few hundred kilobytes at most
MAX_COUNT = 2**53 - 1

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

    async def check_reply(response: Any) -> None:
        """Raise BadProviderReply for a redirect, and for a reply that is too large, no JSON, or has invalid usage."""
        if 300 <= response.status_code < 400:
            raise UnexpectedRedirect(response.status_code, _host(response.headers.get("location", "")))
        if not response.is_success:
            return
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
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
