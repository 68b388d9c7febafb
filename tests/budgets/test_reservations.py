"""The law of the tree of accounts: in whatever order steps of a run and of its branches request and settle, nothing
reserved takes an account over a cap, and each account is the sum of what was charged to it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from support.empty_store import WHOLE_SWEEP, empty_tables

from kairos_mcp.budget.ledger import RUN, BegunBranch, Ledger, SharedAccountIds, SharedChange
from kairos_mcp.budget.reservation import (
    SHARED_SCOPES,
    USEFUL_TOKENS,
    WHOLE_PREFIX,
    Account,
    Reservation,
    ReservationRequest,
    reserve,
    shared_part,
)
from kairos_mcp.core.errors import Unreadable
from kairos_mcp.core.limits import NOTHING, UNLIMITED, BranchShare, Limits, Price, Units, counts_of
from kairos_mcp.core.steps import Refused
from kairos_mcp.store.account_changes import SharedAccounts, write_accounts, write_shared
from kairos_mcp.store.accounts import (
    NO_BRANCHES,
    BranchAccountIds,
    read_account,
    read_branches_at,
    unit_columns,
)
from kairos_mcp.store.rows import CorruptRows, LastWrites, Session

PURPOSES = ("round", "round", "repair", "compact", "closing", "call")
SHARED_UNITS = ("model_calls", "input_tokens", "output_tokens", "total_tokens", "nano_usd")
FIRM_UNITS = ("rounds", "model_calls", "tool_calls", "nano_usd")  # what no answer from outside can pass
SAMPLE = 1_000
OWN = 1


@dataclass
class Held:
    """A step under way: its path, what it holds, of which accounts, and whether somebody else completes it."""

    path: str
    units: Units
    shared: SharedAccountIds
    request: ReservationRequest


Key = str | int  # of an account: the path of a branch, "" for the run's own, or the id of a shared one


@dataclass
class Books:
    """The sums as the test keeps them, apart from the accounts' own; `opened`: the ids of branches by path."""

    held: dict[Key, Units] = field(default_factory=dict)
    spent: dict[Key, Units] = field(default_factory=dict)
    opened: dict[str, int] = field(default_factory=dict)

    def add(self, book: dict[Key, Units], path: str, shared: SharedAccountIds, amount: Units) -> None:
        for key in (RUN, *(branch for branch in self.opened if path.startswith(f"{branch}/"))):
            book[key] = book.get(key, NOTHING).plus(amount)
        for number in shared:
            book[number] = book.get(number, NOTHING).plus(shared_part(amount))

    def copy(self) -> Books:
        return Books(dict(self.held), dict(self.spent), dict(self.opened))


def some_request(chance: random.Random) -> ReservationRequest:
    purpose = chance.choice(PURPOSES)
    if purpose == "call":
        return ReservationRequest(counts_of("call"), "call", timeout_ms=chance.randint(1, 60_000))
    price = chance.choice((Price(0, 0), Price(10, 50), Price(1_000, 10_000), None))
    return ReservationRequest(
        counts_of(purpose),
        purpose,
        counts_only=chance.random() < 0.2,
        input_bound=chance.randint(0, 6_000),
        wanted_tokens=chance.randint(1, 4_096),
        timeout_ms=300_000,
        price=price,
    )


def some_caps(chance: random.Random, units: tuple[str, ...]) -> Limits:
    tops = {"rounds": 12, "model_calls": 15, "tool_calls": 12, "nano_usd": 90_000_000, "milliseconds": 3_000_000}
    return Limits(**{unit: chance.randint(0, tops.get(unit, 60_000)) for unit in units if chance.random() < 0.5})


def open_accounts(session: Session, caps: list[Limits]) -> None:
    """An account for each of these caps, the first a run's own."""
    empty_tables(session, "account")
    for number, each in enumerate(caps, OWN):
        columns = f"scope, {', '.join(unit_columns('cap'))}"
        scope = "run" if number == OWN else SHARED_SCOPES[number % 2]
        inserted = session.insert(f"insert into account({columns}) values (?{', ?' * len(each)})", (scope, *each))
        assert inserted == number


def open_ledger(session: Session, branches: BranchAccountIds = NO_BRANCHES, *, is_blind: bool = False) -> Ledger:
    """The accounts of the run and of all these branches; with `is_blind`, those that runs share are not read."""
    known = {RUN: read_account(session, OWN), **read_branches_at(session, branches, list(branches))}
    return Ledger(known, branches, None if is_blind else SharedAccounts(session))


