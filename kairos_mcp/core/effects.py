"""What a tool's call does, in four classes: what the gate, a recovery after a crash and the hints of a tool go by."""

from __future__ import annotations

from typing import Literal, get_args

Effect = Literal["read", "idempotent", "checked", "irreversible"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)  # from what changes nothing to what can't be undone
REPEATABLE_EFFECTS: tuple[Effect, ...] = ("read", "idempotent")  # whose calls may be made again after a crash
