"""All runs of a state folder as a person looks at them, whoever's they are: in a list, alone, and all that waits.

Whoever owns the state folder owns all in it. What a look gives is a function of the rows; entries of runs that have
ended are kept in memory, since they don't change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from kairos_mcp.app.context import AppContext, Operations
from kairos_mcp.app.records import Records
from kairos_mcp.app.runs import Runs
from kairos_mcp.core.command_patterns import format_pattern
from kairos_mcp.core.decision_rights import Caller, person_on_page
from kairos_mcp.core.errors import NotFound
from kairos_mcp.core.limits import limits_to_json
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import truncate
from kairos_mcp.store import approvals, find_runs, queries, run_changes
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session
from kairos_mcp.store.rules import RuleRequest
from kairos_mcp.store.run_changes import ListedRun
from kairos_mcp.views.run_report import make_report
from kairos_mcp.views.shown_run import DECIDED_BY_PERSONS, show_row, show_run
from kairos_mcp.views.steps import ShownSteps

EXCERPT_CHARS = 160  # around what was searched for
SEARCHED_RUNS = 1_000
MAX_KEPT = 1_000  # rows of ended runs in memory
MAX_FOUND = 100


class Overview(Operations):
    """Look at every run of the state folder."""

    def __init__(self, context: AppContext, runs: Runs, records: Records) -> None:
        super().__init__(context)
        self._runs, self._records = runs, records
        self._ended: OrderedDict[str, JsonObject] = OrderedDict()

    async def read_version(self) -> int:
        """Return a number that changes with every commit; 0 for an empty store."""
        return await self._store.read(lambda session: session.read_version()) if self._store.exists else 0

    async def newest(self, limit: int, before: str | None = None) -> list[ListedRun]:
        """Return the newest runs, or those older than the run `before`."""
        if not self._store.exists:
            return []
        return await self._store.read(lambda session: run_changes.newest_of_all(session, limit, before))

    async def row(self, run_id: str) -> JsonObject:
        """Return the run's row in a list. Raises UnknownRun."""
        if (known := self._ended.get(run_id)) is not None:
            return known
        run = await self._find(run_id)
        looked = await self._runs.look(run, person_on_page(run.principal), "keys")
        waits = await self._store.read(lambda session: find_runs.waits_for_person(session, run.n))
        row = show_row(*looked, waits_for_person=waits)
        if run.outcome is not None:
            self._ended[run_id] = row
            while len(self._ended) > MAX_KEPT:
                self._ended.popitem(last=False)
        return row

    async def search(self, text: str) -> JsonObject:
        """Return the rows of the newest runs whose goal or summary holds all words of a text, with where they do."""
        words = text.casefold().split()
        if not words or not self._store.exists:
            return {"rows": [], "searched": 0}
        texts = await self._store.read(lambda session: run_changes.newest_texts(session, SEARCHED_RUNS))
        rows: list[JsonObject] = []
        for run_id, goal, summary in texts:
            for place, whole in (("goal", goal), ("summary", summary)):
                if whole is not None and all(word in whole.casefold() for word in words) and len(rows) < MAX_FOUND:
                    plain = " ".join(whole.split())
                    at = max(0, plain.casefold().find(words[0]) - EXCERPT_CHARS // 3)
                    excerpt = ("…" if at else "") + truncate(plain[at:], EXCERPT_CHARS)
                    rows.append({**await self.row(run_id), "found": place, "excerpt": excerpt})
                    break
        return {"rows": rows, "searched": len(texts)}

    async def find_caller(self, run_id: str) -> Caller:
        """Return the person, acting on whose run it is. Raises UnknownRun."""
        return person_on_page((await self._find(run_id)).principal)

    async def watch_steps(self, run_id: str) -> ShownSteps:
        """Return the steps of a run, none of which were read yet. Raises UnknownRun."""
        return ShownSteps(await self._find(run_id))

    async def read_steps(self, shown: ShownSteps) -> None:
        """Read what is new of a run's steps. Raises Unreadable."""
        await self._store.read(shown.read, one_state=True)

    async def read_run(self, run_id: str) -> JsonObject:
        """Return a run as it is shown beside its steps, with its limits. Raises UnknownRun, Unreadable."""
        run = await self._find(run_id)
        facts, viewer = await self._records.look(run, person_on_page(run.principal))
        shown = show_run(facts, viewer)
        offered = await self._store.read(partial(_add_offers, run=run, items=shown["waiting"]))
        return {**shown, "waiting": offered, "limits": limits_to_json(facts.account.caps), "principal": run.principal}

    async def read_item(self, run_id: str, key: str) -> JsonObject:
        """Return what waits under this key, whole: of a completion the conversation. Raises UnknownRun, NotFound."""
        report = await self._runs.report(run_id, await self.find_caller(run_id))
        for item in report.waiting:
            if item["key"] == key:
                return item
        raise NotFound(f"Nothing waits under {key[:120]!r}.", "Look at the run again.", run_id=run_id)

    async def count_waiting(self) -> int:
        """Count the runs that wait for a person."""
        return len(await self._list_waiting())

    async def list_waiting(self) -> list[JsonObject]:
        """Return the runs that wait for a person, oldest first: each with what is to be decided about, whole, and with
        why it stands still."""
        found: list[JsonObject] = []
        for run_id in await self._list_waiting():
            run = await self._find(run_id)
            looked = await self._runs.look(run, person_on_page(run.principal), "all")
            report, row = make_report(*looked), show_row(*looked, waits_for_person=True)
            items = [item for item in report.waiting if item["kind"] in DECIDED_BY_PERSONS]
            offered = await self._store.read(partial(_add_offers, run=run, items=items))
            found.append({"run": row, "items": offered, "next": report.next, "held_up_by": list(report.held_up_by)})
        return found

    async def _list_waiting(self) -> list[str]:
        if not self._store.exists:
            return []
        return await self._store.read(lambda session: find_runs.list_waiting_for_person(session, None, None))

    async def _find(self, run_id: str) -> RunRow:
        return await self._store.read(lambda session: queries.run_by_id(session, run_id))


def _add_offers(session: Session, run: RunRow, items: Sequence[JsonObject]) -> list[JsonObject]:
    """Return items with what may be remembered of an approval: {covers, pattern}, or null where nothing may."""
    return [
        {**item, "always": _describe_offer(session, run, item["key"])} if item["kind"] == "approval" else item
        for item in items
    ]


def _describe_offer(session: Session, run: RunRow, key: str) -> JsonObject | None:
    """Return which calls a rule would allow that is made with the approval under this key; None where none may be."""
    row = approvals.find_by_key(session, run.n, key)
    if row is None or row.shape is None:
        return None
    covers = RuleRequest("run").cover(row.shape)
    pattern = format_pattern(row.shape.pattern) if row.shape.pattern else None
    return {"covers": covers.describe(row.tool), "pattern": pattern}
