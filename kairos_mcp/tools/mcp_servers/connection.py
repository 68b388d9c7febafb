"""One open connection to a downstream server: it lists and calls tools, and watches what the server sends.

It is used in the background loop only. A server gets no access to our model, our user or our folders: sampling,
elicitation and roots are refused.
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
from kairos_mcp.tools.mcp_servers.child import ChildStart, spawn_child
from kairos_mcp.tools.mcp_servers.definition import MAX_TOOLS, quote_server
from kairos_mcp.tools.mcp_servers.flood_guard import MAX_MESSAGE_BYTES, REFUSED_METHODS, ConnectionWatch, FloodError

MAX_PAGES = 50
HTTP_TIMEOUT_S = 30
HTTP_SILENCE_S = 600  # how long an HTTP stream may stay silent; a call ends earlier, by its own deadline
MESSAGE_TOO_LARGE = f"it sent a message of over {MAX_MESSAGE_BYTES // 2**20} MiB"
_EVENT_ENDS = re.compile(rb"\n\n|\r\r|\r\n\r\n")
CLIENT_INFO = wire.Implementation(name="kairos-mcp", version=__version__)

Rechecks = Iterator[Callable[[], None]]
Streams = tuple[Any, Any]  # of messages in and out; the library does not export their types
_ANSWER: TypeAdapter[wire.CallToolResult | wire.InputRequiredResult] = TypeAdapter(
    wire.CallToolResult | wire.InputRequiredResult
)


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where to reach a server over HTTP; `headers` hold secrets."""

    url: str
    headers: Mapping[str, str]


class InputRefused(Exception):
    """The server needs some input before it continues a call; it gets none, and the call ends."""

    def __init__(self, things: str) -> None:
        super().__init__(f"it asked for {things}, which is refused")


class ServerConnection:
    """A connection to one server, open from `serve` to `close`."""

    def __init__(self, address: ChildStart | HttpAddress, *, legacy: bool) -> None:
        self.address = address
        self.watch = ConnectionWatch()
        self.is_unsent = False  # True if it failed before anything could reach the server
        self._legacy = legacy
        self._ended = asyncio.Event()
        self._client: Client | None = None
        # The library sends a message in its sender's context.
        self._rechecks: ContextVar[Rechecks] = ContextVar("rechecks")

    @property
    def is_alive(self) -> bool:
        return self._client is not None and not self._ended.is_set()

    def close(self) -> None:
        self._ended.set()

    async def serve(self, opened: asyncio.Future[None]) -> None:
        """Open the connection and keep it until it ends or is closed. `opened` gets a result, or the exception, once it
        is open or has failed. Never raises."""
        try:
            async with self._connect() as client:
                self._client = client
                if not opened.done():
                    opened.set_result(None)
                await self._wait_until_ended(client)
        except Exception as error:  # whatever a foreign server does is recorded as a reason, and never crashes us
            self.is_unsent = isinstance(_innermost(error), httpx2.ConnectError | httpx2.ConnectTimeout)
            self.watch.record_end(describe_failure(error))
        finally:
            self._ended.set()
            self._client = None
            if not opened.done():
                opened.set_exception(ConnectionError(self.watch.end_reason or "it was closed"))

    async def list_tools(self) -> tuple[list[JsonObject], bool]:
        """Return the server's tools, up to a bound, and whether there are more. Raises MCPError and others."""
        client = self._require_client()
        self.watch.tools_changed = False
        tools: list[JsonObject] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await client.session.list_tools(params=wire.PaginatedRequestParams(cursor=cursor))
            tools += [_to_json(tool) for tool in page.tools[: 20 * MAX_TOOLS]]
            if page.next_cursor is None:
                return tools, False
            if page.next_cursor == cursor or len(tools) > 20 * MAX_TOOLS:
                break
            cursor = page.next_cursor
        return tools, True

    async def call_tool(self, name: str, arguments: JsonObject, recheck: Callable[[], None]) -> wire.CallToolResult:
        """Call a tool. Over HTTP, `recheck` is called once the connection for it is open, right before the request.

        Raises MCPError, InputRefused, ValidationError.
        """
        # Not by the session's `call_tool`, which checks the output schema, with the server's patterns, in this thread.
        client = self._require_client()
        self._rechecks.set(iter((recheck,)))
        request = wire.CallToolRequest(params=wire.CallToolRequestParams(name=name, arguments=arguments))
        result = await client.session.send_request(request, _ANSWER)
        if isinstance(result, wire.InputRequiredResult):
            things = {_name_refused(asked) for asked in (result.input_requests or {}).values()}
            raise InputRefused(" and ".join(sorted(things)) or "more")
        return result

    def _require_client(self) -> Client:
        if self._client is None:
            raise ConnectionError(self.watch.end_reason or "it is closed")
        return self._client

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Client]:
        mode = "legacy" if self._legacy else "auto"
        # Neither sampling nor elicitation nor roots are declared; a server that asks all the same gets an error.
        async with (
            self._open_transport() as streams,
            Client(_OpenStreams(streams), client_info=CLIENT_INFO, mode=mode, cache=None) as client,
        ):
            yield client

    def _open_transport(self) -> AbstractAsyncContextManager[Streams]:
        match self.address:
            case ChildStart() as start:
                return spawn_child(start, self.watch, self._ended)
            case HttpAddress() as address:
                return self._open_http(address)

    @asynccontextmanager
    async def _open_http(self, address: HttpAddress) -> AsyncIterator[Streams]:
        timeout = httpx2.Timeout(HTTP_TIMEOUT_S, read=HTTP_SILENCE_S)
        # trust_env=False: no proxies, certificates or passwords from this process's environment.
        transport = _BoundedHttp(httpx2.AsyncHTTPTransport(), self._rechecks, self._end_flooded)
        http = httpx2.AsyncClient(headers=dict(address.headers), timeout=timeout, trust_env=False, transport=transport)
        async with (
            http,
            streamable_http_client(address.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES) as (
                read,
                write,
            ),
        ):
            passed_send, passed = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            filtering = asyncio.create_task(self._filter_messages(read, passed_send))
            try:
                yield passed, write
            finally:
                filtering.cancel()
                await asyncio.gather(filtering, return_exceptions=True)
                passed_send.close()
                passed.close()

    def _end_flooded(self) -> None:
        """End the connection with its reason. The library alone would leave the call unanswered, as if by a silent
        server."""
        self.watch.record_end(MESSAGE_TOO_LARGE)
        self._ended.set()

    async def _filter_messages(self, incoming: Any, passed: Any) -> None:
        try:
            async for item in incoming:
                if isinstance(item, Exception):
                    self.watch.count_unreadable()
                elif self.watch.passes_on(item.message):
                    await passed.send(item)
        except FloodError as flood:
            self.watch.record_end(str(flood))
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass
        finally:
            self._ended.set()
            passed.close()

    async def _wait_until_ended(self, client: Client) -> None:
        """Wait until the connection ends. In newer protocol versions, also subscribe to changes of the tool list."""
        tools = client.server_capabilities.tools
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS and tools is not None and tools.list_changed:
            watching = asyncio.create_task(self._watch_tool_list(client))
            try:
                await self._ended.wait()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        else:
            await self._ended.wait()

    async def _watch_tool_list(self, client: Client) -> None:
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    pass  # the watch has noted it already
        except (MCPError, SubscriptionLost, ListenNotSupportedError, TimeoutError):
            self.watch.tools_changed = True  # changes are not reported any more: list once again


