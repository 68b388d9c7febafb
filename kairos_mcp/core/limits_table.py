"""Limits by the users' names and units, as JSON: in arguments of tools, the settings file, mandates and results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic_core import core_schema

from kairos_mcp.core.limits import CAPS, UNITS, Amount, Limits, Unit
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LimitsTable:
    """Annotate Limits for pydantic: they are validated by the users' names and units, each optional.

    Null is refused, not taken for no limit: some clients send it for NaN.

    `most_count`, `most_amount`: the largest count, and the largest number of dollars or seconds.
    """

    units: tuple[Unit, ...] = tuple(UNITS.values())
    most_count: int = 2**53
    most_amount: int = 10**9

    def json_schema(self) -> JsonObject:
        """Return the JSON Schema of such a table."""
        properties: JsonObject = {}
        for unit in self.units:
            kind, most = ("integer", self.most_count) if unit.scale == 1 else ("number", self.most_amount)
            about = {"description": unit.about} if unit.about else {}
            properties[unit.name] = {"type": kind, "minimum": 0, "maximum": most, **about}
        return {"type": "object", "properties": properties, "additionalProperties": False}

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Callable[..., Any]) -> core_schema.CoreSchema:
        count = core_schema.int_schema(ge=0, le=self.most_count)
        amount = core_schema.float_schema(ge=0, le=self.most_amount, allow_inf_nan=False)
        table = core_schema.typed_dict_schema(
            {
                unit.name: core_schema.typed_dict_field(count if unit.scale == 1 else amount, required=False)
                for unit in self.units
            },
            extra_behavior="forbid",
            config=core_schema.CoreConfig(strict=True),
        )
        return core_schema.no_info_after_validator_function(lambda given: Limits(**limits_from_json(given)), table)

    def __get_pydantic_json_schema__(self, _schema: core_schema.CoreSchema, _handler: Callable[..., Any]) -> JsonObject:
        return self.json_schema()


def limits_to_json(
    amounts: Amount[int] | Amount[int | None], names: Collection[str] = CAPS
) -> dict[str, int | float | None]:
    """Return limits, or another amount, by the users' names and units: dollars and seconds. `names`: which units."""
    return {
        unit.name: amount if amount is None or unit.scale == 1 else amount / unit.scale
        for unit, amount in zip(UNITS.values(), amounts, strict=True)
        if unit.name in names
    }


def set_limits_to_json(limits: Limits) -> dict[str, int | float]:
    """Return the limits that are set, by the users' names and units."""
    return {name: cap for name, cap in limits_to_json(limits).items() if cap is not None}


def limits_from_json(given: Mapping[str, int | float]) -> dict[str, int]:
    """Return the fields of Limits for checked caps in the users' units: dollars and seconds."""
    return {field: round(given[unit.name] * unit.scale) for field, unit in UNITS.items() if unit.name in given}
