"""The short prompts: for whom they are chosen, what a small model is told, and the first answer that is asked back."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from support.app import Place, reads, rests, says, start_run
from support.provider_server import Standin, talks

from kairos_mcp.app import start
from kairos_mcp.app.app import App
from kairos_mcp.core.json_schema import Schema, compile_schema
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.specs.build import is_small_model
from kairos_mcp.specs.short_prompts import MAX_TREE_CHARS

SMALL = "openai:qwen2.5-coder:1.5b"


@pytest.fixture(autouse=True)
def has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine two files are not listed within what a start takes for it."""
    monkeypatch.setattr(start, "FILE_NAMES_S", 5.0)


@pytest.mark.parametrize(
    ("name", "small"),
    [
        (SMALL, True),
        ("openai:Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf", True),
        ("openai:llama3.2:3b", True),
        ("openai:gemma-3-4b-it", True),
        ("openai:smollm2-135m", True),
        ("openai:qwen3-30b-a3b", False),
        ("openai:llama-3.1-8b", False),
        ("openai:gpt-5", False),
        ("anthropic:claude-sonnet-4-5", False),
        ("openai:phi-4", False),
    ],
)
def test_a_small_model_tells_its_size(name: str, small: bool) -> None:
    assert is_small_model(name) is small


def final(text: str) -> Any:
    return talks(json.dumps({"final": text}))


def looks(path: str) -> Any:
    return talks(json.dumps({"tool_calls": [{"name": "read_file", "arguments": {"path": path}}]}))


def offered_tools(server: Standin) -> list[str]:
    """The names of the tools that the first request offers, in its order."""
    forms = server.bodies[0]["response_format"]["json_schema"]["schema"]["anyOf"]
    return [call["properties"]["name"]["const"] for call in forms[0]["properties"]["tool_calls"]["items"]["anyOf"]]


def provider_settings(place: Place, server: Standin, model: str = SMALL, **more: Any) -> Settings:
    settings = place.settings(model=model, base_url=server.openai, **more)
    return replace(settings, origins={**settings.origins, **dict.fromkeys(more, "file")})


async def test_a_small_model_is_shown_the_files_in_text_and_is_asked_back(place: Place, server: Standin) -> None:
    server.will(final("It says hello."), looks("a.txt"), final("It says alpha."))
    async with App.open(provider_settings(place, server), via="serve") as app:
        report = await rests(app, await start_run(app, "What is in a.txt?"))
    assert (report.status, report.summary, report.rounds) == ("completed", "It says alpha.", 3)
    first, second, third = server.bodies
    system, user = first["messages"]
    assert "\n> a.txt\n> b.txt" in user["content"]
    assert system["content"].startswith("You work on one goal")
    assert "## Honesty" not in system["content"]  # which the full prompt has
    assert '\n- read_file {"path": string, "start_line"?: integer, ' in system["content"]
    assert '{"tool_calls": [{"name": "read_file", "arguments": {"path": "..."}}]}' in system["content"]
    assert "tools" not in first
    assert first["response_format"]["type"] == "json_schema"
    assert second["messages"][-1]["content"].startswith("You answered without looking")
    assert third["messages"][-1]["content"].endswith("\n\nIf the results show it, answer now: What is in a.txt?")
    assert not any("round 1 of" in message["content"] for body in server.bodies for message in body["messages"])
    assert place.rows("select count(*) from step where kind = 'round'") == [(3,)]
    assert any("prompts: short" in note for note in report.degraded)


async def test_an_answer_is_asked_back_once(place: Place, server: Standin) -> None:
    server.will(final("hello"), final("hello again"))
    async with App.open(provider_settings(place, server), via="serve") as app:
        report = await rests(app, await start_run(app, "Say hello."))
    assert (report.status, report.summary, report.rounds) == ("completed", "hello again", 2)


async def test_without_file_tools_nothing_is_asked_back(place: Place, server: Standin) -> None:
    server.will(final("hello"))
    async with App.open(provider_settings(place, server), via="serve") as app:
        report = await rests(app, await start_run(app, "Say hello.", tools=("read_result",)))
    assert (report.summary, report.rounds) == ("hello", 1)


@pytest.mark.parametrize(
    ("model", "more", "asked_back"),
    [
        ("openai:gpt-5", {}, False),
        ("openai:gpt-5", {"context_tokens": 8_000}, True),
        ("openai:gpt-5", {"prompts": "short"}, True),
        (SMALL, {"prompts": "full"}, False),
    ],
)
async def test_the_form_is_chosen_by_the_model_the_context_or_the_setting(
    place: Place, server: Standin, model: str, more: dict[str, Any], asked_back: bool
) -> None:
    in_text = more.get("prompts") != "short" and asked_back
    replies = [final("no"), looks("a.txt"), final("alpha")] if in_text else [talks("no"), talks("alpha")]
    server.will(*replies)
    async with App.open(provider_settings(place, server, model, **more), via="serve") as app:
        report = await rests(app, await start_run(app, "What is in a.txt?"))
    assert (report.rounds > 1) is asked_back
    assert ("b.txt" in server.bodies[0]["messages"][1]["content"]) is asked_back


