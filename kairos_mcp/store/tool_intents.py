"""Store what tools remember about a run: texts by name, written once, and only by the run's owner.

What a call is about to change is stored as its intent, and deleted with the call's answer: it holds the files as they
were, including any secrets. `check_owner` tells a call right before it is made whether the run is still its server's.
"""

from __future__ import annotations

from kairos_mcp.core.errors import FenceLost, Stale
from kairos_mcp.store.rows import Session

_STAGE, _AFTER_STAGE = "stage ", "stage!"  # the prefix of what a stage's calls touched, and the first name after it
_PLAN = "plan "  # the prefix of the names of what single calls share
_INTENT, _AFTER_INTENTS = "intent ", "intent!"  # the prefix of intents' names, and the first name after all of them
_RECALL_FROM_CALLS = (
    "select body from run as mine join run as other on other.principal = mine.principal"
    " and other.workspace is not distinct from mine.workspace and other.place is not distinct from mine.place"
    " and other.flow = mine.flow"
    " join tool_intent on tool_intent.run = other.n where mine.n = ? and mine.flow = 'call' and name = ? limit 1"
)
_HAS_ANSWER = "select 1 from step join answer on answer.step = step.id where run = ? and path = ?"
_KEEP_TEXT = (
    "insert into tool_intent(run, name, body) select n, ?, ? from run where n = ? and owner = ? and fence = ?"
    f" and not exists ({_HAS_ANSWER}) on conflict do nothing returning 1"
)


def intent_name(path: str) -> str:
    """Return the name under which the call at this path stores its intent."""
    return f"{_INTENT}{path}"


def plan_name(plan_id: str) -> str:
    """Return the name under which a plan is stored, which another single call may apply."""
    return f"{_PLAN}{plan_id}"


def stage_note_name(number: int) -> str:
    """Return the name of a run's note of this number on its stage; they are numbered from 1."""
    return f"{_STAGE}{number:06}"


def keep_text(session: Session, run: int, run_id: str, owner: int, fence: int, name: str, text: str) -> None:
    """Store a text under a name; the same text again is no error.

    Raises FenceLost, ValueError for another text under the same name, and Stale for the intent of a call that has its
    answer, since nothing would delete it any more.
    """
    call = name.removeprefix(_INTENT) if name.startswith(_INTENT) else None
    if session.row(_KEEP_TEXT, (name, text, run, owner, fence, run, call)) is not None:
        return
    check_owner(session, run, run_id, owner, fence)
    known = _recall_own(session, run, name)
    if known is None:
        raise Stale("This call has its answer already; nothing was changed.", "Make another call.", run_id=run_id)
    if known != text:
        raise ValueError(f"{name} is kept already, otherwise")


def forget_call(session: Session, run: int, path: str) -> None:
    """Delete the intent of the call at this path, which has its answer or begins again. Part of a transaction."""
    session.rows("delete from tool_intent where run = ? and name = ?", (run, intent_name(path)))


def forget_calls(session: Session, run: int) -> None:
    """Delete the intents of all calls of a run that ends, including those of unknown outcome."""
    session.rows("delete from tool_intent where run = ? and name >= ? and name < ?", (run, _INTENT, _AFTER_INTENTS))


def check_owner(session: Session, run: int, run_id: str, owner: int, fence: int) -> None:
    """Raise FenceLost where the run does not belong to this owner with this fencing number."""
    if session.row("select 1 from run where n = ? and owner = ? and fence = ?", (run, owner, fence)) is None:
        raise FenceLost(run_id)


def recall(session: Session, run: int, name: str) -> str | None:
    """Return the text that this run has stored under the name, or None.

    A single call, which is a run of its own, also finds the plans of edits of other single calls of the same principal
    and workspace. All else is its run's own: paths of calls are the same in all single calls.
    """
    own = _recall_own(session, run, name)
    if own is not None or not name.startswith(_PLAN):
        return own
    found = session.row(_RECALL_FROM_CALLS, (run, name))
    return found[0] if found else None


def recall_stage_notes(session: Session, run: int) -> list[str]:
    """Return what this run has noted of its stage, oldest first."""
    statement = "select body from tool_intent where run = ? and name >= ? and name < ? order by name"
    return [body for (body,) in session.rows(statement, (run, _STAGE, _AFTER_STAGE))]


def _recall_own(session: Session, run: int, name: str) -> str | None:
    found = session.row("select body from tool_intent where run = ? and name = ?", (run, name))
    return found[0] if found else None
