"""The report of a run: status, usage, newest calls, what waits, and the one call that makes sense next.

Everything here is computed from rows. Only the text of a waiting completion, and the cycles of a pause, need the
replayed flow: its open steps (`steps`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kairos_mcp.budget.reservation import USEFUL_TOKENS, Account
from kairos_mcp.core.calendar import format_timestamp
from kairos_mcp.core.decision_rights import LOCAL_CALLER, Caller
from kairos_mcp.core.errors import KairosError, Unreadable
from kairos_mcp.core.limits import NOTHING, UNLIMITED, USAGE_NAMES, Units, limits_to_json
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcomes import STOP_REASONS, Outcome, RunStatus, StopName
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import PRIVATE_ROUTES, outdated_notes
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.core.steps import loop_of
from kairos_mcp.core.text import count_of, truncate
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.store import approvals, report_queries
from kairos_mcp.store.accounts import read_account
from kairos_mcp.store.approvals import WaitingItems
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session, decode, read_together
from kairos_mcp.views import mandate_view
from kairos_mcp.views.calls import NewestCalls, newest_calls, single_call_output
from kairos_mcp.views.next_action import Decides, next_call
from kairos_mcp.views.team_view import TeamPhase, TeamView
from kairos_mcp.views.waiting import (
    NOTHING_SHOWN,
    BackOff,
    OpenStep,
    ShownBefore,
    answered_by,
    current_waits,
    format_time,
    waiting_items,
)

NOTHING_WAITS = WaitingItems({}, {})
GOAL_CHARS = 80
_ATTACHED = "an identical start made this run before"
EXACTNESS_ORDER = ("exact", "reported", "estimated", "bounded")  # a sum is as exact as its least exact part


@dataclass(frozen=True, slots=True)
class RunReport:
    """The result of every tool that touches a run; its fields are a contract with callers."""

    run_id: str
    seq: int
    flow: str
    goal: str
    workspace: str | None
    created_at: str
    status: RunStatus
    stop_reason: StopName | None
    summary: str | None
    record: str | None
    output: Any
    rounds: int
    route: str
    model: str | None
    resume_at: str | None
    usage: JsonObject
    remaining: JsonObject
    calls: tuple[JsonObject, ...]
    plan: tuple[JsonObject, ...]
    waiting: tuple[JsonObject, ...]
    degraded: tuple[str, ...]
    next: JsonObject | None
    phase: TeamPhase | None = None
    held_up_by: tuple[str, ...] = ()  # those of `degraded` that say why it stands still

    def as_json(self) -> JsonObject:
        """Return the report as callers get it; `phase` only of a team that has not ended."""
        fields = asdict(self)
        del fields["held_up_by"]
        if self.phase is None:
            del fields["phase"]
        return fields | {name: list(fields[name]) for name in ("calls", "plan", "waiting", "degraded")}

    @property
    def stop_words(self) -> str | None:
        """Why its loop ended, for people; None where `stop_reason` is None."""
        return None if self.stop_reason is None else STOP_REASONS[self.stop_reason].words

    @property
    def is_delta(self) -> bool:
        """Whether it shows only what is new to a caller whose answer this call brought."""
        return any("after" in item for item in self.waiting)

    def describe_waiting(self, most: int | None = None) -> str:
        """Say what the run waits for, and from whom; empty where it waits for nobody. `most`: so many keys."""
        keys: dict[str, list[str]] = {}
        for item in self.waiting[:most]:
            keys.setdefault(answered_by(item["kind"], self.route), []).append(f"{item['key']} ({item['kind']})")
        texts = [f"for {', '.join(waiting)} from {who}" for who, waiting in keys.items()]
        left_out = 0 if most is None else max(0, len(self.waiting) - most)
        items = " and ".join([*texts, *([f"for {left_out} more"] if left_out else [])])
        if self.status != "paused":
            return items
        return f"{self._describe_pause()}, then {items}" if items else self._describe_pause()

    def _describe_pause(self) -> str:
        """Say what ends the pause."""
        match self.next:
            case _ if self.resume_at is not None:
                return f"until {self.resume_at}"
            case {"arguments": {"action": "resume"}}:
                return "to be resumed"
            case {"tool": "run_status"}:
                return "for a server that can go on with it"
            case _:
                return "for a person"

    def as_row(self) -> JsonObject:
        """Return the run's entry in a list: what it is for, its status, and what it waits for by key and kind."""
        whole = self.as_json()
        waiting = [{"key": item["key"], "kind": item["kind"]} for item in self.waiting]
        return {name: whole[name] for name in ROW_FIELDS} | {"waiting": waiting, "next": self.next}


