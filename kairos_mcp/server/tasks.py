"""MCP tasks: answer a call with one, and say where it stands.

A task is a call that goes on after its request. It holds nothing that moves: where it stands is found out whenever its
client asks, from the rows of its run, on whatever server; so it survives the server that began it. What it asks of its
client are the requests that an InputRequiredResult would hold. Its result is the call's ordinary one, then stored.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Literal

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from kairos_mcp.core.calendar import format_timestamp
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import count_of
from kairos_mcp.server import client_requests, results
from kairos_mcp.server.call import POLL_MS, ServerCall
from kairos_mcp.server.progress import progress_message

if TYPE_CHECKING:
    from kairos_mcp.app.tasks import Task
    from kairos_mcp.core.already_read import AlreadyRead
    from kairos_mcp.core.messages import JsonObject

log = logging.getLogger(__name__)

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class TaskState:
    """Where a task stands: its status, with the client's requests or the end that belong to it, and a word about it."""

    task: Task
    status: TaskStatus
    message: str = ""
    requests: wire.InputRequests | None = None

    def as_wire(self, ttl_ms: int | None) -> dict[str, Any]:
        """The task as the extension describes it, with all that its status calls for."""
        row = self.task.row
        body: dict[str, Any] = {
            "taskId": self.task.id,
            "status": self.status,
            "createdAt": format_timestamp(row.created_at),
            "lastUpdatedAt": format_timestamp(self.task.updated_at),
            "ttlMs": ttl_ms,
            "pollIntervalMs": POLL_MS,
        }
        if self.message:
            body["statusMessage"] = self.message
        match self.status:
            case "input_required":
                requests = self.requests or {}
                body["inputRequests"] = {
                    key: request.model_dump(by_alias=True, mode="json", exclude_none=True)
                    for key, request in requests.items()
                }
            case "completed":
                body["result"] = json.loads(row.result or "{}")
            case "failed":
                body["error"] = json.loads(row.result or "{}")
            case _:
                pass
        return body


async def create_task(call: ServerCall, run_id: str, *, attached: bool, read: AlreadyRead) -> dict[str, Any]:
    """Answer a call with a task, which is stored before the client hears of it."""
    task = await call.app.tasks.create(run_id, read, call.caller, attached=attached)
    state = TaskState(task, "working", await _describe_progress(call, task))
    return {"resultType": "task", **state.as_wire(call.app.tasks.ttl_ms(task))}


async def find_state(call: ServerCall, task: Task) -> TaskState:
    """Find out where a task stands, and end it if its run rests and its client can't be asked for anything.

    `call`: by this principal as the client that made the task's call. Raises the store's errors, PathDenied.
    """
    app, row = call.app, task.row
    if row.ending is not None:
        return TaskState(task, row.ending, _describe_end(task))
    run_id = task.run.id
    (run,) = await app.runs.wait([run_id], until="rest", wait_s=0.0, caller=call.caller)
    await app.tasks.note_look(task, call.caller)
    rests = await app.runs.is_at_rest(run)  # looked at first: what opens afterwards is asked below
    if run.outcome is None:
        if rests:
            app.tasks.check_served(task, call.caller)
        asked = await client_requests.ask_through_task(call, run, row.read.answered, takes_over=row.fetched_at is None)
        await app.tasks.skip(task, call.skipped)
        if isinstance(asked, dict) and asked:
            waits = f"The run waits for {count_of(len(asked), 'answer')} of this client."
            return TaskState(task, "input_required", waits, asked)
        if asked or not rests or app.runs.waits_for_worker(run):
            return TaskState(task, "working", await _describe_progress(call, task))
        if row.on_page and await client_requests.waits_on_page(call, run, row.on_page):
            return TaskState(task, "working", "A person decides on the page.")
    ended = await _end(call, await app.tasks.find(task.id, call.caller))
    return TaskState(ended, ended.row.ending or "working", _describe_end(ended))  # it may have gone on meanwhile


async def _end(call: ServerCall, task: Task) -> Task:
    """End a task with what its call would be answered with now."""
    tasks = call.app.tasks
    if task.was_cancelled:
        return await tasks.end(task, "cancelled")
    try:
        report = await call.app.runs.report(task.run.id, call.caller, attached=task.row.attached, read=task.row.read)
        result = results.run_result(report)
    except KairosError:
        raise  # of the store alone: the task ends once it can be read
    except MCPError as error:
        return await tasks.end(task, "failed", json.dumps(error.error.model_dump(exclude_none=True)))
    except Exception:
        log.exception("the task %s failed", task.id)
        text = "Something went wrong inside the server. The run is kept: run_status shows its status."
        return await tasks.end(task, "failed", json.dumps({"code": wire.INTERNAL_ERROR, "message": text}))
    if (result.structured_content or {}).get("status") == "working":
        return task
    return await tasks.end(task, "completed", result.model_dump_json(by_alias=True, exclude_none=True))


async def _describe_progress(call: ServerCall, task: Task) -> str:
    return progress_message(await call.app.runs.heartbeat(task.run))


def _describe_end(task: Task) -> str:
    """A word about a task that has ended: of a result, what became of the run."""
    match task.row.ending:
        case "failed":
            error: JsonObject = json.loads(task.row.result or "{}")
            return str(error.get("message", ""))
        case "cancelled":
            return "The run was cancelled."
        case _:
            return ""
