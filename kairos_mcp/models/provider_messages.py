"""Encode our conversation as pydantic-ai's messages, and decode its response as our completion."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from hashlib import sha256
from typing import Any

from pydantic import ValidationError
from pydantic_ai.messages import (
    CachePoint,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from kairos_mcp.core.input_checks import Undecodable, find_unfit_value, parse_strict_json
from kairos_mcp.core.messages import (
    Completion,
    Finish,
    JsonObject,
    Message,
    Private,
    ToolCall,
    ToolSpec,
    Usage,
    make_tool_call,
)
from kairos_mcp.core.model import ModelInput
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import Failure, RequestCompletion, call_path
from kairos_mcp.models import dialects
from kairos_mcp.models.model import ModelOptions
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.models.replies.exchange import Exchange
from kairos_mcp.models.replies.finishes import Meaning, read_finish
from kairos_mcp.models.replies.usage import TokenReport

MAX_ID_CHARS = 40  # of a call's id: the shortest limit among the providers


def encode_messages(
    model_input: ModelInput, options: ModelOptions, origin: str, *, use_cache: bool, describes_schema: bool
) -> list[ModelMessage]:
    """Encode the conversation.

    `use_cache`: put a cache mark between the newest turn and its tail, since the tail changes each round.
    `describes_schema`: describe the schema in words, since the provider does not enforce it.
    """
    step, tail = model_input.step, ""
    if options.dialect == "text":
        encoded = dialects.encode_text(step, model_input.sent, options.prompts)
    elif use_cache:
        encoded, tail = dialects.encode_native_without_tail(step), dialects.format_tail(step, model_input.sent)
    else:
        encoded = dialects.encode_native(step, model_input.sent)
    schema_text = ""
    if describes_schema and options.dialect == "native":
        schema_text = dialects.describe_schema(step, options.prompts)
    system = "\n\n".join(part for part in (encoded.system, schema_text) if part)
    writer = _ConversationWriter(model_input, origin)
    if system:
        writer.parts.append(SystemPromptPart(system))
    for message in encoded.messages:
        writer.add(message)
    if use_cache and writer.parts:
        writer.parts.append(UserPromptPart([CachePoint(), *([tail] if tail else [])]))
    return writer.finish()


def make_parameters(
    step: RequestCompletion, *, tools_offered: bool, schema: JsonObject | None
) -> ModelRequestParameters:
    """Make the parameters of a request: tools that are offered natively, and the schema that the provider enforces."""
    tools = [_tool_definition(spec) for spec in step.tools] if tools_offered else []
    if schema is None:
        return ModelRequestParameters(function_tools=tools)
    answer = OutputObjectDefinition(json_schema=schema, name="answer")
    return ModelRequestParameters(function_tools=tools, output_mode="native", output_object=answer)


@dataclass(slots=True)
class _ConversationWriter:
    """The messages written so far. `calls` maps our id of each call to its id and name on the wire."""

    model_input: ModelInput
    origin: str
    messages: list[ModelMessage] = field(default_factory=list)
    parts: list[ModelRequestPart] = field(default_factory=list)
    calls: dict[str, tuple[str, str]] = field(default_factory=dict)
    taken_ids: set[str] = field(default_factory=set)

    def add(self, message: Message) -> None:
        match message.role:
            case "assistant":
                self._end_request()
                self.messages.append(self._response_for(message))
            case "tool":
                ordinal = message.tool_call_id or ""
                wire_id, name = self.calls.get(ordinal, (to_wire_id(ordinal), "tool"))
                self.parts.append(ToolReturnPart(name, message.content, wire_id))
            case "system":
                self.parts.append(SystemPromptPart(message.content))
            case "user":
                self.parts.append(UserPromptPart(message.content))

    def finish(self) -> list[ModelMessage]:
        self._end_request()
        return self.messages

    def _end_request(self) -> None:
        if self.parts:
            self.messages.append(ModelRequest(parts=self.parts))
            self.parts = []

    def _response_for(self, message: Message) -> ModelResponse:
        """Return the turn as this provider wrote it; for a turn of another one, its text and its calls."""
        response = self._stored_response(message) or _plain_response(message)
        calls = iter(message.tool_calls)
        parts = [
            self._with_unique_id(part, next(calls)) if isinstance(part, ToolCallPart) else part
            for part in response.parts
        ]
        return response if parts == response.parts else replace(response, parts=parts)

    def _with_unique_id(self, part: ToolCallPart, call: ToolCall) -> ToolCallPart:
        """Return the call with its provider's id, or ours where that is empty or was that of another call: some models
        use an id twice, and most servers refuse a conversation in which one stands twice."""
        wire_id = part.tool_call_id
        while not wire_id or wire_id in self.taken_ids:
            wire_id = to_wire_id(call.id if wire_id == part.tool_call_id else f"{call.id}/{wire_id}")
        self.taken_ids.add(wire_id)
        self.calls[call.id] = (wire_id, call.name)
        return part if wire_id == part.tool_call_id else replace(part, tool_call_id=wire_id)

    def _stored_response(self, message: Message) -> ModelResponse | None:
        private = self.model_input.find_private(message)
        if private is None or private.origin != self.origin:
            return None
        try:
            (response,) = ModelMessagesTypeAdapter.validate_json(private.body)
        except (ValidationError, ValueError):  # another version of the library wrote it
            return None
        if not isinstance(response, ModelResponse):
            return None
        call_parts = [part for part in response.parts if isinstance(part, ToolCallPart)]
        if len(call_parts) != len(message.tool_calls):
            return None
        broken = {
            part.tool_call_id for part, call in zip(call_parts, message.tool_calls, strict=True) if call.unreadable
        }
        return (
            replace(response, parts=[_without_broken_arguments(part, broken) for part in response.parts])
            if broken
            else response
        )


def to_wire_id(ordinal: str) -> str:
    """Turn our id of a call into one that every provider accepts: `round-3/call-2` becomes `round-3-call-2`."""
    plain = re.sub(r"[^a-zA-Z0-9_-]", "-", ordinal)
    return plain if len(plain) <= MAX_ID_CHARS else sha256(ordinal.encode()).hexdigest()[:MAX_ID_CHARS]


def _plain_response(message: Message) -> ModelResponse:
    parts: list[ModelResponsePart] = [TextPart(message.content)] if message.content else []
    parts += [ToolCallPart(call.name, call.arguments, to_wire_id(call.id)) for call in message.tool_calls]
    return ModelResponse(parts=parts)


def _without_broken_arguments(part: ModelResponsePart, broken: set[str]) -> ModelResponsePart:
    # Arguments that could not be read are sent back empty: servers parse the history, and would refuse them.
    match part:
        case ToolCallPart(tool_call_id=call) if call in broken:
            return replace(part, args="{}")
        case _:
            return part


def _tool_definition(spec: ToolSpec) -> ToolDefinition:
    schema: JsonObject = spec.input_schema
    if "properties" not in schema:  # some providers refuse an object without them
        schema = {"type": "object", "properties": {}} | schema
    return ToolDefinition(name=spec.name, parameters_json_schema=schema, description=spec.description)


_FINISHES: Mapping[str, Meaning] = {
    "stop": "stop",
    "tool_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
    "error": "broken",
}


def decode_completion(
    response: ModelResponse,
    path: str,
    origin: str,
    tariff: Tariff,
    context_tokens: int | None,
    exchange: Exchange,
) -> Completion | Failure:
    """Decode the completion of the step at `path`. Its usage is None where the provider reports none.

    `exchange`: with what was read of the reply before its library did; of a provider with a transport of its own,
    nothing.
    """
    details = response.provider_details or {}
    stated = _read_finish(response, exchange)
    if stated == "broken":
        return Failure("provider_error", "The provider broke off in the middle.", True, unknown_end=True)
    refusal = details.get("refusal")
    content = (response.text or "") or (refusal if isinstance(refusal, str) else "")
    call_parts = [part for part in response.parts if isinstance(part, ToolCallPart)]
    calls = tuple(_decode_call(part, call_path(path, n)) for n, part in enumerate(call_parts, 1))
    usage = _decode_usage(_token_report(response.usage, exchange), response.model_name, tariff)
    unreadable = find_unfit_value([content, [[call.name, call.arguments] for call in calls]])
    if unreadable is not None:
        content, calls = "", ()
    return Completion(
        content=content,
        tool_calls=calls,
        finish=_normalize_finish(stated, refused="refusal" in (*details, details.get("finish_reason")), calls=calls),
        usage=usage,
        context_tokens=context_tokens,
        unreadable=unreadable,
        private=_private_part(response, origin, exchange) if unreadable is None else None,
    )


def _decode_call(part: ToolCallPart, ordinal: str) -> ToolCall:
    """Decode a call. Arguments that are no JSON object make it unreadable; missing ones are an empty object."""
    match part.args:
        case dict() as arguments:
            return ToolCall(ordinal, part.tool_name, arguments)
        case str() as text if text.strip():
            try:
                value = parse_strict_json(text)
            except Undecodable as error:
                return ToolCall(ordinal, part.tool_name, unreadable=f"the arguments can't be read: {error.reason}")
            return make_tool_call(ordinal, part.tool_name, value)
        case _:
            return ToolCall(ordinal, part.tool_name)


def _read_finish(response: ModelResponse, exchange: Exchange) -> Meaning | None:
    """Return what the reply's own word means, where the pass before the library saw it, or the library knows none."""
    if exchange.finish is not None:
        return exchange.finish
    known = response.finish_reason
    if known is not None:
        return _FINISHES[known]
    word = (response.provider_details or {}).get("finish_reason")
    meaning = read_finish(word)
    if meaning == "unknown":
        exchange.note(f"The provider ended a reply with an unknown finish reason: {str(word)[:60]!r}.")
    return meaning


