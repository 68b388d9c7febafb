"""The session in which a call comes, and the tasks in which what its client is asked goes on.

On stdio and SSE a session is the connection: what is asked goes on in it after the call that asked, and ends with it.
On Streamable HTTP it is the `mcp-session-id`, and what is asked ends with its call, since a client that has gone away
is not noticed there. From 2026-07-28 on nothing is pushed, and a session is a principal with the name of its client.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

KEPT = 1_024  # sessions over HTTP that are known; the one that was longest unheard of goes first
ID_CHARS = 16
HEADER = "mcp-session-id"


@dataclass(slots=True, eq=False)
class PushedRequest:
    """One request to the client. `request`: a completion's number in the rows. `patience_s`: how long its client may
    stay silent. `stands`: no other session has taken over from it. `told`: that it is silent was said. `closing`: what
    came of it is being written.

    Once it has `ended`: `failure` says why the client's model did not answer; `gone`, that the client went away;
    `passed`, that its user decided nothing; `unseen`, that none was there; `trouble` is what went wrong here.
    """

    run_id: str
    key: str
    is_dialog: bool = False
    request: int | None = None
    patience_s: float = 0.0
    since_s: float = field(default_factory=time.monotonic)
    stands: bool = True
    told: bool = False
    closing: bool = False
    ended: bool = False
    failure: str | None = None
    gone: bool = False
    passed: bool = False
    unseen: bool = False
    trouble: Exception | None = None

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self.since_s


@dataclass(slots=True, eq=False)
class ClientSession:
    """`tasks`: in which what is asked goes on after its call; None: it ends with the call. `pushes`: what is in the
    air, by run and waiting key. `newest`: the newest open call about a run, by the run's id."""

    id: str
    tasks: TaskGroup | None = None
    pushes: dict[tuple[str, str], PushedRequest] = field(default_factory=dict)
    newest: dict[str, object] = field(default_factory=dict)

    def pushes_of(self, run_id: str) -> list[PushedRequest]:
        """What is in the air about a run."""
        return [push for (run, _), push in self.pushes.items() if run == run_id]

    @asynccontextmanager
    async def ask_tasks(self) -> AsyncIterator[TaskGroup]:
        """The tasks for what a call asks: they end with it where the session keeps none."""
        if self.tasks is not None:
            yield self.tasks
            return
        wrong: Exception | None = None
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except Exception as error:  # raised below: a group would wrap it
                wrong = error
            finally:
                tasks.cancel_scope.cancel()
        if wrong is not None:
            raise wrong

    @contextmanager
    def newest_call(self, run_id: str, call: object) -> Iterator[None]:
        """While the block lasts, this call is the newest about the run, until another one comes."""
        self.newest[run_id] = call
        try:
            yield
        finally:
            if self.newest.get(run_id) is call:
                del self.newest[run_id]

    def may_push(self, run_id: str, call: object) -> bool:
        """Whether what this call asks can reach the client: over HTTP an older call's stream may be gone unseen."""
        return self.tasks is not None or self.newest.get(run_id, call) is call


class ClientSessions:
    """The sessions of what one lifespan serves: a connection, or all that comes over Streamable HTTP."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._own = ClientSession(secrets.token_hex(ID_CHARS // 2), tasks)
        self._others: OrderedDict[str, ClientSession] = OrderedDict()

    def session_of(self, ctx: ServerRequestContext[Any], principal: str, client: str) -> ClientSession:
        """The session of a call by this principal through the client of this name."""
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return self._other(f"{principal}|{client}")
        header = None if ctx.request is None else ctx.request.headers.get(HEADER)
        if header is None:
            return self._own
        return self._other(hashlib.sha256(header.encode()).hexdigest()[:ID_CHARS])  # the header lets its bearer in

    def _other(self, name: str) -> ClientSession:
        session = self._others.setdefault(name, ClientSession(name))
        self._others.move_to_end(name)
        while len(self._others) > KEPT:
            self._others.popitem(last=False)
        return session


@asynccontextmanager
async def serve_sessions(_server: object) -> AsyncIterator[ClientSessions]:
    """The sessions while a server serves: one connection on stdio and SSE, all of them on Streamable HTTP."""
    async with anyio.create_task_group() as tasks:
        try:
            yield ClientSessions(tasks)
        finally:
            tasks.cancel_scope.cancel()
