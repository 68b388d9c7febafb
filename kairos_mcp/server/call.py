"""One call from outside, as those who carry it out need it: whose it is, what its client can do, what it carries."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from kairos_mcp.models.dialects import DialectName
from kairos_mcp.report import Beat, Caller
from kairos_mcp.server.patience import Patience

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from kairos_mcp.host import Host


@dataclass(frozen=True, slots=True)
class Client:
    """What the client of one call declared for it: capabilities may differ from call to call.

    `refused`: within this call it has said that it won't answer, so it is asked no more.
    """

    ctx: ServerRequestContext[Any]
    modern: bool
    samples: bool
    dialect: DialectName
    refused: bool = False

    @staticmethod
    def of(ctx: ServerRequestContext[Any]) -> Client:
        declared = ctx.session.client_capabilities
        samples = declared.sampling if declared is not None else None
        native = samples is not None and samples.tools is not None
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        return Client(ctx, modern, samples is not None, "native" if native else "text")


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a sealed requestState says: the run, the ask that it answers, how many rounds this call has had, and in
    which dialect it was asked."""

    run_id: str
    nonce: str
    rounds: int
    dialect: DialectName

    def sealed(self) -> str:
        return json.dumps([self.run_id, self.nonce, self.rounds, self.dialect])

    @staticmethod
    def of(state: str | None) -> Resumed | None:
        return None if state is None else Resumed(*json.loads(state))


@dataclass(frozen=True, slots=True)
class Call:
    """To whom it goes, from whom it comes, what it goes on with, whom to tell how it goes, how long to wait."""

    host: Host
    caller: Caller
    client: Client
    resumed: Resumed | None
    on_beat: Callable[[Beat], Awaitable[None]]
    patience: Patience
