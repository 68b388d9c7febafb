"""An approval as a dialog of the client's: our row as the protocol's form, what its user did as a decision of ours.

The same request object travels as a push (up to 2025-11-25) and inside an InputRequiredResult (2026-07-28).
"""

from __future__ import annotations

import json
from typing import Any, Literal

import mcp_types as wire

from kairos_mcp.hall.asks import UsersWord
from kairos_mcp.hall.looking import Purpose
from kairos_mcp.models.answers import FEEDBACK_CHARS
from kairos_mcp.reports.items import iso
from kairos_mcp.store.approvals import ApprovalRow
from kairos_mcp.visible import made_visible

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "title": "Decision", "enum": ["approve", "deny"]},
        "feedback": {
            "type": "string",
            "title": "Feedback",
            "description": "What the model should know or do instead.",
            "maxLength": FEEDBACK_CHARS,
        },
    },
    "required": ["decision"],
}

GOAL_CHARS = 300  # of the goal in a dialog: it says what for, the preview what

Left = Literal["passed", "nobody"]
"""No decision: the user left the dialog, or nobody was there to see it."""


def request(purpose: Purpose, row: ApprovalRow) -> wire.ElicitRequest:
    """The dialog: what is to be done, whole, what for, and the form."""
    asked = f"asked by {purpose.run_id} at {row.path} until {iso(row.expires_at)}"
    told = f"Leave for {row.tool} ({row.effect}), {asked}{_goal(purpose)}:"
    params = wire.ElicitRequestFormParams(message=f"{told}\n\n{row.preview}", requested_schema=FORM)
    return wire.ElicitRequest(params=params)


def _goal(purpose: Purpose) -> str:
    """The goal in quotes on a line of its own: whoever started the run wrote it, which may have been a model."""
    if purpose.goal is None:
        return ""
    line = " ".join(purpose.goal.split())
    start = line if len(line) <= GOAL_CHARS else f"{line[:GOAL_CHARS]}…"
    quoted, _ = made_visible(json.dumps(start, ensure_ascii=False))
    whose = "the run" if purpose.mandate is None else f"the mandate {purpose.mandate}"
    return f"\nfor the goal of {whose}, {quoted}"


def word(reply: wire.ElicitResult, took_s: float, instant_s: float) -> UsersWord | Left:
    """What the user decided. A form without a decision is none; a decline counts once somebody can have seen it."""
    match reply.action, reply.content:
        case "accept", {"decision": "approve" | "deny" as said, **rest}:
            return UsersWord(said, _feedback(rest.get("feedback")))
        case "decline", _:
            return "nobody" if took_s < instant_s else UsersWord("deny")
        case _:
            return "passed"


def _feedback(given: object) -> str | None:
    match given:
        case str() if given.strip() and len(given) <= FEEDBACK_CHARS:
            return given
        case str() if given.strip():
            return f"{given[:FEEDBACK_CHARS]}… ({len(given) - FEEDBACK_CHARS} characters left out)"
        case _:
            return None