ROW_FIELDS = ("run_id", "seq", "flow", "goal", "workspace", "created_at", "status", "stop_reason", "rounds")


@dataclass(frozen=True, slots=True)
class ServerView:
    """What a server knows of a run beside its rows.

    `trouble`: the error that stopped the run here. `lacks`: what this server lacks to go on with a run that no server
    owns. `attached`: the start found this run, and did not make it. `decides`: who may decide about approvals, for
    this caller. `at`: now, in milliseconds since 1970. `backing_off`: failed attempts that are repeated after a pause.
    `changed_file`: the settings file, if it was changed after this server began.
    `answered`: the keys that this call answered, word for word as they are recorded. `page`: where a person can decide
    in a browser.
    """

    owner_lives: bool
    trouble: KairosError | None = None
    lacks: tuple[str, ...] = ()
    attached: bool = False
    decides: Decides = "person"
    at: int = 0
    backing_off: tuple[BackOff, ...] = ()
    changed_file: str | None = None
    caller: Caller = LOCAL_CALLER
    answered: Collection[str] = ()
    page: str | None = None


def run_status(run: RunRow, waits: WaitingItems, view: ServerView) -> RunStatus:
    if run.outcome is not None:
        outcome: Outcome = decode(Outcome, run.outcome)
        return outcome.status
    if run.paused is not None or view.trouble is not None:
        return "paused"
    if waits.approvals or waits.lost_calls or any(row.kind != "pause" for row in waits.steps.values()):
        return "input_required"
    return "working" if view.owner_lives and not waits.steps else "paused"


def needs_flow(run: RunRow, waits: WaitingItems) -> bool:
    """Whether a full report of the run shows open steps, so that it needs them from the run's flow."""
    asked_in_branch = any(loop_of(row.path) for row in waits.approvals.values())  # its flow knows whose it is
    shows_items = bool(waits.steps or waits.lost_calls or asked_in_branch)
    return shows_items or (kind_of(run.flow).has_cycles and mandate_view.current_pause(waits) is not None)


def make_report(
    session: Session,
    run: RunRow,
    waits: WaitingItems,
    view: ServerView,
    steps: Mapping[str, OpenStep] | None,
    team: TeamView | None = None,
) -> RunReport:
    """Make the report of a run, which waits for `waits`. `team`: what it has come to, if it is one.

    `steps`: the open steps by path, where `needs_flow`. Without them (None), waiting items are keys and kinds, and a
    mandate's pause is its status alone.
    """
    status = run_status(run, waits, view)
    outcome: Outcome | None = decode(Outcome, run.outcome) if run.outcome is not None else None
    shown = _shown_before(session, run, view.answered)
    items = tuple(waiting_items(run, waits, steps, shown, for_person=view.caller.is_person))
    since = _answered_step(session, run, items, view.answered)
    account, tally, model, calls, notes, current = read_together(
        session,
        lambda session: read_account(session, run.account),
        lambda session: report_queries.read_tally(session, run, since),
        lambda session: _model(session, run),
        lambda session: newest_calls(session, run, since=since),
        lambda session: report_queries.list_notes(session, run.n, since),
        lambda session: current_waits(session, run, view.at, view.backing_off) if status == "working" else [],
    )
    return RunReport(
        **_identity_fields(run, view.caller),
        status=status,
        stop_reason=_stop_reason(run, outcome),
        summary=outcome.summary if outcome is not None else None,
        record=outcome.record if outcome is not None else None,
        output=_output(run, outcome, waits, status, steps),
        rounds=account.spent.rounds + account.held.rounds,
        route=run.route,
        model=model,
        resume_at=None if run.resume_at is None or run.outcome is not None else format_timestamp(run.resume_at),
        usage=_usage(run, account.spent, tally),
        remaining=_remaining_limits(account),
        calls=tuple(calls.entries),
        plan=team.plan() if team is not None else (),
        waiting=items,
        degraded=(
            *_degraded_notes(notes, run, view, tally, waits, since),
            *_cut_notes(calls),
            *_room_notes(account),
            *current,
        ),
        next=next_call(
            session,
            run,
            status,
            items,
            view.decides,
            view.trouble,
            mandate_view.current_pause(waits) if kind_of(run.flow).has_cycles else None,
            waits,
            view.lacks,
            steps,
            team,
            view.page,
        ),
        phase=team.phase if team is not None and outcome is None else None,
        held_up_by=tuple(_held_up_by(run, view, waits)),
    )


