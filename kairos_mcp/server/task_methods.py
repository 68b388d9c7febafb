"""The methods of the extension for tasks, tasks/get, tasks/update and tasks/cancel, and the notifications about tasks.

A client sees the tasks of its principal alone; to everybody else they don't exist.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import anyio
import mcp_types as wire
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import KairosError, Stale, UnknownRun
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.server import client_requests
from kairos_mcp.server.call import POLL_MS, TASKS_EXTENSION, ClientCapabilities, ServerCall, WaitPolicy
from kairos_mcp.server.dispatch import open_call
from kairos_mcp.server.sender import current_principal
from kairos_mcp.server.tasks import TaskState, find_state

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.session import ServerSession

    from kairos_mcp.app.app import App
    from kairos_mcp.app.tasks import Task

log = logging.getLogger(__name__)

MAX_WATCHED = 64  # tasks of one subscription; the others are left out of its acknowledgement
_RESPONSE: TypeAdapter[wire.InputResponse] = TypeAdapter(wire.InputResponse)


class TaskNotification(wire.Notification[dict[str, Any], Literal["notifications/tasks"]]):
    """Where a task stands, as tasks/get would say it."""

    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TaskMethods:
    """The handlers of the methods, on the app that `get_app` opens."""

    get_app: Callable[[], Awaitable[App]]
    policy: WaitPolicy

    async def get(self, ctx: ServerRequestContext[Any], task_id: str) -> dict[str, Any]:
        """Answer with where the task stands."""
        async with self._open(ctx, task_id) as (call, task):
            return _wire_state(call, await find_state(call, task))

    async def update(
        self, ctx: ServerRequestContext[Any], task_id: str, responses: Mapping[str, object]
    ) -> dict[str, Any]:
        """Store the client's responses. Those under keys that wait for none are ignored."""
        async with self._open(ctx, task_id) as (call, task):
            asks = () if task.has_ended else await call.app.tasks.open_asks(task, responses)
            expected = {key: _read_response(key, responses[key]) for key, _ in asks}
            await client_requests.take_task_responses(call, [state for _, state in asks], expected)
            await call.app.tasks.skip(task, call.skipped, call.on_page)
        return {}

    async def cancel(self, ctx: ServerRequestContext[Any], task_id: str) -> dict[str, Any]:
        """Cancel the task's run; nothing, where the task has ended."""
        async with self._open(ctx, task_id) as (call, task):
            if task.run.outcome is None and await call.app.tasks.mark_cancelled(task):
                with suppress(Stale):  # the run has ended meanwhile
                    await call.app.control.cancel(task.run.id, call.caller)
        return {}

    @asynccontextmanager
    async def _open(self, ctx: ServerRequestContext[Any], task_id: str) -> AsyncIterator[tuple[ServerCall, Task]]:
        """The task that a request is about, with a call by the client that made it. Raises MCPError for every error."""
        _check_takes_tasks(ctx)
        # HTTP messages are routed by this header. It may be missing: any server on the state folder answers for every
        # task.
        named = None if ctx.request is None else ctx.request.headers.get(MCP_NAME_HEADER)
        if named is not None and decode_header_value(named) != task_id:
            text = f"{MCP_NAME_HEADER} header does not match the request body's 'taskId' parameter"
            raise MCPError(wire.HEADER_MISMATCH, text)
        async with self._as_call(ctx, task_id) as found:
            yield found

    @asynccontextmanager
    async def _as_call(self, ctx: ServerRequestContext[Any], task_id: str) -> AsyncIterator[tuple[ServerCall, Task]]:
        app = await self.get_app()
        try:
            task = await app.tasks.find(task_id, Caller(current_principal()))
            async with open_call(ctx, app, self.policy, task.row.client) as call:
                call.skipped.update(task.row.skipped)
                yield call, task
        except KairosError as error:
            code = wire.INVALID_PARAMS if isinstance(error, UnknownRun) else wire.INTERNAL_ERROR
            raise MCPError(code, app.redactor.redact_text(str(error)).text) from error

    # -- notifications -----------------------------------------------------------------------------------------

    async def listen(
        self, ctx: ServerRequestContext[Any], call_next: CallNext, task_ids: Sequence[str]
    ) -> HandlerResult:
        """Notify the client of these tasks of its own, while the stream lasts, beside what `call_next` notifies of."""
        _check_takes_tasks(ctx)
        known = [task_id for task_id in dict.fromkeys(task_ids) if await self._is_known(task_id)][:MAX_WATCHED]
        session = _AcknowledgingSession(ctx.session, known)
        result: HandlerResult = None
        raised: Exception | None = None
        async with anyio.create_task_group() as group:
            for task_id in known:
                group.start_soon(self._watch, ctx, task_id, session.acknowledged)
            try:
                result = await call_next(replace(ctx, session=cast("ServerSession", session)))
            except Exception as error:  # raised below: a group would wrap it
                raised = error
            group.cancel_scope.cancel()
        if raised is not None:
            raise raised
        return result

    async def _is_known(self, task_id: str) -> bool:
        try:
            await (await self.get_app()).tasks.find(task_id, Caller(current_principal()))
        except UnknownRun:
            return False
        return True

    async def _watch(self, ctx: ServerRequestContext[Any], task_id: str, acknowledged: anyio.Event) -> None:
        """Notify of one task: at once, and then whenever its status or what it asks has changed, until it has ended."""
        await acknowledged.wait()
        last: tuple[object, ...] = ()
        while True:
            try:
                async with self._as_call(ctx, task_id) as (call, task):
                    state = await find_state(call, task)
                    now = (state.status, *sorted(state.requests or ()))
                    if now != last:
                        last = now
                        meta = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
                        note = TaskNotification(params={**_wire_state(call, state), "_meta": meta})
                        await ctx.session.send_notification(cast("wire.ServerNotification", note), ctx.request_id)
                    if state.task.has_ended:
                        return
                    await call.app.client_requests.wait_for_change(task.run.id)
            except MCPError as error:
                if error.error.code == wire.INVALID_PARAMS:
                    return  # its run was removed
                await anyio.sleep(POLL_MS / 1000)  # the store is busy, or gone for a while
            except Exception:
                log.exception("no notifications about %s any more", task_id)
                return


