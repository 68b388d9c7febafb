"""The arguments of the tools that look at runs, answer and steer them, of the registry tools, and of budget_status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from kairos_mcp.core.decision_rights import Settlement
from kairos_mcp.core.limits import UNLIMITED
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.run_spec import Route
from kairos_mcp.server.arguments.base import DEFAULT_WAIT_S, Arguments, LimitsArgument, Name, RunId, Wait

if TYPE_CHECKING:
    from kairos_mcp.app.run_steps import StepsQuery
    from kairos_mcp.views.trace import TraceQuery

DEFAULT_TRACE_CHARS = 8_000
Seq = Annotated[int, Field(ge=0, le=2**53)]


class RunStatus(Arguments):
    run_ids: Annotated[list[RunId], Field(max_length=10)] | None = Field(
        None, description="Default: this workspace's newest, brief"
    )
    all: bool | None = Field(None, description="Of every workspace")
    until: Literal["attention", "news", "done"] | None = Field(
        None, description="attention: one waits, pauses or ended; news: one changed since; done: all ended"
    )
    since: Seq | Annotated[dict[RunId, Seq], Field(max_length=10)] | None = Field(
        None, description="For news: seq of your result, or {run_id: seq}"
    )
    wait_s: Wait | None = Field(None, description="Default 45 with until, else 0")
    view: Literal["brief", "full"] | None = Field(None, description="brief: waiting keys and kinds")

    @model_validator(mode="after")
    def _check_since(self) -> Self:
        if self.since is not None and self.until != "news":
            raise PydanticCustomError("needs", '`since` is for until="news"')
        if isinstance(self.since, int) and len(self.run_ids or ()) != 1:
            raise PydanticCustomError("needs", "`since` is one number for one run; {run_id: seq} for several")
        if self.all and self.run_ids:
            raise PydanticCustomError("needs", "`all` is for lists; leave out `run_ids`")
        return self

    def known_seqs(self, run_ids: Sequence[str]) -> dict[str, int]:
        """The seq that the caller knows of each run, where it gave one."""
        return {run_ids[0]: self.since} if isinstance(self.since, int) else dict(self.since or {})

    @property
    def wait(self) -> float:
        if self.wait_s is None:
            return DEFAULT_WAIT_S if self.until else 0
        return self.wait_s


class RunContinue(Arguments):
    run_id: RunId
    answers: Annotated[JsonObject, Field(max_length=256)] | None = Field(
        None,
        description="By waiting key. completion: {content?, tool_calls?: [{id, name, arguments}], "
        "usage?}; tool_call: {content, is_error?, data?}; approval: {decision: approve|deny, digest, feedback?}; "
        "settle: {settlement, digest, note?}",
    )
    ask: bool | None = Field(None, description="Show dialogs again")
    wait_s: Wait | None = Field(None, description="Default 45")

    @property
    def wait(self) -> float:
        return DEFAULT_WAIT_S if self.wait_s is None else self.wait_s


class RunControl(Arguments):
    run_id: RunId
    action: Literal["pause", "resume", "cancel", "extend", "reroute", "settle"]
    limits: LimitsArgument | None = Field(None, description="For extend: added")
    route: Route | None = Field(None, description="For reroute")
    key: Annotated[str, Field(min_length=1, max_length=400)] | None = Field(None, description="For settle")
    settlement: Settlement | None = Field(None, description="For settle")
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(None, description="For settle: the item's")

    @model_validator(mode="after")
    def _check_action(self) -> Self:
        if (self.action == "extend") != (self.limits not in (None, UNLIMITED)):
            raise PydanticCustomError("needs", "`limits` is for extend, which needs at least one of them")
        if (self.action == "reroute") != (self.route is not None):
            raise PydanticCustomError("needs", "`route` is for reroute, which needs it")
        for name in ("key", "settlement", "digest"):
            if (self.action == "settle") != (getattr(self, name) is not None):
                raise PydanticCustomError("needs", f"`{name}` is for settle, which needs it")
        return self


class RunTrace(Arguments):
    run_id: RunId
    view: Literal["events", "calls", "messages", "usage", "plan", "diff", "steps"] | None = Field(
        None, description="Default events; since (seq), wait_s: for steps"
    )
    since: Seq | None = None
    wait_s: Wait | None = None
    ref: Annotated[str, Field(min_length=1, max_length=400)] | None = None
    grep: Annotated[str, Field(min_length=1, max_length=1_000)] | None = Field(None, description="RE2")
    cursor: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    max_chars: Annotated[int, Field(ge=200, le=100_000)] | None = Field(None, description="Default 8000")

    @model_validator(mode="after")
    def _check_since(self) -> Self:
        if self.view != "steps" and (self.since is not None or self.wait_s is not None):
            raise PydanticCustomError("needs", '`since` and `wait_s` are for view="steps"')
        if self.wait_s and self.since is None:
            raise PydanticCustomError("needs", "`wait_s` needs `since`, the `seq` of a result")
        return self

    @property
    def steps_query(self) -> StepsQuery | None:
        """The query for the steps of a run; None where another view is asked for, or a text."""
        from kairos_mcp.app.run_steps import StepsQuery

        if self.view != "steps" or self.ref is not None:
            return None
        return StepsQuery(self.since, self.wait_s or 0, self.grep, self.cursor, self.max_chars or DEFAULT_TRACE_CHARS)

    def query(self) -> TraceQuery:
        """The query for a trace of any other view."""
        from kairos_mcp.views.trace import TraceQuery

        return TraceQuery(
            view="events" if self.view is None or self.view == "steps" else self.view,
            ref=self.ref,
            grep=self.grep,
            cursor=self.cursor,
            max_chars=self.max_chars or DEFAULT_TRACE_CHARS,
        )


class BudgetStatus(Arguments):
    scope: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="day (default), days, mandate:ID, or a run_id"
    )


class RegistrySearch(Arguments):
    query: Annotated[str, Field(max_length=1_000)] | None = None
    names: Annotated[list[Name], Field(max_length=64)] | None = Field(None, description="Whole schemas of these")
    category: Name | None = None
    cursor: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class RegistryCall(Arguments):
    name: Name
    arguments: JsonObject
    wait_s: Wait | None = Field(None, description="Default 45")

    @property
    def wait(self) -> float:
        return DEFAULT_WAIT_S if self.wait_s is None else self.wait_s


class RegistryRegister(Arguments):
    spec: JsonObject = Field(
        description="{kind: http_tool, name, description, url, method?, parameters?: [{name, in, schema?}], headers?, "
        "result?, effect?} or {kind: server, name, command, args?, env? | url, headers?, effects?: {glob: effect}}. "
        "Keys by name: env:NAME"
    )
