"""Read the usage of a reply, in every form in which servers report it, as one count of tokens.

What is not understood is never guessed: it raises UnreadableUsage, and the whole reservation is charged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kairos_mcp.core.quick_dataclass import dataclass

MAX_COUNT = 2**53 - 1  # the largest count that every JSON reader holds exactly

_INPUT = (
    "prompt_tokens",
    "input_tokens",
    "promptTokens",
    "inputTokens",
    "prompt_token_count",
    "promptTokenCount",
    "prompt_eval_count",
)
_OUTPUT = (
    "completion_tokens",
    "output_tokens",
    "completionTokens",
    "outputTokens",
    "candidates_token_count",
    "candidatesTokenCount",
    "generated_tokens",
    "eval_count",
)
_TOTAL = ("total_tokens", "totalTokens", "total_token_count", "totalTokenCount")
_CACHED = (
    "cached_tokens",
    "cache_read_input_tokens",
    "prompt_cache_hit_tokens",
    "num_cached_tokens",
    "cachedContentTokenCount",
    "cachedTokens",
    "cacheReadInputTokens",
)
_CACHE_WRITTEN = (
    "cache_creation_input_tokens",
    "cache_write_tokens",
    "cacheCreationInputTokens",
    "cacheWriteInputTokens",
)
_REASONING = ("reasoning_tokens", "thinking_tokens", "reasoningTokens", "thoughtsTokenCount")
_DETAILS = (
    "prompt_tokens_details",
    "input_tokens_details",
    "completion_tokens_details",
    "output_tokens_details",
    "promptTokensDetails",
    "inputTokensDetails",
    "completionTokensDetails",
    "outputTokensDetails",
)


class UnreadableUsage(Exception):
    """A usage that gives no number of tokens. `reason` goes on with "its"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class TokenReport:
    """The tokens of one reply. The input contains those of a cache, the output those of reasoning."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    cache_written_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


def read_usage(usage: object, *, cache_is_apart: bool = False) -> TokenReport | None:
    """Return the report, or None where nothing is reported: no usage, one of zeros alone, or names that no reply of
    this kind has.

    `cache_is_apart`: the input leaves out what a cache gave or took, as Anthropic's does.
    Raises UnreadableUsage.
    """
    if usage is None:
        return None
    if not isinstance(usage, Mapping):
        raise UnreadableUsage("usage is no object")
    read, written, total = _find_count(usage, _INPUT), _find_count(usage, _OUTPUT), _find_count(usage, _TOTAL)
    if not (read or written or total):
        return None
    cached = _find_detail(usage, _CACHED)
    cache_written = max(_find_detail(usage, _CACHE_WRITTEN), _sum_cache_writes(usage.get("cache_creation")))
    read, written = _complete_pair(read, written, total)
    if cache_is_apart or _must_be_apart(read, written, total, cached):
        read += cached + cache_written
    return _with_reasoning(read, written, total, cached, cache_written, _find_detail(usage, _REASONING))


def largest_report(reports: Iterable[TokenReport]) -> TokenReport | None:
    """Return what a stream used: reports are cumulative, so the one with the most tokens, and of those the last."""
    largest: TokenReport | None = None
    for report in reports:
        if largest is None or report.total_tokens >= largest.total_tokens:
            largest = report
    return largest


def _complete_pair(read: int | None, written: int | None, total: int | None) -> tuple[int, int]:
    """Return input and output; one may follow from the total."""
    match read, written, total:
        case int(), int(), _:
            return read, written
        case int(), None, int() if total >= read:
            return read, total - read
        case None, int(), int() if total >= written:
            return total - written, written
        case int(), None, _:
            raise UnreadableUsage("usage leaves out the output")
        case None, int(), _:
            raise UnreadableUsage("usage leaves out the input")
        case _:
            raise UnreadableUsage("usage gives a total alone")


def _must_be_apart(read: int, written: int, total: int | None, cached: int) -> bool:
    """Whether what came from a cache can't be a part of the input: more came from there than was read."""
    if cached <= read:
        return False
    if total is not None and total <= read + written:
        raise UnreadableUsage("usage says that more came from a cache than was read")
    return True


def _with_reasoning(
    read: int, written: int, total: int | None, cached: int, cache_written: int, reasoning: int
) -> TokenReport:
    """Return the report with what only the total tells. Reasoning is inside the output unless the total says more."""
    if total is None:
        # It can't be a part of what is smaller.
        return TokenReport(read, written + (reasoning if reasoning > written else 0), cached, cache_written)
    beside = max(0, total - read - written)
    if beside and beside != reasoning and beside in (cached, cached + cache_written):
        return TokenReport(read + beside, written, cached, cache_written)
    return TokenReport(read, written + beside, cached, cache_written)


def _find_count(usage: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """Return the count under one of these names; of two, the greater. Raises UnreadableUsage for what is no count."""
    counts = []
    for name in names:
        value = usage.get(name)
        if value is None:
            continue
        count = _parse_count(value)
        if count is None:
            raise UnreadableUsage(f"{name} is not a number of tokens")
        counts.append(count)
    return max(counts, default=None)


def _find_detail(usage: Mapping[str, Any], names: Iterable[str]) -> int:
    """Return a part of a count; 0 where it is not given, or is no count: the whole is charged in any case."""
    holders = [usage, *(details for name in _DETAILS if isinstance(details := usage.get(name), Mapping))]
    return max(_counts_under(holders, names), default=0)


def _sum_cache_writes(by_life: object) -> int:
    """Return the sum of Anthropic's `cache_creation`, which counts what is kept for five minutes and an hour apart."""
    if not isinstance(by_life, Mapping):
        return 0
    counts = [_parse_count(count) for name, count in by_life.items() if str(name).endswith("_input_tokens")]
    return sum(count for count in counts if count is not None)


def _counts_under(holders: Iterable[Mapping[str, Any]], names: Iterable[str]) -> Iterator[int]:
    for holder in holders:
        for name in names:
            count = _parse_count(holder.get(name))
            if count is not None:
                yield count


def _parse_count(value: object) -> int | None:
    """Return a count as it was meant: 12, 12.0 and "12" are one. None for what is no count."""
    match value:
        case bool():
            return None
        case int():
            count = value
        case float() if value.is_integer():
            count = int(value)
        case str() if value.isascii() and value.isdigit() and len(value) <= 16:
            count = int(value)
        case _:
            return None
    return count if 0 <= count <= MAX_COUNT else None
