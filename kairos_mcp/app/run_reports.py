"""Report how runs stand, to a caller, in this server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from kairos_mcp.app.context import Operations, Standing, read_run, stopped_server_error
from kairos_mcp.core.decision_rights import Caller, may_decide
from kairos_mcp.core.errors import Stale, StoreCorrupt, Unreadable
from kairos_mcp.settings.settings import find_changed_file
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.store import queries, settlements
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session, read_each
from kairos_mcp.views.next_action import Decides
from kairos_mcp.views.run_report import RunReport, ServerView, make_report, make_unreadable_report, needs_flow
from kairos_mcp.views.waiting import OpenStep

A = TypeVar("A")
B = TypeVar("B")


class RunReports(Operations):
    """Report how runs stand."""

    async def report(
        self,
        run_id: str,
        caller: Caller,
        *,
        full: bool = True,
        attached: bool = False,
        answered: Collection[str] = (),
    ) -> RunReport:
        """Return the report of a run as it is now. Without `full`, waiting items are keys and kinds alone.

        `answered`: the keys that the caller's call answered, as `Answers.keys_unmasked` has them. Raises UnknownRun.
        """
        run = await self._context.find_run(run_id, caller)
        return await self.report_row(run, caller, full=full, attached=attached, answered=answered)

    async def report_row(
        self, run: RunRow, caller: Caller, *, full: bool = True, attached: bool = False, answered: Collection[str] = ()
    ) -> RunReport:
        """Return the report of a run whose row this caller has just read."""
        found = await self._read_report(run, caller, full=full, attached=attached, answered=answered)
        return self._complete_commands(found, caller)

    async def list_reports(self, run_ids: Sequence[str], caller: Caller) -> list[RunReport]:
        """Return the reports of several runs, in which waiting items are keys and kinds alone. Raises UnknownRun."""

        def read_standing(session: Session, run_id: str) -> Standing:
            return self._context.read_standing(session, read_run(session, run_id, caller))

        stand = await self._read_each(read_standing, run_ids)
        views = [await self._caller_view(each, caller) for each in stand]

        def try_to_report(session: Session, of: tuple[Standing, ServerView]) -> RunReport | None:
            stands, view = of
            try:
                return None if stands.unreadable else make_report(session, stands.run, stands.waits, view, None)
            except StoreCorrupt:
                return None

        found = await self._read_each(try_to_report, list(zip(stand, views, strict=True)))
        return [
            self._complete_commands(report, caller)
            if report is not None
            else await self.report_row(each.run, caller, full=False)
            for each, report in zip(stand, found, strict=True)
        ]

    async def _read_each(self, read: Callable[[Session, A], B], of: Sequence[A]) -> list[B]:
        """Return what a function reads of each of these."""
        return await self._store.read(lambda session: read_each(session, read, of))

    def _complete_commands(self, found: RunReport, caller: Caller) -> RunReport:
        """Make the commands in a report ready to paste, if the caller is the person who owns the state folder."""
        if not caller.is_local:
            return found
        commands = self._context.command_line
        items = [
            {**item, "command": commands.complete(item["command"])} if "command" in item else item
            for item in found.waiting
        ]
        next_call = None if found.next is None else {**found.next, "why": commands.complete_all(found.next["why"])}
        return replace(
            found,
            record=commands.complete_all(found.record) if found.status == "paused" and found.record else found.record,
            waiting=tuple(items),
            degraded=tuple(map(commands.complete_all, found.degraded)),
            next=next_call,
        )

    async def _read_report(
        self, run: RunRow, caller: Caller, *, full: bool, attached: bool, answered: Collection[str]
    ) -> RunReport:
        stands = await self._store.read(lambda session: self._context.read_standing(session, run))
        view = replace(await self._caller_view(stands, caller, attached=attached), answered=answered)
        try:
            return await self._make_report(stands, view, full=full)
        except (Stale, StoreCorrupt) as error:  # it can't go on; what its rows say is shown all the same
            view = replace(view, trouble=error)
        try:
            return await self._make_report(stands, view, full=False)
        except Unreadable:
            return await self._store.read(lambda session: make_unreadable_report(session, run, view))

    async def _make_report(self, stands: Standing, view: ServerView, *, full: bool) -> RunReport:
        run, waits = stands.run, stands.waits
        with queries.name_run_in_errors(run):
            if stands.unreadable is not None:
                raise stands.unreadable
            steps: Mapping[str, OpenStep] | None = None
            if full:
                steps = await self._context.waiting_steps(run) if needs_flow(run, waits) else {}
            report = await self._store.read(lambda session: make_report(session, run, waits, view, steps))
            if not kind_of(run.flow).has_plan or not full or report.is_delta:
                return report  # a team's rows are all read for its plan, which neither of the other two shows
            if (team := await self._context.teams.find(run)) is None:
                return report
            return await self._store.read(lambda session: make_report(session, run, waits, view, steps, team))

    async def _caller_view(self, stands: Standing, caller: Caller, *, attached: bool = False) -> ServerView:
        view = await self._server_view(stands, attached)
        waits_for_person = stands.waits.approvals or stands.waits.lost_calls
        page = self._context.page_link(stands.run.id, caller) if waits_for_person else None
        return replace(view, decides=self._who_decides(stands, caller), caller=caller, page=page)

    async def _server_view(self, stands: Standing, attached: bool = False) -> ServerView:
        run = stands.run
        is_moving = self._pool.is_moving(run.n)
        owner_lives = is_moving or stands.owner.lives
        is_overdue = run.resume_at is not None and queries.is_due(run.resume_at, self._clock())
        needs_server = run.outcome is None and (run.owner is not None or is_overdue) and not owner_lives
        missing = (
            await self._factory.missing_requirements(run, by_hand=self._context.is_command) if needs_server else ()
        )
        stopped = None if is_moving else stopped_server_error(run, stands.owner)
        trouble, backing_off = (
            self._pool.stall_error(run.n) or stopped,
            tuple(self._pool.failed_attempts(run.n)),
        )
        changed = None if self._context.is_command else find_changed_file(self._settings)
        return ServerView(
            owner_lives,
            trouble,
            missing,
            attached,
            at=self._clock(),
            backing_off=backing_off,
            changed_file=None if changed is None else changed.name,
        )

    def _who_decides(self, stands: Standing, caller: Caller) -> Decides:
        """Return who decides about approvals.

        Calls of unknown outcome go by the same rights; a test holds the two equal. Where nobody answered a dialog in
        this session, a person decides elsewhere.
        """
        if caller.decides and may_decide("approval", "argument", self._settings.approvals):
            return "caller"
        shows_dialogs = caller.elicits and may_decide("approval", "dialog", self._settings.approvals)
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
