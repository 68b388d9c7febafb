"""The model of an MCP host, through sampling: encode our request for the protocol, decode its reply as a completion.

The same request object travels as a pushed request (protocol versions up to 2025-11-25) and inside an
InputRequiredResult (from 2026-07-28).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import mcp_types as wire

from kairos_mcp.core.input_checks import find_unfit_value
from kairos_mcp.core.messages import Completion, Finish, Message, ToolCall
from kairos_mcp.core.steps import DialectName, RequestCompletion, Sent, call_path
from kairos_mcp.models import dialects
from kairos_mcp.models.dialects import EncodedRequest, TextPrompts

FINISHES: Mapping[str, Finish] = {
    "endturn": "stop",
    "stop": "stop",
    "stopsequence": "stop",
    "tooluse": "tool_calls",
    "toolcalls": "tool_calls",
    "maxtokens": "length",
    "length": "length",
    "contentfilter": "content_filter",
    "refusal": "refusal",
}  # the protocol's names and those of providers that hosts pass on, small and without underscores


MAX_MODEL_CHARS = 120  # of the model's name as a host reports it; it is shown, and decides nothing


class BadSamplingReply(Exception):
    """A reply without text or call, or not from a model. `reason` may be shown to the client."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def make_sampling_request(
    step: RequestCompletion, sent: Sent, dialect: DialectName, prompts: TextPrompts
) -> wire.CreateMessageRequest:
    """Make the request to a client. It always states preferences and maxTokens, and never includeContext."""
    encoded, schema_text = dialects.encode_text(step, sent, prompts), ""
    if dialect == "native":
        encoded, schema_text = dialects.encode_native(step, sent), dialects.describe_schema(step, prompts)
    system = "\n\n".join(part for part in (encoded.system, schema_text) if part)
    hints = [wire.ModelHint(name=sent.model)] if sent.model else None
    tools = [wire.Tool(name=t.name, description=t.description, input_schema=t.input_schema) for t in encoded.tools]
    return wire.CreateMessageRequest(
        params=wire.CreateMessageRequestParams(
            messages=_encode_messages(encoded),
            model_preferences=wire.ModelPreferences(hints=hints, intelligence_priority=0.7),
            system_prompt=system or None,
            max_tokens=sent.max_tokens or step.max_tokens,
            temperature=sent.temperature,
            tools=tools or None,
            tool_choice=wire.ToolChoice(mode="auto") if tools else None,
        )
    )


def parse_sampling_reply(
    reply: wire.CreateMessageResult | wire.CreateMessageResultWithTools,
    step: RequestCompletion,
    path: str,
    dialect: DialectName,
) -> Completion:
    """Decode the reply of a client's model. Raises BadSamplingReply.

    A turn that ends and yet calls tools is unreadable, and none of its calls is run. So is one that announces calls
    and has none: its text is no final answer.
    """
    if reply.role != "assistant":
        raise BadSamplingReply("the answer is not an assistant's turn")
    blocks = reply.content if isinstance(reply.content, list) else [reply.content]
    model_name = "".join(char for char in reply.model[:MAX_MODEL_CHARS] if char.isprintable()) or None
    content, calls = _parse_blocks(blocks, path)
    finish = FINISHES.get((reply.stop_reason or "").replace("_", "").lower())
    answer = Completion(content, calls, finish, model=model_name)
    if (reason := find_unfit_value([content, [[call.name, call.arguments] for call in calls]])) is not None:
        return Completion(unreadable=reason)
    if answer.tool_calls and answer.finish == "stop":
        return replace(answer, unreadable=f"it ends with {reply.stop_reason!r} and calls tools; toolUse is needed")
    if dialect == "native" and answer.finish == "tool_calls" and not answer.tool_calls:
        return replace(answer, unreadable=f"it ends with {reply.stop_reason!r} and calls no tool")
    return answer if dialect == "native" else dialects.decode_text_reply(answer, step, path)


def _parse_blocks(blocks: Sequence[Any], path: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Parse what a turn consists of: its text, and its calls. Raises BadSamplingReply."""
    texts = [block.text for block in blocks if isinstance(block, wire.TextContent)]
    uses = [block for block in blocks if isinstance(block, wire.ToolUseContent)]
    if not texts and not uses:
        kinds = ", ".join(sorted({block.type for block in blocks})) or "nothing"
        raise BadSamplingReply(f"the answer holds {kinds} and no text")
    calls = tuple(ToolCall(call_path(path, n), use.name, dict(use.input)) for n, use in enumerate(uses, 1))
    return "".join(texts), calls


def _encode_messages(encoded: EncodedRequest) -> list[wire.SamplingMessage]:
    """Encode the messages. The results after a turn become one user message, which holds nothing else."""
    messages: list[wire.SamplingMessage] = []
    results: list[wire.SamplingMessageContentBlock] = []
    for message in encoded.messages:
        if message.role == "tool":
            shown: list[wire.ContentBlock] = [wire.TextContent(text=message.content)]
            results.append(wire.ToolResultContent(tool_use_id=message.tool_call_id or "", content=shown))
            continue
        if results:
            messages.append(wire.SamplingMessage(role="user", content=results))
            results = []
        messages.append(_encode_turn(message))
    if results:
        messages.append(wire.SamplingMessage(role="user", content=results))
    return messages


def _encode_turn(message: Message) -> wire.SamplingMessage:
    role: wire.Role = "assistant" if message.role == "assistant" else "user"
    answer = wire.TextContent(text=message.content)
    if not message.tool_calls:
        return wire.SamplingMessage(role=role, content=answer)
    blocks: list[wire.SamplingMessageContentBlock] = [answer] if message.content else []
    blocks += [wire.ToolUseContent(id=call.id, name=call.name, input=call.arguments) for call in message.tool_calls]
    return wire.SamplingMessage(role=role, content=blocks)
