"""Mandates as rows, each with an id that is unique for a principal in a workspace, and the runs of each.

A mandate has at most one open run at a time; a unique index enforces it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, replace

from kairos_mcp.core.errors import BadArguments, KairosError, Stale
from kairos_mcp.core.mandate import Mandate, parse_mandate
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import last_part
from kairos_mcp.store.approvals import ApprovalRequest, ReusedApproval
from kairos_mcp.store.queries import RunRow, run_by_number
from kairos_mcp.store.rows import Session, decode_fields, json_or_null, placeholders, unreadable


@dataclass(frozen=True, slots=True)
class MandateRow:
    """A saved mandate. Times in milliseconds since 1970.

    `workspace`: the real path of its folder, '' for none;
    `place`: of the machines where that folder is, None: any. `body`: its JSON. `digest` and `goal_hash`: SHA-256 in
    hex. `last_due`: the newest time of its schedule that it was run for.
    """

    principal: str
    workspace: str
    id: str
    body: str
    digest: str
    goal_hash: str
    saved_at: int
    last_due: int | None = None
    place: str | None = None

    def parse(self) -> Mandate:
        """Return the mandate that the row holds. Raises Unreadable."""
        return read_mandate(self.body)


def read_mandate(text: str) -> Mandate:
    """Return the mandate that is stored as this text. Raises Unreadable."""
    try:
        return parse_mandate(json.loads(text))
    except (ValueError, KairosError) as error:
        raise unreadable("mandate") from error


NO_LIMIT = 2**63 - 1  # no number is "all" in every SQL
_COLUMNS = "principal, workspace, id, body, digest, goal_hash, saved_at, last_due, place"


def save(session: Session, new: MandateRow) -> bool:
    """Save a mandate; return whether anything changed. The same text again leaves its row as it is.

    A mandate whose schedule changed is due from now on, not for times of the past. Raises BadArguments where another
    place has one with this id in a folder of this path.
    """
    known = find(session, new.principal, new.workspace, new.id)
    if known is not None and known.place not in (None, new.place):
        raise BadArguments(
            f"The mandate {new.id} belongs to a folder of the same path at the place {known.place}.",
            "Save it under another id, or from there.",
        )
    if known is not None and known.digest == new.digest:
        return False
    last_due = known.last_due if known is not None and _read_schedule(known) == _read_schedule(new) else None
    session.rows(
        f"insert into mandate({_COLUMNS}) values ({placeholders(astuple(new))}) on conflict(principal, id, workspace)"
        " do update set body = excluded.body, digest = excluded.digest, goal_hash = excluded.goal_hash,"
        " saved_at = excluded.saved_at, last_due = excluded.last_due, place = excluded.place",
        astuple(replace(new, last_due=last_due)),
    )
    return True


def move(session: Session, old: MandateRow, new: MandateRow) -> None:
    """Move a mandate to another workspace. Raises BadArguments where that workspace has one with this id."""
    if find(session, new.principal, new.workspace, new.id) is not None:
        raise BadArguments(
            f"That workspace has a mandate {new.id!r} already.", "Look at it with mandate_list, or name another folder."
        )
    _delete(session, old)
    save(session, new)


def remove(session: Session, row: MandateRow) -> None:
    """Remove a mandate; its runs stay. Raises Stale while it has an open run, which would read it again."""
    run = open_run(session, row.principal, row.workspace, row.id)
    if run is not None:
        raise Stale(
            f"Run {run.id} of the mandate {row.id} is open.",
            f"End it first: `kairos-mcp cancel {run.id}`.",
            run_id=run.id,
        )
    _delete(session, row)


def _delete(session: Session, row: MandateRow) -> None:
    session.rows(
        "delete from mandate where principal = ? and id = ? and workspace = ?",
        (row.principal, row.id, row.workspace),
    )


def find(session: Session, principal: str, workspace: str, mandate_id: str) -> MandateRow | None:
    """Return the mandate with this id in a workspace ('' for none), None if absent."""
    statement = f"select {_COLUMNS} from mandate where principal = ? and id = ? and workspace = ?"
    found = session.row(statement, (principal, mandate_id, workspace))
    return None if found is None else MandateRow(*found)


def find_by_id(session: Session, principal: str, mandate_id: str) -> list[MandateRow]:
    """Return the principal's mandates with this id, in any workspace."""
    statement = f"select {_COLUMNS} from mandate where principal = ? and id = ? order by workspace"
    return [MandateRow(*found) for found in session.rows(statement, (principal, mandate_id))]