def reserve_in(
    ledger: Ledger, path: str, request: ReservationRequest, shared: SharedAccountIds
) -> Reservation | Refused:
    """Reserve for the step at this path in every account that it is charged to."""
    return ledger.hold(path, request, ledger.fit(path, request), shared)


def write(session: Session, ledger: Ledger, books: Books) -> bool:
    """Write what the ledger says; False where a shared account that was not read has no room."""
    opened = write_accounts(session, ledger)
    books.opened.update(opened or {})
    return opened is not None


def assert_history_adds_up(session: Session, seed: int) -> None:
    """One history: a few transactions, each of which opens branches, requests and settles."""
    chance = random.Random(seed)
    numbers = tuple(range(2, 2 + chance.randint(0, 3)))
    caps = [some_caps(chance, Units._fields), *(some_caps(chance, SHARED_UNITS) for _ in numbers)]
    open_accounts(session, caps)
    under_way: list[Held] = []
    books = Books()
    for _ in range(chance.randint(1, 6)):
        is_blind, before = chance.random() < 0.5, (chance.getstate(), list(under_way), books.copy())
        if not transact(session, chance, numbers, under_way, books, is_blind=is_blind):
            assert is_blind, "what was decided on accounts that were read is written"
            agree(session, before[2], numbers)  # nothing was
            chance.setstate(before[0])
            under_way, books = before[1:]
            assert transact(session, chance, numbers, under_way, books)
        agree(session, books, numbers)
    for each in under_way:
        ledger = open_ledger(session, books.opened)
        ledger.settle(each.path, each.units, NOTHING, each.shared)
        books.add(books.held, each.path, each.shared, NOTHING.minus(each.units))
        write(session, ledger, books)
    agree(session, books, numbers)
    assert all(set(read_account(session, n).held) == {0} for n in (OWN, *numbers, *books.opened.values()))


def transact(
    session: Session,
    chance: random.Random,
    numbers: SharedAccountIds,
    under_way: list[Held],
    books: Books,
    *,
    is_blind: bool = False,
) -> bool:
    """One transaction; False where nothing of it is written."""
    ledger = open_ledger(session, books.opened, is_blind=is_blind)
    if chance.random() < 0.5:
        begin(ledger, chance, books)
    for _ in range(chance.randint(1, 5)):
        if books.opened and chance.random() < 0.1:
            raise_rounds(ledger, chance, books)
        if under_way and chance.random() < 0.45:
            settle(ledger, under_way.pop(chance.randrange(len(under_way))), chance, books)
        else:
            branch = chance.choice(("", *(f"{path}/" for path in books.opened)))
            hold(ledger, f"{branch}step", some_request(chance), numbers, under_way, books)
    if not write(session, ledger, books):
        return False
    for number, change in ledger.due.items() if is_blind else ():
        account = read_account(session, number)
        for unit in SHARED_UNITS:  # what was limited fits, though nobody has looked
            cap = getattr(account.caps, unit)
            if cap is not None and getattr(change.limited, unit):
                assert getattr(account.held, unit) + getattr(account.spent, unit) <= cap, (account, unit)
    return True


def begin(ledger: Ledger, chance: random.Random, books: Books) -> None:
    """Branches that begin together, at any depth."""
    outer = chance.choice(("", *(f"{path}/" for path in books.opened if path.count("/") < 2)))
    among, nth = chance.randint(1, 16), len(books.opened)
    share = BranchShare(some_caps(chance, Units._fields), among, some_caps(chance, Units._fields))
    openings = [BegunBranch(f"{outer}task-{nth + n}", share) for n in range(chance.randint(1, min(3, among)))]
    enclosing = ledger.nearest_account(f"{outer}step")
    ledger.open_branches(openings)
    for each in openings:
        opened = ledger.nearest_account(f"{each.path}/step")
        for asked, cap, left in zip(share.limits, opened.caps, enclosing.remaining):  # noqa: B905 - a tuple of as many
            assert cap is None or asked is None or cap <= asked
            assert left is None or (cap is not None and cap * among <= left)
    books.opened |= dict.fromkeys(ledger.opened, 0)  # they get their ids when they are written


