"""Dialogs in which the client's user decides: from a row to the protocol's request, and from the reply to a decision.

The same request is pushed (up to 2025-11-25) or part of an InputRequiredResult (2026-07-28).
"""

from __future__ import annotations

import json
import secrets
from typing import Any, Literal

import mcp_types as wire

from kairos_mcp.app.dialogs import Question, UnsettledCall, UserDecision
from kairos_mcp.app.runs import RunPurpose
from kairos_mcp.core.builtin_tools import RUN_COMMAND
from kairos_mcp.core.hidden_text import make_visible
from kairos_mcp.core.text import format_age, truncate
from kairos_mcp.models.answers import MAX_FEEDBACK_CHARS
from kairos_mcp.server import dialog_layout
from kairos_mcp.store import settlements
from kairos_mcp.store.approvals import ApprovalRow, DialogView
from kairos_mcp.store.settlements import SettlementRequest
from kairos_mcp.views.question import part_question

_COMMENTS = {
    "decision": ("feedback", "What the model should know or do instead."),
    "settlement": ("note", "What you saw; the model reads it."),
}
DIGEST_CHARS = 16  # as a terminal shows it; the decision is bound to all of it
GOAL_CHARS = 300  # of the goal in a dialog, beside the preview
ABOUT_LINES = 3  # below the choice some clients keep in sight, and push the message out above

Undecided = Literal["unclear", "left", "nobody", "too_soon", "on_page"]
"""No decision: the form came back without one, the user left the dialog, nobody saw it, nobody can have read it, or the
user went to decide on the page."""


def make_dialog(
    purpose: RunPurpose, question: Question, screen: dialog_layout.Screen
) -> tuple[wire.ElicitRequest, DialogView]:
    """Make the dialog for a question, and say how much of it this screen shows."""
    match question:
        case UnsettledCall(tool=tool):
            name, choices, unseen = "settlement", ["leave", "already_done", "reattempt"], ["leave"]
            heading = f"{tool}: was it carried out? Look first."
        case ApprovalRow(tool=tool, effect=effect):
            name, choices, unseen = "decision", ["deny", "approve"], ["leave", "deny"]
            heading = f"{tool} ({effect})"
    # Some clients send the first choice by themselves, and some people the one that is selected: it changes nothing.
    about = f"digest {question.digest[:DIGEST_CHARS]} · {purpose.run_id}{_format_goal(purpose)}{_format_place(purpose)}"
    about = dialog_layout.cut_to_width(about, ABOUT_LINES * screen.width)
    place = purpose.commands, name, choices, unseen, purpose.page_link
    text = question.preview
    if question.tool == RUN_COMMAND.name:
        shown, _, last = text.rstrip("\n").rpartition("\n")
        text = shown if last.startswith("reads also ") else text  # what every command here reads: no call changes it
    what = part_question(heading, question.tool, text)
    laid_out = dialog_layout.lay_out(dialog_layout.Question(what, about, *place), screen)
    if laid_out.link is not None:
        asks = wire.ElicitRequestURLParams(
            message=laid_out.message, url=laid_out.link, elicitation_id=secrets.token_hex(8)
        )
        return wire.ElicitRequest(params=asks), laid_out.shown
    fields = dict(laid_out.fields)
    *_, decision = fields
    if screen.takes_comments:
        comment, comment_about = _COMMENTS[name]
        fields[comment if decision == name else f"z{comment}"] = {
            "type": "string",
            "title": comment.capitalize(),
            "description": comment_about,
            "maxLength": MAX_FEEDBACK_CHARS,
        }
    form: dict[str, Any] = {"type": "object", "properties": fields, "required": [decision]}
    return wire.ElicitRequest(
        params=wire.ElicitRequestFormParams(message=laid_out.message, requested_schema=form)
    ), laid_out.shown


def _format_place(purpose: RunPurpose) -> str:
    """How old the run is, and its folder, with hidden characters spelled out."""
    age = f", {format_age(purpose.age_s)} old"
    if purpose.workspace is None:
        return age
    folder, _ = make_visible(purpose.workspace)
    return f"{age}, in {folder}"


def _format_goal(purpose: RunPurpose) -> str:
    """The goal in quotes: it was written by whoever started the run, perhaps a model."""
    if purpose.goal is None:
        return ""
    line = " ".join(purpose.goal.split())
    quoted, _ = make_visible(json.dumps(truncate(line, GOAL_CHARS), ensure_ascii=False))
    whose = "for" if purpose.mandate is None else f"for the mandate {purpose.mandate},"
    return f", {whose} {quoted}"


def read_decision(
    key: str, digest: str, shown: DialogView, reply: wire.ElicitResult, took_s: float, instant_s: float
) -> UserDecision | SettlementRequest | Undecided:
    """What the user decided about the question under `key`, as `shown` to them (`digest`). A reply that came before
    anybody can have seen the dialog is nobody's decision, a decline settles nothing, and nobody approves or settles
    what was not shown whole."""
    names = {f"z{name}": name for name in ("decision", "feedback", "settlement", "note")}  # where a z put them last
    content = {names.get(field, field): value for field, value in (reply.content or {}).items()}
    match reply.action, content:
        case "accept" | "decline", _ if took_s < instant_s:
            return "too_soon"
        case "accept", _ if shown.way == "page":
            return "on_page"
        case _ if shown.way == "page":
            return "left"
        case "accept", {"settlement": "already_done" | "reattempt" as choice, **rest} if (
            settlements.is_settlement_key(key) and shown.decides
        ):
            path = key.removesuffix(settlements.KEY_SUFFIX)
            return SettlementRequest(path, choice, _read_comment(rest.get("note")), digest)
        case "accept" | "decline", _ if settlements.is_settlement_key(key):
            return "left"
        case "accept", {"decision": "approve" | "deny" as choice, **rest} if choice == "deny" or shown.decides:
            return UserDecision(choice, _read_comment(rest.get("feedback")), _note_time(shown, took_s))
        case "accept", {"decision": "leave"}:
            return "left"
        case "decline", _:
            return UserDecision("deny", None, _note_time(shown, took_s))
        case "cancel", _:
            return "left"
        case _:
            return "unclear"


def _note_time(shown: DialogView, took_s: float) -> DialogView:
    return shown._replace(open_ms=int(took_s * 1000))


def _read_comment(comment: object) -> str | None:
    match comment:
        case str() if comment.strip():
            return truncate(comment, MAX_FEEDBACK_CHARS, "… ({left_out} characters left out)")
        case _:
            return None
