"""What a team has come to: its phase, its tasks with their tries, what each used, and what waits in it.

All of it follows from rows: the flow is replayed, and shows the state that it fills (flows/team.py); what was used is
in the accounts of its branches. A plan alone is shown from its outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kairos_mcp.budget.reservation import Account
from kairos_mcp.core.limits import NOTHING, Units
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.steps import Failure, RecordedStep, enclosing_paths, loop_of
from kairos_mcp.core.text import count_of, truncate
from kairos_mcp.flows.team import TaskState, TeamState
from kairos_mcp.specs.load import LoadedTeam
from kairos_mcp.store import accounts, approvals, queries
from kairos_mcp.store.queries import RunRow, StepRow
from kairos_mcp.store.rows import Session, decode, read_together
from kairos_mcp.views.waiting import waiting_items

DESCRIPTION_CHARS = 160
FOUND_CHARS = 300  # of a task's result, where all tasks are told

TeamPhase = Literal["planning", "tasks", "replanning", "answer"]


@dataclass(frozen=True, slots=True)
class TryView:
    """A try at a task. `used`: what is charged to it so far. `round`: the path of its newest round, if it has one."""

    path: str
    agent: str
    status: str
    stop_reason: str | None
    used: Units
    ref: str | None
    left_open: str
    round: str | None = None

    def as_json(self) -> JsonObject:
        return {
            "path": self.path,
            "agent": self.agent,
            "status": self.status,
            "stop_reason": self.stop_reason,
            **_amounts(self.used),
            "ref": self.ref,
            "open": self.left_open,
        }


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task: the words of the plan, what became of it, its tries, and the keys of what waits in it."""

    id: str
    path: str
    agent: str
    description: str
    depends_on: tuple[str, ...]
    kind: str
    status: str
    used: Units = NOTHING
    found: str = ""
    left_open: str = ""
    ref: str | None = None
    tries: tuple[TryView, ...] = ()
    waits: tuple[str, ...] = ()

    def as_plan_entry(self) -> JsonObject:
        """Return the task as a report's `plan` has it; its tries only where there are several."""
        entry: JsonObject = {
            "id": self.id,
            "path": self.path,
            "agent": self.agent,
            "description": truncate(" ".join(self.description.split()), DESCRIPTION_CHARS),
            "status": self.status,
            "depends_on": list(self.depends_on),
            "rounds": self.used.rounds,
            "usd": self.used.nano_usd / 1e9,
        }
        if len(self.tries) > 1:
            entry["tries"] = [
                {"agent": each.agent, "status": each.status, "rounds": each.used.rounds} for each in self.tries
            ]
        return entry

    def as_json(self) -> JsonObject:
        """Return the task as a trace shows it."""
        return {
            "id": self.id,
            "path": self.path,
            "agent": self.agent,
            "kind": self.kind,
            "description": self.description,
            "depends_on": list(self.depends_on),
            "status": self.status,
            **_amounts(self.used),
            "found": truncate(self.found, FOUND_CHARS),
            "ref": self.ref,
            "open": self.left_open,
            "tries": [each.as_json() for each in self.tries],
            "waiting": list(self.waits),
        }


@dataclass(frozen=True, slots=True)
class TeamView:
    """A team or a plan alone.

    `phase`: what it is at; None once the run has ended. `newest`: the path of the newest round or call of a task.
    """

    phase: TeamPhase | None
    tasks: tuple[TaskView, ...] = ()
    newest: str | None = None

    @property
    def newest_try(self) -> TryView | None:
        loop = loop_of(self.newest) if self.newest is not None else ""
        return next((each for task in self.tasks for each in task.tries if each.path == loop), None)

    def plan(self) -> tuple[JsonObject, ...]:
        return tuple(task.as_plan_entry() for task in self.tasks)

    def summarize(self) -> str:
        """Say what the tasks have found so far and what is open, without a model."""
        done = [task for task in self.tasks if task.status in ("done", "stopped")]
        lines = [f"{len(done)} of {count_of(len(self.tasks), 'task')} done."]
        for task in self.tasks:
            told = task.found if task in done else task.left_open
            words = truncate(" ".join(told.split()), FOUND_CHARS)
            rounds = f", {count_of(task.used.rounds, 'round')}" if task.used.rounds else ""
            lines.append(f"- {task.id} ({task.agent}: {task.status}{rounds})" + (f": {words}" if words else ""))
        return "\n".join(lines)