def find_everywhere(session: Session, mandate_id: str) -> list[MandateRow]:
    """Return all mandates with this id, whoever's they are."""
    statement = f"select {_COLUMNS} from mandate where id = ? order by principal, workspace"
    return [MandateRow(*found) for found in session.rows(statement, (mandate_id,))]


_IN_WORKSPACES = "(workspace in (select value from json_each(:workspaces)) or :workspaces is null)"


def list_page(
    session: Session, principal: str, workspaces: Sequence[str] | None, start: str = "", limit: int = NO_LIMIT
) -> list[MandateRow]:
    """Return a principal's mandates in these workspaces by id and workspace, beginning with the id `start`.

    `workspaces` None: in all.
    """
    statement = (
        f"select {_COLUMNS} from mandate where principal = :principal and {_IN_WORKSPACES}"
        " and id >= :start order by id, workspace limit :limit"
    )
    bindings = {
        "principal": principal,
        "workspaces": _encode_workspaces(workspaces),
        "start": start,
        "limit": limit,
    }
    return [MandateRow(*found) for found in session.rows(statement, bindings)]


def list_mandate_ids(session: Session) -> tuple[str, ...]:
    """Return the ids of all mandates, of every principal."""
    return tuple(str(row[0]) for row in session.rows("select distinct id from mandate"))


def list_scheduled(session: Session, workspaces: Sequence[str], place: str | None) -> list[MandateRow]:
    """Return the mandates of all principals that have a schedule and no open run, in these workspaces at this place."""
    return _list_startable(session, "json_type({body}, '$.schedule') = 'object'", workspaces, place)


def _list_startable(session: Session, condition: str, workspaces: Sequence[str], place: str | None) -> list[MandateRow]:
    statement = (
        f"select {_COLUMNS} from mandate where workspace in (select value from json_each(?)) and coalesce(place, ?) = ?"
        f" and {condition.format(body=json_or_null('body'))} and not exists (select 1 from run"
        " where run.principal = mandate.principal and run.workspace = mandate.workspace"
        " and run.mandate = mandate.id and run.outcome is null)"
    )
    here = place or ""
    return [MandateRow(*found) for found in session.rows(statement, (_encode_workspaces(workspaces), here, here))]


def list_triggered(session: Session, workspaces: Sequence[str], place: str | None) -> list[MandateRow]:
    """Return the mandates of all principals that start on events and have no open run, as `list_scheduled` does."""
    return _list_startable(session, "json_type({body}, '$.starts_on') = 'array'", workspaces, place)


def count(session: Session, principal: str, workspaces: Sequence[str] | None) -> int:
    """Count the mandates that `list_page` would list in all."""
    statement = f"select count(*) from mandate where principal = :principal and {_IN_WORKSPACES}"
    found = session.row(statement, {"principal": principal, "workspaces": _encode_workspaces(workspaces)})
    assert found is not None
    return int(found[0])


def _encode_workspaces(workspaces: Sequence[str] | None) -> str | None:
    return None if workspaces is None else json.dumps(list(workspaces))


def read_mandate_text(session: Session, run_id: str, mandate_id: str) -> str | None:
    """Return the JSON of the mandate with this id of the run's principal and workspace, None if absent."""
    statement = (
        "select body from mandate join run on run.principal = mandate.principal and run.workspace = mandate.workspace"
        " where run.id = ? and mandate.id = ?"
    )
    found = session.row(statement, (run_id, mandate_id))
    return None if found is None else str(found[0])


def record_start(session: Session, principal: str, workspace: str, mandate_id: str, due: int) -> None:
    """Record that a mandate is run for a time of its schedule. Raises Stale where another run was started for it."""
    statement = (
        "update mandate set last_due = :due where principal = :principal and workspace = :workspace and id = :id"
        " and (last_due is null or last_due < :due) returning id"
    )
    if session.row(statement, {"due": due, "principal": principal, "workspace": workspace, "id": mandate_id}) is None:
        raise Stale(f"{mandate_id} was run for this time before.", "mandate_list shows its newest run.")


