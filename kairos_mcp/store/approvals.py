"""Approvals as rows: one for each time a person is asked before a step is begun, with exactly what they were shown.

A row is inserted once; only its verdict is added later (decisions.py). The number that wait for a person at a time is
bounded, per run and per principal and workspace. One beyond the bound is inserted as `unasked`; the transaction that
frees a place asks the next.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal, NamedTuple

from kairos_mcp.core.builtin_tools import SUBMIT_CHANGES
from kairos_mcp.core.decision_rights import Verdict
from kairos_mcp.core.flow import Finding
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import CALLER
from kairos_mcp.core.steps import last_part
from kairos_mcp.store import queries, settlements
from kairos_mcp.store.queries import WaitingRow
from kairos_mcp.store.rows import Row, Session, decode, decode_texts, encode
from kairos_mcp.store.rules import CallShape, decode_shape

KEY_SUFFIX = "/approval"  # a waiting key is the step's path with it
MAX_PER_RUN = 4  # approvals that wait for a person at a time
MAX_PER_WORKSPACE = 16  # the same, for one principal in one workspace
THROUGH_GATE = "gate"  # the column `through` of an approval that the gate gave by a new rule, after the first expired
LAPSED = "approval lapsed"  # why a run is paused all of whose open steps wait for approvals that expired


BaseHashes = Mapping[str, str | None]
"""The files as they were when the call was shown: SHA-256 in hex by plain path, None for a file that was not there."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What a person is asked about a step, and for how long the approval waits for them. `shape`: what a rule for such
    calls would be about; None where the person has to be asked about each. `private_preview`: what a person alone is
    shown in place of `preview`, since it depends on a file that may not be read unasked. `flow`: what was found of what
    the call takes along. `covered_by`: nobody is asked where remembered approvals let each of these calls through."""

    key: str
    tool: str
    effect: str
    digest: str
    preview: str
    base_hashes: Mapping[str, str | None]
    valid_for_ms: int
    shape: CallShape | None = None
    private_preview: str | None = None
    flow: tuple[Finding, ...] = ()
    covered_by: tuple[CallShape, ...] = ()


@dataclass(frozen=True, slots=True)
class ReusedApproval:
    """An earlier approval that covers this request.

    `through`: "before", in the run `origin`, for exactly this; or "rule", by the rule that `origin` names.
    """

    request: ApprovalRequest
    approved_by: str
    origin: str
    through: Literal["before", "rule"] = "before"


class DialogView(NamedTuple):
    """How much of a question its dialog showed before the choice. `screen`: the client that it was laid out for."""

    way: Literal["whole", "walk", "page", "look"]
    screen: str
    lines: int  # of the changed lines, or of a call's; in a terminal of 60 columns and 24 lines
    of: int
    open_ms: int = 0  # how long the dialog was open

    def describe(self) -> str:
        """Describe it to a person, after "a dialog which showed"."""
        return f"{self.lines} of {self.of} lines ({self.screen}, 60x24) for {self.open_ms / 1000:.1f} s"

    @property
    def decides(self) -> bool:
        """Whether all of it was shown, so that it may be approved there."""
        return self.way in ("whole", "walk")


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """An approval of an unanswered step. Times in milliseconds since 1970.

    `verdict`: None while it waits; `withdrawn` where a call before it in its turn was denied or failed. `unasked`: too
    many others wait, so nobody has been asked yet. `shape`: as in `ApprovalRequest`. `is_renewable`: it expired, and
    somebody has resumed the run since: it is to be asked again. `private_preview`: what a person is shown in place of
    `preview`, on the terminal, in the inbox and on the page. `files`: those that alone were approved; None: all.
    """

    step_id: int
    path: str
    key: str
    tool: str
    effect: str
    digest: str
    preview: str
    base_hashes: Mapping[str, str | None]
    asked_at: int
    expires_at: int
    verdict: Verdict | Literal["expired", "withdrawn"] | None
    decided_by: str | None
    via: str | None
    client: str | None
    feedback: str | None
    unasked: int = 0
    shape: CallShape | None = None
    private_preview: str | None = None
    is_renewable: bool = False
    files: tuple[str, ...] | None = None

    @property
    def divisible_files(self) -> tuple[str, ...]:
        """The files that may be approved one by one; none where all or nothing is."""
        several = self.tool == SUBMIT_CHANGES.name and len(self.base_hashes) > 1
        return tuple(self.base_hashes) if several else ()

    @property
    def approved_base(self) -> BaseHashes:
        """The hashes of the files that the approval holds for."""
        return self.base_hashes if self.files is None else {path: self.base_hashes[path] for path in self.files}

    @property
    def person_preview(self) -> str:
        """What the person who decides is shown."""
        return self.preview if self.private_preview is None else self.private_preview


@dataclass(frozen=True, slots=True)
class WaitingItems:
    """What a run waits for: open steps by path, approvals by key, calls of unknown outcome by path.

    `lost_calls`: those that a person still has to settle; settled ones wait for a server alone. A step whose approval
    is not given, or not handled yet, is not in `steps`: nobody may answer it past the person who is asked.
    `unasked`: approvals that nobody was asked about yet, by path. `lapsed`: those that expired, by path.
    """

    steps: Mapping[str, WaitingRow]
    approvals: Mapping[str, ApprovalRow]
    lost_calls: Mapping[str, WaitingRow] = field(default_factory=dict)
    unasked: Mapping[str, ApprovalRow] = field(default_factory=dict)
    lapsed: Mapping[str, ApprovalRow] = field(default_factory=dict)


def is_approval_key(key: str) -> bool:
    """Whether a waiting key is that of an approval."""
    return last_part(key).name == KEY_SUFFIX[1:]


def add_approval(session: Session, run: int, step_id: int, request: ApprovalRequest, at: int) -> None:
    """Insert an approval, and ask about it as soon as there is a place.

    Part of the transaction that inserts the step, or that asks about it again.
    """
    session.require_alone()  # all runs of a workspace share its places
    n, key = _next_key(session, step_id, request.key)
    session.rows(
        "insert into approval(step, n, run, key, tool, effect, digest, preview, base, asked_at, expires_at, shape,"
        " private_preview, flow, unasked) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, true)",
        (
            *(step_id, n, run, key, request.tool, request.effect, request.digest, request.preview),
            *(
                json.dumps(dict(request.base_hashes)),
                at,
                at + request.valid_for_ms,
                encode(request.shape) if request.shape else None,
            ),
            *(request.private_preview, encode(request.flow) if request.flow else None),
        ),
    )
    ask_queued(session, run, at)


def _next_key(session: Session, step_id: int, key: str) -> tuple[int, str]:
    """Return the number and the key of a step's next approval: no key is ever used twice."""
    before = session.row("select count(*) from approval where step = ?", (step_id,))
    assert before is not None
    n = before[0] + 1
    return n, key if n == 1 else f"{key}-{n}"


