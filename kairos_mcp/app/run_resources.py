"""What of runs is shown as resources: the newest in pages, the answer of one, what it changed in files."""

from __future__ import annotations

import json
from dataclasses import dataclass

from kairos_mcp.app.context import AppContext, Operations
from kairos_mcp.app.runs import Runs
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, NotFound
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.store import queries, run_changes
from kairos_mcp.store.rows import Session, decode
from kairos_mcp.views.file_diffs import format_file_diffs
from kairos_mcp.views.run_report import RunReport

LISTED_RUNS = 50
PAGE_RUNS = 25


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in a list of resources: its report in brief, and when it changed last (milliseconds since 1970)."""

    report: RunReport
    changed_at: int


@dataclass(frozen=True, slots=True)
class RunPage:
    """A page of the newest runs. `next_cursor`: where the next one begins, None after the last."""

    runs: tuple[ListedRun, ...]
    next_cursor: str | None


class RunResources(Operations):
    """Read what of runs is shown as resources."""

    def __init__(self, context: AppContext, runs: Runs) -> None:
        super().__init__(context)
        self._runs = runs

    async def list_page(self, cursor: str | None, caller: Caller, size: int = PAGE_RUNS) -> RunPage:
        """Return a page of the caller's newest LISTED_RUNS runs in the workspaces at hand. A cursor is the id of the
        last run of the page before. Raises BadArguments for one that is not."""
        workspaces = self._context.listed_workspaces
        newest = (
            await self._store.read(
                lambda session: run_changes.newest_runs(session, caller.principal, workspaces, LISTED_RUNS)
            )
            if self._store.exists
            else []
        )
        start = 0
        if cursor is not None:
            ids = [run.run_id for run in newest]
            if cursor not in ids:
                raise BadArguments("This cursor was not given for this list.", "List again without a cursor.")
            start = ids.index(cursor) + 1
        shown = newest[start : start + size]
        reports = await self._runs.list_reports([run.run_id for run in shown], caller)
        runs = [ListedRun(report, run.at) for report, run in zip(reports, shown, strict=True)]
        is_last = start + size >= len(newest)
        return RunPage(tuple(runs), None if is_last else shown[-1].run_id)

    async def answer(self, run_id: str, caller: Caller) -> str:
        """Return what a run came to. Raises UnknownRun; NotFound while it has not ended."""
        run = await self._context.find_run(run_id, caller)
        if run.outcome is None:
            raise NotFound(
                "The run has not ended, so there is no answer yet.", f"kairos://runs/{run_id} shows where it stands."
            )
        with queries.name_run_in_errors(run):
            outcome: Outcome = decode(Outcome, run.outcome)
        output = outcome.output
        parts = [outcome.text]
        if isinstance(output, str):
            parts += [output] if output != outcome.summary else []
        elif output is not None:
            parts.append(f"```json\n{json.dumps(output, ensure_ascii=False, indent=2)}\n```")
        return "\n\n".join(part for part in parts if part) or "The run ended without an answer."

    async def file_diffs(self, run_id: str, caller: Caller) -> str:
        """Return what a run's calls changed in files, as diffs. Raises UnknownRun."""
        run = await self._context.find_run(run_id, caller)

        def read(session: Session) -> str:
            record = queries.read_record(session, run.n)
            return format_file_diffs(record, lambda ref: self._store.read_full_text(session, run.n, ref))

        with queries.name_run_in_errors(run):
            return await self._store.read(read)
