"""What a step costs: its upper bound, its charge once its answer is known, and the accounts of today that are charged.

A model call is charged, beside its run, to its principal's day and its mandate's. Those accounts are found once a day
and checked at first use. A day is opened once: if the clock was set back, the latest day that was opened is charged
until the clock has passed it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import field, replace

from kairos_mcp.budget.notes import USED_UP_REASONS, clock_behind_reason
from kairos_mcp.budget.reservation import Reservation
from kairos_mcp.core.calendar import Day, day_at, parse_day
from kairos_mcp.core.errors import BadArguments, StoreCorrupt
from kairos_mcp.core.limits import NOTHING, UNLIMITED, Limits, Units, counts_of
from kairos_mcp.core.mandate import parse_mandate
from kairos_mcp.core.messages import Completion, Usage, canonical_json, digest_of
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import Failure, RequestCompletion
from kairos_mcp.store import accounts, mandates, prefixes
from kairos_mcp.store.commit import AccountsToCharge, Paused, StepResult
from kairos_mcp.store.database import Store
from kairos_mcp.store.mandates import MandateRow
from kairos_mcp.store.prefixes import PrefixCost
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session, decode_fields, read_each, read_together, unreadable

MARGIN_TOKENS = 1_024  # the most that a route adds around a conversation whose tokens were never reported
TAIL_TOKENS = 320  # of the status line: it has at most so many bytes
MESSAGE_TOKENS = 16  # around each message


@dataclass(slots=True)
class InputEstimator:
    """Bounds the input tokens of completions of one conversation on one route.

    The bound is the last usage that the route reported, plus a token for each byte that was added since. Each route has
    its own, since routes count tokens differently.

    `tokens`: the input of the newest completion whose usage was reported. `length`, `digest`, `size`: the messages of
    its conversation, their digest and their bytes. `tools`: the bytes of its tools.
    """

    length: int = 0
    digest: bytes = b""
    size: int = 0
    tools: int = 0
    tokens: int = 0

    def bound(self, step: RequestCompletion) -> int:
        conversation, reminder = step.conversation, len((step.reminder or "").encode())
        if self.fits(step):
            added = conversation.size - self.size + max(0, step.tools.size - self.tools)
            return self.tokens + added + MESSAGE_TOKENS * (len(conversation) - self.length) + reminder + TAIL_TOKENS
        return conversation.size + MESSAGE_TOKENS * len(conversation) + step.tools.size + reminder + MARGIN_TOKENS

    def fits(self, step: RequestCompletion) -> bool:
        """Whether this step's conversation continues the one whose usage was reported."""
        return self.length > 0 and step.conversation.digest_at(self.length) == self.digest

    def learn(self, step: RequestCompletion, answer: Completion) -> None:
        """Remember the usage of this answer, if it was reported."""
        usage = answer.usage
        if usage is not None and usage.exactness == "reported":
            self.length, self.digest = len(step.conversation), step.conversation.digest
            self.size, self.tools = step.conversation.size, step.tools.size
            # A provider gets its thinking back beside the conversation: tokens that it has just written.
            self.tokens = usage.input_tokens + (usage.output_tokens if answer.private is not None else 0)


PREFIX_REPORTS = 20  # of one prefix: the newest are kept
KNOWN_PRINCIPALS = 64  # whose costs are kept in memory


@dataclass(frozen=True, slots=True)
class Prefix:
    """What requests of several conversations have in common: the system text, the tools and the schema of the answer,
    for one way of counting tokens. `length`, `size`: of its messages."""

    digest: bytes
    length: int
    size: int


def prefix_of(step: RequestCompletion, route: str | None, model: str | None, form: str = "") -> Prefix | None:
    """Return the prefix of a request; None if it begins with no system text. `form`: what else decides how a request is
    sent and counted."""
    conversation = step.conversation
    if not conversation or conversation[0].role != "system":
        return None
    schema = canonical_json(step.output_schema).encode() if step.output_schema is not None else b""
    counted_by = canonical_json([route, model, form]).encode()
    digest = digest_of(counted_by, conversation.digest_at(1) or b"", step.tools.digest, schema)
    return Prefix(digest, 1, conversation.size_at(1))


