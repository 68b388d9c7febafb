"""Save, show, edit, move, remove and list mandates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import dropwhile

from kairos_mcp.app.context import AppContext
from kairos_mcp.app.redact_aside import redact_aside
from kairos_mcp.app.runs import Runs
from kairos_mcp.app.saved_mandates import SavedMandates, ambiguous_mandate, changed_since, with_id
from kairos_mcp.core import redact_values
from kairos_mcp.core.builtin_tools import EDIT_TOOLS
from kairos_mcp.core.calendar import day_at
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, UnknownTool
from kairos_mcp.core.limits import DAY_CAPS
from kairos_mcp.core.limits_table import limits_to_json
from kairos_mcp.core.mandate import MANDATE_SCHEMA, Mandate, parse_mandate
from kairos_mcp.core.messages import JsonObject, canonical_json
from kairos_mcp.core.run_spec import MandateRef
from kairos_mcp.core.schedule import Schedule, due_times, next_time
from kairos_mcp.core.text import truncate
from kairos_mcp.specs.kinds import CYCLES
from kairos_mcp.store import accounts, approvals, mandates
from kairos_mcp.store.mandates import MandateRow
from kairos_mcp.store.rows import Session, encode
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.views.mandate_view import mandate_status, show_cycle, with_schedule_words
from kairos_mcp.views.waiting import format_time

_CURSOR = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\.[0-9a-f]{8}")  # the id as MANDATE_SCHEMA has it
GOAL_CHARS = 200
LISTED_IDS = 1_000
NEWEST_RUNS = 5  # whose cycles are shown
MAX_PAGE_CHARS = 6_000  # of one page, as a run's result has
MAX_ROWS_PER_PAGE = 500  # mandates for one page, where most are of another status than the one asked for


class Mandates(SavedMandates):
    """Save, show, move and list mandates."""

    def __init__(self, context: AppContext, runs: Runs) -> None:
        super().__init__(context)
        self._runs = runs

    async def save(self, given: JsonObject, caller: Caller) -> JsonObject:
        """Save a mandate under its id, or under an id made from its digest. Raises BadArguments.

        It belongs to the workspace that it names, else to this server's first.
        """
        mandate, secrets = await self._parse_mandate(given)
        return await self._save(mandate, secrets, self._factory.find_workspace(mandate.workspace), caller)

    async def _save(
        self, mandate: Mandate, secrets: int, workspace: str | None, caller: Caller, shown: str | None = None
    ) -> JsonObject:
        """`secrets`: how many were redacted in the mandate."""
        registry = await self._factory.registry(workspace)
        mandate = with_id(mandate)
        changed = await self.save_parsed(mandate, workspace, caller, shown)

        def read(session: Session) -> tuple[JsonObject, JsonObject]:
            saved = mandates.find(session, caller.principal, workspace or "", mandate.id or "")
            assert saved is not None
            return self._list_item(session, saved, caller), self._reference_to(session, saved)

        item, reference = await self._store.read(read)
        notes = [*([redact_values.redaction_note(secrets)] if secrets else []), *_missing_tool_notes(registry, mandate)]
        next_call = {"tool": CYCLES.tool, "arguments": reference, "why": "It runs its cycles."}
        return {**item, "changed": changed, "degraded": notes, "next": next_call}

    async def show(self, mandate_id: str, caller: Caller, workspace: str | None = None) -> JsonObject:
        """Return a saved mandate as `mandate_list` does, with its text under `mandate`. Raises UnknownMandate,
        BadArguments."""
        row = await self.find_saved(MandateRef(mandate_id, workspace=workspace), caller)
        item = await self._store.read(lambda session: self._list_item(session, row, caller))
        return {**item, "mandate": row.parse().as_json()}

    async def edit(
        self,
        mandate_id: str,
        given: JsonObject,
        caller: Caller,
        *,
        workspace: str | None = None,
        shown: str | None = None,
    ) -> JsonObject:
        """Replace the text of a saved mandate, which keeps its id and its folder; return it as `save` does.

        `shown`: the digest of the text that was edited. Raises UnknownMandate, BadArguments; Stale where the text is
        another one by now.
        """
        row = await self.find_saved(MandateRef(mandate_id, workspace=workspace), caller)
        if given.get("id", row.id) != row.id:
            raise BadArguments(
                f"The mandate {row.id} keeps its id.", "Save it under another one with `kairos-mcp mandate save FILE`."
            )
        if given.get("workspace") is not None and self._factory.find_workspace(given["workspace"]) != row.workspace:
            raise BadArguments(
                f"The mandate {row.id} stays in its folder.",
                f"`kairos-mcp mandate edit {row.id} --workspace DIR` moves it.",
            )
        mandate, secrets = await self._parse_mandate({**given, "id": row.id})
        return await self._save(mandate, secrets, row.workspace or None, caller, shown)

    async def remove(
        self, mandate_id: str, caller: Caller, *, workspace: str | None = None, shown: str | None = None
    ) -> JsonObject:
        """Remove a saved mandate and return it as `mandate_list` did; its runs stay.

        `shown`: the digest of the text that was looked at. Raises UnknownMandate, BadArguments; Stale while it has an
        open run, or where the text is another one by now.
        """
        row = await self.find_saved(MandateRef(mandate_id, workspace=workspace), caller)
        if shown not in (None, row.digest):
            raise changed_since(row.id)
        item = await self._store.read(lambda session: self._list_item(session, row, caller))
        await self._store.submit(lambda session: mandates.remove(session, row))
        return item

    async def move(self, mandate_id: str, workspace: str, caller: Caller) -> JsonObject:
        """Move a mandate into another workspace. Raises UnknownMandate, BadArguments."""

        def find(session: Session) -> MandateRow:
            rows = mandates.find_by_id(session, caller.principal, mandate_id)
            if not rows:
                raise self.unknown_mandate(session, mandate_id, caller)
            if len(rows) > 1:
                raise ambiguous_mandate(rows, caller)
            return rows[0]

        old, target = await self._store.read(find), self._factory.find_workspace(workspace) or ""
        mandate = old.parse()
        mandate = replace(mandate, workspace=target) if mandate.workspace is not None else mandate
        place = self._settings.place if target else None
        new = replace(old, workspace=target, place=place, body=encode(mandate.as_json()), digest=mandate.digest)
        if target != old.workspace:
            await self._store.submit(lambda session: mandates.move(session, old, new))
        return await self._store.read(lambda session: self._list_item(session, new, caller))

    async def list_page(
        self, status: str | None, cursor: str | None, caller: Caller, *, everywhere: bool = False
    ) -> JsonObject:
        """Return a page of the caller's mandates by id, each with its status; those of one status if `status` is given.

        {mandates, total: how many there are of every status, elsewhere: how many more in other workspaces, cursor:
        where the next page begins, null after the last}. A page may be empty and still have a next one, since it reads
        a limited number of rows. `everywhere`: also those of other workspaces. Raises BadArguments.
        """
        if cursor is not None and not _CURSOR.fullmatch(cursor):
            raise BadArguments(
                "This cursor is not one of mandate_list.", "Take `cursor` from the page before, or none."
            )
        workspaces = None if everywhere else self._context.listed_workspaces
        return await self._store.read(lambda session: self._read_page(session, status, cursor, caller, workspaces))

    def _read_page(
        self, session: Session, status: str | None, cursor: str | None, caller: Caller, workspaces: Sequence[str] | None
    ) -> JsonObject:
        start = (cursor or "").partition(".")[0]
        rows = mandates.list_page(session, caller.principal, workspaces, start, MAX_ROWS_PER_PAGE + 1)
        rows = list(dropwhile(lambda row: row.id == start and _cursor_after(row) != cursor, rows)) if cursor else rows
        rows = rows[1:] if rows and _cursor_after(rows[0]) == cursor else rows
        found: list[JsonObject] = []
        room, last = MAX_PAGE_CHARS, cursor
        for row in rows[:MAX_ROWS_PER_PAGE]:
            item = self._list_item(session, row, caller)
            if status in (None, item["status"]):
                room -= len(canonical_json(item))
                if room < 0 and found:
                    break
                found.append(item)
            last = _cursor_after(row)
        next_cursor = last if rows and _cursor_after(rows[-1]) != last else None
        total = mandates.count(session, caller.principal, workspaces)
        elsewhere = mandates.count(session, caller.principal, None) - total
        return {"mandates": found, "total": total, "elsewhere": elsewhere, "cursor": next_cursor}

    async def _parse_mandate(self, given: JsonObject) -> tuple[Mandate, int]:
        """Parse a mandate from outside; also return how many secrets were redacted in it."""
        checked = parse_mandate(given)
        plain, secrets = await redact_aside(redact_values.redact_arguments, checked.as_json(), self._factory.redactor)
        return (parse_mandate(plain), secrets) if secrets else (checked, 0)

    def _reference_to(self, session: Session, row: MandateRow) -> JsonObject:
        """Return the arguments that name a saved mandate: with its folder only where another folder has its id too."""
        rows = mandates.find_by_id(session, row.principal, row.id)
        alone = sum(each.workspace in self._context.listed_workspaces for each in rows) == 1
        return {"mandate_id": row.id} | ({} if alone or not row.workspace else {"workspace": row.workspace})

    def _list_item(self, session: Session, row: MandateRow, caller: Caller) -> JsonObject:
        mandate = row.parse()
        goal = truncate(mandate.goal, GOAL_CHARS)
        item: JsonObject = {
            "mandate_id": row.id,
            "goal": goal,
            "workspace": caller.visible_path(row.workspace) if row.workspace else None,
            "status": "created",
            "digest": row.digest,
            "saved_at": format_time(row.saved_at),
        }
        if mandate.schedule is not None:
            item["schedule"] = mandate.schedule.as_json()
            item["last_due"] = None if row.last_due is None else format_time(row.last_due)
            now = self._clock()
            at = next(iter(due_times_of(row, mandate.schedule, now)), None) or next_time(mandate.schedule, now)
            item["next_due"] = None if at is None else format_time(at)
        newest = mandates.newest_run(session, row.principal, row.workspace, row.id)
        if newest is None:
            return item
        waits = approvals.read_waiting_items(session, newest.n) if newest.outcome is None else None
        return {**item, **mandate_status(newest, waits), "run_id": newest.id}

    async def list_ids(self, caller: Caller) -> list[str]:
        """Return the ids of the caller's mandates in the workspaces at hand."""
        workspaces = self._context.listed_workspaces
        if not self._store.exists:
            return []
        rows = await self._store.read(
            lambda session: mandates.list_page(session, caller.principal, workspaces, limit=LISTED_IDS)
        )
        return list(dict.fromkeys(row.id for row in rows))

    async def list_all(self, caller: Caller) -> JsonObject:
        """Return {mandates, elsewhere}: those of the workspaces at hand, and how many others have."""
        found: list[JsonObject] = []
        cursor: str | None = None
        while True:
            page = await self.list_page(None, cursor, caller)
            found += map(with_schedule_words, page["mandates"])
            cursor = page["cursor"]
            if cursor is None:
                return {"mandates": found, "elsewhere": page["elsewhere"]}

    async def read_whole(self, mandate_id: str, workspace: str | None, caller: Caller) -> JsonObject:
        """Return a mandate as it is listed, with its text and the schema of one, the ids of its newest runs, their
        cycles (oldest first), its lessons, and today's account. Raises UnknownMandate, BadArguments."""
        row = await self.find_saved(MandateRef(mandate_id, workspace=workspace), caller)
        item = with_schedule_words(await self.show(mandate_id, caller, workspace))
        run_ids, account, learned = await self._store.read(lambda session: self._read_use(session, row, caller))
        cycles: list[JsonObject] = []
        for run_id in reversed(run_ids):
            output = (await self._runs.report(run_id, caller)).output
            cycles += [show_cycle(run_id, cycle) for cycle in (output or {}).get("cycles", ())]
            learned = (output or {}).get("lessons", learned)
        limits = limits_to_json(row.parse().day, DAY_CAPS)
        return item | {
            "schema": MANDATE_SCHEMA,
            "runs": run_ids,
            "cycles": cycles,
            "lessons": learned,
            "limits_today": limits,
            "spent_today": account,
        }

    def _read_use(
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


def due_times_of(row: MandateRow, schedule: Schedule, now: int) -> tuple[int, ...]:
    """Return the times that a mandate has to be run for now."""
    return due_times(schedule, row.saved_at if row.last_due is None else row.last_due, now)


def _cursor_after(row: MandateRow) -> str:
    """Return the cursor of a page that ends with this row: its id, and a hash of its workspace, which may be secret."""
    return f"{row.id}.{sha256(row.workspace.encode()).hexdigest()[:8]}"


def _missing_tool_notes(registry: ToolRegistry, mandate: Mandate) -> Iterator[str]:
    """Yield a note for each tool that the mandate names and that is missing now: it may still come."""
    reads = {spec.name for spec in registry.select(None)} - EDIT_TOOLS
    for name in dict.fromkeys(look.tool for look in mandate.observe):
        if name not in reads and not registry.must_wait_for((name,)):
            yield f"observe: no tool that only reads is called {name!r} now, so it would be skipped."
    for name in mandate.tools or ():
        try:
            registry.select(() if registry.must_wait_for((name,)) else (name,))
        except UnknownTool as unknown:
            yield f"{unknown.message} A run of this mandate would be refused now."
