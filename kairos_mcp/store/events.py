"""Events as rows: what happened that somebody may be told of, and whom events are sent to (`listener`).

Triggers write an event in the transaction of what happened (migrations/1.sql), so there is one exactly if that was
committed. On PostgreSQL a later id may be committed first. So events are ordered by the transaction that wrote them,
and told once no transaction is open that began before (the view `told_event`): a position never passes an open one. On
SQLite transactions follow each other, and every event has the transaction 0.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple, get_args

from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store.rows import Session, placeholders

EventKind = Literal["run.waiting", "run.ended", "run.stopped", "budget.near", "mandate.due", "mandate.ended"]
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)


class Position(NamedTuple):
    """A place in the order of events: the transaction and the id of the last event before it."""

    tx: int
    event: int


BEGINNING = Position(-1, 0)
NO_TIME = 2**62  # after every time


class EventRow(NamedTuple):
    """An event. `at`: milliseconds since 1970. `run`: the id of the run; None: it is about none. `what`: what waits
    (approval, settle, pause), or whose limit is nearly used (run, mandate, day). `key`: of the item that waits, or the
    account's number."""

    id: int
    tx: int
    at: int
    kind: EventKind
    principal: str
    workspace: str
    run: str | None
    mandate: str | None
    what: str | None
    key: str | None

    @property
    def position(self) -> Position:
        return Position(self.tx, self.id)

    @property
    def public_id(self) -> str:
        """The id by which receivers know the event: the same over all tries, from any server."""
        return f"evt_{self.id}_{self.at}"


