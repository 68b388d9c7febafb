"""Answer one tool call: check its arguments, call its handler, and turn every failure into a result.

Imported at the first call, with everything that a call needs and the listing does not.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from kairos_mcp.core import redact_values
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.text import nearest_names
from kairos_mcp.server.arguments.runs import RunStatus
from kairos_mcp.server.call import ClientCapabilities, ServerCall, WaitPolicy
from kairos_mcp.server.client_requests import take_responses
from kairos_mcp.server.handlers import HANDLERS, Result, start_run
from kairos_mcp.server.log_messages import CallLog, open_log
from kairos_mcp.server.progress import progress_reporter
from kairos_mcp.server.request_state import ResumedRequest
from kairos_mcp.server.results import error_result
from kairos_mcp.server.sender import current_principal, has_scope
from kairos_mcp.server.tools import TOOLS
from kairos_mcp.server.validation import validate_arguments
from kairos_mcp.specs.build import may_use_sampling

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from pydantic import BaseModel

    from kairos_mcp.app.app import App
    from kairos_mcp.views.progress import Heartbeat

log = logging.getLogger(__name__)

TOOLS_BY_NAME = {tool.name: tool for tool in TOOLS}  # a tool that is not listed may still be called


class InternalError(KairosError):
    """A bug of this program. The client learns no more; the log has the rest."""

    code = "internal_error"


async def dispatch(
    ctx: ServerRequestContext[Any],
    params: wire.CallToolRequestParams,
    get_app: Callable[[], Awaitable[App]],
    policy: WaitPolicy,
) -> Result:
    """The result of a call, an error's as well. Raises MCPError for a tool that does not exist."""
    tool = TOOLS_BY_NAME.get(params.name)
    if tool is None:
        near = ", ".join(nearest_names(params.name, list(TOOLS_BY_NAME)))
        raise MCPError(wire.INVALID_PARAMS, f"Unknown tool. The nearest of this server: {near}.")
    try:
        arguments = validate_arguments(tool.arguments, params.arguments)
        resumed, app = ResumedRequest.from_sealed(params.request_state), await get_app()
        route = getattr(arguments, "route", None) or "auto"
        label, named = client_label(ctx, app.redactor), _named_runs(arguments, resumed)
        async with open_call(ctx, app, policy, label, route, resumed, named) as opened:
            call = opened
            if resumed is not None and not await take_responses(call, resumed, params.input_responses):
                call = replace(call, client=replace(call.client, refused=True))
            return await HANDLERS.get(tool.name, start_run)(call, arguments)
    except KairosError as error:
        app = await get_app()
        return error_result(error, app.redactor, lambda text: app.complete_commands(text, Caller(current_principal())))
    except Exception:
        log.exception("%s failed", tool.name)
        hint = "Runs are kept: run_status shows their status. The server's stderr says what went wrong."
        return error_result(InternalError("Something went wrong inside the server.", hint), Redactor())


@asynccontextmanager
async def open_call(
    ctx: ServerRequestContext[Any],
    app: App,
    policy: WaitPolicy,
    label: str,
    route: str = "auto",
    resumed: ResumedRequest | None = None,
    run_ids: Collection[str] = (),
) -> AsyncIterator[ServerCall]:
    """A call by the client of this label, as whoever sent the message, while the block lasts. `route`: as requested.
    `run_ids`: the runs that it names."""
    client, principal = ClientCapabilities.from_context(ctx), current_principal()
    session = ctx.lifespan_context.session_of(ctx, principal, label)
    samples = client.samples and may_use_sampling(app.settings, label, route)
    decides = has_scope("approve")
    caller = Caller(
        principal,
        client=label,
        samples=samples,
        elicits=client.elicits and decides,
        decides=decides,
        session=session.id,
    )
    call_log = await open_log(ctx, app, caller, run_ids) if wire.LOG_LEVEL_META_KEY in (ctx.meta or {}) else None
    skipped = set(() if resumed is None else resumed.skipped)
    app.watcher.wake()
    async with nullcontext() if client.modern else session.open_tasks() as tasks:
        on_heartbeat = _beat_reporter(ctx, call_log)
        yield ServerCall(app, caller, client, resumed, on_heartbeat, policy, session, tasks, skipped, call_log)
        if call_log is not None:
            await call_log.send_news()


def _beat_reporter(
    ctx: ServerRequestContext[Any], call_log: CallLog | None
) -> Callable[[Heartbeat], Awaitable[None]] | None:
    """What takes the heartbeats of the call's run: the client's progress and its log, as far as it asked for them."""
    wants_progress = ctx.meta is not None and ctx.meta.get("progress_token") is not None
    report_progress = progress_reporter(ctx.session.report_progress) if wants_progress else None
    if call_log is None:
        return report_progress

    async def on_heartbeat(beat: Heartbeat) -> None:
        if report_progress is not None:
            await report_progress(beat)
        await call_log.send_news()

    return on_heartbeat


def _named_runs(arguments: BaseModel, resumed: ResumedRequest | None) -> list[str]:
    """The runs that a call names, by its arguments or by the state that it brings."""
    if resumed is not None:
        return [resumed.run_id]
    if isinstance(arguments, RunStatus):
        return arguments.named_runs
    named: str | None = getattr(arguments, "run_id", None)
    return [] if named is None else [named]


def client_label(ctx: ServerRequestContext[Any], redactor: Redactor) -> str:
    """The client's name and version as it states them: a label for the record, trusted for nothing."""
    params = ctx.session.client_params
    if params is None:
        return ""
    return redact_values.redact_label(f"{params.client_info.name} {params.client_info.version}", redactor)
