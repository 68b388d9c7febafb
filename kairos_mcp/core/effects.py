"""What a tool's call does, in five classes, by which the gate, a recovery and the hints of a tool decide."""

from __future__ import annotations

from typing import Literal, get_args

Effect = Literal["read", "idempotent", "keyed", "checked", "irreversible"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)  # from what changes nothing to what can't be undone
WRITING_TOOLS = ("ooda_run", "ooda_act", "mandate_save", "registry_register")
"""MCP tools that a read-only server does not have."""
REPEATABLE_EFFECTS: tuple[Effect, ...] = ("read", "idempotent")  # of calls that anybody may make again
KEY_LIFE_S = 86_400  # how long a server keeps the keys of calls, if nothing else is stated

Reach = Literal["inside", "service", "outside"]
REACHES: tuple[Reach, ...] = get_args(
    Reach
)  # from where nothing leaves to where the arguments, or anybody, may lead it
"""How far what a call takes along can get: nowhere; to its own server, where only those read whom the person trusts;
anywhere."""


def is_stricter(effect: Effect, than: Effect) -> bool:
    """Whether calls of the first effect may be made again in fewer cases."""
    return EFFECTS.index(effect) > EFFECTS.index(than)
