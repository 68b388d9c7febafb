"""Create runs, take them over, and add notes to them. Answers and control requests for a run are in inbox.py."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import Any

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store import mandates, rows
from kairos_mcp.store.accounts import unit_columns
from kairos_mcp.store.queries import RunRow, is_due, run_by_number
from kairos_mcp.store.report_queries import insert_note
from kairos_mcp.store.rows import Session, placeholders

FIRST_FENCE = 1  # of a run: its fence when it is created
ATTACH_MS = (
    10 * 60 * 1000
)  # hosts repeat calls that timed out: an identical start returns the open run, if it is younger than this


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be created: its encoded spec, the texts (hash, body) that the spec refers to, and who started it.

    `mandate`: the id of the mandate whose cycles it runs. `due`: for which time of its schedule (ms since 1970).
    `is_another`: it is created beside an open run of an identical start; later starts find the newer one. `place`: of
    the machines that have its workspace; None: any.
    """

    id: str
    flow: str
    version: int
    spec: str
    texts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    limits: Limits
    route: str
    principal: str
    via: str
    client: str
    key: str | None
    start_digest: bytes
    workspace: str | None
    at: int
    mandate: str | None = None
    due: int | None = None
    is_another: bool = False
    place: str | None = None


def make_run_id() -> str:
    """Make the id of a new run."""
    return f"run-{secrets.token_hex(6)}"


def draft_run(new: NewRun, owner: int) -> RunRow:
    """Return the row that a run has once it is created, but for its number and its account's."""
    return RunRow(
        n=0,
        id=new.id,
        flow=new.flow,
        version=new.version,
        spec=new.spec,
        principal=new.principal,
        via=new.via,
        client=new.client,
        workspace=new.workspace,
        account=0,
        created_at=new.at,
        owner=owner,
        fence=FIRST_FENCE,
        route=new.route,
        paused=None,
        outcome=None,
        ended_at=None,
        resume_at=None,
        mandate=new.mandate,
        seq=0,
        news_seq=0,
        cached=0,
        exactness="",
        place=new.place,
    )


def insert_run(session: Session, new: NewRun, draft: RunRow) -> RunRow:
    """Create the run as it was drafted, where `find_same_start` finds none, and return its row."""
    rows.keep_texts(session, new.texts)
    caps = dict(zip(unit_columns("cap"), new.limits, strict=True))
    session.rows(_insert("account", caps, scope="'run'"), list(caps.values()))
    if new.mandate is not None and new.due is not None:
        mandates.record_start(session, new.principal, new.workspace or "", new.mandate, new.due)
    columns = {**_run_columns(new), "owner": draft.owner, "fence": draft.fence}
    insert = _insert("run", columns, account="(select max(id) from account)")  # nobody else inserts one meanwhile
    found = session.row(f"{insert} returning n, account", list(columns.values()))
    assert found is not None
    run = draft._replace(n=found[0], account=found[1])
    for text in new.notes:
        add_note(session, run, text)
    return run


def create_run(session: Session, new: NewRun, owner: int) -> RunRow | None:
    """Create the run, or return the one that the same start has created before."""
    before = find_same_start(session, new)
    if before is None:
        insert_run(session, new, draft_run(new, owner))
    return before


def _run_columns(new: NewRun) -> dict[str, Any]:
    return {
        "id": new.id,
        "flow": new.flow,
        "version": new.version,
        "spec": new.spec,
        "principal": new.principal,
        "via": new.via,
        "client": new.client,
        "key": new.key,
        "start_digest": new.start_digest,
        "workspace": new.workspace or "",
        "created_at": new.at,
        "route": new.route,
        "mandate": new.mandate,
        "place": new.place,
    }


def _insert(table: str, columns: Collection[str], **computed: str) -> str:
    """Return SQL that inserts a row: bindings for these columns, then what is computed by SQL."""
    names = (*columns, *computed)
    values = (*("?" for _ in columns), *computed.values())
    return f"insert into {table}({', '.join(names)}) values ({', '.join(values)})"


def find_same_start(session: Session, new: NewRun) -> RunRow | None:
    """Return the run that this start has created before; None if absent.

    That is the one with this key, the open run of its mandate, or a recent open run of an identical start. Raises Stale
    where its mandate was run before for the time that it is due for, BadArguments where the key belongs to another
    start.
    """
    if new.key is not None:
        by_key = "select n, id, start_digest from run where principal = ? and workspace = ? and key = ?"
        found = session.row(by_key, (new.principal, new.workspace or "", new.key))
        if found is None:
            return None
        if found[2] != new.start_digest:
            raise BadArguments(
                f"The key belongs to run {found[1]}, which was started with other arguments.",
                "Use another key, or call run_status for that run.",
                run_id=found[1],
            )
        return run_by_number(session, found[0])
    if new.mandate is not None:
        return mandates.open_run(session, new.principal, new.workspace or "", new.mandate)
    if new.is_another:
        return None
    # `|| ''` leaves no index but that of digests: another one leads to all runs of the workspace.
    found = session.row(
        "select n from run where start_digest = ? and principal || '' = ? and workspace = ? and key is null"
        " and outcome is null and created_at > ? order by n desc limit 1",
        (new.start_digest, new.principal, new.workspace or "", new.at - ATTACH_MS),
    )
    return run_by_number(session, found[0]) if found else None


def take_run(session: Session, n: int, owner: int, dead: Sequence[int]) -> int | None:
    """Take the run over if no living server owns it: return the new fencing number, or None."""
    statement = (
        "update run set owner = ?, fence = fence + 1"
        f" where n = ? and outcome is null and (owner is null or owner in ({placeholders(dead)})) returning fence"
    )
    found = session.row(statement, (owner, n, *dead))
    return found[0] if found else None


RESUME_SQL = "update run set paused = null, resume_at = null where n = ?"


def take_due_run(session: Session, n: int, owner: int, at: int, dead: Sequence[int] = ()) -> int | None:
    """Take over and resume a run whose pause is over, if no other server was first: its new fencing number, or None."""
    run = run_by_number(session, n)
    if run.resume_at is None or not is_due(run.resume_at, at):
        return None
    fence = take_run(session, n, owner, dead)
    if fence is not None:
        session.rows(RESUME_SQL, (n,))
    return fence


def add_note(session: Session, run: RunRow, text: str) -> None:
    """Add a note to a run: what was done otherwise than asked. The same text is stored once."""
    insert_note(session, run.n, text)
