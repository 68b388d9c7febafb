"""Plan the usual turn of a run: one step waits and is begun, or the run ends; at most one answer is new.

Most turns of most runs are such. They need none of what `RunState.next_commit` looks for (open steps, approvals,
further attempts, control requests), so they take a short way with the same rows. `plan_usual_commit` only says
whether a turn is usual and what it then writes: a run may change from one way to the other at any turn.
"""

from __future__ import annotations

from kairos_mcp.budget.reservation import reserve
from kairos_mcp.budget.status_line import format_status_line
from kairos_mcp.budget.units import Account, counts_of
from kairos_mcp.core.routes import SERVER_ROUTE
from kairos_mcp.core.steps import CallTool, Refused, RequestCompletion
from kairos_mcp.execution.daily_limits import DailyAccounts
from kairos_mcp.execution.executor import SENT_TO_SERVER
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.store.accounts import NO_SHARED_ACCOUNTS
from kairos_mcp.store.codec import encode
from kairos_mcp.store.commit import AnsweredStep
from kairos_mcp.store.usual_commit import BegunStep, UsualCommit


def plan_usual_commit(
    state: RunState, daily_accounts: DailyAccounts, owner: int, fence: int, at: int
) -> UsualCommit | None:
    """Return the commit of a usual turn; None where the turn is any other. `at`: milliseconds since 1970.

    It takes a script's line, which is to be returned (`StepExecutor.return_line`) if the commit is not written.
    """
    runner, known, finished = state.runner, state.account, state.finished
    waiting = runner.waiting
    if known is None or len(finished) > 1 or (len(waiting) != 1 and not runner.finished):
        return None
    path, step = next(iter(waiting.items()), ("", None))
    if step is not None:
        runner.take(path)  # first, since a branch that begins with this step has an account to be opened
    if state.has_more_to_do:
        return None
    account, answered = known, None
    if finished:
        answered = finished[0]
        if _needs_notes(answered):
            return None
        account = known.settle(answered.held, answered.result.spent)
    begun, outcome = None, None
    match step:
        case RequestCompletion():
            begun = _begin_completion(state, path, step, account, daily_accounts, at)
        case CallTool():
            begun = _begin_call(state, path, step, account, at)
        case None if not runner.outcome.notes:
            outcome = encode(runner.outcome)
        case _:
            return None
    if begun is not None:
        account = account.hold(begun.grant.held)
    elif outcome is None:
        return None
    forgets = state.has_notes_of_tools
    return UsualCommit(state.run.n, owner, fence, at, known, account, answered, forgets, begun, outcome)


def _needs_notes(answered: AnsweredStep) -> bool:
    """Whether more than the answer is to be written: a long text, a note, or a note on a limit that it may exceed."""
    result, held = answered.result, answered.held
    spent = result.spent
    return (
        result.text is not None
        or bool(result.notes)
        or spent.input_tokens > held.input_tokens
        or spent.output_tokens > held.output_tokens
        or spent.nano_usd > held.nano_usd
    )


def _begin_completion(
    state: RunState, path: str, step: RequestCompletion, account: Account, daily_accounts: DailyAccounts, at: int
) -> BegunStep | None:
    """Begin a completion that this server performs, whose price and whose day are known."""
    executor, route, purpose = state.executor, state.run.route, step.purpose
    if route not in executor.models:
        return None
    charged = daily_accounts.known_accounts(state.run, executor.tool_access.mandate, at)
    if charged is None:
        return None
    request = executor.reservation_request(path, step, route, counts_of(purpose))
    grant = reserve(account, request)
    if request.price is None or isinstance(grant, Refused):
        return None
    status = format_status_line(account, closing=purpose == "closing") if purpose in ("round", "closing") else None
    sent = executor.completion_sent(path, route, status, grant.max_tokens)
    return BegunStep(path, purpose, step.digest, sent, grant, charged.shared)


def _begin_call(state: RunState, path: str, step: CallTool, account: Account, at: int) -> BegunStep | None:
    """Begin a call of this server's tools which only reads and which the gate allows without a look at files."""
    executor, call = state.executor, step.call
    access = executor.tool_access
    spec = access.find_offered(path, call.name)
    if (
        spec is None
        or spec.source == "caller"
        or spec.effect != "read"
        or access.check_call(path, call, spec, at) is not None
    ):
        return None
    if not access.allows_at_once(path, step, spec):
        return None
    grant = reserve(account, executor.reservation_request(path, step, SERVER_ROUTE, counts_of("call")))
    if isinstance(grant, Refused):
        return None
    return BegunStep(path, "call", step.digest, SENT_TO_SERVER, grant, NO_SHARED_ACCOUNTS)
