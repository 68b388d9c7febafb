"""Mandates as rows: saved under an id of a principal in a workspace, found again, with the newest run of each.

A mandate has at most one open run; an index sees to it, whoever starts one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import apsw

from kairos_mcp.core.errors import BadArguments, Stale
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.step_path import last_part
from kairos_mcp.store.approvals import ApprovalRequest, ReusedApproval
from kairos_mcp.store.codec import decode_fields
from kairos_mcp.store.connection import fetch_all, fetch_one, json_or_null
from kairos_mcp.store.queries import RunRow, run_by_number


@dataclass(frozen=True, slots=True)
class MandateRow:
    """A saved mandate. `workspace`: the real path of the folder that it belongs to, '' for none, None for one that was
    saved before mandates belonged to one. `body` is its JSON; `digest` and `goal_hash` are SHA-256 in hex; times in
    milliseconds since 1970, `last_due` the newest time of its schedule that it was run for."""

    principal: str
    workspace: str | None
    id: str
    body: str
    digest: str
    goal_hash: str
    saved_at: int
    last_due: int | None = None


_COLUMNS = "principal, workspace, id, body, digest, goal_hash, saved_at, last_due"


def save(connection: apsw.Connection, new: MandateRow) -> bool:
    """Save it under its id in its workspace; whether anything changed by that. The same text again keeps its row as it
    is; with another schedule its times are counted from now on."""
    known = find(connection, new.principal, new.workspace or "", new.id)
    if known is not None and known.digest == new.digest:
        return False
    last_due = known.last_due if known is not None and _read_schedule(known) == _read_schedule(new) else None
    fetch_all(
        connection,
        f"insert or replace into mandate({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?)",
        (new.principal, new.workspace, new.id, new.body, new.digest, new.goal_hash, new.saved_at, last_due),
    )
    return True


def move(connection: apsw.Connection, old: MandateRow, new: MandateRow) -> None:
    """Put a mandate into another workspace, with what its runs may still use today where it had none. Raises
    BadArguments where that workspace has one of this id."""
    if find(connection, new.principal, new.workspace or "", new.id) is not None:
        raise BadArguments(
            f"That workspace has a mandate {new.id!r} already.", "Look at it with mandate_list, or name another folder."
        )
    fetch_all(
        connection,
        "delete from mandate where principal = ? and id = ? and workspace is ?",
        (old.principal, old.id, old.workspace),
    )
    save(connection, new)
    if old.workspace is None:
        fetch_all(
            connection,
            "update account set workspace = ? where scope = 'mandate' and name = ? and workspace is null"
            " and parent in (select id from account where scope = 'day' and name = ?)",
            (new.workspace, new.id, new.principal),
        )


def find(connection: apsw.Connection, principal: str, workspace: str, mandate_id: str) -> MandateRow | None:
    """The mandate of this id in a workspace ('' for none)."""
    statement = f"select {_COLUMNS} from mandate where principal = ? and id = ? and workspace = ?"
    found = fetch_one(connection, statement, (principal, mandate_id, workspace))
    return None if found is None else MandateRow(*found)


def find_by_id(connection: apsw.Connection, principal: str, mandate_id: str) -> list[MandateRow]:
    """The mandates of this id in whatever workspace; another principal's look like unknown ones."""
    statement = f"select {_COLUMNS} from mandate where principal = ? and id = ? order by workspace"
    return [MandateRow(*each) for each in fetch_all(connection, statement, (principal, mandate_id))]


_IN_WORKSPACES = "(?2 is null or workspace is null or workspace in (select value from json_each(?2)))"


def list_page(
    connection: apsw.Connection, principal: str, workspaces: Sequence[str] | None, start: str = "", limit: int = -1
) -> list[MandateRow]:
    """Mandates of a principal by id and workspace, beginning with the id `start`: those of these workspaces and those
    of before mandates belonged to one; None: all."""
    statement = (
        f"select {_COLUMNS} from mandate where principal = ?1 and {_IN_WORKSPACES} and id >= ?3"
        " order by id, workspace limit ?4"
    )
    bindings = (principal, _encode_workspaces(workspaces), start, limit)
    return [MandateRow(*each) for each in fetch_all(connection, statement, bindings)]


def count(connection: apsw.Connection, principal: str, workspaces: Sequence[str] | None) -> int:
    """How many `page` would give from the first on."""
    statement = f"select count(*) from mandate where principal = ?1 and {_IN_WORKSPACES}"
    found = fetch_one(connection, statement, (principal, _encode_workspaces(workspaces)))
    assert found is not None
    return int(found[0])


