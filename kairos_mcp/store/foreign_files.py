"""Files that were written from texts of others, as rows: what they say counts as theirs in later runs too.

A row is inserted in the transaction of the answer of the call that wrote the file. It holds, whatever is changed in the
file since, until a person says that they trust it; a row that no longer holds is kept, since what was read before then
was of others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kairos_mcp.store.rows import Session

_LABEL = """
    insert into foreign_file(workspace, path, run, step, at)
    select run.workspace, ?, run.id, step.path, ? from step join run on run.n = step.run where step.id = ?
        and not exists (select 1 from foreign_file as known where known.workspace = run.workspace
            and known.path = ? and known.trusted is null)
    on conflict do nothing
"""
_LIST = "select path, run, step, at, trusted from foreign_file where workspace = ? order by at, path"
_TRUST = "update foreign_file set trusted = ? where workspace = ? and path = ? and trusted is null"


class ForeignFile(NamedTuple):
    """A file that the call at `step` of a run wrote from texts of others. It counts as theirs from `at` until a person
    `trusted` it (milliseconds since 1970; None: it still does)."""

    path: str
    run_id: str
    step: str
    at: int
    trusted: int | None

    def counts_at(self, at: int) -> bool:
        return self.at <= at and (self.trusted is None or at < self.trusted)


def label_files(session: Session, step_id: int, paths: Iterable[str], at: int) -> None:
    """Say of these files that the call which is this step wrote them from texts of others."""
    for path in paths:
        session.rows(_LABEL, (path, at, step_id, path))


def list_files(session: Session, workspace: str) -> list[ForeignFile]:
    """List the files of a workspace that are or were known to hold texts of others, oldest first."""
    return [ForeignFile._make(row) for row in session.rows(_LIST, (workspace,))]


def trust_file(session: Session, workspace: str, path: str, at: int) -> None:
    """Say that a person trusts a file from now on as if it was their own."""
    session.rows(_TRUST, (at, workspace, path))