def raise_rounds(ledger: Ledger, chance: random.Random, books: Books) -> None:
    """A loop in a branch is granted more rounds: within its own cap no more than those around it have left."""
    path = f"{chance.choice(list(books.opened))}/step"
    before = ledger.accounts_above(path)
    if before[0].caps.rounds is None:
        return
    more = chance.randint(1, 10)
    ledger.raise_rounds(path, more)
    raised = before[0]._replace(caps=before[0].caps._replace(rounds=before[0].caps.rounds + more))
    assert ledger.accounts_above(path) == [raised, *before[1:]]  # those around it stay as they are, and still refuse


def hold(
    ledger: Ledger,
    path: str,
    request: ReservationRequest,
    numbers: SharedAccountIds,
    under_way: list[Held],
    books: Books,
) -> None:
    shared = numbers if request.counts.model_calls else ()
    if ledger.shared_accounts is None:
        request = request._replace(price=request.price or Price(0, 0))  # else the shared accounts have to be read
    nearest, *outer = ledger.accounts_above(path)
    read = [] if ledger.shared_accounts is None else [ledger.shared_account(number) for number in shared]
    expected = reserve(nearest, request, read, outer)
    outcome = reserve_in(ledger, path, request, shared)
    assert outcome == expected
    if isinstance(outcome, Refused):
        assert outcome.allowed is not None
        return
    assert 0 <= outcome.max_tokens <= request.wanted_tokens
    if request.purpose == "round" and not request.counts_only:
        assert outcome.max_tokens >= min(USEFUL_TOKENS, request.wanted_tokens)
    books.add(books.held, path, shared, outcome.held)
    closing = request.purpose == "closing"  # it has half a minute of its own
    read = [] if ledger.shared_accounts is None else [ledger.shared_account(number) for number in shared]
    for account, amount in (
        *((each, outcome.held) for each in ledger.accounts_above(path)),
        *((each, shared_part(outcome.held)) for each in read),
    ):  # what was held at this moment fits every cap
        for unit in Units._fields[: 7 if closing else 8]:
            cap = getattr(account.caps, unit)
            if cap is not None and getattr(amount, unit):
                assert getattr(account.held, unit) + getattr(account.spent, unit) <= cap, (account, unit)
    under_way.append(Held(path, outcome.held, shared, request))


def settle(ledger: Ledger, each: Held, chance: random.Random, books: Books) -> None:
    """It cost at most what was held; a step of somebody else may cost anything."""
    held = each.units
    read, written = chance.randint(0, held.input_tokens), chance.randint(0, held.output_tokens)
    if each.request.counts_only:
        read, written = chance.randint(0, 9_000), chance.randint(0, 9_000)
    cost = 0 if each.request.counts_only else (each.request.price or Price(0, 0)).cost(read, written)
    spent = held._replace(
        input_tokens=read, output_tokens=written, total_tokens=read + written, nano_usd=cost, milliseconds=0
    )
    ledger.settle(each.path, held, spent, each.shared)
    books.add(books.held, each.path, each.shared, NOTHING.minus(held))
    books.add(books.spent, each.path, each.shared, spent)


def agree(session: Session, books: Books, numbers: SharedAccountIds) -> None:
    keys: dict[Key, int] = {RUN: OWN, **books.opened, **{number: number for number in numbers}}
    for key, number in keys.items():
        account = read_account(session, number)
        assert account.held == books.held.get(key, NOTHING)
        assert account.spent == books.spent.get(key, NOTHING)
        assert all(left is None or left >= 0 for left in account.remaining)
        for unit in FIRM_UNITS:
            cap = getattr(account.caps, unit)
            assert cap is None or getattr(account.held, unit) + getattr(account.spent, unit) <= cap


USED = {"model_calls": 3, "nano_usd": 10**9}


@pytest.mark.parametrize("unit", SHARED_UNITS)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_that_is_used_up_among_several_refuses_and_is_named(unit: str, at: int) -> None:
    full = USED.get(unit, 50_000)
    caps, spent = Limits(**{unit: full}), Units(**{unit: full})
    several = [
        Account(2 + nth, caps if nth == at else Limits(), NOTHING, spent if nth == at else NOTHING, f"day {nth}")
        for nth in range(3)
    ]
    request = ReservationRequest(counts_of("round"), "round", False, 100, 1_000, 1_000, 1, Price(10, 10))
    refused = reserve(Account(1, Limits(), NOTHING, NOTHING), request, several)
    assert isinstance(refused, Refused)
    assert (refused.limit, refused.scope) == (unit, f"day {at}")


