"""The law of grants: whatever loops do, ask for and lose in crashes, none passes two grants and ten rounds a task, nor
what is left around it; and what those beside it may still use stays theirs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from support.empty_store import WHOLE_SWEEP, empty_tables
from test_reservations import reserve_in

from kairos_mcp.budget.ledger import RUN, BegunBranch, Ledger
from kairos_mcp.budget.more_rounds import BY_BUDGET, MAX_GRANTED_ROUNDS, MAX_GRANTS, RoundsRequest, answer_request
from kairos_mcp.budget.reservation import Reservation, ReservationRequest
from kairos_mcp.core.limits import BranchShare, Limits, counts_of
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.steps import task_of
from kairos_mcp.store.account_changes import write_accounts
from kairos_mcp.store.accounts import read_account, read_branches_at
from kairos_mcp.store.more_rounds import insert_grant, list_grants, read_loops
from kairos_mcp.store.rows import Session, encode_answer, encode_units

SAMPLE = 100
OWN = 1
MOST_ROUNDS = 30  # that the configuration allows
INSERT_RUN = """
    insert into run(n, id, flow, version, spec, principal, via, client, start_digest, workspace, account, created_at,
        route) values (1, 'run-1', 'planner', 1, '{}', 'local', 'mcp', '', ?, '', 1, 0, 'scripted')