@dataclass(slots=True)
class PrefixReports:
    """The reported costs of the first requests of conversations, by prefix. Each is at least the cost of its prefix.

    So they bound the prefix of a conversation that has no report yet. The highest counts, since several models that
    count differently may go by one name. `learned`: how many reports came.
    """

    reports: defaultdict[bytes, deque[int]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=PREFIX_REPORTS))
    )
    learned: int = 0

    def bound(self, step: RequestCompletion, prefix: Prefix | None) -> int | None:
        """Bound the input tokens of the first request of a conversation; None if its prefix was never reported."""
        known = self.reports.get(prefix.digest) if prefix is not None else None
        if prefix is None or not known:
            return None
        conversation, reminder = step.conversation, len((step.reminder or "").encode())
        added = conversation.size - prefix.size + MESSAGE_TOKENS * (len(conversation) - prefix.length)
        return max(known) + added + reminder + TAIL_TOKENS

    def learn(self, prefix: Prefix | None, answer: Completion) -> None:
        """Remember the usage of a conversation's first request, if it was reported."""
        if prefix is not None and answer.usage is not None and answer.usage.exactness == "reported":
            self.remember(PrefixCost(prefix.digest, answer.usage.input_tokens))

    def remember(self, cost: PrefixCost) -> None:
        """Remember a cost that was reported."""
        self.reports[cost.digest].append(cost.tokens)
        self.learned += 1


class KnownCosts:
    """The costs that providers reported in a principal's runs: read from rows once, then added to by runs of this
    process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_principal: dict[str, PrefixReports] = {}

    async def read(self, principal: str) -> None:
        """Read the costs of a principal's runs, unless they are known already."""
        if principal in self._by_principal:
            return
        costs = await self._store.read(lambda session: prefixes.list_costs(session, principal))
        known = PrefixReports()
        for cost in reversed(costs):
            known.remember(cost)
        while len(self._by_principal) >= KNOWN_PRINCIPALS:
            del self._by_principal[next(iter(self._by_principal))]
        self._by_principal[principal] = known

    def of(self, principal: str) -> PrefixReports:
        """Return the known costs of a principal's runs; none before `read`."""
        return self._by_principal.get(principal) or PrefixReports()


def drop_impossible_usage(path: str, completion: Completion) -> tuple[Completion, tuple[str, ...]]:
    """Return the completion without its usage if that is impossible, and a note about it.

    An impossible report counts as none on every route: the bound or the estimate is charged instead.
    """
    reason = None if completion.usage is None else _why_impossible(completion.usage, completion)
    if reason is None:
        return completion, ()
    note = f"{path}: a usage was reported that can't be ({reason}); it counts as none, and the estimate holds."
    return replace(completion, usage=None), (note,)


def _why_impossible(usage: Usage, completion: Completion) -> str | None:
    """Return why a usage is impossible, or None. Every request has input tokens, and every output was written."""
    if min(usage.input_tokens, usage.output_tokens, usage.cached_tokens) < 0:
        return "fewer than no tokens"
    if usage.input_tokens == 0:
        return "no tokens were read"
    if usage.output_tokens == 0 and (completion.content or completion.tool_calls):
        return "no tokens were written"
    if usage.cached_tokens > usage.input_tokens:
        return "more tokens came from a cache than were read"
    return None


