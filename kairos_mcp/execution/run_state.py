"""A run as this server has it in memory: its flow unfolded, its marks, the answers not committed yet.

All of it can be thrown away and folded again from the rows. Nothing here performs, commits or waits.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import apsw

from kairos_mcp.budget.units import NOTHING, counts_of
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.outcome import Outcome
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.steps import CallTool, Failure, Flow, Resumed
from kairos_mcp.execution.accounting import StepResult
from kairos_mcp.execution.authorization import Considered, settled_result, told
from kairos_mcp.execution.executor import StepExecutor
from kairos_mcp.execution.pending_step import EndedAttempt, FinishedStep, PendingStep, mark_of
from kairos_mcp.execution.retry import pause_for
from kairos_mcp.store import approvals, branches, queries
from kairos_mcp.store.accounts import NOT_SHARED, Shared
from kairos_mcp.store.approvals import ApprovalRequest
from kairos_mcp.store.branches import Branches, NewBranch
from kairos_mcp.store.client_requests import WithdrawnRequest
from kairos_mcp.store.codec import decode_answer, encode
from kairos_mcp.store.commit import AnsweredStep, CommitResult, NewAttempt, NewStep, Paused, RunCommit
from kairos_mcp.store.queries import WAITED, RunRow
from kairos_mcp.store.settlements import SettlementRequest
from kairos_mcp.tools.tool import ProbeResult

HANDED_OUT = ("caller", "sampling")  # routes whose completions wait for somebody else
REPEATABLE = ("read", "idempotent")  # effect classes whose calls may be made again after a crash


class ChargedAccounts(NamedTuple):
    """What model calls are charged to beside the run's account, and how the run is paused where that is used up;
    `barred`: it is paused so before any model call."""

    shared: Shared = NOT_SHARED
    otherwise: Paused | None = None
    barred: bool = False


@dataclass(slots=True)
class RunState:
    """One run in memory. `rebuild` makes its flow anew."""

    run: RunRow
    performer: StepExecutor
    rebuild: Callable[[], Flow[Outcome]]
    runner: Runner = field(init=False)
    marks: dict[str, PendingStep] = field(default_factory=dict)
    ready: list[FinishedStep] = field(default_factory=list)
    considered: dict[str, Considered] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)
    branches: Branches = field(default_factory=dict)

    def fold(self, connection: apsw.Connection, performing: Iterable[str] = ()) -> None:
        """Build the flow and feed it the record, then what is ready. Steps begun and not in `performing` are lost."""
        under_way = {path: self.marks[path] for path in performing}
        self.runner = Runner(self.rebuild())
        self.marks, self.branches = {}, branches.of_run(connection, self.run.account)
        self.performer.forget()
        self.performer.reach.agent_of = self.runner.agent_of
        with _uncollected():
            for row in queries.record(connection, self.run.n):
                answer, sent = row.answer, row.sent
                step = self.runner.replay(row.path, row.digest, answer)
                self.performer.recall(step, sent, row.at)
                if answer is not None:
                    self.performer.learn(row.path, step, answer, sent.route)
                else:
                    self.marks[row.path] = under_way.get(row.path) or mark_of(row, step)
        self._recall_approvals(connection)
        unsaved, self.ready = self.ready, []
        for each in unsaved:
            if each.path in self.marks:  # else the commit that seemed to fail had been made
                self.settle(each.path, each.performed, each.by)
        self.take_verdicts(connection)

    def settle(self, path: str, performed: StepResult, by: str) -> None:
        """An answer is here: feed it; the next turn commits it."""
        mark = self.marks.pop(path)
        performed = mark.remarked(performed)
        self.ready.append(FinishedStep(path, mark, performed, by))
        self.runner.answer(path, performed.answer)

    def collect(self, connection: apsw.Connection) -> None:
        """Feed the answers that others have recorded for open steps."""
        open_steps = {mark.id: path for path, mark in self.marks.items() if mark.open_step}
        for number, body in queries.answers_of(connection, list(open_steps)) if open_steps else ():
            path, answer = open_steps[number], decode_answer(body)
            mark = self.marks.pop(path)
            self.performer.learn(path, mark.step, answer, mark.sent.route)
            self.runner.answer(path, answer)

    def unprobed(self) -> list[tuple[str, CallTool, PendingStep]]:
        """Lost calls whose tool can look whether they were carried out: `probed` is to say so before the next turn."""
        return [
            (path, mark.step, mark)
            for path, mark in self.marks.items()
            if mark.lost and mark.probed is None and mark.step.kind == "tool_call" and self.performer.probes(mark.step)
        ]

    def take_settlements(self, said: Iterable[tuple[int, SettlementRequest, str]]) -> None:
        """Go on with what was said of lost calls, and through what: each with the number of its deposit."""
        for deposit, each, through in said:
            mark = self.marks.get(each.path)
            if mark is None or not mark.open_step or deposit in self.taken:
                continue
            self.taken.append(deposit)
            if each.settlement == "reattempt":
                mark.settled = True
            else:
                self.settle(each.path, StepResult(settled_result(each, through), counts_of("call")), "person")

    def take_withdrawn(self, found: Iterable[WithdrawnRequest]) -> None:
        """What was asked of a client's model and withdrawn is charged before its step is asked about again."""
        for each in found:
            mark = self.marks.get(each.path)
            if mark is not None and mark.open_step and each.request not in mark.requests:
                mark.withdraw(each)

    def undecided(self) -> list[tuple[str, CallTool]]:
        """Calls of which nobody knows yet whether they may be made: `considered` is to say so before the next turn."""
        return [
            (path, step)
            for path, step in self.runner.waiting.items()
            if path not in self.considered
            and step.kind == "tool_call"
            and (self.marks[path].lapsed if path in self.marks else self.performer.reach.must_consider(path, step))
        ]

    def _recall_approvals(self, connection: apsw.Connection) -> None:
        """Which of the marks wait for a person's leave, and which have it."""
        for path, row in approvals.of_run(connection, self.run.n).items():
            if (mark := self.marks.get(path)) is not None:
                mark.asked = True
                mark.approved(row)

    def take_verdicts(self, connection: apsw.Connection) -> None:
        """Go on with what a person decided about: an approved call of ours begins, a denied one is answered."""
        if not any(mark.asked and mark.open_step for mark in self.marks.values()):
            return
        for path, row in approvals.of_run(connection, self.run.n).items():
            mark = self.marks.get(path)
            if mark is None or not mark.open_step or row.verdict is None:
                continue
            if row.verdict == "expired":
                mark.lapsed = True
                continue
            mark.asked = False
            if row.verdict == "approve":
                mark.approved(row)
            else:
                self.settle(path, StepResult(told(row), counts_of("call")), "person")

    def fail(self, path: str, performed: StepResult, *, sits_out: bool = False) -> None:
        """An attempt failed in a way that may pass: the next turn begins the step again, or lets it wait."""
        mark = self.marks[path]
        mark.sits_out = sits_out
        match performed.answer:
            case Failure(code=code):
                mark.ended = EndedAttempt(code, performed.spent._replace(rounds=0))
                mark.tries += 1
            case _:
                raise AssertionError("only a failed completion is begun again")

    def resume_pauses(self) -> None:
        for path in [path for path, mark in self.marks.items() if mark.kind == "pause"]:
            self.settle(path, StepResult(Resumed(), NOTHING), "person")

    @property
    def granted(self) -> list[tuple[str, PendingStep]]:
        """Marks that may begin now."""
        return [(path, mark) for path, mark in self.marks.items() if mark.grant is not None]

    def next_turn(
        self, owner: int, fence: int, at: int, charged: ChargedAccounts, *, still: bool, performing: bool
    ) -> RunCommit:
        """What there is to commit. `still`: no new marks; `performing`: steps are under way beside this."""
        asks = [] if still else self._ask_again()
        retries = self._charge_withdrawn(at) if still else self._begin_again(at)
        fresh, later = ([], False) if still else self._plan(at)
        answers: list[AnsweredStep] = []
        notes: list[str] = []
        texts: list[tuple[str, str]] = []
        for each in self.ready:
            answers.append(each.settled())
            notes += each.performed.notes
            texts += [each.performed.text] if each.performed.text is not None else ()
        run, outcome = self.run, None
        if self.runner.finished:
            outcome = encode(self.runner.outcome)
            notes += self.runner.outcome.notes
        return RunCommit(
            run.n,
            run.id,
            owner,
            fence,
            run.account,
            at,
            answers,
            fresh,
            retries,
            notes,
            texts,
            outcome=outcome,
            park=not (performing or still or later),
            waiting=[mark.id for mark in self.marks.values() if mark.open_step],
            branches=self.branches,
            opens=self._opens() if fresh and self.runner.branches else (),
            shared=charged.shared,
            taken=tuple(self.taken),
            pause=None if still else pause_for(self.marks.values(), at),
            otherwise=charged.otherwise if run.paused is None else None,
            barred=charged.barred,
            asks=asks,
        )

    def learn(self, turn: RunCommit, committed: CommitResult) -> None:
        """The turn is in the rows: take over what was granted; feed what was refused, or known at once."""
        del self.ready[: len(turn.answers)]  # others may have come in the meantime
        del self.taken[: len(turn.taken)]
        self.branches = committed.branches
        for new in turn.marks:
            mark = PendingStep(0, self.runner.waiting[new.path], new.claim.external, NOTHING, new.sent)
            mark.asked = new.asking is not None
            mark.base = new.again.asking.base if new.again is not None else None
            self.marks[new.path] = mark
        paths = [each.path for each in turn.retries] + [each.path for each in turn.marks]
        for path, marked in zip(reversed(paths), reversed(committed.marks), strict=True):
            mark = self.marks[path]
            if marked.answer is not None:
                self.performer.give_back(mark.sent.line if marked.grant is None else None)
                del self.marks[path]
                self.runner.answer(path, marked.answer)
            elif marked.grant is not None:
                mark.leave(marked, marked.grant)
            else:  # what it shares with other runs is used up: it is marked when the run goes on
                self.performer.give_back(mark.sent.line)
                del self.marks[path]

    def _plan(self, at: int) -> tuple[list[NewStep], bool]:
        """How the steps without a mark are to be marked; and whether some came to wait while others were considered."""
        unmarked = [(path, step) for path, step in self.runner.waiting.items() if path not in self.marks]
        planned, shares, branch_of = [], dict[str, int](), self.runner.branch_of
        for path, _ in unmarked:
            shares[branch_of(path)] = shares.get(branch_of(path), 0) + 1
        for path, step in unmarked:
            said = self.considered.pop(path, None)
            if said is None and step.kind == "tool_call" and self.performer.reach.must_consider(path, step):
                continue
            planned.append(self.performer.plan(path, step, self.run.route, at, shares[branch_of(path)], said))
            shares[branch_of(path)] -= 1
        return planned, len(planned) < len(unmarked)

    def _opens(self) -> list[NewBranch]:
        """The branches that have begun with limits of their own, and have no account yet."""
        begun = self.runner.branches.items()
        return [NewBranch(path, share()) for path, share in begun if path not in self.branches]

    def _ask_again(self) -> list[tuple[int, ApprovalRequest | None]]:
        """What a person is asked anew about calls whose approval lapsed, as things are now; where nothing has to be
        asked any more, None, and the call may be made. What can't be made any more is answered."""
        asks: list[tuple[int, ApprovalRequest | None]] = []
        for path in [path for path, mark in self.marks.items() if mark.lapsed and path in self.considered]:
            mark, said = self.marks[path], self.considered.pop(path)
            mark.lapsed = False
            match said:
                case ToolResult():
                    self.settle(path, StepResult(said, counts_of("call")), "house")
                case ApprovalRequest():
                    asks.append((mark.id, said))
                case _:
                    mark.asked, mark.settled = False, mark.sent.route == "house"
                    asks.append((mark.id, None))
        return asks

    def _begin_again(self, at: int) -> list[NewAttempt]:
        """What ended without an answer and may be tried again; what may not is given up."""
        if not self.marks:
            return []
        self._settle_probed(at)
        return [self._retry(path, mark, at) for path, mark in self.marks.items() if self._begins_again(mark)]

    def _charge_withdrawn(self, at: int) -> list[NewAttempt]:
        """While nothing is begun: what was withdrawn is charged, and its step waits on as it did."""
        return [self._retry(path, mark, at, waits=True) for path, mark in self.marks.items() if mark.requests]

    def _begins_again(self, mark: PendingStep) -> bool:
        """An attempt that ended without an answer, an open completion that a new route performs or that a limit which
        runs share had no room for, an approved call."""
        if mark.ended is not None or not mark.open_step:
            return mark.ended is not None
        if mark.step.kind == "completion":
            return self.run.route in self.performer.models or not mark.held.model_calls
        if mark.unsettled:
            return mark.settled
        return mark.settled or (mark.base is not None and mark.sent.route == "house")

    def _settle_probed(self, at: int) -> None:
        """What a look after a crash found to be done is answered by what it found."""
        for path, mark in [item for item in self.marks.items() if item[1].probed is not None]:
            match mark.probed:
                case ProbeResult(state="done", result=result):
                    told = result or ToolResult("It was done before the server ended.")
                    self.settle(path, StepResult(told, mark.held._replace(milliseconds=mark.took(at))), "house")
                case _:
                    pass

    def _is_unsettled(self, mark: PendingStep) -> bool:
        """A lost call that may have changed something is never made again by itself: a person has to settle it."""
        if not mark.lost or mark.settled:
            return False
        match mark.step:
            case CallTool(call=call):
                spec = self.performer.reach.spec(call.name)
                repeatable = spec is not None and spec.effect in REPEATABLE
                return not (repeatable or (mark.probed is not None and mark.probed.state == "not_done"))
            case _:
                return False

    def _is_out_of_reach(self, route: str) -> bool:
        """A route that somebody performs, but nobody here."""
        return route not in HANDED_OUT and route not in self.performer.models

    def _retry(self, path: str, mark: PendingStep, at: int, *, waits: bool = False) -> NewAttempt:
        route = mark.sent.route
        follows = mark.open_step or not self._is_out_of_reach(self.run.route)
        if mark.step.kind == "completion" and follows and not waits:
            route = self.run.route  # a reroute counts from the next attempt; a call has no other route
        counts = counts_of(mark.kind)._replace(rounds=0, tool_calls=0)
        claim = self.performer.claim(path, mark.step, route or "", counts)
        again = mark.sent if route == mark.sent.route else self.performer.sent(path, route or "", mark.sent.tail)
        if mark.sits_out or waits or self._is_unsettled(mark):
            claim = claim._replace(external=True)
        waited = WAITED if route == mark.sent.route else f"rerouted to {route}"  # or for a person's leave
        ended = mark.ended_by(at) or EndedAttempt(waited, NOTHING)
        return NewAttempt(
            path, mark.id, claim, again, mark.held, mark.freed, ended.charged, ended.why, mark.shared, mark.requests
        )


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector: what a fold makes stays, and looking through it again and again is a quarter of
    its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
