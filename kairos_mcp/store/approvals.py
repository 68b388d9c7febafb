"""What a person is asked before a step is begun: one row for each ask, which holds exactly what was shown.

Only its verdict is ever added (decisions.py), and before that its place: so many wait for a person at a time, of a run
and of a principal in a workspace. What finds no place is written and unasked; whoever frees one gives it on, in the
same transaction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import apsw

from kairos_mcp.core.step_path import last_part
from kairos_mcp.store import queries, settlements
from kairos_mcp.store.codec import decode_texts
from kairos_mcp.store.connection import Row, fetch_all, fetch_one
from kairos_mcp.store.queries import WaitingRow

KEY_SUFFIX = "/approval"  # a waiting key is the step's path with it
MAX_PER_RUN = 4  # approvals that wait for a person at a time
MAX_PER_WORKSPACE = 16  # the same, of one principal in one workspace
THROUGH_GATE = "gate"  # through what an approval was given that a rule made needless after it had lapsed
LAPSED = "approval lapsed"  # why a run is paused that nobody decided about in time


BaseHashes = Mapping[str, str | None]
"""The files that a call stands on: SHA-256 in hex by plain path, None where there is none."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What a person is to be asked, as it goes into the row of its step, and how long they have for it."""

    key: str
    tool: str
    effect: str
    digest: str
    preview: str
    base_hashes: Mapping[str, str | None]
    valid_for_ms: int


@dataclass(frozen=True, slots=True)
class ReusedApproval:
    """Leave that a person (`by`) gave before, in the run `run_id`, for exactly what would be asked now."""

    request: ApprovalRequest
    approved_by: str
    run_id: str


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """An approval of an unanswered step. Times in milliseconds since 1970; `verdict` null while it waits; `unasked`:
    it waits for a place, and nobody has been asked."""

    mark: int
    path: str
    key: str
    tool: str
    effect: str
    digest: str
    preview: str
    base_hashes: Mapping[str, str | None]
    asked_at: int
    expires_at: int
    verdict: Literal["approve", "deny", "expired"] | None
    decided_by: str | None
    via: str | None
    client: str | None
    feedback: str | None
    unasked: int = 0


@dataclass(frozen=True, slots=True)
class WaitingItems:
    """What a run waits for: open steps by path, approvals by key, and lost calls by path, which a person settles (not
    those that were settled, and wait for a server alone). A step whose approval is not given, or was not taken up yet,
    is in neither but by its approval: nobody may answer it past the person who was asked. `unasked`: approvals that
    wait for a place, by path; `lapsed`: those that nobody decided about in time."""

    steps: Mapping[str, WaitingRow]
    approvals: Mapping[str, ApprovalRow]
    lost_calls: Mapping[str, WaitingRow] = field(default_factory=dict)
    unasked: Mapping[str, ApprovalRow] = field(default_factory=dict)
    lapsed: Mapping[str, ApprovalRow] = field(default_factory=dict)


def is_approval_key(key: str) -> bool:
    """Whether a waiting key is that of an approval."""
    return last_part(key).name == KEY_SUFFIX[1:]


def add_approval(connection: apsw.Connection, run: int, mark: int, request: ApprovalRequest, at: int) -> None:
    """Ask, as soon as there is a place. Part of the turn that marks the step, or that asks about it once more."""
    n, key = _next_key(connection, mark, request.key)
    fetch_all(
        connection,
        "insert into approval(mark, n, run, key, tool, effect, digest, preview, base, asked_at, expires_at, unasked)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)",
        (
            *(mark, n, run, key, request.tool, request.effect, request.digest, request.preview),
            *(json.dumps(dict(request.base_hashes)), at, at + request.valid_for_ms),
        ),
    )
    ask_queued(connection, run, at)


def _next_key(connection: apsw.Connection, mark: int, key: str) -> tuple[int, str]:
    """The number of the next approval of a step, and its key: none is ever used for two asks."""
    before = fetch_one(connection, "select count(*) from approval where mark = ?", (mark,))
    assert before is not None
    n = before[0] + 1
    return n, key if n == 1 else f"{key}-{n}"


_IS_PENDING = "verdict is null and not unasked and expires_at > ?1"
_NEXT_QUEUED = f"""
    select approval.mark, approval.n from approval join run on run.n = approval.run
    where unasked and verdict is null and outcome is null and principal = ?2 and workspace is ?3
        and (select count(*) from approval as other where other.run = approval.run and {_IS_PENDING}) < ?4
    order by approval.mark limit 1
"""
_ASK_NOW = """
    update approval set unasked = 0, expires_at = expires_at - asked_at + ?1, asked_at = ?1 where mark = ?2 and n = ?3
"""


def ask_queued(connection: apsw.Connection, run: int, at: int) -> None:
    """Ask what waits for a place, in the order of its marks, as far as there are places among the approvals of this
    run's principal and workspace: to be called where one was added or freed, in that transaction."""
    if fetch_one(connection, "select 1 from approval where unasked and verdict is null limit 1") is None:
        return
    whose = fetch_one(connection, "select principal, workspace from run where n = ?", (run,))
    assert whose is not None
    for _ in range(MAX_PER_WORKSPACE - count_pending(connection, run, at)):
        found = fetch_one(connection, _NEXT_QUEUED, (at, *whose, MAX_PER_RUN))
        if found is None:
            return
        fetch_all(connection, _ASK_NOW, (at, *found))


