"""One open connection to a downstream server: it lists and calls tools, and watches what the server sends.

It is used in the background loop only. A server gets no access to our model, our user or our folders: sampling,
elicitation and roots are refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Any, cast

import anyio
import httpx2
import mcp_types as wire
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import METHOD_NOT_FOUND
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from kairos_mcp import __version__
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.models.network_causes import find_network_cause
from kairos_mcp.models.provider_network import make_tls_context
from kairos_mcp.tools.mcp_servers.bounded_http import BoundedHttp, Rechecks
from kairos_mcp.tools.mcp_servers.child import ChildStart, spawn_child
from kairos_mcp.tools.mcp_servers.definition import MAX_TOOLS, quote_server
from kairos_mcp.tools.mcp_servers.event_stream import SILENT_S, EventStream
from kairos_mcp.tools.mcp_servers.flood_guard import MAX_MESSAGE_BYTES, REFUSED_METHODS, ConnectionWatch, FloodError
from kairos_mcp.tools.mcp_servers.message_repair import MessageRepair, content_as_sent

MAX_PAGES = 50
KEY_META = "kairos-mcp/idempotency-key"  # in `_meta` of a call that does more than read
PAGE_S = 10  # for a page of tools after the first
HTTP_TIMEOUT_S = 30
HTTP_SILENCE_S = 600  # how long an HTTP stream may stay silent; a call ends earlier, by its own deadline
CLIENT_INFO = wire.Implementation(name="kairos-mcp", version=__version__)

_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError)

_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
Streams = tuple[Any, Any]  # of messages in and out; the library does not export their types
_ANSWER: TypeAdapter[wire.CallToolResult | wire.InputRequiredResult] = TypeAdapter(
    wire.CallToolResult | wire.InputRequiredResult
)


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where to reach a server over HTTP; `headers` hold secrets, and so may `proxy`, through which it is reached."""

    url: str
    headers: Mapping[str, str]
    proxy: str | None = None


@dataclass(frozen=True, slots=True)
class ListedTools:
    """What a server lists, as it sent it. `dropped`: names that the protocol forbids to use. `problem`: what is wrong
    with the list as a whole, without a subject."""

    tools: list[Any]
    dropped: set[str]
    problem: str | None


class InputRefused(Exception):
    """The server needs some input before it continues a call; it gets none, and the call ends."""

    def __init__(self, things: str) -> None:
        super().__init__(f"it asked for {things}, which is refused")


class _EventsRequest(wire.Request[dict[str, Any], str]):
    method: str


