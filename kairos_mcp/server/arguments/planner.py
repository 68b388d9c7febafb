"""The arguments of planner_run, planner_plan and team_run, and the requests that are made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from kairos_mcp.core.limits import UNLIMITED
from kairos_mcp.core.messages import Effect, JsonObject, Message, ToolCall, ToolSpec
from kairos_mcp.core.run_spec import Route
from kairos_mcp.server.arguments.base import (
    DEFAULT_WAIT_S,
    LONG_TEXT_CHARS,
    Arguments,
    LimitsArgument,
    LongText,
    Name,
    RunId,
    Wait,
)

if TYPE_CHECKING:
    from kairos_mcp.core.run_spec import PlannerRequest, TeamRequest

RoundPath = Annotated[str, Field(min_length=1, max_length=200)]
PRIOR_CHARS = 400_000  # of a conversation to go on from: four characters for each token of the default context


class CallerTool(Arguments):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: Annotated[str, Field(max_length=8_000)]
    input_schema: JsonObject
    effect: Effect | None = None

    def spec(self) -> ToolSpec:
        """The tool's spec; without an effect it is irreversible."""
        return ToolSpec(
            self.name, self.description, self.input_schema, self.effect or "irreversible", "caller", "caller"
        )


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


def _refuse_blank(goal: str | None) -> str | None:
    if goal is not None and goal.isspace():
        raise PydanticCustomError("blank", "Should say what to achieve")
    return goal


Goal = Annotated[str, Field(min_length=1, max_length=LONG_TEXT_CHARS), AfterValidator(_refuse_blank)]


class PlannerRun(Arguments):
    goal: Goal
    context: LongText | None = Field(None, description="Material for the goal")
    system: LongText | None = Field(None, description="Replaces the system prompt")
    agent: Name | None = Field(None, description="Its prompt, tools, model, rounds")
    messages: Annotated[list[PriorMessage], Field(max_length=1_000)] | None = Field(
        None,
        description="Prior turns: {role: user|assistant|tool, content, tool_calls?, tool_call_id?}",
    )
    continues: RunId | None = Field(None, description="An ended run; any, with from")
    from_: RoundPath | None = Field(
        None,
        alias="from",
        description="Cut it at this round, as round-3",
    )
    tools: Annotated[list[Name], Field(max_length=64)] | None = Field(
        None, description="Globs; default: all that only read"
    )
    caller_tools: Annotated[list[CallerTool], Field(max_length=64)] | None = Field(
        None,
        description="Tools you execute: {name, description, input_schema, effect?}",
    )
    route: Route | None = Field(None, description="Model source; caller is you")
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(None, description="As provider:model")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    limits: LimitsArgument | None = Field(None, description="Narrow what is configured")
    output_schema: JsonObject | None = None
    workspace: Annotated[str, Field(max_length=4_096)] | None = Field(None, description="A configured folder")
    key: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(None, description="Same key, same run")
    wait_s: Wait | None = Field(None, description="Default 45")

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

    def request(self) -> PlannerRequest:
        """The request for a planner run."""
        from kairos_mcp.core.run_spec import PlannerRequest

        return PlannerRequest(
            goal=self.goal,
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
        )

    @property
    def wait(self) -> float:
        return DEFAULT_WAIT_S if self.wait_s is None else self.wait_s


class _TeamArguments(Arguments):
    """What planner_plan and team_run share."""

    context: LongText | None = None
    agents: Annotated[list[Name], Field(min_length=1, max_length=32)] | None = Field(None, description="Default: all")
    route: Route | None = None
    limits: LimitsArgument | None = Field(None, description="Sums over the whole team")
    wait_s: Wait | None = None

    @property
    def wait(self) -> float:
        return DEFAULT_WAIT_S if self.wait_s is None else self.wait_s


class PlannerPlan(_TeamArguments):
    goal: Goal

    def request(self) -> TeamRequest:
        """The request for a plan alone."""
        from kairos_mcp.core.run_spec import TeamRequest

        return TeamRequest(
            self.goal,
            context=self.context,
            agents=None if self.agents is None else tuple(self.agents),
            route=self.route or "auto",
            limits=self.limits or UNLIMITED,
            plans_only=True,
        )


class TeamRun(_TeamArguments):
    goal: Goal | None = None
    plan: JsonObject | None = Field(
        None,
        description="As planner_plan gives: {analysis, strategy: single_task|decomposed, tasks: [{id, agent, "
        "description, depends_on?, ...}]}",
    )
    tools: Annotated[list[Name], Field(max_length=64)] | None = Field(None, description="Globs; narrow the agents'")
    max_parallel: Annotated[int, Field(ge=1, le=16)] | None = Field(None, description="Tasks at once; default 4")
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    workspace: Annotated[str, Field(max_length=4_096)] | None = None
    key: Annotated[str, Field(min_length=1, max_length=200)] | None = None

    @model_validator(mode="after")
    def _require_goal(self) -> TeamRun:
        if self.goal is None and self.plan is None:
            raise PydanticCustomError("missing_goal", "goal or plan: one of them should be given")
        return self

    def request(self) -> TeamRequest:
        """The request for a team. Without a goal, the analysis of the plan stands for it."""
        from kairos_mcp.core.plan import goal_of
        from kairos_mcp.core.run_spec import TeamRequest

        return TeamRequest(
            self.goal or goal_of(self.plan or {}),
            self.plan,
            self.context,
            None if self.agents is None else tuple(self.agents),
            None if self.tools is None else tuple(self.tools),
            self.max_parallel,
            self.model,
            self.temperature,
            self.route or "auto",
            self.limits or UNLIMITED,
            self.workspace,
            self.key,
        )
