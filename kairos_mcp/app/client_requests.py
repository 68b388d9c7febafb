"""Open completions and approvals that a client may answer, its model or its user: which, how asked, what comes back.

An open step waits in the rows like any other; what its client's model is asked about it stands there too, as a request
(store/requests.py), so that it is charged whatever becomes of the client or of this server.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kairos_mcp.app.context import AppContext
from kairos_mcp.budget.reservation import CLOSING_MS
from kairos_mcp.budget.units import NOTHING, Units, counts_of
from kairos_mcp.core import redact_values
from kairos_mcp.core.decision_rights import Kind, may_decide
from kairos_mcp.core.identity import Actor, Caller
from kairos_mcp.core.messages import Completion
from kairos_mcp.core.routes import route_after_sampling
from kairos_mcp.core.steps import CallTool, DialectName, RequestCompletion, Sent
from kairos_mcp.execution.accounting import estimate_usage, usage_units
from kairos_mcp.execution.authorization import format_preview
from kairos_mcp.models.dialects import TextPrompts
from kairos_mcp.store import approvals, client_requests, open_completions, ownership, queries, runs, settlements
from kairos_mcp.store.accounts import read_account
from kairos_mcp.store.approvals import ApprovalRow
from kairos_mcp.store.client_requests import NewRequest, RequestOutcome
from kairos_mcp.store.decisions import Decision, Verdict
from kairos_mcp.store.inbox import AnswerDeposit
from kairos_mcp.store.open_completions import AskRow, NewAsk
from kairos_mcp.store.queries import RunRow, WaitingRow
from kairos_mcp.store.settlements import Settlement, SettlementRequest
from kairos_mcp.tools.tool import format_call
from kairos_mcp.views.waiting import ELICITED_CHARS

ASKERS = 4_096  # runs of which it is known whose call came last
TAKEN_OVER = "-"  # in place of a session: one in another server asks
NEWS_S = 1.0  # the longest that a call with a push in the air goes without looking at the rows
TAKEN_UP_S = 5.0  # how long a call waits until its run has left the route


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """One open completion: the path of its step, what was asked, what the hands add, the text dialect's prompts.

    `left_s` is what is left of the run's time; None where that is unlimited. `bound`: the most that it costs.
    """

    path: str
    step: RequestCompletion
    sent: Sent
    prompts: TextPrompts
    left_s: float | None
    bound: Units


@dataclass(frozen=True, slots=True)
class ClientReply:
    """What a client's model said, how many milliseconds a push took (0: the client called again), in which dialect, and
    to which request.

    `completion` None: the run's own time was over before the client answered.
    """

    completion: Completion | None
    milliseconds: int = 0
    dialect: DialectName | None = None
    request: int | None = None


@dataclass(frozen=True, slots=True)
class UnsettledCall:
    """A call whose end nobody knows, as a person is asked about it: what it was (`preview`), and the digest of that."""

    key: str
    path: str
    tool: str
    preview: str
    digest: str


Question = ApprovalRow | UnsettledCall
"""What a client's user may be asked in a dialog; each has `key`, `preview` and `digest`."""


@dataclass(frozen=True, slots=True)
class UserDecision:
    """What a client's user decided in a dialog about an approval."""

    said: Verdict
    feedback: str | None = None


@dataclass(frozen=True, slots=True)
class UserSettlement:
    """What a client's user said in a dialog of a lost call, and the digest of the one that they were shown."""

    settlement: Settlement
    digest: str
    note: str | None = None


