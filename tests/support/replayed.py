"""The runs of a store held against the laws from outside: each asks again what it asked, and the books add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.paths import RISKS
from kairos_mcp.core.steps import CallTool
from kairos_mcp.history.replay_check import RecordedEntry, Recording, replay
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.specs.load_spec import load_spec
from kairos_mcp.store import integrity, queries, rows, schema
from kairos_mcp.store.connection import connect
from kairos_mcp.store.queries import StepRow
from kairos_mcp.store.rows import Session
from kairos_mcp.views.transcript import answers_by_path, calls_by_path
from support import postgres
from support.run_locks import find_unlocked


def differences(db: Path) -> list[str]:
    """What is wrong with the runs of this file; empty where nothing is. Runs of another version are passed over."""
    session = connect(db, "process", read_only=True)
    try:
        if session.rows("pragma user_version")[0][0] != len(schema.MIGRATIONS):
            return []
        with session.one_state():
            return [*integrity.find_damage(session), *_differences_of_runs(session)]
    finally:
        session.close()


def differences_in_database(where: str) -> list[str]:
    """What is wrong with the runs of this database; empty where nothing is."""
    with postgres.open_session(where) as session, session.one_state():
        if session.row("select to_regclass('run')") == (None,):
            return []
        return [*integrity.find_wrong_rows(session), *_differences_of_runs(session), *find_unlocked(session)]


def _differences_of_runs(session: Session) -> Iterator[str]:
    for (n,) in session.rows("select n from run order by n"):
        if (difference := _difference(session, n)) is not None:
            yield difference


def _find_lost_call(record: Sequence[StepRow]) -> str | None:
    """The path of a call that not exactly one of its row and its turn holds, as it was asked."""
    answers = answers_by_path(record)
    of_turns = calls_by_path([row._replace(call_text=None) for row in record], answers)
    for row in record:
        call = row.call if row.call is not None else of_turns.get(row.path)
        is_held_twice = row.call is not None and row.path in of_turns
        if (row.kind == "call") != (call is not None) or is_held_twice:
            return row.path
        if call is not None and row.digest not in {CallTool("", call, risk).digest for risk in RISKS}:
            return row.path
    return None


def _difference(session: Session, n: int) -> str | None:
    """Where a run asks something else than it did."""
    run = queries.run_by_number(session, n)
    if kind_of(run.flow).specs.version != run.version:
        return None
    record = queries.read_record(session, n)
    entries = [RecordedEntry(row.path, row.kind, row.digest, row.answer, row.call) for row in record]
    if (lost := _find_lost_call(record)) is not None:
        return f"{run.id}: no row holds the call of {lost}"
    try:
        loaded = load_spec(run.spec, lambda content_hash: rows.read_text(session, content_hash) or "")
        found = replay(Recording(run.id, loaded, entries, run.outcome))
    except KairosError as unreadable:
        return f"{run.id}: {unreadable}"
    return None if found.identical else f"{run.id}: {found.first_difference}"
