"""What reports show of a run's calls: the newest ones, and the output of a run that is one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kairos_mcp.core.messages import Completion, JsonObject, ToolCall, ToolResult
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.steps import round_of, turn_of
from kairos_mcp.core.text import truncate
from kairos_mcp.store import queries, report_queries
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session, decode_answer, unreadable

PREVIEW_CHARS = 160
NEWEST_CALLS = 5


class NewestCalls(NamedTuple):
    """The newest answered calls, oldest first; `is_cut`: there are older ones."""

    entries: list[JsonObject]
    is_cut: bool


def newest_calls(session: Session, run: RunRow, limit: int = NEWEST_CALLS, since: int = 0) -> NewestCalls:
    """Return the newest answered calls after the step `since`."""
    rows = report_queries.newest_calls(session, run.n, limit + 1, since)
    return NewestCalls(call_entries(session, run, rows[:limit])[::-1], len(rows) > limit)


def call_entries(session: Session, run: RunRow, rows: Sequence[report_queries.CallRow]) -> list[JsonObject]:
    """Return answered calls as a report shows them.

    Each is {round, name, ok, ms, preview, ref}, and `rule` where a remembered approval let it through.
    """
    turns = {row.path: turn_of(row.path) for row in rows if row.call is None}
    bodies = queries.answer_bodies_at(session, run.n, {turn for turn, _ in turns.values()})
    calls = [row.call or _call_of_turn(bodies.get(turns[row.path][0]), turns[row.path][1]) for row in rows]
    return [_call_entry(row, call.name) for row, call in zip(rows, calls, strict=True)]


def _call_of_turn(body: str | None, number: int) -> ToolCall:
    """Return the call of this number in an encoded turn. Raises Unreadable, also where the turn's row is gone."""
    turn = decode_answer(body) if body is not None else None
    if not isinstance(turn, Completion) or number > len(turn.tool_calls):
        raise unreadable("turn that asks for a call")
    return turn.tool_calls[number - 1]


def _call_entry(row: report_queries.CallRow, name: str) -> JsonObject:
    result = decode_answer(row.body)
    content = result.content if isinstance(result, ToolResult) else f"not executed ({result.kind})"
    entry: JsonObject = {
        "round": round_of(row.path),
        "name": name,
        "ok": isinstance(result, ToolResult) and not result.is_error,
        "ms": row.spent.milliseconds,
        "preview": truncate(content, PREVIEW_CHARS),
        "ref": row.path,
    }
    return entry if row.rule is None else {**entry, "rule": row.rule}


def single_call_output(outcome: Outcome | None) -> Any:
    """Return the output of a single call, `{content, is_error, data?}`; None before the run has ended.

    Where the tool gave no result, the reason stands in the same shape.
    """
    match outcome:
        case None:
            return None
        case Outcome(output=None, stop_reason="budget"):
            message = outcome.text or "A limit refused the call."
            return _failed_output(
                "budget_exhausted", message, "budget_status shows what is left; a person may allow more."
            )
        case Outcome(output=None, stop_reason="cancelled"):
            return _failed_output(
                "cancelled", "The run was cancelled before its call had a result.", "run_trace shows how far it came."
            )
        case Outcome(output=None):
            message = outcome.text or "The call has no result."
            return _failed_output("timeout", message, "Look whether it took effect before you call it again.")
        case _:
            return outcome.output


def _failed_output(code: str, message: str, hint: str) -> dict[str, Any]:
    told = {"code": code, "message": message, "hint": hint, "retryable": False}
    return {"content": f"{message} {hint}", "is_error": True, "data": told}
