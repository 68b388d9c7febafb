"""The report of a run: status, usage, newest calls, what waits, and the one call that makes sense next.

It follows from the facts of the run and from who looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_type_hints

from kairos_mcp.budget.notes import clock_behind_reason
from kairos_mcp.budget.reservation import USEFUL_TOKENS, Account
from kairos_mcp.core.calendar import format_timestamp
from kairos_mcp.core.limits import USAGE_NAMES
from kairos_mcp.core.limits_table import limits_to_json
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcomes import RUN_STATUSES, STOP_REASONS, RunStatus, StopName
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import PAID_ROUTES, PRIVATE_ROUTES, ROUTES, SERVER_ROUTE, outdated_notes
from kairos_mcp.core.text import count_of, truncate
from kairos_mcp.store import approvals
from kairos_mcp.store.find_runs import RunState
from kairos_mcp.store.queries import StepRow
from kairos_mcp.views import mandate_view
from kairos_mcp.views.calls import single_call_output
from kairos_mcp.views.cuts import cut_notes, cut_output, cut_text, cut_texts, leave_out, size
from kairos_mcp.views.next_action import next_call
from kairos_mcp.views.result_fields import (
    CALLS,
    COUNT,
    NEXT,
    PLAN,
    REMAINING,
    TEXT,
    TEXT_OR_NULL,
    USAGE,
    WAITING,
    Field,
    FieldCut,
    list_of,
    object_of,
)  # fmt: skip
from kairos_mcp.views.run_facts import RunFacts, Viewer
from kairos_mcp.views.team_view import TeamPhase
from kairos_mcp.views.waiting import answered_by, format_time, leave_out_texts
from kairos_mcp.views.words import (
    amounts_words,
    as_json,
    calls_words,
    in_one_line,
    next_words,
    notes_words,
    usage_words,
    waiting_words,
    work_words,
)

GOAL_CHARS = 80
EXACTNESS_ORDER = ("exact", "reported", "estimated", "bounded")  # a sum is as exact as its least exact part


@dataclass(frozen=True, slots=True)
class RunReport:
    """The result of every tool that touches a run; its fields are a contract with callers."""

    run_id: Annotated[str, Field(TEXT, in_row=True, in_delta=True, is_required=True)]
    seq: Annotated[
        int,
        Field(
            {**COUNT, "description": "Rises with each change; `since` for run_status until=news"},
            in_row=True,
            in_delta=True,
        ),
    ]
    flow: Annotated[str, Field(TEXT, in_row=True)]
    goal: Annotated[str, Field({**TEXT, "description": "Its first 80 characters"}, in_row=True)]
    workspace: Annotated[str | None, Field(TEXT_OR_NULL, in_row=True)]
    created_at: Annotated[str, Field(TEXT, in_row=True)]
    status: Annotated[RunStatus, Field({"enum": list(RUN_STATUSES)}, in_row=True, in_delta=True, is_required=True)]
    stop_reason: Annotated[
        StopName | None,
        Field({**TEXT_OR_NULL, "description": "Why its loop ended; null for a call or a phase alone"}, in_row=True),
    ]
    summary: Annotated[
        str | None,
        Field(
            {**TEXT_OR_NULL, "description": "A model's last words; null where it said none"},
            in_one_line,
            (FieldCut(4, cut_text, "summary cut from {} characters: run_trace ref=summary", 2_200),),
        ),
    ]
    record: Annotated[
        str | None,
        Field(
            {**TEXT_OR_NULL, "description": "What was done, where there is no summary"},
            in_one_line,
            (FieldCut(4, cut_text, "record cut from {} characters: run_trace ref=record", 2_200),),
        ),
    ]
    output: Annotated[
        Any,
        Field(
            {"description": "By output_schema, of a phase or a call; else null"},
            as_json,
            (FieldCut(3, cut_output, "output cut from {} characters: run_trace ref=output", 1_800, size),),
        ),
    ]
    rounds: Annotated[int, Field(COUNT, in_row=True, in_delta=True)]
    route: Annotated[str, Field({"enum": [*ROUTES, SERVER_ROUTE]}, in_delta=True)]
    model: Annotated[str | None, Field(TEXT_OR_NULL)]
    resume_at: Annotated[str | None, Field({**TEXT_OR_NULL, "description": "When a paused run goes on by itself"})]
    usage: Annotated[JsonObject, Field(USAGE, usage_words)]
    remaining: Annotated[JsonObject, Field(REMAINING, amounts_words)]
    calls: Annotated[
        tuple[JsonObject, ...],
        Field(
            CALLS,
            calls_words,
            (
                FieldCut(1, cut_texts("preview"), "previews of calls cut: run_trace view=calls"),
                FieldCut(6, leave_out, "calls left out: run_trace view=calls"),
            ),
            in_delta=True,
        ),
    ]
    plan: Annotated[
        tuple[JsonObject, ...],
        Field(
            PLAN,
            cuts=(
                FieldCut(2, cut_texts("description"), "plan cut: run_trace view=plan"),
                FieldCut(5, leave_out, "plan left out: run_trace view=plan"),
            ),
        ),
    ]
    waiting: Annotated[tuple[JsonObject, ...], Field(WAITING, waiting_words, in_delta=True)]
    degraded: Annotated[
        tuple[str, ...],
        Field(
            {**list_of(TEXT), "description": "What was cut, defaulted, skipped or done otherwise than asked"},
            notes_words,
            (FieldCut(7, cut_notes, "{} notes, some cut: run_trace view=events"),),
            in_delta=True,
        ),
    ]
    next: Annotated[JsonObject | None, Field(NEXT, next_words, in_delta=True)]
    phase: Annotated[
        TeamPhase | None, Field({"enum": list(get_args(TeamPhase)), "description": "Of a team that has not ended"})
    ] = None
    held_up_by: tuple[str, ...] = ()  # those of `degraded` that say why it stands still; no field of results
    is_queued: bool = False  # whether it waits for a server that can drive it; no field of results
    is_delta: bool = False  # whether it shows only what is new to its caller; no field of results

    def as_json(self) -> JsonObject:
        """Return the report as callers get it; `phase` only of a team that has not ended."""
        values = {name: getattr(self, name) for name in FIELDS if name != "phase" or self.phase is not None}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @property
    def state(self) -> RunState:
        """Its status as operators list it: `queued` where it only waits for a server that can drive it."""
        return "queued" if self.is_queued else self.status

    @property
    def stop_words(self) -> str | None:
        """Why its loop ended, for people; None where `stop_reason` is None."""
        return None if self.stop_reason is None else STOP_REASONS[self.stop_reason].words

    @property
    def work(self) -> str:
        """How far it is: rounds or model calls, by its flow."""
        return work_words(self.flow, self.rounds, self.usage["model_calls"])

    def describe_waiting(self, most: int | None = None) -> str:
        """Say what the run waits for, and from whom; empty if it waits for nobody. `most`: how many keys to name."""
        keys: dict[str, list[str]] = {}
        for item in self.waiting[:most]:
            keys.setdefault(answered_by(item["kind"], self.route), []).append(f"{item['key']} ({item['kind']})")
        texts = [f"for {', '.join(waiting)} from {who}" for who, waiting in keys.items()]
        left_out = 0 if most is None else max(0, len(self.waiting) - most)
        items = " and ".join([*texts, *([f"for {left_out} more"] if left_out else [])])
        if self.status != "paused":
            return items
        return f"{self.describe_pause()}, then {items}" if items else self.describe_pause()

    def describe_pause(self) -> str:
        """Say what a paused run waits for before it goes on."""
        match self.next:
            case _ if self.resume_at is not None:
                return f"until {self.resume_at}"
            case {"arguments": {"action": "resume"}}:
                return "to be resumed"
            case {"tool": "run_status"}:
                return "for a server that can go on with it"
            case _:
                return "for a person"

    def describe_standstill(self) -> str:
        """Say in one line why a run that has not ended moves nowhere by itself; empty where it moves or has ended."""
        if self.status == "working" and self.is_queued:
            return (
                "A living server has its workspace and route; it goes on once a slot is free and its tools are there."
            )
        if self.status != "paused":
            return ""
        if self.held_up_by:
            return in_one_line(self.held_up_by[0])
        return in_one_line(self.next["why"]) if self.next is not None else self.describe_pause()

    def as_row(self) -> JsonObject:
        """Return the run's entry in a list: what it is for, its status, and what it waits for by key and kind."""
        row = {name: getattr(self, name) for name, field in FIELDS.items() if field.in_row}
        return row | {
            "waiting": [{"key": item["key"], "kind": item["kind"]} for item in self.waiting],
            "next": self.next,
        }


