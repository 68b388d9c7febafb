"""Look at runs for a client's log, and say what has happened since the last look: from rows, whatever process wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import field, replace

from kairos_mcp.app.context import Operations
from kairos_mcp.app.runs import LISTED_RUNS
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.execution.accounting import day_to_charge
from kairos_mcp.store import accounts, queries, run_changes
from kairos_mcp.store.rows import Session
from kairos_mcp.views.run_log import LogEntry, RunSight, budget_entry, list_nearly_used, log_entries, see_run

MAX_OPEN = 1_000  # runs of one principal that a log follows


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """A snapshot for the log: runs by id, and each day's most-used limits."""

    runs: dict[str, RunSight] = field(default_factory=dict)
    day: str = ""
    nearly_used: dict[str, tuple[float, float]] = field(default_factory=dict)


class RunLog(Operations):
    """Look at runs for a client's log."""

    async def see(self, run_ids: Collection[str], caller: Caller) -> LogSnapshot:
        """Look at these runs of the caller's and at their day. One that is not there is not seen."""
        if not self._store.exists:
            return LogSnapshot()
        return await self._store.read(lambda session: self._see(session, run_ids, caller.principal))

    async def see_older(self, at: int, caller: Caller) -> LogSnapshot:
        """Look as `see_all` does, at runs alone that had begun before a time (milliseconds since 1970)."""
        seen = await self.see_all(LogSnapshot(), caller)
        older = {run_id: sight for run_id, sight in seen.runs.items() if sight.run.created_at < at}
        return replace(seen, runs=older)

    async def see_all(self, seen: LogSnapshot, caller: Caller) -> LogSnapshot:
        """Look at what is open or new in the workspaces at hand, and at what was open when it was `seen`: only at those
        that have changed since. What has ended and is no longer new is forgotten."""
        if not self._store.exists:
            return LogSnapshot()
        workspaces = self._context.listed_workspaces

        def look(session: Session) -> LogSnapshot:
            listed = run_changes.open_and_newest_runs(session, caller.principal, workspaces, MAX_OPEN, LISTED_RUNS)
            seqs = {run.run_id: run.seq for run in listed}
            known = {run_id: sight.run.seq for run_id, sight in seen.runs.items()}
            changed = [run_id for run_id, seq in seqs.items() if known.get(run_id) != seq]
            gone = [run_id for run_id, sight in seen.runs.items() if run_id not in seqs and sight.outcome is None]
            found = self._see(session, [*changed, *gone], caller.principal)
            kept = {run_id: sight for run_id, sight in seen.runs.items() if run_id in seqs}
            return replace(found, runs=kept | found.runs)

        return await self._store.read(look)

    def entries(self, before: LogSnapshot, now: LogSnapshot, caller: Caller) -> list[LogEntry]:
        """What happened between two looks, with commands as this caller can use them. A run that `before` has not seen
        had not begun."""
        return [self._complete(entry, caller) for entry in self._differences(before, now, caller)]

    def _differences(self, before: LogSnapshot, now: LogSnapshot, caller: Caller) -> Iterable[LogEntry]:
        for run_id, sight in now.runs.items():
            if sight is not (known := before.runs.get(run_id)):
                yield from log_entries(known, sight, caller)
        told = before.nearly_used if before.day == now.day else {}
        for unit, (used, limit) in now.nearly_used.items():
            if unit not in told:
                yield budget_entry(unit, used, limit, f"On {now.day} all runs together have", {"day": now.day})

    def _complete(self, entry: LogEntry, caller: Caller) -> LogEntry:
        """Return the entry with its command ready to paste, which only the owner of the state folder gets."""
        if "command" not in entry.data:
            return entry
        if not caller.is_local:
            return entry._replace(data={name: value for name, value in entry.data.items() if name != "command"})
        return entry._replace(
            data={**entry.data, "command": self._context.command_line.complete(entry.data["command"])}
        )

    def _see(self, session: Session, run_ids: Iterable[str], principal: str) -> LogSnapshot:
        runs = queries.runs_by_ids(session, list(run_ids), principal)
        day = day_to_charge(session, principal, self._clock(), self._settings.time_zone).day.name
        used = accounts.find_day_account(session, principal, day)
        return LogSnapshot(
            {run.id: see_run(session, run, self._context.read_waits(session, run)) for run in runs},
            day,
            {} if used is None else list_nearly_used(used),
        )
