"""What the arguments of all tools share: strict models, bounded texts, limits.

The input schemas that clients see are made from these models: a field's description is what a calling model reads.
validation.py words the refusals.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from kairos_mcp.core.limits import Limits
from kairos_mcp.core.limits_table import LimitsTable

LONG_TEXT_CHARS = 100_000  # a longer text is refused, never cut in silence

RunId = Annotated[str, Field(min_length=1, max_length=100)]
LongText = Annotated[str, Field(max_length=LONG_TEXT_CHARS)]
Name = Annotated[str, Field(min_length=1, max_length=128)]
Wait = Annotated[float, Field(ge=0, le=600)]
DEFAULT_WAIT_S = 45.0  # hosts give up at about 60


class Arguments(BaseModel):
    """Arguments of a tool: nothing is coerced, unknown names are refused, null is the same as absent."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


LimitsArgument = Annotated[Limits, LimitsTable(most_count=10**12, most_amount=10**6)]
