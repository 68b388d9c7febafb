"""The record of a run: a page of its trace, its answer, its changes of files, its replay from rows, its export."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kairos_mcp.app.run_steps import RunSteps
from kairos_mcp.app.spending import Spending
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import NotFound, ReplayDiffers, replay_mismatch
from kairos_mcp.core.messages import JsonObject, Message
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.steps import RecordedStep
from kairos_mcp.execution.flow_view import JudgedCall
from kairos_mcp.flows.planner_input import PlannerInput
from kairos_mcp.history import replay_check
from kairos_mcp.history.flow_check import find_other_judgement
from kairos_mcp.history.replay_check import RecordedEntry, Recording, ReplayReport
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.store import queries, report_queries
from kairos_mcp.store.queries import RunRow, StepRow
from kairos_mcp.store.rows import Session, decode
from kairos_mcp.views.file_diffs import format_file_diffs
from kairos_mcp.views.trace import FoundTrace, TraceInput, TraceQuery, cut_page, find_trace
from kairos_mcp.views.transcript import phase_transcripts


class Records(RunSteps, Spending):
    """Show, replay and export what a run's rows hold; show what was spent."""

    async def trace(self, run_id: str, query: TraceQuery, caller: Caller) -> JsonObject:
        """Return a page of the run's record. Raises UnknownRun, BadArguments, NotFound; Stale where its conversations
        are requested and its flow has changed since."""
        run = await self._context.find_run(run_id, caller)
        with queries.name_run_in_errors(run):
            loaded = await self._factory.specs.load(run)
            so_far = run.outcome is None and query.ref == "output"
            output = (await self._runs.report(run_id, caller)).output if so_far else None
            team = await self._context.teams.find(run) if query.view == "plan" else None

            def read(session: Session) -> FoundTrace:
                record = queries.read_record(session, run.n)
                trace_input = TraceInput(
                    run,
                    record,
                    loaded.planner_input,
                    lambda ref: self._store.read_full_text(session, run.n, ref),
                    lambda: self._transcripts(run, loaded, record),
                    output,
                    report_queries.list_decisions(session, run.n),
                    team,
                )
                return find_trace(trace_input, query)

            found = await self._store.read(read)
            # A search may take 200 ms.
            return cut_page(found, query) if query.grep is None else await asyncio.to_thread(cut_page, found, query)

    def _transcripts(
        self, run: RunRow, loaded: LoadedSpec, record: Sequence[StepRow]
    ) -> Mapping[str, Sequence[Message]]:
        self._factory.check_version(run)
        try:
            return phase_transcripts(loaded, (RecordedStep(row.path, row.digest, row.answer) for row in record))
        except ReplayDiffers as mismatch:
            raise replay_mismatch(run.id, mismatch) from mismatch

    async def flow(self, run_id: str, caller: Caller) -> list[JudgedCall]:
        """Judge each call of a run that may take something along by the rules of information flow, whatever their mode
        is. Raises UnknownRun, Unreadable."""
        run = await self._context.find_run(run_id, caller)
        with queries.name_run_in_errors(run):
            loaded = await self._factory.specs.load(run)
            return await asyncio.to_thread(self._factory.make_flow_view(run, loaded).judge_record)

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

    async def replay(self, run_id: str, caller: Caller) -> ReplayReport:
        """Rebuild the run from its rows, and compare every step with the record.

        Raises UnknownRun; Stale for another version of its flow.
        """
        run = await self._context.find_run(run_id, caller)
        self._factory.check_version(run)
        self._factory.specs.forget()
        with queries.name_run_in_errors(run):
            loaded = await self._factory.specs.load(run)
            now, record = await self._store.read(
                lambda session: (queries.run_by_number(session, run.n), queries.read_record(session, run.n)),
                one_state=True,
            )
            entries = [RecordedEntry(row.path, row.kind, row.digest, row.answer, row.call) for row in record]
            report = replay_check.replay(Recording(run.id, loaded, entries, now.outcome))
            judged = [(row.path, row.judged_text) for row in record if row.judged_text is not None]
            if report.identical and judged:
                make_view = partial(self._factory.make_flow_view, run, loaded)
                found = await asyncio.to_thread(find_other_judgement, make_view, judged)
                report = replace(report, difference=found)
        return report

    async def export(self, run_id: str, caller: Caller) -> Iterator[bytes]:
        """Return the run as the lines of a file, which `history.verify` checks on any machine. Raises UnknownRun.

        They are read from one state of the store, as they are taken.
        """
        run = await self._context.find_run(run_id, caller)
        with queries.name_run_in_errors(run):
            planner_input = (await self._factory.specs.load(run)).planner_input
        return self._export_lines(run, planner_input)

    def _export_lines(self, run: RunRow, planner_input: PlannerInput | None) -> Iterator[bytes]:
        from kairos_mcp.history.export import export_lines
        from kairos_mcp.history.format import write_lines  # at first use: a server never exports

        # A session of its own, since the lines are written one by one, for as long as a file or a pipe takes them.
        with queries.name_run_in_errors(run), self._store.read_session() as session, session.one_state():
            current = queries.run_by_number(session, run.n)
            yield from write_lines(export_lines(session, current, planner_input, self._factory.redactor))
