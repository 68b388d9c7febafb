"""The records of agents, from rows: the tasks of team runs that have ended, and the accounts of their tries.

Nothing is kept beside these rows. What a run says of its tasks is in its outcome, what a try used in the account of its
branch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kairos_mcp.core.agent import MAX_TASKS, OTHER, AgentRecord, TriedTask, make_records
from kairos_mcp.core.errors import Unreadable
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store.rows import Session, decode

MAX_RUNS = 1_000  # the newest team runs that are looked at: an agent in none of them has no record
_DONE = "done"

_ENDED_TEAMS = f"""
    select account, outcome from run
    where principal = ? and workspace = ? and flow = 'team' and outcome is not null order by n desc limit {MAX_RUNS}
"""
_BRANCHES = """
    with recursive branch(id) as (select id from account where parent = ?
        union all select account.id from account join branch on account.parent = branch.id)
    select name, spent_rounds, spent_total_tokens, spent_nano_usd from account where id in (select id from branch)
"""


@dataclass(frozen=True, slots=True)
class _Try:
    """A try of a task, as the outcome of a team has it."""

    agent: str
    status: str


@dataclass(frozen=True, slots=True)
class _Task:
    """A task, as the outcome of a team has it; it has more fields there."""

    tries: tuple[_Try, ...] = ()
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class _TeamOutput:
    tasks: tuple[_Task, ...] = ()


@dataclass(frozen=True, slots=True)
class _TeamOutcome:
    """The outcome of a team; one that was cancelled has no output."""

    output: _TeamOutput | None = None


def read_records(session: Session, principal: str, workspace: str) -> tuple[AgentRecord, ...]:
    """Return the record of each agent that has one, by name: from the principal's team runs in this workspace ('' for
    none). A run that can't be read counts as if it were not there."""
    return make_records(_list_tried(session, principal, workspace))


def _list_tried(session: Session, principal: str, workspace: str) -> Iterator[TriedTask]:
    """Yield the tries of tasks, those of the newest runs first, as many of each agent as count."""
    counts: Counter[str] = Counter()
    for account, outcome in session.rows(_ENDED_TEAMS, (principal, workspace)):
        tries = {path: (each, task) for path, each, task in _tries_of(outcome) if counts[each.agent] < MAX_TASKS}
        if not tries:
            continue
        for path, *amounts in session.rows(_BRANCHES, (account,)):
            if path in tries:
                each, task = tries[path]
                counts[each.agent] += 1
                yield TriedTask(each.agent, task.kind or OTHER, each.status == _DONE, *amounts)


def _tries_of(outcome: str) -> Iterator[tuple[str, _Try, _Task]]:
    """Yield the tries that the outcome of a team tells of, each with the path of its branch and its task."""
    try:
        output = decode(_TeamOutcome, outcome).output
    except Unreadable:
        return
    for position, task in enumerate(output.tasks if output is not None else (), 1):
        for number, each in enumerate(task.tries, 1):
            yield f"task-{position}/try-{number}", each, task
