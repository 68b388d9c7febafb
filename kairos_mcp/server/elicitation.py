"""Dialogs in which the client's user decides: from a row to the protocol's form, and from the reply to a decision.

The same request is pushed (up to 2025-11-25) or part of an InputRequiredResult (2026-07-28).
"""

from __future__ import annotations

import json
from typing import Any, Literal

import mcp_types as wire

from kairos_mcp.app.dialogs import Question, UnsettledCall, UserDecision, UserSettlement
from kairos_mcp.app.runs import RunPurpose
from kairos_mcp.core.text import format_age, make_visible, truncate
from kairos_mcp.models.answers import MAX_FEEDBACK_CHARS
from kairos_mcp.store import settlements
from kairos_mcp.store.approvals import ApprovalRow
from kairos_mcp.views.waiting import format_time


def _form(name: str, choices: list[str], comment: str, about: str) -> dict[str, Any]:
    """A form with a choice and an optional comment."""
    text = {"type": "string", "title": comment.capitalize(), "description": about, "maxLength": MAX_FEEDBACK_CHARS}
    choice = {"type": "string", "title": name.capitalize(), "enum": choices}
    return {"type": "object", "properties": {name: choice, comment: text}, "required": [name]}


FORM = _form("decision", ["deny", "approve"], "feedback", "What the model should know or do instead.")
SETTLE_FORM = _form("settlement", ["leave", "already_done", "reattempt"], "note", "What you saw; the model reads it.")
"""Some clients send the first choice by themselves, and some people the one that is selected: it changes nothing."""

DIGEST_CHARS = 16  # as a terminal shows it; the decision is bound to all of it
GOAL_CHARS = 300  # of the goal in a dialog, beside the preview

Undecided = Literal["unclear", "left", "nobody", "too_soon"]
"""No decision: the form came back without one, the user left the dialog, nobody saw it, or nobody can have read it."""


def make_dialog(purpose: RunPurpose, question: Question) -> wire.ElicitRequest:
    """Make the dialog for a question: the whole change first, then what it is for; and the form."""
    match question:
        case UnsettledCall(tool=tool, path=path):
            form = SETTLE_FORM
            heading = f"Was this call of {tool} carried out? The server ended during it, so nobody knows. Look first."
            origin = f"begun by {purpose.run_id}{_format_place(purpose)} at {path}"
        case ApprovalRow(tool=tool, effect=effect, path=path):
            form = FORM
            heading = f"Permission for {tool} ({effect}):"
            until = format_time(question.expires_at)
            origin = f"asked by {purpose.run_id}{_format_place(purpose)} at {path} until {until}"
    about = f"{origin}{_format_goal(purpose)}\ndigest {question.digest[:DIGEST_CHARS]}"
    shown = question.preview.removesuffix("\n")
    message = f"{heading}\n\n{shown}\n\n{about}"
    return wire.ElicitRequest(params=wire.ElicitRequestFormParams(message=message, requested_schema=form))


def _format_place(purpose: RunPurpose) -> str:
    """How old the run is, and its folder, with hidden characters spelled out."""
    age = f", {format_age(purpose.age_s)} old"
    if purpose.workspace is None:
        return age
    folder, _ = make_visible(purpose.workspace)
    return f"{age}, in {folder},"


def _format_goal(purpose: RunPurpose) -> str:
    """The goal in quotes on a line of its own: it was written by whoever started the run, perhaps a model."""
    if purpose.goal is None:
        return ""
    line = " ".join(purpose.goal.split())
    quoted, _ = make_visible(json.dumps(truncate(line, GOAL_CHARS), ensure_ascii=False))
    whose = "the run" if purpose.mandate is None else f"the mandate {purpose.mandate}"
    return f"\nfor the goal of {whose}, {quoted}"


def read_decision(
    key: str, digest: str, reply: wire.ElicitResult, took_s: float, instant_s: float
) -> UserDecision | UserSettlement | Undecided:
    """What the user decided about the question under `key`, as shown to them (`digest`). A reply that came before
    anybody can have seen the dialog is nobody's decision, and a decline settles nothing."""
    match reply.action, reply.content:
        case "accept" | "decline", _ if took_s < instant_s:
            return "too_soon"
        case "accept", {"settlement": "already_done" | "reattempt" as choice, **rest} if settlements.is_settlement_key(
            key
        ):
            return UserSettlement(choice, digest, _read_comment(rest.get("note")))
        case "accept" | "decline", _ if settlements.is_settlement_key(key):
            return "left"
        case "accept", {"decision": "approve" | "deny" as choice, **rest}:
            return UserDecision(choice, _read_comment(rest.get("feedback")))
        case "decline", _:
            return UserDecision("deny")
        case "cancel", _:
            return "left"
        case _:
            return "unclear"


def _read_comment(comment: object) -> str | None:
    match comment:
        case str() if comment.strip():
            return truncate(comment, MAX_FEEDBACK_CHARS, "… ({left_out} characters left out)")
        case _:
            return None
