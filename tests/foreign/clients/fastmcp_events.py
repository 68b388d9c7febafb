"""Events through fastmcp's client. No published version has methods for them, so it sends the requests as they are."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import mcp_types as wire
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from mcp.client.extension import ClientExtension, NotificationBinding
from pydantic import ConfigDict, TypeAdapter

JOB = json.loads(sys.argv[1])
ANY: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


class Asked(wire.Request[dict[str, Any], str]):
    pass


class Told(wire.NotificationParams):
    model_config = ConfigDict(extra="allow")


class Events(ClientExtension):
    identifier = "io.modelcontextprotocol/events"

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()

    def notifications(self) -> list[NotificationBinding[Any]]:
        def binding(name: str) -> NotificationBinding[Any]:
            async def keep(told: Told) -> None:
                self.told.put_nowait((name, told.model_dump(by_alias=True)))

            return NotificationBinding(method=f"notifications/events/{name}", params_type=Told, handler=keep)

        return [binding(name) for name in ("active", "event")]


async def end_run(client: Client[Any]) -> str:
    started = await client.call_tool("planner_run", {"goal": "wait", "route": "caller", "wait_s": 0})
    run_id = str(started.structured_content["run_id"])
    await client.call_tool("run_control", {"run_id": run_id, "action": "cancel"})
    return run_id


async def main() -> None:
    events = Events()
    async with asyncio.timeout(60), Client(StreamableHttpTransport(JOB["url"]), extensions=[events]) as client:

        async def ask(method: str, **params: Any) -> dict[str, Any]:
            return await client.session.send_request(Asked(method=f"events/{method}", params=params), ANY)

        listed = [each["name"] for each in (await ask("list"))["events"]]
        start = await ask("poll", name="run.ended", arguments={})
        runs = [await end_run(client)]
        page = await ask("poll", name="run.ended", cursor=start["cursor"])
        stream = asyncio.create_task(ask("stream", name="run.ended", cursor=page["cursor"]))
        active = await events.told.get()
        runs.append(await end_run(client))
        streamed = await events.told.get()
        stream.cancel()
    print(json.dumps({"listed": listed, "runs": runs, "polled": page["events"], "told": [active, streamed]}))


asyncio.run(main())