def completion_result(
    path: str,
    step: RequestCompletion,
    answer: Completion | Failure,
    took_ms: int,
    bound: Units,
    *,
    paid: bool,
    notes: tuple[str, ...] = (),
) -> StepResult:
    """Return the result of a completion with its cost.

    The cost is the reported one; without a report it is what was reserved (`bound`) if this server pays, else an
    estimate. `notes`: about the reply, or a report that was dropped.
    """
    counts = counts_of(step.purpose)
    match answer:
        case Completion(usage=None) if paid:
            return StepResult(answer, _bounded_cost(bound, counts, took_ms), exactness="bounded", notes=notes)
        case Completion():
            usage = answer.usage or estimate_usage(step, answer)
            spent = usage_units(usage, counts, took_ms)
            more = _overshoot_notes(path, spent, bound) if paid else ()
            return StepResult(answer, spent, usage.cached_tokens, usage.exactness, notes=(*notes, *more))
        case Failure(usage=Usage() as usage):
            spent = usage_units(usage, counts, took_ms)
            more = _overshoot_notes(path, spent, bound) if paid else ()
            return StepResult(answer, spent, usage.cached_tokens, usage.exactness, notes=(*notes, *more))
        case Failure(unknown_end=True):
            return StepResult(answer, _bounded_cost(bound, counts, took_ms), exactness="bounded", notes=notes)
        case _:
            return StepResult(answer, counts._replace(milliseconds=took_ms), exactness="reported", notes=notes)


def _bounded_cost(bound: Units, counts: Units, took_ms: int) -> Units:
    """Return all that was reserved, with the time it took. A further attempt reserved no round, so counts are set."""
    return bound._replace(rounds=counts.rounds, model_calls=counts.model_calls, milliseconds=took_ms)


def _overshoot_notes(path: str, spent: Units, bound: Units) -> tuple[str, ...]:
    """Return a note about a usage above the reservation. It is charged in full: only so can a completion that this
    server makes exceed a limit."""
    if spent.total_tokens <= bound.total_tokens and spent.nano_usd <= bound.nano_usd:
        return ()
    return (f"{path}: {spent.total_tokens} tokens were reported, {bound.total_tokens} were reserved.",)


