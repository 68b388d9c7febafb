"""Commits of a run that are one transaction with what caused them: the first with the run, others with an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kairos_mcp.app.run_factory import RunFactory
from kairos_mcp.app.run_pool import RunPool
from kairos_mcp.core.errors import FenceLost, StoreCorrupt
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.execution.plan_commit import plan_commit, plan_usual_commit
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.store import ownership, runs
from kairos_mcp.store.apply_commit import WrittenCommit, apply_first_commit, apply_usual_commit, commit_with_answers
from kairos_mcp.store.commit import UsualCommit
from kairos_mcp.store.database import Store
from kairos_mcp.store.inbox import SubmittedAnswer
from kairos_mcp.store.joined_commit import ParkedRun
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session
from kairos_mcp.store.runs import NewRun


class JoinedCommits:
    """Makes such commits for runs of this server, and goes on with them in its pool."""

    def __init__(self, store: Store, factory: RunFactory, clock: Callable[[], int], pool: RunPool) -> None:
        self._store = store
        self._factory = factory
        self._clock = clock
        self._pool = pool

    async def start_run(self, new: NewRun, spec: Spec, owner: int) -> RunRow | None:
        """Create a run together with its first commit, where that is a usual one, and drive it; or return the run that
        the same start has created before. Raises the store's errors."""
        draft = runs.draft_run(new, owner)
        try:
            loaded = await self._factory.specs.load_new(new, spec)
            state = self._factory.make_state(draft, loaded)
            state.begin(new.limits)
            first = plan_usual_commit(state, self._pool.daily_accounts, owner, draft.fence, new.at)
        except Exception:  # a damaged text of an earlier run, a bug of the flow: the run's worker meets it
            loaded, state, first = None, None, None

        def create(session: Session) -> tuple[RunRow, WrittenCommit | None] | RunRow:
            before = runs.find_same_start(session, new)
            if before is not None:
                return before
            run = runs.insert_run(session, new, draft)
            return run, None if first is None else apply_first_commit(session, run, first)

        created = await self._store.submit(create)
        if isinstance(created, RunRow):
            return created
        run, written = created
        if loaded is None or state is None:
            await self._pool.start(run, run.fence)
            return None
        self._factory.bind_state(state, run, loaded)
        if written is None:
            state.begin(new.limits)
        self._pool.go_on(state, run.fence, written)
        return None

    async def commit_answers(
        self, run: RunRow, answers: Sequence[SubmittedAnswer], by_route: str, mine: int, *, nonce: str | None = None
    ) -> bool:
        """Write answers for a run that is parked here together with its next commit, and go on with it.

        `nonce`: of the ask that is answered. False where that can't be, and nothing was written: the answers are then
        to be recorded by themselves. Raises the store's errors.
        """
        state, fence, at = self._pool.parked_state(run), run.fence + 1, self._clock()
        if not answers or mine == ownership.ANY_SERVER or state is None or run.paused is not None:
            return False
        if not state.waits_only_for({each.path for each in answers}):
            return False
        accounts = await self._pool.daily_accounts.find_accounts(run, state.executor.tool_access.mandate, at)
        if not self._pool.unpark(run, state):
            return False
        # From here on the state is given up, unless all of this is written.
        state.take_row(run)
        try:
            parked_run = state.take_answers(answers, by_route, nonce)
            state.run = state.run._replace(owner=mine, fence=fence)
            usual = plan_usual_commit(state, self._pool.daily_accounts, mine, fence, at)
        except Exception:  # a bug of the flow: the answer is recorded all the same, and the run's worker meets the bug
            return False
        if usual is not None and await self._commit_usual(state, usual, parked_run):
            return True
        try:
            commit = plan_commit(state, mine, fence, at, accounts, no_new_steps=False, steps_running=False)
        except Exception:
            return False
        try:
            result = await self._store.submit(
                lambda session: commit_with_answers(session, commit, parked_run), of_run=run.n
            )
        except (FenceLost, StoreCorrupt):
            return False
        state.apply_result(commit, result)
        if result.paused is not None:
            state.run = state.run._replace(paused=result.paused.reason, resume_at=result.paused.resume_at)
        self._pool.go_on(state, fence, is_released=result.released)
        return True

    async def _commit_usual(self, state: RunState, commit: UsualCommit, parked: ParkedRun) -> bool:
        """Write a parked run's usual commit and go on with it; False, and nothing is written, where something is not as
        it was known."""
        try:
            step_ids = await self._store.submit(
                lambda session: apply_usual_commit(session, commit, parked), of_run=commit.run
            )
        except StoreCorrupt:  # the general way meets it too
            step_ids = None
        if step_ids is None:
            state.return_lines(begun.sent.line for begun in commit.begun)
            return False
        self._pool.go_on(state, commit.fence, (commit, step_ids))
        return True