@pytest.mark.parametrize("unit", SHARED_UNITS)
def test_one_that_would_refuse_also_if_it_were_empty_is_named_as_a_whole(unit: str) -> None:
    least = {"model_calls": 0, "nano_usd": 10 * 355, "input_tokens": 99, "output_tokens": 255}.get(unit, 355)
    request = ReservationRequest(counts_of("round"), "round", False, 100, 1_000, 1_000, 1, Price(10, 10))
    for spent in (0, 1):
        account = Account(2, Limits(**{unit: least}), NOTHING, Units(**{unit: spent}), "day")
        refused = reserve(Account(1, Limits(), NOTHING, NOTHING), request, [account])
        assert isinstance(refused, Refused)
        assert (refused.limit, refused.scope) == (unit, f"{WHOLE_PREFIX}day")
    roomy = Account(2, Limits(**{unit: least + 10}), NOTHING, NOTHING, "day")
    assert isinstance(reserve(Account(1, Limits(), NOTHING, NOTHING), request, [roomy]), Reservation)


def test_the_smallest_of_several_accounts_decides_what_may_be_written() -> None:
    several = [
        Account(2 + nth, Limits(total_tokens=left), NOTHING, NOTHING, "day") for nth, left in enumerate((900, 500, 700))
    ]
    request = ReservationRequest(counts_of("round"), "round", False, 100, 1_000, 1_000)
    outcome = reserve(Account(1, Limits(), NOTHING, NOTHING), request, several)
    assert isinstance(outcome, Reservation)
    assert (outcome.max_tokens, outcome.held.total_tokens) == (400, 500)


def test_the_accounts_around_a_branch_decide_too_but_the_nearest_alone_keeps_a_closing_call_free() -> None:
    branch, run = (
        Account(n, Limits(total_tokens=left), NOTHING, Units(rounds=1), scope)
        for n, left, scope in ((2, 9_000, "branch task-1"), (1, 500, "run"))
    )
    request = ReservationRequest(counts_of("round"), "round", False, 100, 1_000, 1_000)
    outcome = reserve(branch, request, (), [run])
    assert isinstance(outcome, Reservation)
    assert outcome.max_tokens == 400
    refused = reserve(run, request, (), [branch])
    assert refused == run.refuse("total_tokens")
    for unit in ("rounds", "model_calls", "tool_calls"):
        empty = Account(1, Limits(**{unit: 1}), NOTHING, Units(**{unit: 1}))
        kind = "call" if unit == "tool_calls" else "round"
        assert reserve(branch, ReservationRequest(counts_of(kind), kind, timeout_ms=9), (), [empty]) == empty.refuse(
            unit
        )


CALL_OF_A_TASK = ReservationRequest(counts_of("phase"), "phase", False, 100, 400, 1_000, 1, Price(1, 2))


def open_branches(session: Session, *paths: str, caps: Limits = UNLIMITED) -> BranchAccountIds:
    """Branches with accounts of their own, outer ones first."""
    ledger = open_ledger(session)
    ledger.open_branches([BegunBranch(path, BranchShare(caps, 1)) for path in paths])
    opened = write_accounts(session, ledger)
    assert opened is not None
    return opened


def test_an_account_that_changes_several_times_in_one_transaction_keeps_every_change(
    session: Session,
) -> None:
    open_accounts(session, [Limits(), Limits()])
    known = open_branches(session, "task", "task/try")
    ledger = open_ledger(session, known)
    leaves = [reserve_in(ledger, "task/try/step", CALL_OF_A_TASK, (2,)) for _ in range(3)]
    held = [outcome.held for outcome in leaves if isinstance(outcome, Reservation)]
    assert len(held) == 3
    spent = [
        Units(model_calls=1, input_tokens=n, output_tokens=2 * n, total_tokens=3 * n, nano_usd=5 * n) for n in (10, 20)
    ]
    ledger.settle("task/try/step", held[0], spent[0], (2,))
    ledger.settle("task/try/step", held[1], spent[1], (2,))
    write_accounts(session, ledger)
    for number in (OWN, *known.values()):
        account = read_account(session, number)
        assert (account.held, account.spent) == (held[2], spent[0].plus(spent[1]))
    day = read_account(session, 2)
    assert (day.held, day.spent) == (shared_part(held[2]), shared_part(spent[0].plus(spent[1])))


