"""What a run is, read from its rows in one place; every view of a run is made of it, and reads nothing itself.

A view also takes who looks (`Viewer`): what the server that is asked, and the call that it is asked in, know beside
the rows. Only the text of a waiting completion, and the cycles of a pause, need the replayed flow: its open steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from kairos_mcp.budget.reservation import Account
from kairos_mcp.core.already_read import NOTHING_READ, AlreadyRead
from kairos_mcp.core.decision_rights import LOCAL_CALLER, Caller
from kairos_mcp.core.errors import KairosError, Unreadable
from kairos_mcp.core.limits import NOTHING, UNLIMITED
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcomes import Outcome, RunStatus
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.core.steps import loop_of
from kairos_mcp.specs.kinds import FlowKind, kind_of
from kairos_mcp.store import approvals, queries, report_queries
from kairos_mcp.store.accounts import read_account
from kairos_mcp.store.approvals import WaitingItems
from kairos_mcp.store.ownership import OwnerState
from kairos_mcp.store.queries import RunRow, StepRow
from kairos_mcp.store.report_queries import Tally
from kairos_mcp.store.rows import Session, decode, read_together
from kairos_mcp.views import mandate_view
from kairos_mcp.views.calls import NewestCalls, newest_calls
from kairos_mcp.views.command_text import CommandLine
from kairos_mcp.views.team_view import TeamView
from kairos_mcp.views.waiting import OpenStep, ShownBefore, waiting_items

NOTHING_WAITS = WaitingItems({}, {})

Decides = Literal["caller", "client", "person"]
"""Who can decide within a call: the caller, their client's user, or only a person elsewhere."""

Detail = Literal["keys", "decisions", "all"]
"""What to read of what waits: its keys and kinds; what a person decides whole, and a team's plan; or all of it."""


class BackOff(NamedTuple):
    """An attempt at the step at `path` that failed, as `reason` says, and the moment of the next one (milliseconds
    since 1970), which is number `attempt` of `of`."""

    path: str
    reason: str
    retry_at: int
    attempt: int
    of: int


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks at a run: what a server knows of it beside its rows, and for whom.

    `is_driven`: a living server has the run, or takes it over. `trouble`: the error that stopped the run here. `lacks`:
    what it takes to go on with a run that no server goes on with. `attached`: the start found this run, and
    did not make it. `decides`: who may decide about approvals, for this caller. `at`: now, in milliseconds since 1970.
    `backing_off`: failed attempts that are repeated after a pause. `changed_file`: the settings file, if it was changed
    after this server began. `read`: what the caller has read before, as its call says. `page`: where a person can
    decide in a browser. `may_move`: the caller may answer and drive the run here. `is_read_only`: the server has no
    tool that writes. `commands`: how the caller calls this program; None for one who is told no command to paste.
    """

    is_driven: bool
    trouble: KairosError | None = None
    lacks: tuple[str, ...] = ()
    attached: bool = False
    decides: Decides = "person"
    at: int = 0
    backing_off: tuple[BackOff, ...] = ()
    changed_file: str | None = None
    caller: Caller = LOCAL_CALLER
    read: AlreadyRead = NOTHING_READ
    page: str | None = None
    may_move: bool = True
    is_read_only: bool = False
    commands: CommandLine | None = None

    def complete(self, text: str) -> str:
        """Make the commands in a text ready to paste, if the caller may be told them."""
        return text if self.commands is None else self.commands.complete_all(text)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands: its outcome once it has ended, what it waits for, and whether its owner lives.

    `unreadable`: why its rows can't be read; it then seems to wait for nothing.
    """

    run: RunRow
    outcome: Outcome | None
    waits: WaitingItems
    owner: OwnerState
    unreadable: Unreadable | None

    @property
    def kind(self) -> FlowKind:
        return kind_of(self.run.flow)

    @property
    def has_ended(self) -> bool:
        return self.run.outcome is not None

    @property
    def is_queued(self) -> bool:
        """Whether it could go on, and waits for a living server that can drive it."""
        run = self.run
        return run.outcome is None and run.paused is None and run.owner is not None and not self.owner.lives

    @property
    def pause(self) -> str | None:
        """The status of the pause that its flow waits at between two cycles."""
        return mandate_view.current_pause(self.waits) if self.kind.has_cycles else None

    @property
    def needs_flow(self) -> bool:
        """Whether a report of all that waits shows open steps, so that it needs them from the run's flow."""
        waits = self.waits
        asked_in_branch = any(loop_of(row.path) for row in waits.approvals.values())  # its flow knows whose it is
        return bool(waits.steps or waits.lost_calls or asked_in_branch)

    def status(self, viewer: Viewer) -> RunStatus:
        run, waits = self.run, self.waits
        if self.has_ended:
            return "failed" if self.outcome is None else self.outcome.status
        if run.paused is not None or viewer.trouble is not None or self.unreadable is not None:
            return "paused"
        if waits.approvals or waits.lost_calls or any(row.kind != "pause" for row in waits.steps.values()):
            return "input_required"
        return "working" if viewer.is_driven and not waits.steps else "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts(Standing):
    """What a run is, as far as a viewer is shown it.

    `steps`: the open steps by path; without them (None) `items` are keys and kinds, and a mandate's pause is its status
    alone. `items`: what waits. `read_up_to`: the keys up to which the caller has read conversations that go on. `calls`
    and `notes`, and in `tally` the attempts: all of them, or those that came after the step `since`, up to which the
    caller has read. `is_delta`: it shows nothing but what is new to the caller. `model`: the one in use. `unanswered`:
    the steps without an answer of a run that goes on. `team`: what its team or its plan has come to, where that is
    shown. `queue`: the approvals that have to be decided before a run is asked about its own, as (run id, key), oldest
    first. `mandate`: the arguments that name its mandate, where another run goes on with that.
    """

    spec: Spec | None
    account: Account
    tally: Tally
    notes: Sequence[str]
    steps: Mapping[str, OpenStep] | None = None
    items: tuple[JsonObject, ...] = ()
    read_up_to: Sequence[str] = ()
    since: int = 0
    is_delta: bool = False
    model: str | None = None
    calls: NewestCalls = NewestCalls([], False)
    unanswered: Sequence[StepRow] = ()
    queue: Sequence[tuple[str, str]] = ()
    mandate: JsonObject | None = None
    team: TeamView | None = None

    @property
    def goal(self) -> str:
        return "" if self.spec is None else self.spec.goal

    @property
    def rounds(self) -> int:
        return self.account.spent.rounds + self.account.held.rounds


