"""Answer one tool call: check its arguments, call its handler, and turn every failure into a result.

Imported at the first call, with everything that a call needs and the listing does not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from kairos_mcp.core import redact_values
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.identity import Caller
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.text import nearest_names
from kairos_mcp.server.call import ClientCapabilities, ResumedRequest, ServerCall, WaitPolicy, current_principal
from kairos_mcp.server.client_requests import take_responses
from kairos_mcp.server.handlers import Result
from kairos_mcp.server.results import error_result
from kairos_mcp.server.tools import TOOLS
from kairos_mcp.server.validation import validate_arguments
from kairos_mcp.specs.build import may_use_sampling

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from kairos_mcp.app.app import App
    from kairos_mcp.views.progress import Heartbeat

log = logging.getLogger(__name__)

BEAT_S = 1.0
ReportProgress = Callable[[float, float | None, str | None], Awaitable[None]]

TOOLS_BY_NAME = {tool.name: tool for tool in TOOLS}  # a tool that is not listed may still be called


class InternalError(KairosError):
    """A bug of this program. The client is told no more than that; the log has the rest."""

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
        client, resumed = ClientCapabilities.from_context(ctx), ResumedRequest.from_sealed(params.request_state)
        on_beat = progress_reporter(ctx.session.report_progress)
        skipped = set(() if resumed is None else resumed.skipped)
        app = await get_app()
        principal, label = current_principal(), _client_label(ctx, app.redactor)
        session = ctx.lifespan_context.session_of(ctx, principal, label)
        route = getattr(arguments, "route", None) or "auto"
        samples = client.samples and may_use_sampling(app.settings, label, route)
        caller = Caller(principal, client=label, samples=samples, elicits=client.elicits, session=session.id)
        app.wake()
        async with session.open_tasks() as tasks:
            call = ServerCall(app, caller, client, resumed, on_beat, policy, session, tasks, skipped)
            if resumed is not None and not await take_responses(call, resumed, params.input_responses):
                call = replace(call, client=replace(client, refused=True))
            return await tool.handle(call, arguments)
    except KairosError as error:
        app = await get_app()
        return error_result(error, app.redactor, lambda text: app.complete_commands(text, Caller(current_principal())))
    except Exception:
        log.exception("%s failed", tool.name)
        hint = "Runs are kept: run_status shows their status. The server's stderr says what went wrong."
        return error_result(InternalError("Something went wrong inside the server.", hint), Redactor())


def _client_label(ctx: ServerRequestContext[Any], redactor: Redactor) -> str:
    """The client's name and version as it states them: a label for the record, trusted for nothing."""
    params = ctx.session.client_params
    if params is None:
        return ""
    return redact_values.redact_label(f"{params.client_info.name} {params.client_info.version}", redactor)


def progress_reporter(report: ReportProgress) -> Callable[[Heartbeat], Awaitable[None]]:
    """A function that takes a run's heartbeats and reports progress to the client.

    A new round is reported at once, further beats at most once a second. Progress in round 3 is 2.5, 2.67, 2.75 and so
    on: the protocol wants each number larger than the last, and none may pass the total.
    """
    newest, beats, reported_at = -1, 0, 0.0

    async def on_beat(beat: Heartbeat) -> None:
        nonlocal newest, beats, reported_at
        now = time.monotonic()
        if beat.round > newest:
            newest, beats = beat.round, 0
        elif now - reported_at < BEAT_S:
            return
        beats, reported_at = beats + 1, now
        await report(newest - 1 / (beats + 1), beat.rounds, progress_message(beat))

    return on_beat


def progress_message(beat: Heartbeat) -> str:
    """`round 3/12 · search_files · $0.04`; without a price if it costs nothing."""
    price = f"${beat.nano_usd / 10**9:.2f}" if beat.nano_usd else ""
    return " · ".join(part for part in (beat.place, beat.text, price) if part)
