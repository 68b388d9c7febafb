"""Whose message is being answered: the HTTP door says it for each one; elsewhere it is the person's own."""

from __future__ import annotations

from contextvars import ContextVar

from kairos_mcp.core.identity import LOCAL

NOBODY = ""  # what the HTTP door starts with, so that a message whose sender got lost owns nothing

_who: ContextVar[str] = ContextVar("kairos_principal", default=LOCAL)


def principal() -> str:
    """The principal of the message at hand."""
    return _who.get()


def speaks_for(name: str) -> None:
    """From here on in this context, messages are this principal's."""
    _who.set(name)
