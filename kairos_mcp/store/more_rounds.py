"""Answer a loop's request for more rounds: read what it did, raise its cap, and record the grant, in one transaction.

A grant is a row of `inbox`, as an extension by a person is: kind `grant`, taken at once. It counts for the task in
which it was given, over all tries of it; without tasks, for the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kairos_mcp.budget.more_rounds import MadeCall, Progress, RoundsGrant, grant_rounds, measure_progress
from kairos_mcp.budget.reservation import Account
from kairos_mcp.core.file_changes import changed_files
from kairos_mcp.core.limits import BranchShare
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.steps import task_of
from kairos_mcp.store.report_queries import insert_note
from kairos_mcp.store.reservations import ReservationBatch
from kairos_mcp.store.rows import Session, decode, decode_answer, encode

GRANT_KIND = "grant"
BY_BUDGET = "budget"  # who answers such a request, as the answer's row has it

_GRANTS = f"select body from inbox where run = ? and kind = '{GRANT_KIND}' order by id"
_INSERT_GRANT = (
    "insert into inbox(run, kind, body, principal, via, client, at, taken)"
    f" select n, '{GRANT_KIND}', ?, principal, via, client, ?, ? from run where n = ?"
)
_CALLS = """
    select path, digest, body, by_route from step join answer on answer.step = step.id
    where run = ? and kind = 'call' and substr(path, 1, ?) = ? order by step.id
"""


class RoundsRequest(NamedTuple):
    """A loop's request for `asked` more rounds, and what bounds a grant.

    `refusal`: why it gets none, whatever it did. `most`: up to how many the run's own cap may rise. `share`: what the
    branch around the loop gets where one with limits of its own is; `open_branches`: the paths of all such branches
    that have begun and not ended.
    """

    asked: int
    refusal: str | None = None
    most: int | None = None
    share: BranchShare | None = None
    open_branches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GrantRow:
    """A recorded grant: the call that asked for it, and how many rounds it gave."""

    call: str
    granted: int


def answer_request(
    session: Session, run: int, path: str, request: RoundsRequest, batch: ReservationBatch, at: int
) -> ToolResult:
    """Answer the request of the call at this path. What is granted is in the account and in the record from then on."""
    own, *around = batch.accounts_above(path)
    rests = [rest for each in (own, *around) if (rest := each.remaining.rounds) is not None]
    left = None if own.caps.rounds is None else min(rests)
    if request.refusal is not None and left is not None:
        return _as_result(RoundsGrant(0, left, request.refusal))
    earlier = [grant for grant in list_grants(session, run) if task_of(grant.call) == task_of(path)]
    grant = grant_rounds(
        request.asked,
        [each.granted for each in earlier],
        left,
        _room(batch, own, around, request),
        lambda: _read_progress(session, run, batch.branch_around(path), earlier),
    )
    if grant.granted:
        batch.raise_rounds(path, grant.granted)
        session.rows(_INSERT_GRANT, (encode(GrantRow(path, grant.granted)), at, at, run))
        insert_note(session, run, f"limits.rounds: {grant.granted} more were asked for and granted at {path}.")
    return _as_result(grant)


def list_grants(session: Session, run: int) -> list[GrantRow]:
    """List the grants of a run, oldest first. Raises Unreadable."""
    return [decode(GrantRow, body) for (body,) in session.rows(_GRANTS, (run,))]


def _as_result(grant: RoundsGrant) -> ToolResult:
    return ToolResult(grant.sentence, data=grant._asdict())


def _room(batch: ReservationBatch, own: Account, around: Sequence[Account], request: RoundsRequest) -> int | None:
    """Return by how many rounds the loop's cap may rise; None: nothing bounds it.

    Of the account around a branch it gets no more than its part of what is neither used, nor set aside, nor promised to
    the branches beside it: those that run keep what is left of their caps, those that have not begun divide the rest
    with it.
    """
    if not around or request.share is None:
        return None if request.most is None else request.most - (own.caps.rounds or 0)
    left = own.remaining.rounds or 0
    rooms = [rest - left for account in around if (rest := account.remaining.rounds) is not None]
    if (rest := around[0].remaining.rounds) is not None:
        opened = [branch for branch in request.open_branches if branch in batch.branches]
        beside = [batch.branch_account(each) for each in opened if batch.accounts_above(each)[0].id == around[0].id]
        others = [each for each in beside if each.id != own.id]
        free = rest - sum(each.remaining.rounds or 0 for each in others) - (request.share.reserved.rounds or 0)
        rooms.append(max(0, free) // request.share.count_parts(len(others))[0] - left)
    return min(rooms, default=None)


def _read_progress(session: Session, run: int, branch: str, earlier: Sequence[GrantRow]) -> Progress:
    """Read what the loop of this branch did since its last grant. Raises Unreadable."""
    inside = f"{branch}/" if branch else ""
    granted_at = {grant.call for grant in earlier}
    before: list[MadeCall] = []
    since: list[MadeCall] = []
    for path, digest, body, by_route in session.rows(_CALLS, (run, len(inside), inside)):
        if path in granted_at:
            before, since = [*before, *since], []
        elif by_route != BY_BUDGET and isinstance(answer := decode_answer(body), ToolResult):
            since.append(_made_call(digest, answer))
    return measure_progress(before, since)


def _made_call(digest: bytes, result: ToolResult) -> MadeCall:
    # What is shown of a long result names its own step; its whole text does not.
    content = result.kept.encode() if result.kept is not None else result.digest
    if result.is_error or not isinstance(result.data, dict):
        return MadeCall(digest, content, frozenset() if result.is_error else frozenset((content,)))
    files = changed_files(result)
    hashes = [result.data.get("sha256"), *(file.after for file in files)]
    found = {content, *(each.encode() for each in hashes if isinstance(each, str))}
    return MadeCall(digest, content, frozenset(found), bool(files))
