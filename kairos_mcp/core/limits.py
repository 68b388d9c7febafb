"""The eight limits of a run or a branch, each declared once, their words and units outside, and amounts in these units.

Inside, money is in nano-dollars and time in milliseconds; outside in dollars and seconds. Integers alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import add, sub
from typing import NamedTuple

from kairos_mcp.core.quick_dataclass import dataclass


class LimitedUnit(NamedTuple):
    """A unit that can be limited: its `name` for users, and its `field` in Limits and Units.

    `scale`: how many of the field's unit make one of the user's; 1 for counts. `per_day`: whether a day can be limited
    in it, which are the units that model calls cost.
    """

    name: str
    field: str
    scale: int = 1
    per_day: bool = False
    description: str | None = None


LIMITED_UNITS = (
    LimitedUnit("rounds", "rounds"),
    LimitedUnit("model_calls", "model_calls", per_day=True),
    LimitedUnit("input_tokens", "input_tokens", per_day=True),
    LimitedUnit("output_tokens", "output_tokens", per_day=True),
    LimitedUnit("total_tokens", "total_tokens", per_day=True),
    LimitedUnit("usd", "nano_usd", 10**9, per_day=True),
    LimitedUnit("tool_calls", "tool_calls"),
    LimitedUnit("seconds", "milliseconds", 1000, description="Model and tool time, not waiting"),
)
DAY_UNITS = tuple(unit for unit in LIMITED_UNITS if unit.per_day)
CAPS = tuple(unit.name for unit in LIMITED_UNITS)
DAY_CAPS = tuple(unit.name for unit in DAY_UNITS)


class Cap(NamedTuple):
    """A limit that is set: of the unit with this name, which stands at `place` in an amount."""

    place: int
    unit: str
    most: int


class _WithCaps:
    """Room beside the eight fields for the caps among them, which are asked for at every step."""

    __slots__ = ("_caps",)
    _caps: tuple[Cap, ...]


@dataclass(frozen=True, slots=True)
class Limits(_WithCaps):
    """What a run or a branch may use at most; None is no limit.

    Money in nano-dollars and time in milliseconds: integers alone, so that sums are exact.
    """

    rounds: int | None = None
    model_calls: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    nano_usd: int | None = None
    tool_calls: int | None = None
    milliseconds: int | None = None

    @property
    def caps(self) -> tuple[Cap, ...]:
        """The limits that are set, in the order of the units."""
        try:
            return self._caps
        except AttributeError:
            every = [(n, unit.field, getattr(self, unit.field)) for n, unit in enumerate(LIMITED_UNITS)]
            caps = tuple([Cap(n, field, most) for n, field, most in every if most is not None])
            object.__setattr__(self, "_caps", caps)
            return caps


UNLIMITED = Limits()


class BranchShare(NamedTuple):
    """What a branch that starts may have of the account around it.

    `limits`: what was asked for it. `unended`: how many branches have not ended, this one included, of which
    `side_by_side` may run at once. `reserved`: what is set aside for the steps after all of them; with `keeps_share` it
    is, in the units that it does not name, as much as each of them gets. `siblings`: the paths of those beside it that
    have begun.
    """

    limits: Limits
    unended: int
    reserved: Limits = UNLIMITED
    side_by_side: int = 10**9
    keeps_share: bool = False
    siblings: tuple[str, ...] = ()

    def count_parts(self, running: int) -> range:
        """Return into how many equal parts what is free may be divided while so many siblings run, the most first.

        It is one for each that may begin now, and one as a reserve for those that begin later; or for fewer, down to
        this one and the reserve.
        """
        unbegun = max(1, self.unended - running)
        beginning = max(1, min(unbegun, self.side_by_side - running))
        most, fewest = beginning + (beginning < unbegun), 1 + (unbegun > 1)
        return range(most, fewest - 1, -1)


def limits_to_json(amounts: object) -> dict[str, int | float | None]:
    """Return limits, or amounts with the same fields, by the users' names and units: dollars and seconds."""
    return {unit.name: _to_outside(unit, getattr(amounts, unit.field)) for unit in LIMITED_UNITS}


def set_limits_to_json(limits: Limits) -> dict[str, int | float]:
    """Return the limits that are set, by the users' names and units."""
    return {name: cap for name, cap in limits_to_json(limits).items() if cap is not None}


def limits_from_json(given: Mapping[str, int | float]) -> dict[str, int]:
    """Return the fields of Limits for checked caps in the users' units: dollars and seconds."""
    return {unit.field: round(given[unit.name] * unit.scale) for unit in LIMITED_UNITS if unit.name in given}


def _to_outside(unit: LimitedUnit, amount: int | None) -> int | float | None:
    return amount if amount is None or unit.scale == 1 else amount / unit.scale


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