class ServerConnection:
    """A connection to one server, open from `serve` to `close`."""

    def __init__(self, address: ChildStart | HttpAddress, *, legacy: bool) -> None:
        self.address = address
        self.watch = ConnectionWatch()
        self.repair = MessageRepair()
        self.began_at = time.time()
        self.is_unsent = False  # True if it failed before anything could reach the server
        self._legacy = legacy
        self._ended = asyncio.Event()
        self._client: Client | None = None
        # The library sends a message in its sender's context.
        self._rechecks: ContextVar[Rechecks] = ContextVar("rechecks")
        self._hearer: ContextVar[Callable[[str, JsonObject], None]] = ContextVar("hearer")

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
            self.is_unsent = isinstance(_innermost(error), _UNSENT)
            self.watch.record_end(describe_failure(error))
        finally:
            self._ended.set()
            self._client = None
            if not opened.done():
                opened.set_exception(ConnectionError(self.watch.end_reason or "it was closed"))

    async def list_tools(self) -> ListedTools:
        """Return the server's tools as it lists them, up to a bound. A page that can't be had costs itself and those
        after it. Raises MCPError and others if there is no first page."""
        client = self._require_client()
        self.watch.tools_changed = False
        tools: list[Any] = []
        dropped: set[str] = set()
        cursors: list[str] = []
        for number in range(1, MAX_PAGES + 1):
            asked = wire.PaginatedRequestParams(cursor=cursors[-1] if cursors else None)
            try:
                async with asyncio.timeout(None if number == 1 else PAGE_S):
                    page = await client.session.list_tools(params=asked)
            except (MCPError, ValidationError, TimeoutError) as error:
                if number > 1 and self.is_alive:
                    return ListedTools(tools, dropped, f"page {number} of its tools failed: {describe_failure(error)}")
                is_unknown = isinstance(error, MCPError) and error.code == METHOD_NOT_FOUND
                if number == 1 and client.server_capabilities.tools is None and is_unknown:
                    return ListedTools([], set(), "it has no tools")
                raise
            sent = content_as_sent(page)
            listed = sent.get("tools") if isinstance(sent, dict) else None
            if not isinstance(listed, list):
                problem = f"page {number} of its tools holds no list of them"
                return ListedTools(tools, dropped, problem)
            tools += listed[: 20 * MAX_TOOLS]
            dropped |= self._dropped_names(client, listed, page)
            cursor = sent.get("nextCursor")
            if cursor is None:
                return ListedTools(tools, dropped, None)
            if not isinstance(cursor, str) or not cursor or cursor in cursors:
                return ListedTools(tools, dropped, f"page {number} of its tools names no further page that can be read")
            if len(tools) > 20 * MAX_TOOLS:
                break
            cursors.append(cursor)
        return ListedTools(tools, dropped, "it lists more tools than are read; some are left out")

    def _dropped_names(self, client: Client, listed: list[Any], page: wire.ListToolsResult) -> set[str]:
        """Return the names of tools that the newer protocol forbids to use, for the headers that they ask for."""
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return set()
        kept = {tool.name for tool in page.tools}
        names = (tool.get("name") for tool in listed if isinstance(tool, dict))
        return {name for name in names if isinstance(name, str)} - kept

    async def call_tool(self, name: str, arguments: JsonObject, recheck: Callable[[], None], key: str = "") -> Any:
        """Call a tool; return the result as the server sent it. Over HTTP, `recheck` is called once the connection for
        it is open, right before the request. `key`: the call's, which it carries unless it is empty.

        Raises MCPError, InputRefused, ValidationError.
        """
        # Not by the session's `call_tool`, which checks the output schema, with the server's patterns, in this thread.
        client = self._require_client()
        self._rechecks.set(iter((recheck,)))
        meta = cast("wire.RequestParamsMeta", {KEY_META: key}) if key else None
        params = wire.CallToolRequestParams(name=name, arguments=arguments, _meta=meta)
        request = wire.CallToolRequest(params=params)
        result = await client.session.send_request(request, _ANSWER)
        if isinstance(result, wire.InputRequiredResult):
            methods = [str(getattr(asked, "method", "")) for asked in (result.input_requests or {}).values()]
            things = {REFUSED_METHODS.get(method, "something") for method in methods}
            raise InputRefused(" and ".join(sorted(things)) or "more")
        return content_as_sent(result)

    async def poll_events(self, params: JsonObject) -> JsonObject:
        """Ask for the events after a cursor, as the extension for events has it. Raises MCPError, ValidationError."""
        session, request = self._require_client().session, _EventsRequest(method="events/poll", params=params)
        answer: JsonObject = await session.send_request(request, cast("Any", _OBJECT))
        return answer

    async def stream_events(self, params: JsonObject, stream: EventStream) -> None:
        """Have the server tell a stream of events, until one of them ends it. Raises MCPError, ValidationError, and
        TimeoutError once nothing has come for SILENT_S, not even a heartbeat."""
        session, request = self._require_client().session, _EventsRequest(method="events/stream", params=params)
        now = asyncio.get_running_loop().time
        async with asyncio.timeout(SILENT_S) as limit:

            def hear(method: str, told: JsonObject) -> None:
                if not limit.expired():
                    limit.reschedule(now() + (SILENT_S if stream.take(method, told) else 0))

            self._hearer.set(hear)
            try:
                await session.send_request(request, cast("Any", _OBJECT))
            finally:
                hearers = self.watch.hearers
                self.watch.hearers = {number: each for number, each in hearers.items() if each is not hear}

    def _record_sent(self, message: Any) -> None:
        self.repair.record_sent(message)
        if isinstance(message, wire.JSONRPCRequest) and message.method == "events/stream":
            self.watch.hearers[message.id] = self._hearer.get()

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
            Client(_OpenStreams(streams, self._record_sent), client_info=CLIENT_INFO, mode=mode, cache=None) as client,
        ):
            yield client

    def _open_transport(self) -> AbstractAsyncContextManager[Streams]:
        match self.address:
            case ChildStart() as start:
                return spawn_child(start, self.watch, self.repair, self._ended)
            case HttpAddress() as address:
                return self._open_http(address)

    @asynccontextmanager
    async def _open_http(self, address: HttpAddress) -> AsyncIterator[Streams]:
        timeout = httpx2.Timeout(HTTP_TIMEOUT_S, read=HTTP_SILENCE_S)
        # trust_env=False: no passwords from this machine's files, and no other proxy.
        context = make_tls_context(reads_variables=address.url.startswith("https:"))
        inner = httpx2.AsyncHTTPTransport(verify=context, proxy=address.proxy)
        transport = BoundedHttp(inner, self._rechecks, self.repair, self._end_flooded)
        headers = {"accept-encoding": "identity", **address.headers}  # what is compressed can't be bounded or repaired
        http = httpx2.AsyncClient(headers=headers, timeout=timeout, trust_env=False, transport=transport)
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

    def _end_flooded(self, reason: str) -> None:
        """End the connection with its reason. The library alone would leave the call unanswered, as if by a silent
        server."""
        self.watch.record_end(reason)
        self._ended.set()

    async def _filter_messages(self, incoming: Any, passed: Any) -> None:
        try:
            async for item in incoming:
                if isinstance(item, Exception):
                    self.watch.count_unreadable()
                elif self.watch.passes_on(item.message):
                    item.message = self.repair.repair(item.message)
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
    """Streams that are open already, in the form in which the library takes a transport; `record` is told of each
    message that is sent."""

    def __init__(self, streams: Streams, record: Callable[[Any], None]) -> None:
        incoming, outgoing = streams
        self._streams = incoming, _RecordedStream(outgoing, record)

    async def __aenter__(self) -> Streams:
        return self._streams

    async def __aexit__(self, *_: object) -> None:
        return None


