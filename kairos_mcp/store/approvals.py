"""What a person is asked before a step is begun: one row for each ask, which holds exactly what was shown.

Only its verdict is ever added (decisions.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import apsw

from kairos_mcp.messages import ToolResult
from kairos_mcp.store import reading, settling
from kairos_mcp.store.codec import decode_texts
from kairos_mcp.store.connection import Row, row, rows
from kairos_mcp.store.reading import WaitingRow

SUFFIX = "/approval"  # a waiting key is the step's path with it
EXPIRES_MS = 8 * 3600 * 1000
PENDING = 16  # of one principal (SYSTEMS.md O12)


Base = Mapping[str, str | None]
"""The files that a call stands on: SHA-256 in hex by plain path, None where there is none."""


@dataclass(frozen=True, slots=True)
class Asking:
    """What a person is to be asked, as it goes into the row of its step. `otherwise` answers the step where too many
    wait already."""

    key: str
    tool: str
    effect: str
    digest: str
    preview: str
    base: Mapping[str, str | None]
    otherwise: ToolResult


@dataclass(frozen=True, slots=True)
class Again:
    """Leave that a person (`by`) gave before, in the run `run_id`, for exactly what would be asked now."""

    asking: Asking
    by: str
    run_id: str


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """An approval of an unanswered step. Times in milliseconds since 1970; `verdict` null while it waits."""

    mark: int
    path: str
    key: str
    tool: str
    effect: str
    digest: str
    preview: str
    base: Mapping[str, str | None]
    asked_at: int
    expires_at: int
    verdict: Literal["approve", "deny", "expired"] | None
    by: str | None
    through: str | None
    client: str | None
    feedback: str | None


@dataclass(frozen=True, slots=True)
class Waits:
    """What a run waits for: open steps by path, approvals by key, and lost calls by path, which a person settles (not
    those that were settled, and wait for a server alone). A step whose approval is not given, or was not taken up yet,
    is in neither but by its approval: nobody may answer it past the person who was asked."""

    steps: Mapping[str, WaitingRow]
    approvals: Mapping[str, ApprovalRow]
    lost: Mapping[str, WaitingRow] = field(default_factory=dict)


def is_key(key: str) -> bool:
    """Whether a waiting key is that of an approval."""
    return key.rpartition("/")[2].partition("-")[0] == SUFFIX[1:]


def add(connection: apsw.Connection, run: int, mark: int, asking: Asking, at: int) -> bool:
    """Ask; False, and nothing written, where too many of this principal wait. Part of the turn that marks the step."""
    if pending(connection, run, at) >= PENDING:
        return False
    before = row(connection, "select count(*) from approval where mark = ?", (mark,))
    assert before is not None
    n = before[0] + 1
    key = asking.key if n == 1 else f"{asking.key}-{n}"
    rows(
        connection,
        "insert into approval(mark, n, run, key, tool, effect, digest, preview, base, asked_at, expires_at)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(mark, n, run, key, asking.tool, asking.effect, asking.digest, asking.preview),
            *(json.dumps(dict(asking.base)), at, at + EXPIRES_MS),
        ),
    )
    return True


def let_through(connection: apsw.Connection, run: int, mark: int, again: Again, at: int) -> None:
    """Record that leave of before lets a step through, with what it stands on; `client` names the run it was given
    in."""
    asking = again.asking
    rows(
        connection,
        "insert into approval(mark, n, run, key, tool, effect, digest, preview, base, asked_at, expires_at, verdict,"
        " by, through, client, decided_at) values (?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'approve', ?, 'before', ?, ?)",
        (
            *(mark, run, asking.key, asking.tool, asking.effect, asking.digest, asking.preview),
            *(json.dumps(dict(asking.base)), at, at, again.by, again.run_id, at),
        ),
    )


def pending(connection: apsw.Connection, run: int, at: int) -> int:
    """How many approvals wait of the principal to whom this run belongs."""
    found = row(
        connection,
        "select count(*) from approval join run on run.n = approval.run"
        " where verdict is null and expires_at > ? and outcome is null"
        " and principal = (select principal from run where n = ?)",
        (at, run),
    )
    assert found is not None
    return int(found[0])


_COLUMNS = (
    "approval.mark, path, key, tool, effect, approval.digest, preview, base, asked_at, expires_at, verdict, by,"
    " through, client, feedback"
)
_UNANSWERED = f"""
    select {_COLUMNS} from approval join mark on mark.id = approval.mark left join answer on answer.mark = mark.id
    where approval.run = ? and answer.mark is null order by approval.mark, n
"""
_BY_KEY = f"select {_COLUMNS} from approval join mark on mark.id = approval.mark where approval.run = ? and key = ?"


def of_run(connection: apsw.Connection, n: int) -> dict[str, ApprovalRow]:
    """The newest approval of each unanswered step of a run, by the step's path."""
    return {each.path: each for each in map(_row, rows(connection, _UNANSWERED, (n,)))}


def at_key(connection: apsw.Connection, n: int, key: str) -> ApprovalRow | None:
    """The approval under this key, also one that is long decided."""
    found = row(connection, _BY_KEY, (n, key))
    return None if found is None else _row(found)


def _row(found: Row) -> ApprovalRow:
    columns = (*found[:7], decode_texts(found[7]), *found[8:])
    return ApprovalRow(*columns)


def waits(connection: apsw.Connection, n: int) -> Waits:
    """What the run waits for now."""
    found, asked = reading.waiting(connection, n), of_run(connection, n)
    lost = {path: step for path, step in found.items() if step.is_lost}
    steps = {path: step for path, step in found.items() if path not in lost}
    if lost:
        heeded = settling.unheeded(connection, n)
        lost = {path: step for path, step in lost.items() if path not in heeded}
    if not asked:
        return Waits(steps, {}, lost)
    free = {path: step for path, step in steps.items() if path not in asked or _is_handed_out(step, asked[path])}
    return Waits(free, {each.key: each for path, each in asked.items() if each.verdict is None and path in steps}, lost)


def _is_handed_out(step: WaitingRow, asked: ApprovalRow) -> bool:
    """An approved call of the caller's own tool: it waits for whoever executes it."""
    return asked.verdict == "approve" and step.sent.route == "caller"