def _encode_workspaces(workspaces: Sequence[str] | None) -> str | None:
    return None if workspaces is None else json.dumps(list(workspaces))


def read_mandate_text(connection: apsw.Connection, run_id: str, mandate_id: str) -> str | None:
    """The text of the mandate that has this id for the principal and in the workspace of the run, None where there is
    none."""
    statement = (
        "select body from mandate join run on run.principal = mandate.principal and run.workspace = mandate.workspace"
        " where run.id = ? and mandate.id = ?"
    )
    found = fetch_one(connection, statement, (run_id, mandate_id))
    return None if found is None else str(found[0])


def record_start(connection: apsw.Connection, principal: str, workspace: str, mandate_id: str, due: int) -> None:
    """Note that it is run for a time of its schedule: each once, whoever is quicker. Raises Stale."""
    statement = (
        "update mandate set last_due = ?1 where principal = ?2 and workspace = ?3 and id = ?4"
        " and (last_due is null or last_due < ?1) returning id"
    )
    if fetch_one(connection, statement, (due, principal, workspace, mandate_id)) is None:
        raise Stale(f"{mandate_id} was run for this time before.", "mandate_list shows its newest run.")


def open_run(connection: apsw.Connection, principal: str, workspace: str, mandate_id: str) -> RunRow | None:
    """The run of the mandate that has not ended."""
    statement = "select n from run where principal = ? and workspace = ? and mandate = ? and outcome is null"
    return _find_run(connection, statement, principal, workspace, mandate_id)


MAX_COMPARED_RUNS = 50  # runs that a phase's input is compared with


def newest_run(connection: apsw.Connection, principal: str, workspace: str, mandate_id: str) -> RunRow | None:
    statement = "select n from run where principal = ? and workspace = ? and mandate = ? order by n desc limit 1"
    return _find_run(connection, statement, principal, workspace, mandate_id)


def newest_output(connection: apsw.Connection, principal: str, workspace: str, mandate_id: str) -> JsonObject | None:
    """The output of the newest run that has one: a cancelled run left none, and has taught nothing."""
    statement = (
        f"select json_extract({json_or_null('outcome')}, '$.output') from run"
        " where principal = ? and workspace = ? and mandate = ?"
        f" and outcome is not null and json_type({json_or_null('outcome')}, '$.output.lessons') = 'array'"
        " order by n desc limit 1"
    )
    found = fetch_one(connection, statement, (principal, workspace, mandate_id))
    output: JsonObject | None = None if found is None else decode_fields(found[0])
    return output


def find_run_with_output(connection: apsw.Connection, principal: str, flow: str, output: JsonObject) -> str | None:
    """Find the run of a phase alone that gave this very output, among the newest."""
    statement = (
        f"select id, json_extract({json_or_null('outcome')}, '$.output') from run where principal = ? and flow = ?"
        f" and outcome is not null and json_type({json_or_null('outcome')}, '$.output') = 'object'"
        " order by n desc limit ?"
    )
    found = connection.execute(statement, (principal, flow, MAX_COMPARED_RUNS))
    return next((run_id for run_id, given in found if decode_fields(given) == output), None)


def is_check_step(path: str) -> bool:
    """Whether a step is an acceptance check: its call stands in the mandate, no model has thought of it."""
    return last_part(path).name == "check"


def find_check_approval(
    connection: apsw.Connection, run: RunRow, mandate_text: str, request: ApprovalRequest
) -> ReusedApproval | None:
    """The leave that a person has given for this very check, in a run of the same version of the mandate in the same
    workspace: an approval of a check holds for its argument list and the mandate's text."""
    statement = (
        "select by, run.id from approval join run on run.n = approval.run"
        " where approval.digest = ? and verdict = 'approve' and through not in ('before', 'gate')"
        " and approval.key like '%/check-%'"
        f" and principal = ? and workspace = ? and json_extract({json_or_null('spec')}, '$.mandate_text') = ? limit 1"
    )
    found = fetch_one(connection, statement, (request.digest, run.principal, run.workspace or "", mandate_text))
    return None if found is None else ReusedApproval(request, *found)


def _find_run(connection: apsw.Connection, statement: str, *bindings: str) -> RunRow | None:
    found = fetch_one(connection, statement, bindings)
    return None if found is None else run_by_number(connection, found[0])


def _read_schedule(mandate: MandateRow) -> object:
    return decode_fields(mandate.body).get("schedule")
