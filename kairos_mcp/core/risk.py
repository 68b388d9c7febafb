"""How risky a call is, by one table, which the gate and the act phase both ask; a model can only raise it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from kairos_mcp.core.messages import Effect
from kairos_mcp.core.scopes import Scope

Risk = Literal["low", "medium", "high"]
RISKS: tuple[Risk, ...] = get_args(Risk)
"""From low to high."""


def table_risk(effect: Effect | None, scopes: Sequence[Scope], *, edits_several: bool) -> Risk:
    """Return the risk of a call; high where it is not known what it changes.

    `effect`: its tool's, None if there is no such tool. `scopes`: one for each path that it touches, none if they are
    not known. `edits_several`: whether its tool may edit several files at once.
    """
    match effect:
        case "read":
            return "low"
        case None | "irreversible":
            return "high"
        case _ if "L0" in scopes:
            return "high"
        case "idempotent":
            return "medium"
        case "checked" if edits_several or "L1" in scopes or len(scopes) > 1:
            return "medium"
        case "checked":
            return "low" if scopes else "high"


def raise_risk(risk: Risk, declared: Risk) -> Risk:
    """Return the higher of a risk and the one that a model declared."""
    return max(risk, declared, key=RISKS.index)
