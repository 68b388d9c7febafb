"""Write answers that somebody brings for a parked run together with the commit that follows from them.

Otherwise that takes two transactions: the answers are recorded and the run is taken (inbox.py), then its owner commits
what comes next. Where the server that is brought the answers still has the parked run in memory, both are one. Its
state is right as long as the run's fence is the same and nobody owns it: whoever writes anything for a parked run takes
it in the same transaction, or pauses it.
"""

from __future__ import annotations

from collections.abc import Mapping

from kairos_mcp.core.errors import FenceLost
from kairos_mcp.store import apply_commit, client_requests
from kairos_mcp.store.commit import CommitResult, RunCommit
from kairos_mcp.store.inbox import SubmittedAnswer, record_dialect
from kairos_mcp.store.open_completions import consume_ask
from kairos_mcp.store.queries import RunRow, step_at
from kairos_mcp.store.session import Session

_TAKE_PARKED = """
    update run set owner = ?, fence = fence + 1 where n = ? and fence = ? and route = ?
        and owner is null and paused is null and outcome is null
        and not exists (select 1 from ask where nonce = ? and consumed is not null) returning n
"""


def commit_with_answers(
    session: Session, run: RunRow, commit: RunCommit, answers: Mapping[str, SubmittedAnswer], nonce: str | None
) -> CommitResult:
    """Take a parked run, and write the commit whose answers these are, by path.

    `nonce`: of the ask that is answered. A `dialect` is given where the step's row does not say the same. Raises
    FenceLost, before anything is written, where the run is not as `run` says any more, the ask was answered before, or
    another request about one of the steps has to be charged first.
    """
    for answered in commit.answers:
        outstanding = client_requests.requests_of_step(session, answered.mark)
        request = answers[answered.path].request
        if [(each.id, each.ended) for each in outstanding] != ([] if request is None else [(request, None)]):
            raise FenceLost(run.id)
    if session.row(_TAKE_PARKED, (commit.owner, run.n, run.fence, run.route, nonce)) is None:
        raise FenceLost(run.id)
    if nonce is not None:
        consume_ask(session, run, nonce, commit.at)
    for path, answer in answers.items():
        if answer.request is not None:
            client_requests.end_requests(session, [answer.request], "answered", commit.at)
        if answer.dialect is not None:
            step = step_at(session, run.n, path)
            assert step is not None, "it waited"
            record_dialect(session, step, answer.dialect)
    return apply_commit.apply_run_commit(session, commit)
