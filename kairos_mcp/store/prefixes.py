"""Write and read the table `prefix`: what the first requests of conversations cost, by what they begin with.

A row is written once, in the transaction of the answer whose cost it tells, and goes with its run. It counts for runs
of the same principal alone.
"""

from __future__ import annotations

from typing import NamedTuple

from kairos_mcp.store.rows import Session

MAX_ROWS = 1_000  # the newest that are read: as many conversations of a principal

_INSERT = "insert into prefix(step, principal, digest, tokens) select ?, principal, ?, ? from run where n = ?"
_LIST = f"select digest, tokens from prefix where principal = ? order by step desc limit {MAX_ROWS}"


class PrefixCost(NamedTuple):
    """The input tokens that were reported of a conversation's first request. `digest`: of what it begins with, and of
    the model that counts."""

    digest: bytes
    tokens: int


def insert_cost(session: Session, run: int, step_id: int, cost: PrefixCost) -> None:
    """Insert the cost of the request that is this step of the run."""
    session.rows(_INSERT, (step_id, cost.digest, cost.tokens, run))


def list_costs(session: Session, principal: str) -> list[PrefixCost]:
    """List the newest costs of a principal's requests, the newest first."""
    return [PrefixCost._make(row) for row in session.rows(_LIST, (principal,))]