def test_where_others_write_beside_it_what_is_released_and_held_of_a_shared_account_is_one_change_at_the_end(
    session: Session,
) -> None:
    """Apart, what is held would be looked at before the room for it is there."""
    open_accounts(session, [Limits(), Limits(total_tokens=500)])
    first = open_ledger(session, is_blind=True)
    held = reserve_in(first, "step", CALL_OF_A_TASK, (2,))
    assert isinstance(held, Reservation)
    assert held.held.total_tokens == 500
    write_accounts(session, first)
    session.last_writes = due = LastWrites()
    try:
        ending = open_ledger(session, is_blind=True)
        ending.settle("step", held.held, Units(total_tokens=50), (2,))
        write_accounts(session, ending)
        beginning = open_ledger(session, is_blind=True)
        begun = reserve_in(beginning, "other", CALL_OF_A_TASK._replace(wanted_tokens=350), (2,))
        assert isinstance(begun, Reservation)
        write_accounts(session, beginning)
        assert read_account(session, 2).held == shared_part(held.held)  # nothing is written yet
        assert list(due._writes) == [("account", 2)]
    finally:
        session.last_writes = None
    due.write(session)
    day = read_account(session, 2)
    assert (day.held, day.spent) == (shared_part(begun.held), Units(total_tokens=50))  # to the last token of its cap


@pytest.mark.parametrize(("cap", "is_written"), [(1, False), (2, True)])
def test_what_is_handed_out_needs_that_something_is_left_whatever_else_is_due(
    session: Session, cap: int, is_written: bool
) -> None:
    open_accounts(session, [Limits(), Limits(model_calls=cap)])
    one = Units(model_calls=1)
    session.last_writes = due = LastWrites()
    try:
        assert write_shared(session, 2, SharedChange(one, limited=one, spare=1))
        assert write_shared(session, 2, SharedChange(spent=Units(total_tokens=9)))
    finally:
        session.last_writes = None
    due.write(session)
    assert read_account(session, 2).held == (one if is_written else NOTHING)


def test_more_rounds_for_the_run_itself_raise_its_own_cap_alone(session: Session) -> None:
    open_accounts(session, [Limits(rounds=3)])
    known = open_branches(session, "task", caps=Limits(rounds=2))
    ledger = open_ledger(session, known)
    ledger.raise_rounds("step", 4)
    assert ledger.accounts[RUN].caps == Limits(rounds=7)
    write_accounts(session, ledger)
    assert [read_account(session, number).caps.rounds for number in (OWN, known["task"])] == [7, 2]


def test_the_branch_around_a_step_is_the_nearest_that_has_an_account(session: Session) -> None:
    open_accounts(session, [Limits()])
    ledger = open_ledger(session, open_branches(session, "task", "task/try"))
    around = {path: ledger.charged_paths(path)[0] for path in ("step", "task/step", "task/try/step", "other/step")}
    assert around == {"step": "", "task/step": "task", "task/try/step": "task/try", "other/step": ""}


def test_a_change_is_not_lost_because_one_of_nothing_follows(session: Session) -> None:
    open_accounts(session, [Limits()])
    known = open_branches(session, "task")
    ledger = open_ledger(session, known)
    ledger.settle("task/step", NOTHING, Units(tool_calls=1), ())
    ledger.settle("task/other", NOTHING, NOTHING, ())
    write_accounts(session, ledger)
    assert [read_account(session, number).spent for number in (OWN, known["task"])] == [Units(tool_calls=1)] * 2


@pytest.mark.parametrize("unit", ["input_tokens", "output_tokens", "nano_usd"])
@pytest.mark.parametrize("excess", [0, 1])
def test_a_report_above_what_was_held_names_each_account_that_it_took_past_a_cap(
    session: Session, unit: str, excess: int
) -> None:
    """Of each unit alone: what was read, what was written, what it cost. What is only just held names nothing."""
    cap = Limits(**{unit: 1_000})
    open_accounts(session, [cap, cap])
    known = open_branches(session, "task", caps=cap)
    session.rows(f"update account set held_{unit} = 1000")
    ledger = open_ledger(session, known)
    ledger.settle("task/step", Units(**{unit: 1_000}), Units(**{unit: 1_000 + excess}), (2,))
    passed = [(account.id, name) for account, name in ledger.exceeded_caps()]
    assert passed == [(number, unit) for number in sorted((OWN, 2, known["task"]))] * excess


