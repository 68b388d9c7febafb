"""A pending step of a run in memory: it has a row and no committed answer yet, however many attempts have failed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from kairos_mcp.budget.ledger import NO_SHARED_ACCOUNTS, SharedAccountIds
from kairos_mcp.budget.notes import PROVIDER_AWAY
from kairos_mcp.budget.reservation import Reservation
from kairos_mcp.core.decision_results import approval_remark
from kairos_mcp.core.limits import NOTHING, Units
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.routes import SERVER_ROUTE
from kairos_mcp.core.steps import CallTool, Failure, RequestCompletion, Sent, Step
from kairos_mcp.core.tool import ProbeResult
from kairos_mcp.store.approvals import THROUGH_GATE, ApprovalRow, BaseHashes
from kairos_mcp.store.client_completions import WITHDRAWN, RequestRow
from kairos_mcp.store.commit import AnsweredStep, DecidedStep, EndedAttempt, Paused, StepResult
from kairos_mcp.store.prefixes import PrefixCost
from kairos_mcp.store.queries import UNKNOWN, StepRow

MAX_ATTEMPTS = 4  # of a completion whose route fails in a way that may pass, before its run backs off
MAX_BACKOFF_S = 30.0  # the longest pause between two of them
FIRST_OUTAGE_PAUSE_MS, MAX_OUTAGE_PAUSE_MS = 30_000, 3_600_000  # doubled before each: a minute, two, ... an hour


class PendingStep:
    """A step with a row and without an answer. `id`: of its row.

    `is_open`: it waits outside, or until a limit or an outage lets it begin. `held`: all that it holds of its
    accounts. `reservation`: one that was not used yet: the step may begin. `shared_accounts`: the accounts besides the
    run's that it is charged to.
    """

    attempts = 1
    # The newest attempt, once it has ended without an answer.
    ended_attempt: EndedAttempt | None = None
    failed_result: StepResult | None = None  # its result, until the step begins again
    begun_at: int | None = None  # of one whose outcome is unknown: milliseconds since 1970
    first_begun_at = 0  # of one whose outcome is unknown: not later than its first attempt
    probe_result: ProbeResult | None = None  # what its tool found after a crash
    needs_settlement = False  # a person has to say whether it was carried out
    # The next attempt.
    may_begin_again = False  # a person, or the gate, said so
    is_backing_off = False  # it waits for the end of a provider's outage
    retry_at: int | None = None  # when it begins: milliseconds since 1970
    withdrawn_requests: tuple[int, ...] = ()  # asked of a client's model in vain; charged when it begins
    # Permission.
    awaits_approval = False
    has_lapsed = False  # nobody decided in time: it waits until somebody resumes the run
    approval_expired = False  # nobody decided in time, and the run was resumed: somebody is to be asked anew
    approved_base: BaseHashes | None = None  # the files as they were shown to whoever approved the call ({}: none)
    reviewer_comment: str | None = None  # what that person said
    was_decided = False  # a person approved or denied it
    is_withdrawn = False  # it was asked about together with a call before it, which was denied or failed

    def __init__(
        self,
        number: int,
        step: Step,
        is_open: bool,
        held: Units,
        sent: Sent,
        reservation: Reservation | None = None,
        shared_accounts: SharedAccountIds = NO_SHARED_ACCOUNTS,
    ) -> None:
        self.id, self.step, self.is_open, self.held = number, step, is_open, held
        self.sent, self.reservation, self.shared_accounts = sent, reservation, shared_accounts

    def apply_reservation(self, decision: DecidedStep, reservation: Reservation) -> None:
        """Take over what was reserved for a further attempt: the step may begin, or waits for somebody else."""
        # Read before it is reset: whether this open call is one whose outcome nobody knows.
        self.needs_settlement = decision.is_open and self.outcome_unknown and self.kind == "call"
        self.held = self.held.minus(self.releasable).plus(reservation.held)
        self.sent, self.is_open, self.shared_accounts = decision.sent, decision.is_open, decision.shared_accounts
        self.reservation = None if decision.is_open else reservation
        self.ended_attempt = self.failed_result = self.begun_at = self.probe_result = self.retry_at = None
        self.is_backing_off = self.may_begin_again = False
        self.withdrawn_requests = ()

    def record_failure(self, result: StepResult, *, backs_off: bool) -> None:
        """Note that its newest attempt failed, and is to be repeated."""
        match result.answer:
            case Failure(code=code):
                # The round itself goes on, so a failed attempt does not count as one.
                self.ended_attempt = EndedAttempt(code, result.spent._replace(rounds=0))
                self.failed_result, self.is_backing_off = result, backs_off
                self.attempts += 1
            case _:
                raise AssertionError("only a failed completion is begun again")

    def copy_failure(self, failed: PendingStep) -> None:
        """Take over the failure of this attempt, which its rows don't contain yet."""
        self.ended_attempt, self.failed_result = failed.ended_attempt, failed.failed_result
        self.is_backing_off, self.retry_at, self.attempts = failed.is_backing_off, failed.retry_at, failed.attempts

    def add_withdrawal(self, request: RequestRow) -> None:
        """Count a request of a client's model that was withdrawn as an attempt that ended without an answer."""
        earlier = self.ended_attempt if self.withdrawn_requests else None
        before = earlier.charge if earlier is not None else NOTHING
        self.ended_attempt = EndedAttempt(WITHDRAWN, before.plus(request.bound))
        self.withdrawn_requests = (*self.withdrawn_requests, request.id)

    def apply_approval(self, row: ApprovalRow) -> None:
        """Take over the permission that this row gives, if any.

        A person's holds for the files that they were shown. Where the gate lets the call through by now, it holds for
        no particular files.
        """
        if row.verdict != "approve":
            return
        self.was_decided = True
        self.reviewer_comment = approval_remark(row.tool, row.feedback)
        if row.via == THROUGH_GATE:
            # One that was begun since is another matter: nobody may know how it ended.
            self.may_begin_again = self.is_open and self.sent.route == SERVER_ROUTE and not self.needs_settlement
        else:
            self.approved_base = row.approved_base

    def with_comment(self, result: StepResult) -> StepResult:
        """Add to a call's result what the person who approved it said."""
        match result.answer:
            case ToolResult() as answer if self.reviewer_comment is not None:
                return result._replace(answer=replace(answer, remark=self.reviewer_comment))
            case _:
                return result

    def with_result(self, path: str, result: StepResult, by_route: str, cost: PrefixCost | None = None) -> AnsweredStep:
        """Return the step at this path with its result, as a commit writes it."""
        return AnsweredStep(self.id, path, result, self.held, by_route, self.shared_accounts, cost, self.is_withdrawn)

    def take_reservation(self) -> Reservation:
        """Use the reservation: once, at the moment when the step begins."""
        reservation, self.reservation = self.reservation, None
        if reservation is None:
            raise AssertionError("a step is begun once, with a reservation")
        return reservation

    @property
    def is_under_way(self) -> bool:
        """Whether this server performs it now, so that nothing is to be done for it until its answer comes."""
        return self.reservation is None and not self.is_open and self.ended_attempt is None

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
    def failure(self) -> Failure | None:
        """How its newest attempt failed, until it begins again; None where that is not known here."""
        match self.failed_result:
            case StepResult(answer=Failure() as failure):
                return failure
            case _:
                return None

    @property
    def releasable(self) -> Units:
        """What it releases when it begins again: all but the round or call itself, which goes on."""
        return self.held._replace(rounds=0, tool_calls=0)

    def lost_ms(self, at: int) -> int:
        """The longest that an attempt of unknown outcome can have taken: from its begin until `at`, at most what it
        held; all of that where the clock was set back meanwhile."""
        held = self.held.milliseconds
        return held if self.begun_at is None or at < self.begun_at else min(held, at - self.begun_at)

    def end_of_attempt(self, at: int) -> EndedAttempt | None:
        """How its newest attempt ended, and its charge: where the outcome is unknown, tokens and price as reserved, and
        the longest time that it can have taken."""
        if self.ended_attempt is None or not self.outcome_unknown:
            return self.ended_attempt
        charge = self.ended_attempt.charge._replace(milliseconds=self.lost_ms(at))
        return EndedAttempt(self.ended_attempt.reason, charge)

    def is_held_back(self, at: int) -> bool:
        """Whether it waits, at this time, for the end of a provider's outage."""
        return self.is_backing_off and self.retry_at is not None and at < self.retry_at

    @property
    def outcome_unknown(self) -> bool:
        """Whether its newest attempt ended and nobody knows how, because its server died."""
        return self.ended_attempt is not None and self.ended_attempt.reason == UNKNOWN