def read_team(session: Session, number: int, loaded: LoadedTeam) -> TeamView:
    """Read what a team has come to, or a plan alone. Raises ReplayDiffers, Unreadable."""
    run = queries.run_by_number(session, number)
    outcome: Outcome | None = decode(Outcome, run.outcome) if run.outcome is not None else None
    if loaded.plans_only:
        return _view_plan(outcome)
    record, used, waits = read_together(
        session,
        lambda session: queries.read_record(session, number),
        lambda session: accounts.list_branches(session, run.account),
        lambda session: _list_waits(session, run) if outcome is None else {},
    )
    state = TeamState()
    runner = Runner(loaded.make_flow(state))
    was_cancelled = outcome is not None and outcome.status == "cancelled"
    runner.replay_all(
        RecordedStep(row.path, row.digest, None if was_cancelled and _was_stopped(row) else row.answer)
        for row in record
    )
    tasks = tuple(
        _view_task(task, record, used, waits.get(task.path, ()), is_over=outcome is not None) for task in state.tasks
    )
    newest = next((row.path for row in reversed(record) if loop_of(row.path)), None)
    return TeamView(None if outcome is not None else _phase_of(runner), tasks, newest)


def _view_plan(outcome: Outcome | None) -> TeamView:
    """Show a plan that nobody carries out."""
    if outcome is None:
        return TeamView("planning")
    planned = outcome.output["tasks"] if outcome.output is not None else ()
    return TeamView(
        None,
        tuple(
            TaskView(
                each["id"],
                f"task-{number}",
                each["agent"],
                each["description"],
                tuple(each["depends_on"]),
                each["kind"],
                "waiting",
            )
            for number, each in enumerate(planned, 1)
        ),
    )


def _was_stopped(row: StepRow) -> bool:
    """Whether a cancellation answered the step, in place of whoever was asked."""
    match row.answer:
        case Failure(code="cancelled") | ToolResult(code="cancelled"):
            return True
        case _:
            return False


def _phase_of(runner: Runner) -> TeamPhase:
    first = next(iter(runner.waiting), "synthesis").partition("/")[0]
    match first.partition("-")[0]:
        case "plan":
            return "planning"
        case "task":
            return "tasks"
        case "replan":
            return "replanning"
        case _:
            return "answer"


def _list_waits(session: Session, run: RunRow) -> dict[str, list[str]]:
    """Return the keys of what waits, by the path of the task that it is in."""
    found: dict[str, list[str]] = {}
    for item in waiting_items(run, approvals.read_waiting_items(session, run.n), None):
        found.setdefault(item["key"].partition("/")[0], []).append(item["key"])
    return found


def _view_task(
    state: TaskState, record: Sequence[StepRow], used: dict[str, Account], waits: Sequence[str], *, is_over: bool
) -> TaskView:
    """View a task. One that has not ended with the run was cancelled with it.

    The flow begins every task whose dependencies have ended; those for which there is no room yet have no account.
    """
    status: str = state.status
    if status == "working" and state.path not in used:
        status = "waiting"
    tries = []
    for number, each in enumerate(state.tries, 1):
        path = f"{state.path}/try-{number}"
        if path not in used:
            continue
        rounds = (row.path for row in reversed(record) if row.kind == "round" and path in enclosing_paths(row.path))
        ended = "cancelled" if is_over and each.status == "working" else each.status
        tries.append(
            TryView(
                path,
                each.agent,
                ended,
                each.stop_reason,
                _used_of(used[path]),
                each.ref,
                each.left_open,
                next(rounds, None),
            )
        )
    if is_over and status in ("waiting", "working"):
        status = "cancelled"
    planned = state.task
    return TaskView(
        planned.id,
        state.path,
        tries[-1].agent if tries else planned.agent or "",
        planned.description,
        planned.depends_on,
        planned.kind,
        status,
        _used_of(used[state.path]) if state.path in used else NOTHING,
        state.text if state.is_good else "",
        state.left_open,
        state.ref,
        tuple(tries),
        tuple(waits),
    )


def _used_of(account: Account) -> Units:
    return account.spent._replace(rounds=account.spent.rounds + account.held.rounds)


def _amounts(used: Units) -> JsonObject:
    return {"rounds": used.rounds, "tokens": used.total_tokens, "usd": used.nano_usd / 1e9}
