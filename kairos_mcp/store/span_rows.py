"""Read what telemetry shows of a run besides its steps: attempts, approvals; and counts over all open runs.

Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kairos_mcp.store.ownership import ANY_SERVER
from kairos_mcp.store.rows import Session, placeholders


class AttemptRow(NamedTuple):
    """An attempt at a step after its first. `at`: when it was begun, in milliseconds since 1970. `is_open`: it waits
    outside, or to be begun. `ended_before`: how the attempt before it ended. `fence`: of the server that began it."""

    at: int
    fence: int
    is_open: bool
    sent_text: str
    ended_before: str


class ApprovalTimes(NamedTuple):
    """When a person was asked about a call, as which tool, and what became of it; times in milliseconds since 1970."""

    n: int
    tool: str
    asked_at: int
    verdict: str | None
    through: str | None
    decided_at: int | None


class OpenRuns(NamedTuple):
    """How many runs have not ended, by where they stand. `queued`: each could go on, and no server has it."""

    moving: int
    waiting: int
    paused: int
    queued: int


def list_attempts(session: Session, step_ids: Collection[int]) -> dict[int, list[AttemptRow]]:
    """Return the attempts at these steps after the first, oldest first, by the id of the step's row."""
    found: dict[int, list[AttemptRow]] = {}
    statement = (
        f"select step, at, fence, waits_outside, sent, ended from attempt where step in ({placeholders(step_ids)})"
    )
    for step_id, at, fence, is_open, sent, ended in session.rows(f"{statement} order by id", list(step_ids)):
        found.setdefault(step_id, []).append(AttemptRow(at, fence, bool(is_open), sent, ended))
    return found


def list_approvals(session: Session, step_ids: Collection[int]) -> dict[int, list[ApprovalTimes]]:
    """Return the approvals that a person was asked for about these steps, oldest first, by the id of the step's row;
    not those that an earlier one or a rule stood for."""
    found: dict[int, list[ApprovalTimes]] = {}
    statement = (
        "select step, n, tool, asked_at, verdict, through, decided_at from approval"
        f" where step in ({placeholders(step_ids)}) and not unasked and coalesce(through, '') not in ('before', 'rule')"
    )
    for step_id, *columns in session.rows(f"{statement} order by step, n", list(step_ids)):
        found.setdefault(step_id, []).append(ApprovalTimes(*columns))
    return found


_NEWEST_BEGIN = """
    select max(at) from (select at from step where run = :run and fence < :fence
        union all select at from attempt where run = :run and fence < :fence) as begun
"""


def newest_begin(session: Session, n: int, fence: int) -> int | None:
    """Return when the newest attempt was begun by a server that had the run before this fence, in milliseconds since
    1970; None where there was none."""
    found = session.row(_NEWEST_BEGIN, {"run": n, "fence": fence})
    assert found is not None
    at: int | None = found[0]
    return at


_OLDEST_BEGIN = """
    select min(at) from (select at from step where run = :run and fence > :fence
        union all select at from attempt where run = :run and fence > :fence) as begun
"""


def oldest_begin(session: Session, n: int, fence: int) -> int | None:
    """Return when the oldest attempt was begun by a server that has the run after this fence; None without any."""
    found = session.row(_OLDEST_BEGIN, {"run": n, "fence": fence})
    assert found is not None
    at: int | None = found[0]
    return at


def count_open_runs(session: Session, dead: Collection[int]) -> OpenRuns:
    """Count the runs that have not ended. `dead`: owners whose servers have ended."""
    ended = {ANY_SERVER, *dead}
    counts = dict.fromkeys(OpenRuns._fields, 0)
    statement = "select owner, paused is not null, count(*) from run where outcome is null group by 1, 2"
    for owner, is_paused, count in session.rows(statement):
        if is_paused:
            state = "paused"
        elif owner is None:
            state = "waiting"
        else:
            state = "queued" if owner in ended else "moving"
        counts[state] += count
    return OpenRuns(**counts)


def count_waiting_approvals(session: Session, at: int) -> int:
    """Count the approvals that a person is asked for now, of all principals."""
    found = session.row(
        "select count(*) from approval join run on run.n = approval.run"
        " where verdict is null and not unasked and expires_at > ? and outcome is null",
        (at,),
    )
    assert found is not None
    return int(found[0])
