"""The status line that shows a model how much of its limits is used, placed at the end of the newest turn."""

from __future__ import annotations

from kairos_mcp.budget.units import Account


def format_status_line(account: Account, *, closing: bool = False) -> str | None:
    """Format what is used of a run's limits: `[round 3 of 12, 38k of 100k tokens]`; None where nothing is limited.

    The closing call is no further round, and its prompt already says that it is the last.
    """
    caps, spent = account.caps, account.spent
    parts = []
    if caps.rounds is not None:
        parts.append(f"round {spent.rounds + account.held.rounds + (not closing)} of {caps.rounds}")
    for unit, name in (("model_calls", "model calls"), ("tool_calls", "tool calls")):
        if (cap := getattr(caps, unit)) is not None:
            parts.append(f"{getattr(spent, unit)} of {cap} {name}")
    for unit, name in (
        ("total_tokens", "tokens"),
        ("input_tokens", "tokens in"),
        ("output_tokens", "tokens out"),
    ):
        if (cap := getattr(caps, unit)) is not None:
            parts.append(f"{_short_number(getattr(spent, unit))} of {_short_number(cap)} {name}")
    if caps.nano_usd is not None:
        parts.append(f"${spent.nano_usd / 1e9:.2f} of ${caps.nano_usd / 1e9:.2f}")
    if caps.milliseconds is not None:
        parts.append(f"{spent.milliseconds / 1000:.0f} of {caps.milliseconds / 1000:.0f} s")
    if not parts:
        return None
    return f"[{', '.join(parts)}{'' if closing else _warning(account)}]"


def _warning(account: Account) -> str:
    """Tell the model to finish, from 3 rounds of 10 left, or a quarter of any other limit."""
    caps, held, spent = account.caps, account.held, account.spent
    if caps.rounds:
        left = max(0, caps.rounds - held.rounds - spent.rounds)
        if left * 10 <= caps.rounds * 3:
            return f"; {left} {'round' if left == 1 else 'rounds'} left: finish"
    for unit in (
        "total_tokens",
        "input_tokens",
        "output_tokens",
        "nano_usd",
        "milliseconds",
        "model_calls",
        "tool_calls",
    ):
        cap = getattr(caps, unit)
        if cap is not None and max(0, cap - getattr(held, unit) - getattr(spent, unit)) * 4 <= cap:
            return "; little is left: finish"
    return ""


def _short_number(tokens: int) -> str:
    return f"{tokens / 1000:.0f}k" if tokens >= 10_000 else str(tokens)
