"""What is said of an event: which run or mandate, in at most 200 characters what happened, and where to look at it."""

from __future__ import annotations

import re

from kairos_mcp.core.calendar import format_timestamp
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import UnknownRun, Unreadable
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcomes import STOP_REASONS, Outcome
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.core.text import truncate
from kairos_mcp.store import approvals, queries
from kairos_mcp.store.accounts import read_account
from kairos_mcp.store.events import EventRow, Position
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session, decode
from kairos_mcp.views.run_log import list_nearly_used
from kairos_mcp.views.words import in_one_line, status_words

TEXT_CHARS = 200
_CURSOR = re.compile(r"-?[0-9]{1,18}\.[0-9]{1,18}")
_GOAL_CHARS = 80
_WAITS = {"settle": "Nobody knows whether a call took effect", "pause": "Paused, until somebody resumes it"}


def describe_event(session: Session, event: EventRow, caller: Caller, page: str | None) -> JsonObject:
    """Return the data of an event as its principal may see it. `page`: where the page for people is, if it is served.

    All of its texts come from rows, where secrets are masked already.
    """
    data: JsonObject = {"run_id": event.run, "mandate_id": event.mandate}
    if event.workspace:
        data["workspace"] = caller.visible_path(event.workspace)
    data |= _about(session, event)
    if event.run is not None:
        data["link"] = f"kairos://runs/{event.run}" if page is None else f"{page}#/runs/{event.run}"
    data["text"] = truncate(in_one_line(data["text"]), TEXT_CHARS - 1)
    return {name: value for name, value in data.items() if value is not None}


def as_occurrence(event: EventRow, data: JsonObject) -> JsonObject:
    """Return an event as the extension for events has it."""
    return {"eventId": event.public_id, "name": event.kind, "timestamp": format_timestamp(event.at), "data": data}


def format_cursor(position: Position) -> str:
    """Return a position as clients carry it."""
    return f"{position.tx}.{position.event}"


def parse_cursor(text: str) -> Position:
    """Return the position in a cursor. Raises ValueError."""
    if _CURSOR.fullmatch(text) is None:
        raise ValueError("no cursor")
    tx, _, event = text.partition(".")
    return Position(int(tx), int(event))


def is_over(session: Session, event: EventRow) -> bool:
    """Whether what waited then waits no more: it was decided, or its run has ended or goes on."""
    if event.kind != "run.waiting" or event.run is None:
        return False
    try:
        run = queries.run_by_id(session, event.run)
    except UnknownRun:
        return True
    if run.outcome is not None or event.key is None:
        return run.outcome is not None or run.paused is None
    waits = approvals.read_waiting_items(session, run.n)
    waiting = {"approval": waits.approvals, "settle": waits.lost_calls}.get(event.what or "", waits.steps)
    return event.key not in waiting


def _about(session: Session, event: EventRow) -> JsonObject:
    """Return what happened, as `text`, and by its parts."""
    if event.kind == "budget.near":
        return _about_limit(session, event)
    if event.run is None:
        return {"text": f"The mandate {event.mandate} is due."}
    try:
        run = queries.run_by_id(session, event.run)
        goal = truncate(decode(Spec, run.spec).goal, _GOAL_CHARS)
        if event.kind == "run.waiting":
            return _about_waiting(session, event, run, goal)
        outcome: Outcome = decode(Outcome, run.outcome or "")
    except (UnknownRun, Unreadable):  # it was removed, or is damaged
        return {"text": "Its run can't be read any more."}
    words = status_words(outcome.status, STOP_REASONS[outcome.stop_reason].words)
    who = f"The mandate {event.mandate}" if event.kind == "mandate.ended" else goal
    text = f"{who}: {words}. {outcome.text}"
    return {"flow": run.flow, "status": outcome.status, "stop_reason": outcome.stop_reason, "text": text}


def _about_waiting(session: Session, event: EventRow, run: RunRow, goal: str) -> JsonObject:
    data: JsonObject = {"flow": run.flow, "what": event.what, "key": event.key, "for": "person"}
    if event.what != "approval":
        return data | {"text": f"{_WAITS[event.what or 'pause']}: {goal}"}
    approval = approvals.find_by_key(session, run.n, event.key or "")
    tool = None if approval is None else approval.tool
    return data | {"tool": tool, "text": f"Waits for your approval of {tool}: {goal}"}


def _about_limit(session: Session, event: EventRow) -> JsonObject:
    try:
        used = list_nearly_used(read_account(session, int(event.key or 0)))
    except Unreadable:  # a removed run's
        used = {}
    limits = {unit: {"used": spent, "limit": cap} for unit, (spent, cap) in used.items()}
    words = ", ".join(f"{spent:g} of {cap:g} {unit}" for unit, (spent, cap) in used.items())
    return {"what": event.what, "limits": limits, "text": f"Most of a limit of the {event.what} is used: {words}"}