def read_facts(session: Session, stands: Standing, viewer: Viewer, steps: Mapping[str, OpenStep] | None) -> RunFacts:
    """Read what a run is, all but its team. Raises Unreadable."""
    run, status = stands.run, stands.status(viewer)
    spec: Spec = decode(Spec, run.spec)
    answered = viewer.read.answered if not stands.has_ended else ()
    answered_at = report_queries.first_answered_at(session, run.n, answered) if answered else None
    shown = ShownBefore(viewer.read, answered_at)
    items = tuple(waiting_items(run, stands.waits, steps, shown, for_person=viewer.caller.is_person))
    read = report_queries.number_steps(session, run.n, viewer.read.keys) if viewer.read.keys else {}
    since = _read_step(session, stands, items, viewer.read, read)
    account, tally, model, calls, notes, unanswered = read_together(
        session,
        lambda session: read_account(session, run.account),
        lambda session: report_queries.read_tally(session, run, since),
        lambda session: report_queries.newest_model(session, run.n, run.route),
        lambda session: newest_calls(session, run, since=since),
        lambda session: report_queries.list_notes(session, run.n, since),
        lambda session: queries.unanswered_steps(session, run.n) if status == "working" else [],
    )
    is_queued = status == "paused" and not run.paused and stands.waits.unasked
    is_unfinished = stands.outcome is not None and mandate_view.is_unfinished(stands.kind, stands.outcome)
    return RunFacts(
        **_fields_of(stands),
        spec=spec,
        account=account,
        tally=tally,
        notes=notes,
        steps=steps,
        items=items,
        read_up_to=_read_up_to(read, items, unanswered),
        since=since,
        is_delta=since > 0 and status in ("input_required", "working"),
        # Before the first request, the model that the run was started with.
        model=model or (spec.model if run.route == spec.route else None),
        calls=calls,
        unanswered=unanswered,
        queue=approvals.list_pending(session, run.n, 0) if is_queued else (),
        mandate=mandate_view.read_reference(session, run) if is_unfinished else None,
    )


def read_damaged(session: Session, stands: Standing, damage: Unreadable) -> RunFacts:
    """Read what can be read of a damaged run: its account, its notes, what it was for."""
    run = stands.run
    try:
        spec = decode(Spec, run.spec)
    except Unreadable:
        spec = None
    try:
        account = read_account(session, run.account)
    except Unreadable:
        account = Account(run.account, UNLIMITED, NOTHING, NOTHING)
    return RunFacts(
        **_fields_of(stands) | {"waits": NOTHING_WAITS, "unreadable": damage},
        spec=spec,
        account=account,
        tally=report_queries.read_tally(session, run),
        notes=report_queries.list_notes(session, run.n),
    )


def _fields_of(stands: Standing) -> dict[str, Any]:
    return {name: getattr(stands, name) for name in ("run", "outcome", "waits", "owner", "unreadable")}


def _read_step(
    session: Session, stands: Standing, items: Sequence[JsonObject], read: AlreadyRead, steps: Mapping[str, int]
) -> int:
    """Return the number of the step after which everything is new to a caller that has read up to these `steps`, by
    path. 0 where the caller is to be shown everything."""
    if not steps:
        return 0
    if stands.has_ended:
        step, path = report_queries.newest_completion(session, stands.run.n)
        return step if path in steps else 0
    before = {item["after"] for item in items if "after" in item} or steps.keys() & read.answered or steps
    return min(steps[path] for path in before)


def _read_up_to(read: Mapping[str, int], items: Sequence[JsonObject], unanswered: Sequence[StepRow]) -> tuple[str, ...]:
    """Return of these keys the newest of each loop that goes on without a completion that waits: what follows on one
    that waits is read by whoever answers it."""
    newest = {loop_of(path): path for path in sorted(read, key=read.__getitem__)}
    goes_on = {loop_of(item["key"]) for item in items} | {loop_of(step.path) for step in unanswered}
    asked = {loop_of(item["key"]) for item in items if item["kind"] == "completion"}
    return tuple(path for loop, path in newest.items() if loop not in asked and (not goes_on or loop in goes_on))
