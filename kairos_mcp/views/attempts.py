"""What telemetry says of one attempt at a step: whether somebody carried it out, when it ended, what it cost."""

from __future__ import annotations

from typing import NamedTuple

from kairos_mcp.core.limits import Units
from kairos_mcp.core.messages import Completion, ToolResult
from kairos_mcp.core.routes import OUTSIDE_ROUTES, PAID_ROUTES
from kairos_mcp.core.steps import Answer, Failure, Refused, Sent
from kairos_mcp.store.queries import UNKNOWN, StepRow
from kairos_mcp.store.rows import decode_sent
from kairos_mcp.telemetry import names
from kairos_mcp.telemetry.names import Attribute
from kairos_mcp.telemetry.recorder import Value


class Attempt(NamedTuple):
    """An attempt at a step, from 1. It ended with an answer, or as `ended` says; `ended_at` None: it goes on."""

    number: int
    at: int
    is_open: bool
    sent_text: str | None
    ended_at: int | None = None
    ended: str | None = None
    answer: Answer | None = None
    by_route: str | None = None

    @property
    def sent(self) -> Sent:
        return decode_sent(self.sent_text) if self.sent_text else Sent()

    @property
    def was_performed(self) -> bool:
        """Whether somebody carried it out, and it was not only waited: for a person, or for the run to go on."""
        return not self.is_open or (self.by_route in OUTSIDE_ROUTES and not isinstance(self.answer, Refused))

    @property
    def error(self) -> str | None:
        """How it failed, None if it did not."""
        return self.ended if self.answer is None else error_of(self.answer)

    def end_of_work(self, row: StepRow) -> int:
        """When it ended. What this server performed ended before its answer was committed."""
        ended_at = self.ended_at or self.at
        if self.is_open or self.answer is None:
            return ended_at
        return min(ended_at, self.at + row.spent.milliseconds)


def provider_of(sent: Sent) -> str:
    """Return what the conventions call the provider of a request; the route where no provider was asked."""
    if sent.route not in PAID_ROUTES or sent.model is None:
        return sent.route or UNKNOWN
    kind = sent.model.partition(":")[0]
    return names.PROVIDERS.get(kind, kind)


def error_of(answer: Answer) -> str | None:
    """Return the kind of error that an answer is, None for none."""
    match answer:
        case Completion(unreadable=str()):
            return "unreadable"
        case ToolResult(is_error=True, code=code):
            return code or "tool_error"
        case Failure(code=code):
            return code
        case Refused(limit=limit):
            return f"limit_{limit}"
        case _:
            return None


def usage_attributes(spent: Units, cached: int) -> dict[Attribute, Value | None]:
    return {
        names.INPUT_TOKENS: spent.input_tokens,
        names.OUTPUT_TOKENS: spent.output_tokens,
        names.CACHED_TOKENS: cached or None,
        names.COST: spent.nano_usd / 1e9 if spent.nano_usd else None,
    }
