"""Create a run together with its first commit, where that is a usual one: they are one transaction."""

from __future__ import annotations

from typing import NamedTuple

from kairos_mcp.app.run_factory import RunFactory
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.execution.daily_limits import DailyAccounts
from kairos_mcp.execution.plan_usual_commit import plan_usual_commit
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.store import runs
from kairos_mcp.store.apply_usual_commit import WrittenCommit, apply_first_commit
from kairos_mcp.store.database import Store
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.runs import NewRun
from kairos_mcp.store.session import Session


class CreatedRun(NamedTuple):
    """A run that was created just now. `state`: with its flow at its first steps; None where its spec can't be loaded
    or its flow fails at once. `written`: its first commit, which the state does not know of yet; None where it is to be
    made."""

    run: RunRow
    state: RunState | None = None
    written: WrittenCommit | None = None


async def create_with_first_commit(
    store: Store, factory: RunFactory, daily_accounts: DailyAccounts, new: NewRun, spec: Spec, owner: int
) -> CreatedRun | RunRow:
    """Create a run, or return the row of the one that the same start has created before. Raises the store's errors."""
    draft = runs.draft_run(new, owner)
    try:
        loaded = await factory.load_new_spec(new, spec)
        state = factory.make_state(draft, loaded)
        state.begin(new.limits)
        first = plan_usual_commit(state, daily_accounts, owner, draft.fence, new.at)
    except Exception:  # a damaged text of an earlier run, a bug of the flow: the run's worker meets it
        loaded, state, first = None, None, None

    def create(session: Session) -> CreatedRun | RunRow:
        before = runs.find_same_start(session, new)
        if before is not None:
            return before
        run = runs.insert_run(session, new, draft)
        return CreatedRun(run, state, None if first is None else apply_first_commit(session, run, first))

    created = await store.submit(create)
    if isinstance(created, CreatedRun) and loaded is not None and state is not None:
        factory.bind_state(state, created.run, loaded)
        if created.written is None:
            state.begin(new.limits)
    return created
