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

from kairos_mcp.budget import NOTHING, Grant, Units, counts_of
from kairos_mcp.driving.consent import Considered, settled_result, told
from kairos_mcp.driving.costing import Performed
from kairos_mcp.flows.outcome import Outcome
from kairos_mcp.messages import ToolResult
from kairos_mcp.performer import Performer
from kairos_mcp.runner import Runner
from kairos_mcp.steps import CallTool, Failure, Flow, RequestCompletion, Resumed, Sent, Step
from kairos_mcp.store import approvals, reading
from kairos_mcp.store.accounts import NOT_SHARED, Shared
from kairos_mcp.store.approvals import Base
from kairos_mcp.store.codec import decode_answer, encode
from kairos_mcp.store.reading import UNKNOWN, WAITED, MarkRow, RunRow
from kairos_mcp.store.settling import Settling
from kairos_mcp.store.turns import Committed, Marked, NewMark, Paused, Retry, Settled, Turn
from kairos_mcp.tools.around import Probed

TRIES = 4  # of a completion whose route fails in a way that may pass
BACK_OFF_S = 30.0  # the longest pause between two of them (SYSTEMS.md O6)
SIT_OUT_MS, LONGEST_MS = 30_000, 3_600_000  # how long a run sits out a provider's outage: a minute, two, … an hour
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
    that was not used yet. `ended`: how its newest attempt ended without an answer, and what that costs. `shared`: the
    accounts beside the run's that it is charged to. `sits_out`: its next attempt waits until the run goes on. `asked`:
    a person was asked for leave; `base`: the files that the leave which they gave stands on. `probed`: what a look
    after a crash found; `settled`: a person said that it may be made again."""

    id: int
    step: Step
    open_step: bool
    held: Units
    sent: Sent
    grant: Grant | None = None
    ended: Ended | None = None
    tries: int = 1
    shared: Shared = NOT_SHARED
    sits_out: bool = False
    asked: bool = False
    base: Base | None = None
    probed: Probed | None = None
    settled: bool = False

    def leave(self, marked: Marked, granted: Grant) -> None:
        """It was granted, for the first time or again: it may begin, or waits for somebody else."""
        self.held = granted.held if self.held is NOTHING else self.held.minus(self.freed).plus(granted.held)
        self.id, self.sent, self.ended, self.open_step = marked.mark, marked.sent, None, marked.waits
        self.shared, self.sits_out, self.probed, self.settled = marked.shared, False, None, False
        self.grant = None if marked.waits else granted

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


class Charged(NamedTuple):
    """What model calls are charged to beside the run's account, and how the run is paused where that is used up."""

    shared: Shared = NOT_SHARED
    otherwise: Paused | None = None


class Ready(NamedTuple):
    """An answer that is not committed yet; `by`: the route or hand that it came from."""

    path: str
    mark: Mark
    performed: Performed
    by: str

    def settled(self) -> Settled:
        done, mark = self.performed, self.mark
        return Settled(mark.id, done.answer, mark.held, done.spent, self.by, done.cached, done.exactness, mark.shared)