def open_run(session: Session, principal: str, workspace: str, mandate_id: str) -> RunRow | None:
    """Return the mandate's run that has not ended, None if absent."""
    statement = "select n from run where principal = ? and workspace = ? and mandate = ? and outcome is null"
    return _find_run(session, statement, principal, workspace, mandate_id)


def find_with_key(session: Session, row: MandateRow, key: str) -> str | None:
    """Return the id of the mandate's run that was started with this key, None if absent."""
    statement = "select id from run where principal = ? and workspace = ? and mandate = ? and key = ?"
    found = session.row(statement, (row.principal, row.workspace, row.id, key))
    return None if found is None else str(found[0])


MAX_COMPARED_RUNS = 50  # runs that a phase's input is compared with


def newest_run(session: Session, principal: str, workspace: str, mandate_id: str) -> RunRow | None:
    """Return the mandate's newest run, ended or not; None if absent."""
    statement = "select n from run where principal = ? and workspace = ? and mandate = ? order by n desc limit 1"
    return _find_run(session, statement, principal, workspace, mandate_id)


def newest_run_ids(session: Session, principal: str, workspace: str, mandate_id: str, limit: int) -> list[str]:
    """Return the ids of the mandate's newest runs, newest first."""
    statement = "select id from run where principal = ? and workspace = ? and mandate = ? order by n desc limit ?"
    return [run_id for (run_id,) in session.rows(statement, (principal, workspace, mandate_id, limit))]


def newest_output(session: Session, principal: str, workspace: str, mandate_id: str) -> JsonObject | None:
    """Return the output of the newest run that has one; a cancelled run has no output, and so no lessons."""
    statement = (
        f"select json_extract({json_or_null('outcome')}, '$.output') from run"
        " where principal = ? and workspace = ? and mandate = ?"
        f" and outcome is not null and json_type({json_or_null('outcome')}, '$.output.lessons') = 'array'"
        " order by n desc limit 1"
    )
    found = session.row(statement, (principal, workspace, mandate_id))
    output: JsonObject | None = None if found is None else decode_fields(found[0])
    return output


def find_run_with_output(session: Session, principal: str, flow: str, output: JsonObject) -> str | None:
    """Return the id of the run of a single phase that had exactly this output, among the newest; None for none."""
    statement = (
        f"select id, json_extract({json_or_null('outcome')}, '$.output') from run where principal = ? and flow = ?"
        f" and outcome is not null and json_type({json_or_null('outcome')}, '$.output') = 'object'"
        " order by n desc limit ?"
    )
    found = session.stream(statement, (principal, flow, MAX_COMPARED_RUNS))
    return next((run_id for run_id, encoded in found if decode_fields(encoded) == output), None)


def is_check_step(path: str) -> bool:
    """Whether a step is an acceptance check, whose call is written in the mandate and not made by a model."""
    return last_part(path).name == "check"


def find_check_approval(
    session: Session, run: RunRow, mandate_text: str, request: ApprovalRequest
) -> ReusedApproval | None:
    """Return the approval that a person gave for exactly this check, in a run of the same mandate and workspace; None
    if absent.

    An approval of a check is valid for its argument list and the text of the mandate. What let a check through by
    itself is no person's approval.
    """
    statement = (
        "select by, run.id from approval join run on run.n = approval.run"
        " where approval.digest = ? and verdict = 'approve' and files is null"
        " and through not in ('before', 'gate', 'rule')"
        " and approval.key like '%/check-%'"
        " and principal = ? and workspace = ? and place is not distinct from ?"
        f" and json_extract({json_or_null('spec')}, '$.mandate_text') = ? limit 1"
    )
    found = session.row(statement, (request.digest, run.principal, run.workspace or "", run.place, mandate_text))
    return None if found is None else ReusedApproval(request, *found)


def _find_run(session: Session, statement: str, *bindings: str) -> RunRow | None:
    found = session.row(statement, bindings)
    return None if found is None else run_by_number(session, found[0])


def _read_schedule(mandate: MandateRow) -> object:
    return decode_fields(mandate.body).get("schedule")
