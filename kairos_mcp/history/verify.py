"""Verify a run that was exported to a file, on any machine and without a store, by replaying it."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic_core import to_json

from kairos_mcp.core.errors import BadArguments, KairosError, Stale, StoreCorrupt
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.history.format import ExportedHistory, read_lines
from kairos_mcp.history.replay_check import RecordedEntry, Recording, ReplayReport, replay
from kairos_mcp.specs.kinds import KINDS, load_spec
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.store.rows import decode, encode
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
            None if step.asked is None else step.asked.at(step.path),
            is_redacted=step.path in history.redacted.paths,
        )
        for step in history.steps
    ]
    masked = bool(history.redacted.texts) or "run" in history.redacted.beside
    return replay(Recording(history.run.id, loaded, entries, outcome, is_redacted=masked))


def _check_version(history: ExportedHistory) -> None:
    run, known = history.run, KINDS.get(history.run.flow)
    if known is None or known.version != run.version:
        raise Stale(
            f"The run is of version {run.version} of the flow {run.flow}; this program has "
            f"{'none' if known is None else f'version {known.version}'}.",
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
