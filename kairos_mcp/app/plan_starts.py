"""Plan the run that a request starts: redact it, read what its spec needs beside it, and build the spec."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from kairos_mcp.app.agents import find_agent, find_agents
from kairos_mcp.app.context import AppContext
from kairos_mcp.app.mandate_starts import plan_cycles, plan_phase
from kairos_mcp.app.redact_aside import redact_aside
from kairos_mcp.app.start import (
    NewRunPlan,
    choose_workspace,
    note_idle_rules,
    note_redactions,
    read_continued_run,
    read_file_names,
    read_goal_lines,
)
from kairos_mcp.core import redact_values
from kairos_mcp.core.agent import AgentRecord
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import digest_of
from kairos_mcp.core.run_spec import CyclesRequest, PhaseRequest, PlannerRequest, RunRequest, TeamRequest
from kairos_mcp.core.text import truncate
from kairos_mcp.flows.ooda.phase_kinds import PHASES
from kairos_mcp.specs import planner
from kairos_mcp.specs.build import BuiltSpec
from kairos_mcp.specs.flow_specs import StartSources
from kairos_mcp.specs.kinds import CYCLES, KINDS, PLAN, PLANNER, TEAM
from kairos_mcp.specs.stage import NO_STAGE
from kairos_mcp.specs.team import TeamSources, build_team_spec
from kairos_mcp.store.agent_records import read_records
from kairos_mcp.store.rows import encode


async def plan_start(context: AppContext, request: RunRequest, caller: Caller) -> NewRunPlan:
    """Plan the run that a request starts, by the type of the request. Raises what `Runs.start` raises."""
    _require_writing(context, request)
    request, secrets = await redact_aside(redact_values.redact_request, request, context.factory.redactor)
    plan = await _PLANNED_BY.get(type(request), _plan_by_record)(context, request, caller)
    built = note_redactions(plan.built, secrets)
    return replace(plan, built=built)


def _require_writing(context: AppContext, request: RunRequest) -> None:
    """Raise ToolNotOffered, BadArguments for what a read-only server does not start."""
    match request:
        case CyclesRequest():
            context.require_writing(CYCLES.tool)
        case PhaseRequest(phase=phase) if PHASES[phase].calls is None:
            context.require_writing(PHASES[phase].tool)
        case PlannerRequest(caller_tools=tools) if context.settings.read_only:
            if names := [tool.name for tool in tools if tool.effect != "read"]:
                what = f"caller_tools: {', '.join(names)} may change something, and this server is read-only."
                raise BadArguments(truncate(what, 300), 'Leave out what does; state effect "read" for the others.')
        case _:
            pass


async def _plan_by_record(context: AppContext, request: RunRequest, caller: Caller) -> NewRunPlan:
    """Plan a run whose spec needs the tools of its folder beside the request, and nothing more."""
    kind, build = next((kind, kind.specs.build) for kind in KINDS.values() if kind.specs.request is type(request))
    assert build is not None
    workspace = context.factory.find_workspace(request.workspace)
    registry = await context.factory.ready_registry(workspace, request.wanted_tools)
    built = build(request, StartSources(context.settings, registry, caller.samples))
    if kind.is_call:  # a call made twice is two calls
        unique = digest_of(kind.tool.encode(), context.new_id().encode())
        return NewRunPlan(built, workspace, unique, is_another=True)
    built = await note_idle_rules(context, built, registry)
    return NewRunPlan(built, workspace, _digest_start(kind.tool, request, caller), request.key)


async def _plan_planner(context: AppContext, request: PlannerRequest, caller: Caller) -> NewRunPlan:
    """Plan a planner run. At a step of a plan, a team or a phase (`from_round`) it is a run of that flow."""
    factory, settings = context.factory, context.settings
    start_digest = _digest_start(PLANNER.tool, request, caller)
    workspace = await choose_workspace(context, request, caller)
    if request.from_round is not None:
        from kairos_mcp.app.forks import build_fork  # at first use: most runs are no forks

        if (fork := await build_fork(context, request, workspace, caller)) is not None:
            registry = await factory.registry(workspace)
            forked, mandate = fork
            built = await note_idle_rules(context, forked, registry)
            return NewRunPlan(built, workspace, start_digest, request.key, mandate=mandate)
    agent = await find_agent(factory, workspace, request) if request.agent is not None else None
    continued = await read_continued_run(context, request, caller)
    registry = await factory.ready_registry(workspace, request.tools if agent is None else agent.tools)
    files, lines = planner.NO_FILE_NAMES, planner.NO_GOAL_LINES
    if planner.looks_at_files(request, agent, settings, samples=caller.samples):
        files = await read_file_names(context, workspace)
        lines = await read_goal_lines(context, workspace, request.goal)
    built = planner.build_planner_spec(
        request,
        settings,
        registry,
        continued,
        samples=caller.samples,
        files=files,
        goal_lines=lines,
        agent=agent,
        stage=await factory.choose_stage(
            request.stage, workspace, None if request.from_round is not None else request.continues
        ),
    )
    built = await note_idle_rules(context, built, registry, [tool.name for tool in request.caller_tools])
    return NewRunPlan(built, workspace, start_digest, request.key)


async def _plan_team(context: AppContext, request: TeamRequest, caller: Caller) -> NewRunPlan:
    factory = context.factory
    start_digest = _digest_start((PLAN if request.plans_only else TEAM).tool, request, caller)
    workspace = factory.find_workspace(request.workspace)
    built = await _build_team(context, request, workspace, caller)
    built = await note_idle_rules(context, built, await factory.registry(workspace))
    return NewRunPlan(built, workspace, start_digest, request.key)


async def _build_team(context: AppContext, request: TeamRequest, workspace: str | None, caller: Caller) -> BuiltSpec:
    """Build the spec of a team: its agents as they are now, what they did before, the names of the files here."""
    factory = context.factory
    files = await find_agents(factory, workspace)
    globs = tuple(dict.fromkeys(glob for agent in files.agents.values() for glob in agent.tools or ()))
    registry = await factory.ready_registry(workspace, globs)
    tree, records = "", tuple[AgentRecord, ...]()
    if request.plan is None:
        tree = (await read_file_names(context, workspace)).text
        principal = caller.principal
        records = await context.store.read(lambda session: read_records(session, principal, workspace or ""))
    stage = NO_STAGE if request.plans_only else await factory.choose_stage(request.stage, workspace)
    sources = TeamSources(context.settings, registry, files, caller.samples, records, tree, stage)
    return build_team_spec(request, sources)


def _digest_start(tool: str, request: RunRequest, caller: Caller) -> bytes:
    encoded = encode(replace(request, workspace=None))  # the workspace has a column of its own beside the digest
    return digest_of(tool.encode(), caller.principal.encode(), encoded.encode())


_PLANNED_BY: Mapping[type[RunRequest], Callable[[AppContext, Any, Caller], Awaitable[NewRunPlan]]] = {
    PlannerRequest: _plan_planner,
    TeamRequest: _plan_team,
    CyclesRequest: plan_cycles,
    PhaseRequest: plan_phase,
}
