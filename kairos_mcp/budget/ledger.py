"""The accounts of one run, and the changes of shared ones, while a commit is decided.

Each reservation sees those before it. Integers alone, no I/O.

`store/account_changes.py` writes a ledger. The accounts of the run and of its branches are known. A shared account is
read only if its caps have no room, or if a charge depends on what it has left; else its change is a conditional update.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kairos_mcp.budget.reservation import (
    Account,
    Reservation,
    ReservationRequest,
    is_final,
    open_branch,
    raise_caps,
    reserve,
    shared_part,
)
from kairos_mcp.core.limits import NOTHING, UNITS, BranchShare, Limits, Units
from kairos_mcp.core.steps import Refused, enclosing_path, enclosing_paths

SharedAccountIds = tuple[int, ...]
"""Ids of the shared accounts that a step is charged to, besides the run's own."""

NO_SHARED_ACCOUNTS: SharedAccountIds = ()

RUN = ""  # in place of a branch's path: the run's own account
_RUN_ALONE = (RUN,)
SHARED_TOKENS = [field for field, unit in UNITS.items() if unit.shared and unit.held == "tokens"]
_TOKENS_AND_MONEY = Units(input_tokens=1, output_tokens=1, total_tokens=1, nano_usd=1)
_LIMITS_OUTSIDE = Units(model_calls=1, input_tokens=1, output_tokens=1, total_tokens=1)


class BegunBranch(NamedTuple):
    """A branch that begins or has begun: its path, and its share of the account around it."""

    path: str
    share: BranchShare


class SharedChange(NamedTuple):
    """A change of a shared account: what is added to its held and to its spent amounts.

    It is written only if, in each unit of which `limited` has some, the cap has room for it and for `spare` more. Any
    other unit may be over its cap already.
    """

    held: Units = NOTHING
    spent: Units = NOTHING
    limited: Units = NOTHING
    spare: int = 0

    def plus(self, other: SharedChange) -> SharedChange:
        limited = other.limited if self.limited is NOTHING else self.limited.plus(other.limited)
        return SharedChange(
            self.held.plus(other.held), self.spent.plus(other.spent), limited, max(self.spare, other.spare)
        )

    def undone(self) -> SharedChange:
        """Return the change that takes this one back; it needs no room."""
        return SharedChange(NOTHING.minus(self.held), NOTHING.minus(self.spent))


_shared_change: Callable[[tuple[Units, Units, Units, int]], SharedChange] = partial(tuple.__new__, SharedChange)