_COLUMNS = "id, tx, at, kind, principal, workspace, run, mandate, what, key"


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events of a principal are meant. None, or no kinds: any. `workspaces`: '' stands for no workspace."""

    principal: str
    kinds: Collection[str] = ()
    workspaces: Sequence[str] | None = None
    run: str | None = None
    mandate: str | None = None
    what: str | None = None

    def condition(self) -> tuple[str, list[str]]:
        """Return the SQL and its bindings."""
        parts, bindings = ["principal = ?"], [self.principal]
        for column, values in (("kind", self.kinds or None), ("workspace", self.workspaces)):
            if values is not None:
                parts.append(f"{column} in ({placeholders(values)})")
                bindings += values
        for column, value in (("run", self.run), ("mandate", self.mandate), ("what", self.what)):
            if value is not None:
                parts.append(f"{column} = ?")
                bindings.append(value)
        return " and ".join(parts), bindings


def read_after(session: Session, after: Position, wanted: EventFilter, limit: int) -> list[EventRow]:
    """Return at most `limit` events after a position, in their order."""
    condition, bindings = wanted.condition()
    statement = f"select {_COLUMNS} from told_event where (tx, id) > (?, ?) and {condition} order by tx, id limit ?"
    return [EventRow._make(row) for row in session.rows(statement, (*after, *bindings, limit))]


def read_since(session: Session, at: int, wanted: EventFilter, limit: int) -> list[EventRow]:
    """Return at most `limit` of the newest events since a time (milliseconds since 1970), in their order."""
    condition, bindings = wanted.condition()
    statement = f"select {_COLUMNS} from told_event where at >= ? and {condition} order by tx desc, id desc limit ?"
    found = [EventRow._make(row) for row in session.rows(statement, (at, *bindings, limit))]
    return found[::-1]


def read_events(session: Session, ids: Collection[int]) -> list[EventRow]:
    """Return the events with these ids, in their order."""
    statement = f"select {_COLUMNS} from event where id in ({placeholders(ids)}) order by tx, id"
    return [EventRow._make(row) for row in session.rows(statement, tuple(ids))]


def newest_position(session: Session) -> Position:
    """Return the position after every event that can be told now."""
    return position_before(session, NO_TIME)


def position_before(session: Session, at: int) -> Position:
    """Return the position after every event from before a time (milliseconds since 1970)."""
    found = session.row("select tx, id from told_event where at < ? order by tx desc, id desc limit 1", (at,))
    return BEGINNING if found is None else Position._make(found)


def oldest_id(session: Session) -> int | None:
    """Return the id of the oldest event that is kept, None if absent."""
    found = session.row("select min(id) from event")
    return None if found is None else found[0]


def remove_old(session: Session, before: int) -> int:
    """Remove the events from before a time (ms), except the newest, whose id is then given to no other. Part of a
    transaction; return how many."""
    return session.change("delete from event where at < ? and id < (select max(id) from event)", (before,))


# -- listeners --------------------------------------------------------------------------------------------------


class ListenerRow(NamedTuple):
    """Whom events are sent to. `name`: what it is known by; `secret`: JSON of the secrets that sign, the newest first.
    `state`: JSON of the sender's own. `owner`: the server that sends. `tries`: that failed since the last one that did
    not; `next_at`: when to try again; `expires_at`: None: never. Times in milliseconds since 1970."""

    id: int
    name: str
    principal: str
    body: str
    secret: str | None
    tx: int
    event: int
    state: str
    owner: int | None
    tries: int
    next_at: int
    expires_at: int | None

    @property
    def position(self) -> Position:
        return Position(self.tx, self.event)


_LISTENER = "id, name, principal, body, secret, tx, event, state, owner, tries, next_at, expires_at"


def list_listeners(session: Session, at: int) -> list[ListenerRow]:
    """Return the listeners that have not expired."""
    statement = f"select {_LISTENER} from listener where expires_at is null or expires_at > ? order by id"
    return [ListenerRow._make(row) for row in session.rows(statement, (at,))]


def find_listener(session: Session, name: str) -> ListenerRow | None:
    """Return the listener of this name, None if absent."""
    found = session.row(f"select {_LISTENER} from listener where name = ?", (name,))
    return None if found is None else ListenerRow._make(found)


def add_listener(
    session: Session,
    name: str,
    principal: str,
    body: str = "{}",
    *,
    secret: str | None = None,
    start: Position | None = None,
    expires_at: int | None = None,
) -> None:
    """Add a listener, from a position on (None: from now), or renew the one of this name, which goes on where it is."""
    begin = newest_position(session) if start is None else start
    session.rows(
        "insert into listener(name, principal, body, secret, tx, event, expires_at) values (?, ?, ?, ?, ?, ?, ?)"
        " on conflict(name) do update set body = excluded.body, secret = excluded.secret, tries = 0, next_at = 0,"
        " expires_at = excluded.expires_at",
        (name, principal, body, secret, *begin, expires_at),
    )


def remove_listener(session: Session, name: str) -> bool:
    """Remove a listener; return whether there was one."""
    return session.change("delete from listener where name = ?", (name,)) > 0


def remove_expired(session: Session, at: int) -> None:
    """Remove the listeners whose time is over."""
    session.rows("delete from listener where expires_at <= ?", (at,))


def end_webhooks(session: Session, principal: str, at: int) -> None:
    """Have the webhooks of a principal end then (ms), unless they end before."""
    session.rows("update listener set expires_at = ? where principal = ? and expires_at > ?", (at, principal, at))


def claim_listener(session: Session, listener: ListenerRow, owner: int) -> bool:
    """Make a server the one that sends to a listener, unless another one came first; return whether it is."""
    statement = "update listener set owner = ? where id = ? and owner is not distinct from ?"
    return session.change(statement, (owner, listener.id, listener.owner)) > 0


def release_listeners(session: Session, owner: int) -> None:
    """Leave all listeners of a server to any other."""
    session.rows("update listener set owner = null where owner = ?", (owner,))


def record_sent(session: Session, listener: ListenerRow, to: Position, at: int) -> bool:
    """Record how far a listener was sent events, and its state. False, and nothing is written, where another server
    sends by now, or its time is over."""
    return (
        session.change(
            "update listener set tx = ?, event = ?, state = ?, tries = 0, next_at = 0"
            " where id = ? and owner = ? and (expires_at is null or expires_at > ?)",
            (*to, listener.state, listener.id, listener.owner, at),
        )
        > 0
    )


def write_state(session: Session, name: str, state: str) -> None:
    """Write what the listener of this name remembers."""
    session.rows("update listener set state = ? where name = ?", (state, name))


def move_forward(session: Session, name: str, to: Position) -> None:
    """Move the listener of this name to a position, unless it is past that."""
    session.rows("update listener set tx = ?, event = ? where name = ? and (tx, event) < (?, ?)", (*to, name, *to))


def record_failed(session: Session, listener: ListenerRow, next_at: int) -> None:
    """Record that a try failed, and when the next one is due."""
    statement = "update listener set tries = tries + 1, next_at = ? where id = ? and owner = ?"
    session.rows(statement, (next_at, listener.id, listener.owner))
