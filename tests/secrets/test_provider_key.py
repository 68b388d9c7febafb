"""A provider's key that a setting refers to: it reaches the provider, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.app import ME, Place, start_run
from support.provider_server import Standin, calls, refuses, standin, talks

from kairos_mcp.app.app import App
from kairos_mcp.core.redaction import MASK

KEY = "kq-4711-provider-c0ffee"


@pytest.fixture
async def server() -> AsyncIterator[Standin]:
    async with standin() as provider:
        yield provider


def kept_bytes(place: Place) -> bytes:
    return b"".join(file.read_bytes() for file in place.home.rglob("*") if file.is_file())


async def test_a_key_in_a_file_reaches_the_provider_and_no_row(place: Place, server: Standin, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    server.will(talks(f"I was told {KEY}"), refuses(401, f"Incorrect API key provided: {KEY}."))
    settings = place.settings(model="openai:small", base_url=server.openai, model_key=f"file:{file}")
    async with App.open(settings, via="mcp") as app:
        await start_run(app)
        assert server.heard[0].headers["authorization"] == f"Bearer {KEY}"
        failed = await app.runs.report(await start_run(app, key="other"), ME)
        assert failed.stop_reason == "llm_error"
        assert KEY not in str(failed)
        exported = b"".join(await app.records.export(failed.run_id, ME))
    assert KEY.encode() not in exported
    assert KEY.encode() not in kept_bytes(place)


async def test_a_key_that_is_not_there_fails_the_run_and_not_the_server(place: Place, server: Standin) -> None:
    settings = place.settings(model="openai:small", base_url=server.openai, model_key="env:KAIROS_TEST_NO_SUCH_KEY")
    async with App.open(settings, via="mcp") as app:
        report = await app.runs.report(await start_run(app), ME)
    assert (report.status, report.stop_reason) == ("failed", "llm_error")
    assert any("Set KAIROS_TEST_NO_SUCH_KEY" in text for text in report.degraded)
    assert server.heard == []


async def test_the_key_goes_to_no_other_provider(place: Place, server: Standin, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    settings = place.settings(model="groq:small", model_key=f"file:{file}", route="provider")
    async with App.open(settings, via="mcp") as app:
        report = await app.runs.report(await start_run(app), ME)
    assert any("model_key does not go with groq" in text for text in report.degraded)


async def test_a_key_in_a_turn_with_calls_is_in_none_of_its_parts_and_is_not_sent_back(
    place: Place, server: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a provider wants back (ids, thinking) holds the whole turn once more: it is a row as well."""
    monkeypatch.setenv("CANARY_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "any-1234")
    wanted = calls(("read_file", {"path": f"{KEY}.txt"}), (KEY, {}), ("read_file", f'{{"path": "{KEY}'))
    server.will(talks(f"I look for {KEY}", wanted), talks("done"))
    async with App.open(place.settings(model="openai:small", base_url=server.openai), via="mcp") as app:
        report = await app.runs.report(await start_run(app), ME)
        assert KEY not in str(report)
    ids = [call["id"] for call in wanted]
    (said,) = [message for message in server.bodies[1]["messages"] if message["role"] == "assistant"]
    assert [call["id"] for call in said["tool_calls"]] == ids  # it came back, but for the key
    assert KEY not in str(server.bodies)
    assert MASK in said["content"]
    assert KEY.encode() not in kept_bytes(place)


async def test_a_key_in_the_name_of_a_start_or_of_a_model_is_no_row(
    place: Place, server: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "any-1234")
    server.will(refuses(404), refuses(404))
    async with App.open(place.settings(model="openai:small", base_url=server.openai), via="mcp") as app:
        first = await start_run(app, key=f"deploy {KEY}", model=f"openai:{KEY}")
        assert await start_run(app, key=f"deploy {KEY}", model=f"openai:{KEY}") == first
        assert KEY not in str(await app.runs.report(first, ME))
    assert KEY.encode() not in kept_bytes(place)
