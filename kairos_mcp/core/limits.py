"""The units in which a run or a branch can be limited, each declared once, and amounts in these units.

Everything that lists units iterates over `UNITS`: columns, stored arrays, results, settings, the status line, the page.
Inside, money is in nano-dollars and time in milliseconds; outside in dollars and seconds. Integers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import add, sub
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, TypeVar, get_type_hints

from pydantic_core import core_schema

T = TypeVar("T")


class Price(NamedTuple):
    """What a token costs at most, in nano-dollars: an input token (`read`), an output token (`written`)."""

    read: int
    written: int

    def cost(self, read: int, written: int) -> int:
        return self.read * read + self.written * written


FREE = Price(0, 0)  # nothing that this server pays for


class Unit(NamedTuple):
    name: str
    """Its name for users: in limits, settings and results."""
    words: str
    """Its word or sign beside the figures in the status line that a model sees."""
    noun: str
    """What a refusal calls it."""
    held: Literal["count", "tokens", "time", "after"]
    """How a step reserves it before it begins. "count": one for each round or call. "tokens": by the bound of its
    tokens. "time": its timeout. "after": not at all, since only the answer tells how much was used; once nothing is
    left, no tool is called."""
    order: int
    """Its rank in the status line."""
    scale: int = 1
    """How many of the unit that is stored make one of the users'; 1 for counts."""
    shared: bool = False
    """It counts in accounts that runs share, so a day can be limited in it: what model calls cost."""
    measured: Callable[[Any], int] | None = None
    """How much of it an answer was (an `Answer`), if it is reserved "after"."""
    weighs: Price | None = None
    """How much of it one token takes, if it is reserved by tokens; None: the price of the model."""
    ends: Literal["max_rounds", "budget", "timeout"] = "budget"
    """The stop reason of a loop that this limit refused a step."""
    in_usage: bool = True
    """It is a field of `usage` in results."""
    in_line: bool = True
    """The line about what a run has used names it."""
    on_page: bool = False
    """The page shows it even if it is not limited."""
    label: str | None = None
    """What the page calls it, if not `noun`."""
    about: str | None = None
    """Its description in the schema of limits."""
    explained: str = ""
    """The comment of its limit in the settings file."""
    example: float = 0
    """An example of one for a run; for a day it is ten times as much."""


_IN, _OUT, _BOTH = Price(1, 0), Price(0, 1), Price(1, 1)
_ROUNDS = Unit(
    "rounds",
    "round",
    "rounds",
    held="count",
    order=0,
    ends="max_rounds",
    in_usage=False,
    on_page=True,
    explained="Rounds: model calls with the tools that they asked for.",
    example=50,
)
_MODEL_CALLS = Unit(
    "model_calls",
    "model calls",
    "model calls",
    held="count",
    order=1,
    shared=True,
    explained="Model calls of every kind: rounds, repairs, compaction, closing.",
    example=200,
)
_INPUT_TOKENS = Unit(
    "input_tokens",
    "tokens in",
    "input tokens",
    held="tokens",
    weighs=_IN,
    order=4,
    shared=True,
    in_line=False,
    explained="Tokens sent to a model, summed over its calls.",
    example=2_000_000,
)
_OUTPUT_TOKENS = Unit(
    "output_tokens",
    "tokens out",
    "output tokens",
    held="tokens",
    weighs=_OUT,
    order=5,
    shared=True,
    in_line=False,
    explained="Tokens that a model wrote, summed over its calls.",
    example=200_000,
)
_TOTAL_TOKENS = Unit(
    "total_tokens",
    "tokens",
    "tokens",
    held="tokens",
    weighs=_BOTH,
    order=3,
    shared=True,
    in_usage=False,
    on_page=True,
    explained="Tokens sent and written, both together.",
    example=2_000_000,
)
_DOLLARS = Unit(
    "usd",
    "$",
    "money",
    held="tokens",
    order=6,
    scale=10**9,
    shared=True,
    on_page=True,
    label="cost",
    explained="Dollars that a provider is paid; a run needs a route that has a price.",
    example=1,
)
_TOOL_CALLS = Unit(
    "tool_calls",
    "tool calls",
    "tool calls",
    held="count",
    order=2,
    on_page=True,
    explained="Calls of tools.",
    example=500,
)
_SECONDS = Unit(
    "seconds",
    "s",
    "time",
    held="time",
    order=7,
    scale=1000,
    ends="timeout",
    about="Model and tool time, not waiting",
    explained="Seconds of model and tool time; waiting does not count.",
    example=1_800,
)
_NONE: Any = 0  # of an amount; a limit's is None, see Limits


