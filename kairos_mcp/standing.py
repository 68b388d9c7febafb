"""A run as this server has it in memory: its flow unfolded, its marks, its account, the answers not committed yet.

All of it can be thrown away and folded again from the rows. Nothing here performs, commits or waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import apsw

from kairos_mcp.budget import NOTHING, Account, Grant, Units, counts_of
from kairos_mcp.costing import Performed
from kairos_mcp.flows.outcome import Outcome
from kairos_mcp.performer import Performer
from kairos_mcp.runner import Runner
from kairos_mcp.steps import Answer, CallTool, Failure, Flow, RequestCompletion, Resumed, Sent, Step, Unknown
from kairos_mcp.store import reading, turns
from kairos_mcp.store.codec import decode_answer, encode
from kairos_mcp.store.reading import MarkRow, RunRow
from kairos_mcp.store.turns import Committed, NewMark, Retry, Settled, Turn

UNKNOWN = "unknown"  # the end of an attempt whose server died
TRIES = 4  # of a completion whose route fails in a way that may pass
BACK_OFF_S = 30.0  # the longest pause between two of them (SYSTEMS.md O6)
HANDED_OUT = ("caller", "sampling")  # routes whose completions wait for somebody else
REPEATABLE = ("read", "idempotent")  # effect classes whose calls may be made again after a crash


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that brought no answer: why (an error code, or `unknown`), and what it stays charged with."""

    why: str
    charged: Units


@dataclass(slots=True)
class Mark:
    """A step that was marked and not yet answered. `held`: all it holds of the account. `grant`: leave to begin
    that was not used yet. `ended`: how its newest attempt ended without an answer, and what that costs."""

    id: int
    step: Step
    open_step: bool
    held: Units
    sent: Sent
    grant: Grant | None = None
    ended: Ended | None = None
    tries: int = 1

    def begin(self) -> Grant:
        """Use the leave to begin: once, and in the moment in which the step is begun."""
        granted, self.grant = self.grant, None
        assert granted is not None, "a step is begun once, with leave"
        return granted

    @property
    def kind(self) -> str:
        """The kind of its row: a completion's purpose, or call, or pause."""
        match self.step:
            case RequestCompletion():
                return self.step.purpose
            case CallTool():
                return "call"
            case _:
                return "pause"

    @property
    def freed(self) -> Units:
        """What it lets go of when it is begun again: all but the round or call itself, which goes on."""
        return self.held._replace(rounds=0, tool_calls=0)

    @property
    def lost(self) -> bool:
        """Its newest attempt ended and nobody knows how."""
        return self.ended is not None and self.ended.why == UNKNOWN


@dataclass(frozen=True, slots=True)
class Ready:
    """An answer that is not committed yet; `by`: the route or hand that it came from."""

    path: str
    mark: Mark
    performed: Performed
    by: str

    def settled(self) -> Settled:
        done = self.performed
        return Settled(self.mark.id, done.answer, self.mark.held, done.spent, self.by, done.cached, done.exactness)


@dataclass(frozen=True, slots=True)
class Move:
    """The next turn, and what it is made of: answers, marks to be begun again, new marks."""

    turn: Turn
    ready: list[Ready]
    again: list[tuple[str, Mark]]
    fresh: list[NewMark]


