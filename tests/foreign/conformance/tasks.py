"""What the scenarios for tasks call: each tool starts a run of ours, so that its task is one of ours.

A script that is written before each start stands in for a model. The tools that the scenarios want to be tasks after a
second wait for less than ours do.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import PlannerRequest, TeamRequest
from kairos_mcp.server.call import TASKS_EXTENSION, ServerCall, WaitPolicy
from kairos_mcp.server.dispatch import client_label, open_call
from kairos_mcp.server.handlers import report_when_at_rest
from kairos_mcp.server.tasks import create_task

POLICY = WaitPolicy(task_s=0.1, settle_s=0.05)
WAIT_S = 45.0
DONE = {"content": "done", "finish": "stop"}
NEEDS_TASKS = {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}
NAME_FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def text_of(text: str) -> wire.CallToolResult:
    return wire.CallToolResult(content=[wire.TextContent(text=text)])


def write_script(call: ServerCall, *turns: dict[str, Any]) -> None:
    script = call.app.settings.script
    assert script is not None
    script.write_text("".join(json.dumps(turn) + "\n" for turn in turns))


async def start(call: ServerCall, *turns: dict[str, Any]) -> str:
    """A run whose model says these turns."""
    write_script(call, *turns)
    request = PlannerRequest("A scenario.", tools=("write_file",))
    return (await call.app.runs.start(request, call.caller, is_another=True)).run_id


def writes(name: str, **where: str) -> dict[str, Any]:
    """A turn that writes a file, which the user has to allow."""
    call = {"name": "write_file", "arguments": {"path": name, "content": "x"}}
    return {"content": "", "tool_calls": [call], **where}


async def greet(_call: ServerCall, params: wire.CallToolRequestParams) -> Any:
    return text_of(f"Hello, {(params.arguments or {}).get('name', '')}!")


async def slow_compute(call: ServerCall, params: wire.CallToolRequestParams) -> Any:
    seconds = (params.arguments or {}).get("seconds", 0)
    run_id = await start(call, {"content": "computed", "finish": "stop", "delay_s": seconds})
    return await report_when_at_rest(call, run_id, WAIT_S)


async def confirm_delete(call: ServerCall, _params: wire.CallToolRequestParams) -> Any:
    """Waits for the user's word about one file."""
    return await report_when_at_rest(call, await start(call, writes("one.txt"), DONE), WAIT_S)


async def multi_input(call: ServerCall, _params: wire.CallToolRequestParams) -> Any:
    """Waits for the user's word about two files, since a team writes them side by side."""
    write_script(call, *(writes(f"{n}.txt", **{"for": f"task-{n}/try-1/round-1"}) for n in (1, 2)), DONE, DONE, DONE)
    tasks = [{"id": name, "agent": "file_manager", "description": name} for name in ("left", "right")]
    plan = {"analysis": "Two files.", "strategy": "decomposed", "tasks": tasks}
    started = await call.app.runs.start(TeamRequest("Two files.", plan, key=secrets.token_hex(4)), call.caller)
    return await report_when_at_rest(call, started.run_id, WAIT_S)


async def failing_job(call: ServerCall, _params: wire.CallToolRequestParams) -> Any:
    """A tool of a run that fails; never without a task."""
    if not call.client.takes_tasks:
        raise MCPError(wire.MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs tasks.", NEEDS_TASKS)
    run_id = await call.app.runs.start_call("read_file", {"path": "there-is-none.txt"}, call.caller)
    return await create_task(call, run_id, attached=False, answered=())


async def protocol_error_job(call: ServerCall, _params: wire.CallToolRequestParams) -> Any:
    created = await create_task(call, await start(call, {"content": "x", "delay_s": 60}), attached=False, answered=())
    task = await call.app.tasks.find(created["taskId"], call.caller)
    await call.app.tasks.end(task, "failed", json.dumps({"code": wire.INTERNAL_ERROR, "message": "It broke."}))
    return created


async def test_tool_with_task(call: ServerCall, params: wire.CallToolRequestParams) -> Any:
    """Asks for a name as tools do that know no tasks, and then becomes one."""
    match (params.input_responses or {}).get("user_name"):
        case wire.ElicitResult(content={"name": name}):
            run_id = await start(call, {"content": f"Hello, {name}.", "finish": "stop"})
            return await create_task(call, run_id, attached=False, answered=())
        case _:
            form = wire.ElicitRequestFormParams(message="What is your name?", requested_schema=NAME_FORM)
            return wire.InputRequiredResult(input_requests={"user_name": wire.ElicitRequest(params=form)})


HANDLERS = {
    handle.__name__: handle
    for handle in (
        *(greet, slow_compute, confirm_delete, multi_input, failing_job, protocol_error_job, test_tool_with_task),
    )
}
TOOLS = [wire.Tool(name=name, description=name, input_schema={"type": "object"}) for name in HANDLERS]


async def call_tool(get_app: Callable[[], Awaitable[App]], ctx: Any, params: wire.CallToolRequestParams) -> Any:
    """Carry out one of the tools, as our dispatch carries out ours."""
    app = await get_app()
    async with open_call(ctx, app, POLICY, client_label(ctx, app.redactor)) as call:
        return await HANDLERS[params.name](call, params)
