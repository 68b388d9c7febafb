"""One tool call of a client: whose it is, what its client can do, what it continues, how long it may wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

from anyio.abc import TaskGroup
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.server.client_sessions import ClientSession
from kairos_mcp.server.request_state import ResumedRequest

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from kairos_mcp.app.app import App
    from kairos_mcp.core.steps import DialectName
    from kairos_mcp.server.log_messages import CallLog
    from kairos_mcp.views.progress import Heartbeat


POLL_MS = 1000  # how often the client of a task should look, in milliseconds
LISTEN = "subscriptions/listen"  # a call that ends only with its client
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"


@dataclass(frozen=True, slots=True)
class WaitPolicy:
    """How long a call waits for its client (seconds), and how often it asks. Tests use shorter times."""

    first_s: float = 30.0  # for a client's first answer: some declare sampling and never answer
    later_s: float = 300.0  # once it has answered
    stale_after_s: float = (
        30.0  # a client that calls again this long after it was asked, without an answer, has refused
    )
    instant_s: float = 0.3  # a dialog that was declined sooner was seen by nobody
    settle_s: float = 1.0  # for a run on the sampling route to end or wait when its call is over
    task_s: float = 2.0  # of a client that takes tasks: a call that ends sooner is not made one
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

    def follow(self, run_id: str) -> None:
        """Have the client's log tell of this run, if it asked for one."""
        if self.log is not None:
            self.log.follow(run_id)
