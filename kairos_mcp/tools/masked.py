"""Calls a tool and takes the secrets out of what it gave: in the thread in which it ran, before anything keeps it."""

from __future__ import annotations

from kairos_mcp.core import redact_values
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.tools.around import ToolContext
from kairos_mcp.tools.tool import Tool, call, failed


def masked_call(mask: Redactor, tool: Tool, arguments: JsonObject, around: ToolContext) -> ToolResult:
    """As `call`; its errors are masked as well. What does more than read is not called, but raises, where its run
    belongs to another server by now: it may have waited here for a thread, or while this program was stopped. What
    leaves this program asks once more where it does. A call whose paths lead elsewhere than when it was judged is not
    made either."""
    if tool.spec.effect != "read":
        around.memory.check()
    try:
        if around.check_paths is not None:
            around.check_paths()
    except KairosError as refused:
        return redact_values.result(failed(refused), mask)
    return redact_values.result(call(tool, arguments, around), mask)
