"""Plan and decide the simplest commits in one pass: most commits of most runs, of a team's branches too.

Such a commit may have new answers. It begins all steps that follow, hands all of them out, or ends the run. Its facts
are known from earlier commits. Before it there are no open steps, approvals, further attempts, new branches or control
requests: `plan_commit` handles those. If `decide` would refuse, ask or keep anything waiting, nothing is decided here;
else it would decide the same. To go through both takes a tenth more time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from kairos_mcp.budget.ledger import NO_SHARED_ACCOUNTS, Ledger
from kairos_mcp.budget.reservation import format_status_line
from kairos_mcp.core.limits import counts_of
from kairos_mcp.core.routes import OUTSIDE_ROUTES, SERVER_ROUTE
from kairos_mcp.core.steps import CallTool, Refused, RequestCompletion
from kairos_mcp.execution.accounting import DailyAccounts
from kairos_mcp.execution.executor import SENT_TO_SERVER
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.execution.tool_calls import Allowed
from kairos_mcp.store.commit import CommitPlan, Decided, DecidedStep, NewStep
from kairos_mcp.store.rows import encode


def decide_at_once(
    state: RunState, daily_accounts: DailyAccounts, owner: int, fence: int, at: int
) -> tuple[CommitPlan, Decided] | None:
    """Return the next commit, if it is as simple as that; else None. `at`: milliseconds since 1970.

    It takes lines of a script, which are to be returned (`RunState.withdraw`) if the commit is not written.
    """
    run, runner, pending, kept = state.run, state.runner, state.pending, state.kept_waiting
    if kept and state.has_new_room:
        return None
    # `try_begin` comes first: it counts the branches that begin with such a step, and `has_more_to_do` then sees those
    # whose accounts have to be opened.
    waiting = [
        (path, step)
        for path, step in runner.waiting.items()
        if path not in pending and path not in kept and runner.try_begin(path)
    ]
    if not (waiting or runner.finished) or state.has_more_to_do or len(state.accounts) <= len(state.branches):
        return None
    ledger, notes, answers = Ledger(state.accounts, state.branches), list[str](), tuple(state.finished)
    for answered in answers:
        result = answered.result
        ledger.settle(answered.path, answered.held, result.spent, answered.shared_accounts)
        notes += result.notes
    if ledger.exceeded and any(ledger.exceeded_caps()):
        return None
    outcome = None
    if runner.finished:
        outcome = encode(runner.outcome)
        notes += runner.outcome.notes
    new: list[NewStep] = []
    decided: list[DecidedStep] = []
    shares = Counter(runner.branch_of(path) for path, _ in waiting) if len(waiting) > 1 else None
    for path, step in waiting:
        time_shares = 1
        if shares is not None:
            branch = runner.branch_of(path)
            time_shares, shares[branch] = shares[branch], shares[branch] - 1
        found = None
        if step.kind == "completion":
            found = _begin_completion(state, daily_accounts, ledger, path, step, time_shares, at)
        elif step.kind == "tool_call":
            found = _begin_call(state, ledger, path, step, time_shares, at)
        if found is None:
            state.return_lines(new)
            return None
        new.append(found[0])
        decided.append(found[1])
    waits_outside = bool(decided) and decided[0].is_open
    if (waits_outside and pending) or (len(decided) > 1 and any(each.is_open is not waits_outside for each in decided)):
        return None  # the run is not released; it took no lines of a script, whose steps never wait outside
    plan = CommitPlan(
        *(run.n, run.id, owner, fence, run.account, at, answers, new),
        outcome=outcome,
        branches=state.branches,
        may_have_intents=state.has_notes_of_tools,
    )
    return plan, _decided((ledger, (), decided, (), notes, None, waits_outside, waits_outside))


_decided: Callable[[tuple[object, ...]], Decided] = partial(tuple.__new__, Decided)  # it is made at every commit


def _begin_completion(
    state: RunState,
    daily_accounts: DailyAccounts,
    ledger: Ledger,
    path: str,
    step: RequestCompletion,
    time_shares: int,
    at: int,
) -> tuple[NewStep, DecidedStep] | None:
    """Begin a completion that this server performs, or hand it out; its price and its day are known."""
    executor, purpose, route = state.executor, step.purpose, state.run.route
    if route not in executor.models and (route not in OUTSIDE_ROUTES or purpose == "compact"):
        return None
    charged = daily_accounts.known_accounts(state.run, executor.tool_access.mandate, at)
    request = executor.reservation_request(path, step, route, counts_of(purpose), time_shares)
    if charged is None or request.price is None:
        return None
    fitting = ledger.fit(path, request)
    if isinstance(fitting, Refused):
        return None
    if ledger.branches and fitting.max_tokens < request.wanted_tokens and state.has_new_room:
        return None  # its branch may get more
    status = None
    if purpose in ("round", "closing"):
        status = format_status_line(ledger.nearest_account(path), closing=purpose == "closing")
    ledger.hold(path, request, fitting, charged.shared_accounts)
    sent = executor.completion_sent(path, route, status, fitting.max_tokens)
    new = NewStep(path, purpose, step.digest, request, sent)
    return new, DecidedStep(sent, fitting, None, request.counts_only, charged.shared_accounts)


def _begin_call(
    state: RunState, ledger: Ledger, path: str, step: CallTool, time_shares: int, at: int
) -> tuple[NewStep, DecidedStep] | None:
    """Begin a call of this server's tools which only reads and which the gate allows without a look at files."""
    executor, call = state.executor, step.call
    access = executor.tool_access
    spec = access.find_offered(path, call.name)
    if (
        spec is None
        or spec.is_caller_tool
        or spec.effect != "read"
        or access.check_call(path, call, spec, at) is not None
        or not isinstance(access.authorize_at_once(path, step, spec), Allowed)
    ):
        return None
    request = executor.reservation_request(path, step, SERVER_ROUTE, counts_of("call"), time_shares)
    fitting = ledger.fit(path, request)
    if isinstance(fitting, Refused):
        return None
    ledger.hold(path, request, fitting, NO_SHARED_ACCOUNTS)
    new = NewStep(path, "call", step.digest, request, SENT_TO_SERVER, call=step.stored_call)
    return new, DecidedStep(SENT_TO_SERVER, fitting)
