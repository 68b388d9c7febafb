"""The tool planner_run: its arguments, and the request that is made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from kairos_mcp.core.effects import Reach
from kairos_mcp.core.limits import UNLIMITED
from kairos_mcp.core.messages import CALLER_SOURCE, JsonObject, Message, ToolCall, ToolSpec
from kairos_mcp.core.routes import ROUTE_TEXT, RouteName
from kairos_mcp.server.arguments.base import (
    AT_LIMIT_TEXT,
    DEFAULT_WAIT_S,
    KEY_TEXT,
    WAIT_TEXT,
    WORKSPACE_TEXT,
    Arguments,
    AtLimit,
    Goal,
    LimitsArgument,
    LongText,
    Name,
    RunId,
    StartArguments,
    Wait,
    in_listing,
)
from kairos_mcp.server.server_tool import OBJECT, ServerTool

if TYPE_CHECKING:
    from kairos_mcp.core.run_spec import PlannerRequest

RoundPath = Annotated[str, Field(min_length=1, max_length=200)]
PRIOR_CHARS = 400_000  # of a conversation to go on from: four characters for each token of the default context


class CallerTool(Arguments):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: Annotated[str, Field(max_length=8_000)]
    input_schema: JsonObject
    effect: Literal["read", "idempotent", "checked", "irreversible"] | None = None
    reaches: Reach | None = None

    def spec(self) -> ToolSpec:
        """The tool's spec; without an effect it is irreversible."""
        effect = self.effect or "irreversible"
        source = CALLER_SOURCE, CALLER_SOURCE
        return ToolSpec(self.name, self.description, self.input_schema, effect, *source, self.reaches)


class PriorCall(Arguments):
    id: Name
    name: Name
    arguments: JsonObject


class PriorMessage(Arguments):
    role: Literal["user", "assistant", "tool"]
    content: LongText
    tool_calls: Annotated[list[PriorCall], Field(max_length=64)] | None = None
    tool_call_id: Name | None = None

    def message(self) -> Message:
        calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in self.tool_calls or ())
        return Message(self.role, self.content, calls, self.tool_call_id)


