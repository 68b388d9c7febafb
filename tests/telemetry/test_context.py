"""The trace goes on where a run's calls go: in the headers of a provider's requests, in `_meta` to other servers."""

from __future__ import annotations

import json
import sys

import pytest
from support.app import ME, Place, meet_servers, rests, says, start_run
from support.downstream import PEER
from support.provider_server import message, refuses, sends, standin, talks
from support.telemetry import Telemetry

from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.table_values import ServerSetting

WIRES = {
    "openai": (talks("done", finish="stop"), "/v1"),
    "anthropic": (sends(message({"type": "text", "text": "done"})), ""),
}


@pytest.mark.parametrize("provider", ["openai", pytest.param("anthropic", marks=pytest.mark.slow)])
async def test_a_provider_is_told_the_span_of_each_attempt(place: Place, telemetry: Telemetry, provider: str) -> None:
    reply, path = WIRES[provider]
    async with standin() as server:
        server.will(refuses(503, retry_after="0"), reply)
        settings = place.settings(
            model=f"{provider}:small", base_url=f"{server.address}{path}", telemetry=True, telemetry_content=True,
            price_input=1.0, price_output=10.0,
        )  # fmt: skip
        async with telemetry.app(settings) as app:
            await start_run(app, "greet the egret")
        told = [heard.headers["traceparent"].split("-")[1:3] for heard in server.heard]
    calls = telemetry.named("chat small")
    assert told == [[span.trace, span.id] for span in calls]
    assert [span.attributes.get("error.type") for span in calls] == ["provider_error", None]
    assert [span.attributes["kairos.attempt"] for span in calls] == [1, 2]
    assert {span.attributes["gen_ai.provider.name"] for span in calls} == {provider}
    assert calls[1].attributes["kairos.usage.cost"] > 0
    asked = json.loads(calls[1].attributes["gen_ai.input.messages"])
    assert "greet the egret" in asked[-1]["parts"][0]["content"]


@pytest.mark.slow
async def test_without_telemetry_a_provider_is_told_nothing(place: Place) -> None:
    from kairos_mcp.app.app import App

    async with standin() as server:
        server.will(talks("done", finish="stop"))
        async with App.open(place.settings(model="openai:small", base_url=server.openai), via="test") as app:
            await start_run(app)
        assert "traceparent" not in server.heard[0].headers


@pytest.mark.slow
async def test_a_downstream_server_is_told_the_span_of_the_call(place: Place, telemetry: Telemetry) -> None:
    log = place.root / "log"
    peer = ServerSetting(
        "x", (sys.executable, str(PEER), f"log={log}", "meta"), sandbox=False, effects=(("echo", "read"),)
    )
    call = {"content": "look", "tool_calls": [{"name": "x__echo", "arguments": {"text": "hello"}}]}
    async with telemetry.app(place.settings(call, says("done"), servers=(peer,), telemetry=True)) as app:
        started = await (await meet_servers(app)).runs.start(PlannerRequest("use it", tools=("x__*",)), ME)
        assert (await rests(app, started.run_id)).status == "completed"
    (told,) = [json.loads(line[5:]) for line in log.read_text().splitlines() if line.startswith("meta ")]
    (span,) = telemetry.named("execute_tool x__echo")
    assert told["traceparent"] == f"00-{span.trace}-{span.id}-01"
