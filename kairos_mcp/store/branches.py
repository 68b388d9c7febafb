"""The accounts of a run's branches: each hangs in that of the branch around it, or in the run's, under its path.

A step is charged to every account whose path is above its own: so no row of a step has to name them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import apsw

from kairos_mcp.budget.branching import branch_caps
from kairos_mcp.budget.units import Account
from kairos_mcp.core.limits import BranchShare, Limits
from kairos_mcp.store.accounts import NOT_SHARED, Shared, amounts
from kairos_mcp.store.connection import rows

Branches = Mapping[str, int]
"""The number of each branch's account, by the branch's path."""

NO_BRANCHES: Branches = MappingProxyType({})


class NewBranch(NamedTuple):
    """A branch that begins, its path, and what it is to have of the account around it."""

    path: str
    share: BranchShare


_OF_RUN = """
    with recursive inner(id, name) as (select id, name from account where parent = ?
        union all select account.id, account.name from account join inner on account.parent = inner.id)
    select name, id from inner order by id
"""
_OPEN = f"insert into account(scope, parent, name, {', '.join(amounts('cap'))}) values ('branch', ?, ?{', ?' * 8})"


def of_run(connection: apsw.Connection, account: int) -> Branches:
    """The accounts of all branches of the run whose account this is, outer ones first."""
    return dict(rows(connection, _OF_RUN, (account,)))


def above(branches: Branches, path: str) -> Shared:
    """The accounts of the branches that the step at this path stands in, the nearest first."""
    if not branches:
        return NOT_SHARED
    found = []
    while path := path.rpartition("/")[0]:
        if (number := branches.get(path)) is not None:
            found.append(number)
    return tuple(found)


def insert(connection: apsw.Connection, opening: NewBranch, around: Account) -> tuple[int, Limits]:
    """Open the account of a branch within the one around it, as that is now; its number and caps."""
    caps = branch_caps(opening.share, around)
    bindings = (around.id, opening.path, *(getattr(caps, name.removeprefix("cap_")) for name in amounts("cap")))
    rows(connection, _OPEN, bindings)
    return connection.last_insert_rowid(), caps
