"""Write the usual commit of a run in the fewest statements: answers, and the rows of next steps or the run's end.

What it writes was decided before its transaction, on the run's accounts as this process last wrote them. So the first
statements say what that relied on: each account's row has still those amounts, and the run still this owner and fence
(or is parked still, where it is taken with the commit); for a run that is let go of, also that nothing has come for it.
Where that, or the room in a shared account, does not hold, nothing is written, and `apply_run_commit` decides on what
it reads. Both leave the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from kairos_mcp.budget.units import NOTHING, Units
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.store import tool_memory
from kairos_mcp.store.accounts import AccountChange, unit_columns
from kairos_mcp.store.apply_commit import end_run, insert_answer, insert_step
from kairos_mcp.store.commit import UsualCommit
from kairos_mcp.store.joined_commit import ParkedRun
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.reservations import NO_CHANGE, UPDATE_AMOUNTS, SharedChange, exceeds_held
from kairos_mcp.store.session import Session

_UPDATE_IF_KNOWN = f"{UPDATE_AMOUNTS} and {' and '.join(f'{name} = ?' for name in unit_columns('held', 'spent'))}"
_OWNED = "select 1 from run where n = ? and owner = ? and fence = ? and outcome is null"
_NOTHING_CAME = "not exists (select 1 from deposit where deposit.run = run.n and taken is null)"
_RELEASE = "update run set owner = null, news_seq = seq where n = ?"  # what is handed out is news
_TOKENS_AND_MONEY = Units(input_tokens=1, output_tokens=1, total_tokens=1, nano_usd=1)
_LIMITS_HANDED_OUT = Units(model_calls=1, input_tokens=1, output_tokens=1, total_tokens=1)


WrittenCommit = tuple[UsualCommit, list[int]]
"""A usual commit that was written, and the ids of the rows of the steps that it begins."""


def apply_usual_commit(session: Session, commit: UsualCommit, parked: ParkedRun | None = None) -> list[int] | None:
    """Write the commit and return the ids of the rows of begun steps. None: nothing was written, since something is
    not as it was known.

    `parked`: the run, which is taken in this transaction.
    """
    run, at, hands_out = commit.run, commit.at, commit.hands_out
    condition, bindings = (_OWNED, (run, commit.owner, commit.fence)) if parked is None else parked.condition
    update = _update_while(f"{condition} and {_NOTHING_CAME}" if hands_out else condition)
    written: list[AccountChange] = []
    for change in commit.accounts.values():
        known, changed = change
        amounts = *changed.held, *changed.spent, changed.id, *known.held, *known.spent
        if not session.change(update, (*amounts, *bindings)):
            _restore(session, written)
            return None
        written.append(change)
    if not _charge_shared(session, commit):
        _restore(session, written)
        return None
    if parked is not None:
        parked.take(session, commit.owner, at)
    for answered in commit.answered:
        insert_answer(session, answered.step_id, answered.result, answered.by_route, at)
        if commit.forgets and isinstance(answered.result.answer, ToolResult):
            tool_memory.forget_call(session, run, answered.path)
    if commit.outcome is not None:
        end_run(session, run, commit.outcome, at, forgets=commit.forgets)
    step_ids = [insert_step(session, commit, new, new.held, new.sent, new.shared) for new in commit.begun]
    if hands_out:
        session.rows(_RELEASE, (run,))
    return step_ids


def apply_first_commit(session: Session, run: RunRow, first: UsualCommit) -> WrittenCommit | None:
    """Write the first commit of a run that was inserted in this transaction: it was planned before the run and its
    account had their numbers. None: nothing was written, since a shared account has no room."""
    known, changed = first.accounts[""]
    own = AccountChange(known._replace(id=run.account), changed._replace(id=run.account))
    commit = first._replace(run=run.n, accounts={"": own})
    step_ids = apply_usual_commit(session, commit)
    return None if step_ids is None else (commit, step_ids)


@cache
def _update_while(condition: str) -> str:
    """SQL that writes an account which is as it was known, while the run is as `condition` says."""
    return f"{_UPDATE_IF_KNOWN} and exists ({condition})"


def _restore(session: Session, written: Iterable[AccountChange]) -> None:
    """Write the amounts of these accounts back, within the transaction that changed them."""
    for known, _ in written:
        session.rows(UPDATE_AMOUNTS, (*known.held, *known.spent, known.id))


def _charge_shared(session: Session, commit: UsualCommit) -> bool:
    """Settle and reserve in the accounts that runs share. False: one of them has no room, and all are as they were."""
    changes: dict[int, SharedChange] = {}
    limited: dict[int, Units] = {}
    for answered in commit.answered:
        held, spent = answered.held, answered.result.spent
        for number in answered.shared:
            changes[number] = changes.get(number, NO_CHANGE).plus(SharedChange(NOTHING.minus(held), spent))
            if exceeds_held(held, spent):
                limited[number] = limited.get(number, NOTHING).plus(_TOKENS_AND_MONEY)
    for new in commit.begun:
        for number in new.shared:
            changes[number] = changes.get(number, NO_CHANGE).plus(SharedChange(new.held))
            limits = _LIMITS_HANDED_OUT if new.request.external else new.held
            limited[number] = limited.get(number, NOTHING).plus(limits)
    spare = 1 if commit.hands_out else 0  # what is handed out holds no tokens, but needs that some are left
    written: list[tuple[int, SharedChange]] = []
    for number, change in sorted(changes.items()):
        if number not in limited:
            change.write(session, number)
        elif not change.write_if_room(session, number, limited[number], spare=spare):
            for earlier, done in written:
                done.undone().write(session, earlier)
            return False
        written.append((number, change))
    return True
