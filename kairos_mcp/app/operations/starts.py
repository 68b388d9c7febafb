"""Operations that start runs: a run, a fork, a team, a plan, a mandate's cycles."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from kairos_mcp.app.operations.operation import (
    Absent,
    Folder,
    Id,
    Operation,
    OperationKind,
    OperationResult,
    RunLimits,
    RunOperation,
)
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.limits import UNLIMITED
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import RouteName, is_answered_by
from kairos_mcp.core.run_spec import PlannerRequest, TeamRequest

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.app.start import StartResult
    from kairos_mcp.core.decision_rights import Caller

Goal = Annotated[str, Field(min_length=1, max_length=100_000, pattern=r"\S")]
Names = Annotated[list[Id], Field(max_length=64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Operation):
    """Work on a goal."""

    kind = OperationKind("start", tool="planner_run", command="run", button="inbox.js", moves=True)

    goal: Goal
    limits: RunLimits = UNLIMITED
    workspace: Folder | None = None
    tools: Names | None = None
    agent: Id | None = None
    model: Id | None = None

    async def do(self, app: App, caller: Caller) -> OperationResult:
        request = PlannerRequest(
            self.goal,
            tools=None if self.tools is None else tuple(self.tools),
            agent=self.agent,
            model=self.model,
            limits=self.limits,
            workspace=self.workspace,
        )
        return await _start(app, request, caller)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork(RunOperation):
    """Start a new run from one of the steps of a run, or from its end; that one stays as it is."""

    kind = OperationKind("fork", tool="planner_run", command="run", button="acts.js", moves=True)

    round: Id | None = None
    goal: Goal | None = None
    agent: Id | None = None

    async def do(self, app: App, caller: Caller, *, drive: bool = True) -> OperationResult:
        request = PlannerRequest(self.goal or "", continues=self.run, from_round=self.round, agent=self.agent)
        return await _start(app, request, caller)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTeam(Operation):
    """Let several agents work on a goal."""

    kind = OperationKind("start_team", tool="team_run", command="run", button="inbox.js", moves=True)

    goal: Goal
    limits: RunLimits = UNLIMITED
    workspace: Folder | None = None
    agents: Names | None = None
    max_parallel: Annotated[int, Field(ge=1, le=64)] | None = None

    async def do(self, app: App, caller: Caller) -> OperationResult:
        request = TeamRequest(
            self.goal,
            agents=None if self.agents is None else tuple(self.agents),
            max_parallel=self.max_parallel,
            limits=self.limits,
            workspace=self.workspace,
            plans_only=self.kind.name == "plan",
        )
        return await _start(app, request, caller)


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePlan(StartTeam):
    """Split a goal into tasks, and carry none of them out."""

    kind = StartTeam.kind._replace(
        name="plan", tool="planner_plan", button=Absent("A person starts a team, whose plan the page shows.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMandate(Operation):
    """Run cycles of a mandate."""

    kind = OperationKind("mandate_run", tool="ooda_run", command="mandate run", button="mandates.js", moves=True)

    id: Id
    workspace: Folder | None = None
    cycles: Annotated[int, Field(ge=1, le=100)] | None = None

    async def do(self, app: App, caller: Caller) -> OperationResult:
        from kairos_mcp.core.run_spec import CyclesRequest, MandateRef

        reference = MandateRef(self.id, workspace=self.workspace)
        request = CyclesRequest(reference, self.cycles, await own_route(app))
        return _report_start(await app.runs.start(request, caller))


async def own_route(app: App) -> RouteName:
    """Return the route that a run started on the page gets: one that needs no client. Raises ConfigError."""
    choice = await app.runs.choose_model(PlannerRequest(""))
    if not is_answered_by("server", choice.route):
        raise ConfigError(
            "Nobody would answer a run that is started here: no model is configured.",
            "Name one as `model` in the settings; `kairos-mcp init` writes them.",
        )
    return choice.route


async def _start(app: App, request: PlannerRequest | TeamRequest, caller: Caller) -> OperationResult:
    routed = replace(request, route=await own_route(app))
    await app.runs.check_model(routed)
    return _report_start(await app.runs.start(routed, caller, is_another=True))


def _report_start(started: StartResult) -> OperationResult:
    return OperationResult("An open run of it was found." if started.attached else "Started.", started.run_id)
