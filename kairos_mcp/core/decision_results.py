"""What a model gets after a person's decisions about its calls: results in place of their own, and remarks."""

from __future__ import annotations

from dataclasses import replace

from kairos_mcp.core.decision_rights import decision_way
from kairos_mcp.core.errors import Denied
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.tool import error_result, failure_result


def denial_result(tool: str, feedback: str | None) -> ToolResult:
    """Return the result of a call that a person denied, with their comment."""
    comment = f' They say: "{feedback}".' if feedback else ""
    denied = error_result(
        Denied(f"A person denied {tool}; nothing was changed.{comment}", "Do it otherwise, or go on without.")
    )
    return replace(denied, data={**denied.data, "feedback": feedback}) if feedback else denied


def withdrawn_result(before: str) -> ToolResult:
    """Return the result of a call that a person was asked about together with the one at the path `before`, which was
    denied or failed."""
    why = f"Not executed: {before} was denied or failed, and a person was asked about this call together with it."
    return failure_result("cancelled", why, "Call it again if it still makes sense.", retryable=False)


def approval_remark(tool: str, feedback: str | None) -> str | None:
    """Return a person's comment on a call that they approved, as the model is shown it beside the result."""
    return f"A person approved {tool}. They say: {feedback}" if feedback else None


def settlement_result(via: str, note: str | None) -> ToolResult:
    """Return the result of a call that was made before a crash, as somebody says; its real result is not known.

    `via`: how they said it, as the record has it.
    """
    who = "Whoever called this server says" if decision_way(via) == "argument" else "A person looked"
    comment = f" They say: {note}" if note else ""
    return ToolResult(f"The server ended during this call. {who}: it was carried out.{comment}")
