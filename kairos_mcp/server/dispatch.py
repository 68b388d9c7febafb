"""One call of a tool: taken apart, checked, carried out, answered; whatever goes wrong has an answer too.

Imported at the first call, and with it everything that a call needs and the listing does not.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from kairos_mcp.core import redact_values
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.identity import Caller
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.server.call import ClientCapabilities, ResumedRequest, ToolRequest
from kairos_mcp.server.client_requests import take
from kairos_mcp.server.handlers import Result
from kairos_mcp.server.patience import WaitPolicy
from kairos_mcp.server.progress import teller
from kairos_mcp.server.results import error_result
from kairos_mcp.server.tools import TOOLS
from kairos_mcp.server.validation import validate_arguments
from kairos_mcp.server.who import principal

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from kairos_mcp.app.app import App

log = logging.getLogger(__name__)

OFFERED = {tool.name: tool for tool in TOOLS}  # what is not listed may still be called


class InternalError(KairosError):
    """A bug of ours: the client learns that and no more, the log has the rest."""

    code = "internal_error"


async def dispatch(
    ctx: ServerRequestContext[Any],
    params: wire.CallToolRequestParams,
    reach: Callable[[], Awaitable[App]],
    patience: WaitPolicy,
) -> Result:
    """The result of a call, an error's as well. Raises MCPError for a tool that does not exist."""
    tool = OFFERED.get(params.name)
    if tool is None:
        raise MCPError(wire.INVALID_PARAMS, f"Unknown tool. This server has: {', '.join(OFFERED)}.")
    try:
        asked = validate_arguments(tool.arguments, params.arguments)
        client, resumed = ClientCapabilities.from_context(ctx), ResumedRequest.from_sealed(params.request_state)
        tell, passed = teller(ctx.session.report_progress), set(() if resumed is None else resumed.passed)
        host = await reach()
        who, label = principal(), _client(ctx, host.mask)
        session = ctx.lifespan_context.session_of(ctx, who, label)
        caller = Caller(who, client=label, samples=client.samples, elicits=client.elicits, session=session.id)
        host.wake()
        async with session.ask_tasks() as tasks:
            call = ToolRequest(host, caller, client, resumed, tell, patience, session, tasks, passed)
            if resumed is not None and not await take(call, resumed, params.input_responses):
                call = replace(call, client=replace(client, refused=True))
            return await tool.handle(call, asked)
    except KairosError as error:
        host = await reach()
        return error_result(error, host.mask, lambda text: host.word_for(text, Caller(principal())))
    except Exception:
        log.exception("%s failed", tool.name)
        said = "Runs are kept: run_status says where they stand. The server's stderr says what broke."
        return error_result(InternalError("Something broke inside the server.", said), Redactor())


def _client(ctx: ServerRequestContext[Any], mask: Redactor) -> str:
    """The client's own name and version, as far as given: a label for the record, trusted for nothing."""
    given = ctx.session.client_params
    return (
        ""
        if given is None
        else redact_values.redact_label(f"{given.client_info.name} {given.client_info.version}", mask)
    )
