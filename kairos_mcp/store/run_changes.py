"""Read what tells that something changed: the numbers of runs, and what is counted of a day and of mandates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kairos_mcp.store.queries import IS_NO_TRIAL
from kairos_mcp.store.rows import Session, json_or_null, placeholders


class RunChange(NamedTuple):
    """A run by its id, with its `seq` and `news_seq`, and when its newest step was made or it ended (milliseconds)."""

    run_id: str
    seq: int
    news_seq: int
    at: int


_CHANGES = """
    select id, seq, news_seq, coalesce(ended_at,
        (select step.at from step where step.run = run.n order by step.id desc limit 1), created_at) from run
"""


def newest_runs(session: Session, principal: str, workspaces: Sequence[str], limit: int) -> list[RunChange]:
    """Return a principal's newest runs in these workspaces ('' for none), newest first."""
    among = f"principal = ? and {IS_NO_TRIAL} and workspace in ({placeholders(workspaces)})"
    statement = f"{_CHANGES} where {among} order by n desc limit ?"
    return [RunChange(*found) for found in session.rows(statement, (principal, *workspaces, limit))]


def runs_by_id(session: Session, principal: str, run_ids: Sequence[str]) -> list[RunChange]:
    """Return those of these runs that are the principal's."""
    statement = f"{_CHANGES} where principal = ? and id in ({placeholders(run_ids)})"
    return [RunChange(*found) for found in session.rows(statement, (principal, *run_ids))]


def open_and_newest_runs(
    session: Session, principal: str, workspaces: Sequence[str], most_open: int, newest: int
) -> list[RunChange]:
    """Return a principal's runs in these workspaces ('' for none): at most `most_open` that have not ended, and the
    `newest`, ended or not; oldest first."""
    mine = f"principal = ? and {IS_NO_TRIAL} and workspace in ({placeholders(workspaces)})"
    statement = (
        f"{_CHANGES} where n in (select n from (select n from run where outcome is null and {mine}"
        f" order by n desc limit ?) as open union select n from (select n from run where {mine}"
        " order by n desc limit ?) as newest) order by n"
    )
    bindings = (principal, *workspaces, most_open, principal, *workspaces, newest)
    return [RunChange(*found) for found in session.rows(statement, bindings)]


class ListedRun(NamedTuple):
    """A run in a list of all: its id, whose it is, its `seq`, and whether it has ended."""

    run_id: str
    principal: str
    seq: int
    has_ended: bool


def newest_of_all(session: Session, limit: int, before: str | None = None) -> list[ListedRun]:
    """Return the newest runs but for trials of `doctor`, whoever's they are, newest first; with `before`, those older
    than this run."""
    older = "" if before is None else " and n < (select n from run where id = ?)"
    statement = (
        f"select id, principal, seq, outcome is not null from run where {IS_NO_TRIAL}{older} order by n desc limit ?"
    )
    bindings = (limit,) if before is None else (before, limit)
    return [
        ListedRun(run_id, whose, seq, bool(ended)) for run_id, whose, seq, ended in session.rows(statement, bindings)
    ]


def newest_texts(session: Session, limit: int) -> list[tuple[str, str | None, str | None]]:
    """Return id, goal and summary, or record, of the newest runs but for trials of `doctor`, whoever's they are, newest
    first. What can't be read is None."""
    statement = (
        f"select id, json_extract({json_or_null('spec')}, '$.goal'), coalesce(json_extract({json_or_null('outcome')},"
        f" '$.summary'), json_extract({json_or_null('outcome')}, '$.record')) from run where {IS_NO_TRIAL}"
        " order by n desc limit ?"
    )
    return session.rows(statement, (limit,))
