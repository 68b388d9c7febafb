"""pydantic-ai with Restate: a workflow, completions and tools as steps, a promise for the approval.

Its server lives through all kills, as a database does, and calls again what it lost sight of. What dies is the process
that serves the workflow, at an address that is the case's for good.
"""

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits
from restate.ext.pydantic import RestateAgent, restate_context
from tools import GOAL, effect

NOT_READY = 470


def request(url, body=None, method="POST"):
    """Return the status and what was answered."""
    data, headers = (None, {}) if body is None else (json.dumps(body).encode(), {"content-type": "application/json"})
    asked = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=30) as reply:
            return reply.status, json.loads(reply.read() or "null")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class System:
    def __init__(self, folder, url, ingress, admin):
        self.admin, self.name = admin, folder.name.replace("+", "_").replace(".", "_")
        self.workflow = f"{ingress}/{self.name}/job"
        self.output = f"{ingress}/restate/workflow/{self.name}/job/output"
        self.known, self.begun = folder / "port", folder / "begun"
        model = OpenAIChatModel("fake", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
        agent = Agent(model, name="peer")

        def act(name, step):
            return restate_context().run_typed(name, effect, url=url, name=name, step=step)

        @agent.tool_plain(sequential=True)  # steps that begin at once have no order that a replay could follow
        async def read(step: int) -> str:
            """Read."""
            return await act("read", step)

        @agent.tool_plain(sequential=True)
        async def append(step: int) -> str:
            """Append."""
            return await act("append", step)

        @agent.tool_plain(sequential=True)
        async def approved_append(step: int) -> str:
            """Append, once a person has approved it."""
            context = restate_context()
            context.set("asks", True)
            decision = await context.promise("decision", type_hint=str).value()
            return await act("approved_append", step) if decision == "approve" else "denied"

        durable = RestateAgent(agent)
        job = restate.Workflow(self.name)

        @job.main()
        async def run(ctx: restate.WorkflowContext, goal: str) -> str:
            result = await durable.run(goal, usage_limits=UsageLimits(request_limit=None))
            return str(result.output)

        @job.handler()
        async def decide(ctx: restate.WorkflowSharedContext, decision: str) -> None:
            await ctx.promise("decision", type_hint=str).resolve(decision)

        @job.handler()
        async def asks(ctx: restate.WorkflowSharedContext) -> bool:
            is_decided = await ctx.promise("decision", type_hint=str).peek() is not None
            return bool(await ctx.get("asks", type_hint=bool)) and not is_decided

        self.app = restate.app([job])

    def open(self):
        is_new = not self.known.exists()
        if is_new:
            with socket.socket() as found:
                found.bind(("127.0.0.1", 0))
                self.known.write_text(str(found.getsockname()[1]))
        port = int(self.known.read_text())
        threading.Thread(target=self._serve, args=[port], daemon=True).start()
        deadline = time.monotonic() + 10
        while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < deadline:
            time.sleep(0.005)
        if is_new:
            request(f"{self.admin}/deployments", {"uri": f"http://127.0.0.1:{port}"})
        return self.look()

    def _serve(self, port):
        config = Config()
        config.bind = [f"127.0.0.1:{port}"]
        asyncio.run(serve(self.app, config, shutdown_trigger=asyncio.Event().wait))

    def _quiet(self):
        """Look until the workflow has ended or asks."""
        while True:
            status, told = request(self.output, method="GET")
            if status == 200:
                return {"status": "ended"}
            if status != NOT_READY:
                return {"status": "failed", "error": f"{status}: {told}"}
            if request(f"{self.workflow}/asks")[1] is True:
                return {"status": "waiting"}
            time.sleep(0.03)

    def start(self):
        request(f"{self.workflow}/run/send", GOAL)
        self.begun.touch()
        return self._quiet()

    def look(self):
        return self._quiet() if self.begun.exists() else {"status": "idle"}

    def resume(self):
        return self.look() if self.begun.exists() else self.start()

    def answer(self, decision):
        request(f"{self.workflow}/decide", decision)
        return self._quiet()
