"""The notes of a run about limits and prices: a limit exceeded or too small, a model without a known price.

What a model without a known price costs is in no sum, so whoever reads one is told. The row of each completion says it
(`Sent.unpriced`), since a price may be configured, or become known, later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote
from typing import NamedTuple

from kairos_mcp.budget.reservation import WHOLE_PREFIX, ReservationRequest, minimum_hold
from kairos_mcp.budget.units import Account
from kairos_mcp.core.steps import Answer, Refused, Sent
from kairos_mcp.store.accounts import CHARGES_SQL
from kairos_mcp.store.schema import UNPRICED
from kairos_mcp.store.session import LISTED_ID, Session, json_or_null

USED_UP_REASONS = {
    "day": "What may be used on a day is used up (`kairos-mcp budget`).",
    "mandate": "What this mandate may use on a day is used up (`kairos-mcp budget`).",
}
"""Why a run is paused, by the scope of the account that is used up."""


def insert_note(session: Session, run: int, text: str) -> None:
    """Insert a note of the run with this number. The same text is stored once."""
    statement = (
        "insert into note(run, text, step) values (:run, :text,"
        " (select coalesce(max(id), 0) from mark where run = :run)) on conflict do nothing"
    )
    session.rows(statement, {"run": run, "text": text})


def clock_behind_reason(principal: str) -> str:
    """Return why a run is paused where the clock is so far behind that no day can be charged."""
    whose = f" --principal {quote(principal)}" if principal != "local" else ""
    return (
        "The clock shows a day more than 48 hours before one that was begun already, so no model call is made. Set the"
        f" clock; or, if it is right now, run `kairos-mcp budget --trust-clock{whose}`."
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
                price = ", or set price_input and price_output where the model has no price" * (unit == "nano_usd")
                need = _format_need(completion, unit)
                yield (
                    f"{limit} is {_format_amount(unit, cap)} for a whole day, and the next model call needs{need}"
                    f" more than that: no day has room for it. Raise that limit, or give the run less to read{price}."
                )
            case Refused(limit=unit, allowed=cap, scope=scope) if completion.is_first and _is_bounded(completion, unit):
                amount = _format_amount(unit, getattr(minimum_hold(completion.request), unit))
                limit = _format_limit(scope, unit)
                yield (
                    f"{completion.path} was not begun: it may need up to {amount} of {limit}, which is"
                    f" {_format_amount(unit, cap)}. What a model may read is counted as a token a byte until one has"
                    " reported its tokens; fewer tools or a shorter context need less."
                )
            case _:
                pass


_BOUNDED = ("input_tokens", "output_tokens", "total_tokens", "nano_usd")


def _format_need(completion: AskedCompletion, unit: str) -> str:
    """Return ` up to AMOUNT,` where what the call needs is known before it is made, else nothing."""
    return (
        f" up to {_format_amount(unit, getattr(minimum_hold(completion.request), unit))},"
        if _is_bounded(completion, unit)
        else ""
    )


def _is_bounded(completion: AskedCompletion, unit: str) -> bool:
    """Whether the most that the call needs of this unit is known before it is made."""
    return unit in _BOUNDED and (unit != "nano_usd" or completion.request.price is not None)


def _format_limit(scope: str, unit: str) -> str:
    """Return a limit by the name under which it is set: `limits.total_tokens`, `day.usd`."""
    return f"{_LIMIT_GROUPS.get(scope, scope)}.{'usd' if unit == 'nano_usd' else unit}"


def _format_amount(unit: str, amount: int) -> str:
    return f"${amount / 1e9:.4f}" if unit == "nano_usd" else str(amount)


_UNPRICED_OF_RUN = f"""
    select distinct json_extract(sent, '$.model') from (
        select {json_or_null("sent")} as sent from (select sent from mark where run = ?1 and {UNPRICED} union all
            select sent from attempt where run = ?1 and {UNPRICED}))
    where json_type(sent, '$.unpriced') = 'true' order by 1
"""
# `run > 0`, which each is, names the column of the index of such rows, so that no other row is looked at.
_UNPRICED_STEPS = f"""
    select id from mark where run > 0 and {UNPRICED} union all select mark from attempt where run > 0 and {UNPRICED}
"""
_UNPRICED_BY_ACCOUNT = f"""
    select distinct {LISTED_ID}, json_extract(sent, '$.model') from ({CHARGES_SQL.format(steps=_UNPRICED_STEPS)}),
        json_each(shared) as item
    where json_type(sent, '$.unpriced') = 'true' order by 1, 2
"""


def unpriced_models(session: Session, n: int) -> tuple[str, ...]:
    """Return the models without a known price that a run has asked, by name."""
    return tuple(model for (model,) in session.rows(_UNPRICED_OF_RUN, (n,)))


def unpriced_models_by_account(session: Session) -> dict[int, list[str]]:
    """Return the models without a known price that were charged to each shared account, by the account's id."""
    found: dict[int, list[str]] = {}
    for account, model in session.rows(_UNPRICED_BY_ACCOUNT):
        found.setdefault(account, []).append(model)
    return found


def unpriced_notes(sent: Iterable[Sent]) -> Iterator[str]:
    """Yield one sentence for each model without a known price."""
    for model in {sent.model for sent in sent if sent.unpriced}:
        yield (
            f"The price of {model} is not known: usd is without what it costs."
            " Set price_input and price_output to have it counted."
        )
