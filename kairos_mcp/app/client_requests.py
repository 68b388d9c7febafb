"""Completions that a client's model may make: find them, ask, and store the replies.

An open step waits in the rows like any other. A request to the client's model about it is a row too
(store/client_completions.py), so that it is charged whatever becomes of the client or of this server.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kairos_mcp.app.context import AppContext, Operations, read_run
from kairos_mcp.budget.reservation import CLOSING_MS, Account
from kairos_mcp.core import redact_values
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.limits import NOTHING, Units, counts_of
from kairos_mcp.core.messages import Completion
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import SAMPLING, is_answered_by, next_route
from kairos_mcp.core.steps import DialectName, RequestCompletion, Sent
from kairos_mcp.execution.accounting import estimate_usage, usage_units
from kairos_mcp.models.dialects import TextPrompts
from kairos_mcp.store import client_completions, client_questions, runs, settlements
from kairos_mcp.store.accounts import read_account
from kairos_mcp.store.approvals import WaitingItems
from kairos_mcp.store.client_completions import NewRequest, RequestOutcome, RequestRow
from kairos_mcp.store.client_questions import AskRow, NewAsk, NewPush
from kairos_mcp.store.inbox import SubmittedAnswer
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session

MAX_ASKERS = 4_096  # runs whose last calling session is remembered
TAKEN_OVER_ELSEWHERE = "-"  # in place of a session: one of another server asks now
MAX_POLL_S = 1.0  # how often a call that waits for a pushed request reads the rows, at least
REROUTE_TIMEOUT_S = 5.0  # how long a call waits until its run has left the route


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """One open completion: its path, the flow's request, what the server adds, and the text dialect's prompts.

    `left_s`: the seconds left of the run's time; None where that is unlimited. `bound`: the most that it can cost.
    """

    path: str
    step: RequestCompletion
    sent: Sent
    prompts: TextPrompts
    left_s: float | None
    bound: Units


@dataclass(frozen=True, slots=True)
class ClientReply:
    """The reply of a client's model to the request of this number, in this dialect.

    `milliseconds`: how long a pushed request took; 0 where the client called again. `completion` None: the run's own
    time was over before the client answered. `is_timed`: the run's time is limited, and may be over.
    """

    completion: Completion | None
    milliseconds: int = 0
    dialect: DialectName | None = None
    request: int | None = None
    is_timed: bool = False


class ClientRequests(Operations):
    """The requests of this server's runs to its clients."""

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._answered: set[tuple[str, str]] = set()
        self._askers: OrderedDict[tuple[str, str], str] = OrderedDict()  # by principal and run id

    # -- looking -----------------------------------------------------------------------------------------------

    def has_answered(self, caller: Caller) -> bool:
        """Whether this client has answered a pushed request before; one that never has is waited for less."""
        return (caller.principal, caller.client) in self._answered

    async def goes_through_clients(self, run_id: str, caller: Caller) -> bool:
        """Whether clients make this run's completions, so that it moves only while one of them calls."""
        return _goes_through_clients(await self._context.find_run(run_id, caller))

    async def open_requests(self, run: RunRow, waiting: WaitingItems) -> list[OpenRequest]:
        """Return the completions that wait for a client's model; none where the run is not on that route."""
        if not _goes_through_clients(run) or not self._factory.has_folder(run) or not waiting.steps:
            return []
        state, prompts = await self._pool.state_of(run), (await self._factory.specs.load(run)).text_prompts
        account = state.accounts.get("")
        if account is None or account.caps.milliseconds is not None:  # a limit that is not set stays unset
            account = await self._store.read(lambda session: read_account(session, run.account))
        found = []
        for path, row in waiting.steps.items():
            match state.runner.waiting.get(path):
                case RequestCompletion() as step:
                    counts = counts_of(step.purpose)._replace(rounds=0)
                    request = state.executor.reservation_request(path, step, SAMPLING.name, counts)
                    read, written = request.input_bound, row.sent.max_tokens or step.max_tokens
                    bound = counts._replace(input_tokens=read, output_tokens=written, total_tokens=read + written)
                    left = _time_left(account, step)
                    left_s = None if left is None else left / 1000
                    found.append(OpenRequest(path, step, row.sent, prompts, left_s, bound))
                case _:
                    pass
        return found

    async def asked_step(self, run: RunRow, path: str) -> RequestCompletion | None:
        """Return the completion that the run's flow waits for at this path; None where it waits for none there."""
        match None if run.outcome is not None else (await self._pool.state_of(run)).runner.waiting.get(path):
            case RequestCompletion() as step:
                return step
            case _:
                return None

    def now(self) -> int:
        """Return the server's time in milliseconds since 1970, as request states note it."""
        return self._clock()

    async def outstanding_requests(self, run: RunRow, paths: Sequence[str]) -> dict[str, RequestRow]:
        """Return the requests about these steps that a client has not answered yet, by path."""
        if not paths:
            return {}
        about = await self._store.read(lambda session: client_completions.requests_about(session, run.n, paths))
        return {path: request for path, request in about if request.ended is None}

    async def wanted_keys(self, run_id: str, caller: Caller) -> Collection[str]:
        """Return the keys of the steps and approvals for which a client's answer still counts.

        A paused run still takes answers to what was asked before.
        """

        def read(session: Session) -> tuple[RunRow, WaitingItems]:
            run = read_run(session, run_id, caller)
            return run, self._context.read_waits(session, run)

        run, waiting = await self._store.read(read)
        lost = (path + settlements.KEY_SUFFIX for path in waiting.lost_calls)
        return {*(waiting.steps if is_answered_by("client", run.route) else ()), *waiting.approvals, *lost}

    async def wait_for_change(self, run_id: str, within_s: float = MAX_POLL_S, *, urgent: bool = True) -> None:
        """Return when something of the run was committed, by this process or another, or `signal_change` was called;
        after a second at the latest. Unless it is `urgent`, commits of other processes are checked for less often."""
        await self._pool.change_signal.wait([run_id], max(0.0, min(within_s, MAX_POLL_S)), urgent=urgent)

    def signal_change(self, run_id: str) -> None:
        """Wake everybody who waits for a change of the run: a client has replied, even if no row was written."""
        self._pool.change_signal.notify(run_id)

    async def is_silent(self, run: RunRow, caller: Caller) -> bool:
        """Whether this session left a request unanswered before, and the run may take another route."""
        is_silent = self._context.client_states.state_of(caller.session).is_silent
        return is_silent and _goes_through_clients(run) and await self._can_fall_back(run)

    def mark_silent(self, caller: Caller) -> None:
        """Remember that this session's model did not answer in time."""
        self._context.client_states.state_of(caller.session).is_silent = True

    # -- asking ------------------------------------------------------------------------------------------------

    def register_call(self, run_id: str, caller: Caller) -> None:
        """Make this session the one of this server that asks about the run, since its call came last."""
        key = caller.principal, run_id
        self._askers[key] = caller.session
        self._askers.move_to_end(key)
        while len(self._askers) > MAX_ASKERS:
            self._askers.popitem(last=False)

    def is_newest_asker(self, run_id: str, caller: Caller) -> bool:
        """Whether this session's call came last, so that it may ask; another session's silence delays nothing."""
        return self._askers.get((caller.principal, run_id)) == caller.session

    async def is_current_request(self, run_id: str, request: int, caller: Caller) -> bool:
        """Whether no other session, of this server or another, has taken a request of this session over.

        If one has, this session asks no more until it calls again.
        """
        if not await self._store.read(lambda session: client_completions.is_withdrawn(session, request)):
            return True
        if self.is_newest_asker(run_id, caller):
            self._askers[caller.principal, run_id] = TAKEN_OVER_ELSEWHERE
        return False

    async def begin_request(self, run: RunRow, ask: OpenRequest, caller: Caller) -> int | None:
        """Record that this session's model is asked now, and return the request's number.

        None: the step no longer waits, or a request to another session has to be withdrawn and charged first.
        """
        at, new = self._clock(), NewRequest(ask.path, caller.session, ask.bound)
        number = await self._store.submit(
            lambda session: client_completions.create_first_request(session, run, new, at), of_run=run.n
        )
        if number is not None:
            return number
        mine = await self._context.owner_for(run)
        asked = await self._store.submit(
            lambda session: client_completions.create_requests(session, run, [new], mine, at), of_run=run.n
        )
        if asked.requests:
            return asked.requests[0]
        await self._pool.continue_run(run, mine, asked.fence)
        return None

    async def claim_push(self, run: RunRow, key: str, caller: Caller) -> bool:
        """Claim what this server is about to ask a client through its connection; False where another server that the
        client is connected to asks it already."""
        at, owners = self._clock(), self._store.owners
        new = NewPush(run.n, key, await self._store.register_owner(at), caller.client, at)
        return await self._store.submit(lambda session: client_questions.claim(session, owners, new), of_run=run.n)

    async def release_push(self, run: RunRow, key: str) -> None:
        """Give a claim up, so that others may ask."""
        mine = self._store.owner_number
        await self._store.submit(lambda session: client_questions.release(session, run.n, key, mine), of_run=run.n)

    async def withdraw_request(self, run_id: str, request: int, caller: Caller) -> None:
        """Withdraw a request; it is charged with its bound."""
        run, at = await self._context.find_run(run_id, caller), self._clock()
        mine = await self._context.owner_for(run)
        fence = await self._store.submit(
            lambda session: client_completions.withdraw(session, run, [request], mine, at), of_run=run.n
        )
        await self._pool.continue_run(run, mine, fence)

    async def mark_refused(self, request: int) -> None:
        """Record that the client refused a request, which costs nothing."""
        at = self._clock()
        await self._store.submit(lambda session: client_completions.end_requests(session, [request], "refused", at))

    async def create_ask(
        self, run: RunRow, found: Sequence[OpenRequest], caller: Caller, *, stale_after_s: float | None
    ) -> AskRow | RequestOutcome | None:
        """Ask a client that answers by calling again: reuse its ask while that is valid, else make a new one.

        Requests to other sessions are withdrawn and charged first. An ask is valid for `stale_after_s` seconds (None:
        until it is answered). After that it counts as refused. Returns None if the run may then take another route.
        """
        unanswered = (
            None if await self._can_fall_back(run) else _waiting_note("the client called again without an answer")
        )
        asking = new_ask([each.path for each in found], caller, self._clock(), stale_after_s, unanswered)
        new = [NewRequest(each.path, caller.session, each.bound, asking.nonce) for each in found]
        if len(new) == 1:
            (only,) = new
            ask = await self._store.submit(
                lambda session: client_questions.create_first_ask(session, run, asking, only), of_run=run.n
            )
            if ask is not None:
                return ask
        mine = await self._context.owner_for(run)
        put = await self._store.submit(
            lambda session: client_questions.create_or_find_ask(session, run, asking, new, mine), of_run=run.n
        )
        if isinstance(put, RequestOutcome):
            await self._pool.continue_run(run, mine, put.fence)
        return put

    async def find_asks(
        self, run_id: str, nonces: Sequence[str], caller: Caller, *, used: bool = False
    ) -> tuple[RunRow, list[AskRow]]:
        """Return the run that a client's call refers to, and its asks of these nonces that are not answered yet, or
        that are `used`."""
        run = await self._context.find_run_to_move(run_id, caller)
        found = await self._store.read(
            lambda session: [client_questions.find_ask(session, run.n, nonce) for nonce in nonces]
        )
        return run, [ask for ask in found if ask is not None and (ask.consumed is not None) is used]

    # -- what comes back ---------------------------------------------------------------------------------------

    async def take(self, run: RunRow, ask: AskRow, replies: Mapping[str, ClientReply], caller: Caller) -> None:
        """Store the replies to an ask, by path; an ask that was answered before stores nothing."""
        if replies:
            self._context.client_states.state_of(caller.session).is_silent = False
        requests = await self._store.read(lambda session: client_questions.request_ids_of(session, ask))
        new_answers, at = await self._make_answers(run, replies, requests), self._clock()
        mine = await self._context.owner_for(run)
        answers = [each for each in new_answers if each.path in requests]
        pool, nonce = self._context.pool, ask.nonce
        answers_all = len(answers) == len(requests)
        if answers_all and await pool.commit_answers(run, answers, SAMPLING.name, mine, nonce=nonce):
            return
        fence = await self._store.submit(
            lambda session: client_questions.record_ask_answers(session, run, nonce, new_answers, owner=mine, at=at),
            of_run=run.n,
        )
        await self._pool.continue_run(run, mine, fence)

    async def store_reply(self, run_id: str, path: str, reply: ClientReply, caller: Caller) -> None:
        """Store the reply to a pushed request; one that comes too late stores nothing."""
        if reply.completion is not None:
            self._answered.add((caller.principal, caller.client))
            self._context.client_states.state_of(caller.session).is_silent = False
        run = await self._context.find_run_to_move(run_id, caller)
        new_answers, at = await self._make_answers(run, {path: reply}, {path: reply.request}), self._clock()
        mine = await self._context.owner_for(run)
        if await self._context.pool.commit_answers(run, new_answers, SAMPLING.name, mine):
            return
        recorded = await self._store.submit(
            lambda session: client_questions.record_still_open(session, run, new_answers, owner=mine, at=at),
            of_run=run.n,
        )
        await self._pool.continue_run(run, mine, recorded.fence)

    async def fall_back(self, run_id: str, reason: str, caller: Caller) -> bool:
        """Let the run take the next route, with a note. False where sampling was requested explicitly, or where nobody
        went on with the run in time."""
        run = await self._context.find_run_to_move(run_id, caller)
        if not _goes_through_clients(run):
            return True  # somebody else has rerouted it
        if not await self._can_fall_back(run):
            await self._store.submit(lambda session: runs.add_note(session, run, _waiting_note(reason)), of_run=run.n)
            return False
        route = next_route(SAMPLING.name, await self._factory.available_routes(run, samples=True))
        note = f"sampling: {reason}; the run went on with the route {route}."
        mine, at = await self._context.owner_for(run), self._clock()
        fence = await self._store.submit(
            lambda session: client_questions.reroute(session, run, route, caller.actor, owner=mine, at=at, reason=note),
            of_run=run.n,
        )
        await self._pool.continue_run(run, mine, fence)
        return await self._has_left_route(run_id, caller)

    # -- inside ------------------------------------------------------------------------------------------------

    async def _has_left_route(self, run_id: str, caller: Caller) -> bool:
        """Wait until the run's owner has noticed the new route; False after REROUTE_TIMEOUT_S."""
        until_s = time.monotonic() + REROUTE_TIMEOUT_S
        while await self.goes_through_clients(run_id, caller):
            if time.monotonic() >= until_s:
                return False
            await self.wait_for_change(run_id)
        return True

    async def _can_fall_back(self, run: RunRow) -> bool:
        return (await self._factory.specs.load(run)).spec.asked_route == "auto"

    async def _make_answers(
        self, run: RunRow, replies: Mapping[str, ClientReply], requests: Mapping[str, int | None]
    ) -> list[SubmittedAnswer]:
        """Make an answer of each reply whose step the flow still waits for. `requests`: what was answered, by path."""
        steps = {path: step for path in replies if (step := await self.asked_step(run, path)) is not None}
        account = None
        if any(replies[path].is_timed for path in steps):
            account = await self._store.read(lambda session: read_account(session, run.account))
        return [
            self._make_answer(account, path, step, replies[path], requests.get(path)) for path, step in steps.items()
        ]

    def _make_answer(
        self, account: Account | None, path: str, step: RequestCompletion, reply: ClientReply, request: int | None
    ) -> SubmittedAnswer:
        """Make an answer of a reply to this request. `account`: the run's, of one that is timed."""
        left = None if account is None else _time_left(account, step)
        took_ms = reply.milliseconds if left is None else min(reply.milliseconds, left)
        if reply.completion is None:
            assert account is not None, "only a limit ends a reply"
            refusal = account.refuse("milliseconds")
            return SubmittedAnswer(path, replace(refusal, used=refusal.allowed), NOTHING._replace(milliseconds=took_ms))
        completion = redact_values.redact_completion(reply.completion, self._factory.redactor)
        usage = completion.usage or estimate_usage(step, completion)
        spent = usage_units(usage)._replace(milliseconds=took_ms)
        return SubmittedAnswer(
            path,
            completion,
            spent,
            usage.cached_tokens,
            usage.exactness,
            dialect=reply.dialect,
            request=request,
        )


def _goes_through_clients(run: RunRow) -> bool:
    return is_answered_by("client", run.route) and run.outcome is None and run.paused is None


def _time_left(account: Account, step: RequestCompletion) -> int | None:
    """Return how many milliseconds an answer may take; a closing call has some when nothing is left."""
    left = account.remaining.milliseconds
    return left if left is None or step.purpose != "closing" else max(left, CLOSING_MS)


def _waiting_note(reason: str) -> str:
    return f"sampling: {reason}; the run waits, since its route was given."


def new_ask(
    keys: Sequence[str], caller: Caller, at: int, stale_after_s: float | None, unanswered: str | None
) -> NewAsk:
    """Make an ask for these keys. `unanswered`: the note for the run if the client leaves it without an answer."""
    return NewAsk(
        paths=tuple(keys),
        client=(caller.principal, caller.client),
        nonce=secrets.token_hex(16),
        at=at,
        stale_at=-1 if stale_after_s is None else at - int(stale_after_s * 1000),
        unanswered=unanswered,
    )
