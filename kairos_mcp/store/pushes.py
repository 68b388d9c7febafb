"""Write the table `push`: which server asks a client about what waits in a run.

A client may be connected to several servers, and each of them is called about the run. One asks, and the others wait
for the answer: as long as that server lives, the same client is asked by no other. Of another client nothing is known,
so a call of its own lets it be asked.
"""

from __future__ import annotations

from typing import NamedTuple

from kairos_mcp.store.ownership import Owners, is_owner_alive
from kairos_mcp.store.rows import Session

OLD_MS = 600_000  # after which a push counts for nothing: its end may not have been written
_HOLD = (
    "insert into push(run, key, owner, client, at) values (?, ?, ?, ?, ?) on conflict (run, key) do update"
    " set owner = excluded.owner, client = excluded.client, at = excluded.at"
)


class NewPush(NamedTuple):
    """What a server is about to ask a client: in the run with this number, by the key of what waits, at this time."""

    run: int
    key: str
    owner: int
    client: str
    at: int


def claim(session: Session, owners: Owners, new: NewPush) -> bool:
    """Claim what a server is about to ask; False where another living server is asking the same client."""
    found = session.row("select owner, client, at from push where run = ? and key = ?", (new.run, new.key))
    if found is not None:
        owner, client, at = found
        is_of_another = owner != new.owner and client == new.client and new.at - at <= OLD_MS
        if is_of_another and is_owner_alive(session, owners, owner):
            return False
    session.rows(_HOLD, new)
    return True


def release(session: Session, run: int, key: str, owner: int) -> None:
    """Give up what this server claimed: the client has answered, or is asked no more."""
    session.rows("delete from push where run = ? and key = ? and owner = ?", (run, key, owner))
