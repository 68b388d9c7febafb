"""Remove old runs with everything that belongs to them: rows, accounts, and texts that no other run needs.

A run is kept if it has not ended or ended later, if a kept run continues from it (`continues`), if it is the newest of
its mandate (its lessons go to the next one), or if its spec can't be read, since it is unknown what it continues from.
Every row that refers to a run by a foreign key belongs to it, so a new table needs no change here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from kairos_mcp.store import schema
from kairos_mcp.store.rows import Session, json_or_null, placeholders

Key = TypeVar("Key", int, str)

RUNS_PER_TRANSACTION = 50  # other writers wait while one transaction lasts

_IS_UNREADABLE = f"coalesce(json_type({json_or_null('run.spec')}), '') <> 'object'"
_CONTINUES = f"json_extract({json_or_null('run.spec')}, '$.continues')"
_GOAL = f"json_extract({json_or_null('run.spec')}, '$.goal')"
_FIND_PRUNABLE = f"""
    with recursive kept(n, earlier) as (
        select n, {_CONTINUES} from run where outcome is null or ended_at >= ? or {_IS_UNREADABLE}
            or n in (select max(run.n) from run join mandate on mandate.principal = run.principal
                and mandate.id = run.mandate group by run.principal, run.mandate)
        union select run.n, {_CONTINUES} from run join kept on run.id = kept.earlier)
    select n, id, workspace, ended_at, {_GOAL} from run where n not in (select n from kept)"""
_HASH = re.compile(r"[0-9a-f]{64}")


class PrunableRun(NamedTuple):
    """A run that may be removed. `workspace`: "" for none; `ended_at`: in milliseconds since 1970."""

    n: int
    run_id: str
    workspace: str
    ended_at: int
    goal: str | None


def list_prunable(session: Session, before: int, workspaces: Sequence[str] | None = None) -> list[PrunableRun]:
    """Return the runs that may be removed: ended before this moment (ms), and needed by no kept run, oldest first.

    `workspaces`: those whose runs are meant; None: all.
    """
    among = "" if workspaces is None else f" and workspace in ({placeholders(workspaces)})"
    found = session.rows(f"{_FIND_PRUNABLE}{among} order by n", (before, *(workspaces or ())))
    return [PrunableRun._make(row) for row in found]


def find_prunable(session: Session, before: int) -> list[int]:
    """Return the numbers of all runs that may be removed."""
    return [run.n for run in list_prunable(session, before)]


def find_unreadable_runs(session: Session, before: int) -> list[str]:
    """Return the ids of the runs that are kept only because their spec can't be read."""
    found = f"select id from run where {_IS_UNREADABLE} and outcome is not null and ended_at < ? order by n"
    return [run_id for (run_id,) in session.rows(found, (before,))]


def measure_prunable(session: Session, before: int) -> tuple[int, int]:
    """Return how many runs could be removed, and about how many bytes their rows take; shared texts are not counted.
    Removes nothing."""
    numbers = find_prunable(session, before)
    total = 0
    for some in _chunks(numbers):
        found = session.row(
            "select coalesce(sum(length(body) + 300), 0) from step join answer on answer.step = step.id"
            f" where run in ({placeholders(some)})",
            some,
        )
        total += found[0] if found else 0
    return len(numbers), total


def remove_runs(session: Session, numbers: Sequence[int], before: int) -> int:
    """Remove those of these runs that are still prunable, with all that belongs to them; return how many.

    Part of a transaction.
    """
    prunable = set(find_prunable(session, before))
    removed = [n for n in numbers if n in prunable]
    for some in _chunks(removed):
        accounts = [a for (a,) in session.rows(f"select account from run where n in ({placeholders(some)})", some)]
        _remove_rows(session, schema.list_references(), "run", "n", some)
        _remove_accounts(session, accounts)
    return len(removed)


def _remove_rows(
    session: Session,
    references: Mapping[str, list[tuple[str, str]]],
    table: str,
    column: str,
    keys: Sequence[int],
) -> None:
    """Remove the rows whose column is one of the keys, and before them every row that refers to them."""
    for some in _chunks(keys):
        if references.get(table):
            key = schema.integer_key(table)
            found = session.rows(f"select {key} from {table} where {column} in ({placeholders(some)})", some)
            for child, child_column in references[table]:
                _remove_rows(session, references, child, child_column, [number for (number,) in found])
        session.rows(f"delete from {table} where {column} in ({placeholders(some)})", some)


def _remove_accounts(session: Session, accounts: Sequence[int]) -> None:
    """Remove the accounts of runs and of their branches; shared accounts keep what was spent of them."""
    session.rows(
        f"with recursive gone(id) as (select id from account where id in ({placeholders(accounts)})"
        " union select account.id from account join gone on account.parent = gone.id)"
        " delete from account where id in (select id from gone) and id not in (select account from run)",
        accounts,
    )


def find_unreferenced_texts(session: Session) -> list[str]:
    """Return the hashes of texts that nothing refers to.

    Whatever looks like a hash, in any column, counts as a reference: a text that is kept too long costs space, one that
    is removed too early is lost.
    """
    hashes = {content_hash for (content_hash,) in session.rows("select hash from text")}
    for table, columns in schema.list_text_columns().items():
        if not hashes:
            break
        for column in columns:
            hashes -= _find_hashes(session, table, column)
    return sorted(hashes)


def remove_texts(session: Session, hashes: Sequence[str]) -> None:
    """Remove these texts. Part of a transaction in which nothing refers to them."""
    for some in _chunks(hashes):
        session.rows(f"delete from text where hash in ({placeholders(some)})", some)


def _find_hashes(session: Session, table: str, column: str) -> set[str]:
    found: set[str] = set()
    for (value,) in session.stream(f"select {column} from {table} where length({column}) >= 32"):
        match value:
            case str():
                found.update(_HASH.findall(value))
            case bytes() if len(value) == 32:
                found.add(value.hex())
            case _:
                pass
    return found


def _chunks(keys: Sequence[Key]) -> list[Sequence[Key]]:
    return [keys[at : at + 500] for at in range(0, len(keys), 500)]  # bindings of one statement