@pytest.mark.parametrize("unit", ["input_tokens", "output_tokens", "nano_usd"])
def test_a_report_of_what_was_held_names_no_account_that_another_took_past_its_cap(session: Session, unit: str) -> None:
    """It was named when it was taken there."""
    open_accounts(session, [Limits(**{unit: 1_000})])
    session.rows(f"update account set held_{unit} = 100, spent_{unit} = 2000")
    ledger = open_ledger(session)
    ledger.settle("step", Units(**{unit: 100}), Units(**{unit: 100}), ())
    write_accounts(session, ledger)
    assert list(ledger.exceeded_caps()) == []


def test_a_report_above_what_was_held_that_stays_within_every_cap_names_none(session: Session) -> None:
    open_accounts(session, [Limits(output_tokens=1_000)])
    session.rows("update account set held_output_tokens = 10")
    ledger = open_ledger(session)
    ledger.settle("step", Units(output_tokens=10), Units(output_tokens=1_000), ())
    write_accounts(session, ledger)
    assert list(ledger.exceeded_caps()) == []


def test_what_is_held_already_counts_when_a_report_is_looked_at(session: Session) -> None:
    open_accounts(session, [Limits(output_tokens=1_000)])
    session.rows("update account set held_output_tokens = 600")
    ledger = open_ledger(session)
    ledger.settle("step", Units(output_tokens=100), Units(rounds=1, output_tokens=501), ())
    write_accounts(session, ledger)
    assert list(ledger.exceeded_caps()) == [(ledger.accounts[RUN], "output_tokens")]
    assert ledger.accounts[RUN].spent.rounds == 1


def test_an_account_that_is_not_there_undoes_the_transaction(session: Session) -> None:
    open_accounts(session, [Limits()])
    ledger = open_ledger(session)
    ledger.settle("step", NOTHING, Units(model_calls=1), (99,))
    with pytest.raises(CorruptRows):
        write_accounts(session, ledger)
    with pytest.raises(CorruptRows):
        reserve_in(open_ledger(session), "step", CALL_OF_A_TASK, (98,))
    with pytest.raises(Unreadable):
        open_ledger(session, {"task": 97})


def test_what_has_no_price_is_not_held_before_shared_accounts_are_read(session: Session) -> None:
    """Money may be limited there."""
    open_accounts(session, [Limits(), Limits(nano_usd=0)])
    unpriced = CALL_OF_A_TASK._replace(price=None)
    with pytest.raises(AssertionError, match="costs"):
        reserve_in(open_ledger(session, is_blind=True), "step", unpriced, (2,))
    assert isinstance(reserve_in(open_ledger(session), "step", unpriced, (2,)), Refused)


SPENT = Units(rounds=1, model_calls=1, input_tokens=80, output_tokens=40, total_tokens=120, nano_usd=500)
HELD = Units(rounds=1, model_calls=1, input_tokens=60, output_tokens=30, total_tokens=90, nano_usd=400)


@pytest.mark.parametrize(
    ("caps", "read", "written", "cost"),
    [
        ({}, 80, 40, 500),
        ({"total_tokens": 120}, 80, 40, 500),
        ({"total_tokens": 100}, 80, 20, 500),
        ({"total_tokens": 80}, 80, 0, 500),
        ({"total_tokens": 70}, 70, 0, 500),
        ({"total_tokens": 0}, 0, 0, 500),
        ({"input_tokens": 30}, 30, 40, 500),
        ({"output_tokens": 10}, 80, 10, 500),
        ({"input_tokens": 50, "total_tokens": 70}, 50, 20, 500),
        ({"nano_usd": 450}, 80, 40, 450),
        ({"input_tokens": 30, "output_tokens": 10, "nano_usd": 0}, 30, 10, 0),
    ],
)
@pytest.mark.parametrize("whose", ["run", "branch", "day"])
def test_what_a_lost_step_is_charged_at_most_is_what_every_account_has_left_once_it_has_let_go(
    session: Session, whose: str, caps: dict[str, int], read: int, written: int, cost: int
) -> None:
    """Of the tokens that it may have read and written, those that it read come first."""
    limits = Limits(**caps)
    open_accounts(session, [limits if whose == "run" else Limits(), limits if whose == "day" else Limits()])
    known = open_branches(session, "task", caps=limits if whose == "branch" else UNLIMITED)
    for unit in SHARED_UNITS:
        held = getattr(HELD, unit)  # by this step; what the caps say is beside that of another one
        session.rows(f"update account set held_{unit} = ?, spent_{unit} = 7, cap_{unit} = cap_{unit} + 7", (held,))
    ledger = open_ledger(session, known)
    charged = ledger.cap_to_remaining("task/step", HELD, SPENT, (2,))
    assert charged == Units(1, 1, read, written, read + written, cost)
    assert read_account(session, 2).held == shared_part(HELD)  # nothing has changed by the question
    assert charged == ledger.cap_to_remaining("task/step", HELD, SPENT, (2,))


