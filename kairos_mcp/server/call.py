"""One tool call of a client: whose it is, its session, what its client can do, what it continues, how long it may wait.

On stdio and SSE a session is the connection: a request to the client goes on after the call that made it, and ends with
the connection. On Streamable HTTP it is the `mcp-session-id`, and a request ends with its call, since there nobody
notices a client that goes away. From 2026-07-28 on nothing is pushed, and a session is a principal and a client's name.

What a client carries between two calls is sealed: a pointer to the run, never its content. The SDK's boundary does it,
with a key of the store, so that any server on it can take the next call.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import anyio
import mcp_types as wire
from anyio.abc import TaskGroup
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from kairos_mcp.core.decision_rights import LOCAL, Caller
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store.approvals import Shown
from kairos_mcp.store.key_file import KEY_BYTES

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

    from kairos_mcp.app.app import App
    from kairos_mcp.core.steps import DialectName
    from kairos_mcp.server.log_messages import CallLog
    from kairos_mcp.views.progress import Heartbeat


MAX_SESSIONS = 1_024  # over HTTP; the least recently used one is forgotten first
ID_CHARS = 16
HEADER = "mcp-session-id"
HTTP_SESSION = "kairos.http_session"  # of a request over Streamable HTTP, in its scope


@dataclasses.dataclass(slots=True, eq=False)
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


@dataclasses.dataclass(slots=True, eq=False)
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

    def pushes_of(self, run_id: str) -> list[PushedRequest]:
        """The requests about a run that have no answer yet."""
        return [push for (run, _), push in self.pushes.items() if run == run_id]

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


POLL_MS = 1000  # how often the client of a task should look, in milliseconds
LISTEN = "subscriptions/listen"  # a call that ends only with its client
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"

ANONYMOUS = ""
"""What the HTTP server starts with: a message whose sender was lost owns nothing."""

Scope = Literal["run", "approve", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""What an OAuth token may allow: to use the tools, to decide in dialogs (and by arguments, where the settings trust the
host), to propose tools and servers. Whoever comes by another way has all of them."""

_scopes: ContextVar[Collection[str]] = ContextVar("kairos_scopes", default=SCOPES)
_principal: ContextVar[str] = ContextVar("kairos_principal", default=LOCAL)


def current_principal() -> str:
    """Whose message is being answered: over HTTP the principal of its token, else the person at this machine."""
    return _principal.get()


def set_principal(name: str) -> None:
    """Answer messages as this principal's from here on, in this context."""
    _principal.set(name)


def has_scope(scope: Scope) -> bool:
    """Whether the sender of the message that is being answered has this scope."""
    return scope in _scopes.get()


def set_scopes(scopes: Collection[str]) -> None:
    """Answer messages as of a sender with these scopes from here on, in this context."""
    _scopes.set(scopes)


@dataclass(frozen=True, slots=True)
class WaitPolicy:
    """How long a call waits for its client (seconds), and how often it asks. Tests use shorter times."""

    first_s: float = 30.0  # for a client's first answer: some declare sampling and never answer
    later_s: float = 300.0  # once it has answered
    stale_after_s: float = (
        30.0  # a client that calls again this long after it was asked, without an answer, has refused
    )
    instant_s: float = 0.3  # a dialog that was declined sooner was seen by nobody
    settle_s: float = 1.0  # for a run on the sampling route to come to rest when its call is over
    task_s: float = 2.0  # of a client that takes tasks: a call that ends sooner is none
    rounds: int = 8  # a stock client gives up after 10 rounds of one call
    state_s: float | None = None  # how long a requestState is valid; None: as long as an approval


DEFAULT_WAIT_POLICY = WaitPolicy()


@dataclass(frozen=True, slots=True)
class ClientCapabilities:
    """What the client declared for this call; capabilities may differ from call to call. `modern`: from 2026-07-28 on.

    `samples`: its model can be asked. `refused`: within this call it has refused that, so it is not asked again.
    `elicits`: it can show its user a form; `opens_links`: also a link. `takes_tasks`: a call may be answered with a
    task.
    """

    ctx: ServerRequestContext[Any]
    modern: bool
    samples: bool
    dialect: DialectName
    refused: bool = False
    elicits: bool = False
    opens_links: bool = False
    takes_tasks: bool = False

    @staticmethod
    def from_context(ctx: ServerRequestContext[Any]) -> ClientCapabilities:
        declared = ctx.session.client_capabilities
        sampling = declared.sampling if declared is not None else None
        native = sampling is not None and sampling.tools is not None
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        elicitation = declared.elicitation if declared is not None else None
        forms = elicitation is not None and (elicitation.form is not None or elicitation.url is None)
        extensions = declared.extensions if modern and declared is not None else None
        return ClientCapabilities(
            ctx,
            modern,
            sampling is not None,
            "native" if native else "text",
            elicits=forms,
            opens_links=elicitation is not None and elicitation.url is not None,
            takes_tasks=TASKS_EXTENSION in (extensions or {}),
        )


