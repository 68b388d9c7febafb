"""Read what a team has come to.

All of it follows from rows: the flow is replayed, and shows the state that it fills (flows/team.py); what was used is
in the accounts of its branches. A plan alone is shown from its outcome.
"""

from __future__ import annotations

from collections.abc import Sequence

from kairos_mcp.budget.reservation import Account
from kairos_mcp.core.limits import NOTHING, Units
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.steps import Failure, RecordedStep, enclosing_paths, first_parts, loop_of, split_path
from kairos_mcp.flows.team import TaskState, TeamState
from kairos_mcp.specs.load import LoadedTeam
from kairos_mcp.store import accounts, approvals, queries
from kairos_mcp.store.queries import RunRow, StepRow
from kairos_mcp.store.rows import Session, decode, read_together
from kairos_mcp.views.team_view import TaskView, TeamPhase, TeamView, TryView
from kairos_mcp.views.waiting import waiting_items


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
    match split_path(next(iter(runner.waiting), "synthesis"))[0].name:
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
        found.setdefault(first_parts(item["key"], 1), []).append(item["key"])
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
