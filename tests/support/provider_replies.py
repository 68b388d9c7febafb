"""How each provider speaks, beside OpenAI's chat completions and Anthropic: its replies, and what it is sent back."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse, Response

from support.provider_server import Heard, Reply, Standin, calls, chat, refuses, sends

Body = dict[str, Any]
USAGE = (100, 20, 60)  # tokens read, written, and read from a cache


@dataclass(frozen=True)
class Wire:
    """`package`: what its extra brings. `sealed`: a turn that calls a tool after thinking, with this signature;
    `seals`: the signatures that a request sends back, in order. `results`: the tool results in a request, as
    (call id, text)."""

    model: str
    package: str | None
    at: Callable[[Standin], str]
    says: Callable[[str], Body]
    acts: Callable[[str, str, Mapping[str, Any]], Body]
    results: Callable[[Body], Iterator[tuple[str, str]]]
    sealed: Callable[[str, str, str, Mapping[str, Any]], Body] | None = None
    seals: Callable[[Body], list[str]] | None = None
    caches: bool = True

    @property
    def kind(self) -> str:
        return self.model.partition(":")[0]

    def strict(self, *signatures: str, then: Body) -> Reply:
        """The reply only to a request that sends these signatures back; else it is refused, as the real ones do."""
        seals = self.seals
        assert seals is not None

        async def reply(heard: Heard) -> Response:
            found = seals(heard.body)
            if found != list(signatures):
                return await refuses(400, f"expected {list(signatures)}, found {found}")(heard)
            return JSONResponse(then)

        return reply

    def talks(self, text: str) -> Reply:
        return sends(self.says(text))


# -- OpenAI's Responses API --------------------------------------------------------------------------------------------


def _response(*items: Body) -> Body:
    read, written, cached = USAGE
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": "standin",
        "status": "completed",
        "output": list(items),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        },
    }


def _response_text(text: str) -> Body:
    said = {"type": "output_text", "text": text, "annotations": []}
    return _response({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [said]})


def _response_call(call: str, name: str, given: Mapping[str, Any]) -> Body:
    asked = {"type": "function_call", "id": "fc_1", "call_id": call, "name": name, "arguments": json.dumps(given)}
    return asked | {"status": "completed"}


def _response_sealed(seal: str, call: str, name: str, given: Mapping[str, Any]) -> Body:
    thought = {"type": "reasoning", "id": f"rs_{seal}", "summary": [], "encrypted_content": seal}
    return _response(thought, _response_call(call, name, given))


def _response_seals(body: Body) -> list[str]:
    """Each call of the history has to follow the thought that it came with."""
    items, found = body["input"], []
    for before, item in zip([{}, *items], items, strict=False):
        if item.get("type") == "function_call":
            found.append(before.get("encrypted_content", "none"))
    return found


RESPONSES = Wire(
    "openai-responses:gpt-5",
    None,
    lambda server: server.openai,
    _response_text,
    lambda call, name, given: _response(_response_call(call, name, given)),
    lambda body: (
        (item["call_id"], item["output"]) for item in body["input"] if item.get("type") == "function_call_output"
    ),
    _response_sealed,
    _response_seals,
)


# -- Google ------------------------------------------------------------------------------------------------------------


def _candidate(*parts: Body) -> Body:
    read, written, cached = USAGE
    return {
        "candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": read,
            "candidatesTokenCount": written,
            "totalTokenCount": read + written,
            "cachedContentTokenCount": cached,
        },
        "modelVersion": "standin",
        "responseId": "r1",
    }


def _google_call(call: str, name: str, given: Mapping[str, Any], **more: Any) -> Body:
    return _candidate({"functionCall": {"id": call, "name": name, "args": dict(given)}, **more})


def _google_results(body: Body) -> Iterator[tuple[str, str]]:
    for turn in body["contents"]:
        for part in turn["parts"]:
            if "functionResponse" in part:
                answered = part["functionResponse"]
                yield answered["id"], json.dumps(answered["response"])


def _google_seals(body: Body) -> list[str]:
    parts = [part for turn in body["contents"] for part in turn["parts"] if "functionCall" in part]
    return [base64.urlsafe_b64decode(part.get("thoughtSignature", "bm9uZQ==")).decode() for part in parts]


GOOGLE = Wire(
    "google:gemini-2.5-flash",
    "google.genai",
    lambda server: server.address,
    lambda text: _candidate({"text": text}),
    _google_call,
    _google_results,
    lambda seal, call, name, given: _google_call(
        call, name, given, thoughtSignature=base64.b64encode(seal.encode()).decode()
    ),
    _google_seals,
)


# -- those that speak much as OpenAI does ------------------------------------------------------------------------------


def _chat_call(call: str, name: str, given: Mapping[str, Any]) -> Body:
    return chat(None, calls((name, dict(given)), ids=call[:-1]), finish="tool_calls", usage=USAGE)


def _chat_results(body: Body) -> Iterator[tuple[str, str]]:
    for message in body["messages"]:
        if message["role"] == "tool":
            yield message["tool_call_id"], json.dumps(message["content"])


def _like_openai(model: str, package: str, at: Callable[[Standin], str], *, caches: bool) -> Wire:
    return Wire(model, package, at, lambda text: chat(text, usage=USAGE), _chat_call, _chat_results, caches=caches)


GROQ = _like_openai("groq:llama-3.3-70b-versatile", "groq", lambda server: server.address, caches=True)
MISTRAL = _like_openai("mistral:mistral-large-latest", "mistralai", lambda server: server.address, caches=True)
HUGGINGFACE = _like_openai("huggingface:Qwen/Qwen3-32B", "huggingface_hub", lambda server: server.openai, caches=False)


# -- Cohere ------------------------------------------------------------------------------------------------------------


def _cohere(finish: str, **message: Any) -> Body:
    read, written, _ = USAGE
    tokens = {"input_tokens": read, "output_tokens": written}
    return {
        "id": "c1",
        "finish_reason": finish,
        "message": {"role": "assistant", **message},
        "usage": {"billed_units": tokens, "tokens": tokens},
    }


COHERE = Wire(
    "cohere:command-a-03-2025",
    "cohere",
    lambda server: server.address,
    lambda text: _cohere("COMPLETE", content=[{"type": "text", "text": text}]),
    lambda call, name, given: _cohere("TOOL_CALL", tool_calls=calls((name, dict(given)), ids=call[:-1])),
    _chat_results,
    caches=False,
)


# -- Bedrock -----------------------------------------------------------------------------------------------------------


def _converse(stop: str, *blocks: Body) -> Body:
    read, written, cached = USAGE
    return {
        "output": {"message": {"role": "assistant", "content": list(blocks)}},
        "stopReason": stop,
        # Bedrock counts what was read from a cache apart
        "usage": {
            "inputTokens": read - cached,
            "outputTokens": written,
            "totalTokens": read + written,
            "cacheReadInputTokens": cached,
        },
        "metrics": {"latencyMs": 1},
    }


def _bedrock_blocks(body: Body, kind: str) -> Iterator[Any]:
    for message in body["messages"]:
        yield from (block[kind] for block in message["content"] if kind in block)


def _bedrock_call(call: str, name: str, given: Mapping[str, Any]) -> Body:
    return {"toolUse": {"toolUseId": call, "name": name, "input": dict(given)}}


BEDROCK = Wire(
    "bedrock:anthropic.claude-sonnet-4-5-20250929-v1:0",
    "boto3",
    lambda server: server.address,
    lambda text: _converse("end_turn", {"text": text}),
    lambda call, name, given: _converse("tool_use", _bedrock_call(call, name, given)),
    lambda body: ((block["toolUseId"], json.dumps(block["content"])) for block in _bedrock_blocks(body, "toolResult")),
    lambda seal, call, name, given: _converse(
        "tool_use",
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": seal}}},
        _bedrock_call(call, name, given),
    ),
    lambda body: [block["reasoningText"]["signature"] for block in _bedrock_blocks(body, "reasoningContent")],
)

WIRES = (RESPONSES, GOOGLE, GROQ, MISTRAL, COHERE, BEDROCK, HUGGINGFACE)