def _output(
    run: RunRow, outcome: Outcome | None, waits: WaitingItems, status: str, steps: Mapping[str, OpenStep] | None
) -> Any:
    kind = kind_of(run.flow)
    if kind.is_call:
        return single_call_output(outcome)
    if kind.has_mandate:
        return mandate_view.mandate_output(run, outcome, waits, status, steps)
    return outcome.output if outcome is not None else None


def _shown_before(session: Session, run: RunRow, answered: Collection[str]) -> ShownBefore:
    """Return the items that the answering caller has already seen."""
    if not answered or run.outcome is not None:
        return NOTHING_SHOWN
    return ShownBefore(answered, report_queries.first_answered_at(session, run.n, answered))


def _answered_step(session: Session, run: RunRow, items: Sequence[JsonObject], answered: Collection[str]) -> int:
    """Return the number of the step whose answer in this call brought the run to where it is; what came after it is new
    to the caller. 0 where the caller is to be shown everything."""
    if not answered:
        return 0
    if run.outcome is not None:
        step, path = report_queries.newest_completion(session, run.n)
        return step if path in answered else 0
    before = {item["after"] for item in items if "after" in item}
    return report_queries.oldest_step(session, run.n, before) if before else 0


def _model(session: Session, run: RunRow) -> str | None:
    """Return the model in use: the newest on the run's route, by the name that its answer reported if there is one;
    before the first request, the model that the run was started with."""
    spec: Spec = decode(Spec, run.spec)
    return report_queries.newest_model(session, run.n, run.route) or (spec.model if run.route == spec.route else None)


def make_unreadable_report(session: Session, run: RunRow, view: ServerView) -> RunReport:
    """Make the report of a run whose rows can't be read (`view.trouble`): its account, and how to go on."""
    outcome = _readable_outcome(run)
    try:
        account = read_account(session, run.account)
    except Unreadable:
        account = Account(run.account, UNLIMITED, NOTHING, NOTHING)
    status: RunStatus = "paused" if run.outcome is None else outcome.status if outcome is not None else "failed"
    tally = report_queries.read_tally(session, run)
    return RunReport(
        **_identity_fields(run, view.caller),
        status=status,
        stop_reason=_stop_reason(run, outcome),
        summary=outcome.summary if outcome is not None else None,
        record=outcome.record if outcome is not None else _unreadable_record(run),
        output=None if outcome is None else outcome.output,
        rounds=account.spent.rounds + account.held.rounds,
        route=run.route,
        model=None,
        resume_at=None,
        usage=_usage(run, account.spent, tally),
        remaining=_remaining_limits(account),
        calls=(),
        plan=(),
        waiting=(),
        degraded=_degraded_notes(report_queries.list_notes(session, run.n), run, view, tally),
        next=next_call(session, run, status, (), view.decides, view.trouble, None, NOTHING_WAITS)
        if run.outcome is None
        else None,
        held_up_by=tuple(_held_up_by(run, view, NOTHING_WAITS)),
    )


def _identity_fields(run: RunRow, caller: Caller) -> JsonObject:
    """Return the fields that identify the run: its id, goal, workspace and how far its record is."""
    try:
        goal = decode(Spec, run.spec).goal
    except Unreadable:
        goal = ""
    return {
        "run_id": run.id,
        "seq": run.seq,
        "flow": run.flow,
        "goal": truncate(goal, GOAL_CHARS - 1),
        "workspace": None if run.workspace is None else caller.visible_path(run.workspace),
        "created_at": format_time(run.created_at),
    }


def _unreadable_record(run: RunRow) -> str:
    """Return a text in place of a record, so that a list of runs says it too."""
    way_on = f"`kairos-mcp cancel {run.id}`" if run.outcome is None else "`kairos-mcp doctor` says where"
    return f"Unreadable: {way_on}"


def _readable_outcome(run: RunRow) -> Outcome | None:
    try:
        found: Outcome | None = decode(Outcome, run.outcome) if run.outcome is not None else None
    except Unreadable:
        return None
    return found


