"""Who calls: a principal, and the client through which they call."""

from __future__ import annotations

from dataclasses import dataclass

LOCAL = "local"
"""The principal who owns the state folder: whoever uses stdio, the commands, or HTTP on loopback without tokens."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and through what: the record names them with every request and decision. `samples`: their client
    offers its own model; `elicits`: it can show them a dialog; `session`: the one that they call in."""

    principal: str = LOCAL
    via: str = "mcp"
    client: str = ""
    samples: bool = False
    elicits: bool = False
    session: str = ""

    @property
    def as_row(self) -> tuple[str, str, str]:
        return (self.principal, self.via, self.client)

    @property
    def is_local(self) -> bool:
        """Whether it is the person who owns the state folder: they alone are shown whole paths and commands."""
        return self.principal == LOCAL

    def visible_path(self, folder: str) -> str:
        """A folder as this caller may see it: whole, or its last part alone."""
        return folder if self.is_local else folder.rstrip("/").rpartition("/")[2]


ANYBODY_LOCAL = Caller()
"""A caller of whom nothing more is known than that they own the state folder."""
