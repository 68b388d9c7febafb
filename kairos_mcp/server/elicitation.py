"""What a person decides as a dialog of the client's: our row as the protocol's form, what they did as a decision.

The same request object travels as a push (up to 2025-11-25) and inside an InputRequiredResult (2026-07-28).
"""

from __future__ import annotations

import json
from typing import Any, Literal

import mcp_types as wire

from kairos_mcp.app.client_requests import Question, UnsettledCall, UserDecision, UserSettlement
from kairos_mcp.app.inspect import RunPurpose
from kairos_mcp.core.text import format_age, make_visible, truncate
from kairos_mcp.models.answers import MAX_FEEDBACK_CHARS
from kairos_mcp.store import settlements
from kairos_mcp.store.approvals import ApprovalRow
from kairos_mcp.views.waiting import iso


def _form(name: str, choices: list[str], words: str, about: str) -> dict[str, Any]:
    """A choice, and words that may go with it."""
    text = {"type": "string", "title": words.capitalize(), "description": about, "maxLength": MAX_FEEDBACK_CHARS}
    choice = {"type": "string", "title": name.capitalize(), "enum": choices}
    return {"type": "object", "properties": {name: choice, words: text}, "required": [name]}


FORM = _form("decision", ["approve", "deny"], "feedback", "What the model should know or do instead.")
SETTLE_FORM = _form("settlement", ["leave", "already_done", "reattempt"], "note", "What you saw; the model reads it.")
"""The first choice is the one that some clients send by themselves: it decides nothing."""

GOAL_CHARS = 300  # of the goal in a dialog: it says what for, the preview what

Left = Literal["unclear", "left", "nobody"]
"""No decision: the form came back without one, the user left the dialog, or nobody was there to see it."""


def request(purpose: RunPurpose, question: Question) -> wire.ElicitRequest:
    """The dialog: what it is about, whole, what for, and the form."""
    match question:
        case UnsettledCall(tool=tool, path=path):
            form, began = (
                SETTLE_FORM,
                f"{tool} was begun by {purpose.run_id}{_place(purpose)} at {path}{_goal(purpose)}",
            )
            told = f"{began}\nThe server ended during this call: nobody knows whether it was carried out. Look first."
        case ApprovalRow(tool=tool, effect=effect, path=path):
            form, asked = FORM, f"asked by {purpose.run_id}{_place(purpose)} at {path} until {iso(question.expires_at)}"
            told = f"Leave for {tool} ({effect}), {asked}{_goal(purpose)}:"
    params = wire.ElicitRequestFormParams(message=f"{told}\n\n{question.preview}", requested_schema=form)
    return wire.ElicitRequest(params=params)


def _place(purpose: RunPurpose) -> str:
    """How old the run is, and the folder that it works in, as a path that nothing can hide in."""
    old = f", {format_age(purpose.age_s)} old"
    if purpose.workspace is None:
        return old
    folder, _ = make_visible(purpose.workspace)
    return f"{old}, in {folder},"


def _goal(purpose: RunPurpose) -> str:
    """The goal in quotes on a line of its own: whoever started the run wrote it, which may have been a model."""
    if purpose.goal is None:
        return ""
    line = " ".join(purpose.goal.split())
    quoted, _ = make_visible(json.dumps(truncate(line, GOAL_CHARS), ensure_ascii=False))
    whose = "the run" if purpose.mandate is None else f"the mandate {purpose.mandate}"
    return f"\nfor the goal of {whose}, {quoted}"


def word(
    key: str, digest: str, reply: wire.ElicitResult, took_s: float, instant_s: float
) -> UserDecision | UserSettlement | Left:
    """What the user decided about the question under `key`, as they were shown it (`digest`). What came before anybody
    can have seen it is nobody's; a form without a decision is none; a decline settles nothing."""
    match reply.action, reply.content:
        case "accept" | "decline", _ if took_s < instant_s:
            return "nobody"
        case "accept", {"settlement": "already_done" | "reattempt" as said, **rest} if settlements.is_settlement_key(
            key
        ):
            return UserSettlement(said, digest, _feedback(rest.get("note")))
        case "accept" | "decline", _ if settlements.is_settlement_key(key):
            return "left"
        case "accept", {"decision": "approve" | "deny" as said, **rest}:
            return UserDecision(said, _feedback(rest.get("feedback")))
        case "decline", _:
            return UserDecision("deny")
        case "cancel", _:
            return "left"
        case _:
            return "unclear"


def _feedback(given: object) -> str | None:
    match given:
        case str() if given.strip():
            return truncate(given, MAX_FEEDBACK_CHARS, "… ({left_out} characters left out)")
        case _:
            return None