def estimate_usage(step: RequestCompletion, completion: Completion) -> Usage:
    """Estimate the tokens of a completion whose route reports none: a quarter of the bytes, input and output."""
    written = len(completion.content.encode()) + sum(
        len(call.name) + len(str(call.arguments)) for call in completion.tool_calls
    )
    return Usage((step.conversation.size + step.tools.size) // 4, -(-written // 4), exactness="estimated")


def usage_units(usage: Usage, counts: Units = NOTHING, took_ms: int = 0) -> Units:
    """Return a completion's usage as an amount for accounts, with its rounds, calls and milliseconds."""
    read, written = usage.input_tokens, usage.output_tokens
    return Units(counts.rounds, counts.model_calls, read, written, read + written, usage.nano_usd, 0, took_ms)


MAX_AHEAD_MS = 48 * 3_600_000  # if the clock was wrong by more, a person has to say which day is right


@dataclass(frozen=True, slots=True)
class DayToCharge:
    """The day that a principal's model calls are charged to.

    `is_ahead`: the clock shows an earlier day. `is_barred`: it is so much earlier that no model is called before a
    person has said which of the two is right.
    """

    day: Day
    is_ahead: bool = False
    is_barred: bool = False


def day_to_charge(session: Session, principal: str, at: int, time_zone: str) -> DayToCharge:
    """Return the day of this moment, or the latest that was opened for the principal.

    Raises StoreCorrupt for a day that does not exist.
    """
    today, newest = day_at(at, time_zone), accounts.newest_day(session, principal)
    if newest is None or newest <= today.name:
        return DayToCharge(today)
    try:
        later = parse_day(newest, time_zone)
    except ValueError:
        raise StoreCorrupt(
            "The store has an account for a day that does not exist.", "Run `kairos-mcp doctor`."
        ) from None
    return DayToCharge(later, is_ahead=True, is_barred=later.begins - at > MAX_AHEAD_MS)


def elapsed_ms(began: float, reservation: Reservation) -> int:
    """Return the milliseconds since `began`, at most what was reserved."""
    return min(int((time.monotonic() - began) * 1000), reservation.timeout_ms)


class DailyAccounts:
    """A cache of the newest day's accounts, for each principal and mandate.

    `caps_of`: what a principal may use on a day. `groups_of`: with which others they share a sum, and how much that is,
    by the name of its account.
    """

    def __init__(
        self,
        store: Store,
        caps_of: Callable[[str], Limits],
        time_zone: str,
        groups_of: Callable[[str], Mapping[str, Limits]] = lambda _principal: {},
    ) -> None:
        self._caps_of, self._groups_of, self._time_zone = caps_of, groups_of, time_zone
        self._store = store
        self._known: dict[tuple[str, str, str | None], tuple[Day, AccountsToCharge]] = {}
        self._finding: defaultdict[tuple[str, str, str | None], asyncio.Lock] = defaultdict(asyncio.Lock)

    def known_accounts(self, run: RunRow, mandate: str | None, at: int) -> AccountsToCharge | None:
        """Return what `find_accounts` would return, if it is known without reading a row; else None."""
        known = self._known.get((run.principal, run.workspace or "", mandate))
        return known[1] if known is not None and known[0].begins <= at < known[0].ends else None

    async def find_accounts(self, run: RunRow, mandate: str | None, at: int) -> AccountsToCharge:
        """Return the account of the day of this moment, and that of the mandate (its id, in the run's workspace) on it.

        Raises StoreCorrupt where an account is not the sum of its rows, or is missing although something was charged to
        it.
        """
        if (charged := self.known_accounts(run, mandate, at)) is not None:
            return charged
        key = run.principal, run.workspace or "", mandate
        async with self._finding[key]:  # a check reads all charges of the day, and many runs begin or are taken at once
            known = self._known.get(key)
            if known is not None and await self._is_still_charged(run.principal, known[0], at):
                return known[1]
            return await self._find_and_check(*key, at)

    async def _find_and_check(self, principal: str, workspace: str, mandate: str | None, at: int) -> AccountsToCharge:
        time_zone, caps, groups = self._time_zone, self._caps_of(principal), self._groups_of(principal)

        def find_or_open(session: Session) -> tuple[DayToCharge, tuple[int, ...]]:
            charged = day_to_charge(session, principal, at, time_zone)
            if charged.is_barred:
                return charged, ()
            account = accounts.ensure_day_account(session, principal, charged.day.name, caps).id
            of_groups = [
                accounts.ensure_day_account(session, name, charged.day.name, sum_caps).id
                for name, sum_caps in groups.items()
            ]
            shared = [account, *of_groups]
            if mandate is not None:
                own = mandate_day_caps(mandates.find(session, principal, workspace, mandate))
                shared.append(accounts.ensure_mandate_account(session, account, workspace, mandate, own).id)
            return charged, tuple(shared)

        day_found, shared = await self._store.submit(find_or_open)
        if day_found.is_barred:
            return AccountsToCharge(pause_when_used_up=Paused(clock_behind_reason(principal), None), is_barred=True)
        day = day_found.day

        def check_accounts(session: Session) -> None:
            if session.row(accounts.ANY_CHARGE) is None:
                return
            read_together(
                session,
                lambda session: read_each(session, accounts.check_shared_account, shared),
                lambda session: accounts.check_day_accounts_exist(session, principal, min(day.begins, at)),
            )

        await self._store.read(check_accounts, one_state=True)
        charged_accounts = AccountsToCharge(shared, Paused(USED_UP_REASONS["day"], day.ends))
        self._known[principal, workspace, mandate] = day, charged_accounts
        return charged_accounts

    async def _is_still_charged(self, principal: str, day: Day, at: int) -> bool:
        """Whether a cached day is still the one to charge. If the clock shows an earlier day, the rows are read."""
        if day.begins <= at:
            return at < day.ends
        zone = self._time_zone
        to_charge = await self._store.read(lambda session: day_to_charge(session, principal, at, zone))
        return to_charge == DayToCharge(day, is_ahead=True)


def mandate_day_caps(saved: MandateRow | None) -> Limits:
    """Return what all runs of a mandate may use on a day, as it is saved now; unlimited if it is not saved."""
    if saved is None:
        return UNLIMITED
    try:
        return parse_mandate(decode_fields(saved.body)).day
    except BadArguments as error:
        raise unreadable("mandate") from error
