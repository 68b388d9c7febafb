"""A turn as a value: what one commit says of a run, and what came of it. Written in turns.py.

All rows of a turn are of one run, and nothing of it counts before all of it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kairos_mcp.budget.reservation import Reservation, ReservationRequest
from kairos_mcp.budget.units import Units
from kairos_mcp.core.messages import Exactness
from kairos_mcp.core.steps import Answer, Refused, Sent
from kairos_mcp.store.accounts import NOT_SHARED, Shared
from kairos_mcp.store.approvals import ApprovalRequest, ReusedApproval
from kairos_mcp.store.branches import NO_BRANCHES, Branches, NewBranch


class AnsweredStep(NamedTuple):
    """The answer of a mark, at this path, what it held, and what it turned out to cost."""

    mark: int
    path: str
    answer: Answer
    held: Units
    spent: Units
    by: str
    cached: int = 0
    exactness: Exactness | None = None
    shared: Shared = NOT_SHARED


class NewStep(NamedTuple):
    """A step to be marked. With an `answer` it is known already (a refused call): marked and answered at once.

    What is granted joins `sent`, and for a round or a closing the line that says where the run stands. With `asking` it
    waits for a person's leave; `again`: leave that was given before lets it through.
    """

    path: str
    kind: str
    digest: bytes
    claim: ReservationRequest
    sent: Sent
    answer: Answer | None = None
    asking: ApprovalRequest | None = None
    again: ReusedApproval | None = None


class NewAttempt(NamedTuple):
    """A further attempt at the step at `path`, marked as `mark`. The one before ended as `ended` and lets go of
    `freed`, a part of `held`; it stays charged with `lost`. `requests`: what was asked of a client's model and
    withdrawn, for which `lost` is the most that it costs; it is charged as far as so much is left."""

    path: str
    mark: int
    claim: ReservationRequest
    sent: Sent
    held: Units
    freed: Units
    lost: Units
    ended: str
    shared: Shared = NOT_SHARED
    requests: Sequence[int] = ()


class Paused(NamedTuple):
    """Why a run is paused, and when it goes on by itself (milliseconds since 1970; None: when somebody resumes it)."""

    why: str
    resume_at: int | None


class RunCommit(NamedTuple):
    """What one commit says of a run. `park`: nothing runs any more, let go of it if all new marks are open and
    nobody has left a wish, or an answer for one of the marks in `waiting`, in the meantime. `released`: open marks,
    their paths and what they hold, that nobody needs any more; one that was answered meanwhile holds nothing.
    `branches`: the accounts of the run's branches; `opens`: those that begin, outer ones first. `shared`: what new
    model calls are charged to beside the run's account; where nothing is left there, the step stays unmarked and
    the run is paused as `otherwise` says; so it is before any model call where the turn is `barred`. `pause`: the run
    is paused, whatever is left. `taken`: deposits that this turn acts on. `asks`: marks whose approval lapsed, each
    with what a person is asked now; None: nothing any more."""

    run: int
    run_id: str
    owner: int
    fence: int
    account: int
    at: int
    answers: Sequence[AnsweredStep] = ()
    marks: Sequence[NewStep] = ()
    retries: Sequence[NewAttempt] = ()
    notes: Sequence[str] = ()
    texts: Sequence[tuple[str, str]] = ()
    released: Sequence[tuple[int, str, Units, Shared]] = ()
    outcome: str | None = None
    park: bool = False
    waiting: Sequence[int] = ()
    branches: Branches = NO_BRANCHES
    opens: Sequence[NewBranch] = ()
    shared: Shared = NOT_SHARED
    taken: Sequence[int] = ()
    pause: Paused | None = None
    otherwise: Paused | None = None
    barred: bool = False
    asks: Sequence[tuple[int, ApprovalRequest | None]] = ()

    @property
    def says_something(self) -> bool:
        """Whether there is anything to commit."""
        work = self.answers or self.marks or self.retries or self.pause or self.taken or self.asks
        return bool(work) or self.outcome is not None


class StepStarted(NamedTuple):
    """A mark as it was committed: its grant, or the answer that it got at once (a limit, or one that was known).

    `waits`: it is handed out, so that the run has nothing to do with it. `shared`: what it is charged to. A step that
    a shared account refused is not marked: `refused` says why.
    """

    mark: int
    grant: Reservation | None
    answer: Answer | None
    sent: Sent
    waits: bool = False
    shared: Shared = NOT_SHARED
    refused: Refused | None = None


class CommitResult(NamedTuple):
    """`marks` in the order of the turn, retries first; `parked`: the run was let go of; `came`: it would have been, but
    somebody left something for it; `paused`: why the run is paused from now on; `branches`: all with accounts."""

    marks: Sequence[StepStarted]
    parked: bool
    came: bool
    paused: Paused | None = None
    branches: Branches = NO_BRANCHES
