"""Calculate what a step costs: the upper bound before it begins, and the charge once its answer is known."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kairos_mcp.budget.units import NOTHING, Units, counts_of
from kairos_mcp.core.messages import Completion, Usage
from kairos_mcp.core.steps import Failure, RequestCompletion
from kairos_mcp.store.commit import StepResult

MARGIN_TOKENS = 1_024  # what a route may add around a conversation whose tokens nobody has reported yet
TAIL_TOKENS = 320  # of the status line, which is at most so many bytes
MESSAGE_TOKENS = 16  # around each message


@dataclass(slots=True)
class InputEstimator:
    """Bounds the input tokens of completions of one conversation on one route.

    The bound is the last usage that the route reported, plus what was added since: a token is at least one byte. Each
    route has its own, since routes count tokens differently.
    """

    length: int = 0
    digest: bytes = b""
    size: int = 0
    tools: int = 0
    tokens: int = 0

    def bound(self, step: RequestCompletion) -> int:
        conversation, reminder = step.conversation, len((step.reminder or "").encode())
        if self.length and conversation.digest_at(self.length) == self.digest:
            added = conversation.size - self.size + max(0, step.tools.size - self.tools)
            return self.tokens + added + MESSAGE_TOKENS * (len(conversation) - self.length) + reminder + TAIL_TOKENS
        return conversation.size + MESSAGE_TOKENS * len(conversation) + step.tools.size + reminder + MARGIN_TOKENS

    def learn(self, step: RequestCompletion, answer: Completion) -> None:
        """Remember a usage that was reported."""
        usage = answer.usage
        if usage is not None and usage.exactness == "reported":
            self.length, self.digest = len(step.conversation), step.conversation.digest
            self.size, self.tools = step.conversation.size, step.tools.size
            # What a provider is given back beside the conversation (its thinking) are tokens that it has just written.
            self.tokens = usage.input_tokens + (usage.output_tokens if answer.private is not None else 0)


def drop_impossible_usage(path: str, completion: Completion) -> tuple[Completion, tuple[str, ...]]:
    """Return the completion without its usage if that is impossible, and a note about it.

    On every route an impossible report counts as none, so that the bound or the estimate is charged.
    """
    reason = None if completion.usage is None else _why_impossible(completion.usage, completion)
    if reason is None:
        return completion, ()
    note = f"{path}: a usage was reported that can't be ({reason}); it counts as none, and the estimate holds."
    return replace(completion, usage=None), (note,)


def _why_impossible(usage: Usage, completion: Completion) -> str | None:
    """Return why a usage is impossible, or None. Every request has input tokens, and every output was written."""
    if min(usage.input_tokens, usage.output_tokens, usage.cached_tokens) < 0:
        return "fewer than no tokens"
    if usage.input_tokens == 0:
        return "no tokens were read"
    if usage.output_tokens == 0 and (completion.content or completion.tool_calls):
        return "no tokens were written"
    if usage.cached_tokens > usage.input_tokens:
        return "more tokens came from a cache than were read"
    return None


def completion_result(
    path: str,
    step: RequestCompletion,
    answer: Completion | Failure,
    took_ms: int,
    bound: Units,
    *,
    paid: bool,
    notes: tuple[str, ...] = (),
) -> StepResult:
    """Return the result of a completion with its cost.

    The cost is the reported one; without a report it is what was reserved (`bound`) if this server pays, else an
    estimate. `notes`: about a report that was dropped.
    """
    counts = counts_of(step.purpose)
    match answer:
        case Completion(usage=None) if paid:
            return StepResult(answer, _bounded_cost(bound, counts, took_ms), exactness="bounded", notes=notes)
        case Completion():
            usage = answer.usage or estimate_usage(step, answer)
            spent = usage_units(usage, counts, took_ms)
            more = _overshoot_notes(path, spent, bound) if paid else ()
            return StepResult(answer, spent, usage.cached_tokens, usage.exactness, notes=(*notes, *more))
        case Failure(unknown_end=True):
            return StepResult(answer, _bounded_cost(bound, counts, took_ms), exactness="bounded")
        case _:
            return StepResult(answer, counts._replace(milliseconds=took_ms), exactness="reported")


def _bounded_cost(bound: Units, counts: Units, took_ms: int) -> Units:
    """Return all that was reserved, with the time it took. A further attempt reserved no counts, so they are set."""
    return bound._replace(rounds=counts.rounds, model_calls=counts.model_calls, milliseconds=took_ms)


def _overshoot_notes(path: str, spent: Units, bound: Units) -> tuple[str, ...]:
    """Return a note about a usage above what was reserved. It is charged in full, and is the only way past a limit."""
    if spent.total_tokens <= bound.total_tokens and spent.nano_usd <= bound.nano_usd:
        return ()
    return (f"{path}: {spent.total_tokens} tokens were reported, {bound.total_tokens} were reserved.",)


def estimate_usage(step: RequestCompletion, completion: Completion) -> Usage:
    """Estimate the tokens of a completion whose route reports none: a quarter of the bytes, input and output."""
    written = len(completion.content.encode()) + sum(
        len(call.name) + len(str(call.arguments)) for call in completion.tool_calls
    )
    return Usage((step.conversation.size + step.tools.size) // 4, -(-written // 4), exactness="estimated")


def usage_units(usage: Usage, counts: Units = NOTHING, took_ms: int = 0) -> Units:
    """Return a completion's usage as an amount for accounts, with its rounds, calls and milliseconds."""
    read, written = usage.input_tokens, usage.output_tokens
    return Units(counts.rounds, counts.model_calls, read, written, read + written, usage.nano_usd, 0, took_ms)