class ClientRequests:
    """The asks of this server's runs."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._store = context.store
        self._pool = context.pool
        self._answered: set[tuple[str, str]] = set()
        self._askers: OrderedDict[int, str] = OrderedDict()

    # -- looking -----------------------------------------------------------------------------------------------

    def has_answered(self, caller: Caller) -> bool:
        """Whether this client has answered a push before: one that never has is waited for less."""
        return (caller.principal, caller.client) in self._answered

    def goes_through_clients(self, run_id: str, caller: Caller) -> bool:
        """Whether this run's completions are asked of clients, so that it moves only while one calls."""
        run = self._context.find_run(run_id, caller)
        return run.route == "sampling" and run.outcome is None and run.paused is None

    def open(self, run_id: str, caller: Caller) -> list[OpenRequest]:
        """The completions that wait for a client's model; none where the run is not on that route."""
        run = self._context.find_run(run_id, caller)
        if not self.goes_through_clients(run_id, caller) or not self._context.serves(run.workspace):
            return []
        waiting = queries.open_steps(self._store.reader, run.n)
        prompts = self._context.factory.load_spec(run).text_prompts
        found = []
        for path, step in self._context.open_steps(run).items():
            match step:
                case RequestCompletion() if path in waiting:
                    left, sent = self._time_left(run, step), waiting[path].sent
                    left_s = None if left is None else left / 1000
                    found.append(
                        OpenRequest(path, step, sent, prompts, left_s, self._cost_bound(run, path, step, sent))
                    )
                case _:
                    pass
        return found

    def undecided_questions(self, run_id: str, caller: Caller, passed: Collection[str]) -> list[Question]:
        """What a client's user may decide about; not what this call has `passed` over, nor what is too long for a
        dialog, or what the configuration leaves to the command alone."""
        run = self._context.find_run(run_id, caller)
        if run.outcome is not None:
            return []
        if not self._context.serves(run.workspace):  # whoever sits here sees another folder
            return []
        waits, at, found = (
            approvals.read_waiting_items(self._store.reader, run.n),
            self._context.clock(),
            list[Question](),
        )
        if self._decides_by_dialog("approval"):
            found += [each for each in waits.approvals.values() if each.expires_at > at]
        if waits.lost_calls and self._decides_by_dialog("settlement"):
            found += self._unsettled_calls(run, waits.lost_calls)
        ignored = self._context.sessions.state_of(caller.session).ignored
        return [
            each
            for each in found
            if each.key not in passed
            and (run.n, each.key, each.digest) not in ignored
            and len(each.preview) <= ELICITED_CHARS
        ]

    def _decides_by_dialog(self, kind: Kind) -> bool:
        return may_decide(kind, "dialog", self._context.settings.approvals)

    def _unsettled_calls(self, run: RunRow, lost: Mapping[str, WaitingRow]) -> Iterator[UnsettledCall]:
        standing = self._pool.state_of(run)
        for path, row in lost.items():
            match standing.runner.waiting.get(path):
                case CallTool(call=call):
                    spec = standing.executor.tool_access.find_spec(call.name)
                    text = call.name if spec is None else format_call(spec, call.arguments)
                    preview = format_preview(text, self._context.factory.mask)
                    yield UnsettledCall(
                        path + settlements.KEY_SUFFIX,
                        path,
                        call.name,
                        preview,
                        settlements.settlement_digest(run, path, row),
                    )
                case _:
                    pass

    def now(self) -> int:
        """The house's time in milliseconds, in which a state says when a client was asked."""
        return self._context.clock()

    def wanted_keys(self, run_id: str, caller: Caller) -> Collection[str]:
        """The steps and approvals for which an answer of a client still counts. A paused run takes what was asked
        before."""
        run = self._context.find_run(run_id, caller)
        if run.outcome is not None:
            return ()
        waiting = approvals.read_waiting_items(self._store.reader, run.n)
        lost = (path + settlements.KEY_SUFFIX for path in waiting.lost_calls)
        return {*(waiting.steps if run.route == "sampling" else ()), *waiting.approvals, *lost}

    async def news(self, within_s: float = NEWS_S, *, calling: bool = True) -> None:
        """Return when something was committed, by this process or another, or `ring` was called; after a second at the
        latest. While nobody is `calling` other processes are looked after less often."""
        await self._pool.bell.wait(max(0.0, min(within_s, NEWS_S)), hurried=calling)

    def signal_change(self) -> None:
        """Something came of what a client was asked, be it no row."""
        self._pool.bell.notify()

    def is_silent(self, run_id: str, caller: Caller) -> bool:
        """Whether this session left a request without an answer before, and the run can do without it."""
        if not self._context.sessions.state_of(caller.session).silent or not self.goes_through_clients(run_id, caller):
            return False
        return self._may_fall_back(self._context.find_run(run_id, caller))

    def was_silent(self, caller: Caller) -> None:
        """This session's model was asked and did not answer in time: it is remembered for this session alone."""
        self._context.sessions.state_of(caller.session).silent = True

    def mark_ignored(self, run_id: str, key: str, digest: str, caller: Caller) -> None:
        """Nobody answered a dialog in this session: it is not shown there again, unless somebody asks for it."""
        self._context.sessions.state_of(caller.session).ignore(self._context.find_run(run_id, caller).n, key, digest)

    def ask_again(self, run_id: str, caller: Caller) -> None:
        """Show this session the dialogs about the run once more that nobody has answered in it."""
        self._context.sessions.state_of(caller.session).forget_ignored(self._context.find_run(run_id, caller).n)

    # -- asking ------------------------------------------------------------------------------------------------

    def register_call(self, run_id: str, caller: Caller) -> None:
        """A call of this session came that can ask about the run: it asks from now on, and no other session here."""
        n = self._context.find_run(run_id, caller).n
        self._askers[n] = caller.session
        self._askers.move_to_end(n)
        while len(self._askers) > ASKERS:
            self._askers.popitem(last=False)

    def asks_now(self, run_id: str, caller: Caller) -> bool:
        """Whether this session is the newest that came, so that it may ask; another one's silence holds nothing up."""
        return self._askers.get(self._context.find_run(run_id, caller).n) == caller.session

    def stands(self, run_id: str, request: int, caller: Caller) -> bool:
        """Whether no other session has taken over from a request of this one. Where one has, be it in another server,
        this one asks no more until it calls again."""
        if not client_requests.is_withdrawn(self._store.reader, request):
            return True
        n = self._context.find_run(run_id, caller).n
        if self._askers.get(n) == caller.session:
            self._askers[n] = TAKEN_OVER
        return False

    async def begin(self, run_id: str, ask: OpenRequest, caller: Caller) -> int | None:
        """Note that this session's model is asked now; the request's number. None where something else comes first: the
        step waits no more, or what another session was asked is withdrawn and charged."""
        run, at = self._context.find_run(run_id, caller), self._context.clock()
        mine, new = await self._owner(run), [NewRequest(ask.path, caller.session, ask.bound)]
        asked = await self._store.submit(
            lambda connection: client_requests.create_requests(connection, run, new, mine, at)
        )
        if asked.requests:
            return asked.requests[0]
        self._pool.continue_run(run, mine, asked.fence)
        return None

    async def withdraw(self, run_id: str, request: int, caller: Caller) -> None:
        """Give up on a request: it is charged with its bound."""
        run, at = self._context.find_run(run_id, caller), self._context.clock()
        mine = await self._owner(run)
        fence = await self._store.submit(
            lambda connection: client_requests.withdraw(connection, run, [request], mine, at)
        )
        self._pool.continue_run(run, mine, fence)

    async def mark_refused(self, request: int) -> None:
        """The client said that its model won't answer: that costs nothing."""
        at = self._context.clock()
        await self._store.submit(lambda connection: client_requests.end_requests(connection, [request], "refused", at))

    async def create_ask(
        self, run_id: str, found: Sequence[OpenRequest], caller: Caller, *, again_s: float | None
    ) -> AskRow | RequestOutcome | None:
        """Put them to a client that answers by calling again: the ask of before while it stands, else a new one, once
        what others were asked is withdrawn and charged.

        An ask stands for `again_s` seconds; None: for as long as it is unanswered. After that it counts as refused:
        None is given where the run may take another route.
        """
        run = self._context.find_run_to_move(run_id, caller)
        unanswered = None if self._may_fall_back(run) else _waits("the client called again without an answer")
        asking = self._new_ask([each.path for each in found], caller, again_s, unanswered)
        new = [NewRequest(each.path, caller.session, each.bound, asking.nonce) for each in found]
        mine = await self._owner(run)
        put = await self._store.submit(
            lambda connection: open_completions.create_or_find_ask(connection, run, asking, new, mine)
        )
        if isinstance(put, RequestOutcome):
            self._pool.continue_run(run, mine, put.fence)
        return put

    async def create_approval_ask(
        self, run_id: str, found: Sequence[Question], caller: Caller, *, again_s: float | None
    ) -> AskRow | None:
        """The same for what a person decides. One that stayed unanswered says that nobody is there: None, and this call
        asks no more."""
        run = self._context.find_run_to_move(run_id, caller)
        asking = self._new_ask([each.key for each in found], caller, again_s, None)
        return await self._store.submit(lambda connection: open_completions.create_ask_once(connection, run, asking))

    def _new_ask(self, keys: Sequence[str], caller: Caller, again_s: float | None, unanswered: str | None) -> NewAsk:
        at = self._context.clock()
        return NewAsk(
            paths=tuple(keys),
            client=(caller.principal, caller.client),
            nonce=secrets.token_hex(16),
            at=at,
            stale_at=-1 if again_s is None else at - int(again_s * 1000),
            unanswered=unanswered,
        )

    def find_ask(self, run_id: str, nonce: str, caller: Caller) -> AskRow | None:
        """The ask that a client's call refers to."""
        run = self._context.find_run_to_move(run_id, caller)
        return next((row for row in open_completions.list_asks(self._store.reader, run.n) if row.nonce == nonce), None)

    # -- what comes back ---------------------------------------------------------------------------------------

    async def take(self, run_id: str, nonce: str, replies: Mapping[str, ClientReply], caller: Caller) -> None:
        """Take the replies to an ask, by path; one that was taken before stores nothing."""
        if replies:
            self._context.sessions.state_of(caller.session).silent = False
        run = self._context.find_run_to_move(run_id, caller)
        deposits, at = self._deposits(run, replies), self._context.clock()
        mine = await self._owner(run)
        fence = await self._store.submit(
            lambda connection: open_completions.deposit_ask_answers(connection, run, nonce, deposits, owner=mine, at=at)
        )
        self._pool.continue_run(run, mine, fence)

    async def deposit(self, run_id: str, path: str, reply: ClientReply, caller: Caller) -> None:
        """Deposit the reply to a push; one that comes too late stores nothing."""
        if reply.completion is not None:
            self._answered.add((caller.principal, caller.client))
            self._context.sessions.state_of(caller.session).silent = False
        run = self._context.find_run_to_move(run_id, caller)
        deposits, at = self._deposits(run, {path: reply}), self._context.clock()
        mine = await self._owner(run)
        fence = await self._store.submit(
            lambda connection: open_completions.deposit_still_open(connection, run, deposits, owner=mine, at=at)
        )
        self._pool.continue_run(run, mine, fence)

    async def decide(
        self,
        run_id: str,
        said: Mapping[str, UserDecision | UserSettlement],
        caller: Caller,
        *,
        nonce: str | None = None,
    ) -> None:
        """Take what users decided in dialogs, by key; an ask's own `nonce` makes it count once. What comes too late,
        or may not be decided in a dialog, stores nothing."""
        run, at = self._context.find_run_to_move(run_id, caller), self._context.clock()
        who = Actor(caller.principal, "elicitation", caller.client)
        decided: list[Decision] = []
        settled: list[SettlementRequest] = []
        for key, word in said.items():
            match word:
                case UserDecision() if self._decides_by_dialog("approval"):
                    row = approvals.find_by_key(self._store.reader, run.n, key)
                    if row is not None:
                        decided.append(Decision(key, word.said, row.digest, who, self._redacted(word.feedback)))
                case UserSettlement() if self._decides_by_dialog("settlement"):
                    path, note = key.removesuffix(settlements.KEY_SUFFIX), self._redacted(word.note)
                    settled.append(SettlementRequest(path, word.settlement, note, word.digest))
                case _:
                    pass
        mine = await self._owner(run)
        fence = await self._store.submit(
            lambda connection: open_completions.record_ask_decisions(
                connection, run, nonce, decided, settled, who, owner=mine, at=at
            )
        )
        self._pool.continue_run(run, mine, fence)

    def _redacted(self, text: str | None) -> str | None:
        return self._context.factory.mask.redact_text(text or "").text or None

    async def fall_back(self, run_id: str, why: str, caller: Caller) -> bool:
        """Go on with the next route, named in `degraded`; False where sampling was asked for explicitly, or nobody
        is there who may go on with the run."""
        run = self._context.find_run_to_move(run_id, caller)
        if not self.goes_through_clients(run_id, caller):
            return True  # it has moved on without us
        if not self._may_fall_back(run):
            await self._store.submit(lambda connection: runs.add_note(connection, run, _waits(why)))
            return False
        route = route_after_sampling(self._context.factory.minds(run, samples=True))
        note = f"sampling: {why}; the run went on with the route {route}."
        mine, at = await self._owner(run), self._context.clock()
        fence = await self._store.submit(
            lambda connection: open_completions.reroute(
                connection, run, route, caller.actor, owner=mine, at=at, reason=note
            )
        )
        self._pool.continue_run(run, mine, fence)
        return await self._has_left_route(run_id, caller)

    # -- inside ------------------------------------------------------------------------------------------------

    async def _owner(self, run: RunRow) -> int:
        """Who is to go on with it: this server, if it may; else whoever finds it."""
        return (
            await self._store.register_owner(self._context.clock())
            if self._context.may_drive(run)
            else ownership.NOBODY
        )

    async def _has_left_route(self, run_id: str, caller: Caller) -> bool:
        """Whether the run's owner has taken up that it goes another way."""
        until_s = time.monotonic() + TAKEN_UP_S
        while self.goes_through_clients(run_id, caller):
            if time.monotonic() >= until_s:
                return False
            await self.news()
        return True

    def _may_fall_back(self, run: RunRow) -> bool:
        return self._context.factory.load_spec(run).spec.asked_route == "auto"

    def _time_left(self, run: RunRow, step: RequestCompletion) -> int | None:
        """Milliseconds that an answer may take; a closing has some when nothing is left."""
        left = read_account(self._store.reader, run.account).remaining_of("milliseconds")
        return left if left is None or step.purpose != "closing" else max(left, CLOSING_MS)

    def _deposits(self, run: RunRow, replies: Mapping[str, ClientReply]) -> list[AnswerDeposit]:
        """One for each reply whose step still waits."""
        steps = self._context.open_steps(run)
        found = []
        for path, reply in replies.items():
            match steps.get(path):
                case RequestCompletion() as step:
                    found.append(self._deposit(run, path, step, reply))
                case _:
                    pass
        return found

    def _deposit(self, run: RunRow, path: str, step: RequestCompletion, reply: ClientReply) -> AnswerDeposit:
        account, left = read_account(self._store.reader, run.account), self._time_left(run, step)
        took = reply.milliseconds if left is None else min(reply.milliseconds, left)
        if reply.completion is None:
            over = account.refuse("milliseconds")
            return AnswerDeposit(path, replace(over, used=over.allowed), NOTHING._replace(milliseconds=took))
        said = redact_values.redact_completion(reply.completion, self._context.factory.mask)
        usage = said.usage or estimate_usage(step, said)
        spent = usage_units(usage)._replace(milliseconds=took)
        told = usage.cached_tokens, usage.exactness
        return AnswerDeposit(path, said, spent, *told, dialect=reply.dialect, request=reply.request)

    def _cost_bound(self, run: RunRow, path: str, step: RequestCompletion, sent: Sent) -> Units:
        """The most that asking about the step costs."""
        counts = counts_of(step.purpose)._replace(rounds=0)
        claim = self._pool.state_of(run).executor.reservation_request(path, step, run.route, counts)
        read, written = claim.input_bound, sent.max_tokens or step.max_tokens
        return counts._replace(input_tokens=read, output_tokens=written, total_tokens=read + written)


def _waits(why: str) -> str:
    return f"sampling: {why}; the run waits, since its route was given."
