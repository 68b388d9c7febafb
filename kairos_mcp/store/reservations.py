"""The accounts that one transaction reserves in and settles: each reservation sees what came before it there.

The run's own account and those of its branches are read once and written once. A shared account is not even read where
its caps have room: the change is one conditional update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
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
from kairos_mcp.core.errors import StoreCorrupt
from kairos_mcp.core.limits import NOTHING, UNITS, Units
from kairos_mcp.core.steps import Refused, enclosing_paths
from kairos_mcp.store.accounts import (
    NO_BRANCHES,
    UPDATE_CAPS,
    AccountChange,
    BegunBranch,
    BranchAccountIds,
    SharedAccountIds,
    branches_above,
    insert_branch_account,
    read_account,
    read_branch,
    unit_columns,
)
from kairos_mcp.store.rows import CorruptRows, Session

UPDATE_AMOUNTS = f"update account set {', '.join(f'{name} = ?' for name in unit_columns('held', 'spent'))} where id = ?"
_SHARED_UNITS = [field for field, unit in UNITS.items() if unit.shared]
_shared_amounts: Callable[[Units], tuple[int, ...]] = attrgetter(*_SHARED_UNITS)
_SHARED_TOKENS = [field for field in _SHARED_UNITS if UNITS[field].held == "tokens"]
_SHARED_COLUMNS = [f"{kind}_{unit}" for kind in ("held", "spent") for unit in _SHARED_UNITS]
_ADD_TO_SHARED = f"update account set {', '.join(f'{name} = {name} + ?' for name in _SHARED_COLUMNS)} where id = ?"
_ADD_IF_ROOM = f"{_ADD_TO_SHARED} and " + " and ".join(
    f"(cap_{unit} is null or held_{unit} + spent_{unit} + ?{n} <= cap_{unit} or ?{n} is null)"
    for n, unit in enumerate(_SHARED_UNITS, len(_SHARED_COLUMNS) + 2)
)


class SharedChange(NamedTuple):
    """A change of a shared account: what is added to what it holds, and to what is spent of it."""

    held: Units = NOTHING
    spent: Units = NOTHING

    def plus(self, other: SharedChange) -> SharedChange:
        return SharedChange(self.held.plus(other.held), self.spent.plus(other.spent))

    def undone(self) -> SharedChange:
        return SharedChange(NOTHING.minus(self.held), NOTHING.minus(self.spent))

    def write(self, session: Session, account: int) -> None:
        """Change the account, whether or not it has room. Raises CorruptRows where it is not there."""
        if session.last_writes is not None:
            session.last_writes.add("account", account, _LastCharge(account, self))
        elif not session.change(_ADD_TO_SHARED, (*_shared_amounts(self.held), *_shared_amounts(self.spent), account)):
            raise CorruptRows(f"account {account} is not there")

    def write_if_room(self, session: Session, account: int, limited: Units, *, spare: int = 0) -> bool:
        """Change the account if its caps have room for all of it, and for `spare` more; return whether they have.

        A cap limits only the units of which `limited` has some: any other one may be over its cap already. Where other
        servers write beside this one (`last_writes`) it returns True, and the commit fails if there is no room.
        """
        if session.last_writes is not None:
            session.last_writes.add("account", account, _LastCharge(account, self, limited, spare))
            return True
        held, spent = _shared_amounts(self.held), _shared_amounts(self.spent)
        units = zip(held, spent, _shared_amounts(limited), strict=True)
        room = [more + used + spare if counts else None for more, used, counts in units]
        return bool(session.change(_ADD_IF_ROOM, (*held, *spent, account, *room)))


class _LastCharge(NamedTuple):
    """A change of a shared account, and what its caps are to have room for; see SharedChange.write_if_room."""

    account: int
    change: SharedChange
    limited: Units = NOTHING
    spare: int = 0

    def plus(self, other: _LastCharge) -> _LastCharge:
        change, limited = self.change.plus(other.change), self.limited.plus(other.limited)
        return _LastCharge(self.account, change, limited, max(self.spare, other.spare))

    def write(self, session: Session) -> None:
        self.change.write_if_room(session, self.account, self.limited, spare=self.spare)


NO_CHANGE = SharedChange()


def exceeds_held(held: Units, spent: Units) -> bool:
    """Whether a step has used more tokens or money than it held, so that a cap may be exceeded."""
    return (
        spent.input_tokens > held.input_tokens
        or spent.output_tokens > held.output_tokens
        or spent.nano_usd > held.nano_usd
    )


class ReservationBatch:
    """The accounts of one run's transaction, and the changes that are due for shared ones.

    `run_account`: with the amounts of now. `branches`: the accounts of the run's branches by path, including those
    opened here. `read`: those of them that were read already; others are read as they are needed.
    """

    __slots__ = (
        "_branches_read",
        "_changes",
        "_exceeded",
        "_kept_waiting",
        "_run_account_before",
        "_session",
        "branches",
        "run_account",
    )

    def __init__(
        self,
        session: Session,
        run_account: Account,
        branches: BranchAccountIds = NO_BRANCHES,
        read: Iterable[Account] = (),
    ) -> None:
        self.run_account = self._run_account_before = run_account
        self.branches = branches
        self._session = session
        self._branches_read = {account.id: AccountChange(account, account) for account in read}
        self._changes: dict[int, SharedChange] = {}
        self._exceeded: set[int] = set()
        self._kept_waiting: set[str] = set()  # what is around branches that wait for their siblings

    def open_branches(self, openings: Iterable[BegunBranch], first: ReservationRequest | None = None) -> bool:
        """Insert the accounts of branches that begin, outer ones first.

        False: one of them is not opened, nor any inside it. Its part would not buy its `first` step, and a sibling runs
        that may leave more; or one beside it that comes first waits already.
        """
        for branch in openings:
            around = branch.path.rpartition("/")[0]
            parent, siblings = self.nearest_account(branch.path), self._siblings(branch)
            if siblings and around in self._kept_waiting:
                return False
            caps, is_enough = open_branch(branch.share, parent, siblings, first)
            if siblings and not is_enough:
                self._kept_waiting.add(around)
                return False
            number = insert_branch_account(self._session, branch.path, parent.id, caps)
            self.branches = {**self.branches, branch.path: number}
            opened = Account(number, caps, NOTHING, NOTHING, f"branch {branch.path}")
            self._branches_read[number] = AccountChange(opened, opened)
        return True

    def raise_branches(self, path: str, around: Sequence[BegunBranch], request: ReservationRequest) -> None:
        """Raise the caps of the branches around a step, outer ones first, where they don't buy all that it asks for and
        their siblings have left more."""
        nearest, outer = self._nearest_and_outer(branches_above(self.branches, path))
        found = reserve(nearest, request, (), outer)
        if isinstance(found, Reservation) and found.max_tokens >= request.wanted_tokens:
            return
        for branch in around:
            number, enclosing = self.branches[branch.path], self.nearest_account(branch.path)
            account = self._branch(number)
            caps = raise_caps(branch.share, account, enclosing, self._siblings(branch), request)
            if caps is not None:
                self._change_branch(number, account._replace(caps=caps))

    def may_get_more(self, around: Sequence[BegunBranch], refused: Refused) -> bool:
        """Whether siblings that run may leave what a step lacks that stands in these branches."""
        if any(is_final(each.share, self.branch_account(each.path), refused.limit) for each in around):
            return False
        return any(self._siblings(branch) for branch in around)

    def _siblings(self, branch: BegunBranch) -> list[Account]:
        """Return the accounts of the branches that run beside this one."""
        return [self._branch(self.branches[path]) for path in branch.share.siblings if path in self.branches]

    def nearest_account(self, path: str) -> Account:
        """Return the account that a step is charged to first: of the nearest branch above its path, or the run's."""
        branch_ids = branches_above(self.branches, path)
        return self._branch(branch_ids[0]) if branch_ids else self.run_account

    def accounts_above(self, path: str) -> list[Account]:
        """Return the accounts that a step is charged to, from the nearest branch's to the run's own.

        For the path of a branch these are the accounts around it.
        """
        return [*(self._branch(number) for number in branches_above(self.branches, path)), self.run_account]

    def branch_account(self, path: str) -> Account:
        """Return the account of the branch at this path."""
        return self._branch(self.branches[path])

    def branch_around(self, path: str) -> str:
        """Return the path of the nearest branch around a step that has an account; empty where there is none."""
        return next((enclosing for enclosing in enclosing_paths(path) if enclosing in self.branches), "")

    def raise_rounds(self, path: str, more: int) -> None:
        """Raise the cap on rounds of the account that the step at this path is charged to first; it has one."""
        account = self.nearest_account(path)
        raised = account._replace(caps=account.caps._replace(rounds=(account.caps.rounds or 0) + more))
        if account.id == self.run_account.id:
            self.run_account = raised
        else:
            self._change_branch(account.id, raised)

    def settle(self, path: str, held: Units, spent: Units, shared: SharedAccountIds) -> None:
        """Release what the step at this path held, and charge what it has cost."""
        branch_ids = branches_above(self.branches, path)
        self.run_account = self.run_account.settle(held, spent)
        for number in branch_ids:
            self._change_branch(number, self._branch(number).settle(held, spent))
        for number in shared:
            self._add_change(number, SharedChange(NOTHING.minus(shared_part(held)), shared_part(spent)))
        if exceeds_held(held, spent):
            self._exceeded.update((self.run_account.id, *branch_ids, *shared))

    def cap_to_remaining(self, path: str, held: Units, spent: Units, shared: SharedAccountIds) -> Units:
        """Return as much of `spent` as every account that the step is charged to has left, once `held` is released."""
        own = [self.run_account, *(self._branch(number) for number in branches_above(self.branches, path))]
        remaining = [account.settle(held, NOTHING).remaining for account in own]
        remaining += [self._read_shared(number).settle(shared_part(held), NOTHING).remaining for number in shared]
        least = {
            unit: min([amount, *(left for each in remaining if (left := getattr(each, unit)) is not None)])
            for unit, amount in spent._asdict().items()
        }
        # A total has to stay the sum of its parts: tokens read are kept first, then those written.
        read = min(least["input_tokens"], least["total_tokens"])
        written = min(least["output_tokens"], least["total_tokens"] - read)
        return Units(**{**least, "input_tokens": read, "output_tokens": written, "total_tokens": read + written})

    def reserve(self, path: str, request: ReservationRequest, shared: SharedAccountIds) -> Reservation | Refused:
        """Reserve for the step at this path in every account that it is charged to, or return the first refusal."""
        branch_ids = branches_above(self.branches, path)
        nearest, outer = self._nearest_and_outer(branch_ids)
        reserved = reserve(nearest, request, (), outer)
        if shared and isinstance(reserved, Reservation) and not self._reserve_shared(request, reserved, shared):
            reserved = reserve(nearest, request, [self._read_shared(number) for number in shared], outer)
            if isinstance(reserved, Reservation):
                for number in shared:
                    self._add_change(number, SharedChange(shared_part(reserved.held)))
        if isinstance(reserved, Reservation):
            self.run_account = self.run_account.hold(reserved.held)
            for number in branch_ids:
                self._change_branch(number, self._branch(number).hold(reserved.held))
        return reserved

    @property
    def known_accounts(self) -> dict[str, Account]:
        """The accounts as they are now: the run's own under "", and those of branches that were read, by path."""
        read = self._branches_read
        own = {path: read[number].changed for path, number in self.branches.items() if number in read} if read else {}
        return {"": self.run_account, **own}

    def write(self) -> None:
        """Write what is held and spent now, and the caps that have risen."""
        for before, now in ((self._run_account_before, self.run_account), *self._branches_read.values()):
            if now.caps is not before.caps:
                self._session.rows(UPDATE_CAPS, (*now.caps, now.id))
            if now != before:
                self._session.rows(UPDATE_AMOUNTS, (*now.held, *now.spent, now.id))
        for number, change in self._changes.items():
            if change != NO_CHANGE:
                change.write(self._session, number)
        self._changes.clear()

    def exceeded_caps(self) -> Iterator[tuple[Account, str]]:
        """After `write`: yield (account, unit) for each cap that a usage above its reservation has exceeded.

        What is held counts as well: it will be spent, and nothing would then single out the usage that went too far.
        """
        for number in sorted(self._exceeded):
            account = self.run_account if number == self.run_account.id else self._branch_or_shared(number)
            for unit in _SHARED_TOKENS:  # of model calls no more are ever made than were reserved
                cap = getattr(account.caps, unit)
                if cap is not None and getattr(account.spent, unit) + getattr(account.held, unit) > cap:
                    yield account, unit

    def _reserve_shared(self, request: ReservationRequest, reserved: Reservation, shared: SharedAccountIds) -> bool:
        """Reserve in the shared accounts without reading them; False if one has no room for all of it."""
        if request.counts_only or request.price is None:
            return False
        new = SharedChange(shared_part(reserved.held))
        for nth, number in enumerate(shared):
            change = new.plus(self._changes.get(number, NO_CHANGE))
            if not change.write_if_room(self._session, number, new.held):
                for earlier in shared[:nth]:
                    self._add_change(earlier, SharedChange(NOTHING.minus(new.held)))
                return False
            self._changes.pop(number, None)
        return True

    def _add_change(self, number: int, change: SharedChange) -> None:
        self._changes[number] = self._changes.get(number, NO_CHANGE).plus(change)

    def _read_shared(self, number: int) -> Account:
        """Read a shared account, and add the changes that are due."""
        self._session.require_alone()
        try:
            account = read_account(self._session, number)
        except StoreCorrupt as gone:
            raise CorruptRows(gone.message) from gone
        due = self._changes.get(number, NO_CHANGE)
        held, spent = shared_part(account.held).plus(due.held), shared_part(account.spent).plus(due.spent)
        return Account(number, account.caps, held, spent, account.scope)

    def _nearest_and_outer(self, branch_ids: Sequence[int]) -> tuple[Account, list[Account]]:
        """Return the nearest account of a step, and those around it up to the run's."""
        if not branch_ids:
            return self.run_account, []
        nearest, *outer = [self._branch(number) for number in branch_ids]
        return nearest, [*outer, self.run_account]

    def _branch(self, number: int) -> Account:
        if number not in self._branches_read:
            try:
                account = read_branch(self._session, number)
            except StoreCorrupt as gone:
                raise CorruptRows(gone.message) from gone
            self._branches_read[number] = AccountChange(account, account)
        return self._branches_read[number].changed

    def _change_branch(self, number: int, changed: Account) -> None:
        self._branches_read[number] = self._branches_read[number]._replace(changed=changed)

    def _branch_or_shared(self, number: int) -> Account:
        return self._branches_read[number].changed if number in self._branches_read else self._read_shared(number)
