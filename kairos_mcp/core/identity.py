"""Who calls: a principal, and the client through which they call."""

from __future__ import annotations

from typing import NamedTuple

from kairos_mcp.core.quick_dataclass import dataclass

LOCAL = "local"
"""The principal who owns the state folder: whoever uses stdio, the commands, or HTTP on loopback without tokens."""


class Actor(NamedTuple):
    """Who did something, as rows record it. `via`: what it came through (mcp, command, page, elicitation,
    clock)."""

    principal: str
    via: str
    client: str


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal, and the client through which they call.

    `samples`: the client offers its own model. `elicits`: it can show a dialog. `decides`: they may decide what the
    gate asks, by a dialog or an argument. `session`: the client's session.
    """

    principal: str = LOCAL
    via: str = "mcp"
    client: str = ""
    samples: bool = False
    elicits: bool = False
    decides: bool = True
    session: str = ""

    @property
    def actor(self) -> Actor:
        """The caller as rows record them."""
        return Actor(self.principal, self.via, self.client)

    @property
    def is_person(self) -> bool:
        """Whether it is a person who owns the state folder: by a command in a terminal, or on the page."""
        return self.via in ("command", "page")

    @property
    def is_local(self) -> bool:
        """Whether it is the owner of the state folder: they alone are shown full paths and commands."""
        return self.principal == LOCAL

    def visible_path(self, folder: str) -> str:
        """Return a folder as this caller may see it: its full path, or only its last part."""
        return folder if self.is_local else folder.rstrip("/").rpartition("/")[2]


def person_on_page(principal: str = LOCAL) -> Caller:
    """The person in the browser, acting on what is this principal's: whoever owns the state folder owns all in it."""
    return Caller(principal, via="page", client="page")


LOCAL_CALLER = Caller()
"""The owner of the state folder, through a client of which nothing is known."""
