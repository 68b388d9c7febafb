"""Amounts in every limited unit, prices, and accounts: what is capped, held and spent, and the line that shows it.

Integers alone. A branch that starts gets caps of its own: whatever order branches begin, spend and end in, those that
run may together spend no more than the enclosing account has left, less what is set aside there. Even if this
calculation were wrong, the enclosing accounts would refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from operator import add, attrgetter, sub
from typing import NamedTuple

from kairos_mcp.core.limits import BranchShare, Limits
from kairos_mcp.core.steps import Refused


class Price(NamedTuple):
    """What a token costs at most, in nano-dollars: an input token (`read`), an output token (`written`)."""

    read: int
    written: int

    def cost(self, read: int, written: int) -> int:
        return self.read * read + self.written * written


FREE = Price(0, 0)  # nothing that this server pays for


class Units(NamedTuple):
    """An amount in every unit that can be limited. Money in nano-dollars, time in milliseconds."""

    rounds: int = 0
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    nano_usd: int = 0
    tool_calls: int = 0
    milliseconds: int = 0

    def plus(self, other: Units) -> Units:
        return _units(map(add, self, other))

    def minus(self, other: Units) -> Units:
        return _units(map(sub, self, other))


_units = partial(tuple.__new__, Units)  # the shortest way: amounts are added at every step
NOTHING = Units()
_MODEL_CALL = Units(model_calls=1)
_COUNTS = {"round": Units(rounds=1, model_calls=1), "call": Units(tool_calls=1), "pause": NOTHING}


def counts_of(kind: str) -> Units:
    """Return what a step of this kind counts. A round counts a model call too, other completions count that alone."""
    return _COUNTS.get(kind, _MODEL_CALL)


class Remaining(NamedTuple):
    """What is left of an account by unit: neither spent nor held, never below zero; None where there is no limit."""

    rounds: int | None
    model_calls: int | None
    input_tokens: int | None
    output_tokens: int | None
    total_tokens: int | None
    nano_usd: int | None
    tool_calls: int | None
    milliseconds: int | None


_remaining = partial(tuple.__new__, Remaining)
caps_by_unit: Callable[[Limits], tuple[int | None, ...]] = attrgetter(*Units._fields)


class Account(NamedTuple):
    """What may be used (`caps`, None: no limit), what open and started steps hold, and what is spent.

    `scope`: `run`, `branch` and its path, or, for an account that several runs share, `day` or `mandate`.
    """

    id: int
    caps: Limits
    held: Units
    spent: Units
    scope: str = "run"

    @property
    def remaining(self) -> Remaining:
        left = [
            None if cap is None else cap - held - spent if cap > held + spent else 0
            for cap, held, spent in zip(caps_by_unit(self.caps), self.held, self.spent, strict=True)
        ]
        return _remaining(left)

    def remaining_of(self, unit: str) -> int | None:
        """Return what is left of one unit."""
        rest: int | None = getattr(self.remaining, unit)
        return rest

    def settle(self, held: Units, spent: Units) -> Account:
        """Return the account after a step that held `held` has ended and cost `spent`."""
        return _account(
            (self.id, self.caps, _units(map(sub, self.held, held)), _units(map(add, self.spent, spent)), self.scope)
        )

    def hold(self, held: Units) -> Account:
        """Return the account after a step has reserved `held`."""
        return _account((self.id, self.caps, _units(map(add, self.held, held)), self.spent, self.scope))

    def remaining_with_overtime(self, more_ms: int) -> int:
        """Return the milliseconds left, with `more_ms` beyond the cap. All attempts share that overtime."""
        return (self.caps.milliseconds or 0) + more_ms - self.spent.milliseconds - self.held.milliseconds

    def refuse(self, unit: str) -> Refused:
        """Return the refusal for a unit of which too little is left."""
        used: int = getattr(self.spent, unit) + getattr(self.held, unit)
        return Refused(unit, used, getattr(self.caps, unit), self.scope)


_account = partial(tuple.__new__, Account)


def shared_part(amount: Units) -> Units:
    """Return what of an amount counts in an account that runs share: model calls, their tokens and their price."""
    return amount._replace(rounds=0, tool_calls=0, milliseconds=0)


def branch_caps(share: BranchShare, enclosing: Account) -> Limits:
    """Return the caps of a branch that starts: in each unit what was asked for, within an equal share of what is left.

    What is left is neither spent nor held: a branch holds nothing but what its steps hold, so none has to give back.
    """
    caps: list[int | None] = []
    units = zip(caps_by_unit(share.limits), enclosing.remaining, caps_by_unit(share.reserved), strict=True)
    for asked, left, reserved in units:
        equal_share = None if left is None else max(0, left - (reserved or 0)) // max(1, share.shares)
        caps.append(equal_share if asked is None else asked if equal_share is None else min(asked, equal_share))
    return Limits(*caps)


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
