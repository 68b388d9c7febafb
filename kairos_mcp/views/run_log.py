"""Log a run for a client: what has changed since it was last seen, as entries with a level and data.

An entry is something to act on, or a likely reason of something later: a run waits for a person, is stalled, tried
again, has used up most of a limit, has ended. Progress messages say how far it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Literal, NamedTuple

from kairos_mcp.budget.reservation import Account
from kairos_mcp.core.calendar import format_timestamp
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import Unreadable
from kairos_mcp.core.limits import CAPS
from kairos_mcp.core.limits_table import limits_to_json
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcomes import STOP_REASONS, EndStatus, Outcome
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.core.text import truncate
from kairos_mcp.store import queries, settlements
from kairos_mcp.store.accounts import read_account
from kairos_mcp.store.approvals import WaitingItems
from kairos_mcp.store.client_completions import WITHDRAWN
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session, decode
from kairos_mcp.views.run_report import GOAL_CHARS
from kairos_mcp.views.waiting import decision_command
from kairos_mcp.views.words import status_words

LogLevel = Literal["info", "notice", "warning", "error"]
LogName = Literal["kairos.run", "kairos.approval", "kairos.budget"]
NEAR_END = 0.9  # of a limit: from here on it is told
_NO_FAILURE = (queries.WAITED, WITHDRAWN)  # nothing was tried, or a client has gone: its next call asks again
_END_LEVELS: Mapping[EndStatus, LogLevel] = {
    "completed": "info",
    "stopped": "notice",
    "cancelled": "notice",
    "failed": "error",
}


class LogEntry(NamedTuple):
    """One line of the log. `data` says what happened as `event`, which run it befell, and in `message` all in words."""

    level: LogLevel
    logger: LogName
    data: JsonObject


@dataclass(frozen=True, slots=True)
class RunSight:
    """What a log looks at in a run. `waiting`: what a person decides, by key; for an approval the tool's name, for a
    call of unknown outcome None. `repeated`: how attempts ended after which the step was tried again, in order.
    `nearly_used`: what was used of a limit, and the limit, by unit, where most of it is gone."""

    run: RunRow
    goal: str
    outcome: Outcome | None = None
    waiting: Mapping[str, str | None] = field(default_factory=dict)
    repeated: tuple[str, ...] = ()
    nearly_used: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def see_run(session: Session, run: RunRow, waits: WaitingItems) -> RunSight:
    """Look at a run. What of it can't be read is not seen."""
    try:
        outcome: Outcome | None = None if run.outcome is None else decode(Outcome, run.outcome)
        goal = truncate(decode(Spec, run.spec).goal, GOAL_CHARS - 1)
        waiting: dict[str, str | None] = {key: row.tool for key, row in waits.approvals.items()}
        waiting |= dict.fromkeys(path + settlements.KEY_SUFFIX for path in waits.lost_calls)
        nearly_used = list_nearly_used(read_account(session, run.account))
        repeated = tuple(
            row.ended
            for row in queries.list_attempts(session, run.n)
            if row.ended not in _NO_FAILURE and not row.waits_outside
        )
    except Unreadable:
        return RunSight(run, "")
    return RunSight(run, goal, outcome, waiting, repeated, nearly_used)


def list_nearly_used(account: Account) -> dict[str, tuple[float, float]]:
    """What was used of each limit of which most is gone, and the limit, by the users' names. Rounds are left out:
    progress counts them."""
    spent, caps = limits_to_json(account.spent), limits_to_json(account.caps)
    found: dict[str, tuple[float, float]] = {}
    for name in CAPS:
        used, cap = spent[name], caps[name]
        if name != "rounds" and used and cap is not None and used >= NEAR_END * cap:
            found[name] = (used, cap)
    return found


def log_entries(before: RunSight | None, now: RunSight, caller: Caller) -> Iterator[LogEntry]:
    """Yield what happened to a run from one sight to the next; `before` None: it had not begun."""
    run, seen = now.run, before or RunSight(now.run, now.goal)
    about: JsonObject = {"run_id": run.id, "goal": now.goal}
    if run.workspace:
        about["workspace"] = caller.visible_path(run.workspace)
    for reason in now.repeated[len(seen.repeated) :]:
        text = f"A step of {run.id} is tried again; the attempt before it ended as {reason}."
        yield LogEntry("info", "kairos.run", _data("step_repeated", text, about, reason=reason))
    for unit, (used, limit) in now.nearly_used.items():
        if unit not in seen.nearly_used:
            yield budget_entry(unit, used, limit, f"{run.id} has", about)
    if now.outcome is not None and seen.outcome is None:
        yield _end_entry(now.outcome, run, about)
        return
    for key, tool in now.waiting.items():
        if key not in seen.waiting:
            yield _waiting_entry(run, key, tool, about)
    was_paused = before is not None and seen.run.paused is not None
    if run.paused is not None and (not was_paused or seen.run.resume_at != run.resume_at):
        yield _pause_entry(run, about)
    elif run.paused is None and was_paused:
        yield LogEntry("info", "kairos.run", _data("run_resumed", f"{run.id} goes on.", about))


def budget_entry(unit: str, used: float, limit: float, whose: str, about: JsonObject) -> LogEntry:
    """Say that most of a limit is used. `whose` opens the sentence: `run-1 has`."""
    text = f"{whose} used {used:g} of {limit:g} {unit}."
    return LogEntry(
        "warning", "kairos.budget", _data("budget_nearly_used", text, about, unit=unit, used=used, limit=limit)
    )


def _end_entry(outcome: Outcome, run: RunRow, about: JsonObject) -> LogEntry:
    text = f"{run.id} has ended: {status_words(outcome.status, STOP_REASONS[outcome.stop_reason].words)}."
    return LogEntry(
        _END_LEVELS[outcome.status],
        "kairos.run",
        _data("run_ended", text, about, status=outcome.status, stop_reason=outcome.stop_reason),
    )


def _waiting_entry(run: RunRow, key: str, tool: str | None, about: JsonObject) -> LogEntry:
    more: JsonObject = {"key": key, "command": decision_command(run, key)}
    if tool is None:
        text = f"A call of {run.id} was broken off, and nobody knows whether it took effect."
        return LogEntry("warning", "kairos.approval", _data("settlement_waits", text, about, **more))
    text = f"{run.id} waits for somebody to approve {tool}."
    return LogEntry("notice", "kairos.approval", _data("approval_waits", text, about, tool=tool, **more))


def _pause_entry(run: RunRow, about: JsonObject) -> LogEntry:
    """A pause that ends by itself is a disturbance (a provider out of reach, a day used up); another is a wish."""
    text = f"{run.id} is paused: {run.paused}"
    if run.resume_at is None:
        return LogEntry("notice", "kairos.run", _data("run_paused", text, about, reason=run.paused))
    until = format_timestamp(run.resume_at)
    return LogEntry("warning", "kairos.run", _data("run_paused", text, about, reason=run.paused, resume_at=until))


def _data(event: str, message: str, about: JsonObject, **more: object) -> JsonObject:
    return {"event": event, "message": message, **about, **more}
