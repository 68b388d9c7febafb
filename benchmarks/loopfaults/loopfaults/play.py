"""One case on one system: begin the job, let the faults happen, bring it up again, and count what the witness saw."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .cases import Case, Fault
from .systems import Died, State, System
from .witness import Event, Job, Witness

PATIENCE_S = 25.0
"""How long one verb may take."""
TRIES = 4
"""Calls to go on before a job is given up."""
RESTARTS = 14
JOB_S = 180.0
WRITE_S = 0.05

Make = Callable[[Path, str], System]
"""Makes a system on its folder, for the address of its job at the witness."""


@dataclass
class Outcome:
    """What became of one job.

    went_on_by: after each death the verb by which something was seen to move: `open` (by itself), `look`, `resume`, or
    `nothing`. in_flight, calls_in_flight: at each fault the completions, and the calls that change something, whose
    result the system had not visibly used yet.
    """

    case: str
    group: str
    ended: bool = False
    deaths: int = 0
    went_on_by: list[str] = field(default_factory=list)
    completions: int = 0
    needed: int = 0
    in_flight: int = 0
    calls_in_flight: int = 0
    tokens: int = 0
    twice: int = 0
    read_again: int = 0
    lost: int = 0
    settled: int = 0
    settled_unsent: int = 0
    approvals: int = 0
    unapproved: int = 0
    errors: list[str] = field(default_factory=list)
    seconds: float = 0

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value or key in ("ended", "case", "group")}


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def await_end(pid: int) -> None:
    """Wait until the kernel has ended a process, and with it its connections."""
    for _ in range(5_000):
        if has_ended(pid):
            return
        await asyncio.sleep(0.001)


def await_write(folder: Path, then_s: float) -> None:
    """Wait until a file below a folder has been written to, but WRITE_S at most, and then a little more."""
    before, until = find_last_write(folder), time.monotonic() + WRITE_S
    while find_last_write(folder) == before and time.monotonic() < until:
        pass
    time.sleep(then_s)


def find_last_write(folder: Path) -> int:
    """Return when a file below a folder was written to last. What a system prints is no such file."""
    written = 0
    for place, _, names in os.walk(folder):
        for name in names:
            if name == "log":
                continue
            with suppress(FileNotFoundError):
                written = max(written, os.stat(os.path.join(place, name)).st_mtime_ns)
    return written


class Play:
    """A case under way."""

    def __init__(self, witness: Witness, make: Make, case: Case, name: str, base: Path, is_keyed: bool = False) -> None:
        """`is_keyed`: the effects' other end honours idempotency keys."""
        self.case, self.make = case, make
        self.folder = Path(tempfile.mkdtemp(prefix=f"{case.name}-", dir=base))
        if any(fault.act == "fill" for fault in case.faults):  # what a system prints is kept on another disk
            (self.folder / "log").symlink_to(Path(tempfile.mkstemp(prefix="loopfaults-log-")[1]))
        self.job = Job(case.plan, self._pass, case.refuse, honours_keys=is_keyed)
        witness.jobs[name] = self.job
        self.url = witness.url(name)
        self.outcome = Outcome(case.name, case.group, needed=len(case.plan) + 1)
        self.left = list(case.faults)
        self.in_flight: set[Event] = set()
        self.passed: Counter[str] = Counter()
        self.stopped: list[System] = []
        self.cutting: list[asyncio.Task[None]] = []
        self.stood_still = asyncio.Event()
        self.system = make(self.folder, self.url)
        self.second = make(self.folder, self.url) if case.is_attended else None

    async def play(self) -> Outcome:
        began = time.monotonic()
        try:
            await asyncio.wait_for(self._play(), JOB_S)
        except TimeoutError:
            self.outcome.errors.append(f"no end in {JOB_S:g} s")
        await asyncio.gather(*self.cutting)
        await self._wake()
        self._count()
        self.outcome.seconds = round(time.monotonic() - began, 2)
        self.job.trigger = None
        for system in (self.system, *self.stopped, *([self.second] if self.second else [])):
            with suppress(OSError, Died):
                await system.close()
        if not self.outcome.errors:
            shutil.rmtree(self.folder, ignore_errors=True)
        return self.outcome

    # The faults

    async def _pass(self, point: str, nth: int) -> None:
        """Pass a point of the witness: what happens there has happened before it answers."""
        if fault := self._take(point, nth):
            system = self.system
            self._schedule(fault)
            if fault.act == "kill" and not fault.delay_ms:
                await await_end(system.pid)

    def _take(self, point: str, nth: int) -> Fault | None:
        fault = next((each for each in self.left if (each.point, each.nth) == (point, nth)), None)
        if fault:
            self.left.remove(fault)
        return fault

    def _schedule(self, fault: Fault) -> None:
        if fault.act == "cut":
            cutting = asyncio.create_task(self._cut(fault, self.system))
            self.cutting.append(cutting)
        elif fault.delay_ms:
            asyncio.get_running_loop().call_later(fault.delay_ms / 1000, self._happen, fault, self.system)
        else:
            self._happen(fault, self.system)

    async def _cut(self, fault: Fault, system: System) -> None:
        await asyncio.to_thread(await_write, self.folder, fault.delay_ms / 1000)
        self._happen(fault, system)

    def _pass_of_driver(self, point: str) -> None:
        self.passed[point] += 1
        if fault := self._take(point, self.passed[point]):
            self._schedule(fault)

    def _happen(self, fault: Fault, system: System) -> None:
        if system is not self.system or self.outcome.ended or not system.pid:
            return
        self.outcome.deaths += 1
        completions, calls = self.job.in_flight()
        self.in_flight.update(completions)
        self.outcome.calls_in_flight += len(calls)
        if fault.act == "fill":
            self._fill()
        elif fault.act == "stop":
            self.stopped.append(system)
            self.stood_still.set()
            os.kill(system.pid, signal.SIGSTOP)
        else:
            self.job.kills += 1
            with suppress(ProcessLookupError):
                os.kill(system.pid, signal.SIGKILL)

    def _fill(self) -> None:
        with (self.folder / "ballast").open("wb", buffering=0) as ballast:
            for size in (1 << 20, 1 << 12, 1):
                with suppress(OSError):
                    while ballast.write(b"\0" * size):
                        pass

    def _free(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)

    # The job

    async def _verb(self, verb: str, *given: Any) -> State:
        """Do a verb. Raises Died where the process died, or stands still so that a second one has to go on."""
        call = asyncio.create_task(getattr(self.system, verb)(*given))
        still = asyncio.create_task(self.stood_still.wait())
        done, _ = await asyncio.wait({call, still}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        still.cancel()
        if call in done:
            state: State = await call
            if state.error:
                self.outcome.errors.append(f"{verb}: {state.error}")
            return state
        call.cancel()
        with suppress(asyncio.CancelledError, Died):
            await call
        if still in done:
            self.stood_still.clear()
        else:
            self.outcome.errors.append(f"{verb}: nothing in {PATIENCE_S:g} s")
        raise Died

    async def _play(self) -> None:
        try:
            await self._verb("open")
            if self.second:
                await self.second.open()
            state = await self._verb("start")
        except Died:
            state = await self._bring_up()
        tries = 0
        while state.status != "ended" and tries < TRIES:
            try:
                match state.status:
                    case "waiting":
                        state = await self._approve()
                    case "unsure":
                        state = await self._settle(state.step)
                    case _:
                        tries += 1
                        self._free()
                        state = await self._verb("resume")
            except Died:
                state = await self._bring_up()
        self.outcome.ended = state.status == "ended"

    async def _bring_up(self) -> State:
        """Bring it up as its documents say, and see by which verb it moves."""
        self._free()
        for _ in range(RESTARTS):
            if self.system not in self.stopped:
                await self.system.close()
            seen, verb, state = len(self.job.events), "nothing", State("idle")
            is_up = self.second is not None
            self.system, self.second = self.second or self.make(self.folder, self.url), None
            try:
                for verb in ("look", "resume") if is_up else ("open", "look", "resume"):
                    state = await self._verb(verb)
                    if verb == "open":
                        self._pass_of_driver("opened")
                    if state.status in ("ended", "waiting", "unsure") or len(self.job.events) > seen:
                        self.outcome.went_on_by.append(verb)
                        return state
            except Died:
                if len(self.job.events) > seen:
                    self.outcome.went_on_by.append(verb)
                continue
            self.outcome.went_on_by.append("nothing")
            return state
        return State("failed")

    async def _approve(self) -> State:
        deaths = self.outcome.deaths
        self.job.events.append(Event("waiting", 0))
        self._pass_of_driver("waiting")
        if self.outcome.deaths > deaths:
            return await self._bring_up()
        self.job.approved_at = self.job.approved_at or time.monotonic()
        self.outcome.approvals += 1
        self._pass_of_driver("approving")
        return await self._verb("answer", "approve")

    async def _settle(self, step: int) -> State:
        """A person looks at the ledger and says what happened."""
        self.outcome.settled += 1
        self.outcome.settled_unsent += not any(event.step == step for event in self.job.of("called"))
        return await self._verb("settle", any(event.step == step for event in self.job.of("recorded")))

    async def _wake(self) -> None:
        """Let whoever stood still go on, until nothing more comes of it."""
        for system in self.stopped:
            with suppress(ProcessLookupError):
                os.kill(system.pid, signal.SIGCONT)
        seen = -1
        while self.stopped and seen != len(self.job.events):
            seen = len(self.job.events)
            await asyncio.sleep(1.0)

    def _count(self) -> None:
        outcome, asked = self.outcome, self.job.of("asked")
        outcome.completions, outcome.tokens = len(asked), sum(event.tokens for event in asked)
        outcome.in_flight = len(self.in_flight.union(self.job.unheard))
        recorded = self.job.of("recorded")
        times = Counter(event.step for event in recorded)
        for step, name in enumerate(self.case.calls, 1):
            more = max(0, times[step] - 1)
            if name == "read":
                outcome.read_again += more
            else:
                outcome.twice += more
                outcome.lost += outcome.ended and not times[step]
        decided = self.job.approved_at
        gated = [event.at for event in recorded if event.name == "approved_append"]
        outcome.unapproved = sum(decided is None or at < decided for at in gated)
