"""Report how runs stand, to a caller, in this server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from kairos_mcp.app.context import Operations, read_run, stopped_server_error
from kairos_mcp.app.served_runs import missing_elsewhere
from kairos_mcp.core.already_read import NOTHING_READ, AlreadyRead
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import Stale, StoreCorrupt, Unreadable
from kairos_mcp.settings.settings import find_changed_file
from kairos_mcp.store import queries, settlements
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session, read_each
from kairos_mcp.views.run_facts import Decides, Detail, RunFacts, Standing, Viewer, read_damaged, read_facts
from kairos_mcp.views.run_report import RunReport, make_report
from kairos_mcp.views.waiting import OpenStep

A = TypeVar("A")
B = TypeVar("B")


class RunReports(Operations):
    """Look at runs, and report how they stand."""

    async def report(
        self,
        run_id: str,
        caller: Caller,
        *,
        full: bool = True,
        attached: bool = False,
        read: AlreadyRead = NOTHING_READ,
    ) -> RunReport:
        """Return the report of a run as it is now. Without `full`, waiting items are keys and kinds alone.

        `read`: what the caller has read, as its call says. Raises UnknownRun.
        """
        run = await self._context.find_run(run_id, caller)
        return await self.report_row(run, caller, full=full, attached=attached, read=read)

    async def report_row(
        self,
        run: RunRow,
        caller: Caller,
        *,
        full: bool = True,
        attached: bool = False,
        read: AlreadyRead = NOTHING_READ,
    ) -> RunReport:
        """Return the report of a run whose row this caller has just read."""
        detail: Detail = "all" if full else "keys"
        return make_report(*await self.look(run, caller, detail, attached=attached, read=read))

    async def list_reports(self, run_ids: Sequence[str], caller: Caller) -> list[RunReport]:
        """Return the reports of several runs, in which waiting items are keys and kinds alone. Raises UnknownRun."""

        def read_standing(session: Session, run_id: str) -> Standing:
            return self._context.read_standing(session, read_run(session, run_id, caller))

        def try_to_read(session: Session, of: tuple[Standing, Viewer]) -> RunFacts | None:
            try:
                return None if of[0].unreadable else read_facts(session, *of, None)
            except StoreCorrupt:
                return None

        stand = await self._read_each(read_standing, run_ids)
        viewers = [await self._viewer(each, caller) for each in stand]
        found = await self._read_each(try_to_read, list(zip(stand, viewers, strict=True)))
        return [
            await self.report_row(each.run, caller, full=False) if facts is None else make_report(facts, viewer)
            for each, viewer, facts in zip(stand, viewers, found, strict=True)
        ]

    async def look(
        self,
        run: RunRow,
        caller: Caller,
        detail: Detail,
        *,
        attached: bool = False,
        read: AlreadyRead = NOTHING_READ,
    ) -> tuple[RunFacts, Viewer]:
        """Return what a run is, whose row this caller has just read, and who looks: what its views are made of."""
        stands = await self._store.read(lambda session: self._context.read_standing(session, run))
        viewer = replace(await self._viewer(stands, caller), attached=attached, read=read)
        try:
            return await self._read_facts(stands, viewer, detail), viewer
        except (Stale, StoreCorrupt) as error:  # it can't go on; what its rows say is shown all the same
            viewer = replace(viewer, trouble=error)
        try:
            return await self._read_facts(stands, viewer, "keys"), viewer
        except Unreadable as damage:
            found = damage
        return await self._store.read(lambda session: read_damaged(session, stands, found)), viewer

    async def look_beside_steps(self, run: RunRow, caller: Caller) -> tuple[RunFacts, Viewer]:
        """Return what a run is, as far as it is shown beside its steps, and who looks."""
        facts, viewer = await self.look(run, caller, "decisions")
        return facts, replace(viewer, page=self._context.page_link(run.id, caller))

    async def _read_each(self, read: Callable[[Session, A], B], of: Sequence[A]) -> list[B]:
        """Return what a function reads of each of these."""
        return await self._store.read(lambda session: read_each(session, read, of))

    async def _read_facts(self, stands: Standing, viewer: Viewer, detail: Detail) -> RunFacts:
        run, has_plan = stands.run, stands.kind.has_plan
        asks_person = bool(stands.waits.approvals or stands.waits.lost_calls)
        is_whole = detail == "all" or (detail == "decisions" and (has_plan or asks_person))
        with queries.name_run_in_errors(run):
            if stands.unreadable is not None:
                raise stands.unreadable
            steps: Mapping[str, OpenStep] | None = None
            if is_whole:
                steps = await self._context.waiting_steps(run) if stands.needs_flow else {}
            facts = await self._store.read(lambda session: read_facts(session, stands, viewer, steps))
            if not has_plan or not is_whole or facts.is_delta:
                return facts  # a team's rows are all read for its plan, which neither of the other two shows
            return replace(facts, team=await self._context.teams.find(run))

    async def _viewer(self, stands: Standing, caller: Caller) -> Viewer:
        waits_for_person = stands.waits.approvals or stands.waits.lost_calls
        return replace(
            await self._as_server(stands),
            decides=self._who_decides(stands, caller),
            caller=caller,
            page=self._context.page_link(stands.run.id, caller) if waits_for_person else None,
            may_move=not caller.sees_all and (caller.is_person or self._factory.has_folder(stands.run)),
            is_read_only=self._settings.read_only,
            commands=self._context.command_line if caller.is_local else None,
        )

    async def _as_server(self, stands: Standing) -> Viewer:
        """Return what this server knows of a run, whoever asks it."""
        run, missing = stands.run, tuple[str, ...]()
        here = self._context.look_here(run)
        is_driven = here.is_moving or stands.owner.lives
        is_overdue = run.resume_at is not None and queries.is_due(run.resume_at, self._clock())
        if run.outcome is None and (run.owner is not None or is_overdue) and not is_driven:
            is_driven, missing = await self._find_driver(run)
        stopped = None if here.is_moving else stopped_server_error(run, stands.owner)
        changed = None if self._context.is_command else find_changed_file(self._settings)
        return Viewer(
            is_driven,
            here.error or stopped,
            () if is_driven else missing,
            at=self._clock(),
            backing_off=here.backing_off,
            changed_file=None if changed is None else changed.name,
        )

    async def _find_driver(self, run: RunRow) -> tuple[bool, tuple[str, ...]]:
        """Return whether a living server takes this run over, which none has: this one at its next look at the store,
        or another; and where none does, all that one of them lacks."""
        own = await self._factory.missing_requirements(run, by_hand=self._context.is_command)
        if self._context.watcher.takes_runs and not own:
            return True, ()
        owners, number = self._store.owners, self._store.owner_number
        elsewhere = await self._store.read(lambda session: missing_elsewhere(session, owners, run, number))
        if not all(elsewhere):
            return True, ()
        counts_here = not elsewhere or (self._context.drives and not self._context.is_command)
        if counts_here and not own:
            return False, ()  # it goes on here, once a tool is called or a person resumes it
        missing = (*(own if counts_here else ()), *chain.from_iterable(elsewhere))
        return False, tuple(dict.fromkeys(missing))

    def _who_decides(self, stands: Standing, caller: Caller) -> Decides:
        """Return who decides about approvals.

        Calls of unknown outcome go by the same rights; a test holds the two equal. Where nobody answered a dialog in
        this session, a person decides elsewhere.
        """
        if caller.decides and self._context.may_decide("approval", "argument"):
            return "caller"
        shows_dialogs = caller.elicits and self._context.may_decide("approval", "dialog")
        return "client" if shows_dialogs and not self._ignores_all_dialogs(stands, caller) else "person"

    def _ignores_all_dialogs(self, stands: Standing, caller: Caller) -> bool:
        """Whether every dialog that could be shown to this session was shown there, and nobody answered."""
        ignored = self._context.client_states.state_of(caller.session).ignored_dialogs
        run, waiting = stands.run, stands.waits
        dialogs = [(run.n, key, row.digest) for key, row in waiting.approvals.items()]
        dialogs += [
            (run.n, path + settlements.KEY_SUFFIX, settlements.settlement_digest(run, path, row))
            for path, row in waiting.lost_calls.items()
        ]
        return bool(dialogs) and all(dialog in ignored for dialog in dialogs)
