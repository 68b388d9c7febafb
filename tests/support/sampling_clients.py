"""Clients with a model of their own, in both protocol eras, and a server with an app that asks them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as wire
from mcp.client.client import Client

from kairos_mcp.app.app import App
from kairos_mcp.core.messages import ToolCall
from kairos_mcp.models.dialects import encode_text_turn
from kairos_mcp.server.call import DEFAULT_WAIT_POLICY, WaitPolicy
from kairos_mcp.server.mcp_server import build_server
from kairos_mcp.settings.settings import Settings
from support.app import Place, assert_all_lawful

LEGACY, MODERN = "2025-11-25", "2026-07-28"
ERAS = {LEGACY: "legacy", MODERN: "auto"}
STOP_REASONS = {"stop": "endTurn", "tool_calls": "toolUse", "length": "maxTokens", "content_filter": "contentFilter"}
WITHIN_S = 20.0

Turn = Mapping[str, Any] | str  # the shape of an answer, or a reply word by word
Reply = wire.CreateMessageResult | wire.CreateMessageResultWithTools | wire.ErrorData


@dataclass
class ClientModel:
    """A client's model that says these turns, one for each request that it gets, in the dialect it is asked in."""

    turns: list[Turn | Reply] = field(default_factory=list)
    native: bool = False
    asked: list[wire.CreateMessageRequestParams] = field(default_factory=list)

    async def __call__(self, _ctx: object, params: wire.CreateMessageRequestParams) -> Reply:
        self.asked.append(params)
        turn = self.turns[len(self.asked) - 1]
        return encode_reply(turn, native=self.native) if isinstance(turn, Mapping | str) else turn


@dataclass
class Silent(ClientModel):
    """One that never answers; `reached` is set when it is asked, `go` lets it answer after all."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, ctx: object, params: wire.CreateMessageRequestParams) -> Reply:
        self.reached.set()
        await self.go.wait()
        return await super().__call__(ctx, params)


@dataclass
class Broken(ClientModel):
    """One that falls over."""

    async def __call__(self, _ctx: object, params: wire.CreateMessageRequestParams) -> Reply:
        self.asked.append(params)
        raise RuntimeError("the model is broken")


def encode_reply(turn: Turn, *, native: bool) -> Reply:
    """Encode the turn as a client's reply: blocks where it was asked natively, else one text in the text dialect."""
    if isinstance(turn, str):
        return text_reply(turn)
    calls = [ToolCall("", call["name"], call["arguments"]) for call in turn.get("tool_calls", ())]
    content, stop = turn.get("content", ""), STOP_REASONS.get(turn.get("finish", ""))
    if not native:
        cut = turn.get("finish") in ("length", "content_filter")
        return text_reply(content if cut else encode_text_turn(content, calls), stop if cut else "endTurn")
    blocks: list[Any] = [wire.TextContent(text=content)] if content else []
    blocks += [wire.ToolUseContent(id=f"u{n}", name=call.name, input=call.arguments) for n, call in enumerate(calls)]
    return wire.CreateMessageResultWithTools(
        role="assistant", model="m", content=blocks, stop_reason="toolUse" if calls else stop
    )


def text_reply(
    text: str, stop_reason: str | None = "endTurn", role: wire.Role = "assistant"
) -> wire.CreateMessageResult:
    return wire.CreateMessageResult(role=role, model="m", content=wire.TextContent(text=text), stop_reason=stop_reason)


def image_reply() -> wire.CreateMessageResult:
    image = wire.ImageContent(data="AAAA", mime_type="image/png")
    return wire.CreateMessageResult(role="assistant", model="m", content=image)


def capability(model: ClientModel | None) -> wire.SamplingCapability | None:
    return wire.SamplingCapability(tools=wire.SamplingToolsCapability()) if model and model.native else None


@dataclass
class ConnectedClient:
    """A connected client of one era, with the app that answers it; `sdk_client` is the client of the MCP SDK."""

    sdk_client: Client
    app: App

    async def ask(self, name: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """The structured result of a call, within a time that no test should need."""
        async with asyncio.timeout(WITHIN_S):
            result = await self.sdk_client.call_tool(name, dict(arguments or {}), **more)
        assert not result.is_error, result.structured_content
        assert isinstance(result.structured_content, dict)
        return result.structured_content

    async def still_answers(self) -> dict[str, Any]:
        return await self.ask("run_status", {"view": "full"})

    async def step(
        self, name: str, arguments: Mapping[str, Any], state: str | None = None, answers: Any = None
    ) -> wire.CallToolResult | wire.InputRequiredResult:
        """One request of a call that may take several, as a client that drives the rounds itself."""
        async with asyncio.timeout(WITHIN_S):
            return await self.sdk_client.session.call_tool(
                name,
                dict(arguments),
                request_state=state,
                input_responses=answers,
                allow_input_required=True,
            )

    async def step_to_requests(self, name: str, arguments: Mapping[str, Any], **more: Any) -> wire.InputRequiredResult:
        """The same, where the answer is what to ask the client."""
        result = await self.step(name, arguments, **more)
        assert isinstance(result, wire.InputRequiredResult), result
        assert result.input_requests
        assert result.request_state
        return result

    async def step_to_result(self, name: str, arguments: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """The same, where the answer is a result."""
        result = await self.step(name, arguments, **more)
        assert isinstance(result, wire.CallToolResult), result
        assert isinstance(result.structured_content, dict)
        return result.structured_content


def provide_app(app: App) -> Callable[[], Awaitable[App]]:
    async def reach() -> App:
        return app

    return reach


@asynccontextmanager
async def connect_client(
    app: App,
    era: str = LEGACY,
    model: ClientModel | None = None,
    *,
    patience: WaitPolicy = DEFAULT_WAIT_POLICY,
    name: str = "a client",
) -> AsyncIterator[ConnectedClient]:
    """A client of this era, connected to this app; with a model it declares sampling."""
    client = Client(
        build_server(provide_app(app), app.settings, patience),
        mode=ERAS[era],
        client_info=wire.Implementation(name=name, version="1"),
        sampling_callback=model,
        sampling_capabilities=capability(model),
    )
    async with client:
        assert client.protocol_version == era
        yield ConnectedClient(client, app)


@asynccontextmanager
async def open_client(
    settings: Settings, era: str = LEGACY, model: ClientModel | None = None, **ways: Any
) -> AsyncIterator[ConnectedClient]:
    """Open an app of its own and connect a client to it; in the end every run is held against the laws and replayed."""
    async with App.open(settings, via="mcp") as app, connect_client(app, era, model, **ways) as client:
        yield client
        await assert_all_lawful(app)


def paths(place: Place, run_id: str) -> list[str]:
    """The steps of a run in the order in which they were marked."""
    found = place.rows("select path from step join run on run.n = step.run where run.id = ? order by step.id", run_id)
    return [path for (path,) in found]


def bodies(place: Place, run_id: str) -> dict[str, Any]:
    """The recorded answers by path."""
    statement = (
        "select path, body from step join run on run.n = step.run join answer on answer.step = step.id where run.id = ?"
    )
    return {path: json.loads(body) for path, body in place.rows(statement, run_id)}


def asks_of(place: Place) -> list[dict[str, str]]:
    """What was put to clients of the modern era, oldest first: wire key to path."""
    return [json.loads(keys) for (keys,) in place.rows("select keys from client_question order by rowid")]