"""
ROUND = ReservationRequest(counts_of("round"), "round", counts_only=True)


@dataclass
class History:
    """A run of up to 16 tasks, or of one loop; what was granted is counted apart from its rows.

    `has_tries`: the loops are tries within their tasks; else each task is one, beside the others.
    """

    session: Session
    chance: random.Random
    tasks: int
    has_tries: bool
    aside: Limits
    begun: int = 0
    loops: dict[str, str] = field(default_factory=dict)  # that run, by their tasks
    branches: dict[str, int] = field(default_factory=dict)
    first_caps: dict[int, int] = field(default_factory=dict)
    granted: dict[str, list[int]] = field(default_factory=dict)  # by task
    steps: int = 0

    def ledger(self) -> Ledger:
        known = read_branches_at(self.session, self.branches, list(self.branches))
        return Ledger({RUN: read_account(self.session, OWN), **known}, self.branches)

    def new_path(self, loop: str, name: str) -> str:
        self.steps += 1
        return f"{loop}/{name}-{self.steps}".lstrip("/")

    def share_of_task(self, limits: Limits) -> BranchShare:
        """The share of a task that begins, or that runs."""
        return BranchShare(limits, self.tasks - self.begun + len(self.loops), self.aside)

    def begin(self) -> None:
        """A task begins, with its first try; or the next try of one."""
        asked = Limits(rounds=self.chance.randint(1, 8))
        if self.begun < self.tasks and (not self.loops or self.chance.random() < 0.7):
            task = f"task-{self.begun + 1}"
            wide = Limits(rounds=self.chance.choice((None, 4, 12))) if self.has_tries else asked
            opened, loop = [BegunBranch(task, self.share_of_task(wide))], task
            self.begun += 1
        elif self.loops and self.has_tries:
            task = self.chance.choice(list(self.loops))
            opened, loop = [], self.loops[task]
        else:
            return
        if self.has_tries:
            last = int(loop.rpartition("-")[2]) if "/" in loop else 0
            loop = f"{task}/try-{last + 1}"
            opened.append(BegunBranch(loop, BranchShare(asked, 1)))
        self.loops[task] = loop
        ledger = self.ledger()
        ledger.open_branches(opened)
        numbers = write_accounts(self.session, ledger)
        assert numbers is not None
        self.branches |= numbers
        for branch in opened:
            number = self.branches[branch.path]
            self.first_caps[number] = read_account(self.session, number).caps.rounds or 0

    def a_loop(self) -> str | None:
        """One that runs; the run itself is one where there are no tasks."""
        if not self.tasks:
            return ""
        return self.chance.choice(list(self.loops.values())) if self.loops else None

    def work(self, loop: str) -> None:
        """A round, with a call that may repeat one before."""
        ledger, path = self.ledger(), self.new_path(loop, "round")
        reserved = reserve_in(ledger, path, ROUND, ())
        if isinstance(reserved, Reservation):
            ledger.settle(path, reserved.held, reserved.held, ())
        write_accounts(self.session, ledger)
        number = self.steps if self.chance.random() < 0.8 else self.chance.randint(1, 3)
        self.insert_call(f"{path}/call-1", number, ToolResult(f"result {number}"), "server")

    def insert_call(self, path: str, number: int, result: ToolResult, by_route: str) -> None:
        insert_step = "insert into step(run, path, kind, digest, fence, at) values (1, ?, 'call', ?, 0, 0)"
        mark = self.session.insert(insert_step, (path, b"%d" % number))
        answer = mark, encode_answer(result), encode_units(counts_of("call")), by_route
        self.session.rows("insert into answer(step, at, body, spent, by_route) values (?, 0, ?, ?, ?)", answer)

    def request(self, loop: str) -> None:
        """A loop asks for more; the transaction may be lost in a crash."""
        path, crashes = self.new_path(loop, "call"), self.chance.random() < 0.3
        begun = [branch for task, tried in self.loops.items() for branch in dict.fromkeys((task, tried))]
        share = BranchShare(Limits(), 1) if self.has_tries else self.share_of_task(Limits())
        asked = RoundsRequest(self.chance.randint(1, 10), None, MOST_ROUNDS, share if loop else None, tuple(begun))
        before = self.left_of_each()
        self.session.rows("begin")
        ledger = self.ledger()
        answer, grant = answer_request(ledger, read_loops(self.session, 1, {}), path, asked)
        if grant is not None:
            insert_grant(self.session, 1, grant, 0)
        self.insert_call(path, 0, answer, BY_BUDGET)
        write_accounts(self.session, ledger)
        self.session.rows("rollback" if crashes else "commit")
        granted = 0 if crashes else answer.data["granted"]
        if granted:
            self.granted.setdefault(task_of(path), []).append(granted)
        after = self.left_of_each()
        assert after == {each: left + granted * (each == loop) for each, left in before.items()}
        if loop and granted:
            self.check_shares(loop)

    def left_of_each(self) -> dict[str, int]:
        """What each branch may still use by its own cap."""
        accounts = self.ledger().accounts
        return {branch: accounts[branch].remaining.rounds or 0 for branch in self.branches}

    def check_shares(self, loop: str) -> None:
        """What was just granted is there in every account around, beside what the others that run may still use."""
        own, *around = (account.remaining.rounds for account in self.ledger().accounts_above(f"{loop}/round-1"))
        assert own is not None
        assert all(left is None or own <= left for left in around)
        if not self.has_tries and around[0] is not None:
            left = self.left_of_each()
            assert sum(left[task] for task in self.loops) <= around[0] - (self.aside.rounds or 0)

    def check(self) -> None:
        rows = list_grants(self.session, 1)
        for task in {task_of(row.call) for row in rows} | self.granted.keys():
            found = [row.granted for row in rows if task_of(row.call) == task]
            assert found == self.granted.get(task, [])
            assert len(found) <= MAX_GRANTS
            assert sum(found) <= MAX_GRANTED_ROUNDS
        caps = {number: read_account(self.session, number).caps.rounds or 0 for number in self.first_caps}
        assert sum(caps.values()) - sum(self.first_caps.values()) == sum(row.granted for row in rows)
        assert caps[OWN] <= max(self.first_caps[OWN], 0 if self.tasks else MOST_ROUNDS)
        for number in caps:
            account = read_account(self.session, number)
            assert account.caps.rounds is None or account.spent.rounds + account.held.rounds <= account.caps.rounds


def count_grants(session: Session, seed: int) -> int:
    """Go through one history, held against the law at each request; return how often something was granted."""
    chance = random.Random(seed)
    empty_tables(session, "inbox", "note", "answer", "step", "run", "account")
    cap = chance.choice((None, 5, 20, 60, 200))
    assert session.insert("insert into account(scope, cap_rounds) values ('run', ?)", (cap,)) == OWN
    session.rows(INSERT_RUN, (b"",))
    tasks, aside = chance.choice((0, 2, 5, 16)), Limits(rounds=chance.choice((None, 3)))
    history = History(session, chance, tasks, chance.random() < 0.5, aside, first_caps={OWN: cap or 0})
    for _ in range(chance.randint(10, 60)):
        act, loop = chance.random(), history.a_loop()
        if tasks and act < 0.2:
            history.begin()
        elif history.loops and act < 0.23:
            history.loops.pop(chance.choice(list(history.loops)))
        elif loop is not None and act < 0.7:
            history.work(loop)
        elif loop is not None:
            history.request(loop)
            history.check()
    history.check()
    return sum(map(len, history.granted.values()))


def test_no_history_of_requests_and_crashes_passes_what_may_be_granted(session: Session) -> None:
    assert sum(count_grants(session, seed) for seed in range(SAMPLE)) > SAMPLE / 2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_no_history_of_many_passes_what_may_be_granted(session: Session, part: int) -> None:
    size = WHOLE_SWEEP // 10
    assert sum(count_grants(session, seed) for seed in range(part * size, (part + 1) * size)) > size / 2