class _OpenStreams:
    """Streams that are open already, in the form in which the library takes a transport."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def __aenter__(self) -> Streams:
        return self._streams

    async def __aexit__(self, *_: object) -> None:
        return None


class _BoundedHttp(httpx2.AsyncBaseTransport):
    """HTTP with bounded bodies: MAX_MESSAGE_BYTES for each body, or for each event of a stream.

    `on_flood` is called for more. The first request of a call takes its check from `rechecks` and makes it right before
    the request's head is sent.
    """

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, rechecks: ContextVar[Rechecks], on_flood: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._rechecks = rechecks
        self._on_flood = on_flood

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        rechecks = self._rechecks.get(iter(()))

        async def recheck_before_send(event: str, _info: object) -> None:
            if event.endswith("send_request_headers.started"):
                for recheck in rechecks:
                    recheck()

        request.extensions = {**request.extensions, "trace": recheck_before_send}
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        is_event_stream = "text/event-stream" in response.headers.get("content-type", "")
        response.stream = _BoundedStream(response.stream, self._on_flood, is_event_stream=is_event_stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    """A body that calls `on_flood` and fails once it, or one event of it, has more than MAX_MESSAGE_BYTES."""

    def __init__(self, inner: httpx2.AsyncByteStream, on_flood: Callable[[], None], *, is_event_stream: bool) -> None:
        self._inner = inner
        self._on_flood = on_flood
        self._is_event_stream = is_event_stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read, tail = 0, b""
        async for part in self._inner:
            read += len(part)
            if self._is_event_stream:
                window = tail + part
                for end in _EVENT_ENDS.finditer(window):
                    read = len(window) - end.end()
                tail = window[-3:]
            if read > MAX_MESSAGE_BYTES:
                self._on_flood()
                raise httpx2.ReadError(MESSAGE_TOO_LARGE)
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


def describe_failure(error: BaseException) -> str:
    """Say why a connection failed: no path or secret of ours, and only a short quote of the server's text."""
    match _innermost(error):
        case (FloodError() | ConnectionError()) as ended if ended.args and isinstance(ended.args[0], str):
            return quote_server(ended.args[0])
        case MCPError() as answered:
            return f"it answered with the error {answered.code}: {quote_server(answered.message)}"
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
            return f"the connection to it failed ({type(other).__name__})"


def _innermost(error: BaseException) -> BaseException:
    return _innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _to_json(tool: wire.Tool) -> JsonObject:
    return tool.model_dump(mode="json", by_alias=True, exclude_none=True)


def _name_refused(request: object) -> str:
    return REFUSED_METHODS.get(str(getattr(request, "method", "")), "something")
