"""Find the runs that a person means: by an id or the beginning of one, by whose they are, by how they stand."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from kairos_mcp.core.decision_rights import LOCAL
from kairos_mcp.core.outcomes import RunStatus
from kairos_mcp.store.queries import IS_NO_TRIAL, UNKNOWN
from kairos_mcp.store.rows import Session, json_or_null, placeholders

RunState = Literal["queued", RunStatus]
"""A run's status; or `queued`: it could go on, and no living server has it."""
Decided = Literal["approval", "settle"]
"""The kinds of items that a person decides about, as `views/waiting.py` names them."""

ENDED = ("completed", "stopped", "failed", "cancelled")


class FoundRun(NamedTuple):
    """A run's id, and whose it is."""

    run_id: str
    principal: str


class WantedRuns(NamedTuple):
    """Which runs a list is of; what is None does not choose.

    `workspaces`: '' for those without one. `since`: begun then or later, in milliseconds since 1970. `model`: as steps
    name it. `owner`: the number of the server that has them now.
    """

    principal: str | None = LOCAL
    workspaces: Sequence[str] | None = None
    state: RunState | None = None
    since: int | None = None
    model: str | None = None
    owner: int | None = None


class NumberedRun(NamedTuple):
    """A run's number in the store, its id, and whose it is."""

    n: int
    run_id: str
    principal: str


_HAS_MODEL = " or ".join(
    f"exists(select 1 from {table} where {table}.run = run.n and json_extract({json_or_null('sent')}, '$.model') = ?)"
    for table in ("step", "attempt")
)
_ENDED_AS = f"outcome is not null and coalesce(json_extract({json_or_null('outcome')}, '$.status'), 'failed') = ?"


def list_wanted(
    session: Session, wanted: WantedRuns, limit: int, *, dead: Collection[int] = (), before: int | None = None
) -> list[NumberedRun]:
    """List the newest runs that are wanted, but for trials of `doctor`: so many, newest first, numbered below `before`.

    Of a status that an open run may have, all open runs are listed: which of them have it, only a look at each says.
    `dead`: the owners that are no living servers, for `queued`.
    """
    conditions, bindings = [IS_NO_TRIAL], list[object]()

    def require(condition: str, *values: object) -> None:
        conditions.append(condition)
        bindings.extend(values)

    if wanted.principal is not None:
        require("principal = ?", wanted.principal)
    if wanted.workspaces is not None:
        require(f"workspace in ({placeholders(wanted.workspaces)})", *wanted.workspaces)
    if wanted.since is not None:
        require("created_at >= ?", wanted.since)
    if wanted.owner is not None:
        require("owner = ? and outcome is null", wanted.owner)
    if wanted.model is not None:
        require(f"({_HAS_MODEL})", wanted.model, wanted.model)
    if before is not None:
        require("n < ?", before)
    if wanted.state == "queued":
        require(f"outcome is null and paused is null and owner in ({placeholders(dead)})", *dead)
    elif wanted.state in ENDED:
        require(_ENDED_AS, wanted.state)
    elif wanted.state is not None:
        require("outcome is null")
    statement = f"select n, id, principal from run where {' and '.join(conditions)} order by n desc limit ?"
    return [NumberedRun(*found) for found in session.rows(statement, (*bindings, limit))]


def count_others(session: Session, principal: str) -> int:
    """Count the runs of other principals, but for trials of `doctor`."""
    found = session.row(f"select count(*) from run where principal <> ? and {IS_NO_TRIAL}", (principal,))
    return 0 if found is None else int(found[0])


def find_by_digest(session: Session, beginning: str, limit: int) -> list[tuple[FoundRun, str]]:
    """Return the approvals whose digest begins so, at most `limit`: each with its run, and its key."""
    after = beginning[:-1] + chr(ord(beginning[-1]) + 1)
    statement = (
        "select run.id, run.principal, approval.key from approval join run on run.n = approval.run"
        " where approval.digest >= ? and approval.digest < ? order by approval.step desc limit ?"
    )
    found = session.rows(statement, (beginning, after, limit))
    return [(FoundRun(run_id, principal), key) for run_id, principal, key in found]


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


_WAITS_FOR: Mapping[Decided, str] = {
    "approval": "exists(select 1 from approval where approval.run = run.n and verdict is null and not unasked)",
    "settle": f"""exists(select 1 from waiting join step on step.id = waiting.step where waiting.run = run.n
        and kind = 'call' and (select ended from attempt where attempt.step = step.id
            order by attempt.id desc limit 1) = '{UNKNOWN}')""",
}
_WAITS = f"""
    select run.id from run where outcome is null and (paused is not null and resume_at is null
        or {_WAITS_FOR["approval"]} or {_WAITS_FOR["settle"]}
        or exists(select 1 from waiting join step on step.id = waiting.step
            where waiting.run = run.n and kind = 'pause'))
"""


def list_waiting_for_person(session: Session, principal: str | None, workspaces: Sequence[str] | None) -> list[str]:
    """List the ids of a principal's runs in these workspaces ('' for none; None: in all) that wait for a person: for an
    approval, for what became of a lost call, to be resumed. Oldest first. Of every principal, where it is None."""
    among = "" if workspaces is None else f" and workspace in ({placeholders(workspaces)})"
    whose = "" if principal is None else " and principal = ?"
    statement = f"{_WAITS}{whose}{among} order by run.n"
    bindings = (*(() if principal is None else (principal,)), *(workspaces or ()))
    return [run_id for (run_id,) in session.rows(statement, bindings)]


def newest_waiting(session: Session, principal: str, workspaces: Sequence[str] | None, decided: Decided) -> list[str]:
    """Return the id of a principal's newest run in these workspaces (None: in all) that waits for such a decision, if
    one does."""
    among = "" if workspaces is None else f" and workspace in ({placeholders(workspaces)})"
    statement = f"select id from run where outcome is null and principal = ?{among} and {_WAITS_FOR[decided]}"
    found = session.rows(f"{statement} order by n desc limit 1", (principal, *(workspaces or ())))
    return [run_id for (run_id,) in found]


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
