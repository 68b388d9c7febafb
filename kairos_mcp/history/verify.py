"""Verifies a run that came in a file: on any machine, without a store, by building it again."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic_core import to_json

from kairos_mcp.core.errors import BadArguments, KairosError, Stale, StoreCorrupt
from kairos_mcp.core.outcome import Outcome
from kairos_mcp.history.format import ExportedHistory, read_lines
from kairos_mcp.history.replay_check import RecordedEntry, Recording, ReplayReport, replay
from kairos_mcp.specs.build import VERSIONS, LoadedSpec, load_spec
from kairos_mcp.store.codec import decode, encode
from kairos_mcp.views.transcript import list_entries


def verify(lines: Iterable[bytes]) -> ReplayReport:
    """Build the run of a file again and compare every step that was asked.

    Raises BadArguments for a file that is damaged or none of ours, Stale for a run of another version of its flow.
    """
    carried = read_lines(lines)
    _check_version(carried)
    try:
        thawed = load_spec(to_json(carried.run.spec).decode(), lambda content_hash: carried.texts.get(content_hash, ""))
        outcome = None if carried.outcome is None else encode(decode(Outcome, to_json(carried.outcome).decode()))
    except StoreCorrupt as error:
        raise _incomplete_file(carried) from error
    except KairosError as error:
        raise BadArguments(f"The file's spec can't be used: {error.message}", "Export the run again.") from error
    _check_messages(carried, thawed)
    entries = [
        RecordedEntry(
            mark.path,
            mark.kind,
            bytes.fromhex(mark.digest),
            carried.answers[mark.path].answer if mark.path in carried.answers else None,
            is_redacted=mark.path in carried.redacted.paths,
        )
        for mark in carried.steps
    ]
    masked = bool(carried.redacted.texts) or "run" in carried.redacted.beside
    return replay(Recording(carried.run.id, thawed, entries, outcome, is_redacted=masked))


def _check_version(carried: ExportedHistory) -> None:
    run, known = carried.run, VERSIONS.get(carried.run.flow)
    if known != run.version:
        raise Stale(
            f"The run is of version {run.version} of the flow {run.flow}; this program has "
            f"{'none' if known is None else f'version {known}'}.",
            f'Where its store is, planner_run continues="{run.id}" goes on from it.',
            run_id=run.id,
        )


def _check_messages(carried: ExportedHistory, thawed: LoadedSpec) -> None:
    """The conversation in a file is for readers; it has to be the one that its steps tell."""
    if thawed.planner_input is None or carried.redacted.texts or carried.redacted.paths or carried.redacted.beside:
        return
    answers = {path: each.answer for path, each in carried.answers.items()}
    kinds = {mark.path: mark.kind for mark in carried.steps}
    tells: list[tuple[str | None, str]] = [(None, thawed.planner_input.system)]
    tells += [(each.path, each.message.content) for each in list_entries(thawed.planner_input, answers, kinds)]
    if [(said.path, said.content) for said in carried.messages] != tells:
        raise BadArguments("The file's messages are not those that its steps tell.", "Export the run again.")


def _incomplete_file(carried: ExportedHistory) -> BadArguments:
    missing = [
        value
        for name, value in carried.run.spec.items()
        if name.endswith("_text") and isinstance(value, str) and value not in carried.texts
    ]
    what = f"it lacks the text {missing[0][:12]}" if missing else "its spec or outcome is not one of ours"
    return BadArguments(f"The file does not hold a whole run: {what}.", "Export the run again.")