async def test_the_dialect_that_is_set_stays(place: Place, server: Standin) -> None:
    server.will(talks("no"), talks("alpha"))
    async with App.open(provider_settings(place, server, dialect="native"), via="serve") as app:
        await rests(app, await start_run(app, "What is in a.txt?"))
    assert "tools" in server.bodies[0]


async def test_a_small_model_is_offered_few_tools_and_one_or_two_calls(place: Place, server: Standin) -> None:
    server.will(final("no"), final("no"))
    async with App.open(provider_settings(place, server), via="serve") as app:
        await rests(app, await start_run(app, "What is in a.txt?"))
    assert offered_tools(server) == ["read_file", "search_files", "read_result"]
    assert (
        server.bodies[0]["response_format"]["json_schema"]["schema"]["anyOf"][0]["properties"]["tool_calls"]["maxItems"]
        == 2
    )


async def test_a_small_model_may_list_files_where_it_was_not_shown_all(place: Place, server: Standin) -> None:
    for n in range(400):
        (place.workspace / f"some-file-{n}.txt").write_text("x")
    server.will(final("no"), final("no"))
    async with App.open(provider_settings(place, server), via="serve") as app:
        await rests(app, await start_run(app, "What is in a.txt?"))
    assert offered_tools(server) == ["read_file", "search_files", "list_files", "read_result"]


async def test_tools_that_are_named_are_offered_to_a_small_model(place: Place, server: Standin) -> None:
    server.will(final("no"), final("no"))
    async with App.open(provider_settings(place, server), via="serve") as app:
        await rests(app, await start_run(app, "What is in a.txt?", tools=("file_tree", "read_file")))
    assert sorted(offered_tools(server)) == ["file_tree", "read_file"]


async def test_what_is_read_at_a_start_is_ready_before_its_clock_runs(
    place: Place, server: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first schema that a process compiles takes longer than the names of the files may take."""
    events: list[str] = []

    def compile_noted(schema: JsonObject) -> Schema:
        events.append("compiled")
        return compile_schema(schema)

    def clock_noted() -> float:
        events.append("clock")
        return time.monotonic()

    monkeypatch.setattr(import_module("kairos_mcp.core.tool"), "compile_schema", compile_noted)
    monkeypatch.setattr(start, "time", SimpleNamespace(monotonic=clock_noted))
    server.will(final("no"), final("no"))
    async with App.open(provider_settings(place, server), via="serve") as app:
        await rests(app, await start_run(app, "What is in a.txt?"))
    assert events[: events.index("clock")] == ["compiled", "compiled"]
    assert "> a.txt" in server.bodies[0]["messages"][1]["content"]


async def test_a_script_s_run_keeps_the_full_prompts(place: Place) -> None:
    async with App.open(place.settings(says("done"), context_tokens=8_000), via="serve") as app:
        report = await rests(app, await start_run(app, "Say done."))
    assert report.rounds == 1


async def test_the_files_that_a_rule_hides_are_not_named(place: Place) -> None:
    (place.workspace / "secret.txt").write_text("x")
    for n in range(400):
        (place.workspace / f"some-file-{n}.txt").write_text("x")
    rules = (GateRule("*", "deny", ("secret.txt",)),)
    lines = [says("no"), reads("a.txt"), says("alpha")]
    async with App.open(place.settings(*lines, prompts="short", gate=rules), via="serve") as app:
        run_id = await start_run(app, "What is in a.txt?", limits=Limits(rounds=5))
        report = await rests(app, run_id)
        (text,) = place.rows("select body from text where body like '%## Files of the workspace%'")[0]
    assert (report.status, report.rounds) == ("completed", 3)
    assert "a.txt" in text
    assert "secret" not in text
    assert len(text) < MAX_TREE_CHARS * 1.2


async def test_a_tree_for_which_there_is_no_time_is_left_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "FILE_NAMES_S", -1.0)
    (place.workspace / "more").mkdir()  # what is in the first folder takes one look
    async with App.open(place.settings(says("no"), says("no"), prompts="short"), via="serve") as app:
        assert (await rests(app, await start_run(app, "What is in a.txt?"))).status == "completed"
    assert place.rows("select count(*) from text where body like '%## Files of the workspace%'") == [(0,)]


async def test_a_rule_against_the_tree_leaves_it_out(place: Place) -> None:
    rules = (GateRule("file_tree", "deny"),)
    async with App.open(place.settings(says("no"), says("no"), prompts="short", gate=rules), via="serve") as app:
        await rests(app, await start_run(app, "What is in a.txt?"))
    assert place.rows("select count(*) from text where body like '%## Files of the workspace%'") == [(0,)]
