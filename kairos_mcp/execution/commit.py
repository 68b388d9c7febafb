"""Commit a plan in one transaction: read what it rests on, decide, write."""

from __future__ import annotations

from kairos_mcp.core.errors import FenceLost
from kairos_mcp.execution.decide import decide
from kairos_mcp.store.commit import CommitPlan, Committed, Decided, Facts
from kairos_mcp.store.commit_rows import add_shared, condition_of, read_facts, write_commit
from kairos_mcp.store.joined_commit import ParkedRun
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session


def write_known(
    session: Session, plan: CommitPlan, decided: Decided, parked: ParkedRun | None = None
) -> Committed | None:
    """Write what was decided from memory. None, and nothing is written, if one of its facts has changed.

    `parked`: the run, which is taken in this transaction.
    """
    return write_commit(session, plan, decided, condition_of(plan, decided, parked), parked)


def write_first(session: Session, plan: CommitPlan, decided: Decided, run: RunRow) -> Committed | None:
    """Write the first commit of a run that was inserted in this transaction: it was decided before the run and its
    account had their numbers. None: nothing was written, since a shared account has no room."""
    numbered = decided._replace(ledger=decided.ledger.with_account(run.account))
    return write_known(session, plan._replace(run=run.n, account=run.account), numbered)


def commit(
    session: Session, plan: CommitPlan, known: Facts | None = None, parked: ParkedRun | None = None
) -> Committed:
    """Write the commit of a run. `known`: its facts from memory; where one has changed, all are read.

    `parked`: the run, which is taken in this transaction. Raises FenceLost, before anything is written, where the run
    is not as it was known.
    """
    if known is not None and (committed := write_known(session, plan, decide(plan, known), parked)) is not None:
        return committed
    if parked is not None:
        if session.row(*parked.condition) is None:
            raise FenceLost(plan.run_id)
        parked.take(session, plan.owner, plan.at)
    facts = read_facts(session, plan)
    committed = write_commit(session, plan, decide(plan, facts))
    if committed is None:  # a shared account has no room for all of it: how much it has decides
        committed = write_commit(session, plan, decide(plan, add_shared(session, plan, facts)))
        assert committed is not None, "what was decided on accounts that were read is written"
    return committed