class _AcknowledgingSession:
    """A session whose acknowledgement of a subscription names its tasks too."""

    def __init__(self, session: ServerSession, task_ids: Sequence[str]) -> None:
        self._session = session
        self._task_ids = task_ids
        self.acknowledged = anyio.Event()

    async def send_notification(
        self, notification: wire.ServerNotification, related_request_id: wire.RequestId | None = None
    ) -> None:
        """Send a notification, and note when it was the acknowledgement."""
        match notification:
            case wire.SubscriptionsAcknowledgedNotification(params=params):
                honored = params.notifications.model_copy(update={"taskIds": list(self._task_ids)})
                note = notification.model_copy(update={"params": params.model_copy(update={"notifications": honored})})
                await self._session.send_notification(note, related_request_id)
                self.acknowledged.set()
            case _:
                await self._session.send_notification(notification, related_request_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def _wire_state(call: ServerCall, state: TaskState) -> dict[str, Any]:
    return state.as_wire(call.app.tasks.ttl_ms(state.task))


def _check_takes_tasks(ctx: ServerRequestContext[Any]) -> None:
    """Raise MCPError unless the client declared the extension with this very request."""
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(wire.METHOD_NOT_FOUND, "Method not found", ctx.method)  # older ones have tasks of another kind
    if not ClientCapabilities.from_context(ctx).takes_tasks:
        raise MCPError(
            wire.MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"Tasks need the extension {TASKS_EXTENSION} among the client's capabilities.",
            {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}},
        )


def _read_response(key: str, response: object) -> wire.InputResponse:
    try:
        return _RESPONSE.validate_python(response, by_name=False)
    except ValidationError:
        raise MCPError(wire.INVALID_PARAMS, f"The response under {key!r} doesn't answer what was asked.") from None
