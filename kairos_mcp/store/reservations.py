"""The accounts that one transaction touches: each grant sees what the transaction itself has settled and held.

The run's own account and those of branches are read once and written once, with one point update. One that runs share
is not read at all where its caps have room: what is settled and held goes into it with one conditional update.
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
from kairos_mcp.store.accounts import Shared, amounts, read_account, read_branch
from kairos_mcp.store.branches import NO_BRANCHES, Branches, NewBranch

_WRITE = f"update account set {', '.join(f'{name} = ?' for name in amounts('held', 'spent'))} where id = ?"
_UNITS = Units._fields[1:6]  # what counts in an account that runs share (budget.shared_part)
_CHANGES = ", ".join(
    f"{name} = {name} + ?{n}" for n, name in enumerate((f"{k}_{unit}" for k in ("held", "spent") for unit in _UNITS), 1)
)
_TELL = f"update account set {_CHANGES} where id = ?11"
_ROOM = " and ".join(
    f"(cap_{unit} is null or ?{n} is null or held_{unit} + spent_{unit} + ?{n} <= cap_{unit})"
    for n, unit in enumerate(_UNITS, 12)
)
_TAKE = f"{_TELL} and {_ROOM}"
_NOT_TOLD = (0,) * 10
_NONE_SPENT = (0,) * 5

Change = tuple[int, ...]
"""By how much an account that runs share is to change: what it holds in each unit that counts there, what is spent."""


class ReservationBatch:
    """What is settled is `own.settle` for the run and each branch around, and a change that is due for each account
    that runs share. `branches`: the accounts of the run's branches by path, with those that were opened here."""

    __slots__ = ("_around", "_before", "_connection", "_due", "_passed", "branches", "own")

    def __init__(self, connection: apsw.Connection, own: Account, known: Branches = NO_BRANCHES) -> None:
        self.own = self._before = own
        self.branches = known
        self._connection = connection
        self._around: dict[int, tuple[Account, Account]] = {}  # branches as read, and as they are now
        self._due: dict[int, Change] = {}
        self._passed: set[int] = set()

    def open(self, openings: Sequence[NewBranch]) -> None:
        """Open the accounts of branches that begin, outer ones first: what they divide is the same for all."""
        self.branches = dict(self.branches)
        for opening in openings:
            around = self.nearest(opening.path)
            number, caps = branches.insert(self._connection, opening, around)
            self.branches[opening.path] = number
            opened = Account(number, caps, NOTHING, NOTHING, f"branch {opening.path}")
            self._around[number] = opened, opened

    def nearest(self, path: str) -> Account:
        """The account that a step is charged to first: that of the nearest branch above its path, or the run's own."""
        within = branches.above(self.branches, path)
        return self._branch(within[0]) if within else self.own

    def settle(self, path: str, held: Units, spent: Units, shared: Shared) -> None:
        """The step at this path held so much and has cost so much."""
        within = branches.above(self.branches, path)
        self.own = self.own.settle(held, spent)
        for number in within:
            self._around[number] = self._around_before(number), self._branch(number).settle(held, spent)
        let_go, cost = held[1:6], spent[1:6]
        for number in shared:
            self._owe(number, (*[-amount for amount in let_go], *cost))
        if cost[1] > let_go[1] or cost[2] > let_go[2] or cost[4] > let_go[4]:  # tokens read, written, their price
            self._passed.update((self.own.id, *within, *shared))

    def at_most(self, path: str, held: Units, spent: Units, shared: Shared) -> Units:
        """So much of `spent` as every account that the step is charged to has left, once it has let go of `held`."""
        around = [self.own, *(self._branch(number) for number in branches.above(self.branches, path))]
        lefts = [each.settle(held, NOTHING).remaining for each in around]
        lefts += [self._read(number).settle(shared_part(held), NOTHING).remaining for number in shared]
        least = {
            unit: min([amount, *(left for rest in lefts if (left := getattr(rest, unit)) is not None)])
            for unit, amount in spent._asdict().items()
        }
        read = min(least["input_tokens"], least["total_tokens"])
        written = min(least["output_tokens"], least["total_tokens"] - read)
        return Units(**{**least, "input_tokens": read, "output_tokens": written, "total_tokens": read + written})

    def hold(self, path: str, claim: ReservationRequest, shared: Shared) -> Reservation | Refused:
        """Leave for the step at this path, held in every account that it is charged to; or the first refusal."""
        within = branches.above(self.branches, path)
        nearest, around = self._chain(within)
        leave = reserve(nearest, claim, (), around)
        if shared and isinstance(leave, Reservation) and not self._take(claim, leave, shared):
            leave = reserve(nearest, claim, [self._read(number) for number in shared], around)
            if isinstance(leave, Reservation):
                for number in shared:
                    self._owe(number, leave.held[1:6] + _NONE_SPENT)
        if isinstance(leave, Reservation):
            self.own = self.own.hold(leave.held)
            for number in within:
                self._around[number] = self._around_before(number), self._branch(number).hold(leave.held)
        return leave

    def write(self) -> None:
        """Say what is held and spent now."""
        for before, now in ((self._before, self.own), *self._around.values()):
            if now != before:
                self._connection.execute(_WRITE, (*now.held, *now.spent, now.id))
        for number, change in self._due.items():
            if change != _NOT_TOLD:
                self._connection.execute(_TELL, (*change, number))
                if not self._connection.changes():
                    raise apsw.CorruptError(f"account {number} is not there")  # nothing of this transaction counts
        self._due.clear()

    def passed(self) -> Iterator[tuple[Account, str]]:
        """After `write`: the caps that a report above what was held has taken an account past.

        What is held counts: it was granted before that report, so it may take the account past the cap when it is
        settled, and nothing will then stand out.
        """
        for number in sorted(self._passed):
            account = self.own if number == self.own.id else self._branch_or_shared(number)
            for unit in _UNITS[1:]:
                cap = getattr(account.caps, unit)
                if cap is not None and getattr(account.spent, unit) + getattr(account.held, unit) > cap:
                    yield account, unit

    def _take(self, claim: ReservationRequest, leave: Reservation, shared: Shared) -> bool:
        """Hold it in the shared accounts, if each has room for all of it: then nothing has to be read."""
        if claim.external or claim.price is None:
            return False
        wanted = leave.held[1:6]
        for nth, number in enumerate(shared):
            due = self._due.get(number, _NOT_TOLD)
            more = [w + h + s if w else None for w, h, s in zip(wanted, due[:5], due[5:], strict=True)]
            self._connection.execute(_TAKE, (*map(add, wanted, due), *due[5:], number, *more))
            if not self._connection.changes():
                for taken in shared[:nth]:
                    self._owe(taken, (*[-amount for amount in wanted], *_NONE_SPENT))
                return False
            self._due.pop(number, None)
        return True

    def _owe(self, number: int, change: Change) -> None:
        known = self._due.get(number)
        self._due[number] = change if known is None else tuple(map(add, known, change))

    def _read(self, number: int) -> Account:
        """A shared account as it is, with what it is still to be told."""
        try:
            account = read_account(self._connection, number)
        except StoreCorrupt as gone:
            raise apsw.CorruptError(gone.message) from gone
        due = self._due.get(number, _NOT_TOLD)
        held = Units(0, *map(add, account.held[1:6], due[:5]))
        return Account(number, account.caps, held, Units(0, *map(add, account.spent[1:6], due[5:])), account.scope)

    def _chain(self, within: Shared) -> tuple[Account, list[Account]]:
        """The nearest account, and those around it up to the run's."""
        if not within:
            return self.own, []
        nearest, *around = [self._branch(number) for number in within]
        return nearest, [*around, self.own]

    def _branch(self, number: int) -> Account:
        if number not in self._around:
            try:
                account = read_branch(self._connection, number)
            except StoreCorrupt as gone:
                raise apsw.CorruptError(gone.message) from gone
            self._around[number] = account, account
        return self._around[number][1]

    def _around_before(self, number: int) -> Account:
        self._branch(number)
        return self._around[number][0]

    def _branch_or_shared(self, number: int) -> Account:
        return self._around[number][1] if number in self._around else self._read(number)
