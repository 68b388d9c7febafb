"""A commit of one run as values: what is planned, what the decision on it rests on, and what is decided.

The worker plans (`execution/plan_commit.py`), `decide` says what becomes of it (`execution/decide.py`), `write_commit`
writes that (`commit_rows.py`). All rows of a commit belong to one run and are written in one transaction, all or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from kairos_mcp.budget.ledger import NO_SHARED_ACCOUNTS, BegunBranch, Ledger, SharedAccountIds
from kairos_mcp.budget.more_rounds import Grant, LoopRecord, RoundsRequest
from kairos_mcp.budget.reservation import Account, Reservation, ReservationRequest
from kairos_mcp.core.limits import NOTHING, Units, with_measured
from kairos_mcp.core.messages import Exactness
from kairos_mcp.core.routes import SERVER_ROUTE
from kairos_mcp.core.steps import Answer, Refused, Sent, StoredCall
from kairos_mcp.store.accounts import NO_BRANCHES, BranchAccountIds
from kairos_mcp.store.approvals import ApprovalRequest, ReusedApproval
from kairos_mcp.store.client_completions import RequestCharge, RequestRow
from kairos_mcp.store.prefixes import PrefixCost
from kairos_mcp.store.queries import StepRow


class StepResult(NamedTuple):
    """The result of performing a step: its answer, what was counted, a long text to store (hash, body), and notes.

    `cached`: how many of the input tokens came from a cache. `exactness`: how well the tokens are known.
    `foreign_files`: those that the call wrote from texts of others.
    """

    answer: Answer
    counted: Units
    cached: int = 0
    exactness: Exactness | None = None
    text: tuple[str, str] | None = None
    notes: tuple[str, ...] = ()
    foreign_files: tuple[str, ...] = ()

    @property
    def spent(self) -> Units:
        """What it cost."""
        return with_measured(self.counted, self.answer)


class AnsweredStep(NamedTuple):
    """A step, whose row has this id in the table `step`, with its result.

    `held`: what it had reserved. `by_route`: the route that the answer came by, or who it came from. `cost`: what the
    first request of a conversation cost, where a provider reported it; it is for later runs. `is_withdrawn`: a person
    was asked about the call together with one before it, which was denied or failed.
    """

    step_id: int
    path: str
    result: StepResult
    held: Units
    by_route: str
    shared_accounts: SharedAccountIds = NO_SHARED_ACCOUNTS
    cost: PrefixCost | None = None
    is_withdrawn: bool = False


class NewStep(NamedTuple):
    """A step to be inserted. With an `answer`, its result is known already (a call that was refused).

    `approval_request`: the step waits for a person. `reused_approval`: an earlier approval lets it through.
    `rounds_request`: the commit itself answers it. `call`: one that no turn of a model contains. `judged`: how the
    call was judged by what it takes along.

    The decision adds to `sent` the tokens that are reserved, and for a round or a closing the status line.
    """

    path: str
    kind: str
    digest: bytes
    request: ReservationRequest
    sent: Sent
    answer: Answer | None = None
    call: StoredCall | None = None
    approval_request: ApprovalRequest | None = None
    reused_approval: ReusedApproval | None = None
    rounds_request: RoundsRequest | None = None
    judged: str | None = None


class EndedAttempt(NamedTuple):
    """An attempt that brought no answer. `reason`: an error code, or `unknown`. `charge`: what it cost."""

    reason: str
    charge: Units


class NewAttempt(NamedTuple):
    """A further attempt at the step at `path`. The attempt before it has ended as `previous` says,
    and frees `freed`, a part of `held`, which is what it had reserved.

    `withdrawn_requests`: requests to a client's model that got no answer; the charge of `previous` is then the most
    that they can have cost, and is charged as far as so much is left. `rounds_request`: as of a new step.
    """

    path: str
    step_id: int
    request: ReservationRequest
    sent: Sent
    held: Units
    freed: Units
    previous: EndedAttempt
    shared_accounts: SharedAccountIds = NO_SHARED_ACCOUNTS
    withdrawn_requests: Sequence[int] = ()
    rounds_request: RoundsRequest | None = None


class Paused(NamedTuple):
    """Why a run is paused, and when it goes on by itself (milliseconds since 1970; None: when somebody resumes it)."""

    reason: str
    resume_at: int | None


class AccountsToCharge(NamedTuple):
    """The accounts that new model calls are charged to besides the run's own.

    If a shared account has nothing left, the step gets no row and the run is paused as `pause_when_used_up` says.
    `is_barred`: no model call may begin.
    """

    shared_accounts: SharedAccountIds = NO_SHARED_ACCOUNTS
    pause_when_used_up: Paused | None = None
    is_barred: bool = False


class DroppedStep(NamedTuple):
    """An open step that the run no longer needs: the id of its row, its path, and what it has
    reserved (`held`) of which accounts."""

    step_id: int
    path: str
    held: Units
    shared_accounts: SharedAccountIds


class CommitPlan(NamedTuple):
    """What one commit is to write of a run. `run` is its number, `at` in milliseconds since 1970.

    `may_release`: nothing of the run is being executed. It is released if all new steps are open, and no control
    request, nor an answer for one of `open_step_ids`, has come in the meantime.
    `dropped_steps`: one that was answered meanwhile holds nothing.
    `branches`: the accounts of the run's branches by path; `begun_branches`: those around its steps, outer ones first,
    with an account or without one yet. `others_move`: other steps of the run are pending, or were left out here.
    `pause`: the run is paused, whatever is left.
    `handled_requests`: control requests that this commit acts on.
    `renewed_approvals`: steps whose approval expired, each with what a person is asked now, or with an approval that
    lets it through; None: the gate allows the call now. `may_have_intents`: of tools, which the commit then deletes.
    """

    run: int
    run_id: str
    owner: int
    fence: int
    account: int
    at: int
    answers: Sequence[AnsweredStep] = ()
    new_steps: Sequence[NewStep] = ()
    attempts: Sequence[NewAttempt] = ()
    notes: Sequence[str] = ()
    dropped_steps: Sequence[DroppedStep] = ()
    outcome: str | None = None
    may_release: bool = False
    open_step_ids: Sequence[int] = ()
    branches: BranchAccountIds = NO_BRANCHES
    begun_branches: Sequence[BegunBranch] = ()
    others_move: bool = False
    charged: AccountsToCharge = AccountsToCharge()
    handled_requests: Sequence[int] = ()
    pause: Paused | None = None
    renewed_approvals: Sequence[tuple[int, ApprovalRequest | ReusedApproval | None]] = ()
    may_have_intents: bool = True

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to commit."""
        steps = self.answers or self.new_steps or self.attempts or self.renewed_approvals
        return bool(steps or self.pause or self.handled_requests) or self.outcome is not None

    @property
    def paths(self) -> list[str]:
        """The paths of all its steps."""
        return [
            each.path for steps in (self.answers, self.attempts, self.new_steps, self.dropped_steps) for each in steps
        ]

    @property
    def rounds_requests(self) -> list[RoundsRequest]:
        """What its steps ask for that want more rounds."""
        asked = [*(each.rounds_request for each in self.attempts), *(each.rounds_request for each in self.new_steps)]
        return [request for request in asked if request is not None]

    @property
    def needs_shared(self) -> bool:
        """Whether shared accounts have to be read: how much is left decides a charge, or nobody knows what a token
        costs that may be limited."""
        return any(attempt.withdrawn_requests or attempt.request.price is None for attempt in self.attempts) or any(
            new.request.price is None for new in self.new_steps
        )


