"""What the arguments of all tools share: strict classes, bounded texts, limits.

The input schemas that clients see are made from these classes. A field's description stands in docs/tools.md. In the
listing, which every host reads in every session and which has little room, stands what `in_listing` says in its place.
validation.py words the refusals.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from kairos_mcp.core.already_read import NOTHING_READ, AlreadyRead
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.limits_table import LimitsTable

LONG_TEXT_CHARS = 100_000  # a longer text is refused, never cut in silence

RunId = Annotated[str, Field(min_length=1, max_length=100)]
LongText = Annotated[str, Field(max_length=LONG_TEXT_CHARS)]
Name = Annotated[str, Field(min_length=1, max_length=128)]
Wait = Annotated[float, Field(ge=0, le=600)]
AtLimit = Literal["end", "ask"]
DEFAULT_WAIT_S = 45.0  # hosts give up at about 60


IN_LISTING = "listed"  # the key of a schema under which the text is that the listing has for its description
WAIT_TEXT = "Seconds to wait for the run before this call returns; the run goes on all the same. Default: 45."

AT_LIMIT_TEXT = (
    "What happens at a limit of the run's own: end (the default), or ask: the run waits for a person, who may give it "
    "as much again."
)
CURSOR_TEXT = "The `cursor` of the result before, for its next page."
WORKSPACE_TEXT = "One of the configured folders, by its path, or by its name if no other has it. Default: the first."
KEY_TEXT = "A text of yours that names this start. A second start with the same key returns the run of the first."


def in_listing(text: str) -> dict[str, Any]:
    """Return what makes the listing say this of an argument, in place of its description; empty: nothing."""
    return {IN_LISTING: text}


def _refuse_blank(goal: str | None) -> str | None:
    if goal is not None and goal.isspace():
        raise PydanticCustomError("blank", "Should say what to achieve")
    return goal


Goal = Annotated[str, Field(min_length=1, max_length=LONG_TEXT_CHARS), AfterValidator(_refuse_blank)]


class Arguments(BaseModel):
    """Arguments of a tool: nothing is coerced, unknown names are refused, null is the same as absent."""

    # Built at first use: a call needs the models of its own tool alone.
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True, defer_build=True)

    @property
    def read(self) -> AlreadyRead:
        """What the caller has read before this call."""
        return NOTHING_READ


Key = Annotated[str, Field(min_length=1, max_length=400)]
After = Annotated[list[Key], Field(max_length=256)] | Key


class ReadingArguments(Arguments):
    """What the tools share that show what waits in a run: they don't show again what their caller has read."""

    after: After | None = Field(
        None,
        description="The key of the newest item that you answered in this run; for several conversations a list, one "
        "for each. Only what came after these is shown; what waits under one of them is named alone. `next` carries "
        "it.",
        json_schema_extra=in_listing(""),
    )

    @property
    def read(self) -> AlreadyRead:
        return AlreadyRead(after=(self.after,) if isinstance(self.after, str) else self.after or ())


class StartArguments(ReadingArguments):
    """What the tools share that start a run which may show its caller long texts."""

    known: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=256)] | None = Field(
        None,
        description="Ids of texts that you have, as `system_id` and `tools_id` of an item: they are not shown again.",
        json_schema_extra=in_listing(""),
    )

    @property
    def read(self) -> AlreadyRead:
        return super().read._replace(known=self.known or ())


LimitsArgument = Annotated[Limits, LimitsTable(most_count=10**12, most_amount=10**6)]
