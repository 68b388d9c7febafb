"""The last commit of a cancelled run: begun steps are answered as stopped, open steps release what they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kairos_mcp.core.limits import NOTHING, Units
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.outcomes import make_outcome
from kairos_mcp.core.routes import SERVER_ROUTE
from kairos_mcp.core.steps import Answer, Failure
from kairos_mcp.execution.pending_step import PendingStep
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.store import force_cancel
from kairos_mcp.store.commit import AnsweredStep, CommitPlan, DroppedStep, StepResult
from kairos_mcp.store.database import Job
from kairos_mcp.store.queries import RunRow, StepRow
from kairos_mcp.store.rows import encode


def final_commit(
    state: RunState, mismatched: Sequence[StepRow], owner: int, fence: int, at: int, done: str
) -> CommitPlan:
    """Plan the commit that ends the run. `mismatched`: the unanswered steps of a record that its flow can't replay.

    Results that came after the cancellation join `state.finished`. Raises Unreadable.
    """
    run = state.run
    begun = [(path, step) for path, step in state.pending.items() if not step.is_open]
    late = {path: state.executor.tool_caller.late_results.pop(path, None) for path, _ in begun}
    state.finished += [
        step.with_result(path, result, SERVER_ROUTE) for path, step in begun if (result := late[path]) is not None
    ]
    stopped = [_stop_step(path, step) for path, step in begun if late[path] is None]
    dropped = [
        DroppedStep(step.id, path, step.held, step.shared_accounts)
        for path, step in state.pending.items()
        if step.is_open
    ]
    for row in mismatched:
        if row.is_open:
            dropped.append(DroppedStep(row.id, row.path, row.held, row.shared_accounts))
        else:
            result = _stopped_result(row.kind, row.held)
            stopped.append(AnsweredStep(row.id, row.path, result, row.held, SERVER_ROUTE, row.shared_accounts))
    return CommitPlan(
        *(run.n, run.id, owner, fence, run.account, at, (*state.finished, *stopped)),
        dropped_steps=dropped,
        branches=state.branches,
        outcome=encode(make_outcome("cancelled", record=done)),
    )


def force_cancel_job(run: RunRow, fence: int, at: int, done: str, known: Mapping[int, AnsweredStep]) -> Job[None]:
    """The job that cancels a run whose rows can't be read, without its flow.

    `known`: answers that have come and are not in the rows, by the id of their step. The job raises FenceLost.
    """
    outcome = encode(make_outcome("cancelled", record=done))

    def answer(kind: str) -> Answer:
        return _stopped_result(kind, NOTHING).answer

    return lambda session: force_cancel.force_cancel(session, run, fence, at, outcome, answer, known)


def _stop_step(path: str, step: PendingStep) -> AnsweredStep:
    """Answer a begun step as cancelled."""
    if step.failed_result is None:
        return step.with_result(path, _stopped_result(step.kind, step.held), SERVER_ROUTE)
    # It was between two attempts: what the failed one cost is known, and nothing was under way.
    answer = Failure("cancelled", "The run was cancelled before the model was asked again.")
    return step.with_result(path, step.failed_result._replace(answer=answer), step.sent.route or SERVER_ROUTE)


def _stopped_result(kind: str, held: Units) -> StepResult:
    """The answer of an attempt that a cancellation stopped, charged with all that it held but the time."""
    spent: Units = held._replace(milliseconds=0)
    if kind != "call":
        return StepResult(Failure("cancelled", "The run was cancelled while the model was asked."), spent, 0, "bounded")
    return StepResult(ToolResult("The run was cancelled during this call.", is_error=True, code="cancelled"), spent)