@dataclass(frozen=True, slots=True)
class ResumedRequest:
    """The content of a sealed requestState: the run, the nonces of the requests that are answered, how many rounds this
    call has had, the dialect and time (milliseconds since 1970) of asking, the keys of approvals that are not asked
    about again, and under each key the digest of what it asks and how much of that the user was shown."""

    run_id: str
    nonces: tuple[str, ...]
    rounds: int
    dialect: DialectName
    at: int
    skipped: tuple[str, ...] = ()
    dialogs: tuple[tuple[str, str, Shown], ...] = ()

    def as_sealed(self) -> str:
        when = self.rounds, self.dialect, self.at
        return json.dumps((self.run_id, self.nonces, *when, self.skipped, self.dialogs))

    @staticmethod
    def from_sealed(state: str | None) -> ResumedRequest | None:
        if state is None:
            return None
        run_id, nonces, rounds, dialect, at, skipped, dialogs = json.loads(state)
        read = tuple((key, digest, Shown(*shown)) for key, digest, shown in dialogs)
        return ResumedRequest(run_id, tuple(nonces), rounds, dialect, at, tuple(skipped), read)


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A tool call with what its handler needs. `resumed`: the requestState that it brings; `on_heartbeat`: reports
    progress to a client that asked for it; `tasks`: run what is pushed to the client, up to 2025-11-25. `skipped`: keys
    of approvals that this call does not ask about again, since the user left them undecided or is not there;
    `on_page`: those of them that the user went to decide on the page. `log`: sends log messages to a client that asked
    for them.
    """

    app: App
    caller: Caller
    client: ClientCapabilities
    resumed: ResumedRequest | None
    on_heartbeat: Callable[[Heartbeat], Awaitable[None]] | None
    policy: WaitPolicy
    session: ClientSession
    tasks: TaskGroup | None
    skipped: set[str] = field(default_factory=set)
    log: CallLog | None = None
    on_page: set[str] = field(default_factory=set)

    @property
    def is_over_http(self) -> bool:
        """Whether the client may be connected to other servers too."""
        return self.client.ctx.request is not None

    def follow(self, run_id: str) -> None:
        """Have the client's log tell of this run, if it asked for one."""
        if self.log is not None:
            self.log.follow(run_id)


Boundary = Callable[["ServerRequestContext[Any, Any]", "CallNext"], Any]
STATE_REFUSED = (
    "Invalid or expired requestState: it was changed, is not for this call, or is older than {hours:g} hours. The run"
    " is kept: run_status shows its status, run_continue goes on with it."
)


class RequestStateSealer:
    """Middleware: seals each outgoing requestState and opens each incoming one. One that can't be opened is refused
    with -32602 and a text that says how to go on. `read_key`: reads the store's key. `ttl_s`: how long a state is
    valid."""

    def __init__(self, read_key: Callable[[], Awaitable[bytes]], ttl_s: float) -> None:
        self._read_key = read_key
        self._ttl_s = ttl_s
        self._boundary: Boundary | None = None

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        was_opened = False

        async def call_opened(inner: ServerRequestContext[Any, Any]) -> HandlerResult:
            nonlocal was_opened
            was_opened = True
            return await call_next(inner)

        try:
            result: HandlerResult = await (await self._get_boundary())(ctx, call_opened)
        except MCPError:
            if not was_opened:
                text = STATE_REFUSED.format(hours=self._ttl_s / 3600)
                raise MCPError(wire.INVALID_PARAMS, text) from None
            raise
        return result

    async def _get_boundary(self) -> Boundary:
        """The boundary with the store's key. If it can't be read there is no run to point to: a random one will do."""
        if self._boundary is not None:
            return self._boundary
        try:
            boundary = self._boundary = make_boundary(await self._read_key(), self._ttl_s)
        except Exception:  # whatever it is, the call meets it too, and reports it
            boundary = make_boundary(os.urandom(KEY_BYTES), self._ttl_s)
        return boundary


def make_boundary(key: bytes, ttl_s: float) -> Boundary:
    """Make a boundary: what it seals is bound to the tool, its arguments and the principal, and valid for `ttl_s`."""
    from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

    security = RequestStateSecurity(keys=[key], ttl=ttl_s, bind_principal=lambda _: current_principal())
    return RequestStateBoundary(security, default_audience="kairos-mcp")
