"""How the whole store stands, for whoever watches it: what waits, for how long, who lives, what is left of the day.

Nothing here writes. Metrics, `status` and `doctor` show the same figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple, get_args

from kairos_mcp.budget.notes import PROVIDER_AWAY, USED_UP_REASONS, clock_behind_reason
from kairos_mcp.core.limits import DAY_CAPS
from kairos_mcp.core.limits_table import limits_to_json
from kairos_mcp.store import spending_rows
from kairos_mcp.store.approvals import LAPSED
from kairos_mcp.store.ownership import ANY_SERVER, Owners, dead_owners
from kairos_mcp.store.queries import UNKNOWN
from kairos_mcp.store.rows import Session, placeholders, read_together
from kairos_mcp.store.serving import list_driving
from kairos_mcp.store.span_rows import OpenRuns, count_open_runs

PauseReason = Literal["person", "approval", "day", "mandate", "provider", "clock"]
WaitKind = Literal["approval", "settlement", "completion", "tool_call", "server", "resume"]
PAUSE_REASONS: tuple[PauseReason, ...] = get_args(PauseReason)
WAIT_KINDS: tuple[WaitKind, ...] = get_args(WaitKind)


class LivingServers(NamedTuple):
    """How many servers and workers live that drive runs; and how many more runs those with slots could drive."""

    servers: int
    workers: int
    free_slots: int


class StoreGauges(NamedTuple):
    """`waits_ms`: how long the oldest of each kind has waited, in milliseconds; 0 where none does."""

    open_runs: OpenRuns
    paused: Mapping[PauseReason, int]
    waits_ms: Mapping[WaitKind, int]
    living: LivingServers


def read_gauges(session: Session, owners: Owners, own_number: int, at: int) -> StoreGauges:
    """Read how the store stands at this moment (milliseconds since 1970)."""
    dead = {ANY_SERVER, *dead_owners(session, owners, own_number)}
    open_runs, paused, waits, living = read_together(
        session,
        lambda session: count_open_runs(session, dead),
        _count_paused,
        lambda session: _read_waits(session, dead, at),
        lambda session: _count_living(session, owners),
    )
    return StoreGauges(open_runs, paused, waits, living)


def _count_paused(session: Session) -> Mapping[PauseReason, int]:
    counts: Counter[PauseReason] = Counter(dict.fromkeys(PAUSE_REASONS, 0))
    statement = "select paused, principal, count(*) from run where outcome is null and paused is not null group by 1, 2"
    for why, principal, count in session.rows(statement):
        counts[_reason_of(why, principal)] += count
    return counts


def _reason_of(why: str, principal: str) -> PauseReason:
    if why == LAPSED:
        return "approval"
    if why == USED_UP_REASONS["mandate"]:
        return "mandate"
    if why == USED_UP_REASONS["day"]:
        return "day"
    if why.startswith(PROVIDER_AWAY):
        return "provider"
    return "clock" if why == clock_behind_reason(principal) else "person"


_LAST_CHANGE = """
    select max(at) from (select created_at as at union all select at from step where step.run = run.n
        union all select answer.at from answer join step on step.id = answer.step where step.run = run.n
        union all select at from inbox where inbox.run = run.n) as moments
"""
_NEWEST_ATTEMPT = "(select {} from attempt where attempt.step = step.id order by attempt.id desc limit 1)"
_WAITING = "from waiting join step on step.id = waiting.step join run on run.n = waiting.run where run.outcome is null"
_IS_LOST = f"step.kind = 'call' and {_NEWEST_ATTEMPT.format('ended')} = '{UNKNOWN}'"
_OLDEST: Mapping[WaitKind, str] = {
    "approval": "select min(asked_at) from approval join run on run.n = approval.run"
    " where verdict is null and not unasked and expires_at > ? and outcome is null",
    "settlement": f"select min({_NEWEST_ATTEMPT.format('at')}) {_WAITING} and {_IS_LOST}",
    "completion": f"select min(step.at) {_WAITING} and step.kind not in ('call', 'pause')",
    "tool_call": f"select min(step.at) {_WAITING} and step.kind = 'call' and not coalesce({_IS_LOST}, false)"
    " and not exists (select 1 from approval where approval.step = step.id)",
    "resume": f"select min(({_LAST_CHANGE})) from run"
    " where outcome is null and paused is not null and resume_at is null",
}
"""SQL for since when the oldest of each kind has waited; `server` depends on who lives."""


def _read_waits(session: Session, dead: Collection[int], at: int) -> Mapping[WaitKind, int]:
    queued = (
        f"select min(({_LAST_CHANGE})) from run where outcome is null and paused is null"
        f" and owner in ({placeholders(dead)})"
    )
    since: dict[WaitKind, int | None] = {
        kind: _one(session, statement, (at,) if kind == "approval" else ()) for kind, statement in _OLDEST.items()
    }
    since["server"] = _one(session, queued, tuple(dead))
    return {kind: 0 if (began := since[kind]) is None else max(0, at - began) for kind in WAIT_KINDS}


def _one(session: Session, statement: str, bindings: tuple[int, ...]) -> int | None:
    found = session.row(statement, bindings)
    return None if found is None or found[0] is None else int(found[0])


def count_free_slots(session: Session, owners: Owners) -> int:
    """Count the free slots of all living servers that have slots."""
    return sum(server.free_slots for server in list_driving(session, owners))


def _count_living(session: Session, owners: Owners) -> LivingServers:
    living = list_driving(session, owners)
    workers = sum(server.via == "work" for server in living)
    return LivingServers(len(living) - workers, workers, sum(server.free_slots for server in living))


class DayUse(NamedTuple):
    """What a principal has used and has left of a day, by unit; what has no limit is not in `left`."""

    principal: str
    spent: Mapping[str, float]
    left: Mapping[str, float]


def list_day_use(session: Session, day: str) -> list[DayUse]:
    """List what each principal has used of this day, or of a later one that has begun for them; who used most of it
    comes first."""
    newest = {name: account for _, name, account in reversed(spending_rows.list_day_accounts(session, day, None))}
    by_use = sorted(newest.items(), key=lambda item: (-item[1].spent.total_tokens, item[0]))
    return [
        DayUse(
            name,
            {unit: amount or 0 for unit, amount in limits_to_json(account.spent.plus(account.held), DAY_CAPS).items()},
            {unit: left for unit, left in limits_to_json(account.remaining, DAY_CAPS).items() if left is not None},
        )
        for name, account in by_use
    ]
