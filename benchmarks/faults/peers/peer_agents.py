"""openai-agents: SQLiteSession keeps the conversation, RunState what waits for approval.

A further `Runner.run` on the session is how a run goes on, since nothing else of it is stored. What waits is forgotten
once a person has decided: kept until the run has ended it would be asked, and executed, once more after a crash.
"""

import asyncio

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, RunState, SQLiteSession, function_tool
from openai import AsyncOpenAI
from tools import GOAL, effect


class System:
    def __init__(self, folder, url):
        self.state = folder / "state.json"
        self.done = folder / "done"
        self.session = SQLiteSession("job", folder / "peer.db")

        @function_tool
        async def read(step: int) -> str:
            """Read."""
            return await asyncio.to_thread(effect, url, "read", step)

        @function_tool
        async def append(step: int) -> str:
            """Append."""
            return await asyncio.to_thread(effect, url, "append", step)

        @function_tool(needs_approval=True)
        async def approved_append(step: int) -> str:
            """Append, once a person has approved it."""
            return await asyncio.to_thread(effect, url, "approved_append", step)

        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        model = OpenAIChatCompletionsModel("fake", AsyncOpenAI(base_url=f"{url}/v1", api_key="none"))
        self.agent = Agent(name="peer", model=model, tools=[read, append, approved_append])

    def open(self):
        return {"status": "idle"}

    def _go(self, given):
        async def run():
            configured = RunConfig(tracing_disabled=True)
            return await Runner.run(self.agent, given, session=self.session, max_turns=50, run_config=configured)

        result = self.loop.run_until_complete(run())
        if result.interruptions:
            written = self.state.with_suffix(".new")
            written.write_text(result.to_state().to_string())
            written.rename(self.state)
            return {"status": "waiting"}
        self.done.touch()
        return {"status": "ended"}

    def start(self):
        return self._go(GOAL)

    def look(self):
        if self.done.exists():
            return {"status": "ended"}
        return {"status": "waiting" if self.state.exists() else "idle"}

    def resume(self):
        stored = self.loop.run_until_complete(self.session.get_items())
        return self._go([] if stored else GOAL)

    def answer(self, decision):
        async def load():
            return await RunState.from_string(self.agent, self.state.read_text())

        state = self.loop.run_until_complete(load())
        for each in state.get_interruptions():
            state.approve(each) if decision == "approve" else state.reject(each)
        self.state.unlink()
        return self._go(state)
