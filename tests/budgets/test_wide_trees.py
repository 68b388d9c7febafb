"""The law of accounts in trees as wide and deep as a team's may be: a run, up to sixteen tasks at once, the tries at
each, and days around them. Nothing let through goes over, and after a crash the accounts are what they were."""

from __future__ import annotations

import random

import pytest
from support.empty_store import WHOLE_SWEEP
from test_reservations import (
    SHARED_UNITS,
    Books,
    Held,
    agree,
    hold,
    open_accounts,
    open_ledger,
    settle,
    some_caps,
    some_request,
    write,
)

from kairos_mcp.budget.ledger import BegunBranch, Ledger
from kairos_mcp.core.limits import NOTHING, UNLIMITED, BranchShare, Limits, Units
from kairos_mcp.store.rows import Session

SAMPLE, PARTS = 200, 20
TASKS, DAYS = 16, (2, 3)


def scale(caps: Limits, times: int) -> Limits:
    return Limits(**{unit: None if cap is None else cap * times for unit, cap in caps._asdict().items()})


def open_tries(ledger: Ledger, chance: random.Random, books: Books) -> None:
    """Tasks begin with their first try, all at once or some; or a task of those that run is tried once more."""
    tasks = [path for path in books.opened if "/" not in path]
    left = TASKS - len(tasks)
    if left:
        share = BranchShare(UNLIMITED, left, some_caps(chance, Units._fields))
        count = left if chance.random() < 0.5 else chance.randint(1, left)
        tasks = [f"task-{len(tasks) + n}" for n in range(1, count + 1)]
        ledger.open_branches([BegunBranch(task, share) for task in tasks])
    else:
        tasks = [chance.choice(tasks)]
    for task in tasks:
        number = 1 + sum(path.startswith(f"{task}/") for path in books.opened)
        tried = BranchShare(Limits(rounds=chance.randint(1, 10)), 1)
        ledger.open_branches([BegunBranch(f"{task}/try-{number}", tried)])
    books.opened |= dict.fromkeys(ledger.opened, 0)


def count_refused(session: Session, seed: int) -> tuple[int, int]:
    """Go through one history, held against the law throughout; return how many steps were let through and refused."""
    chance = random.Random(seed)
    caps = [
        scale(some_caps(chance, Units._fields), TASKS),
        *(scale(some_caps(chance, SHARED_UNITS), 8) for _ in DAYS),
    ]
    open_accounts(session, caps)
    under_way, books, asked, let_through = list[Held](), Books(), 0, 0
    for _ in range(chance.randint(2, 4)):
        before = list(under_way), books.copy()
        session.rows("begin")
        ledger = open_ledger(session, books.opened)
        open_tries(ledger, chance, books)
        tries = [path for path in books.opened if "/" in path]
        for _ in range(chance.randint(4, TASKS)):
            if under_way and chance.random() < 0.4:
                settle(ledger, under_way.pop(chance.randrange(len(under_way))), chance, books)
                continue
            asked, held = asked + 1, len(under_way)
            where = f"{chance.choice(tries)}/step" if chance.random() < 0.95 else "synthesis"
            hold(ledger, where, some_request(chance), DAYS, under_way, books)
            let_through += len(under_way) - held
        write(session, ledger, books)
        if chance.random() < 0.2:  # a crash: nothing of it was written
            session.rows("rollback")
            under_way, books = before
        else:
            session.rows("commit")
        agree(session, books, DAYS)
    ledger = open_ledger(session, books.opened)
    for each in under_way:
        ledger.settle(each.path, each.units, NOTHING, each.shared)
    write(session, ledger, books)
    left = Books(spent=books.spent, opened=books.opened)
    agree(session, left, DAYS)
    return let_through, asked - let_through


def test_no_history_of_sixteen_tasks_and_their_tries_goes_over(session: Session) -> None:
    outcomes = [count_refused(session, seed) for seed in range(SAMPLE)]
    assert sum(let_through for let_through, _ in outcomes) > SAMPLE
    assert sum(refused for _, refused in outcomes) > SAMPLE


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_none_of_many_histories_of_sixteen_tasks_goes_over(session: Session, part: int) -> None:
    size = WHOLE_SWEEP // PARTS
    outcomes = [count_refused(session, seed) for seed in range(part * size, (part + 1) * size)]
    let_through, refused = (sum(counts) for counts in zip(*outcomes, strict=True))
    print(f"{size} histories: {let_through} steps let through, {refused} refused")
    assert min(let_through, refused) > size
