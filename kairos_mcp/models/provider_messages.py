"""Requests and replies of pydantic-ai: our conversation in its words, and its response as our completion."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

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

from kairos_mcp.core.messages import Completion, Finish, JsonObject, Message, Private, ToolCall, ToolSpec, Usage
from kairos_mcp.core.steps import Failure, RequestCompletion
from kairos_mcp.core.strict_json import Undecodable, find_unfit_value, parse_strict_json
from kairos_mcp.models import dialects
from kairos_mcp.models.model import ModelInput, ModelManner
from kairos_mcp.models.pricing import Tariff

ID_CHARS = 40  # of a call's id: the shortest limit among the providers


def messages_of(
    asked: ModelInput, manner: ModelManner, origin: str, *, caches: bool, tells_schema: bool
) -> list[ModelMessage]:
    """The conversation. With `caches` a mark stands between the newest turn and its tail, which changes each round."""
    step, tail = asked.step, ""
    if manner.dialect == "text":
        worded = dialects.text(step, asked.sent, manner.prompts)
    elif caches:
        worded, tail = dialects.untailed(step), dialects.tail(step, asked.sent)
    else:
        worded = dialects.native(step, asked.sent)
    told = dialects.told_schema(step, manner.prompts) if tells_schema and manner.dialect == "native" else ""
    system = "\n\n".join(part for part in (worded.system, told) if part)
    telling = _Telling(asked, origin)
    if system:
        telling.parts.append(SystemPromptPart(system))
    for message in worded.messages:
        telling.tell(message)
    if caches and telling.parts:
        telling.parts.append(UserPromptPart([CachePoint(), *([tail] if tail else [])]))
    return telling.told()


def parameters_of(step: RequestCompletion, *, offered: bool, schema: JsonObject | None) -> ModelRequestParameters:
    """The tools, where they are offered natively, and the schema that the provider holds its model to."""
    tools = [_tool(spec) for spec in step.tools] if offered else []
    if schema is None:
        return ModelRequestParameters(function_tools=tools)
    answer = OutputObjectDefinition(json_schema=schema, name="answer")
    return ModelRequestParameters(function_tools=tools, output_mode="native", output_object=answer)


@dataclass(slots=True)
class _Telling:
    """The conversation so far. `calls`: our ordinal of each call, with its id and name on the wire."""

    asked: ModelInput
    origin: str
    messages: list[ModelMessage] = field(default_factory=list)
    parts: list[ModelRequestPart] = field(default_factory=list)
    calls: dict[str, tuple[str, str]] = field(default_factory=dict)

    def tell(self, message: Message) -> None:
        match message.role:
            case "assistant":
                self._end_request()
                self.messages.append(self._turn(message))
            case "tool":
                ordinal = message.tool_call_id or ""
                wire_id, name = self.calls.get(ordinal, (wire_id_of(ordinal), "tool"))
                self.parts.append(ToolReturnPart(name, message.content, wire_id))
            case "system":
                self.parts.append(SystemPromptPart(message.content))
            case "user":
                self.parts.append(UserPromptPart(message.content))

    def told(self) -> list[ModelMessage]:
        self._end_request()
        return self.messages

    def _end_request(self) -> None:
        if self.parts:
            self.messages.append(ModelRequest(parts=self.parts))
            self.parts = []

    def _turn(self, message: Message) -> ModelResponse:
        """The turn as its provider gave it, if it was this one; else its text and its calls."""
        response = self._as_it_came(message) or _plain(message)
        asked = [part for part in response.parts if isinstance(part, ToolCallPart)]
        for call, part in zip(message.tool_calls, asked, strict=True):
            self.calls[call.id] = (part.tool_call_id, call.name)
        return response

    def _as_it_came(self, message: Message) -> ModelResponse | None:
        private = self.asked.private(message)
        if private is None or private.origin != self.origin:
            return None
        try:
            (response,) = ModelMessagesTypeAdapter.validate_json(private.body)
        except (ValidationError, ValueError):  # another version of the library wrote it
            return None
        if not isinstance(response, ModelResponse):
            return None
        asked = [part for part in response.parts if isinstance(part, ToolCallPart)]
        if len(asked) != len(message.tool_calls):
            return None
        broken = {part.tool_call_id for part, call in zip(asked, message.tool_calls, strict=True) if call.unreadable}
        return replace(response, parts=[_mended(part, broken) for part in response.parts]) if broken else response


def wire_id_of(ordinal: str) -> str:
    """An ordinal as an id that every provider takes: `round-3/call-2` is `round-3-call-2`."""
    plain = re.sub(r"[^a-zA-Z0-9_-]", "-", ordinal)
    return plain if len(plain) <= ID_CHARS else sha256(ordinal.encode()).hexdigest()[:ID_CHARS]


def _plain(message: Message) -> ModelResponse:
    parts: list[ModelResponsePart] = [TextPart(message.content)] if message.content else []
    parts += [ToolCallPart(call.name, call.arguments, wire_id_of(call.id)) for call in message.tool_calls]
    return ModelResponse(parts=parts)


def _mended(part: ModelResponsePart, broken: set[str]) -> ModelResponsePart:
    """Arguments that could not be read are sent back empty: servers parse the history, and refuse them."""
    match part:
        case ToolCallPart(tool_call_id=call) if call in broken:
            return replace(part, args="{}")
        case _:
            return part


def _tool(spec: ToolSpec) -> ToolDefinition:
    schema: JsonObject = spec.input_schema
    if "properties" not in schema:  # some providers refuse an object without them
        schema = {"type": "object", "properties": {}} | schema
    return ToolDefinition(name=spec.name, parameters_json_schema=schema, description=spec.description)


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
    unreadable = find_unfit_value([content, [[call.name, call.arguments] for call in calls]])
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
                value = parse_strict_json(text)
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
