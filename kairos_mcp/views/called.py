"""What a run of one call gives back: the tool's result; or, where no tool gave one, the failure in the same shape."""

from __future__ import annotations

from typing import Any

from kairos_mcp.core.outcome import Outcome


def output_of(outcome: Outcome | None) -> Any:
    """`{content, is_error, data?}` once the run has ended, whatever ended it; None before."""
    match outcome:
        case None:
            return None
        case Outcome(output=None, stop_reason="budget", summary=summary):
            message = summary or "A limit refused the call."
            return _failed_output(
                "budget_exhausted", message, "budget_status shows what is left; a person may allow more."
            )
        case Outcome(output=None, stop_reason="cancelled"):
            return _failed_output(
                "cancelled", "The run was cancelled before its call had a result.", "run_trace shows how far it came."
            )
        case Outcome(output=None):
            message = outcome.summary or "The call has no result."
            return _failed_output("timeout", message, "Look whether it took effect before you call it again.")
        case _:
            return outcome.output


def _failed_output(code: str, message: str, hint: str) -> dict[str, Any]:
    told = {"code": code, "message": message, "hint": hint, "retryable": False}
    return {"content": f"{message} {hint}", "is_error": True, "data": told}
