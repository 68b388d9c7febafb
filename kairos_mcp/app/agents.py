"""Find the agents and skills that can be used here, and list them for a person, with what is wrong with the others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kairos_mcp.app.context import Operations
from kairos_mcp.app.run_factory import RunFactory
from kairos_mcp.core.agent import Agent
from kairos_mcp.core.builtin_tools import READ_FILE
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import PlannerRequest, TeamRequest
from kairos_mcp.gate_calls import GatedCall
from kairos_mcp.settings.folders import has_own_agents
from kairos_mcp.specs import build, planner
from kairos_mcp.specs.build import ModelChoice
from kairos_mcp.tools.skill_files import SkillManifest, list_manifests, read_manifest, read_skill_file
from kairos_mcp.tools.skills import Skill

if TYPE_CHECKING:
    from kairos_mcp.core.agent import AgentRecord
    from kairos_mcp.settings.agents import AgentFiles, DisabledAgent


@dataclass(frozen=True, slots=True)
class ListedAgent:
    """An agent in a list: the names of its tools, and its record, if it has one."""

    agent: Agent
    tools: tuple[str, ...]
    record: AgentRecord | None

    def as_json(self) -> JsonObject:
        agent = self.agent
        return {
            "name": agent.name,
            "description": agent.description,
            "tools": list(self.tools),
            "model": agent.model,
            "max_rounds": agent.max_rounds,
            "from": agent.origin,
            "left_out": list(agent.left_out),
            "record": None if self.record is None else self.record.as_json(),
        }


@dataclass(frozen=True, slots=True)
class AgentList:
    """The agents that can be used, in the order in which they are chosen, and those that can't."""

    agents: tuple[ListedAgent, ...]
    disabled: tuple[DisabledAgent, ...]

    def as_json(self) -> JsonObject:
        return {
            "agents": [each.as_json() for each in self.agents],
            "disabled": [each.as_json() for each in self.disabled],
        }


async def find_agents(factory: RunFactory, workspace: str | None) -> AgentFiles:
    """Return the agents for runs in this workspace, those of a `.claude` folder last if the settings ask for them.

    No server is started: the tools of one that was never asked for them count as there. Raises ConfigError.
    """
    await factory.registry(workspace)  # what was registered since counts too
    return await asyncio.to_thread(_read_agents, factory, workspace)


async def choose_request_model(
    factory: RunFactory, workspace: str | None, request: PlannerRequest | TeamRequest
) -> ModelChoice:
    """Choose who a run of this request asks, where no client offers its own model; of a team, who is asked for agents
    without a model of their own. Raises BadArguments, UnknownAgent, ConfigError."""
    if isinstance(request, TeamRequest):
        return build.choose_model(request.route, request.limits, request.model, factory.settings, samples=False)
    agent = await find_agent(factory, workspace, request) if request.agent is not None else None
    return planner.choose_request_model(request, agent, factory.settings, samples=False)


async def find_agent(factory: RunFactory, workspace: str | None, request: PlannerRequest) -> Agent:
    """Return the agent that a request names. Raises UnknownAgent; ConfigError where it is disabled; BadArguments where
    the request has a system prompt of its own."""
    assert request.agent is not None
    if request.system is not None:
        raise BadArguments("agent and system: an agent has a system prompt of its own.", "Leave one of them out.")
    return (await find_agents(factory, workspace)).require(request.agent)


def _read_agents(factory: RunFactory, workspace: str | None) -> AgentFiles:
    # Imported at the first use: most runs are of no agent.
    from kairos_mcp.settings.agents import load_agents
    from kairos_mcp.tools.agent_files import check_tools, read_claude_agents
    from kairos_mcp.tools.files.workspace import Workspace

    settings, resources = factory.settings, factory.resources(workspace)
    ours = check_tools(load_agents(settings), resources.registry)
    reading = resources.registry.find(READ_FILE.name)
    if not settings.claude_agents or workspace is None or reading is None:
        return ours

    def may_read(path: str) -> bool:
        return resources.gate.judge(GatedCall(reading.spec, {"path": path})).decision == "allow"

    with Workspace(Path(workspace), private=settings.home) as opened:
        return ours.joined_with(read_claude_agents(opened, resources.registry, may_read))


class Agents(Operations):
    """The agents of this server's first workspace, and the skills that can be read here."""

    async def list_all(self, caller: Caller) -> AgentList:
        """List the agents with this caller's records of them, and those that are disabled."""
        from kairos_mcp.store.agent_records import read_records  # few starts list them

        workspace = self._factory.find_workspace(None)
        found = await find_agents(self._factory, workspace)
        records: Mapping[str, AgentRecord] = {}
        if self._store.exists:
            read = await self._store.read(lambda session: read_records(session, caller.principal, workspace or ""))
            records = {each.agent: each for each in read}
        listed = [self._list(agent, workspace, records.get(agent.name)) for agent in found.agents.values()]
        return AgentList(tuple(listed), found.disabled)

    async def describe(self, name: str) -> JsonObject:
        """Return an agent as its file makes it, with its prompt; or what is wrong with it. Raises UnknownAgent."""
        workspace = self._factory.find_workspace(None)
        found = await find_agents(self._factory, workspace)
        for wrong in found.disabled:
            if wrong.name == name:
                return wrong.as_json()
        agent = found.require(name)
        described = self._list(agent, workspace, None).as_json() | {"prompt": agent.prompt}
        redacted: JsonObject = self._factory.redactor.redact_json(described)[0]
        return redacted

    def _list(self, agent: Agent, workspace: str | None, record: AgentRecord | None) -> ListedAgent:
        tools = self._factory.resources(workspace).registry.select_available(agent.tools)
        return ListedAgent(agent, tuple(spec.name for spec in tools), record)

    async def problems(self) -> tuple[str, ...]:
        """Return a sentence for each agent of the user's, or of a workspace, that is disabled."""
        if not has_own_agents(self._settings):
            return ()
        found = await find_agents(self._factory, self._factory.find_workspace(None))
        return tuple(wrong.sentence for wrong in found.disabled if wrong.origin != "built-in")

    # -- skills: read in a thread, since a folder of skills may lie on a slow disk --------------------------------

    async def list_skills(self) -> tuple[Skill, ...]:
        """Return name and description of each skill, by name."""
        return (await asyncio.to_thread(self._factory.skill_folders.list_skills)).skills

    async def list_manifests(self) -> list[SkillManifest]:
        """Return the manifests of all skills, by name."""
        return await asyncio.to_thread(list_manifests, self._factory.skill_folders)

    async def read_manifest(self, name: str) -> SkillManifest:
        """Return the manifest of a skill. Raises NotFound, BadArguments, TooLarge."""
        return await asyncio.to_thread(read_manifest, self._factory.skill_folders, name)

    async def read_skill_file(self, name: str, path: str) -> bytes:
        """Return what a file of a skill holds. Raises NotFound, PathDenied, TooLarge."""
        return await asyncio.to_thread(read_skill_file, self._factory.skill_folders, name, path)
