"""Looks at runs: what they have come to, what their record says, and the wait until there is news of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kairos_mcp.errors import ReplayDiffers, Stale, StoreCorrupt
from kairos_mcp.flows.outcome import Outcome
from kairos_mcp.house import House
from kairos_mcp.messages import JsonObject
from kairos_mcp.report import Beat, Caller, Circumstances, RunReport, newest_calls, report, status_of
from kairos_mcp.standing import Standing
from kairos_mcp.store import owners, reading
from kairos_mcp.store.codec import decode, encode
from kairos_mcp.store.reading import RunRow
from kairos_mcp.store.turns import read_account
from kairos_mcp.trace import Traced, TraceQuery, trace

Until = Literal["rest", "attention", "done"]
OnBeat = Callable[[Beat], Awaitable[None]]

BEAT_S = 1.0  # signs of life for a waiting call, at most one a second


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """A run built again from its rows: whether each step asks what was asked then, or where it first differs."""

    run_id: str
    steps: int
    identical: bool
    first_difference: str | None


def reported(house: House, run_id: str, caller: Caller, *, full: bool = True, attached: bool = False) -> RunReport:
    """What the run looks like now; without `full` waiting items are keys and kinds. Raises UnknownRun."""
    run = house.run(run_id, caller)
    steps = (lambda: house.drivers.standing(run).runner.waiting) if full else None
    around = _circumstances(house, run, attached)
    try:
        return report(house.store.reader, run, around, steps)
    except (Stale, StoreCorrupt) as trouble:  # it can't go on; what its rows say is shown all the same
        return report(house.store.reader, run, replace(around, trouble=trouble), None)


def _circumstances(house: House, run: RunRow, attached: bool = False) -> Circumstances:
    moves = house.drivers.moves(run.n)
    lives = moves or (run.owner is not None and owners.owner_lives(house.store.reader, house.store.home, run.owner))
    needs = None
    if not lives and run.outcome is None and run.owner is not None and not house.wiring.can_perform(run):
        needs = f"No server goes on with this run: it needs one with the workspace {_name(run.workspace)}."
    return Circumstances(lives, house.drivers.trouble(run.n), needs, attached)


async def wait(
    house: House,
    run_ids: Sequence[str],
    *,
    until: Until,
    wait_s: float,
    caller: Caller,
    on_beat: OnBeat | None = None,
) -> None:
    """Block until the runs are as wanted, at most `wait_s` seconds. `attention`: one waits, is paused or has
    ended; `done`: all have ended; `rest`: nothing of them moves. Raises UnknownRun."""
    await house.called()
    await asyncio.sleep(0)  # whoever asks in a loop lets others run
    runs_now = [house.run(run_id, caller) for run_id in run_ids]
    for run in runs_now:
        house.drivers.try_again(run.n)
    until_s = time.monotonic() + wait_s
    beat_s = 0.0
    while not _is(house, until, runs_now):
        now = time.monotonic()
        if now >= until_s:
            return
        if on_beat is not None and now - beat_s >= BEAT_S:
            beat_s = now
            await on_beat(_beat(house, runs_now[0]))
        within_s = min(until_s - now, BEAT_S)
        if until == "attention" or not await house.drivers.stopped([run.n for run in runs_now], within_s):
            await house.drivers.bell.heard(within_s)
        runs_now = [house.run(run_id, caller) for run_id in run_ids]


def _is(house: House, until: Until, runs_now: Sequence[RunRow]) -> bool:
    match until:
        case "done":
            return all(run.outcome is not None for run in runs_now)
        case "rest":
            return not any(house.drivers.moves(run.n) or _status(house, run) == "working" for run in runs_now)
        case "attention":
            return any(_status(house, run) != "working" for run in runs_now)


def _status(house: House, run: RunRow) -> str:
    waiting = reading.waiting(house.store.reader, run.n) if run.outcome is None else {}
    return status_of(run, waiting, _circumstances(house, run))


def beat(house: House, run_id: str, caller: Caller) -> Beat:
    """A sign of life of the run."""
    return _beat(house, house.run(run_id, caller))


def _beat(house: House, run: RunRow) -> Beat:
    account = read_account(house.store.reader, run.account)
    last = newest_calls(house.store.reader, run, 1)
    number = account.spent.rounds + account.held.rounds
    return Beat(run.id, number, account.caps.rounds, last[0]["name"] if last else "", account.spent.nano_usd)


def traced(house: House, run_id: str, query: TraceQuery, caller: Caller) -> JsonObject:
    """A page of the run's record. Raises UnknownRun, BadArguments, NotFound."""
    run, reader = house.run(run_id, caller), house.store.reader
    record = reading.record(reader, run.n)
    whole = Traced(
        run,
        record,
        house.wiring.thawed(run).brief,
        lambda ref: house.store.whole_text(reader, run.n, ref),
    )
    return trace(whole, query)


def replay(house: House, run_id: str, caller: Caller) -> ReplayReport:
    """Build the run again from its rows and compare every step that was asked. Raises Stale for another version."""
    run = house.run(run_id, caller)
    house.wiring.check_version(run)
    steps = len(reading.record(house.store.reader, run.n))
    standing = house.wiring.standing(run)
    try:
        standing.fold(house.store.reader)
    except ReplayDiffers as differs:
        return ReplayReport(run_id, steps, False, str(differs))
    if not _comes_out(run, standing):
        return ReplayReport(run_id, steps, False, "the outcome is not the one that these answers give")
    return ReplayReport(run_id, steps, True, None)


def _comes_out(run: RunRow, standing: Standing) -> bool:
    """Whether the flow ends as the run's row says; a cancelled run's outcome is not the flow's."""
    if run.outcome is None:
        return True
    if decode(Outcome, run.outcome).status == "cancelled":
        return True
    return standing.runner.finished and encode(standing.runner.outcome) == run.outcome


def _name(workspace: str | None) -> str:
    return repr(workspace.rpartition("/")[2]) if workspace else "(none)"
