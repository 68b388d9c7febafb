"""What one commit writes of a run, and its result, as values. `apply_commit` writes them.

All rows of a commit belong to one run and are written in one transaction, all or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from kairos_mcp.budget.reservation import Account, Reservation, ReservationRequest
from kairos_mcp.core.limits import NOTHING, Units
from kairos_mcp.core.messages import Exactness
from kairos_mcp.core.steps import Answer, AskedCall, Refused, Sent
from kairos_mcp.store.accounts import (
    NO_BRANCHES,
    NO_SHARED_ACCOUNTS,
    AccountChange,
    BegunBranch,
    BranchAccountIds,
    SharedAccountIds,
)
from kairos_mcp.store.approvals import ApprovalRequest, ReusedApproval
from kairos_mcp.store.more_rounds import RoundsRequest
from kairos_mcp.store.prefixes import PrefixCost


class StepResult(NamedTuple):
    """The result of performing a step: its answer, what it cost, a long text to store (hash, body), and notes.

    `cached`: how many of the input tokens came from a cache. `exactness`: how well the tokens are known.
    """

    answer: Answer
    spent: Units
    cached: int = 0
    exactness: Exactness | None = None
    text: tuple[str, str] | None = None
    notes: tuple[str, ...] = ()


class AnsweredStep(NamedTuple):
    """A step, whose row has this id in the table `step`, with its result.

    `held`: what it had reserved. `by_route`: the route that the answer came by, or who it came from. `cost`: what the
    first request of a conversation cost, where a provider reported it; it is for later runs.
    """

    step_id: int
    path: str
    result: StepResult
    held: Units
    by_route: str
    shared: SharedAccountIds = NO_SHARED_ACCOUNTS
    cost: PrefixCost | None = None


class NewStep(NamedTuple):
    """A step to be inserted. With an `answer`, its result is known already (a call that was refused).

    `approval_request`: the step waits for a person. `reused_approval`: an earlier approval lets it through.
    `rounds_request`: the commit itself answers it. `asked`: a call that no turn of a model holds.

    In a usual commit its `reservation` is known already, and `shared`, the accounts that it is charged to besides the
    run's. In any other the commit reserves for it, and adds to `sent` the reserved tokens, and for a round or a closing
    the status line.
    """

    path: str
    kind: str
    digest: bytes
    request: ReservationRequest
    sent: Sent
    answer: Answer | None = None
    asked: AskedCall | None = None
    approval_request: ApprovalRequest | None = None
    reused_approval: ReusedApproval | None = None
    rounds_request: RoundsRequest | None = None
    reservation: Reservation | None = None
    shared: SharedAccountIds = NO_SHARED_ACCOUNTS

    @property
    def held(self) -> Units:
        """What it has reserved of its accounts; nothing as long as the commit has still to reserve."""
        return NOTHING if self.reservation is None else self.reservation.held


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
    shared: SharedAccountIds = NO_SHARED_ACCOUNTS
    withdrawn_requests: Sequence[int] = ()
    rounds_request: RoundsRequest | None = None


class Paused(NamedTuple):
    """Why a run is paused, and when it goes on by itself (milliseconds since 1970; None: when somebody resumes it)."""

    reason: str
    resume_at: int | None


class AccountsToCharge(NamedTuple):
    """The accounts that new model calls are charged to besides the run's own.

    Where nothing is left there, the step gets no row and the run is paused as `pause_when_used_up` says; with
    `is_barred`, before any model call.
    """

    shared: SharedAccountIds = NO_SHARED_ACCOUNTS
    pause_when_used_up: Paused | None = None
    is_barred: bool = False


class DroppedStep(NamedTuple):
    """An open step that the run no longer needs: the id of its row, its path, and what it has
    reserved (`held`) of which accounts."""

    step_id: int
    path: str
    held: Units
    shared: SharedAccountIds


class RunCommit(NamedTuple):
    """What one commit writes of a run. `run` is its number, `at` in milliseconds since 1970.

    `may_release`: nothing of the run is being executed. It is released if all new steps are open, and no control
    request, nor an answer for one of `open_step_ids`, has come in the meantime.
    `dropped_steps`: one that was answered meanwhile holds nothing.
    `branches`: the accounts of the run's branches by path; `begun_branches`: those around its steps, outer ones first,
    with an account or without one yet. `others_move`: of the run there is more under way than what is begun here.
    `pause`: the run is paused, whatever is left.
    `handled_requests`: control requests that this commit acts on.
    `renewed_approvals`: steps whose approval expired, each with what a person is asked now, or with an approval that
    lets it through; None: the gate does.
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

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to commit."""
        steps = self.answers or self.new_steps or self.attempts or self.renewed_approvals
        return bool(steps or self.pause or self.handled_requests) or self.outcome is not None


class UsualCommit(NamedTuple):
    """What a usual commit writes: the answers of steps, and the steps that are begun now or the encoded outcome of the
    run. All of it is decided already.

    `at` in milliseconds since 1970. `accounts`: the run's own first, and those of its branches that change, by path.
    `forgets`: tools may have kept what they were about to change. `begun`: all of them are handed out, or none;
    `waits_outside`: they are, and the run is let go of.
    """

    run: int
    owner: int
    fence: int
    at: int
    accounts: dict[str, AccountChange]
    answered: Sequence[AnsweredStep]
    forgets: bool
    begun: Sequence[NewStep]
    waits_outside: bool
    outcome: str | None = None


class StartedStep(NamedTuple):
    """A step as it was committed: its reservation, or the answer that it got at once (a refusal, or a known one).

    `is_open`: it was handed out or waits, so the server has nothing to execute for it. `shared`: the shared accounts
    that it is charged to. A step gets no row where a shared account refused it (`refusal` says why), or where it is to
    begin once a sibling of its branch has left more.
    """

    step_id: int
    reservation: Reservation | None
    answer: Answer | None
    sent: Sent
    is_open: bool = False
    shared: SharedAccountIds = NO_SHARED_ACCOUNTS
    refusal: Refused | None = None

    @property
    def is_kept_waiting(self) -> bool:
        """Whether the step waits for what a sibling of its branch leaves."""
        return not self.step_id and self.refusal is None


NO_ACCOUNTS: Mapping[str, Account] = MappingProxyType({})


class CommitResult(NamedTuple):
    """The result of a commit.

    `started`: attempts first, then new steps, each in the order of the commit. `released`: the run was released.
    `inbox_changed`: it was not released because something had come for it. `paused`: why it is paused from now on.
    `branches`: the accounts of all branches. `accounts`: as they are after the commit, the run's own under "", and by
    path those of branches that it read.
    """

    started: Sequence[StartedStep]
    released: bool
    inbox_changed: bool
    paused: Paused | None = None
    branches: BranchAccountIds = NO_BRANCHES
    accounts: Mapping[str, Account] = NO_ACCOUNTS