@dataclass(slots=True)
class Standing:
    """One run in memory. `rebuild` makes its flow anew."""

    run: RunRow
    performer: Performer
    rebuild: Callable[[], Flow[Outcome]]
    account: Account = field(init=False)
    runner: Runner = field(init=False)
    marks: dict[str, Mark] = field(default_factory=dict)
    ready: list[Ready] = field(default_factory=list)

    def fold(self, connection: apsw.Connection, performing: Iterable[str] = ()) -> None:
        """Build the flow and feed it the record, then what is ready. Steps begun and not in `performing` are lost."""
        under_way = {path: self.marks[path] for path in performing}
        self.account = turns.read_account(connection, self.run.account)
        self.runner = Runner(self.rebuild())
        self.marks = {}
        self.performer.forget()
        for row in reading.record(connection, self.run.n):
            step = self.runner.waiting.get(row.path)
            recorded = row.recorded()
            self.runner.fold([recorded])
            assert step is not None, "the fold refuses a row for which no step waits"
            self.performer.recall(step, row.sent, row.at)
            if recorded.answer is not None:
                self.performer.learn(row.path, step, recorded.answer)
            else:
                self.marks[row.path] = under_way.get(row.path) or _mark_of(row, step)
        unsaved, self.ready = self.ready, []
        for each in unsaved:
            if each.path in self.marks:  # else the commit that seemed to fail had been made
                self.settle(each.path, each.performed, each.by)

    def settle(self, path: str, performed: Performed, by: str) -> None:
        """An answer is here: feed it; the next turn commits it."""
        mark = self.marks.pop(path)
        self.ready.append(Ready(path, mark, performed, by))
        self.runner.answer(path, performed.answer)

    def collect(self, connection: apsw.Connection) -> None:
        """Feed the answers that others have recorded for open steps."""
        open_steps = {mark.id: path for path, mark in self.marks.items() if mark.open_step}
        for mark, body in reading.answers_of(connection, list(open_steps)) if open_steps else ():
            path, answer = open_steps[mark], decode_answer(body)
            step = self.marks.pop(path).step
            self.performer.learn(path, step, answer)
            self.runner.answer(path, answer)
        self.account = turns.read_account(connection, self.run.account)

    def pause_before_retry(self, mark: Mark, performed: Performed) -> float | None:
        """How many seconds to wait before the step is begun again; None where its answer is final."""
        match performed.answer:
            case Failure(retryable=True, retry_after_s=after) if mark.tries < TRIES:
                return min(BACK_OFF_S, 2.0 ** (mark.tries - 1) if after is None else after)
            case _:
                return None

    def fail(self, path: str, performed: Performed) -> None:
        """An attempt failed in a way that may pass: the next turn begins the step again."""
        mark = self.marks[path]
        match performed.answer:
            case Failure(code=code):
                mark.ended = Ended(code, performed.spent._replace(rounds=0))
                mark.tries += 1
            case _:
                raise AssertionError("only a failed completion is begun again")

    def resume_pauses(self) -> None:
        for path in [path for path, mark in self.marks.items() if mark.kind == "pause"]:
            self.settle(path, Performed(Resumed(), NOTHING), "person")

    @property
    def granted(self) -> list[tuple[str, Mark]]:
        """Marks that may begin now."""
        return [(path, mark) for path, mark in self.marks.items() if mark.grant is not None]

    def next_move(self, owner: int, fence: int, at: int, *, still: bool, performing: bool) -> Move:
        """What there is to commit. `still`: no new marks; `performing`: steps are under way beside this."""
        if not still:
            self._give_up_unrepeatable()
        ready, self.ready = self.ready, []
        again = [] if still else [(path, mark) for path, mark in self.marks.items() if self._begins_again(mark)]
        fresh = [] if still else self._plan(ready, at)
        outcome = self.runner.outcome if self.runner.finished else None
        retries = tuple(self._retry(path, mark) for path, mark in again)
        opened = all(new.claim.open_step for new in fresh) and all(retry.claim.open_step for retry in retries)
        turn = Turn(
            self.run.n,
            self.run.id,
            owner,
            fence,
            self.run.account,
            at,
            answers=tuple(each.settled() for each in ready),
            marks=tuple(fresh),
            retries=retries,
            notes=(
                *(note for each in ready for note in each.performed.notes),
                *(outcome.notes if outcome is not None else ()),
            ),
            texts=tuple(each.performed.text for each in ready if each.performed.text is not None),
            outcome=encode(outcome) if outcome is not None else None,
            park=opened and not (performing or still),
            waiting=tuple(mark.id for mark in self.marks.values() if mark.open_step),
        )
        return Move(turn, ready, again, fresh)

    def learn(self, move: Move, committed: Committed) -> None:
        """Take over what was granted; feed what was refused, or known at once."""
        self.account = committed.account
        claims = [(path, retry.claim) for (path, _), retry in zip(move.again, move.turn.retries, strict=True)]
        claims += [(new.path, new.claim) for new in move.fresh]
        for new in move.fresh:
            self.marks[new.path] = Mark(0, self.runner.waiting[new.path], new.claim.open_step, NOTHING, new.sent)
        for (path, claim), marked in reversed(list(zip(claims, committed.marks, strict=True))):
            mark = self.marks[path]
            if marked.answer is not None:
                self.performer.give_back(mark.sent.line if marked.grant is None else None)
                del self.marks[path]
                self.runner.answer(path, marked.answer)
            elif marked.grant is not None:
                mark.held = mark.held.minus(mark.freed).plus(marked.grant.held)
                mark.id, mark.sent, mark.ended = marked.mark, marked.sent, None
                mark.open_step = claim.open_step
                mark.grant = None if mark.open_step else marked.grant

    def _plan(self, ready: list[Ready], at: int) -> list[NewMark]:
        account = self._as_after(ready)
        unmarked = [item for item in self.runner.waiting.items() if item[0] not in self.marks]
        return [
            self.performer.plan(path, step, self.run.route, account, at, len(unmarked) - i)
            for i, (path, step) in enumerate(unmarked)
        ]

    def _as_after(self, ready: list[Ready]) -> Account:
        """The account as it will be when these answers are settled, for the line that tells the model."""
        held, spent = self.account.held, self.account.spent
        for each in ready:
            held, spent = held.minus(each.mark.held), spent.plus(each.performed.spent)
        return Account(self.account.id, self.account.caps, held, spent)

    def _begins_again(self, mark: Mark) -> bool:
        """An attempt that ended without an answer, or an open completion that a new route performs."""
        performed = self.run.route in self.performer.models
        return mark.ended is not None or (mark.open_step and performed and mark.step.kind == "completion")

    def _give_up_unrepeatable(self) -> None:
        """A lost call that may have changed something is never made again by itself."""
        for path, mark in list(self.marks.items()):
            match mark.step:
                case CallTool(call=call) if mark.lost:
                    spec = self.performer.offered.find(call.name)
                    if spec is None or spec.effect not in REPEATABLE:
                        unknown: Answer = Unknown()
                        self.settle(path, Performed(unknown, mark.held), "house")
                case _:
                    pass

    def _is_out_of_reach(self, route: str) -> bool:
        """A route that somebody performs, but nobody here."""
        return route not in HANDED_OUT and route not in self.performer.models

    def _retry(self, path: str, mark: Mark) -> Retry:
        route = mark.sent.route
        if mark.step.kind == "completion" and (mark.open_step or not self._is_out_of_reach(self.run.route)):
            route = self.run.route  # a reroute counts from the next attempt; a call has no other route
        counts = counts_of(mark.kind)._replace(rounds=0, tool_calls=0)
        claim = self.performer.claim(path, mark.step, route or "", counts)
        again = mark.sent if route == mark.sent.route else self.performer.sent(path, route or "", mark.sent.tail)
        ended = mark.ended or Ended(f"rerouted to {route}", NOTHING)
        return Retry(mark.id, claim, again, mark.held, mark.freed, ended.charged, ended.why)


def _mark_of(row: MarkRow, step: Step) -> Mark:
    held = counts_of(row.kind) if row.held is None else row.held
    ended = Ended(UNKNOWN, held._replace(rounds=0, tool_calls=0)) if row.begun else None
    return Mark(row.id, step, row.waits, held, row.sent, ended=ended, tries=row.attempts + 1)
