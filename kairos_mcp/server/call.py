"""One tool call of a client: whose it is, what its client can do, what it continues, how long it may wait."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, get_args

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from kairos_mcp.core.decision_rights import LOCAL, Caller
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import DialectName
from kairos_mcp.server.client_sessions import ClientSession

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from mcp.server.context import ServerRequestContext

    from kairos_mcp.app.app import App
    from kairos_mcp.server.log_messages import CallLog
    from kairos_mcp.views.progress import Heartbeat


POLL_MS = 1000  # how often the client of a task should look, in milliseconds
LISTEN = "subscriptions/listen"  # a call that ends only with its client
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"

NOBODY = ""
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
    again_s: float = 30.0  # a client that calls again this long after it was asked, without an answer, has refused
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
    `elicits`: it can show its user a form. `takes_tasks`: a call may be answered with a task.
    """

    ctx: ServerRequestContext[Any]
    modern: bool
    samples: bool
    dialect: DialectName
    refused: bool = False
    elicits: bool = False
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
            takes_tasks=TASKS_EXTENSION in (extensions or {}),
        )


@dataclass(frozen=True, slots=True)
class ResumedRequest:
    """The content of a sealed requestState: the run, the nonces of the requests that are answered, how many rounds this
    call has had, the dialect and time (milliseconds since 1970) of asking, the keys of approvals that are not asked
    about again, and the digest of what the user was shown under each key."""

    run_id: str
    nonces: tuple[str, ...]
    rounds: int
    dialect: DialectName
    at: int
    skipped: tuple[str, ...] = ()
    digests: tuple[tuple[str, str], ...] = ()

    def as_sealed(self) -> str:
        when = self.rounds, self.dialect, self.at
        return json.dumps((self.run_id, self.nonces, *when, self.skipped, self.digests))

    @staticmethod
    def from_sealed(state: str | None) -> ResumedRequest | None:
        if state is None:
            return None
        run_id, nonces, rounds, dialect, at, skipped, *rest = json.loads(state)
        digests = tuple((key, digest) for key, digest in rest[0]) if rest else ()  # older states have none
        return ResumedRequest(run_id, tuple(nonces), rounds, dialect, at, tuple(skipped), digests)


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A tool call with what its handler needs. `resumed`: the requestState that it brings; `on_beat`: reports progress
    to a client that asked for it; `tasks`: run what is pushed to the client, up to 2025-11-25. `skipped`: keys of
    approvals that this call does not ask about again, since the user left them undecided or is not there. `log`: sends
    log messages to a client that asked for them.
    """

    app: App
    caller: Caller
    client: ClientCapabilities
    resumed: ResumedRequest | None
    on_beat: Callable[[Heartbeat], Awaitable[None]] | None
    policy: WaitPolicy
    session: ClientSession
    tasks: TaskGroup | None
    skipped: set[str] = field(default_factory=set)
    log: CallLog | None = None

    @property
    def is_over_http(self) -> bool:
        """Whether the client may be connected to other servers too."""
        return self.client.ctx.request is not None

    def follow(self, run_id: str) -> None:
        """Have the client's log tell of this run, if it asked for one."""
        if self.log is not None:
            self.log.follow(run_id)
