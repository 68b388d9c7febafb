"""The sessions of clients, and the requests that are pushed to a client and have no answer yet.

On stdio and SSE a session is the connection: a request to the client goes on after the call that made it, and ends with
the connection. On Streamable HTTP it is the `mcp-session-id`, and a request ends with its call, since there nobody
notices a client that goes away. From 2026-07-28 on nothing is pushed, and a session is a principal and a client's name.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio.abc import TaskGroup
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from kairos_mcp.core.quick_dataclass import dataclass

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext


MAX_SESSIONS = 1_024  # over HTTP; the least recently used one is forgotten first
ID_CHARS = 16
HEADER = "mcp-session-id"
HTTP_SESSION = "kairos.http_session"  # of a request over Streamable HTTP, in its scope


@dataclass(slots=True, eq=False)
class PushedRequest:
    """One request to the client. `row_number`: of a completion's row. `is_claimed`: other servers do not ask
    this client for it. `max_silence_s`: how long the client may take.
    `is_current`: no other session has taken over. `is_noted`: its silence was reported. `is_closing`: its answer is
    being stored.

    Once it `has_ended`: `failure` says why the client's model did not answer; `client_gone`, that the client went away;
    `undecided`, that the user decided nothing; `unseen`, that no user saw it; `error` is what went wrong here.
    """

    run_id: str
    key: str
    is_dialog: bool = False
    row_number: int | None = None
    is_claimed: bool = False
    max_silence_s: float = 0.0
    sent_s: float = field(default_factory=time.monotonic)
    is_current: bool = True
    is_noted: bool = False
    is_closing: bool = False
    has_ended: bool = False
    failure: str | None = None
    client_gone: bool = False
    undecided: bool = False
    unseen: bool = False
    error: Exception | None = None

    @property
    def silent_s(self) -> float:
        """Seconds since the request was sent."""
        return time.monotonic() - self.sent_s


class Closable(Protocol):
    """What ends when it is closed. Of subscriptions and logs a session knows no more."""

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class ClientSession:
    """A client's session. `tasks`: the task group for requests that outlive their call; None if they end with it.
    `pushes`: unanswered requests, by run and waiting key. `newest`: the newest open call for each run id.
    `subscriptions`: the resources that it follows, and `log`: what sends it log messages, both up to 2025-11-25."""

    id: str
    tasks: TaskGroup | None = None
    pushes: dict[tuple[str, str], PushedRequest] = field(default_factory=dict)
    newest: dict[str, object] = field(default_factory=dict)
    subscriptions: Closable | None = None
    log: Closable | None = None

    def close_subscriptions(self) -> None:
        """Tell the client of no resource any more."""
        if self.subscriptions is not None:
            self.subscriptions.close()
        self.subscriptions = None

    def close(self) -> None:
        """Close all subscriptions and log streams of this session."""
        self.close_subscriptions()
        if self.log is not None:
            self.log.close()
        self.log = None

    @asynccontextmanager
    async def open_tasks(self) -> AsyncIterator[TaskGroup]:
        """The task group for a call's requests to the client: the session's, else one that ends with the call."""
        if self.tasks is not None:
            yield self.tasks
            return
        raised: Exception | None = None
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except Exception as error:  # raised below: a group would wrap it
                raised = error
            finally:
                tasks.cancel_scope.cancel()
        if raised is not None:
            raise raised

    @contextmanager
    def newest_call(self, run_id: str, call: object) -> Iterator[None]:
        """Mark this call as the newest about the run while the block lasts, unless another one comes."""
        self.newest[run_id] = call
        try:
            yield
        finally:
            if self.newest.get(run_id) is call:
                del self.newest[run_id]

    def may_push(self, run_id: str, call: object) -> bool:
        """Whether a request of this call can reach the client: over HTTP, an older call's stream may be gone."""
        return self.tasks is not None or self.newest.get(run_id, call) is call


ServePage = Callable[..., Awaitable[None]]
"""Serves the page of an app until it is cancelled (`page_server.serve_beside`)."""


class ClientSessions:
    """The sessions of one lifespan: a connection, or everything over Streamable HTTP. `serve_page`: where a question
    needs the page, serve it in `tasks`."""

    def __init__(self, tasks: TaskGroup, serve_page: ServePage | None = None) -> None:
        self.tasks, self.serve_page = tasks, serve_page
        self._connection = ClientSession(secrets.token_hex(ID_CHARS // 2), tasks)
        self._by_name: OrderedDict[str, ClientSession] = OrderedDict()

    def session_of(self, ctx: ServerRequestContext[Any], principal: str, client: str) -> ClientSession:
        """The session of a call by this principal with the client of this name."""
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return self._find_or_add(f"{principal}\n{client}")  # which no principal has
        request = ctx.request
        header = None if request is None else request.headers.get(HEADER)
        if request is None or header is None:
            return self._connection
        session = self._find_or_add(
            hashlib.sha256(header.encode()).hexdigest()[:ID_CHARS]
        )  # hashed: the header itself gives access
        if (http_session := request.scope.get(HTTP_SESSION)) is not None:
            http_session.on_end = session.close
        return session

    def _find_or_add(self, name: str) -> ClientSession:
        session = self._by_name.setdefault(name, ClientSession(name))
        self._by_name.move_to_end(name)
        while len(self._by_name) > MAX_SESSIONS:
            self._by_name.popitem(last=False)[1].close()
        return session

    def close(self) -> None:
        """Close the subscriptions and log streams of every session."""
        for session in (self._connection, *self._by_name.values()):
            session.close()


@asynccontextmanager
async def serve_sessions(_server: object, serve_page: ServePage | None = None) -> AsyncIterator[ClientSessions]:
    """The sessions of a server while it runs: of one connection on stdio and SSE, of all on Streamable HTTP."""
    async with anyio.create_task_group() as tasks:
        sessions = ClientSessions(tasks, serve_page)
        try:
            yield sessions
        finally:
            sessions.close()
            tasks.cancel_scope.cancel()
