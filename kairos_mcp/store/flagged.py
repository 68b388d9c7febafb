"""What a run says of limits beside its answers: that a report took an account past one, that no day has room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote

from kairos_mcp.budget.amounts import Account
from kairos_mcp.budget.granting import WHOLE
from kairos_mcp.steps import Answer, Refused

USED_UP = {
    "day": "What may be used on a day is used up (`kairos-mcp budget`).",
    "mandate": "What this mandate may use on a day is used up (`kairos-mcp budget`).",
}
"""Why a run is paused, by the scope of the account that is used up."""


def no_day(principal: str) -> str:
    """Why a run is paused where the clock is so far behind that no day can be charged."""
    whose = f" --principal {quote(principal)}" if principal != "local" else ""
    return (
        "The clock shows a day more than 48 hours before one that was begun already, so no model call is made. Set the"
        f" clock; or, if it is right now, run `kairos-mcp budget --trust-clock{whose}`."
    )


_GROUPS = {"run": "limits", "day": "day", "mandate": "the mandate's day"}


def flagged(passed: Iterable[tuple[Account, str]]) -> Iterator[str]:
    """One sentence for each cap that a report above what was held has taken an account past."""
    for account, unit in passed:
        cap, spent, held = (getattr(amounts, unit) for amounts in (account.caps, account.spent, account.held))
        took = f"{_named(account.scope, unit)} is {_told(unit, cap)}; an answer that used more than was held took it to"
        others = " with what other steps hold" if held else ""
        yield f"{took} {_told(unit, spent + held)}{others}."


def hopeless(answers: Iterable[Answer | None]) -> Iterator[str]:
    """What to do where a step needs more than a whole day of some account has: it was refused for good."""
    for answer in answers:
        match answer:
            case Refused(limit=unit, allowed=cap, scope=scope) if scope.startswith(WHOLE):
                limit = _named(scope.removeprefix(WHOLE), unit)
                price = ", or set price_input and price_output where the model has no price" * (unit == "nano_usd")
                yield (
                    f"{limit} is {_told(unit, cap)} for a whole day, and the next model call needs more than that:"
                    f" no day has room for it. Raise that limit, or give the run less to read{price}."
                )
            case _:
                pass


def _named(scope: str, unit: str) -> str:
    """A limit as whoever set it knows it: `limits.total_tokens`, `day.usd`."""
    return f"{_GROUPS.get(scope, scope)}.{'usd' if unit == 'nano_usd' else unit}"


def _told(unit: str, amount: int) -> str:
    return f"${amount / 1e9:.4f}" if unit == "nano_usd" else str(amount)
