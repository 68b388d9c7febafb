"""Plan the usual commit of a run: answers are new, and all steps that come next are begun or handed out; or it ends.

Most commits of most runs are such, of a team's branches too. They need none of what `plan_commit` (plan_commit.py)
looks for (open steps, approvals, further attempts, new branches, control requests), so they take a short way with the
same rows. `plan_usual_commit` says whether the next one is usual and what it then writes, so that a run may change from
one way to the other at any commit; it takes the lines of a script, which are returned where the commit is not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kairos_mcp.budget.reservation import reserve
from kairos_mcp.budget.units import Account, caps_by_unit, counts_of, format_status_line
from kairos_mcp.core.run_spec import CLIENT_ROUTES, SERVER_ROUTE
from kairos_mcp.core.steps import CallTool, Refused, RequestCompletion, Step
from kairos_mcp.execution.daily_limits import DailyAccounts
from kairos_mcp.execution.executor import SENT_TO_SERVER
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.store.accounts import AccountChange
from kairos_mcp.store.codec import encode
from kairos_mcp.store.commit import AnsweredStep, NewStep, UsualCommit
from kairos_mcp.store.reservations import exceeds_held


def plan_usual_commit(
    state: RunState, daily_accounts: DailyAccounts, owner: int, fence: int, at: int
) -> UsualCommit | None:
    """Return the next commit where it is a usual one; None where it is any other. `at`: milliseconds since 1970.

    It takes lines of a script, which are to be returned (`RunState.return_lines`) if the commit is not written.
    """
    runner, pending = state.runner, state.pending
    # `take` comes first: it counts the branches that begin with such a step, and `has_more_to_do` then sees those whose
    # accounts have to be opened.
    new = [(path, step) for path, step in runner.waiting.items() if path not in pending and runner.take(path)]
    if not (new or runner.finished) or not state.accounts or state.has_more_to_do:
        return None
    outcome = None
    if runner.finished:
        if runner.outcome.notes:
            return None
        outcome = encode(runner.outcome)
    plan = _Plan(state, daily_accounts, at, dict(state.accounts))
    answered = tuple(state.finished)
    if not all(map(plan.settle, answered)):
        return None
    begun = plan.begin(new)
    if begun is None:
        return None
    known, changed = state.accounts, plan.accounts
    changes = {
        path: AccountChange(before, changed[path])
        for path, before in known.items()
        if changed[path] is not before or not path
    }
    return UsualCommit(state.run.n, owner, fence, at, changes, answered, state.has_notes_of_tools, begun, outcome)


@dataclass(slots=True)
class _Plan:
    """A commit as it is planned. `accounts`: as they are by now, the run's own under "", those of branches by path."""

    state: RunState
    daily_accounts: DailyAccounts
    at: int
    accounts: dict[str, Account]

    def settle(self, answered: AnsweredStep) -> bool:
        """Settle a step that was answered. False: more than its answer is to be written: a long text, a note, or a
        note on a limit that it has exceeded."""
        if answered.result.text is not None or answered.result.notes:
            return False
        charged = self.state.charged_accounts(answered.path)
        held, spent = answered.held, answered.result.spent
        for path in charged:
            account = self.accounts.get(path)
            if account is None:
                return False
            self.accounts[path] = account = account.settle(held, spent)
            if exceeds_held(held, spent) and _is_over_cap(account):
                return False
        return True

    def begin(self, new: Sequence[tuple[str, Step]]) -> list[NewStep] | None:
        """Begin these steps. None: one of them can't be begun in a usual commit."""
        begun: list[NewStep] = []
        shares = self.state.count_by_branch(new) if len(new) > 1 else None
        for path, step in new:
            charged = self.state.charged_accounts(path)
            own = [account for each in charged if (account := self.accounts.get(each)) is not None]
            among = 1
            if shares is not None:
                branch = self.state.runner.branch_of(path)
                among, shares[branch] = shares[branch], shares[branch] - 1
            found = self._begin_step(path, step, own, among) if len(own) == len(charged) else None
            if found is None:
                self.state.return_lines(each.sent.line for each in begun)
                return None
            for each, account in zip(charged, own, strict=True):
                self.accounts[each] = account.hold(found.held)
            begun.append(found)
        handed_out = sum(each.request.external for each in begun)
        if handed_out and (handed_out < len(begun) or self.state.pending):
            return None  # the run is not let go of; and of a script, which is not handed out, it took no lines
        return begun

    def _begin_step(self, path: str, step: Step, own: list[Account], shares: int) -> NewStep | None:
        match step:
            case RequestCompletion():
                return self._begin_completion(path, step, own, shares)
            case CallTool():
                return self._begin_call(path, step, own, shares)
            case _:
                return None

    def _begin_completion(self, path: str, step: RequestCompletion, own: list[Account], shares: int) -> NewStep | None:
        """Begin a completion that this server performs, or hand it out; its price and its day are known."""
        state, executor, purpose = self.state, self.state.executor, step.purpose
        route = state.run.route
        if route not in executor.models and (route not in CLIENT_ROUTES or purpose == "compact"):
            return None
        charged = self.daily_accounts.known_accounts(state.run, executor.tool_access.mandate, self.at)
        if charged is None:
            return None
        request = executor.reservation_request(path, step, route, counts_of(purpose), shares)
        nearest, *enclosing = own
        reservation = reserve(nearest, request, (), enclosing)
        if request.price is None or isinstance(reservation, Refused):
            return None
        status = format_status_line(nearest, closing=purpose == "closing") if purpose in ("round", "closing") else None
        sent = executor.completion_sent(path, route, status, reservation.max_tokens)
        return NewStep(path, purpose, step.digest, request, sent, reservation=reservation, shared=charged.shared)

    def _begin_call(self, path: str, step: CallTool, own: list[Account], shares: int) -> NewStep | None:
        """Begin a call of this server's tools which only reads and which the gate allows without a look at files."""
        executor, call = self.state.executor, step.call
        access = executor.tool_access
        spec = access.find_offered(path, call.name)
        if (
            spec is None
            or spec.source == "caller"
            or spec.effect != "read"
            or access.check_call(path, call, spec, self.at) is not None
        ):
            return None
        if not access.allows_at_once(path, step, spec):
            return None
        nearest, *enclosing = own
        request = executor.reservation_request(path, step, SERVER_ROUTE, counts_of("call"), shares)
        reservation = reserve(nearest, request, (), enclosing)
        if isinstance(reservation, Refused):
            return None
        return NewStep(path, "call", step.digest, request, SENT_TO_SERVER, reservation=reservation)


def _is_over_cap(account: Account) -> bool:
    """Whether more is used than a cap allows."""
    used = zip(caps_by_unit(account.caps), account.held, account.spent, strict=True)
    return any(cap is not None and held + spent > cap for cap, held, spent in used)
