"""Control runs: requests to whoever owns one (pause, cancel, extend …), and which server goes on with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

from kairos_mcp.app.agents import choose_request_model
from kairos_mcp.app.context import Operations
from kairos_mcp.app.served_runs import differing_servers
from kairos_mcp.app.store_watcher import IDLE_POLL_S, POLL_S
from kairos_mcp.budget.notes import clock_behind_reason
from kairos_mcp.core.calendar import day_at
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, KairosError, NotFound
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import AUTO, CALLER, PAID_ROUTES, ROUTES, RouteName, choose_paid_route, choose_route
from kairos_mcp.core.run_spec import PlannerRequest, Spec, TeamRequest
from kairos_mcp.specs import build
from kairos_mcp.store import accounts, approvals, ownership, queries, serving
from kairos_mcp.store.accounts import read_account
from kairos_mcp.store.inbox import ControlName, submit_request
from kairos_mcp.store.ownership import ServedRuns
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session, decode, encode
from kairos_mcp.store.serving import ServingServer

CONTROL_POLL_S = 1.0
CONTROL_TIMEOUT_S = 5.0  # how long a control request waits until it is carried out
PICK_UP_TIMEOUT_S = 3 * IDLE_POLL_S  # how long a command waits for a server to go on with what it wrote
PAUSED_BY_REQUEST = "somebody asked for it"  # why a run is paused, as it is shown


@dataclass(frozen=True, slots=True)
class ModelChange:
    """The route of an open run, as it was asked for and as it is, and what the model that is configured now means for
    it.

    `action`: `none`; `again`: ask its provider again at once; `reroute`: it can go on by the `route` that there is now;
    `another`: only a new run can.
    """

    run_route: str
    asked_route: str
    action: Literal["none", "again", "reroute", "another"]
    route: str | None = None


class Control(Operations):
    """Pause, cancel, extend, reroute and resume runs, and see to it that a server goes on with them."""

    async def request(
        self, run_id: str, kind: ControlName, caller: Caller, body: str = "", *, drive: bool = True
    ) -> None:
        """Submit a control request that needs nothing else: its record in `store/inbox.py` says what it does.

        `drive=False`: the run is left to whoever goes on with it. Raises UnknownRun, PathDenied, Stale.
        """
        run = await self._context.find_run_to_move(run_id, caller)
        await self._submit(run, kind, caller, lambda _session: (body, None), drive=drive)

    async def pause(self, run_id: str, caller: Caller, *, drive: bool = True) -> None:
        """Pause a run, wherever its folder is, once what is under way has ended. Raises UnknownRun, Stale."""
        run = await self._context.find_own_run(run_id, caller)
        await self._submit(run, "pause", caller, lambda _session: (PAUSED_BY_REQUEST, None), drive=drive)

    async def cancel(self, run_id: str, caller: Caller) -> None:
        """Cancel a run, wherever its folder is; one that was cancelled before stays so. Raises UnknownRun, Stale."""
        run = await self._context.find_own_run(run_id, caller)
        with queries.name_run_in_errors(run):
            if run.outcome is not None and decode(Outcome, run.outcome).status == "cancelled":
                return
        await self._submit(run, "cancel", caller, lambda _session: ("", None), ends=True)

    async def extend(self, run_id: str, more: Limits, caller: Caller, *, drive: bool = True) -> None:
        """Add to the limits of a run, within what the configuration allows. Raises UnknownRun, PathDenied, Stale,
        BadArguments."""
        run = await self._context.find_run_to_move(run_id, caller)
        # A command does not take a paused run over for this: it would go on only as long as the command.
        drive = drive and not (self._context.is_command and await self._is_paused(run))
        await self._submit(run, "extend", caller, lambda session: self._extend_caps(run, more, session), drive=drive)

    async def reroute(self, run_id: str, route: str, caller: Caller, *, drive: bool = True) -> None:
        """Change where a run's completions come from. Raises UnknownRun, PathDenied, Stale, BadArguments."""
        run = await self._context.find_run_to_move(run_id, caller)
        with queries.name_run_in_errors(run):
            chosen, note = await self._choose_route(run, route, caller)
        # Somebody who sends a run to this route wants it to be tried, however silent the client was before.
        self._context.client_states.state_of(caller.session).is_silent = False
        moved = run._replace(route=chosen)  # a process that has the new route may drive
        await self._submit(moved, "reroute", caller, lambda _session: (chosen, note), drive=drive)

    async def _submit(
        self,
        run: RunRow,
        kind: ControlName,
        caller: Caller,
        make_body: Callable[[Session], tuple[str, str | None]],
        *,
        drive: bool = True,
        ends: bool = False,
    ) -> None:
        """Submit a control request to the run's owner, or carry it out if nobody owns the run.

        `make_body`: returns its body, and a note where it is carried out otherwise than requested. `ends`: it stops
        what is under way, and ends the run here even where its state can't be rebuilt.
        """
        await self._context.register_use()
        at, dead = self._clock(), (await self._context.check_server_runs(run)).dead
        drives_here = ends or (
            drive and not await self._context.is_served_elsewhere(run) and await self._context.can_drive(run)
        )
        owner = await self._store.register_owner(at) if drives_here else ownership.ANY_SERVER

        def submit(session: Session) -> int | None:
            body, reason = make_body(session)
            return submit_request(session, run, kind, body, caller.actor, owner, at, reason=reason, dead=dead)

        with queries.name_run_in_errors(run):
            fence = await self._store.submit(submit, of_run=run.n)
        try:
            await self._pool.continue_run(run, owner, fence, interrupt=ends)
        except KairosError:  # its state can't be rebuilt from its rows, so it is cancelled by them alone
            if not ends or fence is None:
                raise
            await self._pool.force_cancel(run, fence)
        until_s = time.monotonic() + CONTROL_TIMEOUT_S
        while self._pool.is_moving(run.n):
            if not await self._store.read(lambda session: queries.pending_requests(session, run.n)):
                return
            if time.monotonic() >= until_s:
                return  # the request is in the rows; the run's worker is busy and reads it next
            await self._pool.change_signal.wait([run.id], CONTROL_POLL_S)

    async def _choose_route(self, run: RunRow, requested: str, caller: Caller) -> tuple[RouteName, str | None]:
        """Return the route that the run gets, and a note about it. Raises BadArguments."""
        account = await self._store.read(lambda session: read_account(session, run.account))
        cap = account.caps.nano_usd
        has_own_cap = cap is not None and cap != self._settings.limits.nano_usd
        available = await self._factory.available_routes(run, samples=caller.samples)
        asked = ROUTES.get(requested)
        refusal = None if asked is None or asked.name in available else asked.kept_refusal
        if refusal is not None:
            raise BadArguments(*refusal, run_id=run.id)
        chosen, notes = (choose_paid_route if has_own_cap else choose_route)(requested, available)
        if has_own_cap or (cap is not None and chosen in PAID_ROUTES):
            self._refuse_unpriced(run, chosen)
        if chosen in PAID_ROUTES and self._settings.limits_dollars_of_days:
            self._refuse_unpriced(run, chosen, "day.usd")
        return chosen, notes[0] if notes else None

    def _extend_caps(self, run: RunRow, more: Limits, session: Session) -> tuple[str, str | None]:
        """Return the caps after adding `more`, within what the configuration allows, and a note about what was cut.

        Extensions that the run's owner has not read yet count too, so that of two at once none is lost. Raises
        BadArguments.
        """
        if more.nano_usd is not None:
            self._refuse_unpriced(run, run.route)
        current = read_account(session, run.account).caps._asdict()
        for earlier in queries.pending_requests(session, run.n):
            if earlier.kind == "extend":
                requested = decode(Limits, earlier.body)._asdict()
                current |= {unit: max(cap, current[unit]) for unit, cap in requested.items() if cap}
        caps = {
            unit: current[unit] + added for unit, added in more._asdict().items() if added and current[unit] is not None
        }
        if not caps:
            raise BadArguments("None of these limits is set on this run.", "run_status shows them under `remaining`.")
        allowed = self._settings.limits._asdict()
        within = {unit: cap if allowed[unit] is None else min(cap, allowed[unit]) for unit, cap in caps.items()}
        cut = [f"limits.{unit} is {within[unit]}, not {cap}" for unit, cap in caps.items() if within[unit] < cap]
        note = f"Extended to what the configuration allows: {', '.join(cut)}." if cut else None
        return encode(Limits(**within)), note

    def _refuse_unpriced(self, run: RunRow, route: str, limit: str = "limits.usd") -> None:
        model = decode(Spec, run.spec).model or self._settings.model
        build.refuse_unpriced(route, model, self._settings, limit)

    async def retry_stalled(self, run_ids: Sequence[str], caller: Caller) -> None:
        """Go on with those of these runs that an error stopped here; the next report shows the result."""
        for run_id in run_ids:
            self._pool.retry_run((await self._context.find_own_run(run_id, caller)).n)

    async def resume(self, run_id: str, caller: Caller, *, drive: bool = True) -> None:
        """Resume a run as a person may: one that was paused, or whose server has ended.

        A run that waits for an answer, moves or has ended stays as it is. `drive=False`: the request is left to whoever
        goes on with it. Raises UnknownRun, Busy.
        """
        run = await self._context.find_own_run(run_id, caller)
        await self._context.check_server_runs(run)
        if run.outcome is None and await self._is_paused(run):
            await self.request(run_id, "resume", caller, drive=drive)

    async def _is_paused(self, run: RunRow) -> bool:
        """Whether the run was paused, by a person, by an exhausted account, or by its flow; or a call of it is held
        that nobody decided about in time."""
        if run.paused is not None or run.resume_at is not None:
            return True
        with queries.name_run_in_errors(run):
            waits = await self._store.read(lambda session: approvals.read_waiting_items(session, run.n))
        return bool(waits.lapsed) or any(row.kind == "pause" for row in waits.steps.values())

    async def drive(self, run_id: str) -> None:
        """Make sure that somebody drives a run. Raises UnknownRun.

        A living server that has its folder goes first: it has a moment to take the run, and acts by its own settings.
        Else this command does, if it has what the run needs.
        """
        run = await self._store.read(lambda session: queries.run_by_id(session, run_id))
        if run.outcome is not None or self._pool.is_moving(run.n):
            return
        if (
            await self._context.is_served_elsewhere(run) or not await self._context.can_drive(run)
        ) and await self._is_picked_up(run):
            return
        if await self._context.can_drive(run):
            owners, mine = self._store.owners, self._store.owner_number
            dead = await self._store.read(lambda session: ownership.dead_owners(session, owners, mine))
            await self._context.watcher.take_over(run, dead)

    async def describe_driver(self, run_id: str) -> str:
        """Say who goes on with a run for which something was stored just now. Raises UnknownRun."""
        run = await self._store.read(lambda session: queries.run_by_id(session, run_id))
        if run.outcome is not None:
            return "The run has ended."
        if self._pool.is_moving(run.n):
            return "It goes on here."
        if (await self._store.read(lambda session: self._context.read_owner(session, run))).lives:
            return "The server that has the run goes on with it."
        if await self._context.is_served_elsewhere(run):
            return "A server of its folder goes on with it."
        missing = await self._factory.missing_requirements(run, by_hand=self._context.is_command)
        if missing:
            return f"Nobody goes on with it yet: that takes {' and '.join(missing)}."
        return "It goes on here."

    async def _is_picked_up(self, run: RunRow) -> bool:
        """Wait until a server has taken the run over, or has ended it; False after PICK_UP_TIMEOUT_S."""

        def is_left_behind(session: Session) -> bool:
            now = queries.run_by_number(session, run.n)
            return now.outcome is None and bool(self._context.read_owner(session, now).dead)

        until_s = time.monotonic() + PICK_UP_TIMEOUT_S
        while await self._store.read(is_left_behind):
            if time.monotonic() >= until_s:
                return False
            await self._pool.change_signal.wait([run.id], POLL_S)
        return True

    async def compare_model(self, run_id: str, request: PlannerRequest | TeamRequest, caller: Caller) -> ModelChange:
        """Compare the model that an open run of this request waits for with the one that a new run would get here.

        Only where `auto` chose for both: what was asked for holds. Raises UnknownRun, UnknownAgent, BadArguments,
        ConfigError.
        """
        run = await self._context.find_own_run(run_id, caller)
        with queries.name_run_in_errors(run):
            spec = (await self._factory.specs.load(run)).spec
        now = await choose_request_model(self._factory, run.workspace, request)
        is_paid = now.route in PAID_ROUTES
        waits_for_caller = run.route == spec.route == CALLER.name  # unless somebody sent it to this route since
        is_out_of_reach = run.route in PAID_ROUTES and run.resume_at is not None
        if (spec.asked_route, now.asked) != (AUTO, AUTO) or not (waits_for_caller or is_out_of_reach):
            return ModelChange(run.route, spec.asked_route, "none")
        if now.route == CALLER.name or (is_paid and now.route == run.route and now.model == spec.model):
            return ModelChange(run.route, spec.asked_route, "again" if is_out_of_reach else "none")
        # A run keeps its script and its model; one that has neither can be sent to a provider.
        goes_on = waits_for_caller and is_paid
        return ModelChange(run.route, spec.asked_route, "reroute" if goes_on else "another", now.route)

    async def trust_clock(self, caller: Caller) -> list[str]:
        """Undo days after today that were opened while the clock was ahead, and return their names.

        Runs that were paused for them go on.
        """
        at, principal = self._clock(), caller.principal
        today = day_at(at, self._settings.time_zone).name

        def correct(session: Session) -> list[str]:
            gone = accounts.mark_days_mistaken(session, principal, today, at)
            wake = "update run set resume_at = ? where principal = ? and paused = ? and outcome is null"
            session.rows(wake, (at, principal, clock_behind_reason(principal)))
            return gone

        return await self._store.submit(correct)

    async def release(self, owner: int, caller: Caller) -> int:
        """Take all unfinished runs from a server, for the next one, and return how many.

        Raises NotFound, ApprovalRequired.
        """
        self._context.check_may_decide("release", caller, f"kairos-mcp status --release {owner}")
        living = await self._store.read(lambda session: ownership.list_living(session, self._store.owners))
        if all(server.number != owner for server in living):
            raise NotFound(
                f"No running server has the number {owner}.", "`kairos-mcp status` lists the running servers."
            )
        return await self._store.submit(lambda session: ownership.release_runs(session, owner))

    async def differing_servers(self) -> list[tuple[ServingServer, Sequence[str]]]:
        """Return the living servers whose settings are not those that are read now, with what differs for them."""
        return await self._store.read(lambda session: differing_servers(session, self._store.owners, self._settings))

    async def find_server(self, run_id: str) -> tuple[ServedRuns | None, bool]:
        """Return the settings of the server that goes on with this run, and whether it lives. Raises UnknownRun."""

        def find(session: Session) -> tuple[ServedRuns | None, bool]:
            run = queries.run_by_id(session, run_id)
            return serving.find_serving(session, self._store.owners, run.workspace, run.place)

        return await self._store.read(find)