class Facts(NamedTuple):
    """What a decision on a commit rests on, beside its plan: read in its transaction, or known from the commits before.

    `accounts`: the run's own under "", and by path those of branches that are charged or compared. `shared_accounts`:
    those of several runs, by id; None: they are not read, and the writer changes them only if they have room.
    `arrived`: by path, answers that came while the commit was planned, of steps that it was to begin again. `dropped`:
    by path, the rows of dropped steps that have no answer, each with the requests about it. `loops`: what the run's
    loops were granted and have done, where one of them asks for more rounds.
    """

    accounts: Mapping[str, Account]
    shared_accounts: Mapping[int, Account] | None = None
    arrived: Mapping[str, Answer] = MappingProxyType({})
    dropped: Mapping[str, tuple[StepRow, Sequence[RequestRow]]] = MappingProxyType({})
    loops: LoopRecord | None = None


class DecidedStep(NamedTuple):
    """What became of a new step or a further attempt: its reservation, or the answer that it got at once (a refusal, or
    a known one), for which `spent` is charged.

    `is_open`: it waits outside, or to be begun, so the server has nothing to execute for it. `shared_accounts`: those
    that it is charged to. A step gets no row where a shared account refused it (`refusal` says why), or where it is to
    begin once a sibling of its branch has left more. `lost`: what the attempt before is charged. `arrived`: a
    row contains the answer already.
    """

    sent: Sent
    reservation: Reservation | None = None
    answer: Answer | None = None
    is_open: bool = False
    shared_accounts: SharedAccountIds = NO_SHARED_ACCOUNTS
    refusal: Refused | None = None
    spent: Units = NOTHING
    by_route: str = SERVER_ROUTE
    grant: Grant | None = None
    lost: Units = NOTHING
    arrived: bool = False

    @property
    def has_row(self) -> bool:
        """Whether a new step gets a row."""
        return self.reservation is not None or self.answer is not None


class Decided(NamedTuple):
    """What one commit writes. The writer decides two things more: whether shared accounts that were not read have room,
    and whether something came for a run that is released.

    `attempts` and `steps`: what became of each that was planned, in the order of the plan. `charges`: requests to a
    client's model that nobody needs any more. `paused`: why the run is paused from now on. `waits_outside`: a step with
    a row waits for somebody outside. `releases`: nothing of the run is executed here, so that it is released.
    """

    ledger: Ledger
    attempts: Sequence[DecidedStep]
    steps: Sequence[DecidedStep]
    charges: Sequence[RequestCharge]
    notes: Sequence[str]
    paused: Paused | None
    waits_outside: bool
    releases: bool


class Committed(NamedTuple):
    """A commit that was written: its plan, what was decided, and what the rows have become.

    `step_ids`: of the rows of its new steps; 0: none. `opened`: the ids of the accounts of branches that began.
    `released`: nobody owns the run from now on; `has_arrivals`: it was not released, because something had come for it.
    """

    plan: CommitPlan
    decided: Decided
    step_ids: Sequence[int]
    opened: BranchAccountIds
    released: bool
    has_arrivals: bool = False