def _stop_reason(run: RunRow, outcome: Outcome | None) -> StopName | None:
    """Return why the run's loop stopped; None for a run without one: a single call, a phase alone."""
    return outcome.stop_reason if outcome is not None and kind_of(run.flow).has_loop else None


def _usage(run: RunRow, spent: Units, tally: report_queries.Tally) -> JsonObject:
    return limits_to_json(spent, USAGE_NAMES) | {
        "attempts": spent.model_calls,
        "cached_tokens": run.cached,
        "unpriced": list(tally.unpriced) or None,
        "exactness": max(tally.exactness, key=EXACTNESS_ORDER.index, default="exact"),
    }


def _remaining_limits(account: Account) -> JsonObject:
    return limits_to_json(account.remaining)


def _held_up_by(run: RunRow, view: ServerView, waits: WaitingItems) -> list[str]:
    """Return the notes that say why a run stands still: an error, calls that need an approval which nobody is asked for
    now, what no server has, what a pause is for."""
    if run.outcome is not None:
        return []
    texts = [] if view.trouble is None else [f"The run stands still: {view.trouble}"]
    texts += [
        f"Nobody decided in time about {row.tool} at {path}; resume asks again." for path, row in waits.lapsed.items()
    ]
    if waits.unasked:
        number = count_of(len(waits.unasked), "call")
        room = f"{approvals.MAX_PER_RUN} of a run and {approvals.MAX_PER_WORKSPACE} of a workspace are asked at a time"
        texts.append(f"{number} of this run not asked about yet: {room}; the next is when one was decided.")
    if view.lacks:
        texts.append(f"No server goes on with this run: it needs one with {' and '.join(view.lacks)}.")
    if run.resume_at is not None:
        texts.append(f"Paused: {run.paused}")
    return texts


def _cut_notes(calls: NewestCalls) -> list[str]:
    shown = f"calls shows the newest {len(calls.entries)}; run_trace view=calls has all of them."
    return [shown] if calls.is_cut else []


def _room_notes(account: Account) -> Iterator[str]:
    """Say for how many model calls a limit on tokens has room, while the first of them are under way, where that is
    fewer than the rounds that the run may have."""
    begun, held, rounds = account.held.model_calls, account.held.input_tokens, account.caps.rounds
    if account.spent.model_calls or not begun or not held:
        return
    read = -(-held // begun)
    for unit, needs in (("input_tokens", read), ("total_tokens", read + USEFUL_TOKENS)):
        most = getattr(account.caps, unit)
        if most is not None and (rounds is None or most // needs < rounds):
            room = f"has room for about {count_of(most // needs, 'model call')} like the first"
            yield f"limits.{unit}, which is {most}, {room}: it may read up to {read} tokens, and later ones read more."


def _degraded_notes(
    notes: Sequence[str],
    run: RunRow,
    view: ServerView,
    tally: report_queries.Tally,
    waits: WaitingItems = NOTHING_WAITS,
    since: int = 0,
) -> tuple[str, ...]:
    """Return what was done otherwise than asked: all of it, or what came after the step `since`, and what holds now.

    `notes`: the run's own about it.
    """
    outdated = outdated_notes(run.route)
    texts = [text for text in notes if text not in outdated]
    if view.attached:
        other = "its mandate has one open run at most" if run.mandate is not None else "another key makes a new one"
        texts.append(f"attached: {_ATTACHED if run.mandate is None else 'this run was open before'}; {other}.")
    if view.changed_file is not None:
        texts.append(f"{view.changed_file} was changed after this server began: a restart makes it count.")
    if view.trouble is not None and run.outcome is not None:
        texts.append(str(view.trouble))
    texts += _held_up_by(run, view, waits)
    if not since and run.route not in PRIVATE_ROUTES and tally.has_private_content:
        texts.append("The provider's own parts of its turns (thinking, ids) are left out on other routes.")
    if tally.lost:
        charged = "stays charged at its" if tally.lost == 1 else "stay charged at their"
        texts.append(f"{count_of(tally.lost, 'attempt')} ended unknown and {charged} bound.")
    if tally.withdrawn:
        charged = "stays charged at its" if tally.withdrawn == 1 else "stay charged at their"
        asked = f"{count_of(tally.withdrawn, 'request')} to a client's model"
        texts.append(f"{asked} ended without an answer and {charged} bound, as far as so much was left.")
    return tuple(texts)
