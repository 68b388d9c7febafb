"""Open completions that a client's own model may answer: which they are, how they are asked, what comes back.

An open step waits in the rows like any other; a call that may ask its client puts it there, and deposits the reply.
When the call ends first nothing is withdrawn from the rows: the next call asks again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kairos_mcp.drivers import Drivers
from kairos_mcp.messages import Completion
from kairos_mcp.models.dialects import TextPrompts
from kairos_mcp.performer import estimated, tokens_of
from kairos_mcp.report import Caller
from kairos_mcp.routes import after_sampling
from kairos_mcp.steps import RequestCompletion, Sent
from kairos_mcp.store import asks, reading, runs
from kairos_mcp.store.asks import AskRow
from kairos_mcp.store.reading import RunRow
from kairos_mcp.store.runs import Deposit
from kairos_mcp.store.store import Store
from kairos_mcp.store.turns import read_account
from kairos_mcp.wiring import Wiring

REFUSED_AFTER_MS = 30_000  # a client that calls again after this, without an answer, has refused to give one


@dataclass(frozen=True, slots=True)
class Ask:
    """One open completion: the path of its step, what was asked, what the hands add, the text dialect's prompts."""

    path: str
    step: RequestCompletion
    sent: Sent
    prompts: TextPrompts


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client's model said, and how many milliseconds a push took (0: the client called again)."""

    completion: Completion
    milliseconds: int = 0


class Asks:
    """The asks of this server's runs."""

    def __init__(self, store: Store, drivers: Drivers, wiring: Wiring, clock: Callable[[], int]) -> None:
        self._store = store
        self._drivers = drivers
        self._wiring = wiring
        self._clock = clock
        self._answered: set[tuple[str, str]] = set()

    def has_answered(self, caller: Caller) -> bool:
        """Whether this client has answered a push before: one that never has is waited for less."""
        return (caller.principal, caller.client) in self._answered

    def open(self, run_id: str, caller: Caller) -> list[Ask]:
        """The completions that wait for a client's model; none where the run is not on that route."""
        run = reading.run_by_id(self._store.reader, run_id, caller.principal)
        if run.route != "sampling" or run.outcome is not None or run.paused is not None:
            return []
        waiting = reading.waiting(self._store.reader, run.n)
        steps = self._drivers.standing(run).runner.waiting if waiting else {}
        prompts = self._wiring.thawed(run).text_prompts
        found = []
        for path, row in waiting.items():
            match steps[path]:
                case RequestCompletion() as step:
                    found.append(Ask(path, step, row.sent, prompts))
                case _:
                    pass
        return found

    def seconds_left(self, run_id: str, caller: Caller) -> float | None:
        """What is left of the run's time, for the push that it bounds."""
        run = reading.run_by_id(self._store.reader, run_id, caller.principal)
        left = read_account(self._store.reader, run.account).left("milliseconds")
        return None if left is None else left / 1000

    async def put(self, run_id: str, found: list[Ask], caller: Caller) -> AskRow | None:
        """Put them to a client that answers by calling again: the ask of before while it is fresh, else a new one.

        None where the client has let an ask of before go unanswered: it does not answer.
        """
        run = reading.run_by_id(self._store.reader, run_id, caller.principal)
        paths, at = [each.path for each in found], self._clock()
        before = self._unanswered(run, paths)
        same_client = before is not None and (before.principal, before.client) == (caller.principal, caller.client)
        if before is not None and same_client:
            if at - before.at < REFUSED_AFTER_MS:
                return before
            if self._may_fall_back(run):
                return None
        nonce, who = secrets.token_hex(16), (caller.principal, caller.client)
        return await self._store.submit(lambda connection: asks.ask(connection, run, paths, nonce, who, at))

    def asked(self, run_id: str, nonce: str, caller: Caller) -> AskRow | None:
        """The ask that a client's call refers to."""
        run = reading.run_by_id(self._store.reader, run_id, caller.principal)
        return next((row for row in asks.asks(self._store.reader, run.n) if row.nonce == nonce), None)

    async def take(self, run_id: str, nonce: str, replies: Mapping[str, Completion], caller: Caller) -> None:
        """Take the replies to an ask, by path; one that was taken before stores nothing."""
        run = reading.run_by_id(self._store.reader, run_id, caller.principal)
        deposits = self._deposits(run, {path: Reply(said) for path, said in replies.items()})
        mine, at = await self._store.own(self._clock()), self._clock()
        _, fence = await self._store.submit(
            lambda connection: asks.take_answers(connection, run, nonce, deposits, mine, at)
        )
        self._drivers.go_on(run, mine, fence)

    async def deposit(self, run_id: str, replies: Mapping[str, Reply], caller: Caller) -> None:
        """Deposit the replies to pushes, by path."""
        self._answered.add((caller.principal, caller.client))
        run = reading.run_by_id(self._store.reader, run_id, caller.principal)
        deposits = self._deposits(run, replies)
        mine, at = await self._store.own(self._clock()), self._clock()
        fence = await self._store.submit(
            lambda connection: runs.deposit(connection, run, deposits, "sampling", mine, at) if deposits else None
        )
        self._drivers.go_on(run, mine, fence)

    async def fall_back(self, run_id: str, why: str, caller: Caller) -> bool:
        """Go on with the next route, named in `degraded`; False where sampling was asked for explicitly."""
        run = reading.run_by_id(self._store.reader, run_id, caller.principal)
        if not self._may_fall_back(run):
            note = f"sampling: {why}; the run waits, since its route was given."
            await self._store.submit(lambda connection: runs.note(connection, run, note))
            return False
        route = after_sampling(self._wiring.minds(run, samples=True))
        note = f"sampling: {why}; the run went on with the route {route}."
        mine, at = await self._store.own(self._clock()), self._clock()
        who = caller.row
        fence = await self._store.submit(
            lambda connection: runs.wish(connection, run, "reroute", route, who, mine, at, because=note)
        )
        self._drivers.go_on(run, mine, fence)
        return True

    def _may_fall_back(self, run: RunRow) -> bool:
        return self._wiring.thawed(run).spec.asked_route == "auto"

    def _unanswered(self, run: RunRow, paths: list[str]) -> AskRow | None:
        rows = [row for row in asks.asks(self._store.reader, run.n) if row.consumed is None]
        return next((row for row in reversed(rows) if list(row.keys.values()) == paths), None)

    def _deposits(self, run: RunRow, replies: Mapping[str, Reply]) -> list[Deposit]:
        """One for each reply whose step still waits."""
        waiting = reading.waiting(self._store.reader, run.n) if run.outcome is None else {}
        steps = self._drivers.standing(run).runner.waiting if waiting else {}
        found = []
        for path, reply in replies.items():
            step = steps.get(path) if path in waiting else None
            if isinstance(step, RequestCompletion):
                usage = reply.completion.usage or estimated(step, reply.completion)
                spent = tokens_of(usage)._replace(milliseconds=reply.milliseconds)
                found.append(Deposit(path, reply.completion, spent, usage.cached_tokens, usage.exactness))
        return found
