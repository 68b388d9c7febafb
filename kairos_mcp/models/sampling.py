"""A host's model through sampling: a request of ours as the protocol's, its reply as a completion of ours.

The same request object travels as a push (up to 2025-11-25) and inside an InputRequiredResult (2026-07-28).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import mcp_types as wire

from kairos_mcp.decoding import unfit
from kairos_mcp.messages import Completion, Finish, Message, ToolCall
from kairos_mcp.models import dialects
from kairos_mcp.models.dialects import DialectName, TextPrompts, Worded
from kairos_mcp.steps import RequestCompletion, Sent

FINISHES: Mapping[str, Finish] = {
    "endTurn": "stop",
    "stopSequence": "stop",
    "toolUse": "tool_calls",
    "maxTokens": "length",
    "contentFilter": "content_filter",
    "refusal": "refusal",
}


def request(step: RequestCompletion, sent: Sent, dialect: DialectName, prompts: TextPrompts) -> wire.CreateMessageRequest:
    """The request to put to the client. Preferences and maxTokens always stand in it, includeContext never."""
    worded = dialects.native(step, sent) if dialect == "native" else dialects.text(step, sent, prompts)
    hints = [wire.ModelHint(name=sent.model)] if sent.model else None
    tools = [wire.Tool(name=t.name, description=t.description, input_schema=t.input_schema) for t in worded.tools]
    return wire.CreateMessageRequest(
        params=wire.CreateMessageRequestParams(
            messages=_messages(worded),
            model_preferences=wire.ModelPreferences(hints=hints, intelligence_priority=0.7),
            system_prompt=worded.system or None,
            max_tokens=sent.max_tokens or step.max_tokens,
            tools=tools or None,
            tool_choice=wire.ToolChoice(mode="auto") if tools else None,
        )
    )


def completion(reply: object, step: RequestCompletion, path: str, dialect: DialectName) -> Completion:
    """What the client's model said. A reply of another kind, or without any text or call, is unreadable."""
    match reply:
        case wire.CreateMessageResult() | wire.CreateMessageResultWithTools():
            blocks = reply.content if isinstance(reply.content, list) else [reply.content]
            said = _said(blocks, path)
            finish = FINISHES.get(reply.stop_reason or "")
        case _:
            return Completion(unreadable="the answer is no completion")
    if (reason := unfit([said.content, [call.arguments for call in said.tool_calls]])) is not None:
        return Completion(unreadable=reason)
    said = replace(said, finish=finish)
    return said if dialect == "native" or said.unreadable else dialects.text_reply(said, step, path)


def _said(blocks: Sequence[Any], path: str) -> Completion:
    texts = [block.text for block in blocks if isinstance(block, wire.TextContent)]
    uses = [block for block in blocks if isinstance(block, wire.ToolUseContent)]
    if not texts and not uses:
        kinds = ", ".join(sorted({str(getattr(block, "type", "?")) for block in blocks})) or "nothing"
        return Completion(unreadable=f"the answer holds {kinds} and no text")
    calls = tuple(ToolCall(f"{path}/call-{n}", use.name, dict(use.input)) for n, use in enumerate(uses, 1))
    return Completion("".join(texts), calls)


def _messages(worded: Worded) -> list[wire.SamplingMessage]:
    """Our turns as theirs. The results after a turn are one user message, which holds nothing else."""
    messages: list[wire.SamplingMessage] = []
    results: list[wire.SamplingMessageContentBlock] = []
    for message in worded.messages:
        if message.role == "tool":
            results.append(_result(message))
            continue
        if results:
            messages.append(wire.SamplingMessage(role="user", content=results))
            results = []
        messages.append(_turn(message))
    if results:
        messages.append(wire.SamplingMessage(role="user", content=results))
    return messages


def _result(message: Message) -> wire.ToolResultContent:
    shown: list[wire.ContentBlock] = [wire.TextContent(text=message.content)]
    return wire.ToolResultContent(tool_use_id=message.tool_call_id or "", content=shown)


def _turn(message: Message) -> wire.SamplingMessage:
    role: wire.Role = "assistant" if message.role == "assistant" else "user"
    said = wire.TextContent(text=message.content)
    if not message.tool_calls:
        return wire.SamplingMessage(role=role, content=said)
    blocks: list[wire.SamplingMessageContentBlock] = [said] if message.content else []
    blocks += [wire.ToolUseContent(id=call.id, name=call.name, input=call.arguments) for call in message.tool_calls]
    return wire.SamplingMessage(role=role, content=blocks)
