"""A run as somebody watches it: its report and its steps, from a mark on, and the wait until there is news.

The steps of the runs that were watched last are kept in memory, so that a look reads what is new. Nothing depends on
it: when a step changed stands in its row, so any server says the same.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Sequence

import anyio

from kairos_mcp.app.context import AppContext, Operations
from kairos_mcp.app.runs import OnHeartbeat, Runs
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store import queries
from kairos_mcp.store.queries import RunRow
from kairos_mcp.views.shown_run import show_run
from kairos_mcp.views.steps import ShownSteps, fit_step
from kairos_mcp.views.trace import matching_items

MAX_RUNS = 8  # whose steps are kept; the one that was looked at longest ago is dropped first
GATHER_S = 0.5  # what changes so soon after a change comes with it, when a call waits


@dataclass(frozen=True, slots=True)
class StepsQuery:
    """What to show of a run: its steps that changed after its `seq` of `since`; None: all.

    `wait_s`: how long to wait for a change. `grep` (RE2) keeps the steps that match. `max_chars` bounds the steps;
    `cursor` is the `next_cursor` of the page before.
    """

    since: int | None = None
    wait_s: float = 0
    grep: str | None = None
    cursor: str | None = None
    max_chars: int = 8_000


class RunSteps(Operations):
    """Look at a run and its steps."""

    def __init__(self, context: AppContext, runs: Runs) -> None:
        super().__init__(context)
        self._runs = runs
        self._shown: OrderedDict[str, ShownSteps] = OrderedDict()

    async def frame(
        self, run_id: str, query: StepsQuery, caller: Caller, on_heartbeat: OnHeartbeat | None = None
    ) -> JsonObject:
        """Return {run_id, view, seq, run, steps, next_cursor}: the run as it is, and the steps of a page.

        `seq` is what to give as `since` once no page follows. Raises UnknownRun, BadArguments, Unreadable.
        """
        seq, after = _read_cursor(query.cursor)
        if query.since is not None and query.wait_s and query.cursor is None:
            await self._wait_for_change(run_id, query.since, query.wait_s, caller, on_heartbeat)
        run = await self._context.find_run(run_id, caller)
        shown = await self.read_steps(run)
        changed = shown.since(query.since, after)
        seq = shown.seq if seq is None else seq
        if query.grep is not None:
            changed = await asyncio.to_thread(_keep_matching, changed, query.grep)  # a search may take 200 ms
        page, last = _cut_page(changed, query.max_chars)
        return {
            "run_id": run.id,
            "view": "steps",
            "seq": seq,
            "run": show_run(*await self._runs.look_beside_steps(shown.run, caller)),
            "steps": page,
            "next_cursor": None if last is None else f"{seq}.{last}",
        }

    async def read_steps(self, run: RunRow) -> ShownSteps:
        """Return the steps of a run as they are now. Raises Unreadable."""
        shown = self._shown.setdefault(run.id, ShownSteps(run))
        self._shown.move_to_end(run.id)
        while len(self._shown) > MAX_RUNS:
            self._shown.popitem(last=False)
        with queries.name_run_in_errors(run):
            await self._store.read(shown.read, one_state=True)
        return shown

    async def _wait_for_change(
        self, run_id: str, seq: int, wait_s: float, caller: Caller, on_heartbeat: OnHeartbeat | None
    ) -> None:
        until_s = time.monotonic() + wait_s
        (run,) = await self._runs.wait(
            [run_id], until="change", wait_s=wait_s, caller=caller, since={run_id: seq}, on_heartbeat=on_heartbeat
        )
        if run.outcome is None and run.seq != seq:
            await anyio.sleep(max(0.0, min(GATHER_S, until_s - time.monotonic())))


def _keep_matching(changed: Sequence[tuple[int, JsonObject]], grep: str) -> list[tuple[int, JsonObject]]:
    matching = {step["path"] for step in matching_items([step for _, step in changed], grep)}
    return [each for each in changed if each[1]["path"] in matching]


def _cut_page(changed: Sequence[tuple[int, JsonObject]], max_chars: int) -> tuple[list[JsonObject], int | None]:
    """Return as many steps as fit, at least one, and the number of the last where others follow."""
    page: list[JsonObject] = []
    size = 0
    for at, (_, step) in enumerate(changed):
        length = len(json.dumps(step, ensure_ascii=False))
        if page and size + length > max_chars:
            return page, changed[at - 1][0]
        page.append(step if length <= max_chars else fit_step(step, max_chars))
        size += length
    return page, None


def _read_cursor(cursor: str | None) -> tuple[int | None, int]:
    """Return the `seq` of the first page, None where this is it, and the number of the last step of the page before."""
    if cursor is None:
        return None, 0
    seq, _, last = cursor.partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) <= 16 for part in (seq, last)):
        raise BadArguments("This cursor was not given for this page.", "Leave it out to start from the beginning.")
    return int(seq), int(last)
