"""Read what a run in memory needs of its rows: all of it to rebuild the run, or what others have written meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kairos_mcp.store import approvals, client_requests, queries
from kairos_mcp.store.accounts import BranchAccountIds, read_branch_accounts
from kairos_mcp.store.approvals import ApprovalRow
from kairos_mcp.store.client_requests import WithdrawnRequest
from kairos_mcp.store.queries import RunRow, StepRow
from kairos_mcp.store.session import Session, read_together


class StoredRun(NamedTuple):
    """The rows that a run is rebuilt from: its steps, its branch accounts by path, and the newest approvals of its
    unanswered steps by path."""

    record: Sequence[StepRow]
    branches: BranchAccountIds
    approvals: Mapping[str, ApprovalRow]


def read_stored_run(session: Session, run: RunRow) -> StoredRun:
    """Read what `RunState.rebuild` needs. Raises StoreCorrupt."""
    return StoredRun(
        *read_together(
            session,
            lambda session: queries.read_record(session, run.n),
            lambda session: read_branch_accounts(session, run.account),
            lambda session: approvals.newest_approvals(session, run.n),
        )
    )


class AwaitedSteps(NamedTuple):
    """What others may bring to run number `n`: answers of its open steps (paths by id), and verdicts."""

    n: int
    open_steps: Mapping[int, str]
    awaits_approval: bool


class Arrivals(NamedTuple):
    """What others have written for a run's open steps: withdrawn requests, answers (step's id, encoded answer), and
    the newest approvals by path."""

    withdrawals: Sequence[WithdrawnRequest]
    answers: Sequence[tuple[int, str]]
    approvals: Mapping[str, ApprovalRow]


def read_arrivals(session: Session, awaited: AwaitedSteps) -> Arrivals:
    """Read what has come for a run."""
    steps = list(awaited.open_steps)
    return Arrivals(
        *read_together(
            session,
            lambda session: client_requests.list_uncharged(session, awaited.n),
            lambda session: queries.read_answers(session, steps) if steps else [],
            lambda session: approvals.newest_approvals(session, awaited.n) if awaited.awaits_approval else {},
        )
    )