_IS_PENDING = "verdict is null and not unasked and expires_at > :at"
_NEXT_QUEUED = f"""
    select approval.step, approval.n from approval join run on run.n = approval.run
    where unasked and verdict is null and outcome is null and principal = :principal and workspace = :workspace
        and (select count(*) from approval as other where other.run = approval.run and {_IS_PENDING}) < :places
    order by approval.step limit 1
"""
_ASK_NOW = """
    update approval set unasked = false, expires_at = expires_at - asked_at + :at, asked_at = :at
    where step = :step and n = :n
"""


def ask_queued(session: Session, run: int, at: int) -> None:
    """Ask about unasked approvals of this run's principal and workspace, oldest step first, while there are places.

    To be called in every transaction that adds an approval or frees a place.
    """
    if not session.finds("select 1 from approval where unasked and verdict is null limit 1"):
        return
    session.require_alone()  # they may be of other runs
    found = session.row("select principal, workspace from run where n = ?", (run,))
    assert found is not None
    principal, workspace = found
    bindings = {"at": at, "principal": principal, "workspace": workspace, "places": MAX_PER_RUN}
    for _ in range(MAX_PER_WORKSPACE - len(list_pending(session, run, at))):
        queued = session.row(_NEXT_QUEUED, bindings)
        if queued is None:
            return
        step_id, n = queued
        session.rows(_ASK_NOW, {"at": at, "step": step_id, "n": n})


def record_reused(session: Session, run: int, step_id: int, reused: ReusedApproval, at: int) -> None:
    """Insert an approved row for a step that an earlier approval lets through.

    Its column `client` names the run in which a person gave that approval, or the rule that they made.
    """
    request = reused.request
    n, key = _next_key(session, step_id, request.key)
    session.rows(
        "insert into approval(step, n, run, key, tool, effect, digest, preview, base, asked_at, expires_at, verdict,"
        " by, through, client, decided_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'approve', ?, ?, ?, ?)",
        (
            *(step_id, n, run, key, request.tool, request.effect, request.digest, request.preview),
            *(json.dumps(dict(request.base_hashes)), at, at, reused.approved_by, reused.through, reused.origin, at),
        ),
    )


def renew_approvals(
    session: Session, run: int, renewals: Sequence[tuple[int, ApprovalRequest | ReusedApproval | None]], at: int
) -> None:
    """Ask again about steps whose approval expired, unless an earlier approval or (None) the gate lets them through."""
    for step_id, renewal in renewals:
        match renewal:
            case None:
                _approve_by_gate(session, run, step_id, at)
            case ReusedApproval():
                record_reused(session, run, step_id, renewal, at)
            case ApprovalRequest():
                add_approval(session, run, step_id, renewal, at)


