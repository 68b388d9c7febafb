"""Sentences about limits: why a run is paused, which cap was exceeded, which limit is too small or price unknown.

No I/O. `decide` stores them as notes of the run; reports show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote
from typing import NamedTuple

from kairos_mcp.budget.reservation import WHOLE_PREFIX, Account, ReservationRequest, minimum_hold
from kairos_mcp.core.limits import UNITS
from kairos_mcp.core.steps import Answer, Refused, Sent

USED_UP_REASONS = {
    "day": "What may be used on a day is used up (`kairos-mcp budget`).",
    "mandate": "What this mandate may use on a day is used up (`kairos-mcp budget`).",
}
"""Why a run is paused, by the scope of the account that is used up."""

PROVIDER_AWAY = "The model's provider is out of reach"
"""How the reason of a pause begins that ends by itself, once the provider may answer again."""


def clock_behind_reason(principal: str) -> str:
    """Return why a run is paused where the clock is so far behind that no day can be charged."""
    whose = f" --principal {quote(principal)}" if principal != "local" else ""
    return (
        "The clock shows a day more than 48 hours before one that was begun already, so no model call is made. Set the"
        f" clock and resume the run; or, if it is right now, run `kairos-mcp budget --trust-clock{whose}`."
    )


_LIMIT_GROUPS = {"run": "limits", "day": "day", "mandate": "the mandate's day"}


def exceeded_cap_notes(exceeded: Iterable[tuple[Account, str]]) -> Iterator[str]:
    """Yield one sentence for each (account, unit) whose cap a usage above its reservation has exceeded."""
    for account, unit in exceeded:
        cap, spent, held = (getattr(amounts, unit) for amounts in (account.caps, account.spent, account.held))
        limit = f"{_format_limit(account.scope, unit)} is {_format_amount(unit, cap)}"
        took = f"{limit}; an answer that used more than was held took it to"
        others = " with what other steps hold" if held else ""
        yield f"{took} {_format_amount(unit, spent + held)}{others}."


class AskedCompletion(NamedTuple):
    """A completion that was asked for, its answer so far, and whether it is the first that its account pays for."""

    path: str
    request: ReservationRequest
    answer: Answer | None
    is_first: bool


def too_small_notes(completions: Iterable[AskedCompletion]) -> Iterator[str]:
    """Yield how much a model call needs whose limit is too small for it, so that waiting would not help.

    That is where a whole day has no room for it, or a limit has none for the very first call.
    """
    for completion in completions:
        match completion.answer:
            case Refused(limit=unit, allowed=cap, scope=scope) if scope.startswith(WHOLE_PREFIX):
                limit = _format_limit(scope.removeprefix(WHOLE_PREFIX), unit)
                price = ", or set price_input and price_output where the model has no price" * (
                    UNITS[unit].weighs is None
                )
                need = _format_need(completion, unit)
                yield (
                    f"{limit} is {_format_amount(unit, cap)} for a whole day, and the next model call needs{need}"
                    f" more than that: no day has room for it. Raise that limit, or give the run less to read{price}."
                )
            case Refused(limit=unit, allowed=cap, scope=scope) if completion.is_first and _is_bounded(completion, unit):
                amount = _format_amount(unit, getattr(minimum_hold(completion.request), unit))
                limit = _format_limit(scope, unit)
                yield (
                    f"{completion.path} was not started: it could cost up to {amount}, and {limit} is"
                    f" {_format_amount(unit, cap)}. Until a provider has reported what this system text and these tools"
                    f" cost, each byte counts as a token. Set {limit} to {amount} or more, or name fewer tools."
                )
            case _:
                pass


def _format_need(completion: AskedCompletion, unit: str) -> str:
    """Return ` up to AMOUNT,` where what the call needs is known before it is made, else nothing."""
    return (
        f" up to {_format_amount(unit, getattr(minimum_hold(completion.request), unit))},"
        if _is_bounded(completion, unit)
        else ""
    )


def _is_bounded(completion: AskedCompletion, unit: str) -> bool:
    """Whether the most that the call needs of this unit is known before it is made."""
    is_fixed = UNITS[unit].weighs is not None or completion.request.price is not None
    return UNITS[unit].held == "tokens" and is_fixed


def _format_limit(scope: str, unit: str) -> str:
    """Return a limit by the name under which it is set: `limits.total_tokens`, `day.usd`."""
    return f"{_LIMIT_GROUPS.get(scope, scope)}.{UNITS[unit].name}"


def _format_amount(unit: str, amount: int) -> str:
    return f"${amount / 1e9:.4f}" if UNITS[unit].words == "$" else str(amount)


def unpriced_notes(sent: Iterable[Sent]) -> Iterator[str]:
    """Yield one sentence for each model without a known price."""
    for model in {sent.model for sent in sent if sent.unpriced}:
        yield (
            f"The price of {model} is not known, so its cost isn't counted in usd."
            " Set price_input and price_output to have it counted."
        )
