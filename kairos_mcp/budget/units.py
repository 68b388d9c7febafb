"""Amounts in every unit that can be limited, prices, and accounts: what is capped, held and spent. Integers alone."""

from __future__ import annotations

from functools import partial
from operator import add, attrgetter, sub
from typing import NamedTuple

from kairos_mcp.core.limits import Limits
from kairos_mcp.core.steps import Refused


class Price(NamedTuple):
    """What a token costs at most, in nano-dollars: one that is read, one that is written."""

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
    """What a step of this kind counts: a round is a model call, other completions are calls alone."""
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


_caps_by_unit = attrgetter(*Units._fields)


class Account(NamedTuple):
    """A limit over a run (`scope`: run), over a branch of one (branch, and its path), or over what many share (day,
    mandate): what may be used (None: no limit), what open and begun steps hold, what is spent."""

    id: int
    caps: Limits
    held: Units
    spent: Units
    scope: str = "run"

    @property
    def remaining(self) -> Remaining:
        caps = zip(_caps_by_unit(self.caps), self.held, self.spent, strict=True)
        return Remaining(*[None if cap is None else max(0, cap - held - spent) for cap, held, spent in caps])

    def remaining_of(self, unit: str) -> int | None:
        """What is left of one unit."""
        rest: int | None = getattr(self.remaining, unit)
        return rest

    def settle(self, held: Units, spent: Units) -> Account:
        """The account after a step that held so much has ended and cost so much."""
        return Account(self.id, self.caps, self.held.minus(held), self.spent.plus(spent), self.scope)

    def hold(self, held: Units) -> Account:
        return Account(self.id, self.caps, self.held.plus(held), self.spent, self.scope)

    def remaining_with_overtime(self, more_ms: int) -> int:
        """The time that is left where so much more is allowed: however often it is tried, once in all."""
        return (self.caps.milliseconds or 0) + more_ms - self.spent.milliseconds - self.held.milliseconds

    def refuse(self, unit: str) -> Refused:
        used: int = getattr(self.spent, unit) + getattr(self.held, unit)
        return Refused(unit, used, getattr(self.caps, unit), self.scope)


def shared_part(amount: Units) -> Units:
    """What of an amount counts in an account that runs share: model calls, their tokens and their price."""
    return amount._replace(rounds=0, tool_calls=0, milliseconds=0)
