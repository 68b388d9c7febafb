"""The tools that look at runs, answer and steer them, of the registry, and budget_status, with their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.server.arguments.base import (
    CURSOR_TEXT,
    DEFAULT_WAIT_S,
    WAIT_TEXT,
    WORKSPACE_TEXT,
    Arguments,
    Name,
    ReadingArguments,
    RunId,
    Wait,
    in_listing,
)
from kairos_mcp.server.arguments.run_control import RUN_CONTROL_ARGUMENTS, summarize_actions
from kairos_mcp.server.server_tool import OBJECT, ServerTool

if TYPE_CHECKING:
    from kairos_mcp.app.run_steps import StepsQuery
    from kairos_mcp.specs.call import CallRequest
    from kairos_mcp.views.trace import TraceQuery

DEFAULT_TRACE_CHARS = 8_000
Seq = Annotated[int, Field(ge=0, le=2**53)]


class RunStatus(ReadingArguments):
    run_ids: Annotated[list[RunId], Field(max_length=10)] | None = Field(
        None,
        description="The ids of the runs to show. Default: the newest of this workspace, briefly.",
        json_schema_extra=in_listing("Default: the newest here"),
    )
    run_id: RunId | None = Field(None, description="The id of one run to show.", json_schema_extra=in_listing(""))
    all: bool | None = Field(
        None,
        description="Without `run_ids`: show the newest of every workspace.",
        json_schema_extra=in_listing("Of every workspace"),
    )
    until: Literal["attention", "news", "done"] | None = Field(
        None,
        description="Wait until a run waits for an answer, is paused or has ended (`attention`); until one has changed "
        "since the result that `since` names (`news`); until all have ended (`done`). Default: `attention` if "
        "`wait_s` is given, else don't wait.",
        json_schema_extra=in_listing("attention: one waits, is paused or ended; news: changed since; done: all ended"),
    )
    since: Seq | Annotated[dict[RunId, Seq], Field(max_length=10)] | None = Field(
        None,
        description="With `news`: the `seq` of the result that you have; for several runs an object {run_id: seq}.",
        json_schema_extra=in_listing("For news: seq, or {run_id: seq}"),
    )
    wait_s: Wait | None = Field(
        None,
        description="The most seconds to wait. Default: 45 with `until`, else 0.",
        json_schema_extra=in_listing("Default 0; 45 with until"),
    )
    view: Literal["brief", "full"] | None = Field(
        None,
        description="`brief`: of what waits, only the keys and kinds. Default: `full` with `run_ids`, else `brief`.",
        json_schema_extra=in_listing("brief: waiting keys and kinds"),
    )

    @model_validator(mode="after")
    def _check_since(self) -> Self:
        if self.since is not None and self.until != "news":
            raise PydanticCustomError("needs", '`since` is for until="news"')
        if isinstance(self.since, int) and len(self.named_runs) != 1:
            raise PydanticCustomError("needs", "`since` is one number for one run; {run_id: seq} for several")
        if self.after is not None and len(self.named_runs) != 1:
            raise PydanticCustomError("needs", "`after` has keys of one run; name that one alone")
        if self.all and self.named_runs:
            raise PydanticCustomError("needs", "`all` is for lists; name no run beside it")
        return self

    @property
    def named_runs(self) -> list[str]:
        """The ids of the runs that the call names; none: the newest are meant."""
        return list(dict.fromkeys([*([] if self.run_id is None else [self.run_id]), *(self.run_ids or ())]))

    @property
    def wait(self) -> float:
        if self.wait_s is None:
            return DEFAULT_WAIT_S if self.until else 0
        return self.wait_s


class RunContinue(ReadingArguments):
    run_id: RunId = Field(description="The id of the run.", json_schema_extra=in_listing(""))
    answers: Annotated[JsonObject, Field(max_length=256)] | None = Field(
        None,
        description="An object whose keys are those of the waiting items. The value depends on the item's kind. "
        "completion: {content?, tool_calls?: [{id, name, arguments}], usage?}; tool_call: {content, is_error?, data?}; "
        "approval: {decision: approve|deny, digest, feedback?, files?}; settle: {settlement: "
        "reattempt|already_done, digest, note?}; `files`: of a stage's changes, those that alone are approved. All are "
        "checked before any is stored.",
        json_schema_extra=in_listing(
            "By waiting key. completion: {content?, tool_calls?: [{id, name, arguments}], usage?}; "
            "tool_call: {content, is_error?, data?}; approval: {decision: approve|deny, digest, feedback?}; "
            "settle: {settlement, digest, note?}"
        ),
    )
    ask: bool | None = Field(
        None,
        description="Show the person the dialogs again that they closed without deciding.",
        json_schema_extra=in_listing("Show dialogs again"),
    )
    wait_s: Wait | None = Field(None, description=WAIT_TEXT, json_schema_extra=in_listing(""))

    @property
    def wait(self) -> float:
        return DEFAULT_WAIT_S if self.wait_s is None else self.wait_s


class RunTrace(Arguments):
    run_id: RunId = Field(description="The id of the run.", json_schema_extra=in_listing(""))
    view: Literal["events", "calls", "messages", "usage", "plan", "diff", "steps"] | None = Field(
        None,
        description="What to show. Default: `events`.",
        json_schema_extra=in_listing("Default events; since (seq), wait_s: for steps"),
    )
    since: Seq | None = Field(
        None,
        description="With `steps`: show those that changed after the result with this `seq`.",
        json_schema_extra=in_listing(""),
    )
    wait_s: Wait | None = Field(
        None,
        description="With `steps` and `since`: the most seconds to wait for such a change. Default: 0.",
        json_schema_extra=in_listing(""),
    )
    ref: Annotated[str, Field(min_length=1, max_length=400)] | None = Field(
        None,
        description="The `ref` of a text that was cut in a result: show the whole text, in place of a view.",
        json_schema_extra=in_listing(""),
    )
    grep: Annotated[str, Field(min_length=1, max_length=1_000)] | None = Field(
        None,
        description="A regular expression in the syntax of RE2: show only what matches.",
        json_schema_extra=in_listing("RE2"),
    )
    cursor: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description=CURSOR_TEXT, json_schema_extra=in_listing("")
    )
    max_chars: Annotated[int, Field(ge=200, le=100_000)] | None = Field(
        None,
        description="The most characters of the result; the rest is on further pages. Default: 8000.",
        json_schema_extra=in_listing(""),
    )

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
        None,
        description="`day` (the default): today; `days`: each of the last days; `mandate:ID`: today, of a mandate; or "
        "the id of a run.",
        json_schema_extra=in_listing("day (default), days, mandate:ID, or a run_id"),
    )


class RegistrySearch(Arguments):
    query: Annotated[str, Field(max_length=1_000)] | None = Field(
        None, description="Words that a tool's name or description has.", json_schema_extra=in_listing("")
    )
    names: Annotated[list[Name], Field(max_length=64)] | None = Field(
        None,
        description="Names of tools: show the whole schemas of these, in place of a search.",
        json_schema_extra=in_listing("Whole schemas of these"),
    )
    category: Name | None = Field(
        None, description="Find only tools of this category.", json_schema_extra=in_listing("")
    )
    cursor: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description=CURSOR_TEXT, json_schema_extra=in_listing("")
    )


class RegistryCall(Arguments):
    name: Name = Field(description="The name of the tool, as registry_search shows it.")
    arguments: JsonObject = Field(description="The tool's arguments, by its schema.")
    workspace: Annotated[str, Field(max_length=4_096)] | None = Field(
        None, description=WORKSPACE_TEXT, json_schema_extra=in_listing("")
    )
    wait_s: Wait | None = Field(None, description=WAIT_TEXT)

    @property
    def wait(self) -> float:
        return DEFAULT_WAIT_S if self.wait_s is None else self.wait_s

    def request(self) -> CallRequest:
        """The request for a call."""
        from kairos_mcp.specs.call import CallRequest

        return CallRequest(self.name, self.arguments, workspace=self.workspace)


class RegistryRegister(Arguments):
    spec: JsonObject = Field(
        description="{kind: http_tool, name, description, url, method?, parameters?: [{name, in, schema?}], headers?, "
        "result?, effect?} or {kind: server, name, command, args?, env? | url, headers?, effects?: {glob: effect}}. "
        "Never write a secret: name the variable that holds it, as env:NAME."
    )


TOOLS = (
    ServerTool(
        "run_status",
        "See runs",
        "Show where runs stand, what to call next; wait with until.",
        "read",
        RunStatus,
        OBJECT,
        "is it done yet, has the agent finished, state of my job, progress, how far",
        is_always_loaded=True,
    ),
    ServerTool(
        "run_continue",
        "Answer a run",
        "Answer what waits. An item with `after` has only what is new since you answered that key.",
        "idempotent",
        RunContinue,
        OBJECT,
        "approve or deny it, reply to its question",
        is_always_loaded=True,
    ),
    ServerTool(
        "run_control",
        "Steer a run",
        summarize_actions(),
        "idempotent",
        RUN_CONTROL_ARGUMENTS,
        OBJECT,
        "stop that run, kill, abort, cancel or pause the agent for now; give it more rounds, budget or time",
    ),
    ServerTool(
        "run_trace",
        "Look into a run",
        "Show what happened in a run: calls, diff, plan; or a ref's text.",
        "read",
        RunTrace,
        OBJECT,
        "why did it fail, what did the agent do or change, history, show its tool calls",
    ),
    ServerTool(
        "registry_search",
        "Find tools",
        "Find tools for runs.",
        "read",
        RegistrySearch,
        OBJECT,
        "which tools are available, list the tools, what can the agent use to query",
    ),
    ServerTool(
        "registry_call",
        "Call one tool",
        "Call one tool without a loop; registry_search finds it. `output` is {content, is_error, data?}.",
        "irreversible",
        RegistryCall,
        OBJECT,
        "use just this one tool once",
    ),
    ServerTool(
        "registry_register",
        "Propose a tool",
        "Connect an MCP server or the API of a service: propose it. It can be used once a person has approved it.",
        "idempotent",
        RegistryRegister,
        OBJECT,
        "add or connect the API or MCP server of our own, of a tracker or database, as a tool",
    ),
    ServerTool(
        "budget_status",
        "See what is left",
        "What is spent and left, today or of a run.",
        "read",
        BudgetStatus,
        OBJECT,
        "how much did it cost, spending, tokens, usd, money",
    ),
)
