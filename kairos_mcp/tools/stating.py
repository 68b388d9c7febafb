"""What the author of a function states of it as a tool: the one thing that other packages import from here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.messages import Effect, JsonObject

F = TypeVar("F", bound=Callable[..., Any])
GROUP = "kairos_mcp.tools"  # of entry points
_MARK = "__kairos_tool__"


@dataclass(frozen=True, slots=True)
class ToolStatement:
    """What a function states of itself; without a word it is irreversible."""

    effect: Effect = "irreversible"
    category: str = "other"
    timeout_s: float = 60
    examples: tuple[JsonObject, ...] = ()


def tool(
    *,
    effect: Effect = "irreversible",
    category: str = "other",
    timeout_s: float = 60,
    examples: Sequence[JsonObject] = (),
) -> Callable[[F], F]:
    """State what a function does when it is offered as a tool; the function itself stays what it is.

    `effect`: "read" (changes nothing; repeated freely, side by side), "idempotent" (may be repeated after a crash) or
    "irreversible". Raises ConfigError for another.
    """
    if effect not in ("read", "idempotent", "irreversible"):
        raise ConfigError(f"A function can't be of the effect {effect!r}.", "Use read, idempotent or irreversible.")

    def state(function: F) -> F:
        setattr(function, _MARK, ToolStatement(effect, category, timeout_s, tuple(examples)))
        return function

    return state


def stated_of(function: object) -> ToolStatement:
    found = getattr(function, _MARK, None)
    return found if isinstance(found, ToolStatement) else ToolStatement()
