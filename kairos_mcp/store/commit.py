"""What one commit writes of a run, and its result, as values. `apply_commit` writes them.

All rows of a commit belong to one run and are written in one transaction, all or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from kairos_mcp.budget.reservation import Reservation, ReservationRequest
from kairos_mcp.budget.units import Account, Units
from kairos_mcp.core.messages import Exactness
from kairos_mcp.core.steps import Answer, Refused, Sent
from kairos_mcp.store.accounts import NO_BRANCHES, NO_SHARED_ACCOUNTS, BranchAccountIds, NewBranch, SharedAccountIds
from kairos_mcp.store.approvals import ApprovalRequest, ReusedApproval
from kairos_mcp.store.more_rounds import RoundsRequest


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
    """A step, whose row has the id `mark`, with its result.

    `held`: what it had reserved. `by_route`: the route that the answer came by, or who it came from.
    """

    mark: int
    path: str
    result: StepResult
    held: Units
    by_route: str
    shared: SharedAccountIds = NO_SHARED_ACCOUNTS


class NewStep(NamedTuple):
    """A step to be inserted. With an `answer`, its result is known already (a call that was refused).

    `sent` gets the reserved tokens added, and for a round or a closing the status line. `approval_request`: the step
    waits for a person. `reused_approval`: an earlier approval lets it through. `rounds_request`: the commit itself
    answers it.
    """

    path: str
    kind: str
    digest: bytes
    request: ReservationRequest
    sent: Sent
    answer: Answer | None = None
    approval_request: ApprovalRequest | None = None
    reused_approval: ReusedApproval | None = None
    rounds_request: RoundsRequest | None = None


class NewAttempt(NamedTuple):
    """A further attempt at the step at `path`, whose row is `mark`.

    The attempt before it ended as `previous_end`, frees `freed` (a part of `held`) and stays charged with
    `previous_charge`.
    `withdrawn_requests`: requests to a client's model that got no answer; `previous_charge` is then the most that
    they can have cost, and is charged as far as so much is left. `rounds_request`: as of a new step.
    """

    path: str
    mark: int
    request: ReservationRequest
    sent: Sent
    held: Units
    freed: Units
    previous_charge: Units
    previous_end: str
    shared: SharedAccountIds = NO_SHARED_ACCOUNTS
    withdrawn_requests: Sequence[int] = ()
    rounds_request: RoundsRequest | None = None


class Paused(NamedTuple):
    """Why a run is paused, and when it goes on by itself (milliseconds since 1970; None: when somebody resumes it)."""

    reason: str
    resume_at: int | None


class RunCommit(NamedTuple):
    """What one commit writes of a run. `run` is its number, `at` in milliseconds since 1970.

    `may_release`: nothing of the run is being executed. It is released if all new steps are open, and no control
    request, nor an answer for one of `open_marks`, has come in the meantime.
    `dropped_steps`: open steps that the run no longer needs: (id, path, what it holds, shared accounts). One that was
    answered meanwhile holds nothing.
    `branches`: the accounts of the run's branches by path; `new_branches`: those that begin, outer ones first.
    `shared`: what new model calls are charged to besides the run's account. Where nothing is left there, the step gets
    no row and the run is paused as `pause_when_used_up` says; with `is_barred`, before any model call.
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
    dropped_steps: Sequence[tuple[int, str, Units, SharedAccountIds]] = ()
    outcome: str | None = None
    may_release: bool = False
    open_marks: Sequence[int] = ()
    branches: BranchAccountIds = NO_BRANCHES
    new_branches: Sequence[NewBranch] = ()
    shared: SharedAccountIds = NO_SHARED_ACCOUNTS
    handled_requests: Sequence[int] = ()
    pause: Paused | None = None
    pause_when_used_up: Paused | None = None
    is_barred: bool = False
    renewed_approvals: Sequence[tuple[int, ApprovalRequest | ReusedApproval | None]] = ()

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to commit."""
        steps = self.answers or self.new_steps or self.attempts or self.renewed_approvals
        return bool(steps or self.pause or self.handled_requests) or self.outcome is not None


class StepStarted(NamedTuple):
    """A step as it was committed: its reservation, or the answer that it got at once (a refusal, or a known one).

    `is_open`: it was handed out or waits, so the server has nothing to execute for it. `shared`: the shared accounts
    that it is charged to. A step that a shared account refused gets no row: `refusal` says why.
    """

    mark: int
    grant: Reservation | None
    answer: Answer | None
    sent: Sent
    is_open: bool = False
    shared: SharedAccountIds = NO_SHARED_ACCOUNTS
    refusal: Refused | None = None


NO_ACCOUNTS: Mapping[str, Account] = MappingProxyType({})


class CommitResult(NamedTuple):
    """The result of a commit.

    `started`: attempts first, then new steps, each in the order of the commit. `released`: the run was released.
    `inbox_changed`: it was not released because something had come for it. `paused`: why it is paused from now on.
    `branches`: the accounts of all branches. `accounts`: as they are after the commit, the run's own under "", and by
    path those of branches that it read.
    """

    started: Sequence[StepStarted]
    released: bool
    inbox_changed: bool
    paused: Paused | None = None
    branches: BranchAccountIds = NO_BRANCHES
    accounts: Mapping[str, Account] = NO_ACCOUNTS