@dataclass(slots=True)
class Standing:
    """One run in memory. `rebuild` makes its flow anew."""

    run: RunRow
    performer: Performer
    rebuild: Callable[[], Flow[Outcome]]
    runner: Runner = field(init=False)
    marks: dict[str, Mark] = field(default_factory=dict)
    ready: list[Ready] = field(default_factory=list)
    considered: dict[str, Considered] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)

    def fold(self, connection: apsw.Connection, performing: Iterable[str] = ()) -> None:
        """Build the flow and feed it the record, then what is ready. Steps begun and not in `performing` are lost."""
        under_way = {path: self.marks[path] for path in performing}
        self.runner = Runner(self.rebuild())
        self.marks = {}
        self.performer.forget()
        with _uncollected():
            for row in reading.record(connection, self.run.n):
                answer = row.answer
                step = self.runner.replay(row.path, row.digest, answer)
                self.performer.recall(step, row.sent, row.at)
                if answer is not None:
                    self.performer.learn(row.path, step, answer)
                else:
                    self.marks[row.path] = under_way.get(row.path) or _mark_of(row, step)
        unsaved, self.ready = self.ready, []
        for each in unsaved:
            if each.path in self.marks:  # else the commit that seemed to fail had been made
                self.settle(each.path, each.performed, each.by)
        self._recall_approvals(connection)

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

    def unprobed(self) -> list[tuple[str, CallTool, Mark]]:
        """Lost calls whose tool can look whether they were carried out: `probed` is to say so before the next turn."""
        return [
            (path, mark.step, mark)
            for path, mark in self.marks.items()
            if mark.lost and mark.probed is None and mark.step.kind == "tool_call" and self.performer.probes(mark.step)
        ]

    def take_settlements(self, said: Iterable[tuple[int, Settling]]) -> None:
        """Go on with what a person said of lost calls."""
        for deposit, each in said:
            mark = self.marks.get(each.path)
            if mark is None or not mark.open_step or deposit in self.taken:
                continue
            self.taken.append(deposit)
            if each.settlement == "reattempt":
                mark.settled = True
            else:
                self.settle(each.path, Performed(settled_result(each), counts_of("call")), "person")

    def undecided(self) -> list[tuple[str, CallTool]]:
        """Calls of which nobody knows yet whether they may be made: `considered` is to say so before the next turn."""
        return [
            (path, step)
            for path, step in self.runner.waiting.items()
            if path not in self.marks
            and path not in self.considered
            and step.kind == "tool_call"
            and self.performer.must_consider(step)
        ]

    def _recall_approvals(self, connection: apsw.Connection) -> None:
        """Which of the marks wait for a person's leave, and which have it."""
        for path, row in approvals.of_run(connection, self.run.n).items():
            if (mark := self.marks.get(path)) is not None:
                mark.asked, mark.base = True, row.base if row.verdict == "approve" else None
        self.take_verdicts(connection)

    def take_verdicts(self, connection: apsw.Connection) -> None:
        """Go on with what a person decided about: an approved call of ours begins, a denied one is answered."""
        if not any(mark.asked and mark.open_step for mark in self.marks.values()):
            return
        for path, row in approvals.of_run(connection, self.run.n).items():
            mark = self.marks.get(path)
            if mark is None or not mark.open_step or row.verdict is None:
                continue
            mark.asked = False
            if row.verdict == "approve":
                mark.base = row.base
            else:
                self.settle(path, Performed(told(row), counts_of("call")), "person")

    def pause_before_retry(self, mark: Mark, performed: Performed) -> float | None:
        """How many seconds to wait before the step is begun again; None where its answer is final."""
        match performed.answer:
            case Failure(retryable=True, retry_after_s=after) if mark.tries % TRIES:
                return min(BACK_OFF_S, 2.0 ** (mark.tries % TRIES - 1) if after is None else after)
            case _:
                return None

    def sits_out(self, mark: Mark, performed: Performed) -> bool:
        """Whether a paid route failed so often that the run is to be paused rather than ended."""
        match performed.answer:
            case Failure(retryable=True):
                return mark.sent.route in self.performer.paid and mark.tries % TRIES == 0
            case _:
                return False

    def fail(self, path: str, performed: Performed, *, sits_out: bool = False) -> None:
        """An attempt failed in a way that may pass: the next turn begins the step again, or lets it wait."""
        mark = self.marks[path]
        mark.sits_out = sits_out
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

    def next_turn(self, owner: int, fence: int, at: int, charged: Charged, *, still: bool, performing: bool) -> Turn:
        """What there is to commit. `still`: no new marks; `performing`: steps are under way beside this."""
        retries = [] if still else self._begin_again()
        fresh, later = ([], False) if still else self._plan(at)
        answers: list[Settled] = []
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
        return Turn(
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
            shared=charged.shared,
            taken=tuple(self.taken),
            pause=None if still else self._pause(at),
            otherwise=charged.otherwise,
        )

    def _pause(self, at: int) -> Paused | None:
        """Where a provider is out of reach, the run sits that out, longer each time."""
        out = [mark for mark in self.marks.values() if mark.sits_out]
        if not out:
            return None
        longest = max(mark.tries // TRIES for mark in out)
        why = next(mark.ended.why for mark in out if mark.ended is not None)
        return Paused(f"The model's provider is out of reach ({why}).", at + min(SIT_OUT_MS << longest, LONGEST_MS))

    def learn(self, turn: Turn, committed: Committed) -> None:
        """The turn is in the rows: take over what was granted; feed what was refused, or known at once."""
        del self.ready[: len(turn.answers)]  # others may have come in the meantime
        del self.taken[: len(turn.taken)]
        for new in turn.marks:
            mark = Mark(0, self.runner.waiting[new.path], new.claim.open_step, NOTHING, new.sent)
            mark.asked = new.asking is not None
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

    def _plan(self, at: int) -> tuple[list[NewMark], bool]:
        """How the steps without a mark are to be marked; and whether some came to wait while others were considered."""
        unmarked = [(path, step) for path, step in self.runner.waiting.items() if path not in self.marks]
        planned, shares = [], len(unmarked)
        for path, step in unmarked:
            said = self.considered.pop(path, None)
            if said is None and step.kind == "tool_call" and self.performer.must_consider(step):
                continue
            planned.append(self.performer.plan(path, step, self.run.route, at, shares, said))
            shares -= 1
        return planned, len(planned) < len(unmarked)

    def _begin_again(self) -> list[Retry]:
        """What ended without an answer and may be tried again; what may not is given up."""
        if not self.marks:
            return []
        self._settle_probed()
        return [self._retry(path, mark) for path, mark in self.marks.items() if self._begins_again(mark)]

    def _begins_again(self, mark: Mark) -> bool:
        """An attempt that ended without an answer, an open completion that a new route performs, an approved call."""
        if mark.ended is not None or not mark.open_step:
            return mark.ended is not None
        if mark.step.kind == "completion":
            return self.run.route in self.performer.models
        return mark.settled or (mark.base is not None and mark.sent.route == "house" and mark.ended is None)

    def _settle_probed(self) -> None:
        """What a look after a crash found to be done is answered by what it found."""
        for path, mark in [item for item in self.marks.items() if item[1].probed is not None]:
            match mark.probed:
                case Probed(state="done", result=result):
                    told = result or ToolResult("It was done before the server ended.")
                    self.settle(path, Performed(told, mark.held), "house")
                case _:
                    pass

    def _is_unsettled(self, mark: Mark) -> bool:
        """A lost call that may have changed something is never made again by itself: a person has to settle it."""
        if not mark.lost or mark.settled:
            return False
        match mark.step:
            case CallTool(call=call):
                spec = self.performer.offered.find(call.name)
                repeatable = spec is not None and spec.effect in REPEATABLE
                return not (repeatable or (mark.probed is not None and mark.probed.state == "not_done"))
            case _:
                return False

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
        if mark.sits_out or self._is_unsettled(mark):
            claim = claim._replace(open_step=True)
        waited = WAITED if route == mark.sent.route else f"rerouted to {route}"  # or for a person's leave
        ended = mark.ended or Ended(waited, NOTHING)
        return Retry(path, mark.id, claim, again, mark.held, mark.freed, ended.charged, ended.why, mark.shared)


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


def _mark_of(row: MarkRow, step: Step) -> Mark:
    ended = Ended(UNKNOWN, row.held._replace(rounds=0, tool_calls=0)) if row.begun else None
    return Mark(row.id, step, row.open, row.held, row.sent, ended=ended, tries=row.attempts + 1, shared=row.shared)