class Amount(NamedTuple, Generic[T]):
    """A value for each unit: what is held or spent of it, what is left, its limit.

    A new unit is a field at the end, with its record: amounts are stored by position.
    """

    rounds: Annotated[T, _ROUNDS] = _NONE
    model_calls: Annotated[T, _MODEL_CALLS] = _NONE
    input_tokens: Annotated[T, _INPUT_TOKENS] = _NONE
    output_tokens: Annotated[T, _OUTPUT_TOKENS] = _NONE
    total_tokens: Annotated[T, _TOTAL_TOKENS] = _NONE
    nano_usd: Annotated[T, _DOLLARS] = _NONE
    tool_calls: Annotated[T, _TOOL_CALLS] = _NONE
    milliseconds: Annotated[T, _SECONDS] = _NONE


UNITS: Mapping[str, Unit] = {
    field: hint.__metadata__[0] for field, hint in get_type_hints(Amount, include_extras=True).items()
}
"""Each unit by its field in an amount, in the order of the fields."""
UNITS_OF_FIRST_VERSION = 8  # amounts are stored by position: those of older versions may be shorter, down to this

DAY_UNITS = tuple(unit for unit in UNITS.values() if unit.shared)
CAPS = tuple(unit.name for unit in UNITS.values())
DAY_CAPS = tuple(unit.name for unit in DAY_UNITS)
USAGE_NAMES = tuple(unit.name for unit in UNITS.values() if unit.in_usage)


class Units(Amount[int]):
    """An amount in every unit. Money in nano-dollars, time in milliseconds."""

    __slots__ = ()

    def plus(self, other: Units) -> Units:
        return _units(map(add, self, other))

    def minus(self, other: Units) -> Units:
        return _units(map(sub, self, other))


_units = partial(tuple.__new__, Units)  # the shortest way: amounts are added at every step
NOTHING = Units()
_MODEL_CALL = Units(model_calls=1)
_COUNTS = {"round": Units(rounds=1, model_calls=1), "call": Units(tool_calls=1), "pause": NOTHING}


def counts_of(kind: str) -> Units:
    """Return the rounds and calls that a step of this kind counts: a round is a model call too, every other completion
    is a model call alone."""
    return _COUNTS.get(kind, _MODEL_CALL)


_MEASURED = tuple([(field, unit.measured) for field, unit in UNITS.items() if unit.measured is not None])


def with_measured(counted: Units, answer: object) -> Units:
    """Return what a step cost that was answered so: what was counted, and what the answer alone tells."""
    return counted._replace(**{field: measured(answer) for field, measured in _MEASURED}) if _MEASURED else counted


class Cap(NamedTuple):
    """A limit that is set: its unit, that unit's index in an amount (`place`), and the limit (`most`)."""

    place: int
    unit: str
    most: int


class Limits(Amount["int | None"]):
    """What a run or a branch may use at most; None, the default of each unit, is no limit.

    Money in nano-dollars and time in milliseconds: integers alone, so that sums are exact.
    """

    _caps: tuple[Cap, ...]

    if not TYPE_CHECKING:
        __new__ = FunctionType(
            Amount.__new__.__code__, Amount.__new__.__globals__, "__new__", (None,) * len(UNITS)
        )  # as that of an amount, with another default

    @property
    def caps(self) -> tuple[Cap, ...]:
        """The limits that are set, in the order of the units. They are asked for at every step."""
        try:
            return self._caps
        except AttributeError:
            every = enumerate(zip(UNITS, self, strict=True))
            caps = tuple([Cap(n, unit, most) for n, (unit, most) in every if most is not None])
            self._caps = caps
            return caps

    def within(self, most: Limits) -> Limits:
        """Return the smaller of both in each unit."""
        both = zip(self, most, strict=True)
        return Limits(*[min((cap for cap in caps if cap is not None), default=None) for caps in both])

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Callable[..., Any]) -> core_schema.CoreSchema:
        """As an object of the limits that are set, by the fields of an amount."""
        most = core_schema.nullable_schema(core_schema.int_schema())
        fields = {unit: core_schema.typed_dict_field(most, required=False) for unit in UNITS}
        return core_schema.no_info_after_validator_function(
            lambda given: cls(**given),
            core_schema.typed_dict_schema(fields),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda limits: {unit: most for _, unit, most in limits.caps}
            ),
        )


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
        """Return into how many equal parts the free amounts may be divided, most parts first.

        `running`: how many siblings run. The most are one part for each branch that may begin now, and one as a reserve
        for branches that begin later. The fewest are one part for this branch, and the reserve.
        """
        unbegun = max(1, self.unended - running)
        beginning = max(1, min(unbegun, self.side_by_side - running))
        most, fewest = beginning + (beginning < unbegun), 1 + (unbegun > 1)
        return range(most, fewest - 1, -1)