class _RecordedStream:
    """A stream of messages to the server. Its own class, since a message has to leave in its sender's context."""

    def __init__(self, outgoing: Any, record: Callable[[Any], None]) -> None:
        self._outgoing = outgoing
        self._record = record

    async def send(self, item: SessionMessage) -> None:
        self._record(item.message)
        await self._outgoing.send(item)

    async def aclose(self) -> None:
        await self._outgoing.aclose()

    async def __aenter__(self) -> _RecordedStream:
        await self._outgoing.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._outgoing.__aexit__(*error)


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
        case (httpx2.ConnectError() | httpx2.ProxyError() | httpx2.ReadError()) as broken:
            cause = find_network_cause(broken)
            what = "the connection to it broke" if isinstance(broken, httpx2.ReadError) else "it can't be connected to"
            return what if cause is None else f"{what} ({cause.words})"
        case TimeoutError() | httpx2.TimeoutException():
            return "it did not answer in time"
        case ValidationError() as misfit:
            # nothing of the answer is quoted
            first = misfit.errors(include_url=False, include_input=False, include_context=False)[0]
            where = "/".join(str(part) for part in first["loc"])[:80]
            return f"its answer is not as the protocol has it, at /{where}"
        case other:
            return f"the connection to it failed ({type(other).__name__})"


def _innermost(error: BaseException) -> BaseException:
    return _innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
