"""The jobs behind a tool's memory: a text is kept once under a name, and only by whoever owns the run.

What a call keeps of what it changes goes with its answer: it holds files as they were, secrets and all. And the look by
which a call finds out, right before it is made, that the run is another's by now."""

from __future__ import annotations

import apsw

from kairos_mcp.core.errors import FenceLost, Stale
from kairos_mcp.store.connection import fetch_all, fetch_one

_INTENT, _AFTER_INTENTS = "intent ", "intent!"  # names of what is kept for one call, and the first beyond them
_RECALL_FROM_CALLS = (
    "select memory.body from run as mine join run as other on other.principal = mine.principal"
    " and other.workspace is mine.workspace and other.flow = mine.flow join memory on memory.run = other.n"
    " where mine.n = ? and mine.flow = 'call' and memory.name = ? limit 1"
)
_HAS_ANSWER = "select 1 from mark join answer on answer.mark = mark.id where run = ? and path = ?"


def intent_name(path: str) -> str:
    """The name of what the call at this path keeps until it has its answer."""
    return f"{_INTENT}{path}"


def keep_text(connection: apsw.Connection, run: int, run_id: str, owner: int, fence: int, name: str, text: str) -> None:
    """Keep the text; the same again is no error. Raises FenceLost, ValueError for another text, and Stale for a call
    that has its answer, since nobody would forget it then."""
    check_owner(connection, run, run_id, owner, fence)
    known = recall(connection, run, name)
    if known is None:
        if name.startswith(_INTENT) and _is_answered(connection, run, name.removeprefix(_INTENT)):
            raise Stale("This call has its answer already; nothing was changed.", "Make another call.", run_id=run_id)
        fetch_all(connection, "insert into memory(run, name, body) values (?, ?, ?)", (run, name, text))
    elif known != text:
        raise ValueError(f"{name} is kept already, otherwise")


def _is_answered(connection: apsw.Connection, run: int, path: str) -> bool:
    return fetch_one(connection, _HAS_ANSWER, (run, path)) is not None


def forget_call(connection: apsw.Connection, run: int, path: str) -> None:
    """The call at this path has its answer, or begins anew: what it kept is needed no more. Part of a transaction."""
    fetch_all(connection, "delete from memory where run = ? and name = ?", (run, intent_name(path)))


def forget_calls(connection: apsw.Connection, run: int) -> None:
    """As `forget`, for all calls of a run that ends, those that nobody has settled among them."""
    fetch_all(connection, "delete from memory where run = ? and name >= ? and name < ?", (run, _INTENT, _AFTER_INTENTS))


def check_owner(connection: apsw.Connection, run: int, run_id: str, owner: int, fence: int) -> None:
    """Raises FenceLost where the run does not belong to this owner with this fencing number."""
    if fetch_one(connection, "select 1 from run where n = ? and owner = ? and fence = ?", (run, owner, fence)) is None:
        raise FenceLost(run_id)


def recall(connection: apsw.Connection, run: int, name: str) -> str | None:
    """The text that this run keeps under the name. A single call, which is a run of its own, also recalls what another
    single call in the same workspace keeps for it, as a plan of edits: each is one act of the same user's."""
    found = fetch_one(connection, "select body from memory where run = ? and name = ?", (run, name))
    if found is None and not name.startswith(_INTENT):
        found = fetch_one(connection, _RECALL_FROM_CALLS, (run, name))
    return found[0] if found else None
