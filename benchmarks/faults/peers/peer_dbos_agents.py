"""openai-agents with DBOS's own runner: as its README says, a workflow with the tools as steps.

Its version 0.3.0 fails with a KeyError where a run goes on from a RunState, so approvals are not tried.
"""

import asyncio

from agents import Agent, RunConfig, function_tool, set_default_openai_api, set_default_openai_client
from dbos import DBOS
from dbos_openai_agents import DBOSRunner
from dbos_workflow import DbosSystem, configure, decided
from openai import AsyncOpenAI
from tools import effect


class System(DbosSystem):
    def __init__(self, folder, url):
        configure(folder)
        set_default_openai_api("chat_completions")
        set_default_openai_client(AsyncOpenAI(base_url=f"{url}/v1", api_key="none"), use_for_tracing=False)

        @function_tool
        @DBOS.step()
        async def read(step: int) -> str:
            """Read."""
            return await asyncio.to_thread(effect, url, "read", step)

        @function_tool
        @DBOS.step()
        async def append(step: int) -> str:
            """Append."""
            return await asyncio.to_thread(effect, url, "append", step)

        @function_tool(needs_approval=True)
        @DBOS.step()
        async def approved_append(step: int) -> str:
            """Append, once a person has approved it."""
            return await asyncio.to_thread(effect, url, "approved_append", step)

        agent = Agent(name="peer", model="fake", tools=[read, append, approved_append])

        @DBOS.workflow()
        async def work(goal: str) -> str:
            configured = RunConfig(tracing_disabled=True)
            result = await DBOSRunner.run(agent, goal, max_turns=50, run_config=configured)
            while result.interruptions:
                state = result.to_state()
                is_approved = await decided()
                for each in result.interruptions:
                    state.approve(each) if is_approved else state.reject(each)
                result = await DBOSRunner.run(agent, state, max_turns=50, run_config=configured)
            return str(result.final_output)

        super().__init__(work)
