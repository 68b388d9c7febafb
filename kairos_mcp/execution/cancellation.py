"""The last turn of a cancelled run: what was performed is journaled as stopped, what waits is let go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kairos_mcp.budget.units import NOTHING, Units
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.outcome import make_outcome
from kairos_mcp.core.steps import Answer, Failure
from kairos_mcp.execution.accounting import StepResult
from kairos_mcp.execution.pending_step import FinishedStep, PendingStep
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.store import force_cancel
from kairos_mcp.store.codec import encode
from kairos_mcp.store.commit import AnsweredStep, RunCommit
from kairos_mcp.store.queries import RunRow, StepRow
from kairos_mcp.store.writer import Job


def last_turn(standing: RunState, unfit: Sequence[StepRow], owner: int, fence: int, at: int, summary: str) -> RunCommit:
    """What ends the run. `unfit`: the unanswered steps of a record that does not fit its flow. Answers that came late
    are `standing.ready` from now on. Raises Unreadable."""
    run = standing.run
    begun = [(path, mark) for path, mark in standing.marks.items() if not mark.open_step]
    late = {path: standing.performer.came_late.pop(path, None) for path, _ in begun}
    standing.ready += [
        FinishedStep(path, mark, came, "house") for path, mark in begun if (came := late[path]) is not None
    ]
    stopped = [_cut_off(path, mark).settled() for path, mark in begun if late[path] is None]
    open_steps = [(path, mark) for path, mark in standing.marks.items() if mark.open_step]
    released = [(mark.id, path, mark.held, mark.shared) for path, mark in open_steps]
    for row in unfit:
        if row.open:
            released.append((row.id, row.path, row.held, row.shared))
        else:
            done = _stopped(row.kind, row.held)
            stopped.append(
                AnsweredStep(
                    row.id, row.path, done.answer, row.held, done.spent, "house", 0, done.exactness, row.shared
                )
            )
    answers = (*(each.settled() for each in standing.ready), *stopped)
    return RunCommit(
        run.n,
        run.id,
        owner,
        fence,
        run.account,
        at,
        answers,
        notes=[note for each in standing.ready for note in each.performed.notes],
        texts=[each.performed.text for each in standing.ready if each.performed.text],
        released=released,
        branches=standing.branches,
        outcome=encode(make_outcome("cancelled", summary)),
    )


def broken_off(run: RunRow, fence: int, at: int, summary: str, known: Mapping[int, AnsweredStep]) -> Job[None]:
    """The job that cancels a run whose rows can't be read, without its flow. `known`: answers that have come and are
    not in the rows, by mark. It raises FenceLost."""
    outcome = encode(make_outcome("cancelled", summary))

    def answer(kind: str) -> Answer:
        return _stopped(kind, NOTHING).answer

    return lambda connection: force_cancel.break_off(connection, run, fence, at, outcome, answer, known)


def _cut_off(path: str, mark: PendingStep) -> FinishedStep:
    """What becomes of a begun step. Where an attempt had failed and another was to follow, its cost is known."""
    if mark.failing is None:
        return FinishedStep(path, mark, _stopped(mark.kind, mark.held), "house")
    answer = Failure("cancelled", "The run was cancelled before the model was asked again.")
    return FinishedStep(path, mark, mark.failing._replace(answer=answer), mark.sent.route or "house")


def _stopped(kind: str, held: Units) -> StepResult:
    """The answer of an attempt that a cancellation stopped: charged with all that it held, but time."""
    spent: Units = held._replace(milliseconds=0)
    if kind != "call":
        return StepResult(Failure("cancelled", "The run was cancelled while the model was asked."), spent, 0, "bounded")
    return StepResult(ToolResult("The run was cancelled during this call.", is_error=True, code="cancelled"), spent)