def record_reused(connection: apsw.Connection, run: int, mark: int, reused: ReusedApproval, at: int) -> None:
    """Record that leave of before lets a step through, with what it stands on; `client` names the run it was given
    in."""
    asking = reused.request
    fetch_all(
        connection,
        "insert into approval(mark, n, run, key, tool, effect, digest, preview, base, asked_at, expires_at, verdict,"
        " by, through, client, decided_at) values (?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'approve', ?, 'before', ?, ?)",
        (
            *(mark, run, asking.key, asking.tool, asking.effect, asking.digest, asking.preview),
            *(json.dumps(dict(asking.base_hashes)), at, at, reused.approved_by, reused.run_id, at),
        ),
    )


def renew_approvals(
    connection: apsw.Connection, run: int, renewals: Sequence[tuple[int, ApprovalRequest | None]], at: int
) -> None:
    """Ask anew about marks whose approval lapsed; None: the gate lets the call through now."""
    for mark, asking in renewals:
        if asking is None:
            _approve_by_gate(connection, run, mark, at)
        else:
            add_approval(connection, run, mark, asking, at)


def _approve_by_gate(connection: apsw.Connection, run: int, mark: int, at: int) -> None:
    found = fetch_one(connection, "select n, key from approval where mark = ? order by n limit 1", (mark,))
    assert found is not None
    n, key = _next_key(connection, mark, found[1])
    fetch_all(
        connection,
        "insert into approval(mark, n, run, key, tool, effect, digest, preview, base, asked_at, expires_at, verdict,"
        " by, through, client, decided_at) select mark, ?, run, ?, tool, effect, digest, preview, '{}', ?, ?,"
        " 'approve', '', ?, '', ? from approval where mark = ? and n = ?",
        (n, key, at, at, THROUGH_GATE, at, mark, n - 1),
    )


_LIST_PENDING = f"""
    select run.id, approval.key from approval join run on run.n = approval.run
    where outcome is null and {_IS_PENDING} and principal = (select principal from run where n = ?2)
        and workspace is (select workspace from run where n = ?2) order by approval.mark
"""


def list_pending(connection: apsw.Connection, run: int, at: int) -> list[tuple[str, str]]:
    """The approvals that wait for a person, of this run's principal in its workspace: run and key, oldest first."""
    return [(run_id, key) for run_id, key in fetch_all(connection, _LIST_PENDING, (at, run))]


def count_pending(connection: apsw.Connection, run: int, at: int) -> int:
    """How many those are."""
    return len(list_pending(connection, run, at))


_COLUMNS = (
    "approval.mark, path, key, tool, effect, approval.digest, preview, base, asked_at, expires_at, verdict, by,"
    " through, client, feedback, unasked"
)
_UNANSWERED = f"""
    select {_COLUMNS} from approval join mark on mark.id = approval.mark left join answer on answer.mark = mark.id
    where approval.run = ? and answer.mark is null order by approval.mark, n
"""
_BY_KEY = f"select {_COLUMNS} from approval join mark on mark.id = approval.mark where approval.run = ? and key = ?"


def newest_approvals(connection: apsw.Connection, n: int) -> dict[str, ApprovalRow]:
    """The newest approval of each unanswered step of a run, by the step's path."""
    return {each.path: each for each in map(_approval_row, fetch_all(connection, _UNANSWERED, (n,)))}


def find_by_key(connection: apsw.Connection, n: int, key: str) -> ApprovalRow | None:
    """The approval under this key, also one that is long decided."""
    found = fetch_one(connection, _BY_KEY, (n, key))
    return None if found is None else _approval_row(found)


def _approval_row(found: Row) -> ApprovalRow:
    columns = (*found[:7], decode_texts(found[7]), *found[8:])
    return ApprovalRow(*columns)


def read_waiting_items(connection: apsw.Connection, n: int) -> WaitingItems:
    """What the run waits for now."""
    found, asked = queries.open_steps(connection, n), newest_approvals(connection, n)
    lost = {path: step for path, step in found.items() if step.needs_settlement}
    steps = {path: step for path, step in found.items() if path not in lost}
    if lost:
        heeded = settlements.pending_paths(connection, n)
        lost = {path: step for path, step in lost.items() if path not in heeded}
    if not asked:
        return WaitingItems(steps, {}, lost)
    free = {path: step for path, step in steps.items() if path not in asked or _is_handed_out(step, asked[path])}
    open_yet = {path: each for path, each in asked.items() if path in steps}
    return WaitingItems(
        free,
        {each.key: each for each in open_yet.values() if each.verdict is None and not each.unasked},
        lost,
        {path: each for path, each in open_yet.items() if each.verdict is None and each.unasked},
        {path: each for path, each in open_yet.items() if each.verdict == "expired"},
    )


def _is_handed_out(step: WaitingRow, asked: ApprovalRow) -> bool:
    """An approved call of the caller's own tool: it waits for whoever executes it."""
    return asked.verdict == "approve" and step.sent.route == "caller"
