"""What a server remembers of the sessions of its clients for as long as it lives: who did not answer, and about what.

A session is one connection on stdio and SSE, one `mcp-session-id` on Streamable HTTP, and from 2026-07-28 on, where
there is none, a principal with the name of its client.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

KEPT = 1_024  # sessions that are remembered; the one that was longest unheard of goes first
DIALOGS = 256  # of one session that are remembered


@dataclass(slots=True)
class ClientState:
    """One session. `silent`: its model was asked and did not answer in time, and has not answered since. `ignored`: the
    dialogs that nobody answered: a run's number, the approval's key, its digest."""

    silent: bool = False
    ignored: OrderedDict[tuple[int, str, str], None] = field(default_factory=OrderedDict)

    def ignore(self, run: int, key: str, digest: str) -> None:
        """Nobody answered this dialog: this session is not asked again."""
        self.ignored[run, key, digest] = None
        while len(self.ignored) > DIALOGS:
            self.ignored.popitem(last=False)

    def forget_ignored(self, run: int) -> None:
        """Somebody wishes to be asked again about this run."""
        for dialog in [dialog for dialog in self.ignored if dialog[0] == run]:
            del self.ignored[dialog]


class ClientStates:
    """The sessions of this server's clients by their ids; one that was never heard of is new."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, ClientState] = OrderedDict()

    def state_of(self, session: str) -> ClientState:
        known = self._known.setdefault(session, ClientState())
        self._known.move_to_end(session)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return known
