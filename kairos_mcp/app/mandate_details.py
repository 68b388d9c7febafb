"""A mandate as a person looks at it: its text and schedule, the cycles of its newest runs, what it learned and used."""

from __future__ import annotations

from typing import Any

from kairos_mcp.app.context import AppContext, Operations
from kairos_mcp.app.mandates import MandateRef, Mandates, mandate_of_row
from kairos_mcp.app.runs import Runs
from kairos_mcp.core.calendar import day_at
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.limits import DAY_CAPS, limits_to_json
from kairos_mcp.core.mandate import MANDATE_SCHEMA
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.schedule import Schedule, describe_schedule
from kairos_mcp.store import accounts, mandates
from kairos_mcp.store.mandates import MandateRow
from kairos_mcp.store.rows import Session

NEWEST_RUNS = 5  # whose cycles are shown


class MandateDetails(Operations):
    """Look at mandates, whole."""

    def __init__(self, context: AppContext, mandates_group: Mandates, runs: Runs) -> None:
        super().__init__(context)
        self._mandates, self._runs = mandates_group, runs

    async def list_all(self, caller: Caller) -> JsonObject:
        """Return {mandates, elsewhere}: those of the workspaces at hand, and how many others have."""
        found: list[JsonObject] = []
        cursor: str | None = None
        while True:
            page = await self._mandates.list_page(None, cursor, caller)
            found += map(_with_words, page["mandates"])
            cursor = page["cursor"]
            if cursor is None:
                return {"mandates": found, "elsewhere": page["elsewhere"]}

    async def read(self, mandate_id: str, workspace: str | None, caller: Caller) -> JsonObject:
        """Return a mandate as it is listed, with its text and the schema of one, the ids of its newest runs, their
        cycles (oldest first), its lessons, and today's account. Raises UnknownMandate, BadArguments."""
        row = await self._mandates.find_saved(MandateRef(mandate_id, workspace=workspace), caller)
        item = _with_words(await self._mandates.show(mandate_id, caller, workspace))
        run_ids, account, learned = await self._store.read(lambda session: self._read(session, row, caller))
        cycles: list[JsonObject] = []
        for run_id in reversed(run_ids):
            output = (await self._runs.report(run_id, caller)).output
            cycles += [_show_cycle(run_id, cycle) for cycle in (output or {}).get("cycles", ())]
            learned = (output or {}).get("lessons", learned)
        limits = limits_to_json(mandate_of_row(row).day, DAY_CAPS)
        return item | {
            "schema": MANDATE_SCHEMA,
            "runs": run_ids,
            "cycles": cycles,
            "lessons": learned,
            "limits_today": limits,
            "spent_today": account,
        }

    def _read(
        self, session: Session, row: MandateRow, caller: Caller
    ) -> tuple[list[str], JsonObject | None, list[str]]:
        """Return the newest runs, what was used today (None: nothing), and the lessons of the newest run that ended."""
        place = row.workspace or ""
        run_ids = mandates.newest_run_ids(session, row.principal, place, row.id, NEWEST_RUNS)
        output = mandates.newest_output(session, row.principal, place, row.id) or {}
        today = day_at(self._clock(), self._settings.time_zone).name
        day = accounts.find_day_account(session, caller.principal, today)
        used = None if day is None else accounts.find_mandate_account(session, day.id, place, row.id)
        spent = None if used is None else limits_to_json(used.spent, DAY_CAPS)
        return run_ids, spent, output.get("lessons", [])


def _with_words(item: JsonObject) -> JsonObject:
    """Add to a listed mandate what its schedule says in words."""
    schedule: Any = item.get("schedule")
    return item if schedule is None else item | {"schedule_words": describe_schedule(Schedule(**schedule))}


def _show_cycle(run_id: str, cycle: JsonObject) -> JsonObject:
    """Return a cycle of an outcome or a pause in one row: what was done and how it was judged."""
    decision, reflection = cycle.get("decision", {}), cycle.get("reflection", {})
    return {
        "run_id": run_id,
        "n": cycle["cycle"],
        "status": cycle["status"],
        "action": decision.get("action"),
        "target": decision.get("target") or decision.get("tool"),
        "intent": decision.get("intent") or decision.get("reason"),
        "verdict": reflection.get("assessment"),
        "confidence": reflection.get("confidence"),
        "lessons": reflection.get("lessons", []),
    }
