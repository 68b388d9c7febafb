"""Names that a client or a model made up are content: spans and metrics have those that the server knows, and cut."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.app import ASK, Place, answer_run, says, start_run
from support.stdio_server import StdioClient
from support.telemetry import Collector, Telemetry
from support.waiting import wait_until

MAX_NAME_CHARS = 128
WORD = "heron"
LONG = WORD * 100_000
OWN = replace(ASK, name=f"{WORD}_nests")


async def run_with_made_up_names(place: Place, telemetry: Telemetry, **more: Any) -> None:
    """A model calls tools that nobody has and one that its caller brought along under such a name."""
    async with telemetry.app(place.settings(telemetry=True, **more)) as app:
        run_id = await start_run(app, route="caller", caller_tools=(OWN,), model=WORD * 20)
        calls = [{"name": name, "arguments": {"question": "?"}} for name in (OWN.name, f"{WORD}_secret")]
        await answer_run(app, run_id, round_1={"tool_calls": calls})
        await answer_run(app, run_id, round_1__call_1={"content": "so", "is_error": True})
        await answer_run(app, run_id, round_2={"content": "done"})


async def test_no_name_that_a_caller_made_up_is_in_a_span_or_a_metric(place: Place, telemetry: Telemetry) -> None:
    await run_with_made_up_names(place, telemetry)
    assert telemetry.named("execute_tool other")
    assert [span.name for span in telemetry.spans() if WORD in span.text()] == []
    assert WORD not in telemetry.providers.prometheus_page().decode()


async def test_with_content_they_are_in_spans_and_never_in_metrics(place: Place, telemetry: Telemetry) -> None:
    await run_with_made_up_names(place, telemetry, telemetry_content=True)
    assert telemetry.named(f"execute_tool {OWN.name}")
    assert WORD not in telemetry.providers.prometheus_page().decode()


async def test_the_configured_model_is_known(place: Place, telemetry: Telemetry) -> None:
    async with telemetry.app(place.settings(says("done"), telemetry=True)) as app:
        await start_run(app)
    assert {span.name for span in telemetry.spans()} == {"invoke_agent planner", "step round", "chat"}


def test_what_the_sdk_sends_of_a_request_has_no_made_up_name(
    place: Place, receiver: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, setting in receiver.environ().items():
        monkeypatch.setenv(name, setting)
    place.script.write_text(json.dumps({"content": "done"}) + "\n")
    with StdioClient.start(place) as client:
        for method, params in (
            ("tools/call", {"name": LONG, "arguments": {}}),
            ("prompts/get", {"name": WORD}),
            (f"tools/{LONG}", {"name": WORD}),
        ):
            client.begin(method, params)
        client.send({"jsonrpc": "2.0", "id": LONG, "method": "tools/call", "params": {"name": WORD}})
        client.call("run_status")
        wait_until(lambda: [span for span in receiver.spans if span.name == "tools/call run_status"])
        wait_until(lambda: len([span for span in receiver.spans if span.name == "tools/call other"]) >= 2)
        wait_until(lambda: [span for span in receiver.spans if span.name == "prompts/get other"])
        wait_until(lambda: [span for span in receiver.spans if span.name == "other other"])
    assert [span.name[:80] for span in receiver.spans if WORD in span.text()] == []
    assert max(len(span.name) for span in receiver.spans) <= MAX_NAME_CHARS
