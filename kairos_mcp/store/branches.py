"""The accounts of a run's branches: each hangs in that of the branch around it, or in the run's, under its path.

A step is charged to every account whose path is above its own: so no row of a step has to name them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import apsw

from kairos_mcp.budget.units import Account, branch_caps
from kairos_mcp.core.limits import BranchShare, Limits
from kairos_mcp.core.step_path import enclosing_paths
from kairos_mcp.store.accounts import NO_SHARED_ACCOUNTS, SharedAccounts, unit_columns
from kairos_mcp.store.connection import fetch_all

BranchAccounts = Mapping[str, int]
"""The number of each branch's account, by the branch's path."""

NO_BRANCHES: BranchAccounts = MappingProxyType({})


class NewBranch(NamedTuple):
    """A branch that begins, its path, and what it is to have of the account around it."""

    path: str
    share: BranchShare


_SELECT_BRANCHES = """
    with recursive inner(id, name) as (select id, name from account where parent = ?
        union all select account.id, account.name from account join inner on account.parent = inner.id)
    select name, id from inner order by id
"""
_INSERT_BRANCH = (
    f"insert into account(scope, parent, name, {', '.join(unit_columns('cap'))}) values ('branch', ?, ?{', ?' * 8})"
)


def read_branch_accounts(connection: apsw.Connection, account: int) -> BranchAccounts:
    """The accounts of all branches of the run whose account this is, outer ones first."""
    return dict(fetch_all(connection, _SELECT_BRANCHES, (account,)))


def branches_above(branches: BranchAccounts, path: str) -> SharedAccounts:
    """The accounts of the branches that the step at this path stands in, the nearest first."""
    if not branches:
        return NO_SHARED_ACCOUNTS
    return tuple(branches[enclosing] for enclosing in enclosing_paths(path) if enclosing in branches)


def open_branch_account(connection: apsw.Connection, opening: NewBranch, around: Account) -> tuple[int, Limits]:
    """Open the account of a branch within the one around it, as that is now; its number and caps."""
    caps = branch_caps(opening.share, around)
    bindings = (around.id, opening.path, *(getattr(caps, name.removeprefix("cap_")) for name in unit_columns("cap")))
    fetch_all(connection, _INSERT_BRANCH, bindings)
    return connection.last_insert_rowid(), caps
