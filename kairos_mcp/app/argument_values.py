"""The names that a person may mean while they type one: runs, agents, mandates, tools, paths, skills."""

from __future__ import annotations

import time

from kairos_mcp.app.agents import Agents
from kairos_mcp.app.context import AppContext, Operations
from kairos_mcp.app.run_resources import LISTED_RUNS
from kairos_mcp.core.builtin_tools import LIST_FILES
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.tool import ToolContext
from kairos_mcp.gate import GatedCall
from kairos_mcp.store import find_runs, mandates, queries
from kairos_mcp.tools.tool import call_redacted

LISTED_NAMES = 1_000  # of a folder
LIST_S = 2.0


class ArgumentValues(Operations):
    """List names, the likeliest first."""

    def __init__(self, context: AppContext, agents: Agents) -> None:
        super().__init__(context)
        self._agents = agents

    async def runs(self, caller: Caller) -> list[str]:
        """The ids of the caller's newest runs in the workspaces at hand."""
        workspaces = self._context.listed_workspaces
        if not self._store.exists:
            return []
        return await self._store.read(
            lambda session: queries.newest_run_ids(session, caller.principal, workspaces, LISTED_RUNS)
        )

    async def waiting_runs(self, caller: Caller) -> list[str]:
        """The ids of the caller's runs that wait for a person."""
        workspaces = self._context.listed_workspaces
        if not self._store.exists:
            return []
        return await self._store.read(
            lambda session: find_runs.list_waiting_for_person(session, caller.principal, workspaces)
        )

    async def mandates(self, caller: Caller) -> list[str]:
        """The ids of the caller's mandates in the workspaces at hand."""
        workspaces = self._context.listed_workspaces
        if not self._store.exists:
            return []
        rows = await self._store.read(
            lambda session: mandates.list_page(session, caller.principal, workspaces, limit=LISTED_NAMES)
        )
        return list(dict.fromkeys(row.id for row in rows))

    async def agents(self, caller: Caller) -> list[str]:
        """The names of the agents that can be used here."""
        return [each.agent.name for each in (await self._agents.list_all(caller)).agents]

    async def tools(self) -> list[str]:
        """The names of the tools that a run may be given. No server is started for it."""
        registry = await self._factory.registry(self._factory.find_workspace(None))
        return [spec.name for spec in registry.specs]

    async def paths(self, beginning: str) -> list[str]:
        """The files and folders of this server's first workspace in the folder that the beginning of a path names; none
        that a rule of the gate hides."""
        folder = beginning.rpartition("/")[0]
        workspace = self._factory.find_workspace(None)
        await self._factory.registry(workspace)
        resources = self._factory.resources(workspace)
        arguments: JsonObject = {"path": folder or ".", "limit": LISTED_NAMES}
        tool = resources.registry.find(LIST_FILES.name)
        if tool is None or resources.gate.judge(call := GatedCall(tool.spec, arguments)).decision != "allow":
            return []
        is_hidden = resources.gate.hidden_path_test(call)
        ctx = ToolContext("", time.monotonic() + LIST_S, lambda _ref: None, is_hidden=is_hidden)
        try:
            result = await resources.workers.call(
                LIST_S, lambda: call_redacted(self._factory.redactor, tool, arguments, ctx)
            )
        except TimeoutError:
            return []
        return [] if result.is_error else result.content.split("\n")[: result.data["shown"]]
