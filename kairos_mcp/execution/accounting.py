"""What a step costs: the bound before it begins, and what its answer turned out to be charged with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from kairos_mcp.budget.units import NOTHING, Units, counts_of
from kairos_mcp.core.messages import Completion, Exactness, Usage
from kairos_mcp.core.steps import Answer, Failure, RequestCompletion

MARGIN_TOKENS = 1_024  # what a route may add around a conversation whose tokens nobody has reported yet
TAIL_TOKENS = 320  # of the standing line: it has no more bytes
MESSAGE_TOKENS = 16  # around each message


class StepResult(NamedTuple):
    """What came of a step: its answer, what it cost, a long text to be kept (hash, body), and what the result says."""

    answer: Answer
    spent: Units
    cached: int = 0
    exactness: Exactness | None = None
    text: tuple[str, str] | None = None
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class InputEstimator:
    """The bound of a completion's input: the last report of the same conversation by the same route, plus what was
    added since; a token is at least one byte. Another route counts otherwise, or may have said anything."""

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
        """What is given back to the provider beside the conversation (its thinking) was written in this turn."""
        usage = answer.usage
        if usage is not None and usage.exactness == "reported":
            self.length, self.digest = len(step.conversation), step.conversation.digest
            self.size, self.tools = step.conversation.size, step.tools.size
            self.tokens = usage.input_tokens + (usage.output_tokens if answer.private is not None else 0)


def believed(path: str, completion: Completion) -> tuple[Completion, tuple[str, ...]]:
    """The completion, without its usage where that can't be, and what is to be said of it then.

    The one law for every route: a report that can't be is none, so that the bound or the estimate holds.
    """
    reason = None if completion.usage is None else _impossible(completion.usage, completion)
    if reason is None:
        return completion, ()
    doubt = f"{path}: a usage was reported that can't be ({reason}); it counts as none, and the estimate holds."
    return replace(completion, usage=None), (doubt,)


def _impossible(usage: Usage, completion: Completion) -> str | None:
    """Why nobody can have used this, if so: every request is read, and whatever is said was written."""
    if min(usage.input_tokens, usage.output_tokens, usage.cached_tokens) < 0:
        return "fewer than no tokens"
    if usage.input_tokens == 0:
        return "no tokens were read"
    if usage.output_tokens == 0 and (completion.content or completion.tool_calls):
        return "no tokens were written"
    if usage.cached_tokens > usage.input_tokens:
        return "more tokens came from a cache than were read"
    return None


def costed(
    path: str,
    step: RequestCompletion,
    answer: Completion | Failure,
    took: int,
    bound: Units,
    *,
    paid: bool,
    doubts: tuple[str, ...] = (),
) -> StepResult:
    """What a completion cost: as reported; where nobody reports, as bounded if this server pays, else as estimated.
    `doubts`: what is said of a report that was not believed."""
    counts = counts_of(step.purpose)
    match answer:
        case Completion(usage=None) if paid:
            return StepResult(answer, _bounded(bound, counts, took), exactness="bounded", notes=doubts)
        case Completion():
            usage = answer.usage or estimated(step, answer)
            spent = tokens_of(usage, counts, took)
            notes = _overshoot(path, spent, bound) if paid else ()
            return StepResult(answer, spent, usage.cached_tokens, usage.exactness, notes=(*doubts, *notes))
        case Failure(unknown_end=True):
            return StepResult(answer, _bounded(bound, counts, took), exactness="bounded")
        case _:
            return StepResult(answer, counts._replace(milliseconds=took), exactness="reported")


def _bounded(bound: Units, counts: Units, took: int) -> Units:
    """All that was held, but of the time what it took; the counts also at a further attempt, which holds none."""
    return bound._replace(rounds=counts.rounds, model_calls=counts.model_calls, milliseconds=took)


def _overshoot(path: str, spent: Units, bound: Units) -> tuple[str, ...]:
    """A report above what was reserved is recorded whole and named: it is the only way past a limit."""
    if spent.total_tokens <= bound.total_tokens and spent.nano_usd <= bound.nano_usd:
        return ()
    return (f"{path}: {spent.total_tokens} tokens were reported, {bound.total_tokens} were reserved.",)


def estimated(step: RequestCompletion, completion: Completion) -> Usage:
    """Tokens of a completion whose route reports none: a quarter of the bytes, on both sides."""
    written = len(completion.content.encode()) + sum(
        len(call.name) + len(str(call.arguments)) for call in completion.tool_calls
    )
    return Usage((step.conversation.size + step.tools.size) // 4, -(-written // 4), exactness="estimated")


def tokens_of(usage: Usage, counts: Units = NOTHING, took: int = 0) -> Units:
    """A completion's usage as an amount of an account, with what else it counts and the milliseconds it took."""
    read, written = usage.input_tokens, usage.output_tokens
    return Units(counts.rounds, counts.model_calls, read, written, read + written, usage.nano_usd, 0, took)
