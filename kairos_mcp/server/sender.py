"""Who sent the message that is being answered, and what they may do."""

from __future__ import annotations

from collections.abc import Collection
from contextvars import ContextVar
from typing import Literal, get_args

from kairos_mcp.core.decision_rights import LOCAL

ANONYMOUS = ""
"""What the HTTP server starts with: a message whose sender was lost owns nothing."""

Scope = Literal["run", "approve", "admin", "observe"]
ALL_SCOPES: tuple[Scope, ...] = get_args(Scope)
"""What a token may allow: to use the tools, to decide in dialogs (and by arguments, where the settings trust the host),
to propose tools and servers, to look at the runs of all principals without deciding anything about them."""
SCOPES: tuple[Scope, ...] = ("run", "approve", "admin")
"""The scopes of a token for which none were chosen, and of anyone without a token."""

_scopes: ContextVar[Collection[str]] = ContextVar("kairos_scopes", default=SCOPES)
_ends_at: ContextVar[int | None] = ContextVar("kairos_ends_at", default=None)
_principal: ContextVar[str] = ContextVar("kairos_principal", default=LOCAL)


def current_principal() -> str:
    """Whose message is being answered: over HTTP the principal of its token, else the person at this machine."""
    return _principal.get()


def set_principal(name: str) -> None:
    """Answer messages as this principal's from here on, in this context."""
    _principal.set(name)


def has_scope(scope: Scope) -> bool:
    """Whether the sender of the message that is being answered has this scope."""
    return scope in _scopes.get()


def set_scopes(scopes: Collection[str]) -> None:
    """Answer messages as of a sender with these scopes from here on, in this context."""
    _scopes.set(scopes)


def current_end() -> int | None:
    """When the sender's token ends, in milliseconds since 1970; None without a token, or if it never does."""
    return _ends_at.get()


def set_end(at: int | None) -> None:
    """Answer messages as of a sender whose token ends then from here on, in this context."""
    _ends_at.set(at)