class Ledger:
    """The current accounts of a run by path, its own under "".

    `known`: as they were. `branches`: the paths of all branches that have an account; of these, `known` has those that
    are charged or compared. `opened`: the paths of branches that begin here, outer ones first. `raised`: the paths of
    accounts whose caps have risen. `shared_accounts`: those of several runs, by id; None: they were not read. `due`:
    their changes, by id. `exceeded`: accounts that are charged more than was held, by path and id.
    """

    opened: tuple[str, ...] = ()
    raised: frozenset[str] = frozenset()
    exceeded: frozenset[str | int] = frozenset()
    _kept_waiting: frozenset[str] = frozenset()  # what encloses branches that wait for their siblings

    def __init__(
        self,
        known: Mapping[str, Account],
        branches: Collection[str] = (),
        shared_accounts: Mapping[int, Account] | None = None,
    ) -> None:
        self.known, self.accounts = known, dict(known)
        self.branches, self.shared_accounts = branches, shared_accounts
        self.due: dict[int, SharedChange] = {}

    def with_account(self, number: int) -> Ledger:
        """Return the ledger of a run without branches whose account has got its number."""
        numbered = Ledger({RUN: self.known[RUN]._replace(id=number)})
        numbered.accounts, numbered.due = {RUN: self.accounts[RUN]._replace(id=number)}, self.due
        return numbered

    # -- which accounts ----------------------------------------------------------------------------------------------

    def charged_paths(self, path: str) -> Sequence[str]:
        """Return the paths of the accounts that the step at this path is charged to, the nearest first.

        For the path of a branch these are the accounts around it.
        """
        if not self.branches:
            return _RUN_ALONE
        return [*(each for each in enclosing_paths(path) if each in self.branches), RUN]

    def accounts_above(self, path: str) -> list[Account]:
        """Return the accounts that a step is charged to, from the nearest branch's to the run's own."""
        return [self.accounts[each] for each in self.charged_paths(path)]

    def nearest_account(self, path: str) -> Account:
        """Return the account that a step is charged to first: of the nearest branch above its path, or the run's."""
        return self.accounts[self.charged_paths(path)[0]]

    def _siblings(self, branch: BegunBranch) -> list[Account]:
        """Return the accounts of the branches that run beside this one."""
        return [self.accounts[path] for path in branch.share.siblings if path in self.branches]

    # -- branches ----------------------------------------------------------------------------------------------------

    def open_branches(self, openings: Iterable[BegunBranch], first: ReservationRequest | None = None) -> bool:
        """Open the accounts of branches that begin, outer ones first. Return False if a branch has to wait.

        Then neither it nor any inside it is opened. It waits for running siblings, which may leave more, if its part
        would not buy its `first` step, or if an earlier one beside it waits already.
        """
        for branch in openings:
            around = enclosing_path(branch.path)
            parent, siblings = self.nearest_account(branch.path), self._siblings(branch)
            if siblings and around in self._kept_waiting:
                return False
            caps, is_enough = open_branch(branch.share, parent, siblings, first)
            if siblings and not is_enough:
                self._kept_waiting |= {around}
                return False
            self.branches = {*self.branches, branch.path}
            self.opened += (branch.path,)
            self.accounts[branch.path] = Account(0, caps, NOTHING, NOTHING, f"branch {branch.path}")
        return True

    def may_get_more(self, around: Sequence[BegunBranch], refused: Refused) -> bool:
        """Whether running siblings of these branches may still leave what the step lacks."""
        if any(is_final(each.share, self.accounts[each.path], refused.limit) for each in around):
            return False
        return any(self._siblings(branch) for branch in around)

    def raise_rounds(self, path: str, more: int) -> None:
        """Raise the cap on rounds of the account that the step at this path is charged to first; it has one."""
        nearest = self.charged_paths(path)[0]
        caps = self.accounts[nearest].caps
        self._raise(nearest, caps._replace(rounds=(caps.rounds or 0) + more))

    def _raise(self, path: str, caps: Limits) -> None:
        self.accounts[path] = self.accounts[path]._replace(caps=caps)
        self.raised |= {path}

    # -- reservations and charges ------------------------------------------------------------------------------------

    def fit(self, path: str, request: ReservationRequest, around: Sequence[BegunBranch] = ()) -> Reservation | Refused:
        """Return what the accounts of the run have for the step at this path. Nothing is held yet.

        The caps of the branches `around` it, outer ones first, rise where these don't buy all that it asks for and
        their siblings have left more.
        """
        if not self.branches:
            return reserve(self.accounts[RUN], request)
        nearest, *outer = self.accounts_above(path)
        fitting = reserve(nearest, request, (), outer)
        if not around or (isinstance(fitting, Reservation) and fitting.max_tokens >= request.wanted_tokens):
            return fitting
        for branch in around:
            account, enclosing = self.accounts[branch.path], self.nearest_account(branch.path)
            caps = raise_caps(branch.share, account, enclosing, self._siblings(branch), request)
            if caps is not None:
                self._raise(branch.path, caps)
        nearest, *outer = self.accounts_above(path)
        return reserve(nearest, request, (), outer)

    def hold(
        self, path: str, request: ReservationRequest, fitting: Reservation | Refused, shared: SharedAccountIds
    ) -> Reservation | Refused:
        """Hold what is reserved in every account that the step at this path is charged to, or return the refusal.

        `fitting`: what the accounts of the run have for it. Shared ones that were read may have less, or refuse it.
        """
        reserved = fitting
        if shared and self.shared_accounts is not None:
            nearest, *outer = self.accounts_above(path)
            reserved = reserve(nearest, request, [self.shared_account(number) for number in shared], outer)
        if isinstance(reserved, Refused):
            return reserved
        held, accounts = reserved.held, self.accounts
        for each in self.charged_paths(path) if self.branches else _RUN_ALONE:
            accounts[each] = accounts[each].hold(held)
        if shared:
            if request.price is None and self.shared_accounts is None:
                raise AssertionError("nobody knows what a token costs, so whether money is limited has to be known")
            # A step outside holds no tokens, but some have to be left.
            limited, spare = (_LIMITS_OUTSIDE, 1) if request.counts_only else (held, 0)
            self._add_due(shared, _shared_change((held, NOTHING, limited, spare)))
        return reserved

    def settle(self, path: str, held: Units, spent: Units, shared: SharedAccountIds) -> None:
        """Release what the step at this path held, and charge what it has cost."""
        charged, accounts = self.charged_paths(path) if self.branches else _RUN_ALONE, self.accounts
        for each in charged:
            accounts[each] = accounts[each].settle(held, spent)
        is_exceeded = spent.input_tokens > held.input_tokens or spent.output_tokens > held.output_tokens
        is_exceeded = is_exceeded or spent.nano_usd > held.nano_usd
        if is_exceeded:
            self.exceeded = self.exceeded.union(charged, shared)
        if shared:
            limited = _TOKENS_AND_MONEY if is_exceeded else NOTHING
            self._add_due(shared, _shared_change((NOTHING.minus(held), spent, limited, 0)))

    def cap_to_remaining(self, path: str, held: Units, spent: Units, shared: SharedAccountIds) -> Units:
        """Return as much of `spent` as every account that the step is charged to has left, once `held` is released."""
        remaining = [account.settle(held, NOTHING).remaining for account in self.accounts_above(path)]
        remaining += [self.shared_account(each).settle(shared_part(held), NOTHING).remaining for each in shared]
        least = {
            unit: min([amount, *(left for each in remaining if (left := getattr(each, unit)) is not None)])
            for unit, amount in spent._asdict().items()
        }
        # A total has to stay the sum of its parts: tokens read are kept first, then those written.
        read = min(least["input_tokens"], least["total_tokens"])
        written = min(least["output_tokens"], least["total_tokens"] - read)
        return Units(**{**least, "input_tokens": read, "output_tokens": written, "total_tokens": read + written})

    def exceeded_caps(self) -> Iterator[tuple[Account, str]]:
        """Yield (account, unit) for each cap that a usage above its reservation has exceeded, by the accounts' ids.

        What is held counts as well: it will be spent, and nothing would then single out the usage that went too far.
        A shared account that nobody has read is not named: what is due there is written only if nothing is exceeded.
        """
        found = [
            self.accounts[each] if isinstance(each, str) else self.shared_account(each)
            for each in self.exceeded
            if isinstance(each, str) or self.shared_accounts is not None
        ]
        for account in sorted(found, key=lambda each: each.id):
            for unit in SHARED_TOKENS:  # of model calls no more are ever made than were reserved
                cap = getattr(account.caps, unit)
                if cap is not None and getattr(account.spent, unit) + getattr(account.held, unit) > cap:
                    yield account, unit

    def shared_account(self, number: int) -> Account:
        """Return a shared account, which was read, with what is due there."""
        assert self.shared_accounts is not None, "it is read before anything depends on it"
        account, due = self.shared_accounts[number], self.due.get(number)
        if due is None:
            return account
        return account._replace(
            held=account.held.plus(shared_part(due.held)), spent=account.spent.plus(shared_part(due.spent))
        )

    def _add_due(self, shared: SharedAccountIds, change: SharedChange) -> None:
        due = self.due
        for number in shared:
            due[number] = change if (before := due.get(number)) is None else before.plus(change)
