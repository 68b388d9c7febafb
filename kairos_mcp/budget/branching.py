"""The shares of branches: what a branch that starts may use of the account around it. Integers alone, no I/O.

Whatever order branches begin, spend and end in, what those that run may still spend is never more than what is left
around them less what is set aside there; and reservation in the accounts around holds even where this law is wrong.
"""

from __future__ import annotations

from operator import attrgetter

from kairos_mcp.budget.units import Account, Units
from kairos_mcp.core.limits import BranchShare, Limits

units_of = attrgetter(*Units._fields)


def branch_caps(share: BranchShare, enclosing: Account) -> Limits:
    """The caps of a branch: in each unit what was asked for it, and no more than an equal share of what is left there.

    What is left is neither spent nor held: branches hold nothing but what their steps do, so none has to give back.
    """
    caps: list[int | None] = []
    for asked, left, aside in zip(units_of(share.limits), enclosing.remaining, units_of(share.reserved), strict=True):
        equal = None if left is None else max(0, left - (aside or 0)) // max(1, share.open_branches)
        caps.append(equal if asked is None else asked if equal is None else min(asked, equal))
    return Limits(*caps)
