"""One living connection to a downstream server: opened, listed, called, watched, closed.

It lives in the background loop alone. No model, no user and no folders of ours are lent to a server.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
import mcp_types as wire
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

from kairos_mcp import __version__
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.tools.mcp_servers.child import ChildStart, spawned
from kairos_mcp.tools.mcp_servers.definition import TOOLS, plain
from kairos_mcp.tools.mcp_servers.flood_guard import LINE_BYTES, REFUSED, ConnectionWatch, FloodError

PAGES = 50
HTTP_TIMEOUT_S = 30
QUIET_S = 600  # how long an HTTP server may hold a stream without a byte: its own deadline ends a call earlier
TOO_LARGE = f"it sent a message of over {LINE_BYTES // 2**20} MiB"
_EVENT_ENDS = re.compile(rb"\n\n|\r\r|\r\n\r\n")
ME = wire.Implementation(name="kairos-mcp", version=__version__)

Looks = Iterator[Callable[[], None]]
Streams = tuple[Any, Any]  # of messages in and out; the library keeps their types to itself
_ANSWER: TypeAdapter[wire.CallToolResult | wire.InputRequiredResult] = TypeAdapter(
    wire.CallToolResult | wire.InputRequiredResult
)


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where a server is reached over HTTP; `headers` hold secrets."""

    url: str
    headers: Mapping[str, str]


class ServerRequest(Exception):
    """The server asks for something before it goes on; it is refused, and the call ends."""

    def __init__(self, things: str) -> None:
        super().__init__(f"it asked for {things}, which it is not given")


class ServerConnection:
    """A connection, from `serve` to `close`."""

    def __init__(self, way: ChildStart | HttpAddress, *, legacy: bool) -> None:
        self.way = way
        self.watch = ConnectionWatch()
        self.unsent = False  # it failed before anything could have reached the server
        self._legacy = legacy
        self._over = asyncio.Event()
        self._client: Client | None = None
        self._looks: ContextVar[Looks] = ContextVar("looks")  # a message is sent in the context of who sends it

    @property
    def alive(self) -> bool:
        return self._client is not None and not self._over.is_set()

    def close(self) -> None:
        self._over.set()

    async def serve(self, opened: asyncio.Future[None]) -> None:
        """Keep the connection until it ends or is closed; `opened` hears how its beginning went. Never raises."""
        try:
            async with self._connected() as client:
                self._client = client
                if not opened.done():
                    opened.set_result(None)
                await self._listen(client)
        except Exception as error:  # whatever went wrong with somebody else's server is a reason, not a crash
            self.unsent = isinstance(_first(error), httpx2.ConnectError | httpx2.ConnectTimeout)
            self.watch.ended(reason(error))
        finally:
            self._over.set()
            self._client = None
            if not opened.done():
                opened.set_exception(ConnectionError(self.watch.why or "it was closed"))

    async def listed(self) -> tuple[list[JsonObject], bool]:
        """All tools of the server, as far as they are read, and whether there are more. Raises MCPError and others."""
        client = self._opened()
        self.watch.changed = False
        found: list[JsonObject] = []
        cursor: str | None = None
        for _ in range(PAGES):
            page = await client.session.list_tools(params=wire.PaginatedRequestParams(cursor=cursor))
            found += [_plain(each) for each in page.tools[: 20 * TOOLS]]
            if page.next_cursor is None:
                return found, False
            if page.next_cursor == cursor or len(found) > 20 * TOOLS:
                break
            cursor = page.next_cursor
        return found, True

    async def call(self, name: str, arguments: JsonObject, still: Callable[[], None]) -> wire.CallToolResult:
        """Call a tool; over HTTP `still` is asked once the connection for it stands. Not by the session's `call_tool`:
        that applies the server's own output schema, patterns and all, in this thread. Raises MCPError, Wants,
        ValidationError."""
        client = self._opened()
        self._looks.set(iter((still,)))
        request = wire.CallToolRequest(params=wire.CallToolRequestParams(name=name, arguments=arguments))
        answer = await client.session.send_request(request, _ANSWER)
        if isinstance(answer, wire.InputRequiredResult):
            asked = {_thing(each) for each in (answer.input_requests or {}).values()}
            raise ServerRequest(" and ".join(sorted(asked)) or "more")
        return answer

    def _opened(self) -> Client:
        if self._client is None:
            raise ConnectionError(self.watch.why or "it is closed")
        return self._client

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        mode = "legacy" if self._legacy else "auto"
        # Neither sampling nor elicitation nor roots are declared; whoever asks all the same is told so.
        async with (
            self._transport() as streams,
            Client(_OpenStreams(streams), client_info=ME, mode=mode, cache=None) as client,
        ):
            yield client

    def _transport(self) -> AbstractAsyncContextManager[Streams]:
        match self.way:
            case ChildStart() as start:
                return spawned(start, self.watch, self._over)
            case HttpAddress() as reach:
                return self._over_http(reach)

    @asynccontextmanager
    async def _over_http(self, reach: HttpAddress) -> AsyncIterator[Streams]:
        timeout = httpx2.Timeout(HTTP_TIMEOUT_S, read=QUIET_S)
        # No proxies, certificates or passwords out of this process's environment: it gets what it was given.
        transport = _BoundedHttp(httpx2.AsyncHTTPTransport(), self._looks, self._flooded)
        http = httpx2.AsyncClient(headers=dict(reach.headers), timeout=timeout, trust_env=False, transport=transport)
        async with (
            http,
            streamable_http_client(reach.url, http_client=http, max_sse_event_size=LINE_BYTES) as (read, write),
        ):
            heard, watched = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            passing = asyncio.create_task(self._pass(read, heard))
            try:
                yield watched, write
            finally:
                passing.cancel()
                await asyncio.gather(passing, return_exceptions=True)
                heard.close()
                watched.close()

    def _flooded(self) -> None:
        """End the connection with its reason: the library would leave the call without an answer, as if the server had
        been silent."""
        self.watch.ended(TOO_LARGE)
        self._over.set()

    async def _pass(self, read: Any, heard: Any) -> None:
        try:
            async for each in read:
                if isinstance(each, Exception):
                    self.watch.garbled()
                elif self.watch.admit(each.message):
                    await heard.send(each)
        except FloodError as flood:
            self.watch.ended(str(flood))
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass
        finally:
            self._over.set()
            heard.close()

    async def _listen(self, client: Client) -> None:
        """Until the connection is over; in the modern era changes of the list have to be asked for."""
        tools = client.server_capabilities.tools
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS and tools is not None and tools.list_changed:
            hearing = asyncio.create_task(self._changes(client))
            try:
                await self._over.wait()
            finally:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)
        else:
            await self._over.wait()

    async def _changes(self, client: Client) -> None:
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    pass  # the watch has taken note of it on its way
        except (MCPError, SubscriptionLost, ListenNotSupportedError, TimeoutError):
            self.watch.changed = True  # from here on nothing is heard: look once more


