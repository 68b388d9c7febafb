"""The accounts that one transaction reserves in and settles: each reservation sees what came before it there.

The run's own account and those of its branches are read once and written once. An account that runs share is not even
read where its caps have room: the change goes into it with one conditional update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add

import apsw

from kairos_mcp.budget.reservation import Reservation, ReservationRequest, reserve
from kairos_mcp.budget.units import NOTHING, Account, Units, shared_part
from kairos_mcp.core.errors import StoreCorrupt
from kairos_mcp.core.steps import Refused
from kairos_mcp.store import branches
from kairos_mcp.store.accounts import SharedAccounts, read_account, read_branch, unit_columns
from kairos_mcp.store.branches import NO_BRANCHES, BranchAccounts, NewBranch

_UPDATE_AMOUNTS = (
    f"update account set {', '.join(f'{name} = ?' for name in unit_columns('held', 'spent'))} where id = ?"
)
_UNITS = Units._fields[1:6]  # what counts in an account that runs share (budget.shared_part)
_CHANGES = ", ".join(
    f"{name} = {name} + ?{n}" for n, name in enumerate((f"{k}_{unit}" for k in ("held", "spent") for unit in _UNITS), 1)
)
_CHANGE = f"update account set {_CHANGES} where id = ?11"
_ROOM = " and ".join(
    f"(cap_{unit} is null or ?{n} is null or held_{unit} + spent_{unit} + ?{n} <= cap_{unit})"
    for n, unit in enumerate(_UNITS, 12)
)
_CHANGE_IF_ROOM = f"{_CHANGE} and {_ROOM}"
_NO_CHANGE = (0,) * 10
_NONE_SPENT = (0,) * 5

Change = tuple[int, ...]
"""A change of a shared account: what is held, then what is spent, in each unit that counts there."""


class ReservationBatch:
    """The accounts of one run's transaction, and the changes that are due for shared ones.

    `run_account`: as it is now. `branches`: the accounts of the run's branches by path, with those opened here.
    """

    __slots__ = (
        "_changes",
        "_connection",
        "_exceeded",
        "_read_branches",
        "_run_account_before",
        "branches",
        "run_account",
    )

    def __init__(
        self, connection: apsw.Connection, run_account: Account, branches: BranchAccounts = NO_BRANCHES
    ) -> None:
        self.run_account = self._run_account_before = run_account
        self.branches = branches
        self._connection = connection
        self._read_branches: dict[int, tuple[Account, Account]] = {}  # as they were read, and as they are now
        self._changes: dict[int, Change] = {}
        self._exceeded: set[int] = set()

    def open_branches(self, openings: Sequence[NewBranch]) -> None:
        """Open the accounts of branches that begin, outer ones first."""
        self.branches = dict(self.branches)
        for opening in openings:
            around = self.nearest_account(opening.path)
            number, caps = branches.open_branch_account(self._connection, opening, around)
            self.branches[opening.path] = number
            opened = Account(number, caps, NOTHING, NOTHING, f"branch {opening.path}")
            self._read_branches[number] = opened, opened

    def nearest_account(self, path: str) -> Account:
        """The account that a step is charged to first: of the nearest branch above its path, or the run's own."""
        within = branches.branches_above(self.branches, path)
        return self._branch(within[0]) if within else self.run_account

    def settle(self, path: str, held: Units, spent: Units, shared: SharedAccounts) -> None:
        """Release what the step at this path held, and charge what it has cost."""
        within = branches.branches_above(self.branches, path)
        self.run_account = self.run_account.settle(held, spent)
        for number in within:
            self._read_branches[number] = self._branch_before(number), self._branch(number).settle(held, spent)
        released, cost = _shared_amounts(held), _shared_amounts(spent)
        for number in shared:
            self._add_change(number, (*[-amount for amount in released], *cost))
        if cost[1] > released[1] or cost[2] > released[2] or cost[4] > released[4]:  # tokens read, written, their price
            self._exceeded.update((self.run_account.id, *within, *shared))

    def cap_to_remaining(self, path: str, held: Units, spent: Units, shared: SharedAccounts) -> Units:
        """As much of `spent` as every account that the step is charged to has left, once it has released `held`."""
        around = [self.run_account, *(self._branch(number) for number in branches.branches_above(self.branches, path))]
        lefts = [each.settle(held, NOTHING).remaining for each in around]
        lefts += [self._read_shared(number).settle(shared_part(held), NOTHING).remaining for number in shared]
        least = {
            unit: min([amount, *(left for rest in lefts if (left := getattr(rest, unit)) is not None)])
            for unit, amount in spent._asdict().items()
        }
        read = min(least["input_tokens"], least["total_tokens"])
        written = min(least["output_tokens"], least["total_tokens"] - read)
        return Units(**{**least, "input_tokens": read, "output_tokens": written, "total_tokens": read + written})

    def reserve(self, path: str, request: ReservationRequest, shared: SharedAccounts) -> Reservation | Refused:
        """Reserve for the step at this path in every account that it is charged to, or return the first refusal."""
        within = branches.branches_above(self.branches, path)
        nearest, around = self._accounts_above(within)
        reserved = reserve(nearest, request, (), around)
        if shared and isinstance(reserved, Reservation) and not self._reserve_shared(request, reserved, shared):
            reserved = reserve(nearest, request, [self._read_shared(number) for number in shared], around)
            if isinstance(reserved, Reservation):
                for number in shared:
                    self._add_change(number, _shared_amounts(reserved.held) + _NONE_SPENT)
        if isinstance(reserved, Reservation):
            self.run_account = self.run_account.hold(reserved.held)
            for number in within:
                self._read_branches[number] = self._branch_before(number), self._branch(number).hold(reserved.held)
        return reserved

    def write(self) -> None:
        """Write what is held and spent now."""
        for before, now in ((self._run_account_before, self.run_account), *self._read_branches.values()):
            if now != before:
                self._connection.execute(_UPDATE_AMOUNTS, (*now.held, *now.spent, now.id))
        for number, change in self._changes.items():
            if change != _NO_CHANGE:
                self._connection.execute(_CHANGE, (*change, number))
                if not self._connection.changes():
                    raise apsw.CorruptError(f"account {number} is not there")  # nothing of this transaction counts
        self._changes.clear()

    def exceeded_caps(self) -> Iterator[tuple[Account, str]]:
        """After `write`: the (account, unit) whose cap a usage above its reservation has exceeded.

        What is held counts as well: it will be spent, and nothing would then single out the usage that went too far.
        """
        for number in sorted(self._exceeded):
            account = self.run_account if number == self.run_account.id else self._branch_or_shared(number)
            for unit in _UNITS[1:]:
                cap = getattr(account.caps, unit)
                if cap is not None and getattr(account.spent, unit) + getattr(account.held, unit) > cap:
                    yield account, unit

    def _reserve_shared(self, request: ReservationRequest, reserved: Reservation, shared: SharedAccounts) -> bool:
        """Reserve in the shared accounts without reading them; False if one has no room for all of it."""
        if request.external or request.price is None:
            return False
        wanted = _shared_amounts(reserved.held)
        for nth, number in enumerate(shared):
            due = self._changes.get(number, _NO_CHANGE)
            more = [w + h + s if w else None for w, h, s in zip(wanted, due[:5], due[5:], strict=True)]
            self._connection.execute(_CHANGE_IF_ROOM, (*map(add, wanted, due), *due[5:], number, *more))
            if not self._connection.changes():
                for earlier in shared[:nth]:
                    self._add_change(earlier, (*[-amount for amount in wanted], *_NONE_SPENT))
                return False
            self._changes.pop(number, None)
        return True

    def _add_change(self, number: int, change: Change) -> None:
        known = self._changes.get(number)
        self._changes[number] = change if known is None else tuple(map(add, known, change))

    def _read_shared(self, number: int) -> Account:
        """A shared account as it is, with the changes that are due."""
        try:
            account = read_account(self._connection, number)
        except StoreCorrupt as gone:
            raise apsw.CorruptError(gone.message) from gone
        due = self._changes.get(number, _NO_CHANGE)
        held = Units(0, *map(add, _shared_amounts(account.held), due[:5]))
        spent = Units(0, *map(add, _shared_amounts(account.spent), due[5:]))
        return Account(number, account.caps, held, spent, account.scope)

    def _accounts_above(self, within: SharedAccounts) -> tuple[Account, list[Account]]:
        """The nearest account, and those around it up to the run's."""
        if not within:
            return self.run_account, []
        nearest, *around = [self._branch(number) for number in within]
        return nearest, [*around, self.run_account]

    def _branch(self, number: int) -> Account:
        if number not in self._read_branches:
            try:
                account = read_branch(self._connection, number)
            except StoreCorrupt as gone:
                raise apsw.CorruptError(gone.message) from gone
            self._read_branches[number] = account, account
        return self._read_branches[number][1]

    def _branch_before(self, number: int) -> Account:
        self._branch(number)
        return self._read_branches[number][0]

    def _branch_or_shared(self, number: int) -> Account:
        return self._read_branches[number][1] if number in self._read_branches else self._read_shared(number)


def _shared_amounts(units: Units) -> Change:
    """The amounts that count in an account that runs share, in the order of `_UNITS`."""
    return units[1:6]