FIELDS: Mapping[str, Field] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(RunReport, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
"""The fields of a result by name, in their order."""

RESULT_SCHEMA = object_of(
    tuple(name for name, field in FIELDS.items() if field.is_required),
    **{name: field.schema for name, field in FIELDS.items()},
)


def make_report(facts: RunFacts, viewer: Viewer) -> RunReport:
    """Make the report of a run, with commands that this viewer can paste."""
    run, outcome, account = facts.run, facts.outcome, facts.account
    is_over, next_step = facts.has_ended, next_call(facts, viewer)
    held_up_by = tuple(map(viewer.complete, _held_up_by(facts, viewer)))
    return RunReport(
        run_id=run.id,
        seq=run.seq,
        flow=run.flow,
        goal=truncate(facts.goal, GOAL_CHARS - 1),
        workspace=None if run.workspace is None else viewer.caller.visible_path(run.workspace),
        created_at=format_time(run.created_at),
        status=facts.status(viewer),
        stop_reason=outcome.stop_reason if outcome is not None and facts.kind.has_loop else None,
        summary=outcome.summary if outcome is not None else None,
        record=_record(facts, viewer),
        output=_output(facts, viewer),
        rounds=facts.rounds,
        route=run.route,
        model=facts.model,
        resume_at=None if run.resume_at is None or is_over or facts.unreadable else format_timestamp(run.resume_at),
        usage=_usage(facts),
        remaining=limits_to_json(account.remaining),
        calls=tuple(facts.calls.entries),
        plan=facts.team.plan() if facts.team is not None else (),
        waiting=tuple(_complete_item(item, viewer) for item in facts.items),
        degraded=(
            *map(viewer.complete, _notes_before(facts, viewer)),
            *held_up_by,
            *_notes_after(facts),
            *current_waits(facts, viewer),
        ),
        next=None if next_step is None else {**next_step, "why": viewer.complete(next_step["why"])},
        phase=facts.team.phase if facts.team is not None and not is_over else None,
        held_up_by=held_up_by,
        is_queued=facts.is_queued,
        is_delta=facts.is_delta,
    )


def _complete_item(item: JsonObject, viewer: Viewer) -> JsonObject:
    item = leave_out_texts(item, viewer.read.known)
    if viewer.commands is None or "command" not in item:
        return item
    return {**item, "command": viewer.commands.complete(item["command"])}


def _record(facts: RunFacts, viewer: Viewer) -> str | None:
    """Return the record; of a run that can't be read a text in its place, so that a list of runs says it too."""
    if facts.outcome is not None or facts.unreadable is None:
        return None if facts.outcome is None else facts.outcome.record
    if facts.has_ended:
        return viewer.complete("Unreadable: `kairos-mcp doctor` says where")
    return viewer.complete(f"Unreadable: `kairos-mcp cancel {facts.run.id}`")


def _output(facts: RunFacts, viewer: Viewer) -> Any:
    outcome = facts.outcome
    if facts.unreadable is None and facts.kind.is_call:
        return single_call_output(outcome)
    if facts.unreadable is None and facts.kind.has_mandate:
        return mandate_view.mandate_output(facts.run, outcome, facts.waits, facts.status(viewer), facts.steps)
    return outcome.output if outcome is not None else None


def _usage(facts: RunFacts) -> JsonObject:
    spent, tally = facts.account.spent, facts.tally
    return limits_to_json(spent, USAGE_NAMES) | {
        "attempts": spent.model_calls,
        "cached_tokens": facts.run.cached,
        "unpriced": list(tally.unpriced) or None,
        "exactness": max(tally.exactness, key=EXACTNESS_ORDER.index, default="exact"),
    }


def _notes_before(facts: RunFacts, viewer: Viewer) -> Iterator[str]:
    """Yield what was done otherwise than asked: the run's own notes, and what this look has found."""
    run, outdated = facts.run, outdated_notes(facts.run.route)
    yield from (text for text in facts.notes if text not in outdated)
    if viewer.attached and run.mandate is None:
        yield "attached: an identical start made this run before; another key makes a new one."
    elif viewer.attached:
        yield "attached: this run was open before; its mandate has one open run at most."
    if viewer.changed_file is not None:
        yield f"{viewer.changed_file} was changed after this server began: a restart makes it count."
    if viewer.trouble is not None and facts.has_ended:
        yield str(viewer.trouble)


def _held_up_by(facts: RunFacts, viewer: Viewer) -> Iterator[str]:
    """Yield why a run stands still: an error, calls that need an approval which nobody is asked for now, what no server
    has, what a pause is for."""
    run, waits = facts.run, facts.waits
    if facts.has_ended:
        return
    if viewer.trouble is not None:
        yield f"The run stands still: {viewer.trouble}"
    for path, row in waits.lapsed.items():
        yield f"Nobody decided in time about {row.tool} at {path}; resume asks again."
    if waits.unasked:
        number = count_of(len(waits.unasked), "call")
        room = f"{approvals.MAX_PER_RUN} of a run and {approvals.MAX_PER_WORKSPACE} of a workspace are asked at a time"
        yield f"{number} of this run not asked about yet: {room}; the next is when one was decided."
    if viewer.lacks:
        yield f"No server goes on with this run: it needs one with {' and '.join(viewer.lacks)}."
    if run.resume_at is not None or run.paused == clock_behind_reason(run.principal):
        yield f"Paused: {run.paused}"


def _notes_after(facts: RunFacts) -> Iterator[str]:
    """Yield what was charged for nothing, and what is left out here."""
    tally = facts.tally
    if not facts.since and facts.run.route not in PRIVATE_ROUTES and tally.has_private_content:
        yield "The provider's own parts of its turns (thinking, ids) are left out on other routes."
    if tally.lost:
        yield f"{count_of(tally.lost, 'model call')} lost: charged at the most that it could use."
    if tally.withdrawn:
        asked = f"{count_of(tally.withdrawn, 'request')} to a client's model"
        yield f"{asked} without an answer: charged at the most that it could use, as far as so much was left."
    if facts.calls.is_cut:
        yield f"calls shows the newest {len(facts.calls.entries)}; run_trace view=calls has all of them."
    if facts.unreadable is None:
        yield from _room_notes(facts.account)


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


MIN_SHOWN_WAIT_MS = 1_000  # what takes less is no wait


def current_waits(facts: RunFacts, viewer: Viewer) -> Iterator[str]:
    """Yield a sentence for each step that is being performed, or is repeated after a pause."""
    pauses = {each.path: each for each in viewer.backing_off}
    for step in facts.unanswered:
        pause = pauses.get(step.path)
        if pause is not None:
            again = f"it is asked again at {format_time(pause.retry_at)} (attempt {pause.attempt} of {pause.of})"
            yield f"Waiting: {step.path}: {_describe_awaited(step)} failed ({pause.reason}); {again}."
        elif step.is_begun_unanswered and step.held.milliseconds:
            since = step.at if step.newest is None else step.newest.at
            if step.further_attempts or viewer.at - since >= MIN_SHOWN_WAIT_MS:
                tries = f", attempt {step.further_attempts + 1}" if step.further_attempts else ""
                until = f"since {format_time(since)}, until {format_time(since + step.held.milliseconds)} at the latest"
                yield f"Waiting: {step.path}: for {_describe_awaited(step)}{tries}, {until}."


def _describe_awaited(step: StepRow) -> str:
    sent = step.sent
    if step.kind == "call":
        return "the tool that was called"
    return f"the provider's model {sent.model}" if sent.route in PAID_ROUTES else f"the route {sent.route}"
