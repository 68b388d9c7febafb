"""Mandates as rows: saved under an id of a principal, found again, with the newest run of each.

A mandate has at most one open run; an index sees to it, whoever starts one.
"""

from __future__ import annotations

from dataclasses import dataclass

import apsw

from kairos_mcp.errors import Stale, UnknownMandate
from kairos_mcp.messages import JsonObject
from kairos_mcp.store.approvals import Again, Asking
from kairos_mcp.store.codec import decode_fields
from kairos_mcp.store.connection import row, rows, valid
from kairos_mcp.store.reading import RunRow, run_by_number

SHOWN_IDS = 20


@dataclass(frozen=True, slots=True)
class MandateRow:
    """A saved mandate. `body` is its JSON; `digest` and `goal_hash` are SHA-256 in hex; times in milliseconds since
    1970, `last_due` the newest time of its schedule that it was run for."""

    principal: str
    id: str
    body: str
    digest: str
    goal_hash: str
    saved_at: int
    last_due: int | None = None


_COLUMNS = "principal, id, body, digest, goal_hash, saved_at, last_due"


def save(connection: apsw.Connection, new: MandateRow) -> bool:
    """Save it under its id; whether anything changed by that. The same text again keeps its row as it is; with another
    schedule its times are counted from now on."""
    known = find(connection, new.principal, new.id)
    if known is not None and known.digest == new.digest:
        return False
    last_due = known.last_due if known is not None and _schedule(known) == _schedule(new) else None
    rows(
        connection,
        f"insert or replace into mandate({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?)",
        (new.principal, new.id, new.body, new.digest, new.goal_hash, new.saved_at, last_due),
    )
    return True


def find(connection: apsw.Connection, principal: str, mandate_id: str) -> MandateRow | None:
    statement = f"select {_COLUMNS} from mandate where principal = ? and id = ?"
    found = row(connection, statement, (principal, mandate_id))
    return None if found is None else MandateRow(*found)


def named(connection: apsw.Connection, principal: str, mandate_id: str) -> MandateRow:
    """The mandate, or UnknownMandate; another principal's looks like an unknown one."""
    found = find(connection, principal, mandate_id)
    if found is None:
        ids = ", ".join(each.id for each in saved(connection, principal)[:SHOWN_IDS]) or "none"
        raise UnknownMandate(f"There is no mandate {mandate_id[:64]!r}.", f"mandate_save makes one. Saved: {ids}.")
    return found


def saved(connection: apsw.Connection, principal: str) -> list[MandateRow]:
    """All mandates of a principal, by id."""
    found = rows(connection, f"select {_COLUMNS} from mandate where principal = ? order by id", (principal,))
    return [MandateRow(*each) for each in found]


def page(connection: apsw.Connection, principal: str, after: str, limit: int) -> list[MandateRow]:
    """The next mandates of a principal, by id."""
    statement = f"select {_COLUMNS} from mandate where principal = ? and id > ? order by id limit ?"
    return [MandateRow(*each) for each in rows(connection, statement, (principal, after, limit))]


def count(connection: apsw.Connection, principal: str) -> int:
    found = row(connection, "select count(*) from mandate where principal = ?", (principal,))
    assert found is not None
    return int(found[0])


def goal_of(connection: apsw.Connection, run_id: str, mandate_id: str) -> str | None:
    """The text of the mandate that has this id for the principal of the run, None where there is none."""
    statement = (
        "select body from mandate join run on run.principal = mandate.principal where run.id = ? and mandate.id = ?"
    )
    found = row(connection, statement, (run_id, mandate_id))
    return None if found is None else str(found[0])


def started(connection: apsw.Connection, principal: str, mandate_id: str, due: int) -> None:
    """Note that it is run for a time of its schedule: each once, whoever is quicker. Raises Stale."""
    statement = (
        "update mandate set last_due = ?1 where principal = ?2 and id = ?3 and (last_due is null or last_due < ?1)"
        " returning id"
    )
    if row(connection, statement, (due, principal, mandate_id)) is None:
        raise Stale(f"{mandate_id} was run for this time before.", "mandate_list shows its newest run.")


def open_run(connection: apsw.Connection, principal: str, mandate_id: str) -> RunRow | None:
    """The run of the mandate that has not ended."""
    statement = "select n from run where principal = ? and mandate = ? and outcome is null"
    return _run(connection, statement, principal, mandate_id)


GIVERS = 50  # runs that a phase's input is compared with


def newest_run(connection: apsw.Connection, principal: str, mandate_id: str) -> RunRow | None:
    statement = "select n from run where principal = ? and mandate = ? order by n desc limit 1"
    return _run(connection, statement, principal, mandate_id)


def newest_output(connection: apsw.Connection, principal: str, mandate_id: str) -> JsonObject | None:
    """The output of the newest run that has one: a cancelled run left none, and has taught nothing."""
    statement = (
        f"select json_extract({valid('outcome')}, '$.output') from run where principal = ? and mandate = ?"
        f" and outcome is not null and json_type({valid('outcome')}, '$.output.lessons') = 'array'"
        " order by n desc limit 1"
    )
    found = row(connection, statement, (principal, mandate_id))
    output: JsonObject | None = None if found is None else decode_fields(found[0])
    return output


def gave(connection: apsw.Connection, principal: str, flow: str, output: JsonObject) -> str | None:
    """Find the run of a phase alone that gave this very output, among the newest."""
    statement = (
        f"select id, json_extract({valid('outcome')}, '$.output') from run where principal = ? and flow = ?"
        f" and outcome is not null and json_type({valid('outcome')}, '$.output') = 'object' order by n desc limit ?"
    )
    found = connection.execute(statement, (principal, flow, GIVERS))
    return next((run_id for run_id, given in found if decode_fields(given) == output), None)


def is_check(path: str) -> bool:
    """Whether a step is an acceptance check: its call stands in the mandate, no model has thought of it."""
    return path.rpartition("/")[2].startswith("check-")


def check_stands(connection: apsw.Connection, principal: str, mandate_text: str, asking: Asking) -> Again | None:
    """The leave that a person has given for this very check, in a run of the same version of the mandate: an approval
    of a check holds for its argument list and the mandate's text (RULINGS.md)."""
    statement = (
        "select by, run.id from approval join run on run.n = approval.run"
        " where approval.digest = ? and verdict = 'approve' and through not in ('before', 'gate')"
        " and approval.key like '%/check-%'"
        f" and principal = ? and json_extract({valid('spec')}, '$.mandate_text') = ? limit 1"
    )
    found = row(connection, statement, (asking.digest, principal, mandate_text))
    return None if found is None else Again(asking, *found)


def _run(connection: apsw.Connection, statement: str, principal: str, mandate_id: str) -> RunRow | None:
    found = row(connection, statement, (principal, mandate_id))
    return None if found is None else run_by_number(connection, found[0])


def _schedule(mandate: MandateRow) -> object:
    return decode_fields(mandate.body).get("schedule")
