"""A provider's reply as a completion of ours: text, calls, finish, tokens and their price, and what it wants back."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.usage import RequestUsage

from kairos_mcp.core.messages import Completion, Finish, Private, ToolCall, Usage
from kairos_mcp.core.steps import Failure
from kairos_mcp.core.strict_json import Undecodable, strict_json, unfit
from kairos_mcp.models.pricing import Tariff

_FINISHES: Mapping[str, Finish] = {
    "stop": "stop",
    "tool_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


def completion_of(
    response: ModelResponse, path: str, origin: str, tariff: Tariff, context_tokens: int | None
) -> Completion | Failure:
    """The completion of the step at `path`. No usage is given where the provider reports none."""
    if response.finish_reason == "error":
        return Failure("provider_error", "The provider broke off in the middle.", True, unknown_end=True)
    details = response.provider_details or {}
    refusal = details.get("refusal")
    content = (response.text or "") or (refusal if isinstance(refusal, str) else "")
    asked = [part for part in response.parts if isinstance(part, ToolCallPart)]
    calls = tuple(_call(part, f"{path}/call-{n}") for n, part in enumerate(asked, 1))
    usage = _usage(response.usage, response.model_name, tariff)
    unreadable = unfit([content, [[call.name, call.arguments] for call in calls]])
    if unreadable is not None:
        content, calls = "", ()
    return Completion(
        content=content,
        tool_calls=calls,
        finish=_finish(
            response.finish_reason, refused="refusal" in (*details, details.get("finish_reason")), calls=calls
        ),
        usage=usage,
        context_tokens=context_tokens,
        unreadable=unreadable,
        private=_private(response, origin) if unreadable is None else None,
    )


def _decoded(ordinal: str, name: str, value: object) -> ToolCall:
    """In the words of the other routes: the reason is part of what the flow asks next."""
    match value:
        case dict():
            return ToolCall(ordinal, name, value)
        case str():
            return ToolCall(ordinal, name, unreadable="the arguments are a text; a JSON object is needed")
        case _:
            return ToolCall(ordinal, name, unreadable="the arguments are no JSON object")


def _call(part: ToolCallPart, ordinal: str) -> ToolCall:
    """A call; arguments that are no JSON object make it unreadable. No arguments at all are an empty object."""
    match part.args:
        case dict() as arguments:
            return ToolCall(ordinal, part.tool_name, arguments)
        case str() as text if text.strip():
            try:
                value = strict_json(text)
            except Undecodable as broken:
                return ToolCall(ordinal, part.tool_name, unreadable=f"the arguments can't be read: {broken.reason}")
            return _decoded(ordinal, part.tool_name, value)
        case _:
            return ToolCall(ordinal, part.tool_name)


def _finish(stated: str | None, *, refused: bool, calls: tuple[ToolCall, ...]) -> Finish | None:
    """Some servers state `stop` beside calls, or calls without any."""
    match _FINISHES.get(stated or ""):
        case "stop" if calls:
            return "tool_calls"
        case "tool_calls" if not calls:
            return None
        case "content_filter" if refused:
            return "refusal"
        case finish:
            return finish


def _usage(usage: RequestUsage, answered_by: str | None, tariff: Tariff) -> Usage | None:
    """The tokens reported; a report of nothing at all is none."""
    if not (usage.input_tokens or usage.output_tokens):
        return None
    tokens = Usage(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens)
    cost = tariff.cost(tokens, answered_by, usage.cache_write_tokens)
    return Usage(tokens.input_tokens, tokens.output_tokens, tokens.cached_tokens, cost)


def _private(response: ModelResponse, origin: str) -> Private | None:
    """The reply itself, where it holds more than text: ids, thinking, signatures."""
    if all(isinstance(part, TextPart) and not (part.id or part.provider_details) for part in response.parts):
        return None
    return Private(origin, ModelMessagesTypeAdapter.dump_json([response]).decode())
