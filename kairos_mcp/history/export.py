"""Tells a run from its rows in the lines that a file of it has; what has turned out to be a secret is taken out.

Rows hold no secret that was known when they were written. One that is known only now is masked here, and named, so
that a replay of the file compares paths and kinds alone from there on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, field, replace
from pathlib import PurePath
from typing import Any

from kairos_mcp import __version__
from kairos_mcp.core.limits import Units
from kairos_mcp.core.messages import Completion, JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.steps import Answer, StoredCall, split_path
from kairos_mcp.flows.planner_input import PlannerInput
from kairos_mcp.history.format import (
    ExportedAccount,
    ExportedAnswer,
    ExportedAttempt,
    ExportedDecision,
    ExportedMessage,
    ExportedNote,
    ExportedOutcome,
    ExportedRun,
    ExportedStep,
    ExportedText,
    ExportHead,
    RedactedPlaces,
)
from kairos_mcp.store import queries, report_queries, rows
from kairos_mcp.store.accounts import read_account
from kairos_mcp.store.queries import AttemptRow, RunRow, StepRow, list_attempts, referred_texts
from kairos_mcp.store.rows import Session, decode_answer, decode_fields
from kairos_mcp.views.transcript import answers_by_path, kinds_by_path, list_entries

TASK_NAMES = ("task", "try", "cycle")  # the parts of a path that name whose step it is


@dataclass(slots=True)
class _ExportRedactor:
    """Redacts lines, and remembers the places where something was taken out."""

    redactor: Redactor
    places: RedactedPlaces = field(default_factory=lambda: RedactedPlaces([], [], []))

    def json(self, value: Any, found: list[str], place: str) -> Any:
        """The value without the secrets that are known now; shapes and names were masked when the row was written."""
        masked = self._values(value)
        if masked != value and place not in found:
            found.append(place)
        return masked

    def text(self, text: str, found: list[str], place: str) -> str:
        masked: str = self.json(text, found, place)
        return masked

    def _values(self, value: Any) -> Any:
        match value:
            case str():
                return self.redactor.redact_known(value).text
            case dict():
                return {self._values(name): self._values(item) for name, item in value.items()}
            case list() | tuple():
                return [self._values(item) for item in value]
            case _:
                return value


def export_lines(
    session: Session, run: RunRow, planner_input: PlannerInput | None, redactor: Redactor
) -> Iterator[Any]:
    """Yield the lines of a run but the last, which `write_lines` adds. The connection reads one state of the file."""
    record, export_redactor = queries.read_record(session, run.n), _ExportRedactor(redactor)
    yield ExportHead(run.id, __version__)
    yield _export_run(run, export_redactor)
    for content_hash in referred_texts(run, record):
        body = rows.read_text(session, content_hash)  # a damaged one is no record of anything
        if body is not None:
            yield ExportedText(content_hash, export_redactor.text(body, export_redactor.places.texts, content_hash))
    attempts: dict[int, list[AttemptRow]] = {}
    for attempt in list_attempts(session, run.n):
        attempts.setdefault(attempt.step_id, []).append(attempt)
    for row in record:
        yield from _export_step(row, attempts.get(row.id, ()), export_redactor)
    for path, decisions in report_queries.list_decisions(session, run.n).items():
        for each in decisions:
            note = None if each.note is None else export_redactor.text(each.note, export_redactor.places.beside, "note")
            yield ExportedDecision(path, **each._replace(note=note)._asdict())
    yield from _export_messages(planner_input, record, export_redactor)
    for note in report_queries.list_notes(session, run.n):
        yield ExportedNote(export_redactor.text(note, export_redactor.places.beside, "note"))
    account = read_account(session, run.account)
    yield ExportedAccount(account.caps._asdict(), account.held._asdict(), account.spent._asdict())
    if run.outcome is not None:
        yield ExportedOutcome(
            export_redactor.json(decode_fields(run.outcome), export_redactor.places.beside, "outcome")
        )
    if export_redactor.places != RedactedPlaces([], [], []):
        yield export_redactor.places


def _export_run(run: RunRow, export_redactor: _ExportRedactor) -> ExportedRun:
    return ExportedRun(
        id=run.id,
        flow=run.flow,
        version=run.version,
        spec=export_redactor.json(decode_fields(run.spec), export_redactor.places.beside, "run"),
        route=run.route,
        principal=run.principal,
        via=run.via,
        client=run.client,
        workspace=PurePath(run.workspace).name if run.workspace is not None else None,
        created_at=run.created_at,
        ended_at=run.ended_at,
    )


def _export_step(row: StepRow, attempts: Any, export_redactor: _ExportRedactor) -> Iterator[Any]:
    sent = {name: value for name, value in asdict(row.sent).items() if value is not None}
    held = None if row.held is None else _amounts(row.held)
    call = None if row.call_text is None else StoredCall(**export_redactor.json(decode_fields(row.call_text), [], ""))
    judged = None if row.judged_text is None else export_redactor.json(decode_fields(row.judged_text), [], "")
    sent = export_redactor.json(sent, [], "")
    yield ExportedStep(row.path, row.kind, row.digest.hex(), row.at, held, sent, call, judged)
    for each in attempts:
        yield ExportedAttempt(
            row.path, each.at, _amounts(each.held), _amounts(each.lost), each.ended, each.waits_outside, each.sent
        )
    if row.body is not None:
        answer = _export_answer(decode_answer(row.body), row.path, export_redactor)
        at = row.answered_at if row.answered_at is not None else row.at
        yield ExportedAnswer(row.path, at, row.by_route or "", answer, _amounts(row.spent), row.cached, row.exactness)


def _export_answer(answer: Answer, path: str, export_redactor: _ExportRedactor) -> Answer:
    """The answer without what only its provider may be sent back, and without secrets."""
    from pydantic import TypeAdapter

    kind: Any = type(answer)
    plain = replace(answer, private=None) if isinstance(answer, Completion) else answer
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    shown = adapter.dump_python(plain, mode="json")
    masked = export_redactor.json(shown, export_redactor.places.paths, path)
    carried: Answer = plain if masked == shown else adapter.validate_python(masked)
    return carried


def _export_messages(
    planner_input: PlannerInput | None, record: list[StepRow], export_redactor: _ExportRedactor
) -> Iterator[ExportedMessage]:
    if planner_input is None:
        return
    yield _export_message(None, "system", planner_input.system, [], None, export_redactor)
    for each in list_entries(planner_input, answers_by_path(record), kinds_by_path(record)):
        message = each.message
        calls = [call.as_json() for call in message.tool_calls]
        yield _export_message(each.path, message.role, message.content, calls, message.tool_call_id, export_redactor)


def _export_message(
    path: str | None,
    role: str,
    content: str,
    calls: list[JsonObject],
    call_id: str | None,
    export_redactor: _ExportRedactor,
) -> ExportedMessage:
    tasks = [f"{name}-{ordinal}" for name, ordinal in split_path(path or "") if name in TASK_NAMES]
    return ExportedMessage(
        path=path,
        task="/".join(tasks) or None,
        parent="/".join(tasks[:-1]) or None,
        depth=len(tasks),
        role=role,
        content=export_redactor.text(content, [], ""),
        tool_calls=export_redactor.json(calls, [], ""),
        tool_call_id=call_id,
    )


def _amounts(units: Units) -> dict[str, int]:
    return {unit: amount for unit, amount in units._asdict().items() if amount}
