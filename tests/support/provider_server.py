"""A real HTTP server whose replies are scripted, in the words of OpenAI (chat completions) and Anthropic (messages);
the other providers' are in wires.py."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

WITHIN_S = 10.0

Reply = Callable[["Heard"], Awaitable[Response]]


@dataclass(frozen=True)
class Heard:
    """A request as it came: its path, headers and body; `gone` is set once the server stops."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    gone: asyncio.Event


@dataclass
class Standin:
    """A provider on loopback. Each request takes the next of `replies`; without one it is refused."""

    port: int
    replies: deque[Reply] = field(default_factory=deque)
    heard: list[Heard] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai(self) -> str:
        return f"{self.address}/v1"

    def will(self, *replies: Reply) -> None:
        self.replies.extend(replies)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [each.body for each in self.heard]

    async def answer(self, request: Request) -> Response:
        heard = Heard(request.url.path, dict(request.headers), json.loads(await request.body()), self.gone)
        self.heard.append(heard)
        self.came.set()
        if not self.replies:
            return JSONResponse({"error": {"message": "the test has no reply for this"}}, 400)
        return await self.replies.popleft()(heard)


class _Quiet(uvicorn.Server):
    """A server that leaves the signals of the test's own program alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def standin() -> AsyncIterator[Standin]:
    """A provider that listens until the block ends."""
    listening = socket.create_server(("127.0.0.1", 0))
    provider = Standin(listening.getsockname()[1])
    app = Starlette(routes=[Route("/{path:path}", provider.answer, methods=["POST"])])
    config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = _Quiet(config)
    serving = asyncio.create_task(server.serve([listening]))
    try:
        yield provider
    finally:
        provider.gone.set()
        server.should_exit = True
        async with asyncio.timeout(WITHIN_S):
            await serving
        listening.close()


# -- what may be replied, whoever speaks ---------------------------------------------------------------------------


def sends(value: Any, status: int = 200, **headers: str) -> Reply:
    """This JSON, as it is."""

    async def reply(_: Heard) -> Response:
        return JSONResponse(value, status, {name.replace("_", "-"): text for name, text in headers.items()})

    return reply


def raw(body: bytes, kind: str = "application/json", status: int = 200) -> Reply:
    async def reply(_: Heard) -> Response:
        return Response(body, status, media_type=kind)

    return reply


def refuses(status: int, message: str = "no", **headers: str) -> Reply:
    """An error in the shape of both: OpenAI's and Anthropic's differ in what stands around the message."""
    return sends({"type": "error", "error": {"type": "an_error", "message": message}}, status, **headers)


async def silent(heard: Heard) -> Response:
    """No reply until the server stops."""
    await heard.gone.wait()
    return Response(status_code=503)


async def breaks_off(_: Heard) -> Response:
    """Half of a reply, then the connection is closed."""

    async def half() -> AsyncIterator[bytes]:
        yield b'{"id": "half", "choices": [{"message": {"content": "I wanted to s'
        raise ConnectionResetError

    return StreamingResponse(half(), headers={"content-type": "application/json", "content-length": "5000"})


async def never_ends(heard: Heard) -> Response:
    """A blank now and then, for ever: a reply that keeps its line alive."""

    async def blanks() -> AsyncIterator[bytes]:
        while not heard.gone.is_set():
            yield b" "
            await asyncio.sleep(0.01)

    return StreamingResponse(blanks(), media_type="application/json")


# -- OpenAI --------------------------------------------------------------------------------------------------------


def calls(*wanted: tuple[str, Any], ids: str = "call_") -> list[dict[str, Any]]:
    """Tool calls; arguments that are a text go out as they are."""
    return [
        {
            "id": f"{ids}{number}",
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for number, (name, given) in enumerate(wanted, 1)
    ]


def chat(
    content: str | None = None,
    tool_calls: list[dict[str, Any]] | None = None,
    *,
    finish: str | None = "stop",
    usage: Any = (100, 20, 0),
    model: str = "small",
    **message: Any,
) -> dict[str, Any]:
    """A chat completion. `usage`: (in, out, cached), or anything else as it is, None for none."""
    said = {"role": "assistant", "content": content} | ({"tool_calls": tool_calls} if tool_calls else {}) | message
    match usage:
        case (int() as read, int() as written, int() as cached):
            usage = {
                "prompt_tokens": read,
                "completion_tokens": written,
                "total_tokens": read + written,
                "prompt_tokens_details": {"cached_tokens": cached},
            }
    reply: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": model,
        "choices": [{"index": 0, "message": said, "finish_reason": finish}],
    }
    return reply if usage is None else reply | {"usage": usage}


def talks(*arguments: Any, **more: Any) -> Reply:
    return sends(chat(*arguments, **more))


# -- Anthropic -----------------------------------------------------------------------------------------------------


def message(*blocks: dict[str, Any], stop: str = "end_turn", usage: Any = (100, 20, 0)) -> dict[str, Any]:
    match usage:
        case (int() as read, int() as written, int() as cached):
            usage = {"input_tokens": read, "output_tokens": written, "cache_read_input_tokens": cached}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-standin",
        "content": list(blocks),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": usage,
    }


def thinks(text: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def says(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def uses(call_id: str, name: str, given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def strict(*signatures: str, then: dict[str, Any]) -> Reply:
    """As Anthropic does: the reply only if each turn with a call begins with its signed thinking, in this order."""

    async def reply(heard: Heard) -> Response:
        turns = [turn["content"] for turn in heard.body["messages"] if turn["role"] == "assistant"]
        acting = [turn for turn in turns if any(block["type"] == "tool_use" for block in turn)]
        signed = [turn[0].get("signature") for turn in acting]
        if signed != list(signatures):
            return await refuses(400, f"expected thinking, found {signed}")(heard)
        return JSONResponse(then)

    return reply
