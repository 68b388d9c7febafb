"""One call from outside, as those who carry it out need it: whose it is, what its client can do, what it carries."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any

from anyio.abc import TaskGroup
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from kairos_mcp.core.identity import Caller
from kairos_mcp.core.steps import DialectName
from kairos_mcp.server.client_sessions import ClientSession
from kairos_mcp.server.patience import WaitPolicy
from kairos_mcp.views.run_report import Heartbeat

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from kairos_mcp.app.app import App


@dataclass(frozen=True, slots=True)
class ClientCapabilities:
    """What the client of one call declared for it: capabilities may differ from call to call.

    `refused`: within this call it has said that its model won't answer, so it is asked no more. `elicits`: it can show
    its user a form.
    """

    ctx: ServerRequestContext[Any]
    modern: bool
    samples: bool
    dialect: DialectName
    refused: bool = False
    elicits: bool = False

    @staticmethod
    def from_context(ctx: ServerRequestContext[Any]) -> ClientCapabilities:
        declared = ctx.session.client_capabilities
        samples = declared.sampling if declared is not None else None
        native = samples is not None and samples.tools is not None
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        dialogs = declared.elicitation if declared is not None else None
        forms = dialogs is not None and (dialogs.form is not None or dialogs.url is None)
        return ClientCapabilities(ctx, modern, samples is not None, "native" if native else "text", elicits=forms)


@dataclass(frozen=True, slots=True)
class ResumedRequest:
    """What a sealed requestState says: the run, the asks that it answers, how many rounds this call has had, in which
    dialect it was asked, when (milliseconds since 1970), and which approvals it asks about no more. `digests`: of what
    its user was shown, by key."""

    run_id: str
    nonces: tuple[str, ...]
    rounds: int
    dialect: DialectName
    at: int
    passed: tuple[str, ...] = ()
    digests: tuple[tuple[str, str], ...] = ()

    def as_sealed(self) -> str:
        return json.dumps(astuple(self))

    @staticmethod
    def from_sealed(state: str | None) -> ResumedRequest | None:
        if state is None:
            return None
        run_id, nonces, rounds, dialect, at, passed, *rest = json.loads(state)
        digests = tuple((key, digest) for key, digest in rest[0]) if rest else ()  # none in states of before
        return ResumedRequest(run_id, tuple(nonces), rounds, dialect, at, tuple(passed), digests)


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """To whom it goes, from whom it comes, what it goes on with, whom to tell how it goes, how long to wait; in which
    session it comes, and the tasks for what it asks.

    `passed`: the keys of approvals that this call asks about no more, since its user left them or is not there.
    """

    host: App
    caller: Caller
    client: ClientCapabilities
    resumed: ResumedRequest | None
    on_beat: Callable[[Heartbeat], Awaitable[None]]
    patience: WaitPolicy
    session: ClientSession
    tasks: TaskGroup
    passed: set[str] = field(default_factory=set)
