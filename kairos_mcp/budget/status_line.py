"""The status line that shows a model how much of its limits is used, placed at the end of the newest turn."""

from __future__ import annotations

from functools import lru_cache

from kairos_mcp.budget.units import Account
from kairos_mcp.core.limits import Limits

_NAMES = {  # in the order of the line
    "rounds": "round",
    "model_calls": "model calls",
    "tool_calls": "tool calls",
    "total_tokens": "tokens",
    "input_tokens": "tokens in",
    "output_tokens": "tokens out",
    "nano_usd": "$",
    "milliseconds": "s",
}


def format_status_line(account: Account, *, closing: bool = False) -> str | None:
    """Format what is used of a run's limits: `[round 3 of 12, 38k of 100k tokens]`; None where nothing is limited.

    The closing call is no further round, and its prompt already says that it is the last.
    """
    capped = _capped_units(account.caps)
    if not capped:
        return None
    parts = ", ".join([_format_unit(account, unit, cap, closing=closing) for unit, cap in capped])
    return f"[{parts}{'' if closing else _warning(account)}]"


@lru_cache(maxsize=256)  # most runs have the same limits, and their status is formatted every round
def _capped_units(caps: Limits) -> tuple[tuple[str, int], ...]:
    return tuple([(unit, cap) for unit in _NAMES if (cap := getattr(caps, unit)) is not None])


def _format_unit(account: Account, unit: str, cap: int, *, closing: bool) -> str:
    spent: int = getattr(account.spent, unit)
    match unit:
        case "rounds":
            return f"round {spent + account.held.rounds + (not closing)} of {cap}"
        case "model_calls" | "tool_calls":
            return f"{spent} of {cap} {_NAMES[unit]}"
        case "nano_usd":
            return f"${spent / 1e9:.2f} of ${cap / 1e9:.2f}"
        case "milliseconds":
            return f"{spent / 1000:.0f} of {cap / 1000:.0f} s"
        case _:
            return f"{_short_number(spent)} of {_short_number(cap)} {_NAMES[unit]}"


def _warning(account: Account) -> str:
    """Tell the model to finish, from 3 rounds of 10 left, or a quarter of any other limit."""
    is_little = False
    for unit, cap in _capped_units(account.caps):
        left = max(0, cap - getattr(account.held, unit) - getattr(account.spent, unit))
        if unit != "rounds":
            is_little = is_little or left * 4 <= cap
        elif cap and left * 10 <= cap * 3:
            return f"; {left} {'round' if left == 1 else 'rounds'} left: finish"
    return "; little is left: finish" if is_little else ""


def _short_number(tokens: int) -> str:
    return f"{tokens / 1000:.0f}k" if tokens >= 10_000 else str(tokens)
