"""The two transports of MCP over HTTP, each with the sessions of its clients: Streamable HTTP, and HTTP+SSE."""

from __future__ import annotations

import re
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import anyio
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.types import Message, Receive, Scope, Send

from kairos_mcp.server.client_sessions import HTTP_SESSION
from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http_events import MAX_BYTES, MAX_EVENTS, set_events
from kairos_mcp.server.http_guard import METHOD, header, refuse
from kairos_mcp.server.http_sessions import HttpSession, HttpSessions
from kairos_mcp.server.sender import current_principal

_SESSION, _VERSION, _LAST_EVENT = b"mcp-session-id", b"mcp-protocol-version", b"last-event-id"
_SSE_ID = re.compile(rb"session_id=([0-9a-f]{32})")  # the SDK shows the id of an SSE session only in its first event
_EVENT_ID = re.compile(rb"^id: ([0-9]+)\r?$", re.MULTILINE)
EVENT_GONE = (
    f"That event is not kept any more: a session has its newest {MAX_EVENTS}, up to {MAX_BYTES} bytes. Runs are kept:"
    " run_status shows where they stand."
)
NO_SESSION = (
    "There is no such session here: it has ended, or another process behind this address has it. Begin a new one. Runs"
    " are kept: run_status shows where they stand. A proxy before several processes has to send all requests of a"
    " session to the one that began it; protocol 2026-07-28 needs no sessions."
)


class StreamableTransport:
    """Streamable HTTP: single requests, and those of sessions, which clients up to 2025-11-25 have."""

    def __init__(self, manager: StreamableHTTPSessionManager, sessions: HttpSessions) -> None:
        self._manager = manager
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET and DELETE need a session; the SDK would make one for every stray GET. From 2026-07-28 on there are none,
        and the header of one means nothing."""
        session_id = "" if header(scope, _VERSION) in MODERN_PROTOCOL_VERSIONS else header(scope, _SESSION)
        allowed = ("POST", "GET", "DELETE") if session_id else ("POST",)
        if scope["method"] not in allowed:
            allow = {"allow": ", ".join(allowed)}
            await refuse(405, "Messages are sent here by POST.", headers=allow)(scope, receive, send)
        elif session_id:
            await self._continue(session_id, scope, receive, send)
        elif scope.get(METHOD) == "initialize" and header(scope, _VERSION) in ("", *HANDSHAKE_PROTOCOL_VERSIONS):
            await self._begin(scope, receive, send)
        else:
            await self._manager.handle_request(scope, receive, send)

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = await self._sessions.begin(current_principal(), partial(self._end, scope))
        if session is None:
            await _refuse_session(scope, receive, send)
            return

        async def watch_and_send(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                session.id = header(message, _SESSION)
            await send(message)

        set_events(session.events)
        try:
            with self._sessions.count_request(session):
                await self._manager.handle_request(scope, receive, watch_and_send)
        finally:
            if not session.id:
                self._sessions.end(session)
        if session.has_ended:  # to make room, before the SDK had named its id
            await self._end(scope, session)

    async def _continue(self, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        session = self._sessions.find_session(session_id, current_principal())
        if session is None:
            await refuse(404, NO_SESSION)(scope, receive, send)
            return
        scope[HTTP_SESSION] = session
        set_events(session.events)
        if scope["method"] == "GET" and (last_event := header(scope, _LAST_EVENT)):
            await self._resume(session, last_event, scope, receive, send)
            return
        with self._sessions.count_request(session, listens=scope["method"] == "GET"):
            await self._manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE":
            self._sessions.end(session)

    async def _resume(self, session: HttpSession, last_event: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Go on with a stream after an event of it, up to the answer of its request; the SDK would not end it then."""
        if session.events.find(last_event) is None:
            await refuse(400, EVENT_GONE)(scope, receive, send)
            return
        stream_scope = anyio.CancelScope()

        async def send_up_to_answer(message: Message) -> None:
            await send(message)
            found = _EVENT_ID.search(message.get("body", b""))
            event = None if found is None else session.events.find(found[1].decode())
            if event is not None and event.ends_stream:
                stream_scope.cancel()

        # Without a version the SDK sends no event of its own between the old ones and those that come, which leaves no
        # moment in which one comes and is not sent.
        unversioned = {**scope, "headers": [pair for pair in scope["headers"] if pair[0] != _VERSION]}
        with self._sessions.count_request(session, listens=True), stream_scope:
            await self._manager.handle_request(unversioned, receive, send_up_to_answer)

    async def _end(self, opened_by: Scope, session: HttpSession) -> None:
        """Delete a session as its client would: the SDK has no other way to end one from outside."""
        headers = [(_SESSION, session.id.encode("latin-1"))]
        scope = {**opened_by, "method": "DELETE", "headers": headers}

        async def receive_nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send_nowhere(_message: Message) -> None:
            return None

        await self._manager.handle_request(scope, receive_nothing, send_nowhere)


class SseTransport:
    """HTTP+SSE, the transport of clients up to 2024-11-05: one stream to the client, and messages sent by POST."""

    def __init__(self, server: Server[Any], bounds: RequestBounds, sessions: HttpSessions) -> None:
        self._server = server
        self._streams = SseServerTransport("/messages/", max_request_body_size=bounds.body_bytes)
        self._sessions = sessions

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await refuse(405, "The stream is opened by GET.", headers={"allow": "GET"})(scope, receive, send)
            return
        stream_scope = anyio.CancelScope()

        async def close(_session: HttpSession) -> None:
            stream_scope.cancel()

        session = await self._sessions.begin(current_principal(), close)
        if session is None:
            await _refuse_session(scope, receive, send)
            return

        async def watch_and_send(message: Message) -> None:
            found = None if session.id else _SSE_ID.search(message.get("body", b""))
            if found:
                session.id = found[1].decode()
            await send(message)

        try:
            with self._sessions.count_request(session, listens=True), stream_scope:
                async with self._streams.connect_sse(scope, receive, watch_and_send) as (reads, writes):
                    await self._server.run(reads, writes, self._server.create_initialization_options())
        finally:
            self._sessions.end(session)
        if stream_scope.cancelled_caught and session.id:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif stream_scope.cancelled_caught:
            await _refuse_session(scope, receive, send)

    async def messages(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await refuse(405, "Messages are sent here by POST.", headers={"allow": "POST"})(scope, receive, send)
            return
        (session_id,) = parse_qs(scope["query_string"]).get(b"session_id", [b""])[:1]
        session = self._sessions.find_session(session_id.decode("latin-1"), current_principal())
        if session is None:
            await refuse(404, NO_SESSION)(scope, receive, send)
            return
        with self._sessions.count_request(session):
            await self._streams.handle_post_message(scope, receive, send)


async def _refuse_session(scope: Scope, receive: Receive, send: Send) -> None:
    await refuse(503, "Too many open sessions.", headers={"retry-after": "10"})(scope, receive, send)
