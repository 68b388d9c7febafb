"""What the arguments of all tools share: strict models, bounded texts, limits.

The input schemas that clients see are made from these models: a field's description is what a calling model reads.
validation.py words the refusals.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from kairos_mcp.core.limits import Limits, limits_from_json

LONG_TEXT_CHARS = 100_000  # a longer text is refused, never cut in silence

RunId = Annotated[str, Field(min_length=1, max_length=100)]
LongText = Annotated[str, Field(max_length=LONG_TEXT_CHARS)]
Name = Annotated[str, Field(min_length=1, max_length=128)]
Wait = Annotated[float, Field(ge=0, le=600)]
Count = Annotated[int, Field(ge=0, le=10**12)]
Amount = Annotated[float, Field(ge=0, le=10**6)]
DEFAULT_WAIT_S = 45.0  # hosts give up at about 60


class Arguments(BaseModel):
    """Arguments of a tool: nothing is coerced, unknown names are refused, null is the same as absent."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class LimitsArgument(Arguments):
    """Limits of a run, each optional; null is refused, since some clients send it for NaN."""

    rounds: Count | None = None
    model_calls: Count | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    total_tokens: Count | None = None
    usd: Amount | None = None
    tool_calls: Count | None = None
    seconds: Amount | None = Field(None, description="Model and tool time, not waiting")

    @model_validator(mode="before")
    @classmethod
    def _refuse_null(cls, given: Any) -> Any:
        if isinstance(given, dict):
            for name in cls.model_fields:
                if name in given and given[name] is None:
                    raise PydanticCustomError("null_limit", f"{name} is null; leave out what is not limited")
        return given

    def as_limits(self) -> Limits:
        """The limits in the units of accounts."""
        return Limits(**limits_from_json(self.model_dump(exclude_none=True)))
