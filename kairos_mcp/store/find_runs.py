"""Find the runs that a person means: by an id or the beginning of one, the newest, those that wait for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kairos_mcp.store.queries import UNKNOWN
from kairos_mcp.store.rows import Session, placeholders


class FoundRun(NamedTuple):
    """A run's id, and whose it is."""

    run_id: str
    principal: str


def find_by_id(session: Session, run_id: str) -> FoundRun | None:
    """Return the run with this id, whoever's it is."""
    found = session.row("select id, principal from run where id = ?", (run_id,))
    return None if found is None else FoundRun(*found)


def find_by_beginning(session: Session, beginning: str, principal: str, limit: int) -> list[FoundRun]:
    """Return the principal's runs whose id begins so, at most `limit`."""
    after = beginning[:-1] + chr(ord(beginning[-1]) + 1)  # a range, which the index of ids answers
    statement = "select id, principal from run where id >= ? and id < ? and principal = ? order by id limit ?"
    return [FoundRun(*found) for found in session.rows(statement, (beginning, after, principal, limit))]


def is_unique_beginning(session: Session, beginning: str, principal: str) -> bool:
    """Whether one run of the principal at most has an id that begins so."""
    return len(find_by_beginning(session, beginning, principal, 2)) < 2


_WAITS = f"""
    select run.id from run where outcome is null and (paused is not null and resume_at is null
        or exists(select 1 from approval where approval.run = run.n and verdict is null and not unasked)
        or exists(select 1 from waiting join step on step.id = waiting.step where waiting.run = run.n
            and (kind = 'pause' or (kind = 'call' and (select ended from attempt where attempt.step = step.id
                order by attempt.id desc limit 1) = '{UNKNOWN}'))))
"""


def list_waiting_for_person(session: Session, principal: str | None, workspaces: Sequence[str] | None) -> list[str]:
    """List the ids of a principal's runs in these workspaces ('' for none; None: in all) that wait for a person: for an
    approval, for what became of a lost call, to be resumed. Oldest first. Of every principal, where it is None."""
    among = "" if workspaces is None else f" and workspace in ({placeholders(workspaces)})"
    whose = "" if principal is None else " and principal = ?"
    statement = f"{_WAITS}{whose}{among} order by run.n"
    bindings = (*(() if principal is None else (principal,)), *(workspaces or ()))
    return [run_id for (run_id,) in session.rows(statement, bindings)]


def waits_for_person(session: Session, run: int) -> bool:
    """Whether the run with this number is one of those that wait for a person."""
    return session.row(f"{_WAITS} and run.n = ?", (run,)) is not None


def count_waiting_for_caller(session: Session, principal: str, workspaces: Sequence[str] | None) -> int:
    """Count a principal's runs in these workspaces ('' for none; None: in all) that wait for an answer in the place of
    a model."""
    among = "" if workspaces is None else f" and workspace in ({placeholders(workspaces)})"
    statement = (
        "select count(*) from run where outcome is null and paused is null and resume_at is null and route = 'caller'"
        " and principal = ? and exists(select 1 from waiting join step on step.id = waiting.step"
        f" where waiting.run = run.n and kind not in ('call', 'pause')){among}"
    )
    found = session.row(statement, (principal, *(workspaces or ())))
    return 0 if found is None else int(found[0])


def newest_conversation(session: Session, principal: str, workspaces: Sequence[str]) -> str | None:
    """Return the id of the newest planner run that was started by a command in one of these workspaces, or None."""
    found = session.row(
        "select id from run where principal = ? and flow = 'planner' and via = 'command'"
        f" and workspace in ({placeholders(workspaces)}) order by n desc limit 1",
        (principal, *workspaces),
    )
    return None if found is None else str(found[0])
