"""A request of ours in the words of pydantic-ai: turns, calls, results, tools, schema."""

from __future__ import annotations

import re
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

from kairos_mcp.core.messages import JsonObject, Message, ToolSpec
from kairos_mcp.core.steps import RequestCompletion
from kairos_mcp.models import ModelInput, dialects
from kairos_mcp.models.manner import ModelManner

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