def withdraw_question(session: Session, run: int, step_id: int, at: int) -> None:
    """Take back what a person was asked about a step that is not to be begun any more."""
    session.rows(
        "update approval set verdict = 'withdrawn', by = '', through = 'server', client = '', decided_at = ?"
        " where step = ? and verdict is null",
        (at, step_id),
    )
    ask_queued(session, run, at)


def _approve_by_gate(session: Session, run: int, step_id: int, at: int) -> None:
    found = session.row("select n, key from approval where step = ? order by n limit 1", (step_id,))
    assert found is not None
    n, key = _next_key(session, step_id, found[1])
    session.rows(
        "insert into approval(step, n, run, key, tool, effect, digest, preview, base, asked_at, expires_at, verdict,"
        " by, through, client, decided_at) select step, ?, run, ?, tool, effect, digest, preview, '{}', ?, ?,"
        " 'approve', '', ?, '', ? from approval where step = ? and n = ?",
        (n, key, at, at, THROUGH_GATE, at, step_id, n - 1),
    )


_LIST_PENDING = f"""
    select run.id, approval.key from approval join run on run.n = approval.run
    where outcome is null and {_IS_PENDING} and principal = (select principal from run where n = :run)
        and workspace = (select workspace from run where n = :run) order by approval.step
"""


def approved_findings(session: Session, run: int) -> dict[str, tuple[Finding, ...]]:
    """Return what was found of each call of a run that a person approved nevertheless, by its path."""
    found = session.rows(
        "select path, approval.flow from approval join step on step.id = approval.step"
        " where approval.run = ? and verdict = 'approve' and approval.flow is not null",
        (run,),
    )
    return {path: decode(tuple[Finding, ...], text) for path, text in found}


def list_pending(session: Session, run: int, at: int) -> list[tuple[str, str]]:
    """List the approvals that this run's principal is asked about in its workspace: (run id, key), oldest first."""
    return [(run_id, key) for run_id, key in session.rows(_LIST_PENDING, {"at": at, "run": run})]


# By the order of the rows, not by times: a clock may have been set back between them.
_IS_RENEWABLE = """
    verdict = 'expired' and exists (select 1 from inbox as lapse join inbox as later on later.run = lapse.run
        where lapse.run = approval.run and lapse.kind = 'verdict' and lapse.body = approval.key
            and later.kind = 'resume' and later.id > lapse.id)
"""
_COLUMNS = f"""
    approval.step, path, key, tool, effect, approval.digest, preview, base, asked_at, expires_at, verdict, by,
    through, client, feedback, unasked, shape, private_preview, {_IS_RENEWABLE}, files
"""
_UNANSWERED = f"""
    select {_COLUMNS} from approval join step on step.id = approval.step left join answer on answer.step = step.id
    where approval.run = ? and answer.step is null order by approval.step, n
"""
_BY_KEY = f"select {_COLUMNS} from approval join step on step.id = approval.step where approval.run = ? and key = ?"


def newest_approvals(session: Session, n: int) -> dict[str, ApprovalRow]:
    """Return the newest approval of each unanswered step of a run, by the step's path."""
    return {approval.path: approval for approval in map(_approval_row, session.rows(_UNANSWERED, (n,)))}


def find_by_key(session: Session, n: int, key: str) -> ApprovalRow | None:
    """Return the approval with this key, decided or not; None if absent."""
    found = session.row(_BY_KEY, (n, key))
    return None if found is None else _approval_row(found)


def _approval_row(found: Row) -> ApprovalRow:
    *columns, shape, private_preview, is_renewable, files = found
    chosen = None if files is None else decode(tuple[str, ...], files)
    columns[7] = decode_texts(columns[7])
    columns += [decode_shape(shape), private_preview, bool(is_renewable), chosen]
    return ApprovalRow(*columns)


def read_waiting_items(session: Session, n: int) -> WaitingItems:
    """Return what the run waits for now."""
    found = queries.open_steps(session, n)
    approvals = newest_approvals(session, n) if any(step.has_approval for step in found.values()) else {}
    lost = {path: step for path, step in found.items() if step.needs_settlement}
    steps = {path: step for path, step in found.items() if path not in lost}
    if lost:
        settled = settlements.pending_paths(session, n)
        lost = {path: step for path, step in lost.items() if path not in settled}
    if not approvals:
        return WaitingItems(steps, {}, lost)
    undecided = {path: approval for path, approval in approvals.items() if path in steps and approval.verdict is None}
    return WaitingItems(
        {
            path: step
            for path, step in steps.items()
            # An approved call of the caller's own tool waits for the caller to execute it.
            if path not in approvals or (approvals[path].verdict == "approve" and step.sent.route == CALLER.name)
        },
        {approval.key: approval for approval in undecided.values() if not approval.unasked},
        lost,
        {path: approval for path, approval in undecided.items() if approval.unasked},
        {path: approval for path, approval in approvals.items() if path in steps and approval.verdict == "expired"},
    )
