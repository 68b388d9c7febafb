"""A client that takes tasks, in process or over a real transport: its calls, its polls, what it was notified of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as wire
from mcp.client.client import Client
from mcp.client.extension import ClientExtension, NotificationBinding
from pydantic import ConfigDict, TypeAdapter

from kairos_mcp.app.app import App
from kairos_mcp.server.call import DEFAULT_WAIT_POLICY, TASKS_EXTENSION, WaitPolicy
from kairos_mcp.server.mcp_server import build_server
from support.sampling_clients import WITHIN_S, provide_app

PLAIN: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
ENDED = ("completed", "failed", "cancelled")
AT_ONCE = WaitPolicy(task_s=0.0, settle_s=0.05, instant_s=0.0)


class TaskRequest(wire.Request[dict[str, Any], str]):
    """A request of the extension, with the header by which HTTP routes it."""

    name_param = "taskId"


class Notified(wire.NotificationParams):
    """What a notification of the extension says."""

    model_config = ConfigDict(extra="allow")


class TasksExtension(ClientExtension):
    """Declares the extension, and keeps what its notifications say."""

    identifier = TASKS_EXTENSION

    def __init__(self) -> None:
        self.notified: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def notifications(self) -> list[NotificationBinding[Any]]:
        return [NotificationBinding(method="notifications/tasks", params_type=Notified, handler=self._keep)]

    async def _keep(self, notified: Notified) -> None:
        self.notified.put_nowait(notified.model_dump(by_alias=True))


class PlainRequest(wire.Request[dict[str, Any], str]):
    """Any request, whose result is taken as it comes."""


@dataclass
class TaskClient:
    """A connected client that declares tasks, or not, and what it was notified of: of tasks, and of all else."""

    client: Client
    extension: TasksExtension = field(default_factory=TasksExtension)
    others: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        kind = TaskRequest if method.startswith("tasks/") else PlainRequest
        async with asyncio.timeout(WITHIN_S):
            return await self.client.session.send_request(kind(method=method, params=params), PLAIN)

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a call: a result, or a task."""
        return await self.send("tools/call", name=name, arguments=arguments)

    async def begin_task(self, name: str, **arguments: Any) -> str:
        """The id of the task that a call is answered with."""
        created = await self.call(name, **arguments)
        assert created["resultType"] == "task", created
        assert not {"result", "error", "inputRequests", "requestState"} & created.keys()
        return str(created["taskId"])

    async def get(self, task_id: str) -> dict[str, Any]:
        return await self.send("tasks/get", taskId=task_id)

    async def update(self, task_id: str, responses: Mapping[str, Any]) -> None:
        """Answer what the task asks; nothing is told of it but that it was taken."""
        taken = await self.send("tasks/update", taskId=task_id, inputResponses=dict(responses))
        assert set(taken) <= {"resultType", "_meta"}

    async def cancel(self, task_id: str) -> None:
        taken = await self.send("tasks/cancel", taskId=task_id)
        assert set(taken) <= {"resultType", "_meta"}

    @asynccontextmanager
    async def subscribe(self, *task_ids: str, **more: Any) -> AsyncIterator[asyncio.Queue[dict[str, Any]]]:
        """What is notified about these tasks while the block lasts. `more`: what else is subscribed to."""
        params = {"notifications": {"taskIds": list(task_ids), **more}}
        wanted = PlainRequest(method="subscriptions/listen", params=params)
        stream = asyncio.create_task(self.client.session.send_request(wanted, PLAIN))
        try:
            yield self.extension.notified
        finally:
            stream.cancel()
            await asyncio.wait([stream])

    async def until(self, task_id: str, *statuses: str) -> dict[str, Any]:
        """The task, once it has one of these statuses."""
        async with asyncio.timeout(WITHIN_S):
            while (task := await self.get(task_id))["status"] not in statuses:
                assert task["status"] not in ENDED, task
                await asyncio.sleep(0.02)
            return task

    async def wait_for_result(self, task_id: str) -> dict[str, Any]:
        """The structured result of a task that completes."""
        task = await self.until(task_id, *ENDED)
        assert task["status"] == "completed", task
        return dict(task["result"]["structuredContent"])


async def _nobody(*_: object) -> Any:
    raise AssertionError("a client that takes tasks is asked through them alone")


@asynccontextmanager
async def task_client(
    transport: Any, *, samples: bool = False, elicits: bool = False, tasks: bool = True, client: str = "a client 1"
) -> AsyncIterator[TaskClient]:
    """A client of 2026-07-28 over this transport, or of this server. `client`: its name and version."""
    extension, others = TasksExtension(), asyncio.Queue[Any]()

    async def keep(message: object) -> None:
        others.put_nowait(message)

    name, _, version = client.rpartition(" ")
    connection = Client(
        transport,
        mode="auto",
        client_info=wire.Implementation(name=name, version=version),
        sampling_callback=_nobody if samples else None,
        elicitation_callback=_nobody if elicits else None,
        extensions=[extension] if tasks else None,
        message_handler=keep,
    )
    async with connection:
        yield TaskClient(connection, extension, others)


@asynccontextmanager
async def task_client_of(app: App, policy: WaitPolicy = DEFAULT_WAIT_POLICY, **ways: Any) -> AsyncIterator[TaskClient]:
    """The same of a server on this app."""
    async with task_client(build_server(provide_app(app), app.settings, policy), **ways) as client:
        yield client
