"""The short prompts: for whom they are chosen, what a small model is told, and the first answer that is asked back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.app import Place, reads, rests, says, started
from support.provider_server import Standin, talks

from kairos_mcp.app import start
from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.settings.settings import GateRule, Settings
from kairos_mcp.specs.short_prompts import MAX_TREE_CHARS, is_small_model

SMALL = "openai:qwen2.5-coder:1.5b"


@pytest.fixture(autouse=True)
def has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine two files are not listed within what a start takes for it."""
    monkeypatch.setattr(start, "FILE_TREE_S", 5.0)


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


def provided(place: Place, server: Standin, model: str = SMALL, **more: Any) -> Settings:
    settings = place.settings(model=model, base_url=server.openai, **more)
    return replace(settings, origins={**settings.origins, **dict.fromkeys(more, "file")})


async def test_a_small_model_is_shown_the_files_in_text_and_is_asked_back(place: Place, server: Standin) -> None:
    server.will(final("It says hello."), looks("a.txt"), final("It says alpha."))
    async with App.open(provided(place, server), via="serve") as app:
        report = await rests(app, await started(app, "What is in a.txt?"))
    assert (report.status, report.summary, report.rounds) == ("completed", "It says alpha.", 3)
    first, second, _ = server.bodies
    system, user = first["messages"]
    assert "a.txt" in user["content"]
    assert "\n>   b.txt\n" in user["content"]
    assert system["content"].startswith("You work on one goal")
    assert "## Honesty" not in system["content"]  # which the full prompt has
    assert "tools" not in first
    assert first["response_format"]["type"] == "json_schema"
    assert second["messages"][-1]["content"].startswith("You answered without looking")
    assert place.rows("select count(*) from mark where kind = 'round'") == [(3,)]
    assert any("prompts: short" in note for note in report.degraded)


async def test_an_answer_is_asked_back_once(place: Place, server: Standin) -> None:
    server.will(final("hello"), final("hello again"))
    async with App.open(provided(place, server), via="serve") as app:
        report = await rests(app, await started(app, "Say hello."))
    assert (report.status, report.summary, report.rounds) == ("completed", "hello again", 2)


async def test_without_file_tools_nothing_is_asked_back(place: Place, server: Standin) -> None:
    server.will(final("hello"))
    async with App.open(provided(place, server), via="serve") as app:
        report = await rests(app, await started(app, "Say hello.", tools=("read_result",)))
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
    async with App.open(provided(place, server, model, **more), via="serve") as app:
        report = await rests(app, await started(app, "What is in a.txt?"))
    assert (report.rounds > 1) is asked_back
    assert ("b.txt" in server.bodies[0]["messages"][1]["content"]) is asked_back


async def test_the_dialect_that_is_set_stays(place: Place, server: Standin) -> None:
    server.will(talks("no"), talks("alpha"))
    async with App.open(provided(place, server, dialect="native"), via="serve") as app:
        await rests(app, await started(app, "What is in a.txt?"))
    assert "tools" in server.bodies[0]


async def test_a_script_s_run_keeps_the_full_prompts(place: Place) -> None:
    async with App.open(place.settings(says("done"), context_tokens=8_000), via="serve") as app:
        report = await rests(app, await started(app, "Say done."))
    assert report.rounds == 1


async def test_the_files_that_a_rule_hides_are_not_named(place: Place) -> None:
    (place.workspace / "secret.txt").write_text("x")
    for n in range(400):
        (place.workspace / f"some-file-{n}.txt").write_text("x")
    rules = (GateRule("*", "deny", ("secret.txt",)),)
    lines = [says("no"), reads("a.txt"), says("alpha")]
    async with App.open(place.settings(*lines, prompts="short", gate=rules), via="serve") as app:
        run_id = await started(app, "What is in a.txt?", limits=Limits(rounds=5))
        report = await rests(app, run_id)
        (text,) = place.rows("select body from text where body like '%## Files of the workspace%'")[0]
    assert (report.status, report.rounds) == ("completed", 3)
    assert "a.txt" in text
    assert "secret" not in text
    assert len(text) < MAX_TREE_CHARS * 1.2


async def test_a_tree_for_which_there_is_no_time_is_left_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "FILE_TREE_S", -1.0)
    async with App.open(place.settings(says("no"), says("no"), prompts="short"), via="serve") as app:
        assert (await rests(app, await started(app, "What is in a.txt?"))).status == "completed"
    assert place.rows("select count(*) from text where body like '%## Files of the workspace%'") == [(0,)]


async def test_a_rule_against_the_tree_leaves_it_out(place: Place) -> None:
    rules = (GateRule("file_tree", "deny"),)
    async with App.open(place.settings(says("no"), says("no"), prompts="short", gate=rules), via="serve") as app:
        await rests(app, await started(app, "What is in a.txt?"))
    assert place.rows("select count(*) from text where body like '%## Files of the workspace%'") == [(0,)]
