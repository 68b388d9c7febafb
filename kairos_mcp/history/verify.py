"""Verify a run that was exported to a file, on any machine and without a store, by replaying it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

from pydantic_core import to_json

from kairos_mcp.core.errors import BadArguments, KairosError, Stale, StoreCorrupt
from kairos_mcp.core.messages import ToolSpec
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.execution.flow_view import FlowPolicy, FlowView
from kairos_mcp.history.flow_check import find_other_judgement
from kairos_mcp.history.format import ExportedHistory, ExportedStep, read_lines
from kairos_mcp.history.replay_check import RecordedEntry, Recording, ReplayReport, replay
from kairos_mcp.specs.kinds import KINDS
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.specs.load_spec import load_spec
from kairos_mcp.specs.opening_rows import opening_rows
from kairos_mcp.store.queries import StepRow
from kairos_mcp.store.rows import decode, encode, encode_answer
from kairos_mcp.views.transcript import list_entries


def verify(lines: Iterable[bytes]) -> ReplayReport:
    """Rebuild the run of a file, and compare every step with the record.

    Raises BadArguments for a file that is damaged or none of ours, Stale for a run of another version of its flow.
    """
    history = read_lines(lines)
    _check_version(history)
    try:
        loaded = load_spec(to_json(history.run.spec).decode(), lambda content_hash: history.texts.get(content_hash, ""))
        outcome = None if history.outcome is None else encode(decode(Outcome, to_json(history.outcome).decode()))
    except StoreCorrupt as error:
        raise _incomplete_file(history) from error
    except KairosError as error:
        raise BadArguments(f"The file's spec can't be used: {error.message}", "Export the run again.") from error
    _check_messages(history, loaded)
    entries = [
        RecordedEntry(
            step.path,
            step.kind,
            bytes.fromhex(step.digest),
            history.answers[step.path].answer if step.path in history.answers else None,
            None if step.call is None else step.call.at(step.path),
            is_redacted=step.path in history.redacted.paths,
        )
        for step in history.steps
    ]
    masked = bool(history.redacted.texts) or "run" in history.redacted.beside
    report = replay(Recording(history.run.id, loaded, entries, outcome, is_redacted=masked))
    if not report.identical or masked or history.redacted.paths:
        return report
    judged = [(step.path, to_json(step.judged).decode()) for step in history.steps if step.judged is not None]
    return replace(report, difference=find_other_judgement(partial(_view_of, history, loaded), judged))


def _view_of(history: ExportedHistory, loaded: LoadedSpec) -> FlowView:
    """Make the view of the run's calls from the file."""

    def find_spec(name: str) -> ToolSpec | None:
        return loaded.offered_tools.find(name) or loaded.searchable_tools.find(name)

    def read_steps(last: int, unanswered: Collection[int]) -> Sequence[StepRow]:
        steps = enumerate(history.steps, 1)
        return [_step_row(n, step, history) for n, step in steps if n > last or n in unanswered]

    return FlowView(
        FlowPolicy("ask"),
        find_spec,
        lambda: opening_rows(loaded.spec, lambda content_hash: history.texts.get(content_hash, "")),
        read_steps,
    )


def _step_row(n: int, step: ExportedStep, history: ExportedHistory) -> StepRow:
    """Return a step of the file as a row of the store, as far as a view needs it."""
    answer = history.answers.get(step.path)
    body, at = (None, None) if answer is None else (encode_answer(answer.answer), answer.at)
    call = None if step.call is None else encode(step.call)
    what = n, step.path, step.kind, bytes.fromhex(step.digest), step.at
    return StepRow(*what, None, None, body, at, None, 0, None, None, None, call, None, further_attempts=0, seq=0)


def _check_version(history: ExportedHistory) -> None:
    run, known = history.run, KINDS.get(history.run.flow)
    if known is None or known.specs.version != run.version:
        raise Stale(
            f"The run is of version {run.version} of the flow {run.flow}; this program has "
            f"{'none' if known is None else f'version {known.specs.version}'}.",
            f'Where its store is, planner_run continues="{run.id}" goes on from it.',
            run_id=run.id,
        )


def _check_messages(history: ExportedHistory, loaded: LoadedSpec) -> None:
    """Check the file's conversation, which is there for readers: it has to be the one that its steps give."""
    if loaded.planner_input is None or history.redacted.texts or history.redacted.paths or history.redacted.beside:
        return
    answers = {path: each.answer for path, each in history.answers.items()}
    kinds = {step.path: step.kind for step in history.steps}
    expected: list[tuple[str | None, str]] = [(None, loaded.planner_input.system)]
    expected += [(each.path, each.message.content) for each in list_entries(loaded.planner_input, answers, kinds)]
    if [(message.path, message.content) for message in history.messages] != expected:
        raise BadArguments("The file's messages are not those that its steps tell.", "Export the run again.")


def _incomplete_file(history: ExportedHistory) -> BadArguments:
    missing = [
        value
        for name, value in history.run.spec.items()
        if name.endswith("_text") and isinstance(value, str) and value not in history.texts
    ]
    what = f"it lacks the text {missing[0][:12]}" if missing else "its spec or outcome is not one of ours"
    return BadArguments(f"The file does not hold a whole run: {what}.", "Export the run again.")
