"""What a run says of limits beside its answers: that a report took an account past one, that no day has room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote
from typing import NamedTuple

from kairos_mcp.budget.reservation import WHOLE_PREFIX, ReservationRequest, minimum_hold
from kairos_mcp.budget.units import Account
from kairos_mcp.core.steps import Answer, Refused

USED_UP_REASONS = {
    "day": "What may be used on a day is used up (`kairos-mcp budget`).",
    "mandate": "What this mandate may use on a day is used up (`kairos-mcp budget`).",
}
"""Why a run is paused, by the scope of the account that is used up."""


def clock_behind_reason(principal: str) -> str:
    """Why a run is paused where the clock is so far behind that no day can be charged."""
    whose = f" --principal {quote(principal)}" if principal != "local" else ""
    return (
        "The clock shows a day more than 48 hours before one that was begun already, so no model call is made. Set the"
        f" clock; or, if it is right now, run `kairos-mcp budget --trust-clock{whose}`."
    )


_LIMIT_GROUPS = {"run": "limits", "day": "day", "mandate": "the mandate's day"}


def exceeded_cap_notes(exceeded: Iterable[tuple[Account, str]]) -> Iterator[str]:
    """One sentence for each cap that a report above what was held has taken an account past."""
    for account, unit in exceeded:
        cap, spent, held = (getattr(amounts, unit) for amounts in (account.caps, account.spent, account.held))
        limit = f"{_format_limit(account.scope, unit)} is {_format_amount(unit, cap)}"
        took = f"{limit}; an answer that used more than was held took it to"
        others = " with what other steps hold" if held else ""
        yield f"{took} {_format_amount(unit, spent + held)}{others}."


class AskedCompletion(NamedTuple):
    """A completion that was asked for, what came of it, and whether its account had paid for none before."""

    path: str
    request: ReservationRequest
    answer: Answer | None
    is_first: bool


def too_small_notes(asked: Iterable[AskedCompletion]) -> Iterator[str]:
    """How much a model call needs that was refused for good: where a whole day of some account has no room for it, or
    where a limit has none for the very first one."""
    for each in asked:
        match each.answer:
            case Refused(limit=unit, allowed=cap, scope=scope) if scope.startswith(WHOLE_PREFIX):
                limit = _format_limit(scope.removeprefix(WHOLE_PREFIX), unit)
                price = ", or set price_input and price_output where the model has no price" * (unit == "nano_usd")
                need = _format_need(each, unit)
                yield (
                    f"{limit} is {_format_amount(unit, cap)} for a whole day, and the next model call needs{need}"
                    f" more than that: no day has room for it. Raise that limit, or give the run less to read{price}."
                )
            case Refused(limit=unit, allowed=cap, scope=scope) if each.is_first and _is_bounded(each, unit):
                amount = _format_amount(unit, getattr(minimum_hold(each.request), unit))
                yield (
                    f"{each.path} was not begun: it may need up to {amount} of {_format_limit(scope, unit)}, which is"
                    f" {_format_amount(unit, cap)}. What a model may read is counted as a token a byte until one has"
                    " reported its tokens; fewer tools or a shorter context need less."
                )
            case _:
                pass


_BOUNDED = ("input_tokens", "output_tokens", "total_tokens", "nano_usd")


def _format_need(asked: AskedCompletion, unit: str) -> str:
    """How much that is, where it can be said."""
    return (
        f" up to {_format_amount(unit, getattr(minimum_hold(asked.request), unit))},"
        if _is_bounded(asked, unit)
        else ""
    )


def _is_bounded(asked: AskedCompletion, unit: str) -> bool:
    """Whether what the call needs of this unit is known before it is made."""
    return unit in _BOUNDED and (unit != "nano_usd" or asked.request.price is not None)


def _format_limit(scope: str, unit: str) -> str:
    """A limit as whoever set it knows it: `limits.total_tokens`, `day.usd`."""
    return f"{_LIMIT_GROUPS.get(scope, scope)}.{'usd' if unit == 'nano_usd' else unit}"


def _format_amount(unit: str, amount: int) -> str:
    return f"${amount / 1e9:.4f}" if unit == "nano_usd" else str(amount)