class _OpenStreams:
    """Streams that are open already, as the library wants its transports."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def __aenter__(self) -> Streams:
        return self._streams

    async def __aexit__(self, *_: object) -> None:
        return None


class _BoundedHttp(httpx2.AsyncBaseTransport):
    """HTTP whose bodies are read up to LINE_BYTES, of a stream each event; `flooded` is called for more.

    The first request of a call takes the look of `looks`, right before its head is sent."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, looks: ContextVar[Looks], flooded: Callable[[], None]) -> None:
        self._inner = inner
        self._looks = looks
        self._flooded = flooded

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        looks = self._looks.get(iter(()))

        async def traced(event: str, _info: object) -> None:
            if event.endswith("send_request_headers.started"):
                for still in looks:
                    still()

        request.extensions = {**request.extensions, "trace": traced}
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        events = "text/event-stream" in response.headers.get("content-type", "")
        response.stream = _CountedStream(response.stream, self._flooded, events=events)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _CountedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, flooded: Callable[[], None], *, events: bool) -> None:
        self._inner = inner
        self._flooded = flooded
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read, last = 0, b""
        async for part in self._inner:
            read += len(part)
            if self._events:
                seen = last + part
                for end in _EVENT_ENDS.finditer(seen):
                    read = len(seen) - end.end()
                last = seen[-3:]
            if read > LINE_BYTES:
                self._flooded()
                raise httpx2.ReadError(TOO_LARGE)
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


def reason(error: BaseException) -> str:
    """Why a connection failed, in words that hold nothing of ours and little of theirs."""
    match _first(error):
        case (FloodError() | ConnectionError()) as ended if ended.args and isinstance(ended.args[0], str):
            return plain(ended.args[0])
        case MCPError() as answered:
            return f"it answered with the error {answered.code}: {plain(answered.message)}"
        case FileNotFoundError():
            return "the program that `command` names was not found"
        case PermissionError():
            return "the program that `command` names may not be run"
        case OSError(strerror=str(words)):
            return words.lower()
        case httpx2.HTTPStatusError(response=response):
            return f"it answered with HTTP {response.status_code}"
        case httpx2.ConnectError():
            return "it can't be connected to"
        case TimeoutError() | httpx2.TimeoutException():
            return "it did not answer in time"
        case other:
            return f"the line to it failed ({type(other).__name__})"


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _plain(tool: wire.Tool) -> JsonObject:
    return tool.model_dump(mode="json", by_alias=True, exclude_none=True)


def _thing(request: object) -> str:
    return REFUSED.get(str(getattr(request, "method", "")), "something")