def test_a_report_of_time_names_no_account_for_time_is_no_report(session: Session) -> None:
    open_accounts(session, [Limits(total_tokens=5, nano_usd=10, milliseconds=1, model_calls=1)])
    ledger = open_ledger(session)
    ledger.settle("step", NOTHING, Units(model_calls=3, milliseconds=9), ())
    write_accounts(session, ledger)
    assert list(ledger.exceeded_caps()) == []


def test_what_shared_accounts_refuse_is_taken_from_none_of_them(session: Session) -> None:
    """The first has room, the second has not: what was taken of the first is given back."""
    open_accounts(session, [Limits(), Limits(total_tokens=10_000), Limits(total_tokens=300)])
    for _ in range(2):
        ledger = open_ledger(session)
        outcome = reserve_in(ledger, "step", CALL_OF_A_TASK._replace(input_bound=290, wanted_tokens=200), (2, 3))
        assert isinstance(outcome, Refused)
        assert (outcome.limit, outcome.scope) == ("total_tokens", f"{WHOLE_PREFIX}{read_account(session, 3).scope}")
        write_accounts(session, ledger)
        assert [set(read_account(session, number).held) for number in (1, 2, 3)] == [{0}] * 3


def test_shared_accounts_are_clamped_to_the_smallest_and_hold_the_same(session: Session) -> None:
    open_accounts(session, [Limits(), Limits(total_tokens=10_000), Limits(total_tokens=400)])
    ledger = open_ledger(session)
    outcome = reserve_in(ledger, "step", CALL_OF_A_TASK, (2, 3))
    assert isinstance(outcome, Reservation)
    assert outcome.max_tokens == 300
    write_accounts(session, ledger)
    assert [read_account(session, number).held for number in (2, 3)] == [shared_part(outcome.held)] * 2
    assert read_account(session, OWN).held == outcome.held


def test_what_is_settled_and_held_of_a_shared_account_in_one_transaction_counts_at_once(
    session: Session,
) -> None:
    open_accounts(session, [Limits(), Limits(total_tokens=500, model_calls=2)])
    ledger = open_ledger(session)
    first = reserve_in(ledger, "step", CALL_OF_A_TASK, (2,))
    assert isinstance(first, Reservation)
    assert isinstance(reserve_in(ledger, "other", CALL_OF_A_TASK, (2,)), Refused)
    ledger.settle("step", first.held, Units(model_calls=1, input_tokens=10, output_tokens=40, total_tokens=50), (2,))
    second = reserve_in(ledger, "other", CALL_OF_A_TASK, (2,))
    assert isinstance(second, Reservation)
    assert second.max_tokens == 350
    assert isinstance(
        reserve_in(ledger, "third", CALL_OF_A_TASK._replace(input_bound=0, wanted_tokens=1), (2,)), Refused
    )
    write_accounts(session, ledger)
    day = read_account(session, 2)
    assert (day.held, day.spent) == (shared_part(second.held), Units(0, 1, 10, 40, 50))


def test_random_histories_never_pass_a_cap_and_add_up(session: Session) -> None:
    for seed in range(SAMPLE):
        assert_history_adds_up(session, seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_histories_never_pass_a_cap_and_add_up(session: Session, part: int) -> None:
    for seed in range(part * WHOLE_SWEEP // 10, (part + 1) * WHOLE_SWEEP // 10):
        assert_history_adds_up(session, seed)
