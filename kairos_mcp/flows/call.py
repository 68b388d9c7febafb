"""A run that is one call of one tool, under the same gate, budget and record as a call inside a loop."""

from __future__ import annotations

from kairos_mcp.core.messages import JsonObject, ToolCall, ToolResult
from kairos_mcp.core.outcome import Outcome, make_outcome
from kairos_mcp.core.steps import CallTool, Flow, Refused

VERSION = 1
CALL_PATH = "call-1"


def single_call(name: str, arguments: JsonObject) -> Flow[Outcome]:
    """Call the tool once. The run's output is `{content, is_error, data?, remark?}`."""
    match (yield from CallTool(CALL_PATH, ToolCall(CALL_PATH, name, arguments))):
        case ToolResult() as result:
            output: JsonObject = {"content": result.content, "is_error": result.is_error}
            if result.data is not None:
                output["data"] = result.data
            if result.remark is not None:
                output["remark"] = result.remark
            return make_outcome("assistant_stop", None, output)
        case Refused(limit=limit):
            return make_outcome("budget", f"The call was not made: the limit on {limit} is reached.", None)
        case _:
            return make_outcome("unknown_outcome", "The call was begun; its end is not known.", None)
