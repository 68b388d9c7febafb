"""Definitions of tools from other sources, pinned by hash: which are approved, and which wait for a person.

Its callers are worker threads and commands, so each method opens a connection of its own for one short transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, cast

from kairos_mcp.core.errors import ApprovalsFull, NotFound
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store.database import Store
from kairos_mcp.store.rows import Session

State = Literal["approved", "pending", "removed"]
FIRST_USE = "first use"  # who approved what a server listed when it was met first
MAX_PENDING = 500  # of one source: one with new definitions at each start must not fill the store
REGISTERED = "registered"  # the source of what agents proposed; a server's source has an @ in its name
MAX_PROPOSED = 16  # proposals that wait at a time
SOURCE_ROW = ""  # the name of the row that says that a source was seen, whatever it listed

_COLUMNS = "source, name, hash, body, state, at, by"


@dataclass(frozen=True, slots=True)
class DefinitionRow:
    """A definition as a source gave it. `body`: JSON. `at`: milliseconds since 1970. `by`: who set its state."""

    source: str
    name: str
    hash: str
    body: str
    state: State
    at: int
    by: str


class DefinitionTable:
    """The table `definition` of one store."""

    def __init__(self, store: Store) -> None:
        store.open()  # migrated, in the thread that owns the store
        self._store = store

    def read_source(self, source: str) -> tuple[DefinitionRow, ...] | None:
        """Return a source's definitions by name; None if the source was never seen."""
        with self._store.read_session() as session:
            return _read_source(session, source)

    def is_approved(self, source: str, name: str, content_hash: str) -> bool:
        """Whether exactly this definition is approved now."""
        key = (source, name, content_hash)
        with self._store.read_session() as session:
            found = session.row("select state from definition where source = ? and name = ? and hash = ?", key)
        return found is not None and found[0] == "approved"

    def list_pending(self) -> tuple[DefinitionRow, ...]:
        """Return the definitions of all sources that wait for a person."""
        with self._store.read_session() as session:
            return _select(session, "where state = 'pending' order by source, name, at")

    def record_listing(self, source: str, found: Mapping[str, tuple[str, str]], at: int) -> tuple[DefinitionRow, ...]:
        """Record what a source lists now, {name: (hash, body)}; return its definitions then.

        The first time all are approved, since a person has configured the source (trust on first use). Later a hash
        that was not seen before waits for a person. So does everything of a source whose server's name another source
        had before: a person knew that name as another program or address. What a person has removed stays removed.
        """
        with self._store.write_session() as session:
            known = _read_source(session, source)
            trusted = known is None and not _has_namesake(session, source)
            if known is None:
                _insert(
                    session, DefinitionRow(source, SOURCE_ROW, "", "", "approved", at, FIRST_USE if trusted else "")
                )
            seen = {(definition.name, definition.hash) for definition in known or ()}
            for name, (content_hash, body) in found.items():
                if (name, content_hash) in seen:
                    continue
                if trusted:
                    _insert(session, DefinitionRow(source, name, content_hash, body, "approved", at, FIRST_USE))
                else:
                    _insert_pending(session, DefinitionRow(source, name, content_hash, body, "pending", at, ""))
            return _read_source(session, source) or ()

    def propose(self, name: str, content_hash: str, body: str, by: str, at: int) -> State:
        """Insert an agent's proposal, which waits for a person in place of an earlier one with its name.

        Returns the state of exactly this definition: one that a person has approved or removed keeps its state. Raises
        ApprovalsFull.
        """
        key = (REGISTERED, name, content_hash)
        with self._store.write_session() as session:
            found = session.row("select state from definition where source = ? and name = ? and hash = ?", key)
            if found is not None:
                return cast(State, found[0])
            others = "select count(*) from definition where source = ? and state = 'pending' and name <> ?"
            waiting = session.row(others, (REGISTERED, name))
            if waiting is not None and waiting[0] >= MAX_PROPOSED:
                raise ApprovalsFull(
                    f"{waiting[0]} proposals wait for a person already.",
                    "They are decided by `kairos-mcp tools list`, `tools approve` and `tools remove`.",
                )
            _insert_pending(session, DefinitionRow(REGISTERED, name, content_hash, body, "pending", at, by))
        return "pending"

    def approve(self, source: str, name: str, content_hash: str, by: str, at: int) -> None:
        """Approve a definition; every other of its name is removed. Raises NotFound."""
        with self._store.write_session() as session:
            _require_definition(session, source, name, content_hash)
            session.rows(
                "update definition set state = 'removed', at = ?, by = ? "
                "where source = ? and name = ? and hash <> ? and state <> 'removed'",
                (at, by, source, name, content_hash),
            )
            _set_state(session, "approved", (source, name, content_hash), by, at)

    def remove(self, source: str, name: str, content_hash: str, by: str, at: int) -> None:
        """Remove a definition, approved or pending. Raises NotFound."""
        with self._store.write_session() as session:
            _require_definition(session, source, name, content_hash)
            _set_state(session, "removed", (source, name, content_hash), by, at)


def _read_source(session: Session, source: str) -> tuple[DefinitionRow, ...] | None:
    found = _select(session, "where source = ? order by name, at", (source,))
    return tuple(definition for definition in found if definition.name != SOURCE_ROW) if found else None


def _has_namesake(session: Session, source: str) -> bool:
    """Whether there is another source with the same server's name, which is the part before the @."""
    name = source.partition("@")[0] + "@"
    others = "select 1 from definition where substr(source, 1, ?) = ? and source <> ? limit 1"
    return session.row(others, (len(name), name, source)) is not None


def _select(session: Session, condition: str, bindings: Sequence[str] = ()) -> tuple[DefinitionRow, ...]:
    return tuple(
        DefinitionRow(*found) for found in session.rows(f"select {_COLUMNS} from definition {condition}", bindings)
    )


def _insert(session: Session, new: DefinitionRow) -> None:
    session.rows(
        f"insert into definition({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?)",
        (new.source, new.name, new.hash, new.body, new.state, new.at, new.by),
    )


def _insert_pending(session: Session, new: DefinitionRow) -> None:
    """Insert a pending definition in place of an earlier pending one of its name.

    Beyond MAX_PENDING nothing is stored: a definition that can't be approved is not offered either.
    """
    gone = "delete from definition where source = ? and name = ? and state = 'pending'"
    session.rows(gone, (new.source, new.name))
    waiting = session.row("select count(*) from definition where source = ? and state = 'pending'", (new.source,))
    if waiting is not None and waiting[0] < MAX_PENDING:
        _insert(session, new)


def _require_definition(session: Session, source: str, name: str, content_hash: str) -> None:
    key = (source, name, content_hash)
    if not name or session.row("select 1 from definition where source = ? and name = ? and hash = ?", key) is None:
        raise NotFound(f"There is no such definition of {name[:80]!r}.", "`kairos-mcp tools list` shows what waits.")


def _set_state(session: Session, state: State, key: tuple[str, str, str], by: str, at: int) -> None:
    session.rows(
        "update definition set state = ?, at = ?, by = ? where source = ? and name = ? and hash = ?",
        (state, at, by, *key),
    )


def list_registered(session: Session) -> tuple[DefinitionRow, ...]:
    """Return what agents proposed, by name, in whatever state; quick enough for the event loop."""
    return _select(session, "where source = ? order by name, at", (REGISTERED,))