def pending_from_row(row: StepRow, step: Step) -> PendingStep:
    """The pending step of a row without an answer: if it may have been begun, its outcome is unknown."""
    pending = PendingStep(row.id, step, row.is_open, row.held, row.sent, shared_accounts=row.shared_accounts)
    pending.attempts, pending.begun_at = row.further_attempts + 1, (row.newest or row).at
    pending.first_begun_at = row.first_begun_at
    pending.needs_settlement = row.needs_settlement
    if row.is_begun_unanswered:
        pending.ended_attempt = EndedAttempt(UNKNOWN, row.held._replace(rounds=0, tool_calls=0))
    return pending


def retry_delay_s(step: PendingStep, result: StepResult) -> float | None:
    """Seconds to wait before the next attempt: 1, 2, 4, or what the provider asks for. None: the answer is final."""
    match result.answer:
        case Failure(retryable=True, retry_after_s=after) if step.attempts % MAX_ATTEMPTS:
            return min(MAX_BACKOFF_S, 2.0 ** (step.attempts % MAX_ATTEMPTS - 1) if after is None else after)
        case _:
            return None


def is_outage(step: PendingStep, result: StepResult, paid_routes: Collection[str]) -> bool:
    """Whether a route that this server pays for failed so often, or says that it will for so long, that the run is to
    be paused rather than ended."""
    match result.answer:
        case Failure(retryable=True, retry_after_s=after):
            is_long = after is not None and after > MAX_BACKOFF_S
            return step.sent.route in paid_routes and (is_long or step.attempts % MAX_ATTEMPTS == 0)
        case _:
            return False


def outage_ms(step: PendingStep, result: StepResult) -> int:
    """How long a step waits for the end of a provider's outage, in milliseconds: until its limit is reset, where it
    says when; else longer each time."""
    match result.answer:
        case Failure(retry_after_s=float(after)) if after > MAX_BACKOFF_S:
            return int(after * 1_000)
        case _:
            pass
    return min(FIRST_OUTAGE_PAUSE_MS << step.attempts // MAX_ATTEMPTS, MAX_OUTAGE_PAUSE_MS)


def outage_pause(steps: Iterable[PendingStep], at: int) -> Paused | None:
    """Return the pause of a run that only waits for a provider which is out of reach; None if no step does. `at`:
    milliseconds."""
    backing_off = [step for step in steps if step.is_backing_off]
    if not backing_off:
        return None
    reason = next(step.ended_attempt.reason for step in backing_off if step.ended_attempt is not None)
    message = next((f": {step.failure.message}" for step in backing_off if step.failure is not None), ".")
    resume_at = min(at if step.retry_at is None else step.retry_at for step in backing_off)
    return Paused(f"{PROVIDER_AWAY} ({reason}){message}", resume_at)
