"""A step of a run as this server has it in memory: marked, granted, tried, perhaps answered and not yet committed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from kairos_mcp.budget.reservation import Reservation
from kairos_mcp.budget.units import NOTHING, Units
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.steps import CallTool, RequestCompletion, Sent, Step
from kairos_mcp.execution.accounting import StepResult
from kairos_mcp.execution.authorization import remark_of
from kairos_mcp.store.accounts import NOT_SHARED, Shared
from kairos_mcp.store.approvals import BY_GATE, ApprovalRow, Base
from kairos_mcp.store.client_requests import WITHDRAWN, WithdrawnRequest
from kairos_mcp.store.commit import AnsweredStep, StepStarted
from kairos_mcp.store.queries import UNKNOWN, StepRow
from kairos_mcp.tools.tool import ProbeResult


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt that brought no answer: why (an error code, or `unknown`), and what it stays charged with."""

    why: str
    charged: Units


@dataclass(slots=True)
class PendingStep:
    """A step that was marked and not yet answered. `held`: all it holds of the account. `grant`: leave to begin
    that was not used yet. `ended`: how its newest attempt ended without an answer, and what that costs. `shared`: the
    accounts beside the run's that it is charged to. `sits_out`: its next attempt waits until the run goes on. `asked`:
    a person was asked for leave; `base`: the files that the leave which they gave stands on, `remark` what they said
    with it. `probed`: what a look after a crash found; `unsettled`: a person has to say what came of it; `settled`:
    they said that it may be made again. `failing`: what its newest attempt came to, until it is begun again.
    `requests`: what was asked of a client's model about it and withdrawn, to be charged when it is begun again.
    `lapsed`: nobody decided about it in time, and somebody is to be asked anew."""

    id: int
    step: Step
    open_step: bool
    held: Units
    sent: Sent
    grant: Reservation | None = None
    ended: EndedAttempt | None = None
    tries: int = 1
    shared: Shared = NOT_SHARED
    sits_out: bool = False
    asked: bool = False
    base: Base | None = None
    remark: str | None = None
    lapsed: bool = False
    probed: ProbeResult | None = None
    unsettled: bool = False
    settled: bool = False
    failing: StepResult | None = None
    begun_at: int | None = None  # what was lost: milliseconds since 1970
    requests: tuple[int, ...] = ()
    again_at: int | None = None  # while it is not begun again yet: when it will be, milliseconds since 1970

    def leave(self, marked: StepStarted, granted: Reservation) -> None:
        """It was granted, for the first time or again: it may begin, or waits for somebody else."""
        self.unsettled = marked.waits and self.lost and self.kind == "call"
        self.held = granted.held if self.held is NOTHING else self.held.minus(self.freed).plus(granted.held)
        self.id, self.sent, self.ended, self.open_step = marked.mark, marked.sent, None, marked.waits
        self.shared, self.sits_out, self.probed, self.settled = marked.shared, False, None, False
        self.grant, self.begun_at, self.failing = None if marked.waits else granted, None, None
        self.requests, self.again_at = (), None

    def withdraw(self, request: WithdrawnRequest) -> None:
        """What was asked about it was withdrawn: an attempt that ended without an answer."""
        before = self.ended.charged if self.requests and self.ended is not None else NOTHING
        self.ended = EndedAttempt(WITHDRAWN, before.plus(request.bound))
        self.requests = (*self.requests, request.request)

    def approved(self, row: ApprovalRow) -> None:
        """Take over the leave that this row gives, if it gives one: a person's stands on the files that they were
        shown; where the gate lets a call through by now, it stands on none."""
        if row.verdict != "approve":
            return
        self.remark = remark_of(row)
        if row.through == BY_GATE:
            self.settled = self.sent.route == "house" and not self.unsettled
        else:
            self.base = row.base

    def remarked(self, performed: StepResult) -> StepResult:
        """What came of it, with what the person who gave leave for it said."""
        match performed.answer:
            case ToolResult() as result if self.remark is not None:
                return performed._replace(answer=replace(result, remark=self.remark))
            case _:
                return performed

    def begin(self) -> Reservation:
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

    def took(self, at: int) -> int:
        """The milliseconds that its lost attempt took at most: from its beginning until now, and never more than it
        held; all of that where the clock was set back meanwhile."""
        held = self.held.milliseconds
        return held if self.begun_at is None or at < self.begun_at else min(held, at - self.begun_at)

    def ended_by(self, at: int) -> EndedAttempt | None:
        """How its newest attempt ended, and what that costs: of one that was lost tokens and price as bounded, and the
        time that it took at most."""
        if self.ended is None or not self.lost:
            return self.ended
        return EndedAttempt(self.ended.why, self.ended.charged._replace(milliseconds=self.took(at)))

    @property
    def lost(self) -> bool:
        """Its newest attempt ended and nobody knows how."""
        return self.ended is not None and self.ended.why == UNKNOWN


class FinishedStep(NamedTuple):
    """An answer that is not committed yet; `by`: the route or hand that it came from."""

    path: str
    mark: PendingStep
    performed: StepResult
    by: str

    def settled(self) -> AnsweredStep:
        done, mark = self.performed, self.mark
        charge = done.cached, done.exactness, mark.shared
        return AnsweredStep(mark.id, self.path, done.answer, mark.held, done.spent, self.by, *charge)


def mark_of(row: StepRow, step: Step) -> PendingStep:
    ended = EndedAttempt(UNKNOWN, row.held._replace(rounds=0, tool_calls=0)) if row.begun else None
    mark = PendingStep(
        row.id, step, row.open, row.held, row.sent, ended=ended, tries=row.attempts + 1, shared=row.shared
    )
    mark.unsettled, mark.begun_at = row.unsettled, (row.newest or row).at
    return mark
