"""Opens the house, wires its parts and closes it: what the doors may ask, and the only place that knows everyone.

A request never drives a run. It leaves rows, sees to it that somebody drives, and waits for news; so cancelling a
request cancels the waiting alone.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Literal

from kairos_mcp import answering, freeze, health, retold
from kairos_mcp.asks import Asks
from kairos_mcp.drivers import Drivers
from kairos_mcp.errors import BadArguments, ReplayDiffers, Stale, StoreCorrupt
from kairos_mcp.flows.outcome import Outcome
from kairos_mcp.freeze import Frozen, Past
from kairos_mcp.messages import JsonObject, digest_of
from kairos_mcp.report import Beat, Caller, Circumstances, RunReport, newest_calls, report, status_of
from kairos_mcp.routes import chosen
from kairos_mcp.settings import Settings
from kairos_mcp.spec import PlannerRequest, Spec
from kairos_mcp.standing import Standing
from kairos_mcp.steps import Limits, Step
from kairos_mcp.store import owners, reading, runs
from kairos_mcp.store.codec import decode, decode_answer, encode
from kairos_mcp.store.reading import RunRow
from kairos_mcp.store.runs import Action, NewRun
from kairos_mcp.store.store import Store
from kairos_mcp.store.turns import read_account
from kairos_mcp.trace import Traced, TraceQuery, trace
from kairos_mcp.wiring import Wiring

Until = Literal["rest", "attention", "done"]
OnBeat = Callable[[Beat], Awaitable[None]]

BEAT_S = 1.0  # signs of life for a waiting call, at most one a second
TAKEN_UP_S = 5.0  # how long a control call waits until its wish shows
EARLIER = 3  # summaries of earlier runs that a continued one is shown (SYSTEMS.md P8)


@dataclass(frozen=True, slots=True)
class Started:
    """The run of a start; `attached`: an identical start had made it before."""

    run_id: str
    attached: bool


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """A run built again from its rows: whether each step asks what was asked then, or where it first differs."""

    run_id: str
    steps: int
    identical: bool
    first_difference: str | None


class Host:
    """One opened house. Opening it reads and writes nothing; the state folder is made at the first use."""

    def __init__(
        self, settings: Settings, via: str, clock: Callable[[], int], new_id: Callable[[], str]
    ) -> None:
        self.settings = settings
        self._by_hand = via == "command"
        self._clock = clock
        self._new_id = new_id
        self._store = Store(settings.home, settings.durability, via)
        self._wiring = Wiring(settings, self._store)
        self._drivers = Drivers(self._store, self._wiring, clock)
        self.asks = Asks(self._store, self._drivers, self._wiring, clock)

    @staticmethod
    @asynccontextmanager
    async def open(settings: Settings, *, via: str) -> AsyncIterator[Host]:
        """The house, open until the block ends; runs that still move are then left to whoever comes next."""
        host = Host(settings, via, lambda: time.time_ns() // 1_000_000, lambda: f"run-{secrets.token_hex(6)}")
        try:
            yield host
        finally:
            await host._close()

    async def _close(self) -> None:
        await self._drivers.close()
        await self._wiring.close()
        await self._store.close()

    async def _called(self) -> None:
        """Something was asked of this server: it may own runs now, and looks for ownerless ones."""
        if not self._by_hand:
            self._drivers.wake()
            await self._drivers.pick_up()

    # -- starting ----------------------------------------------------------------------------------------------

    async def start_planner(self, request: PlannerRequest, caller: Caller) -> Started:
        """Start a planner run. Raises BadArguments and its leaves, UnknownRun, UnknownTool, Stale, ConfigError."""
        await self._called()
        start = digest_of(b"planner_run", caller.principal.encode(), encode(request).encode())
        workspace = self._wiring.workspace(request.workspace)
        past = self._past(request.continues, caller) if request.continues is not None else None
        registry = self._wiring.registry(workspace)
        frozen = freeze.freeze_planner(request, self.settings, registry, past, samples=caller.samples)
        return await self._start(frozen, caller, workspace, request.key, start)

    async def start_call(self, name: str, arguments: JsonObject, caller: Caller) -> str:
        """Start a run of one tool call. Raises UnknownTool, BadArguments."""
        await self._called()
        workspace = self._wiring.workspace(None)
        frozen = freeze.freeze_call(name, arguments, self.settings, self._wiring.registry(workspace))
        unique = self._new_id().encode()  # a call made twice is two calls
        return (
            await self._start(frozen, caller, workspace, None, digest_of(b"registry_call", unique))
        ).run_id

    async def _start(
        self, frozen: Frozen, caller: Caller, workspace: str | None, key: str | None, start_digest: bytes
    ) -> Started:
        at = self._clock()
        owner = await self._store.own(at)
        new = NewRun(
            id=self._new_id(),
            flow=frozen.spec.flow,
            version=frozen.version,
            spec=encode(frozen.spec),
            texts=frozen.texts,
            notes=frozen.notes,
            limits=frozen.limits,
            route=frozen.spec.route,
            principal=caller.principal,
            via=caller.via,
            client=caller.client,
            key=key,
            start_digest=start_digest,
            workspace=workspace,
            at=at,
        )
        made = await self._store.submit(lambda connection: runs.create(connection, new, owner))
        if not made.attached:
            self._drivers.start(made.run, made.run.fence)
        return Started(made.run.id, made.attached)

    def _past(self, run_id: str, caller: Caller) -> Past:
        """The conversation of an ended run, and the newest summaries of the runs that led to it."""
        run = self._run(run_id, caller)
        if run.outcome is None:
            raise Stale(
                "That run has not ended.", "Wait for it with run_status, or cancel it.", run_id=run_id
            )
        brief = self._wiring.thawed(run).brief
        if brief is None:
            raise BadArguments(
                "That run is a single call; it has no conversation.", "Start without `continues`."
            )
        told = retold.conversation(brief, reading.record(self._store.reader, run.n))
        summaries: list[str] = []
        before: str | None = run_id
        while before is not None and len(summaries) < EARLIER:
            earlier = self._run(before, caller)
            outcome: Outcome = decode(Outcome, earlier.outcome or "")
            summaries.append(outcome.summary or "")
            spec: Spec = decode(Spec, earlier.spec)
            before = spec.continues
        return Past(run_id, told, tuple(reversed(summaries)))

    # -- looking -----------------------------------------------------------------------------------------------

    def _run(self, run_id: str, caller: Caller) -> RunRow:
        return reading.run_by_id(self._store.reader, run_id, caller.principal)

    def newest(self, caller: Caller, limit: int = 10) -> list[str]:
        """The ids of the newest runs, newest first."""
        return reading.newest(self._store.reader, caller.principal, limit)

    def report(self, run_id: str, caller: Caller, *, full: bool = True, attached: bool = False) -> RunReport:
        """What the run looks like now; without `full` waiting items are keys and kinds. Raises UnknownRun."""
        run = self._run(run_id, caller)
        steps = (lambda: self._drivers.standing(run).runner.waiting) if full else None
        around = self._circumstances(run, attached)
        try:
            return report(self._store.reader, run, around, steps)
        except (Stale, StoreCorrupt) as trouble:  # it can't go on; what its rows say is shown all the same
            return report(self._store.reader, run, replace(around, trouble=trouble), None)

    def _circumstances(self, run: RunRow, attached: bool = False) -> Circumstances:
        moves = self._drivers.moves(run.n)
        lives = moves or (
            run.owner is not None and owners.owner_lives(self._store.reader, self._store.home, run.owner)
        )
        needs = None
        if not lives and run.outcome is None and run.owner is not None and not self._wiring.can_perform(run):
            needs = (
                f"No server goes on with this run: it needs one with the workspace {_name(run.workspace)}."
            )
        return Circumstances(lives, self._drivers.trouble(run.n), needs, attached)

    async def wait(
        self,
        run_ids: Sequence[str],
        *,
        until: Until,
        wait_s: float,
        caller: Caller,
        on_beat: OnBeat | None = None,
    ) -> None:
        """Block until the runs are as wanted, at most `wait_s` seconds. `attention`: one waits, is paused or has
        ended; `done`: all have ended; `rest`: nothing of them moves. Raises UnknownRun."""
        await self._called()
        runs_now = [self._run(run_id, caller) for run_id in run_ids]
        for run in runs_now:
            self._drivers.try_again(run.n)
        until_s = time.monotonic() + wait_s
        beat_s = 0.0
        while not self._is(until, runs_now):
            now = time.monotonic()
            if now >= until_s:
                return
            if on_beat is not None and now - beat_s >= BEAT_S:
                beat_s = now
                await on_beat(self._beat(runs_now[0]))
            await self._drivers.bell.heard(min(until_s - now, BEAT_S))
            if until == "attention" or not any(self._drivers.moves(run.n) for run in runs_now):
                runs_now = [self._run(run_id, caller) for run_id in run_ids]  # a moving run has not ended

    def _is(self, until: Until, runs_now: Sequence[RunRow]) -> bool:
        match until:
            case "done":
                return all(run.outcome is not None for run in runs_now)
            case "rest":
                return not any(
                    self._drivers.moves(run.n) or self._status(run) == "working" for run in runs_now
                )
            case "attention":
                return any(self._status(run) != "working" for run in runs_now)

    def _status(self, run: RunRow) -> str:
        waiting = reading.waiting(self._store.reader, run.n) if run.outcome is None else {}
        return status_of(run, waiting, self._circumstances(run))

    def beat(self, run_id: str, caller: Caller) -> Beat:
        """A sign of life of the run."""
        return self._beat(self._run(run_id, caller))

    def _beat(self, run: RunRow) -> Beat:
        account = read_account(self._store.reader, run.account)
        last = newest_calls(self._store.reader, run, 1)
        number = account.spent.rounds + account.held.rounds
        return Beat(
            run.id, number, account.caps.rounds, last[0]["name"] if last else "", account.spent.nano_usd
        )

    def trace(self, run_id: str, query: TraceQuery, caller: Caller) -> JsonObject:
        """A page of the run's record. Raises UnknownRun, BadArguments, NotFound."""
        run, reader = self._run(run_id, caller), self._store.reader
        record = reading.record(reader, run.n)
        traced = Traced(
            run,
            record,
            self._wiring.thawed(run).brief,
            lambda ref: self._store.whole_text(reader, run.n, ref),
        )
        return trace(traced, query)

    def replay(self, run_id: str, caller: Caller) -> ReplayReport:
        """Build the run again from its rows and compare every step that was asked."""
        run = self._run(run_id, caller)
        steps = len(reading.record(self._store.reader, run.n))
        standing = self._wiring.standing(run)
        try:
            standing.fold(self._store.reader)
        except ReplayDiffers as differs:
            return ReplayReport(run_id, steps, False, str(differs))
        if not _comes_out(run, standing):
            return ReplayReport(run_id, steps, False, "the outcome is not the one that these answers give")
        return ReplayReport(run_id, steps, True, None)

    def registry_search(
        self, query: str | None, names: tuple[str, ...] | None, category: str | None, cursor: str | None
    ) -> JsonObject:
        registry = self._wiring.registry(self._wiring.workspace(None))
        return registry.search(query, names, category, cursor).as_json()

    def health(self) -> JsonObject:
        """Where the store is and how it is, who lives on it, and its runs by status."""
        return health.health(self._store)

    # -- changing ----------------------------------------------------------------------------------------------

    async def answer(
        self, run_id: str, answers: Mapping[str, object], caller: Caller, *, drive: bool = True
    ) -> None:
        """Deposit answers for what waits; all are checked before any is stored.

        `drive=False` leaves the run to whoever finds it. Raises UnknownRun, NotWaiting, AlreadyAnswered, BadArguments.
        """
        await self._called()
        run = self._run(run_id, caller)
        deposits = answering.deposits(
            self._unanswered(run, answers), self._open_steps(run), run_id, self.settings.shown_chars
        )
        if not deposits:
            return
        at, dead = self._clock(), self._dead_owner(run)
        mine = await self._store.own(at) if drive and self._may_drive(run) else owners.NOBODY
        by = "caller" if caller.via == "mcp" else caller.via
        fence = await self._store.submit(lambda c: runs.deposit(c, run, deposits, by, mine, at, dead=dead))
        self._drivers.go_on(run, mine, fence)

    def _open_steps(self, run: RunRow) -> dict[str, Step]:
        waiting = reading.waiting(self._store.reader, run.n) if run.outcome is None else {}
        steps = self._drivers.standing(run).runner.waiting if waiting else {}
        return {path: steps[path] for path in waiting}

    def _unanswered(self, run: RunRow, answers: Mapping[str, object]) -> dict[str, object]:
        """The answers for steps that have none yet; the same one again is passed over."""
        fresh = {}
        for path, value in answers.items():
            body = reading.body_at(self._store.reader, run.n, path)
            if body is None:
                fresh[path] = value
            else:
                answering.repeated(path, value, decode_answer(body), run.id, self.settings.shown_chars)
        return fresh

    def _dead_owner(self, run: RunRow) -> list[int]:
        """The run's owner, if its server has ended: it may be taken by whoever brings something for it."""
        if run.owner is None or owners.owner_lives(self._store.reader, self._store.home, run.owner):
            return []
        return [run.owner]

    def _may_drive(self, run: RunRow) -> bool:
        """A person's command acts on the run's own workspace; a server on those it was given."""
        return self._by_hand or self._wiring.can_perform(run)

    async def control(
        self,
        run_id: str,
        action: Action,
        caller: Caller,
        *,
        limits: Limits | None = None,
        route: str | None = None,
    ) -> None:
        """Leave a wish for the run's owner, or carry it out where nobody owns it. Raises Stale, BadArguments."""
        await self._called()
        run = self._run(run_id, caller)
        if (
            run.outcome is not None
            and action == "cancel"
            and decode(Outcome, run.outcome).status == "cancelled"
        ):
            return
        body = self._wish_body(run, action, limits, route, caller)
        at, dead = self._clock(), self._dead_owner(run)
        mine = await self._store.own(at) if self._may_drive(run) or action == "cancel" else owners.NOBODY
        who = caller.row
        fence = await self._store.submit(lambda c: runs.wish(c, run, action, body, who, mine, at, dead=dead))
        self._drivers.go_on(run, mine, fence, interrupt=action == "cancel")
        until_s = time.monotonic() + TAKEN_UP_S
        while self._drivers.moves(run.n) and reading.wishes(self._store.reader, run.n):
            if time.monotonic() >= until_s:
                return  # the wish is in the rows; its driver is busy and takes it up next
            await self._drivers.bell.heard(BEAT_S)

    def _wish_body(
        self, run: RunRow, action: Action, limits: Limits | None, route: str | None, caller: Caller
    ) -> str:
        match action:
            case "extend":
                return encode(self._extended(run, limits or Limits()))
            case "reroute":
                taken = chosen(route or "auto", self._wiring.minds(run, samples=caller.samples))[0]
                capped = read_account(self._store.reader, run.account).caps.nano_usd
                if capped is not None and (taken == "provider" or capped != self.settings.limits.nano_usd):
                    self._refuse_unpriced(run, taken)
                return taken
            case "pause":
                return "asked"
            case _:
                return ""

    def _extended(self, run: RunRow, more: Limits) -> Limits:
        """The caps after adding `more`, within what the configuration allows. Raises BadArguments."""
        if more.nano_usd is not None:
            self._refuse_unpriced(run, run.route)
        now = asdict(read_account(self._store.reader, run.account).caps)
        caps = {
            unit: now[unit] + added for unit, added in asdict(more).items() if added and now[unit] is not None
        }
        if not caps:
            raise BadArguments(
                "None of these limits is set on this run.", "run_status shows them under `remaining`."
            )
        allowed = asdict(self.settings.limits)
        return Limits(**{u: cap if allowed[u] is None else min(cap, allowed[u]) for u, cap in caps.items()})

    def _refuse_unpriced(self, run: RunRow, route: str) -> None:
        model = decode(Spec, run.spec).model or self.settings.model
        freeze.refuse_unpriced(route, model, self.settings)

    async def drive_here(self, run_id: str) -> None:
        """Own a run that nobody living owns and drive it: a person's command may. Raises UnknownRun."""
        run = reading.run_by_id(self._store.reader, run_id)
        if run.outcome is None and not self._drivers.moves(run.n):
            dead = owners.dead_owners(self._store.reader, self._store.home, self._store.own_number)
            await self._drivers.take(run, dead)


def _comes_out(run: RunRow, standing: Standing) -> bool:
    """Whether the flow ends as the run's row says; a cancelled run's outcome is not the flow's."""
    if run.outcome is None:
        return True
    if decode(Outcome, run.outcome).status == "cancelled":
        return True
    return standing.runner.finished and encode(standing.runner.outcome) == run.outcome


def _name(workspace: str | None) -> str:
    return repr(workspace.rpartition("/")[2]) if workspace else "(none)"