class PlannerRun(StartArguments):
    goal: Goal | None = Field(
        None,
        description="What the run is to achieve. Without it, a run with `continues` and `from` goes on at that round "
        "without a new turn.",
        json_schema_extra=in_listing(""),
    )
    context: LongText | None = Field(
        None,
        description="Material for the goal, which the model is shown with it.",
        json_schema_extra=in_listing(""),
    )
    system: LongText | None = Field(
        None,
        description="A system prompt in place of this server's own.",
        json_schema_extra=in_listing(""),
    )
    agent: Name | None = Field(
        None,
        description="The name of an agent: the run takes its prompt, tools, model and limit on rounds.",
        json_schema_extra=in_listing("An agent's prompt, tools, model, rounds"),
    )
    messages: Annotated[list[PriorMessage], Field(max_length=1_000)] | None = Field(
        None,
        description="The earlier turns of a conversation that the run goes on from: {role: user|assistant|tool, "
        "content, tool_calls?: [{id, name, arguments}], tool_call_id?}. Each call is followed by its result.",
        json_schema_extra=in_listing("Prior turns: {role: user|assistant|tool, content, tool_calls?, tool_call_id?}"),
    )
    continues: RunId | None = Field(
        None,
        description="The id of the run whose conversation the new run goes on from. It has to have ended, unless "
        "`from` says where to cut it.",
        json_schema_extra=in_listing("Go on from this ended run; with from, any"),
    )
    from_: RoundPath | None = Field(
        None,
        alias="from",
        description="The path of a round of that run, as `round-3`: the new run goes on from before this round. Of a "
        "plan, a team or cycles a step, as `synthesis` or `cycle-2/decide`: the new run is of that kind, has all "
        "answers before the step, and `goal` is one more turn there.",
        json_schema_extra=in_listing("Go on there, as round-3; goal optional"),
    )
    tools: Annotated[list[Name], Field(max_length=64)] | None = Field(
        None,
        description="Names of tools, or patterns of names with `*`. Default: the agent's, or those that only read: "
        "the built-in ones, and a server's while they are few; a search finds the others.",
        json_schema_extra=in_listing("Patterns; default: all that only read"),
    )
    caller_tools: Annotated[list[CallerTool], Field(max_length=64)] | None = Field(
        None,
        description="Tools that you execute yourself, when the run waits for their result: {name, description, "
        "input_schema, effect?, reaches?}. Without an effect one counts as irreversible; reaches is inside, service "
        "or outside, and without it outside.",
        json_schema_extra=in_listing("Tools you execute: {name, description, input_schema, effect?}"),
    )
    route: RouteName | None = Field(
        None, description=ROUTE_TEXT, json_schema_extra=in_listing("Who completes; caller is you")
    )
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None,
        description="The model to ask, as `provider:model`; on the route `sampling` a hint for the host.",
        json_schema_extra=in_listing("As provider:model"),
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description="The temperature of the model's sampling.", json_schema_extra=in_listing("")
    )
    limits: LimitsArgument | None = Field(
        None,
        description="The most that the run may use. A limit above the configured one counts as that one.",
        json_schema_extra=in_listing("At most"),
    )
    output_schema: JsonObject | None = Field(
        None,
        description="A JSON Schema of an object: the run's `output` then is such an object.",
        json_schema_extra=in_listing(""),
    )
    workspace: Annotated[str, Field(max_length=4_096)] | None = Field(
        None, description=WORKSPACE_TEXT, json_schema_extra=in_listing("A configured folder")
    )
    stage: Literal["auto"] | bool | None = Field(
        None,
        description="Whether the run works in a stage: it edits and runs programs without asking, and a person then "
        "decides once about one diff. auto: only where a stage is possible. Default: the setting.",
        json_schema_extra=in_listing(""),
    )
    at_limit: AtLimit | None = Field(None, description=AT_LIMIT_TEXT, json_schema_extra=in_listing(""))
    key: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description=KEY_TEXT, json_schema_extra=in_listing("Same key, same run")
    )
    wait_s: Wait | None = Field(None, description=WAIT_TEXT, json_schema_extra=in_listing("Seconds; default 45"))

    @field_validator("messages")
    @classmethod
    def _refuse_unpaired_calls(cls, messages: list[PriorMessage] | None) -> list[PriorMessage] | None:
        """Refuse a conversation in which the results of calls don't follow their calls: models refuse it too."""
        if sum(len(message.content) for message in messages or ()) > PRIOR_CHARS:
            raise PydanticCustomError("too_long", f"Should have at most {PRIOR_CHARS} characters in all")
        open_calls: list[str] = []
        for at, message in enumerate(messages or ()):
            if message.role == "tool" and message.tool_call_id in open_calls:
                open_calls.remove(message.tool_call_id)
            elif message.role == "tool" or open_calls:
                raise PydanticCustomError("unpaired", f"At {at}: each call should have one result after it")
            elif message.tool_call_id is not None or (message.tool_calls and message.role == "user"):
                raise PydanticCustomError("misplaced", f"At {at}: calls belong to assistant, ids to tool")
            open_calls += [call.id for call in message.tool_calls or ()]
        if open_calls:
            raise PydanticCustomError("unpaired", "Should not end with a call that has no result")
        return messages

    @model_validator(mode="after")
    def _require_goal(self) -> PlannerRun:
        if self.goal is None and (self.continues is None or self.from_ is None):
            raise PydanticCustomError("missing_goal", "goal: should be given, unless continues and from are")
        return self

    def request(self) -> PlannerRequest:
        """The request for a planner run."""
        from kairos_mcp.core.run_spec import PlannerRequest

        return PlannerRequest(
            goal=self.goal or "",
            system=self.system,
            context=self.context,
            messages=tuple(message.message() for message in self.messages or ()),
            continues=self.continues,
            tools=None if self.tools is None else tuple(self.tools),
            caller_tools=tuple(tool.spec() for tool in self.caller_tools or ()),
            model=self.model,
            temperature=self.temperature,
            route=self.route or "auto",
            limits=self.limits or UNLIMITED,
            output_schema=self.output_schema,
            workspace=self.workspace,
            key=self.key,
            from_round=self.from_,
            agent=self.agent,
            stage=self.stage,
            at_limit=self.at_limit or "end",
        )

    @property
    def wait(self) -> float:
        return DEFAULT_WAIT_S if self.wait_s is None else self.wait_s


TOOLS = (
    ServerTool(
        "planner_run",
        "Run a loop",
        "Work on a goal with tools, round by round: fix, change, find out. Use it when a change needs the user's "
        "approval, must survive a restart, has a budget, or outlasts this chat. Returns the outcome, or "
        "input_required: answer by run_continue. An identical call returns the open run.",
        "idempotent",
        PlannerRun,
        OBJECT,
        "ask me before you change, edit or refactor anything, change nothing without my permission, let me approve "
        "every edit; keep working overnight, through the night, in the background, while I am away; go on after I "
        "close this, resume if my laptop restarts; let an agent fix a bug or a failing test, find out why; spend at "
        "most",
        is_always_loaded=True,
        names_limits=True,
    ),
)
