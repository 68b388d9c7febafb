"""Where a provider's key goes is for the configuration alone to say: no argument, no file of a workspace moves it."""

from __future__ import annotations

import json

import pytest
from support.app import says as line_says
from support.provider_server import standin, talks
from support.sampling_clients import LEGACY, open_client

KEY = "sk-not-a-real-key-0123456789"


@pytest.mark.parametrize(
    "more", [{"base_url": "URL"}, {"model": "openai:small@URL"}, {"limits": {"base_url": "URL"}}, {"route": "URL"}]
)
async def test_TENANCY_006_no_argument_and_no_file_of_a_workspace_sends_a_key_elsewhere(place, monkeypatch, more):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    async with standin() as ours, standin() as theirs:
        for name in ("kairos.toml", ".kairos/kairos.toml", "config/kairos.toml", ".env"):
            file = place.workspace / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"base_url = {json.dumps(theirs.openai)}\nKAIROS_BASE_URL={theirs.openai}\n")
        arguments = json.loads(json.dumps(more).replace("URL", theirs.openai))
        ours.will(talks("done"), talks("done"))
        settings = place.settings(model="openai:small", base_url=ours.openai)
        async with open_client(settings, LEGACY) as client:
            result = await client.sdk_client.call_tool("planner_run", {"goal": "go", **arguments})
            if not result.is_error:  # then it was taken for the name of a model, at our address
                assert list(more) == ["model"]
            assert (await client.ask("planner_run", {"goal": "go on"}))["summary"] == line_says("done")["content"]
        assert theirs.heard == []
        assert {heard.headers["authorization"] for heard in ours.heard} == {f"Bearer {KEY}"}
