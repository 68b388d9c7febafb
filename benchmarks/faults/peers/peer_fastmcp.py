"""fastmcp: a loop by hand inside a tool that runs as a background task, which is what its tasks are for.

With Redis a task whose worker died is delivered again, after 3 s here, where the default is 300. A client looks by the
task's id.
"""

import asyncio
import json
from datetime import timedelta

from fastmcp import Client, FastMCP
from fastmcp_tasks import TasksExtension
from fastmcp_tasks.client import _send_get, call_tool_task
from openai import AsyncOpenAI
from tools import GOAL, effect

PARAMETERS = {"type": "object", "properties": {"step": {"type": "integer"}}, "required": ["step"]}
OFFERED = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": PARAMETERS}}
    for name in ("read", "append")
]
TERMINAL = {"completed": "ended", "failed": "failed", "cancelled": "failed"}


class System:
    def __init__(self, folder, url, backend="memory://"):
        self.id = folder / "task-id"
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        waited = timedelta(seconds=3) if backend.startswith("redis://") else None
        mcp = FastMCP("peer")
        mcp.add_extension(TasksExtension(url=backend, name=folder.name, redelivery_timeout=waited))

        @mcp.tool(task=True)
        async def job(goal: str) -> str:
            model = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
            messages = [{"role": "user", "content": goal}]
            while True:
                reply = await model.chat.completions.create(model="fake", messages=messages, tools=OFFERED)
                said = reply.choices[0].message
                messages.append(said.model_dump(exclude_none=True))
                if not said.tool_calls:
                    return said.content
                for call in said.tool_calls:
                    step = json.loads(call.function.arguments)["step"]
                    result = await asyncio.to_thread(effect, url, call.function.name, step)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

        self.client = Client(mcp)

    def _go(self, work):
        return self.loop.run_until_complete(work)

    def open(self):
        self._go(self.client.__aenter__())
        return self.look() if self.id.exists() else {"status": "idle"}

    def start(self):
        async def begin():
            task = await call_tool_task(self.client, "job", {"goal": GOAL})
            self.id.write_text(task.task_id)

        self._go(begin())
        return self.look()

    def look(self):
        if not self.id.exists():
            return {"status": "idle"}

        async def watch():
            for _ in range(150):
                told = await _send_get(self.client.session, self.id.read_text())
                if told.status in TERMINAL:
                    return {"status": TERMINAL[told.status]}
                await asyncio.sleep(0.1)
            return {"status": "idle"}

        return self._go(watch())

    def resume(self):
        self.id.unlink(missing_ok=True)
        return self.start()
