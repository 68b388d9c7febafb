"""From what the host reports to what a client is sent: structured content and a text that says the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import mcp_types as wire
from pydantic_core import to_json

from kairos_mcp.server import lines
from kairos_mcp.server.truncation import RESULT_CHARS, fit_result, with_whole_output
from kairos_mcp.specs.load_ooda import phase_of

if TYPE_CHECKING:
    from kairos_mcp.core.errors import KairosError
    from kairos_mcp.core.messages import JsonObject
    from kairos_mcp.core.redaction import Redactor
    from kairos_mcp.views.run_report import RunReport

NEWEST = 10  # runs that run_status shows when none is named: so many rows fit a result
LEAST_CHARS = 1_100  # what one run among several has at least


def run_result(report: RunReport, *, steered: bool = False) -> wire.CallToolResult:
    """One run. Where it is a single tool's call, the protocol's mark of an error is that call's; not where the run was
    `steered`, since it was the steering that was called."""
    whole = report.as_json()
    body = with_whole_output(whole) if phase_of(report.flow) is not None else fit_result(whole)
    called = report.flow == "call" and not steered and isinstance(report.output, dict)
    failed = called and report.output.get("is_error") is True
    return _result(body, lines.run_text(body), is_error=failed)


def runs_result(reports: Sequence[RunReport], *, brief: bool = False, elsewhere: int = 0) -> wire.CallToolResult:
    """Several runs: whole, or `brief`, a row each. `elsewhere`: how many there are of workspaces that are not shown."""
    share = max(LEAST_CHARS, RESULT_CHARS // max(1, len(reports)))
    runs = [report.as_row() if brief else fit_result(report.as_json(), share) for report in reports]
    following = next((run["next"] for run in runs if run["next"] is not None), None)
    more: JsonObject = {"elsewhere": elsewhere} if elsewhere else {}
    text = lines.rows_text(runs, following, elsewhere) if brief else lines.runs_text(runs, following)
    return _result({"runs": runs, "next": following, **more}, text)


def plain_result(body: JsonObject) -> wire.CallToolResult:
    """What has a size of its own: the text is the JSON itself."""
    return _result(body, to_json(body).decode())


def error_result(
    error: KairosError, mask: Redactor, worded: Callable[[str], str] = lambda text: text
) -> wire.CallToolResult:
    """A failure as a client is told it: it may repeat words of the call, and those may hold a secret. `worded` makes
    the commands in it ready to paste."""
    body: JsonObject = {
        "code": error.code,
        "message": worded(mask.redact_text(error.message).text),
        "hint": worded(mask.redact_text(error.hint).text),
        "retryable": error.retryable,
    }
    if error.run_id is not None:
        body["run_id"] = error.run_id
    return _result(body, lines.error_text(body), is_error=True)


def _result(body: JsonObject, text: str, *, is_error: bool = False) -> wire.CallToolResult:
    return wire.CallToolResult(
        content=[wire.TextContent(type="text", text=text)], structured_content=body, is_error=is_error
    )
