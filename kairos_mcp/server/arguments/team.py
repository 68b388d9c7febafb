"""The tools planner_plan and team_run: their arguments, and the requests that are made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from kairos_mcp.core.limits import UNLIMITED
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.routes import ROUTE_TEXT, RouteName
from kairos_mcp.server.arguments.base import (
    DEFAULT_WAIT_S,
    KEY_TEXT,
    WAIT_TEXT,
    WORKSPACE_TEXT,
    Arguments,
    Goal,
    LimitsArgument,
    LongText,
    Name,
    StartArguments,
    Wait,
    in_listing,
)
from kairos_mcp.server.server_tool import OBJECT, ServerTool

if TYPE_CHECKING:
    from kairos_mcp.core.run_spec import TeamRequest


class _TeamArguments(Arguments):
    """What planner_plan and team_run share."""

    context: LongText | None = Field(
        None,
        description="Material for the goal, which the planner and every agent are shown.",
        json_schema_extra=in_listing(""),
    )
    agents: Annotated[list[Name], Field(min_length=1, max_length=32)] | None = Field(
        None,
        description="The names of the agents that tasks may be given to. Default: all.",
        json_schema_extra=in_listing(""),
    )
    route: RouteName | None = Field(None, description=ROUTE_TEXT, json_schema_extra=in_listing(""))
    limits: LimitsArgument | None = Field(
        None,
        description="The most that the whole team may use together.",
        json_schema_extra=in_listing(""),
    )
    wait_s: Wait | None = Field(None, description=WAIT_TEXT, json_schema_extra=in_listing(""))

    @property
    def wait(self) -> float:
        return DEFAULT_WAIT_S if self.wait_s is None else self.wait_s


class PlannerPlan(_TeamArguments, StartArguments):
    goal: Goal = Field(description="What is to be split into tasks.", json_schema_extra=in_listing(""))

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


class TeamRun(_TeamArguments, StartArguments):
    goal: Goal | None = Field(
        None,
        description="What the team is to achieve. Without it, the `analysis` of the plan that is given stands for it.",
        json_schema_extra=in_listing(""),
    )
    plan: JsonObject | None = Field(
        None,
        description="The plan to carry out, in place of one that the planner makes: the output of planner_plan, or one "
        "of this form: {analysis, strategy: single_task|decomposed, "
        "tasks: [{id, agent, description, depends_on?, ...}]}.",
        json_schema_extra=in_listing(
            "{analysis, strategy: single_task|decomposed, tasks: [{id, agent, description, depends_on?}]}"
        ),
    )
    tools: Annotated[list[Name], Field(max_length=64)] | None = Field(
        None,
        description="Names of tools, or patterns of names with `*`: each agent keeps those of its tools that match.",
        json_schema_extra=in_listing(""),
    )
    max_parallel: Annotated[int, Field(ge=1, le=16)] | None = Field(
        None,
        description="The most tasks that are worked on at once. Default: 4.",
        json_schema_extra=in_listing(""),
    )
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None,
        description="The model of the planner and of agents that have none of their own, as `provider:model`.",
        json_schema_extra=in_listing(""),
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description="The temperature of the models' sampling.", json_schema_extra=in_listing("")
    )
    workspace: Annotated[str, Field(max_length=4_096)] | None = Field(
        None, description=WORKSPACE_TEXT, json_schema_extra=in_listing("")
    )
    stage: Literal["auto"] | bool | None = Field(
        None,
        description="Whether its tasks edit and run programs unasked in one stage, as in planner_run.",
        json_schema_extra=in_listing(""),
    )
    key: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description=KEY_TEXT, json_schema_extra=in_listing("")
    )

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
            workspace=self.workspace,
            key=self.key,
            stage=self.stage,
        )


TOOLS = (
    ServerTool(
        "planner_plan",
        "Plan",
        "Split a goal into tasks for agents. None is carried out: `output` is the plan, which team_run takes.",
        "idempotent",
        PlannerPlan,
        OBJECT,
        "make a plan first, break it down into the steps needed, do not execute anything yet",
    ),
    ServerTool(
        "team_run",
        "Run a team",
        "Several agents in parallel on a goal of several parts: plan, tasks side by side, one answer.",
        "idempotent",
        TeamRun,
        OBJECT,
        "team of agents in parallel, several workers, subagents or reviewers at once or at the same time, split the "
        "work, divide, delegate",
    ),
)