def _normalize_finish(stated: Meaning | None, *, refused: bool, calls: tuple[ToolCall, ...]) -> Finish | None:
    # Some servers report `stop` beside calls, or `tool_calls` without any.
    match stated:
        case _ if refused:
            return "refusal"
        case "stop" if calls:
            return "tool_calls"
        case "tool_calls" if not calls:
            return None
        case "broken" | "paused" | "unknown":
            return None
        case finish:
            return finish


def _token_report(usage: RequestUsage, exchange: Exchange) -> TokenReport | None:
    """Return the reported tokens. A report of zeros alone counts as none."""
    if exchange.has_usage:
        return exchange.usage
    if not (usage.input_tokens or usage.output_tokens):
        return None
    return TokenReport(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)


def _decode_usage(report: TokenReport | None, answered_by: str | None, tariff: Tariff) -> Usage | None:
    """Return the reported tokens with their cost."""
    if report is None:
        return None
    tokens = Usage(report.input_tokens, report.output_tokens, report.cached_tokens)
    cost = tariff.cost(tokens, answered_by, report.cache_written_tokens)
    return Usage(tokens.input_tokens, tokens.output_tokens, tokens.cached_tokens, cost)


def with_reported_usage(failure: Failure, exchange: Exchange, tariff: Tariff) -> Failure:
    """Return the failure of a reply that came whole with what it reports to have used, which is charged then."""
    usage = _decode_usage(exchange.usage, None, tariff) if failure.unknown_end and exchange.has_usage else None
    return failure if usage is None else replace(failure, usage=usage, unknown_end=False)


_REASONING_DETAILS = "reasoning_details"


def find_reasoning_details(messages: Sequence[ModelMessage]) -> dict[str, list[Any]]:
    """Return what a provider of this form wants back beside a turn's calls, by the id of its first call."""
    found: dict[str, list[Any]] = {}
    for message in messages:
        details = isinstance(message, ModelResponse) and (message.provider_details or {}).get(_REASONING_DETAILS)
        if isinstance(message, ModelResponse) and isinstance(details, list):
            call = next((part for part in message.parts if isinstance(part, ToolCallPart)), None)
            found |= {} if call is None else {call.tool_call_id: details}
    return found


def _private_part(response: ModelResponse, origin: str, exchange: Exchange) -> Private | None:
    """Return the whole reply, if it holds more than text: ids, thinking, signatures."""
    if all(isinstance(part, TextPart) and not (part.id or part.provider_details) for part in response.parts):
        return None
    if exchange.reasoning_details is not None:
        own = {**(response.provider_details or {}), _REASONING_DETAILS: exchange.reasoning_details}
        response = replace(response, provider_details=own)
    return Private(origin, ModelMessagesTypeAdapter.dump_json([response]).decode())
